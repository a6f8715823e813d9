"""Captures as switches, firewalls and Wireshark write them, all of one session -> its 50 frames."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from pulsarctl_wire.capture.sources import Decoder, open_source
from pulsarctl_wire.wire.frame import Event, Frame

INPUTS = Path(__file__).parent / "inputs"
PLAIN = Path(__file__).parents[2] / "samples" / "pcaps" / "python-simple.pcap"


def decode(path: Path) -> tuple[Decoder, list[Event]]:
    decoder = Decoder()
    events: list[Event] = []
    source = open_source(str(path))
    with source.stream:
        for batch in decoder.read(source):
            events += batch
    for batch in decoder.finish():
        events += batch
    return decoder, events


def frames_of(events: list[Event]) -> list[tuple[bool, bytes]]:
    frames = [event for event in events if isinstance(event, Frame)]
    assert frames == events
    return [(frame.to_broker, frame.raw) for frame in frames]


@pytest.mark.parametrize("name", ["erspan2.pcap", "nflog.pcap", "exported.pcapng"])
def test_all_frames_of_the_session(name: str) -> None:
    decoder, events = decode(INPUTS / name)
    assert frames_of(events) == frames_of(decode(PLAIN)[1])
    assert decoder.reassembler.connections == 1
    assert not decoder.skipped


def test_a_connection_in_linux_vxlan() -> None:
    """Captured below the tunnel, and on all interfaces, so both in it and below it."""
    below, frames = decode(INPUTS / "vxlan.pcapng")
    both, again = decode(INPUTS / "any.pcapng")
    assert len(frames_of(frames)) == 12
    assert frames_of(frames) == frames_of(again)
    assert below.reassembler.connections == both.reassembler.connections == 1
    assert below.reassembler.copies.total == 0
    assert both.reassembler.copies.total == 12
    assert below.skipped == {"not IP": 4, "ICMPv6": 4}


def test_what_wireshark_has_decrypted_and_exported() -> None:
    """`tshark -o tls.keylog_file:… -U "OSI layer 7"`: of TLS 1.3, with messages of 64 KiB."""
    decoder, events = decode(INPUTS / "exported-tls.pcapng.gz")
    assert Counter(frame.command for frame in events if isinstance(frame, Frame)) == {
        **dict.fromkeys(("SEND", "SEND_RECEIPT", "MESSAGE", "ACK"), 6),
        **dict.fromkeys(("CONNECT", "CONNECTED", "LOOKUP", "LOOKUP_RESPONSE", "PRODUCER"), 1),
        **dict.fromkeys(("PARTITIONED_METADATA", "PARTITIONED_METADATA_RESPONSE", "PRODUCER_SUCCESS"), 1),
        **dict.fromkeys(("SUBSCRIBE", "FLOW", "CLOSE_PRODUCER"), 1),
        "SUCCESS": 2,
    }
    assert len(frames_of(events)) == 37
    assert decoder.reassembler.connections == 1


def test_exported_pdus_have_a_connection_with_two_directions() -> None:
    _, events = decode(INPUTS / "exported.pcapng")
    assert Counter(event.to_broker for event in events) == {True: 21, False: 29}
    assert {(event.connection.client, event.connection.server) for event in events} == {
        ("127.0.0.1:57886", "127.0.0.1:8650")
    }
