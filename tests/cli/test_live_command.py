"""`pwire capture` and `pwire decode -i`: how they end, what they say was dropped, files that rotate."""

from __future__ import annotations

import io
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from pwire_run import Run, pwire
from segments import Tcp, conversation, ethernet, send
from tap import Tap, tap

from pulsarctl_wire.capture.files import read_packets
from pulsarctl_wire.capture.rotation import RotatingFiles
from pulsarctl_wire.capture.secrets import Secrets
from pulsarctl_wire.cli.capture.capture import _record
from pulsarctl_wire.cli.console import EXIT_DAMAGED, EXIT_SOURCE, EXIT_USAGE

__all__ = ["tap"]

PWIRE = [
    sys.executable,
    "-c",
    "import sys; from pulsarctl_wire.cli import main; sys.argv[0] = 'pwire'; main()",
]
WAIT = 60
"""Seconds after which a process that should have ended is given up."""


class Dropping:
    """An interface whose kernel drops as many packets as it gives."""

    link, received, dropped = 1, 0, 0

    def __iter__(self) -> Iterator[Any]:
        for number in range(9):
            self.received, self.dropped = self.received + 2, self.dropped + 1
            yield number, self.link, packet(number), 100


def packets_of(data: bytes) -> list[bytes]:
    return [packet for _, _, packet, _ in read_packets(b"", io.BytesIO(data).read)]


def counters_of(data: bytes) -> list[tuple[int, int]]:
    """What the statistics blocks of a pcapng file say: packets received and dropped."""
    found, at = [], 0
    while at < len(data):
        kind, size = struct.unpack_from("<II", data, at)
        if kind == 5:
            interface, _, _, *options = struct.unpack_from("<IIIHHQHHQI", data, at + 8)
            assert (interface, options[0:2], options[3:5], options[6]) == (0, [4, 8], [5, 8], 0)
            found.append((options[2], options[5]))
        at += size
    return found


def packet(number: int) -> bytes:
    """A frame of Ethernet that no protocol claims."""
    return b"\xff" * 6 + bytes(6) + b"\x88\xb5" + number.to_bytes(4, "big") * 25


@contextmanager
def arriving(interface: Tap) -> Iterator[None]:
    """Packets keep arriving, numbered."""
    over = threading.Event()

    def arrive() -> None:
        number = 0
        while not over.wait(0.001):
            interface.arrive(packet(number))
            number += 1

    thread = threading.Thread(target=arrive)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# ---- How they end ----


def test_a_duration_ends_without_a_packet(tap: Tap, tmp_path: Path) -> None:
    file = tmp_path / "none.pcapng"
    run = pwire("capture", "-i", tap.name, "-w", file, "--duration", "0.1")
    assert run == Run(0, b"", "0 packets captured, 0 dropped by the kernel\n")
    assert packets_of(file.read_bytes()) == []
    assert counters_of(file.read_bytes()) == [(0, 0)]


def test_so_many_packets(tap: Tap) -> None:
    with arriving(tap):
        run = pwire("capture", "-i", tap.name, "-w", "-", "-c", "5")
    assert (run.code, run.err) == (0, "5 packets captured, 0 dropped by the kernel\n")
    assert len(packets_of(run.out)) == 5


class Job:
    """A command in the background of a shell, which has it ignore SIGINT. It listens on `interface`."""

    def __init__(self, interface: Tap, *args: str, hangup: Any = signal.SIG_DFL) -> None:
        script = '"$@" & echo $! >&2; wait $!; echo "ended with $?" >&2'
        command = [*PWIRE, args[0], "-i", interface.name, *args[1:]]
        self._shell = subprocess.Popen(
            ["sh", "-c", script, "sh", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, hangup),
        )
        assert self._shell.stderr
        self.number = int(self._shell.stderr.readline())
        index = str(socket.if_nametoindex(interface.name))
        tick = threading.Event()
        for _ in range(WAIT * 100):
            lines = [line.split() for line in Path("/proc/net/packet").read_text().splitlines()]
            if any(line[4:6] == [index, "1"] for line in lines):
                return
            tick.wait(0.01)
        raise AssertionError("it does not listen")

    def end(self, number: int) -> tuple[bytes, list[str]]:
        """Send it a signal; gives what it wrote to stdout, and the lines of stderr."""
        os.kill(self.number, number)
        out, err = self._shell.communicate(timeout=WAIT)
        return out, err.decode().splitlines()


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: str(number.name)
)
def test_a_signal_ends_capture_and_nothing_is_lost(tap: Tap, number: int) -> None:
    job = Job(tap, "capture", "-w", "-")
    for each in range(100):
        tap.arrive(packet(each))
    out, said = job.end(number)
    assert said == ["100 packets captured, 0 dropped by the kernel", "ended with 0"]
    assert packets_of(out) == [packet(each) for each in range(100)]
    assert counters_of(out) == [(100, 0)]


def test_under_nohup_a_hangup_does_not_end_capture(tap: Tap) -> None:
    job = Job(tap, "capture", "-w", "-", hangup=signal.SIG_IGN)
    os.kill(job.number, signal.SIGHUP)
    tap.arrive(packet(0))
    out, said = job.end(signal.SIGTERM)
    assert said == ["1 packet captured, 0 dropped by the kernel", "ended with 0"]
    assert packets_of(out) == [packet(0)]


def test_a_signal_ends_decode_with_all_frames_and_the_summary(tap: Tap) -> None:
    job = Job(tap, "decode")
    for segment in Tcp().whole(conversation()):
        tap.arrive(ethernet(segment))
    out, said = job.end(signal.SIGINT)
    assert out.count(b"\n") == len(conversation())
    assert f", 1 connection, {len(conversation())} frames in " in said[0]
    assert said[-1] == "ended with 0"
    assert not any("dropped" in line for line in said)


@pytest.mark.parametrize(
    "command", [("capture", "-w", os.devnull), ("decode", "-q")], ids=lambda args: args[0]
)
def test_an_interface_that_goes_away(tap: Tap, command: tuple[str, ...]) -> None:
    job = Job(tap, *command)
    segments = Tcp().whole(conversation())
    for segment in segments:
        tap.arrive(ethernet(segment))
    tap.close()
    _, said = job.end(0)
    assert f"pwire: interface {tap.name}: Network is down" in said
    assert any(line.startswith(f"{len(segments)} packets") for line in said)
    assert said[-1] == f"ended with {EXIT_DAMAGED}"


# ---- What is dropped ----

FLOOD = 6000


def dropped(said: list[str]) -> list[int]:
    return [
        int(found)
        for line in said
        for found in re.findall(r"(\d+)(?: packets?)? dropped by the kernel", line)
    ]


def test_decode_says_what_was_dropped(tap: Tap) -> None:
    """Nobody reads what it prints until all have arrived."""
    job = Job(tap, "decode", "--buffer", "1MB")
    tcp = Tcp()
    for segment in tcp.handshake():
        tap.arrive(ethernet(segment))
    for each in range(FLOOD):
        tap.arrive(ethernet(tcp.send(True, send(b"x" * 1000, each))))
    _, said = job.end(signal.SIGTERM)
    *notices, total = dropped(said)
    assert 0 < sum(notices) <= total
    assert re.match(rf"{FLOOD + 3 - total} packets, 1 connection", said[len(notices)])
    assert said[0].startswith(f"pwire: interface {tap.name}: ")


def test_capture_says_what_was_dropped(tap: Tap) -> None:
    job = Job(tap, "capture", "-w", "-", "--buffer", "1MB")
    for each in range(FLOOD * 5):
        tap.arrive(packet(each))
    out, said = job.end(signal.SIGTERM)
    *notices, total = dropped(said)
    assert 0 < sum(notices) <= total
    packets = packets_of(out)
    assert len(packets) + total == FLOOD * 5
    assert said[-2] == f"{len(packets)} packets captured, {total} dropped by the kernel"
    assert counters_of(out) == [(FLOOD * 5, total)]


# ---- Files that rotate ----


def test_rotation(tap: Tap, tmp_path: Path) -> None:
    file = tmp_path / "some.pcapng"
    with arriving(tap):
        run = pwire("capture", "-i", tap.name, "-w", file, "-c", "50", "--rotate-size", "1kB")
    assert run.code == 0
    files = sorted(tmp_path.iterdir())
    assert len(files) > 4
    assert all(re.fullmatch(r"some_000\d\d_\d{14}\.pcapng", path.name) for path in files)
    packets = [each for path in files for each in packets_of(path.read_bytes())]
    first = int.from_bytes(packets[0][14:18], "big")
    assert packets == [packet(first + number) for number in range(50)]
    counters = [counts for path in files for counts in counters_of(path.read_bytes())]
    assert len(counters) == len(files)
    assert sum(received for received, _ in counters) >= 50
    assert not any(lost for _, lost in counters)


def test_files_of_a_rotation_count_each_for_itself(tmp_path: Path) -> None:
    files = RotatingFiles(tmp_path / "x.pcapng", 0, size=400)
    live: Any = Dropping()
    with closing(files):
        _record(live, cast(Any, files), files, None, Secrets())
    counters = [counters_of(path.read_bytes()) for path in sorted(tmp_path.iterdir())]
    assert len(counters) > 2
    assert all(lost > 0 for ((_, lost),) in counters)
    assert [sum(counts) for counts in zip(*(counts for (counts,) in counters), strict=True)] == [18, 9]


def test_the_newest_files_are_kept(tap: Tap, tmp_path: Path) -> None:
    with arriving(tap):
        options = ("-c", "50", "--rotate-time", "0.01s", "--rotate-files", "2")
        run = pwire("capture", "-i", tap.name, "-w", tmp_path / "some.pcapng", *options)
    assert run.code == 0
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["-w", "-", "--rotate-size", "1MB"], "--rotate-… needs --write FILE"),
        (["-w", "x", "--rotate-files", "2"], "--rotate-files needs --rotate-size or --rotate-time"),
        (["-w", "x", "--rotate-size", "lots"], "--rotate-size lots: not a number"),
        (["-w", "x", "--buffer", "lots"], "--buffer lots: not a number"),
    ],
)
def test_wrong_options(args: list[str], reason: str) -> None:
    run = pwire("capture", "-i", "lo", *args)
    assert run.code == EXIT_USAGE
    assert reason in run.err


@pytest.mark.parametrize("verb", ["capture", "decode"])
def test_a_file_is_kept_if_there_is_no_such_interface(verb: str, tmp_path: Path) -> None:
    (tmp_path / "keep.pcap").write_bytes(b"of yesterday")
    run = pwire(verb, "-i", "nosuch0", "-w", tmp_path / "keep.pcap")
    assert run.code == EXIT_SOURCE
    assert "there is no such interface" in run.err
    assert (tmp_path / "keep.pcap").read_bytes() == b"of yesterday"


@pytest.mark.parametrize("args", [["capture", "-w", "-"], ["decode"]])
def test_only_one_interface_is_read(args: list[str]) -> None:
    run = pwire(*args, "-i", "lo", "--interface", "eth0")
    assert (run.code, run.out) == (EXIT_USAGE, b"")
    assert run.err == "pwire: -i lo -i eth0: only one interface can be read at a time\n"


def test_a_buffer_goes_with_an_interface() -> None:
    run = pwire("decode", "--buffer", "1MB", "-")
    assert (run.code, run.err) == (EXIT_USAGE, "pwire: decode: --buffer needs --interface\n")
