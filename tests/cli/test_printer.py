"""A printer writes all that it took, in order, and never makes anybody wait who puts something."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsarctl_wire.cli.proxy.printer import Printer

PATIENCE = 20.0
"""Seconds after which what was to be written is not."""
PIECE = bytes(range(256)) * 16


class Pipe:
    """A pipe, and a thread that reads it once it is told to."""

    def __init__(self) -> None:
        self.reads, self.writes = os.pipe()
        self.found = bytearray()
        self._thread = threading.Thread(target=self._read)

    def _read(self) -> None:
        while data := os.read(self.reads, 65_536):
            self.found += data

    def drink(self) -> None:
        """Begin to read."""
        self._thread.start()

    def all(self) -> bytes:
        """No more will be written: what was."""
        os.close(self.writes)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        return bytes(self.found)

    def close(self) -> None:
        for end in (self.reads, self.writes):
            with suppress(OSError):
                os.close(end)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    found = Pipe()
    yield found
    found.close()


def fill(printer: Printer, most: int = 10_000) -> list[bytes]:
    """Put more than a pipe has room for, then numbered pieces until there is none; what was taken."""
    taken = [bytes(2_000_000)]
    assert printer.put(taken[0])
    while len(taken) < most:
        piece = b"%06d" % len(taken) + PIECE
        if not printer.put(piece):
            return taken
        taken.append(piece)
    raise AssertionError("there is always room")


@given(st.lists(st.binary(max_size=100), max_size=20))
@settings(max_examples=30)
def test_all_is_written_in_order(pieces: list[bytes]) -> None:
    pipe = Pipe()
    pipe.drink()
    printer = Printer(pipe.writes)
    taken = [printer.put(piece) for piece in pieces]
    assert all(taken)
    printer.end(PATIENCE)
    assert not printer._bytes
    assert printer.error is None
    assert pipe.all() == b"".join(pieces)
    pipe.close()


def test_who_reads_nothing_leaves_no_room(pipe: Pipe) -> None:
    printer = Printer(pipe.writes, 50_000)
    taken = fill(printer)
    assert printer._bytes
    assert printer.error is None
    printer.end(0)  # does not wait for who does not read
    assert printer._bytes
    pipe.drink()
    printer.end(PATIENCE)
    assert printer.error is None
    assert pipe.all() == b"".join(taken)


def test_there_is_room_again_once_it_is_read(pipe: Pipe) -> None:
    printer = Printer(pipe.writes, 50_000)
    taken = fill(printer)
    pipe.drink()
    while not printer.put(b"more"):  # until the thread has written
        pass
    printer.end(PATIENCE)
    assert pipe.all() == b"".join([*taken, b"more"])


def test_one_piece_may_be_larger_than_the_room(pipe: Pipe) -> None:
    printer = Printer(pipe.writes, 10)
    large = PIECE * 100
    assert printer.put(large)
    assert not printer.put(b"x")
    pipe.drink()
    printer.end(PATIENCE)
    assert pipe.all() == large


def test_a_reader_that_leaves(pipe: Pipe) -> None:
    printer = Printer(pipe.writes, 50_000)
    fill(printer)
    os.close(pipe.reads)
    printer.end(PATIENCE)
    assert isinstance(printer.error, BrokenPipeError)
    assert not printer._bytes
    assert not printer.put(b"x")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /dev/full")
def test_a_full_disk() -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    printer = Printer(descriptor)
    assert printer.put(PIECE)
    printer.end(PATIENCE)
    assert printer.error is not None
    assert printer.error.errno == errno.ENOSPC
    assert not printer._bytes
    assert not printer.put(PIECE)
    os.close(descriptor)


@pytest.mark.parametrize("writers", [1, 3])
def test_whoever_made_the_descriptor_non_blocking_loses_nothing(pipe: Pipe, writers: int) -> None:
    """Those that share it take the room from each other, and find none where there was some a moment ago."""
    os.set_blocking(pipe.writes, False)
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        fcntl.fcntl(pipe.writes, fcntl.F_SETPIPE_SZ, 4096)
    printers = [Printer(pipe.writes) for _ in range(writers)]
    for index, printer in enumerate(printers):
        assert printer.put(bytes([index]) * 1_000_000)
    pipe.drink()
    for printer in printers:
        printer.end(PATIENCE)
        assert printer.error is None
    found = pipe.all()
    assert [found.count(index) for index in range(writers)] == [1_000_000] * writers
    assert len(found) == writers * 1_000_000


def test_the_descriptor_is_left_open(pipe: Pipe) -> None:
    printer = Printer(pipe.writes)
    printer.put(b"a")
    printer.end(PATIENCE)
    assert os.write(pipe.writes, b"b") == 1
    assert os.read(pipe.reads, 10) == b"ab"


def test_an_end_with_nothing_written(pipe: Pipe) -> None:
    printer = Printer(pipe.writes)
    printer.end(PATIENCE)
    printer.end(PATIENCE)
    assert not printer._bytes
    assert printer.error is None
