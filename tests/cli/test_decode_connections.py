"""`pwire decode --connections`: a line a connection, frames or not; the summary on those without data."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pwire_run import SAMPLES, decode
from segments import Tcp, captured, pcap

from pulsarctl_wire.cli.capture.job import ConnectionLines
from pulsarctl_wire.cli.console import EXIT_USAGE
from pulsarctl_wire.record.connections import CONNECTION_NAMES
from pulsarctl_wire.wire.frame import Connection
from pulsarctl_wire.wire.session.ending import Contents, EndedConnection
from pulsarctl_wire.wire.session.knowledge import Knowledge
from pulsarctl_wire.wire.varint import sized_field

DOCS = Path(__file__).parents[2] / "docs"
SILENT = "advertised-address-silent.pcap"


def connections(*args: str | Path, stdin: bytes = b"") -> list[dict[str, Any]]:
    run = decode("-o", "json", "--connections", *args, stdin=stdin)
    assert run.code == 0
    return run.records


def test_a_syn_that_nobody_answers_is_found() -> None:
    spoken, silent = connections(SILENT)
    assert (spoken["protocol"], spoken["how"], spoken["client_version"]) == (
        "Pulsar",
        "closed by client",
        "Pulsar-Go-v0.19.0",
    )
    assert (silent["server"], silent["end"], silent["syns"]) == ("192.0.2.11:29198", "unanswered", 3)
    assert silent["protocol"] is silent["by_broker"] is silent["end_ns"] is None
    assert "  no data    1 never answered (192.0.2.11:29198)" in decode("-q", SILENT).err.splitlines()


def test_other_protocols_are_named_and_who_closed() -> None:
    (only,) = connections("http-client-on-binary-port.pcap")
    assert (only["protocol"], only["end"], only["by_broker"]) == ("HTTP", "closed", True)
    assert (only["bytes_to_broker"], only["bytes_to_client"], only["frames_to_broker"]) == (96, 0, 0)
    assert only["malformed_to_broker"] == 1


@pytest.mark.parametrize("name", ["mixed.pcapng.gz", "auth-token.pcap", "snaplen96.pcap", "errors.pcap"])
def test_counts_are_those_of_the_frames(name: str) -> None:
    found = connections(name)
    assert [each["connection"] for each in found] == list(range(len(found)))
    all_events = decode("-o", "json", name).records
    for each in found:
        events = [event for event in all_events if event["connection"] == each["connection"]]
        for to, way in (("broker", True), ("client", False)):
            mine = [event for event in events if event["to_broker"] is way]
            assert each[f"frames_to_{to}"] == sum("command" in event for event in mine)
            assert each[f"gaps_to_{to}"] == sum("gap" in event for event in mine)
        assert bool(each["frames_to_broker"]) <= (each["protocol"] == "Pulsar")


def test_every_key_is_documented_and_fits_the_schema() -> None:
    schema = json.loads((DOCS / "json.schema.json").read_text())
    validator = Draft202012Validator({**schema, "oneOf": [{"$ref": "#/$defs/connection"}]})
    section = (DOCS / "json.md").read_text().partition("\n## A connection\n")[2].partition("\n## ")[0]
    for name in (SILENT, "mixed.pcapng.gz", "java-keyshared.pcap"):
        for record in connections(name):
            assert record.keys() == CONNECTION_NAMES
            validator.validate(record)
    assert all(f"`{name}`" in section for name in CONNECTION_NAMES)


def test_selection_narrows_what_is_shown() -> None:
    assert [each["connection"] for each in connections("--connection", "29198", SILENT)] == [1]
    assert [each["connection"] for each in connections("--filter", 'end == "unanswered"', SILENT)] == [1]
    assert [each["connection"] for each in connections("--time-range", "+0.001..", SILENT)] == [1]
    assert [each["connection"] for each in connections("--count", "1", "mixed.pcapng.gz")] == [0]
    assert decode("--connections", "--filter", "total_size > 1", SILENT).code == EXIT_USAGE
    assert decode("--filter", 'end == "closed"', SILENT).code == EXIT_USAGE


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--connection", "99"], "--connection: none of 2 connections matched"),
        (
            ["--filter", 'end == "refused"', "--time-range", "..+99"],
            "--time-range, --filter: none of 2 connections matched",
        ),
        (
            ["--filter", "end > 1"],
            "--filter: none of 2 connections matched; "
            "the expression failed on all of them (does it compare text with a number?)",
        ),
    ],
)
def test_a_selection_that_no_connection_matches_says_how_many_it_looked_at(
    args: list[str], said: str
) -> None:
    assert decode("--connections", *args, SILENT).complaints == [f"pwire: {said}"]
    assert decode("--connections", "-q", *args, SILENT).complaints == []
    assert decode("--connections", "--count", "1", SILENT).complaints == []


@pytest.mark.parametrize(
    "options",
    [["-o", "tree"], ["-o", "hex"], ["--command", "SEND"], ["--first-error"], ["-2"], ["--topic", "t"]],
    ids=" ".join,
)
def test_what_is_about_frames_does_not_go_with_it(options: list[str]) -> None:
    run = decode("--connections", *options, SILENT)
    assert run.code == EXIT_USAGE
    assert "cannot be combined with" in run.err


def test_quiet_leaves_the_summary_alone() -> None:
    assert decode("--connections", "-q", SILENT) == decode("-q", SILENT)


def test_a_source_without_packets_tells_nothing_of_connections() -> None:
    frame = bytes.fromhex("00000009000000050812920100")
    run = decode("--connections", "-", stdin=frame)
    assert (run.code, run.out) == (0, b"")
    assert run.complaints == [
        "pwire: --connections: the source has no packets, only frames, so its connections are unknown"
    ]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a named pipe")
def test_of_a_pipe_connections_are_shown_as_they_end_and_at_ctrl_c_those_still_open() -> None:
    code = "from pulsarctl_wire.cli import main; main()"
    command = [sys.executable, "-c", code, "decode", "-o", "json", "--connections", "-"]
    capture = (SAMPLES / "advertised-address-silent.pcap").read_bytes()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(capture)
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["connection"] == 0
        process.send_signal(signal.SIGINT)
        assert json.loads(process.stdout.read())["end"] == "unanswered"
        assert process.wait() == 130


# -- the order of lines


def ending(index: int) -> EndedConnection:
    connection = Connection(index, f"10.0.0.1:{index}", "10.0.0.2:6650")
    contents = Contents(connection, Knowledge())
    return EndedConnection(
        connection, contents, index, 0, 0, 1, False, "open", None, None, False, None, (0, 0)
    )


def written(order: list[int], *, count: int = -1, waiting: int = 100) -> list[int]:
    lines: list[int] = []
    listing = ConnectionLines(
        lambda ending: bytes([ending.connection.index + 1]),
        [lambda each: each.connection.index != 3],
        lambda line: lines.append(line[0] - 1),
        count=count,
        max_waiting=waiting,
    )
    for index in order:
        listing.add(ending(index))
    listing.flush()
    return lines


def test_lines_come_in_the_order_of_first_packets() -> None:
    assert written([2, 1, 0, 5, 4, 3]) == [0, 1, 2, 4, 5]
    assert written([4, 2, 0, 6]) == [0, 2, 4, 6]
    assert written([2, 1, 0, 4], count=2) == [0, 1]


def test_no_more_lines_wait_than_there_may() -> None:
    assert written([2, 1, 4, 5, 0, 6], waiting=2) == [1, 2, 4, 5, 0, 6]
    assert written([2, 1, 0], waiting=0) == [2, 1, 0]


@pytest.mark.parametrize(
    "connect",
    [
        sized_field(1, b"the-token") + sized_field(5, b"token"),
        sized_field(1, b"client") + sized_field(5, b"token") + sized_field(6, b"the-token"),
        sized_field(1, b"client") + sized_field(1, b"the-token"),
    ],
    ids=["no data", "another field", "a field given twice"],
)
def test_of_an_odd_connect_nothing_is_said(connect: bytes) -> None:
    command = bytes([8, 2]) + sized_field(2, connect)
    frame = struct.pack(">II", 4 + len(command), len(command)) + command
    (only,) = connections("-", stdin=pcap(captured(Tcp().whole([(True, frame)]))))
    assert only["frames_to_broker"] == 1
    assert "the-token" not in str(only)
