"""What commands say of packets that they skip, or that were captured twice."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from pwire_run import SAMPLES, decode, pwire

INPUTS = Path(__file__).parents[1] / "capture" / "inputs"
NAT = INPUTS / "dup-nat.pcap"
SKIPPED = "59 packets: 59 of link type 147, not understood"


@pytest.fixture
def unknown(tmp_path: Path) -> Path:
    """A capture of a link type that nobody knows."""
    data = (INPUTS / "nflog.pcap").read_bytes()
    path = tmp_path / "unknown.pcap"
    path.write_bytes(data[:20] + struct.pack("<I", 147) + data[24:])
    return path


def test_skipped_packets_are_said_with_the_reason(unknown: Path, tmp_path: Path) -> None:
    assert decode("-q", unknown).err == f"59 packets, 0 connections, 0 frames, 0 B\n  skipped    {SKIPPED}\n"
    assert f"skipped    {SKIPPED}" in decode("--connections", unknown).err
    assert f"skipped    {SKIPPED}" in pwire("stats", unknown).out.decode()
    for verb in (["doctor"], ["sequence"], ["permits"], ["table", "--out", tmp_path / "t.parquet"]):
        assert f"pwire: skipped {SKIPPED}\n" in pwire(*verb, unknown).err
    (total,) = pwire("stats", "-o", "json", "--by", "topic", unknown).records
    assert total["skipped_packets"] == {"link type 147": 59}


def test_reasons_are_said_the_commonest_first_and_not_all(tmp_path: Path) -> None:
    packets = [struct.pack(">BBHHHBB10s", 0x45, 0, 20, 0, 0, 64, number, b"") for number in range(60, 75)]
    path = tmp_path / "x.pcap"
    header = struct.pack("<IHHIIII", 0xA1B2C3D4, 2, 4, 0, 0, 65_535, 101)
    records = [struct.pack("<IIII", 0, 0, 20, 20) + packet for packet in [*packets, packets[3], *packets[:1]]]
    path.write_bytes(header + b"".join(records))
    text = decode("-q", path).err.splitlines()[1]
    assert text.startswith("  skipped    17 packets: 2 IP protocol 63; 2 IP protocol 60; 1 IP protocol 74; ")
    assert text.endswith("; 7 others")


def test_packets_before_and_after_nat_are_one_connection(tmp_path: Path) -> None:
    plain = decode("-o", "json", "--connections", SAMPLES / "python-simple.pcap").records[0]
    (record,) = decode("-o", "json", "--connections", NAT).records
    assert record["copies"] == 57  # up to its end
    assert record["copied_as"] == [{"client": "172.17.0.9:57886", "server": "127.0.0.1:8650"}]
    assert {name: record[name] for name in ("frames_to_broker", "frames_to_client", "how", "syns")} == {
        name: plain[name] for name in ("frames_to_broker", "frames_to_client", "how", "syns")
    }
    assert (
        "57 packets captured again as 172.17.0.9:57886 → 127.0.0.1:8650"
        in decode("--connections", NAT).out.decode()
    )
    assert "  copies     59 packets captured twice, counted once\n" in decode("-q", NAT).err
    assert "copies     59 packets captured twice, counted once" in pwire("stats", NAT).out.decode()
    assert pwire("stats", "-o", "json", "--by", "topic", NAT).records[0]["copied_packets"] == 59
    for verb in (["doctor"], ["table", "--out", tmp_path / "t.parquet"]):
        assert "pwire: 59 packets captured twice, counted once\n" in pwire(*verb, NAT).err


def test_copies_can_be_kept(tmp_path: Path) -> None:
    assert decode("-q", "--keep-duplicates", NAT).err.startswith("118 packets, 2 connections, 100 frames")
    assert "118 packets, 2 connections, 100 frames" in pwire("stats", "--keep-duplicates", NAT).out.decode()
    (total, *_) = pwire("stats", "-o", "json", "--keep-duplicates", NAT).records
    assert (total["connections"], total["copied_packets"]) == (2, 0)
    run = pwire("doctor", "--keep-duplicates", NAT)
    assert "in 2 connections" in run.err
    table = tmp_path / "t.parquet"
    assert pwire("table", "--keep-duplicates", NAT, "--out", table).err == ""
    assert len(pwire("sequence", "--no-fold", "--keep-duplicates", NAT).out) > 1.5 * len(
        pwire("sequence", "--no-fold", NAT).out
    )


def test_a_copy_that_goes_on_is_said(tmp_path: Path) -> None:
    data = NAT.read_bytes()
    records, at = [], 24
    while at < len(data):
        size = struct.unpack_from("<I", data, at + 8)[0]
        records.append(data[at : at + 16 + size])
        at += 16 + size
    later = [
        struct.pack("<I", struct.unpack_from("<I", record)[0] + 5) + record[4:] for record in records[61::2]
    ]
    path = tmp_path / "longer.pcap"
    path.write_bytes(data[:24] + b"".join([*records[:60], *later]))
    text = "59 packets captured twice, counted once; 1 copy goes on after the original: see --keep-duplicates"
    assert text in decode("-q", path).err
    assert text in pwire("stats", path).out.decode().replace("\n             ", " ")
    assert text in pwire("doctor", path).err
    assert text in pwire("table", path, "--out", tmp_path / "t.parquet").err
    (record,) = decode("-o", "json", "--connections", path).records
    assert record["has_longer_copy"] is True
    assert (
        "which go on after the original: see --keep-duplicates" in decode("--connections", path).out.decode()
    )
