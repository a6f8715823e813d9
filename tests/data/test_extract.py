"""From rows of a table to packets: what `pwire extract` writes decodes to the frames of these rows."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pwire_run import SAMPLES, Run, pwire

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
