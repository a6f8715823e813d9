"""From rows of a table to packets: what `pwire extract` writes decodes to the frames of these rows."""

from __future__ import annotations

import gzip
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import zstandard
from cli.test_rotated import hosts
from pwire_run import SAMPLES, Run, pwire

from pulsarctl_wire.capture.files import RawPacket, read_packets
from pulsarctl_wire.capture.series import natural

NAMES = sorted(path.name for path in SAMPLES.glob("*.pcap*"))
OWN = (
    *("time_ns", "start_time_ns", "src_ip", "src_port", "dst_ip", "dst_port", "to_broker", "command"),
    *("total_size", "command_size", "partial", "checksum", "payload_size", "producer_id", "consumer_id"),
)
"""Columns that a frame has by its own bytes and packets."""
MORE = (*OWN, "stream_offset", "topic", "subscription", "answers", "latency_ns", "command_json", "messages")
"""Columns that a frame has by what came before it on its connection."""


def table(out: Path, *sources: str | Path) -> list[dict[str, Any]]:
    run = pwire("table", *sources, "--out", out)
    assert out.exists(), run.err
    return rows(out)


def rows(path: Path) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = pq.read_table(path, partitioning=None).to_pylist()
    return made


def counted(some: list[dict[str, Any]], names: tuple[str, ...]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row[name] for name in names) for row in some)


def condition(some: list[dict[str, Any]]) -> str:
    keys = (f"({row['connection']}, {row['to_broker']}, {row['stream_offset']})" for row in some)
    return f"(connection, to_broker, stream_offset) IN ({', '.join(keys)})" if some else "false"


def extracted(out: Path, *arguments: str | Path) -> tuple[Run, list[dict[str, Any]]]:
    """What was written, as a table."""
    run = pwire("extract", *arguments, "--write", out)
    return run, table(out.with_suffix(".parquet"), out)


@pytest.mark.parametrize("name", NAMES)
def test_the_packets_of_frames_decode_to_them(name: str, tmp_path: Path) -> None:
    every = table(tmp_path / "t.parquet", SAMPLES / name)
    rng = random.Random(name)
    chosen = rng.sample(every, min(rng.randint(1, 20), len(every)))
    run, found = extracted(tmp_path / "out.pcapng", tmp_path / "t.parquet", "--where", condition(chosen))
    assert run.code == 0
    unclear = re.findall(r"(\d+) frames? cannot be decoded", run.err)
    assert (counted(chosen, OWN) - counted(found, OWN)).total() == sum(map(int, unclear))
    assert not unclear or name == "snaplen96.pcap"
    assert not counted(found, OWN) - counted(every, OWN)


@pytest.mark.parametrize("name", NAMES)
def test_connections_are_whole(name: str, tmp_path: Path) -> None:
    every = table(tmp_path / "t.parquet", SAMPLES / name)
    ends = rows(tmp_path / "t.connections.parquet")
    chosen = random.Random(name).choice(ends)["connection"]
    where = ("--table", "connections", "--where", f"connection = {chosen}", "--connections")
    run, found = extracted(tmp_path / "out.pcapng", tmp_path / "t.parquet", *where)
    assert (run.code, run.complaints) == (0, [])
    assert counted(found, MORE) == counted([row for row in every if row["connection"] == chosen], MORE)
    names = ("client_ip", "client_port", "syns", "end", "time_ns", "end_ns", "last_ns", "bytes_to_broker")
    assert counted(rows(tmp_path / "out.connections.parquet"), names) == counted(
        [row for row in ends if row["connection"] == chosen], names
    )


# ---- Captures that were rotated, moved, renamed, compressed ----


def rotated(directory: Path) -> list[Path]:
    """Captures of two hosts, a few packets each."""
    directory.mkdir()
    names = [
        f"{host}_{number}.pcap"
        for host, some in zip("ab", hosts(), strict=True)
        for number in range(len(some))
    ]
    for name, data in zip(names, [data for some in hosts() for data in some], strict=True):
        (directory / name).write_bytes(data)
    return [directory / name for name in names]


def compared(directory: Path, every: list[dict[str, Any]], *arguments: str | Path) -> Run:
    """The run for some frames, which must be found."""
    chosen = random.Random(7).sample(every, 30)
    run, found = extracted(directory / "out.pcapng", *arguments, "--where", condition(chosen))
    assert (run.code, run.complaints) == (0, [])
    assert not counted(chosen, OWN) - counted(found, OWN)
    times = [time_ns for time_ns, *_ in packets_in(directory / "out.pcapng")]
    assert times == sorted(times)
    return run


def packets_in(path: Path) -> list[RawPacket]:
    return list(read_packets(path.read_bytes(), bytes))


def compress(path: Path, ending: str) -> None:
    pack = gzip.compress if ending == ".gz" else zstandard.compress
    path.with_name(path.name + ending).write_bytes(pack(path.read_bytes()))
    path.unlink()


def test_captures_of_two_hosts(tmp_path: Path) -> None:
    every = table(tmp_path / "t.parquet", *rotated(tmp_path / "in"))
    run = compared(tmp_path, every, tmp_path / "t.parquet")
    assert re.search(r"30 frames in \d+ packets \(\S+ kB\) of \d+ files, \d+ connections", run.err)


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_captures_that_were_compressed_since(ending: str, tmp_path: Path) -> None:
    captures = rotated(tmp_path / "in")
    every = table(tmp_path / "t.parquet", *captures)
    for path in captures:
        compress(path, ending)
    compared(tmp_path, every, tmp_path / "t.parquet")


def test_captures_that_were_moved(tmp_path: Path) -> None:
    every = table(tmp_path / "t.parquet", *rotated(tmp_path / "in"))
    (tmp_path / "in").rename(tmp_path / "archive")
    run = pwire("extract", tmp_path / "t.parquet", "--where", "true", "-w", tmp_path / "out.pcapng")
    assert run.code == 3
    assert len(run.complaints) == len({row["file"] for row in every})
    assert all("no such file; --captures PATH says where" in line for line in run.complaints)
    compared(tmp_path, every, tmp_path / "t.parquet", "--captures", tmp_path)


def test_captures_that_rotation_has_renamed(tmp_path: Path) -> None:
    """The first ones have the names of others now."""
    captures = rotated(tmp_path / "in")
    every = table(tmp_path / "t.parquet", *captures)
    for path in sorted(captures, key=lambda each: natural(each.name), reverse=True):
        stem, number = path.stem.split("_")
        path.rename(path.with_name(f"{stem}_{int(number) + 2}.pcap"))
    compared(tmp_path, every, tmp_path / "t.parquet")


def test_relative_names_are_those_of_where_the_table_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    captures = rotated(tmp_path / "in")
    monkeypatch.chdir(tmp_path)
    pwire("analyze", "in", "--out", "in-a-table", "--partition-by", "date,series")
    every = table(tmp_path / "t.parquet", *(f"in/{path.name}" for path in captures))
    monkeypatch.chdir("/")
    compared(tmp_path, every, tmp_path / "t.parquet")
    compared(tmp_path, every, tmp_path / "in-a-table")
