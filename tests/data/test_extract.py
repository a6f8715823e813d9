"""From rows of a table to packets: what `pwire extract` writes decodes to the frames of these rows."""

from __future__ import annotations

import gzip
import os
import random
import re
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline.traffic import capture
from pwire_run import SAMPLES, Run, pwire
from test_rotated import hosts

from pulsarctl_wire.capture.files import RawPacket, read_packets
from pulsarctl_wire.capture.series import name_key

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


Sampled = Callable[[str], Path]


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Sampled:
    """The path of a table of a sample."""
    directory = tmp_path_factory.mktemp("sampled")

    @cache
    def made(name: str) -> Path:
        table(directory / f"{name}.parquet", SAMPLES / name)
        return directory / f"{name}.parquet"

    return made


@pytest.mark.parametrize("name", NAMES)
def test_the_packets_of_frames_decode_to_them(name: str, sampled: Sampled, tmp_path: Path) -> None:
    every = rows(sampled(name))
    rng = random.Random(name)
    chosen = rng.sample(every, min(rng.randint(1, 20), len(every)))
    run, found = extracted(tmp_path / "out.pcapng", sampled(name), "--where", condition(chosen))
    assert run.code == 0
    unclear = re.findall(r"(\d+) frames? cannot be decoded", run.err)
    assert (counted(chosen, OWN) - counted(found, OWN)).total() == sum(map(int, unclear))
    assert not unclear or name == "snaplen96.pcap"
    assert not counted(found, OWN) - counted(every, OWN)


@pytest.mark.parametrize("name", NAMES)
def test_connections_are_whole(name: str, sampled: Sampled, tmp_path: Path) -> None:
    every = rows(sampled(name))
    ends = rows(sampled(name).with_suffix(".connections.parquet"))
    chosen = random.Random(name).choice(ends)["connection"]
    where = ("--table", "connections", "--where", f"connection = {chosen}", "--connections")
    run, found = extracted(tmp_path / "out.pcapng", sampled(name), *where)
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
    times = [time_ns or 0 for time_ns, *_ in packets_in(directory / "out.pcapng")]
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
    for path in sorted(captures, key=lambda each: name_key(each.name), reverse=True):
        stem, number = path.stem.split("_")
        path.rename(path.with_name(f"{stem}_{int(number) + 2}.pcap"))
    compared(tmp_path, every, tmp_path / "t.parquet")


def test_relative_names_are_those_of_where_the_table_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    captures = rotated(tmp_path / "in")
    monkeypatch.chdir(tmp_path)
    pwire("analyze", "in", "--out", "in-a-table", "--partition-by", "date,series", "--format", "delta")
    every = table(tmp_path / "t.parquet", *(f"in/{path.name}" for path in captures))
    monkeypatch.chdir("/")
    compared(tmp_path, every, tmp_path / "t.parquet")
    compared(tmp_path, every, tmp_path / "in-a-table")


# ---- Tables that lie, and captures that are not what they were ----


Lying = Callable[..., Path]


@pytest.fixture
def lying(sampled: Sampled, tmp_path: Path) -> Lying:
    """A table of errors.pcap, in which some columns have other values."""
    return partial(_lie, sampled("errors.pcap"), tmp_path / "t.parquet")


def _lie(true: Path, path: Path, **columns: Any) -> Path:
    made = pq.read_table(true)
    for name, value in columns.items():
        at = made.schema.get_field_index(name)
        values = pa.array([value] * len(made), made.schema.field(at).type)
        made = made.set_column(at, made.schema.field(at), values)
    pq.write_table(made, path)
    return path


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"file": "/etc/passwd"}, "/etc/passwd: not a capture"),
        ({"file": "/etc"}, "/etc: not a file"),
        ({"file": "/dev/zero"}, "/dev/zero: not a file"),
        ({"file": "../" * 20 + "etc/passwd"}, "etc/passwd: not a capture"),
        ({"file": "none\0.pcap"}, "no such file"),
        ({"file": "nobody://knows/this.pcap"}, "nobody"),
        ({"packet_offset": 2**62}, "other packets"),
        ({"packet_offset": -1}, "other packets"),
        ({"packet_offset": 25}, "other packets"),
        ({"time_ns": 1}, "other packets"),
        ({"src_ip": "10.9.9.9"}, "other packets"),
        ({"src_ip": "an address"}, "other packets"),
        ({"src_ip": None}, "other packets"),
        ({"dst_port": -1}, "other packets"),
        ({"total_size": -1, "command_size": 2**40}, "other packets"),
    ],
)
def test_nothing_of_a_table_is_trusted(
    columns: dict[str, Any], said: str, lying: Lying, tmp_path: Path
) -> None:
    path = lying(**columns)
    run = pwire("extract", path, "--where", "command = 'SEND'", "-w", tmp_path / "out.pcapng")
    assert run.code == 3
    (complaint,) = run.complaints
    assert complaint.startswith("pwire: 7 frames missing: ")
    assert said in complaint
    assert packets_in(tmp_path / "out.pcapng") == []


def test_a_pipe_is_not_waited_for(lying: Lying, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    path = lying(file=str(tmp_path / "pipe"))
    run = pwire("extract", path, "--where", "true", "-w", tmp_path / "out.pcapng")
    assert (run.code, "not a file" in run.err) == (3, True)


def test_a_capture_that_was_overwritten_is_not_taken_for_the_one_of_the_table(tmp_path: Path) -> None:
    capture = tmp_path / "ring.pcap"
    capture.write_bytes((SAMPLES / "errors.pcap").read_bytes())
    table(tmp_path / "t.parquet", capture)
    capture.write_bytes((SAMPLES / "ipv6.pcap").read_bytes())
    run = pwire("extract", tmp_path / "t.parquet", "--where", "true", "-w", tmp_path / "out.pcapng")
    assert (run.code, packets_in(tmp_path / "out.pcapng")) == (3, [])
    assert "146 frames missing" in run.err


def test_what_is_left_of_a_capture_is_read(tmp_path: Path) -> None:
    capture = tmp_path / "cut.pcap"
    whole = (SAMPLES / "errors.pcap").read_bytes()
    capture.write_bytes(whole)
    every = table(tmp_path / "t.parquet", capture)
    capture.write_bytes(whole[: len(whole) // 2])
    left = [row for row in every if row["packet_offset"] < len(whole) // 2 - 10_000]
    run, found = extracted(tmp_path / "out.pcapng", tmp_path / "t.parquet", "--where", "true")
    assert run.code == 3
    assert re.search(r"\d+ frames missing: .*cut\.pcap: ", run.err)
    assert not counted(left, OWN) - counted(found, OWN)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--where", "nothing = 1"], 2, "--where: Binder Error"),
        (["--where", "true; select 1"], 2, "--where: Parser Error"),
        ([], 2, "say which frames"),
        (["--table", "gaps", "--where", "true"], 2, "needs --connections"),
        (["--table", "messages", "--where", "true"], 2, "there are no messages"),
        (["--where", "false"], 0, "none of the frames matched"),
        (["--where", "true", "--captures", "/nowhere"], 3, "/nowhere: no such file"),
    ],
)
def test_wrong_command_lines(
    arguments: list[str], code: int, said: str, sampled: Sampled, tmp_path: Path
) -> None:
    run = pwire("extract", sampled("errors.pcap"), *arguments, "-w", tmp_path / "out.pcapng")
    assert run.code == code
    (complaint,) = run.complaints
    assert said in complaint


def test_no_source_is_written_over(tmp_path: Path) -> None:
    capture = tmp_path / "c.pcap"
    capture.write_bytes((SAMPLES / "errors.pcap").read_bytes())
    table(tmp_path / "t.parquet", capture)
    for path in (capture, tmp_path / "t.parquet"):
        before = path.read_bytes()
        run = pwire("extract", tmp_path / "t.parquet", "--where", "true", "-w", path)
        assert (run.code, path.read_bytes()) == (2, before)


# ---- What is written ----


def test_only_the_packets_of_frames_are_written_each_once(sampled: Sampled, tmp_path: Path) -> None:
    """Times in ns, link types, and what was cut, as they were captured."""
    for name in ("nano.pcap", "linktype-sll2.pcap", "snaplen96.pcap"):
        pwire("extract", sampled(name), "--where", "true", "-w", tmp_path / "out.pcapng")
        captured = packets_in(SAMPLES / name)
        written = packets_in(tmp_path / "out.pcapng")
        assert not Counter(written) - Counter(captured)
        assert len(written) < len(captured)
        assert {row["time_ns"] for row in rows(sampled(name))} <= {packet[0] for packet in written}


def test_stdout_gets_a_capture(tmp_path: Path) -> None:
    table(tmp_path / "t.parquet", SAMPLES / "errors.pcap")
    run = pwire("extract", tmp_path / "t.parquet", "--where", "command = 'SEND'", "--write", "-")
    assert [packet[1] for packet in read_packets(run.out, bytes)] == [1] * 7
    assert run.err == "7 frames in 7 packets (1.5 kB) of 1 file, 3 connections\n"


def test_frames_of_messages(tmp_path: Path) -> None:
    every = table(tmp_path / "t.parquet", SAMPLES / "java-keyshared.pcap", "--messages")
    messages = rows(tmp_path / "t.messages.parquet")
    key = messages[0]["key"]
    places = {(row["to_broker"], row["stream_offset"]) for row in messages if row["key"] == key}
    where = ("--table", "messages", "--where", f"key = '{key}'")
    _, found = extracted(tmp_path / "out.pcapng", tmp_path / "t.parquet", *where)
    chosen = [row for row in every if (row["to_broker"], row["stream_offset"]) in places]
    assert chosen
    assert not counted(chosen, OWN) - counted(found, OWN)


@given(st.integers(0, 2**32))
@settings(max_examples=8, deadline=None)
def test_of_damaged_traffic_all_is_there_or_said_to_be_missing(seed: int) -> None:
    """Random captures: lost, late, doubled packets, fragments, garbage, frames over several files."""
    made = capture(random.Random(seed))
    with TemporaryDirectory() as name:
        directory = Path(name)
        for file in made.files:
            (directory / file.name).write_bytes(file.data)
        pwire("table", *(directory / file.name for file in made.files), "--out", directory / "t.parquet")
        if not (directory / "t.parquet").exists() or not (every := rows(directory / "t.parquet")):
            return
        chosen = random.Random(seed).sample(every, min(10, len(every)))
        run, found = extracted(
            directory / "out.pcapng", directory / "t.parquet", "--where", condition(chosen)
        )
        said = sum(map(int, re.findall(r"(\d+) frames? (?:missing|cannot be decoded)", run.err)))
        assert run.code in (0, 3)
        assert len(found) >= len(chosen) - said
