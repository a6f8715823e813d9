"""Rotated captures, in whatever order and by whatever names they are given: all frames, in order of time."""

from __future__ import annotations

import gzip
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pwire_run import SAMPLES, Pcap, Run, decode, pwire

NAMES: dict[str, Callable[[int], str]] = {
    "tcpdump -C": lambda n: f"x.pcap{n or ''}",
    "tcpdump -C, two digits at the end": lambda n: f"x.pcap{n:02}" if n < 10 else f"x.pcap{n}",
    "tcpdump -W, begun anew": lambda n: f"x.pcap{(n + 7) % 12:02}",
    "tcpdump -G": lambda n: f"x-2025-11-{22 + n // 10}_{9 + n % 10}:00:00.pcap",
    "month before day": lambda n: f"x-{('Nov', 'Dec', 'Jan')[n // 4]}-{1 + n % 4}.pcap",
    "tshark -b": lambda n: f"x_{n + 1:05}_20251122{n:02}0000.pcapng",
    "numbers that are not padded": lambda n: f"{n}.pcap",
    "names that say nothing": lambda n: random.Random(n).randbytes(4).hex() + ".pcap",
}


def pieces(sample: str, count: int) -> list[bytes]:
    """A capture cut into `count` files."""
    capture = Pcap.read(sample)
    size = -(-len(capture.packets) // count)
    return [
        Pcap(capture.header, capture.packets[at : at + size]).file
        for at in range(0, len(capture.packets), size)
    ]


def put(directory: Path, files: dict[str, bytes]) -> list[str]:
    directory.mkdir(exist_ok=True)
    for name, data in files.items():
        (directory / name).write_bytes(data)
    return [str(directory / name) for name in files]


def shuffled(paths: list[str], seed: int = 5) -> list[str]:
    return random.Random(seed).sample(paths, len(paths))


def without_files(record: dict[str, Any]) -> dict[str, Any]:
    """A record, of a finding too, without what says in which file its packets are."""
    if "evidence" in record:
        record = {**record, "evidence": list(map(without_files, record["evidence"]))}
    return {name: value for name, value in record.items() if name not in ("wireshark", "file")}


def seen(run: Run) -> list[dict[str, Any]]:
    assert run.code == 0, run.err
    return list(map(without_files, run.records))


def hosts(sample: str = "auth-token.pcap") -> tuple[list[bytes], ...]:
    """The connections of a capture as two hosts may have captured them, a few packets a file."""
    capture = Pcap.read(sample)
    sides: tuple[list[Any], list[Any]] = ([], [])
    clients: dict[int, int] = {}
    for packet in capture.packets:
        client = max(struct.unpack_from(">HH", packet[3], 34))
        sides[clients.setdefault(client, len(clients)) % 2].append(packet)
    assert len(clients) > 20
    return tuple(
        [Pcap(capture.header, side[at : at + size]).file for at in range(0, len(side), size)]
        for side, size in zip(sides, (31, 47), strict=True)
    )


@pytest.mark.parametrize("names", NAMES.values(), ids=list(NAMES))
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_files_are_read_in_order_of_time(
    names: Callable[[int], str], pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    files = {names(number): pack(data) for number, data in enumerate(pieces("errors.pcap", 12))}
    run = decode(*shuffled(put(tmp_path, files)), "-o", "json")
    assert seen(run) == seen(decode("errors.pcap", "-o", "json"))
    assert not run.complaints


def test_hosts_are_read_side_by_side(tmp_path: Path) -> None:
    one, other = hosts()
    files = {f"hostA_{number}.pcap": data for number, data in enumerate(one)}
    files |= {f"hostB_{number}.pcap": data for number, data in enumerate(other)}
    paths = put(tmp_path, files)
    expected = seen(decode("auth-token.pcap", "-o", "json"))
    assert seen(decode(*paths, "-o", "json")) == expected
    run = decode(*shuffled(paths), "-o", "json", "-2")
    assert seen(run) == seen(decode("auth-token.pcap", "-o", "json", "-2"))
    assert not run.complaints


def _is_there(record: dict[str, Any]) -> bool:
    """Whether the packet that a record names is in its file, with the record's time."""
    seconds, fraction, *_ = Pcap.read(record["file"]).packets[record["wireshark"] - 1]
    return bool(seconds * 1_000_000_000 + fraction * 1_000 == record["time_ns"])


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_packets_have_their_numbers_in_their_files(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    one, other = hosts()
    files = {f"hostA_{number}.pcap": data for number, data in enumerate(one)}
    files |= {f"hostB_{number}.pcap": data for number, data in enumerate(other)}
    plain = put(tmp_path / "plain", files)
    given = put(tmp_path / "given", {name: pack(data) for name, data in files.items()})
    same = dict(zip(given, plain, strict=True))
    records = decode(*shuffled(given), "-o", "json").records
    assert len(records) > 100
    assert len({record["file"] for record in records}) > 5
    assert all(_is_there({**record, "file": same[record["file"]]}) for record in records)
    times = {record["number"]: record["time_ns"] for record in records}
    evidence = [
        row for finding in pwire("doctor", *given, "-o", "json").records for row in finding["evidence"]
    ]
    assert len(evidence) > 10
    assert all(
        _is_there({"file": same[row["file"]], "wireshark": row["wireshark"], "time_ns": times[row["number"]]})
        for row in evidence
    )
    named = pwire("doctor", *given, "-o", "sarif").records[0]["runs"][0]["results"]
    assert named[0]["properties"]["evidence"][0]["file"] in given
    connections = decode(*given, "--connections", "-o", "json").records
    assert all(_is_there({**record, "file": same[record["file"]]}) for record in connections)


def test_what_is_in_no_capture_file_has_no_number(tmp_path: Path) -> None:
    raw = tmp_path / "ping.bin"
    raw.write_bytes(b"\x00\x00\x00\x09\x00\x00\x00\x05\x08\x12\x92\x01\x00")
    assert not {"wireshark", "file"} & decode(raw, "-o", "json").records[0].keys()
    sample = SAMPLES / "python-simple.pcap"
    first, *_, last = decode(raw, sample, "-o", "json").records
    assert not {"wireshark", "file"} & first.keys()
    assert (last["file"], last["wireshark"]) == (str(sample), last["packet"])


def test_both_directions_from_different_files(tmp_path: Path) -> None:
    """Neither file has a whole connection."""
    capture = Pcap.read("java-keyshared.pcap")
    ways: tuple[list[Any], list[Any]] = ([], [])
    for packet in capture.packets:
        source, target = struct.unpack_from(">HH", packet[3], 34)
        ways[source > target].append(packet)
    files = {f"{name}.pcap": Pcap(capture.header, way).file for name, way in zip("ab", ways, strict=True)}
    assert seen(decode(*put(tmp_path, files), "-o", "json")) == seen(
        decode("java-keyshared.pcap", "-o", "json")
    )


def test_overlapping_files_of_a_series_are_said(tmp_path: Path) -> None:
    """Hosts that differ only by a number are side by side too."""
    one, other = hosts()
    paths = put(tmp_path, {"broker-0.pcap": b"".join([one[0][:24], *(each[24:] for each in one)])})
    paths += put(tmp_path, {"broker-1.pcap": b"".join([other[0][:24], *(each[24:] for each in other)])})
    run = decode(*paths, "-o", "json")
    assert seen(run) == seen(decode("auth-token.pcap", "-o", "json"))
    (said,) = run.complaints
    assert "broker-1.pcap begins before" in said
    assert "side by side" in said


@pytest.mark.parametrize("beside", [[], ["hostA.pcap"]], ids=["alone", "beside another"])
def test_compressed_files_of_a_series_that_overlap_are_said(tmp_path: Path, beside: list[str]) -> None:
    """Where a compressed file ends is not known before it is read."""
    first, second, third = pieces("python-simple.pcap", 3)
    files = {"x-0.pcap.gz": gzip.compress(first + third[24:]), "x-1.pcap.gz": gzip.compress(second)}
    paths = put(tmp_path, files | dict.fromkeys(beside, first))
    run = decode(*paths, "-q")
    (said,) = run.complaints
    assert "x-1.pcap.gz begins before" in said
    assert "x-0.pcap.gz ends: unpack them" in said


def test_what_has_no_packets_keeps_its_place(tmp_path: Path) -> None:
    first, second = pieces("python-simple.pcap", 2)
    frame = b"\x00\x00\x00\x09\x00\x00\x00\x05\x08\x12\x92\x01\x00"
    b, raw, a = put(tmp_path, {"b.pcap": second, "ping.bin": frame, "a.pcap": first})
    stdin = frame.replace(b"\x12\x92", b"\x13\x9a")
    run = decode(b, raw, "-", a, "-o", "json", stdin=stdin)
    found = [record for record in seen(run) if record["command"] in ("PING", "PONG")]
    assert [record["command"] for record in found[:2]] == ["PING", "PONG"]
    commands = [record["command"] for record in run.records]
    assert len(commands) == len(seen(decode("python-simple.pcap", "-o", "json"))) + 2
    assert commands.index("PING") > 2
    assert commands[-1] not in ("PING", "PONG")


def test_damage_of_one_file_does_not_end_the_others(tmp_path: Path) -> None:
    one, other = hosts()
    files = {f"hostA_{number}.pcap": data for number, data in enumerate(one)}
    files |= {f"hostB_{number}.pcap": data for number, data in enumerate(other)}
    whole = decode(*put(tmp_path, files), "-o", "json")
    files["hostA_1.pcap"] = files["hostA_1.pcap"][:-5]
    run = decode(*put(tmp_path, files), "-o", "json")
    assert run.code == 4
    (said,) = run.complaints
    assert "hostA_1.pcap: the file ends in the middle of the packet" in said
    assert len(run.records) >= len(whole.records) - 2


def tables(out: Path) -> list[list[dict[str, Any]]]:
    return [pq.read_table(path).to_pylist() for path in (out, out.with_name(f"{out.stem}.gaps.parquet"))]


def test_all_verbs_have_the_same_frames(tmp_path: Path) -> None:
    one, other = hosts()
    files = {f"hostA.pcap{number or ''}": data for number, data in enumerate(one)}
    files |= {f"hostB_{number}.pcap.gz": gzip.compress(data) for number, data in enumerate(other)}
    paths = shuffled(put(tmp_path, files))
    expected = seen(decode("auth-token.pcap", "-o", "json"))
    assert seen(decode(*paths, "-o", "json")) == expected
    counted = seen(pwire("stats", *paths, "-o", "json"))
    assert counted == seen(pwire("stats", SAMPLES / "auth-token.pcap", "-o", "json"))
    pwire("table", SAMPLES / "auth-token.pcap", "--out", tmp_path / "one.parquet")
    pwire("table", *paths, "--out", tmp_path / "many.parquet")
    for alone, many in zip(tables(tmp_path / "one.parquet"), tables(tmp_path / "many.parquet"), strict=True):
        assert _without_place(alone) == _without_place(many)


def _without_place(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(
        repr([value for name, value in row.items() if name not in ("file", "series", "packet_offset")])
        for row in rows
    )
