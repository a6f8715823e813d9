"""Captures of TLS: opened by key logs and by secrets inside the file; what is said of closed ones."""

from __future__ import annotations

import gzip
import os
import shutil
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pwire_run import pwire
from tls_samples import TLS_SAMPLES, Recorded

from pulsarctl_wire import read_frames
from pulsarctl_wire.capture.files import RawPacket, read_packets
from pulsarctl_wire.capture.secrets import Secrets
from pulsarctl_wire.capture.sources import Decoder, Reading
from pulsarctl_wire.capture.writer import PcapngWriter
from pulsarctl_wire.cli.capture import pool
from pulsarctl_wire.wire.frame import Event, Frame

COMMANDS = {
    *("CONNECT", "CONNECTED", "PARTITIONED_METADATA", "PARTITIONED_METADATA_RESPONSE", "LOOKUP", "SUBSCRIBE"),
    *("LOOKUP_RESPONSE", "PRODUCER", "PRODUCER_SUCCESS", "SEND", "SEND_RECEIPT", "FLOW", "MESSAGE", "ACK"),
    *("CLOSE_CONSUMER", "CLOSE_PRODUCER", "SUCCESS"),
}
VERSIONS = ["tls12", "tls13"]


def commands(*args: object) -> Counter[str]:
    records = pwire("decode", "-o", "json", *map(str, args)).records
    return Counter(record["command"] for record in records if "command" in record)


@pytest.fixture(params=VERSIONS)
def recorded(request: pytest.FixtureRequest) -> Recorded:
    return Recorded(request.param)


@pytest.mark.parametrize("name", VERSIONS)
def test_secrets_inside_the_file_need_no_option(name: str) -> None:
    seen = commands(TLS_SAMPLES / f"{name}.pcapng")
    assert seen.keys() == COMMANDS
    assert seen["SEND"] == seen["MESSAGE"] == 3


def test_a_key_log_opens_the_same_frames(recorded: Recorded, tmp_path: Path) -> None:
    inside = recorded.write(tmp_path / "inside.pcapng", secrets_after=0)
    plain = recorded.write(tmp_path / "plain.pcapng")
    keys = tmp_path / "keys.log"
    keys.write_bytes(b"# made by a test\n" + recorded.keys)
    lines = pwire("decode", inside).lines
    assert pwire("decode", "--keylog", keys, plain).lines == lines
    assert len(lines) == 31


@pytest.mark.parametrize("place", [10, 40, -1])
def test_secrets_may_come_after_the_packets_that_they_open(
    recorded: Recorded, tmp_path: Path, place: int
) -> None:
    late = recorded.write(tmp_path / "late.pcapng", secrets_after=place)
    first = recorded.write(tmp_path / "first.pcapng", secrets_after=0)
    assert commands(late) == commands(first)
    stats = pwire("stats", "-o", "json", late).records
    assert stats[0]["frames"] == 31 if "frames" in stats[0] else True
    assert "no secret" not in pwire("decode", "-q", late).err


def test_what_is_known_of_closed_connections_is_said(recorded: Recorded, tmp_path: Path) -> None:
    run = pwire("decode", recorded.write(tmp_path / "closed.pcapng"))
    assert "TLS        0 of 2 connections opened; no secret for client random" in run.err
    assert "--keylog FILE names a key log" in run.err
    assert len(run.lines) == 4
    assert all("no secret for client random" in line for line in run.lines)
    connections = pwire("decode", "--connections", "-o", "json", tmp_path / "closed.pcapng").records
    for record in connections:
        assert record["protocol"] == "TLS"
        assert record["tls"]["server_name"] == "localhost"
        assert record["tls"]["version"] in ("TLS 1.2", "TLS 1.3")
        assert not record["tls"]["opened"]


@pytest.mark.parametrize("name", VERSIONS)
def test_opened_connections_say_whom_they_met(name: str) -> None:
    for record in pwire("decode", "--connections", "-o", "json", TLS_SAMPLES / f"{name}.pcapng").records:
        assert record["protocol"] == "Pulsar"
        assert record["tls"]["opened"]
        assert record["tls"]["reason"] is None
        assert record["tls"]["server_certificate"]["subject"] == "CN=pwire"
        assert record["tls"]["records_to_broker"] > 3
        assert record["how"] == "closed by client, without close_notify"


def test_secrets_are_never_printed(recorded: Recorded, tmp_path: Path) -> None:
    path = recorded.write(tmp_path / "inside.pcapng", secrets_after=0)
    secrets = {line.split()[2].decode() for line in recorded.keys.splitlines()}
    for args in (("decode", "-o", "json"), ("decode", "--connections"), ("doctor",), ("stats",)):
        run = pwire(*args, path)
        assert not [secret for secret in secrets if secret in run.out.decode() + run.err]


def test_a_key_log_may_grow_while_packets_come(recorded: Recorded, tmp_path: Path) -> None:
    keys = tmp_path / "keys.log"
    decoder = Decoder(Reading(keylogs=(str(keys),)))
    decoder.secrets.poll = decoder.secrets.read_logs  # type: ignore[method-assign]

    def live() -> Iterator[RawPacket]:
        for number, packet in enumerate(recorded.packets):
            if number == 25:
                keys.write_bytes(recorded.keys)
            yield packet

    events: list[Event] = [event for batch in decoder.read_packets(live()) for event in batch]
    events += [event for batch in decoder.finish() for event in batch]
    assert len([event for event in events if isinstance(event, Frame)]) == 31


def test_joined_midway(tmp_path: Path) -> None:
    for name, frames in (("tls12", 0), ("tls13", 14)):
        recorded = Recorded(name)
        opened = [packet for packet in recorded.packets if len(packet[2]) > 66]
        path = recorded.write(tmp_path / f"{name}.pcapng", secrets_after=0, packets=recorded.packets[-30:])
        run = pwire("decode", path)
        assert opened
        assert len([line for line in run.lines if "MALFORMED" not in line]) >= frames
        if not frames:
            assert "the handshake is not in the capture" in run.err + run.out.decode()


def test_damaged_key_logs_are_said(recorded: Recorded, tmp_path: Path) -> None:
    plain = recorded.write(tmp_path / "plain.pcapng")
    keys = tmp_path / "keys.log"
    keys.write_bytes(b"\0\xff garbage\n" * 5 + recorded.keys)
    run = pwire("decode", "--keylog", keys, plain)
    assert len(run.lines) == 31
    assert "5 lines not understood; the first is line 1" in run.err.replace(",", ";")
    run = pwire("decode", "--keylog", tmp_path / "none", plain)
    assert (run.code, run.complaints) == (3, [f"pwire: --keylog {tmp_path}/none: no such file"])


def test_a_damaged_block_of_secrets_breaks_nothing(recorded: Recorded, tmp_path: Path) -> None:
    path = tmp_path / "damaged.pcapng"
    with path.open("wb") as stream:
        writer = PcapngWriter(stream)
        for body in (b"", b"\1", struct.pack("<II", 0x544C534B, 1 << 31), struct.pack("<II", 7, 4) + b"abcd"):
            padded = body + bytes(-len(body) % 4)
            size = struct.pack("<I", 12 + len(padded))
            stream.write(struct.pack("<I", 10) + size + padded + size)
        for packet in recorded.packets:
            writer.write(packet)
    assert "0 of 2 connections opened" in pwire("decode", "-q", path).err


def test_written_packets_can_be_opened_again(recorded: Recorded, tmp_path: Path) -> None:
    path = recorded.write(tmp_path / "inside.pcapng", secrets_after=0)
    out = tmp_path / "sends.pcapng"
    assert len(pwire("decode", path, "--connection", "1", "-w", out).lines) == 21
    assert sum(commands(out).values()) == 21
    assert len(recorded.packets) > len(list(read_packets(out.read_bytes(), lambda: b"")))


def test_tables_have_the_frames(recorded: Recorded, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    keys = tmp_path / "keys.log"
    keys.write_bytes(recorded.keys)
    plain = recorded.write(tmp_path / "plain.pcapng")
    assert pwire("table", "--keylog", keys, plain, "--out", tmp_path / "t.parquet").code == 0
    table = pq.read_table(tmp_path / "t.parquet")
    assert Counter(table.column("command").to_pylist()) == commands("--keylog", keys, plain)


def test_expired_certificates_are_found(recorded: Recorded, tmp_path: Path) -> None:
    later = [(time_ns + 10**9 * 86_400 * 500, *rest) for time_ns, *rest in recorded.packets if time_ns]
    path = recorded.write(tmp_path / "later.pcapng", secrets_after=0, packets=later)
    findings = {finding["id"]: finding for finding in pwire("doctor", "-o", "json", path).records}
    assert {*findings} == {"tls_certificate_invalid", "publish_time_skewed"}
    text = findings["tls_certificate_invalid"]["explanation"]
    assert "The broker's certificate has expired on 2027-11-28" in text
    assert pwire("doctor", shutil.copy(TLS_SAMPLES / "tls13.pcapng", tmp_path)).code == 0


def split(packets: list[RawPacket], size: int) -> list[RawPacket]:
    """Cut the payload of IPv4 packets with Ethernet headers into segments of this size."""
    pieces = []
    for time_ns, link, data, _ in packets:
        start = 34 + (data[46] >> 4) * 4
        for offset in range(start, max(len(data), start + 1), size):
            payload = data[offset : offset + size]
            sequence = (int.from_bytes(data[38:42], "big") + offset - start) % 2**32
            total = (start - 14 + len(payload)).to_bytes(2, "big")
            head = data[:16] + total + data[18:38] + sequence.to_bytes(4, "big") + data[42:start]
            pieces.append((time_ns, link, head + payload, start + len(payload)))
    return pieces


def test_records_of_several_packets_are_written_whole(recorded: Recorded, tmp_path: Path) -> None:
    path = recorded.write(tmp_path / "split.pcapng", secrets_after=0, packets=split(recorded.packets, 30))
    out = tmp_path / "sends.pcapng"
    assert len(pwire("decode", path, "--command", "SEND,MESSAGE", "-w", out).lines) == 6
    seen = commands(out)
    assert (seen["SEND"], seen["MESSAGE"]) == (3, 3)


def test_a_second_reading_has_the_same_secrets(recorded: Recorded, tmp_path: Path) -> None:
    """A pipe can be read once."""
    plain = recorded.write(tmp_path / "plain.pcapng")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(recorded.keys,))
    writer.start()
    run = pwire("decode", "-2", "--keylog", pipe, plain)
    writer.join()
    assert len(run.lines) == 31


def test_files_side_by_side_are_searched_for_secrets(recorded: Recorded, tmp_path: Path) -> None:
    last = recorded.write(tmp_path / "a.pcapng", secrets_after=-1)
    other = [
        (at, link, data[:12] + b"\x08\x06" + data[14:], size) for at, link, data, size in recorded.packets
    ]
    beside = recorded.write(tmp_path / "c.pcapng", packets=other)
    assert sum(commands(last, beside).values()) == 31


def test_large_files_with_secrets_in_another_one_are_read_by_one_process(tmp_path: Path) -> None:
    packed = tmp_path / "tls.pcapng.gz"
    packed.write_bytes(gzip.compress((TLS_SAMPLES / "tls13.pcapng").read_bytes()))
    assert pool.plan_inputs([str(packed)] * 2, 2) == []


def test_the_library_takes_key_logs(recorded: Recorded, tmp_path: Path) -> None:
    plain, keys = recorded.write(tmp_path / "plain.pcapng"), tmp_path / "keys.log"
    keys.write_bytes(recorded.keys)
    assert len(list(read_frames(plain, keylogs=[keys]))) == 31
    assert len(list(read_frames(recorded.write(tmp_path / "end.pcapng", secrets_after=-1)))) == 31


def test_a_key_log_that_cannot_be_read_any_more_is_a_problem(recorded: Recorded, tmp_path: Path) -> None:
    keys, file = tmp_path / "keys.log", tmp_path / "file.log"
    file.write_bytes(recorded.keys)
    keys.symlink_to(file)
    secrets = Secrets([str(keys)])
    keys.unlink()
    keys.symlink_to(tmp_path)
    secrets.read_logs()
    assert secrets.describe_problems() == [f"{keys}: the key log cannot be read: Is a directory"]
    assert not secrets.has_logs


def test_a_key_log_is_not_overwritten(recorded: Recorded, tmp_path: Path) -> None:
    plain, keys = recorded.write(tmp_path / "plain.pcapng"), tmp_path / "keys.log"
    keys.write_bytes(recorded.keys)
    for verb in ("decode", "sanitize"):
        run = pwire(verb, plain, "--keylog", keys, "-w", keys)
        assert (run.code, keys.read_bytes()) == (2, recorded.keys)


def test_a_handshake_that_is_broken_off_is_found(recorded: Recorded, tmp_path: Path) -> None:
    """The client hangs up after the server's first records."""
    first = recorded.packets[0][2][26:38]
    ends = {first, first[4:8] + first[:4] + first[10:12] + first[8:10]}
    packets = [packet for packet in recorded.packets if packet[2][26:38] in ends]
    begun = [packet for packet in packets if packet[2][47] & 2 or len(packet[2]) > 66][:4]
    closing = [packet for packet in packets if packet[2][47] & 1]
    data = begun[2][2]
    length = len(data) - 34 - (data[46] >> 4) * 4
    after = (int.from_bytes(data[38:42], "big") + length) % 2**32
    closing = [
        (at, kind, fin[:38] + after.to_bytes(4, "big") + fin[42:], n)
        if fin[26:38] == data[26:38]
        else (at, kind, fin, n)
        for at, kind, fin, n in closing
    ]
    path = recorded.write(tmp_path / "broken.pcapng", packets=[*begun, *closing[:1]])
    (finding,) = pwire("doctor", "-o", "json", path).records
    assert (finding["id"], finding["certainty"]) == ("tls_handshake_failed", "certain")
