"""What the doctor finds in live traffic is what it finds in the recording of it."""

from pathlib import Path
from typing import Any, Final

import pytest
from disorder import Packets
from judge import SHORT, examine
from test_diagnoses import EXPECTED, name_of
from test_disorder import keys, whole
from timeline import ids

from pulsarctl_wire.capture.packets import ACK, FIN, RST, SYN, Dissector, address_of, reverse
from pulsarctl_wire.checks.doctor import Doctor
from pulsarctl_wire.checks.rule import SECOND
from pulsarctl_wire.cli.recording import RecordingSink
from pulsarctl_wire.wire.frame import Connection
from pulsarctl_wire.wire.session.sinks import Follower

TICK: Final = SECOND // 4

TCP_EVENTS: Final = {"advertised_address_unreachable"}
"""Rules that know of connections that were not accepted; without, they suspect."""

MASKED: Final = {"token_expired"}
"""Rules that read what recordings mask."""


def carry(packets: Packets, follower: Follower) -> None:
    """Let a follower see the bytes of all connections that were accepted, as a proxy does."""
    now_ns = packets[0][0] or 0
    ends: dict[bytes, list[int]] = {}  # of both directions
    connections: dict[bytes, Connection] = {}
    for packet in packets:
        time_ns = packet[0] or 0
        for tick_ns in range(now_ns + TICK, time_ns, TICK):
            follower.tick(tick_ns)
            now_ns = tick_ns
        segment = Dissector().segment(*packet[1:])
        if segment is None:
            continue
        key, sequence, acknowledged, flags, payload, _ = segment
        if flags & (SYN | ACK) == SYN | ACK:
            client = reverse(key)
            made = connections[client] = Connection(len(ends), address_of(client), address_of(key))
            ends[client], ends[key] = [acknowledged], [sequence + 1]
            follower.opened(made, time_ns)
        client = key if key in connections else reverse(key)
        connection = connections.get(client)
        if connection is None or flags & SYN:
            continue
        new = payload[(ends[key][0] - sequence) % 2**32 :] if payload else b""
        if new:
            ends[key][0] = (sequence + len(payload)) % 2**32
            follower.carried(connection, key == client, new, time_ns)
        if flags & (FIN | RST):
            del connections[client]
            follower.closed(connection, time_ns, key != client)
    follower.tick(packets[-1][0] or 0)
    follower.finish()


@pytest.mark.parametrize(
    "expected", [row for row in EXPECTED if row["diagnosis"] != "tls_certificate_invalid"], ids=name_of
)  # the proxy is an end of TLS: what it records is plain
def test_live_findings_are_those_of_a_capture_and_of_the_recording(
    expected: dict[str, Any], tmp_path: Path
) -> None:
    packets, captured = whole(expected["file"])
    recording = RecordingSink(str(tmp_path / "r.pcapng"), print, "this", show_secrets=False)
    doctor = Doctor(thresholds=SHORT, live=True)
    carry(packets, Follower([recording, doctor], doctor.new_state))
    live, recorded = doctor.findings.values(), examine(tmp_path / "r.pcapng").findings.values()
    assert keys(each for each in live if each.rule not in MASKED) == keys(recorded)
    differing = {rule for rule, _ in {*ids(live)} ^ {*ids(captured)}}
    assert differing <= TCP_EVENTS
    assert {each.rule for each in live} == {each.rule for each in captured}
