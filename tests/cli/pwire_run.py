"""Runs `pwire` inside the test process, and takes captures apart to make damaged ones of them."""

from __future__ import annotations

import gc
import io
import json
import os
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from pulsarctl_wire.cli import main

SAMPLES = Path(__file__).parents[2] / "samples" / "pcaps"

_WITHOUT = {"NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"}


class Run(NamedTuple):
    """What a run of `pwire` left: its exit code, and what it wrote."""

    code: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.decode().split("\n")[:-1]

    @property
    def records(self) -> list[dict[str, Any]]:
        """The lines of `-o json`."""
        return [json.loads(line) for line in self.lines]

    @property
    def complaints(self) -> list[str]:
        """The lines of stderr that are no summary."""
        return [line for line in self.err.splitlines() if line.startswith("pwire: ")]


def pwire(*args: str | Path, stdin: bytes = b"") -> Run:
    """Run `pwire ARGS`; its streams are no terminals."""
    out, err = io.BytesIO(), io.BytesIO()
    streams: dict[str, Any] = {
        "stdin": io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"),
        "stdout": io.TextIOWrapper(out, encoding="utf-8"),
        "stderr": io.TextIOWrapper(err, encoding="utf-8"),
    }
    environment = {name: value for name, value in os.environ.items() if name not in _WITHOUT}
    with (
        mock.patch.multiple(sys, argv=["pwire", *map(str, args)], **streams),
        mock.patch.dict(os.environ, {**environment, "COLUMNS": "120", "LINES": "40"}, clear=True),
        _unchanged_gc(),
    ):
        code = _exit_code()
        sys.stdout.flush()
        sys.stderr.flush()
    return Run(code, out.getvalue(), err.getvalue().decode())


def decode(*args: str | Path, stdin: bytes = b"") -> Run:
    """Run `pwire decode ARGS`; a name of a sample stands for its path."""
    return pwire(
        "decode",
        *(SAMPLES / arg if isinstance(arg, str) and (SAMPLES / arg).is_file() else arg for arg in args),
        stdin=stdin,
    )


def _exit_code() -> int:
    try:
        main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    raise AssertionError("main() came back")


@contextmanager
def _unchanged_gc() -> Iterator[None]:
    thresholds = gc.get_threshold()
    try:
        with mock.patch.object(gc, "freeze"):  # what a run leaves behind is to be collected
            yield
    finally:
        gc.set_threshold(*thresholds)


class Pcap(NamedTuple):
    """A little-endian pcap file: its header, and its packets as (seconds, fraction, length, bytes)."""

    header: bytes
    packets: list[tuple[int, int, int, bytes]]

    @classmethod
    def read(cls, sample: str) -> Pcap:
        data = (SAMPLES / sample).read_bytes()
        packets, at = [], 24
        while at < len(data):
            seconds, fraction, kept, length = struct.unpack_from("<IIII", data, at)
            packets.append((seconds, fraction, length, data[at + 16 : at + 16 + kept]))
            at += 16 + kept
        return cls(data[:24], packets)

    def snapped(self, size: int) -> Pcap:
        """As captured with this snap length, in bytes."""
        return Pcap(self.header, [(s, f, length, data[:size]) for s, f, length, data in self.packets])

    def without(self, numbers: Iterable[int]) -> Pcap:
        """Without the packets of these numbers (from 1)."""
        lost = set(numbers)
        return Pcap(self.header, [packet for n, packet in enumerate(self.packets, start=1) if n not in lost])

    @property
    def file(self) -> bytes:
        return self.header + b"".join(
            struct.pack("<IIII", seconds, fraction, len(data), length) + data
            for seconds, fraction, length, data in self.packets
        )
