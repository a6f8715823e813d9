"""Runs `pwire extract`: asks the table where the packets are, copies them, and says what is missing."""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import islice
from tempfile import TemporaryDirectory
from typing import BinaryIO, Final, NamedTuple, cast

from pulsarctl_wire.capture.files import RawPacket
from pulsarctl_wire.capture.secrets import Secrets
from pulsarctl_wire.capture.writer import PcapngWriter
from pulsarctl_wire.cli import console
from pulsarctl_wire.errors import CaptureError, QueryError
from pulsarctl_wire.pipeline.files.captures import Captures
from pulsarctl_wire.pipeline.files.extract import Checker, Copied, Window, copy, merge, window
from pulsarctl_wire.render.text import count_of, human_bytes
from pulsarctl_wire.reports import packets
from pulsarctl_wire.reports.engine import Engine

_PROBES: Final = 8  # windows by which a capture is recognized
_HINT: Final = "; --captures PATH says where captures are now"


class Selection(NamedTuple):
    """What to write, and where: the packets of rows of a table, or of their whole connections.

    `sources` are the tables, `captures` where captures are now, `keylogs` files with secrets of TLS.
    """

    sources: list[str]
    captures: list[str]
    table: str
    where: str | None
    whole: bool
    keylogs: list[str]
    write: str


class ExtractJob:
    """One run."""

    def __init__(self, options: Selection, engine: Engine) -> None:
        self._options = options
        self._engine = engine
        self._captures = Captures(options.sources, options.captures)
        self._secrets = Secrets(options.keylogs)
        self._secrets.require_logs()
        self._read_paths: list[str] = []
        self._copies: list[Copied] = []
        self._connections = 0
        self._code = 0

    def run(self) -> int:
        """Write the packets; returns the exit code."""
        with ExitStack() as stack:
            stream = self._output(stack)
            directory = stack.enter_context(TemporaryDirectory(prefix="pwire-"))
            for number, (file, frames) in enumerate(self._plan()):
                self._copy(file, frames, os.path.join(directory, str(number)))
            self._write(stream)
        return self._code

    def _write(self, stream: BinaryIO) -> None:
        path = self._options.write
        if path != "-":
            console.refuse_source(
                "--write", path, [*self._options.sources, *self._options.keylogs, *self._read_paths]
            )
            with suppress(OSError):  # a pipe
                stream.truncate(0)
        writer, checker, size = PcapngWriter(stream), Checker(self._secrets), 0

        def write_packets() -> Iterator[tuple[RawPacket, int]]:
            nonlocal size
            for packet, ending in merge(self._copies):
                writer.write(packet)
                size += len(packet[2])
                yield packet, ending
                writer.write_secrets(self._secrets.take_used())  # what this packet needed

        checker.check(write_packets())
        stream.flush()
        frames = sum(part.found for part in self._copies)
        sys.stderr.write(
            f"{count_of(frames, 'frame')} in {count_of(writer.count, 'packet')} ({human_bytes(size)}) "
            f"of {count_of(len(self._read_paths), 'file')}, {count_of(self._connections, 'connection')}\n"
        )
        undecoded_count = max(frames - checker.frames, 0) if self._options.whole else checker.missing
        if undecoded_count:
            hint = "" if self._options.whole else "; --connections writes also what came before"
            console.warn(f"{count_of(undecoded_count, 'frame')} cannot be decoded from these packets{hint}")

    # -- what is wanted

    def _plan(self) -> list[tuple[str, int]]:
        """Let the engine find the windows to copy; return each capture's name, and its wanted frames."""
        table, condition = self._options.table, self._options.where or "true"
        try:
            counts = self._engine.rows(packets.counted(table, condition))
        except QueryError as error:
            raise QueryError(f"--where: {error}") from None
        self._connections = int(counts[0]["connections"])
        if self._options.whole:
            self._engine.keep(packets.WINDOWS, packets.connections(table, condition))
        else:
            self._engine.keep(packets.PICKED_FRAMES, packets.picked_frames(table, condition))
            self._engine.keep(packets.WINDOWS, packets.windows())
        rows = self._engine.rows(packets.totals())
        if not rows:
            console.warn(f"none of the {table} matched")
        return [(str(row["file"]), int(row["frames"])) for row in rows]

    def _windows(self, file: str) -> Iterator[Window]:
        return map(window, self._engine.query(packets.of_file(file)).values)

    # -- copying

    def _copy(self, file: str, frames: int, temporary: str) -> None:
        """Copy the windows of the capture `file` of the table, wherever it is now; say what is missing."""
        probes = list(islice((probe for probe in self._windows(file) if probe.offset is not None), _PROBES))
        problem = f"{file}: no such file" if not self._options.captures else f"{file}: not in --captures"
        for path in self._candidates(file, probes):
            problem = self._try(file, path, temporary, probes)
            if not problem:
                return
        self._lose(frames, f"{problem}{'' if self._options.captures else _HINT}")

    def _try(self, file: str, path: str, temporary: str, probes: list[Window]) -> str:
        """Copy the windows of `file` from `path` if that is the same capture; return the problem, or ""."""
        try:
            can_seek = self._recognize(path, probes, temporary)
            if can_seek is None:
                return f"{path}: it has other packets than the capture that the table was made of"
            self._copy_all(file, path, temporary, can_seek)
        except CaptureError as error:
            return f"{path}: {str(error).removeprefix(f'{path}: ')}"
        return ""

    def _recognize(self, path: str, probes: list[Window], temporary: str) -> bool | None:
        """Return whether it is enough to read parts of a capture; None if it has none of `probes`."""
        is_same = not probes
        for can_seek in (True, False):
            copied = Copied(temporary)
            try:
                copy(path, probes, copied, can_seek=can_seek)
            finally:
                copied.delete()
            is_same = is_same or copied.matched > 0
            if not copied.lost or not copied.needs_full_scan:
                break
        return can_seek if is_same else None

    def _candidates(self, file: str, probes: list[Window]) -> Iterator[str]:
        yield from self._captures.find_named(file)
        if probes:
            yield from self._captures.find_renamed(file, probes[0].at_ns)

    def _copy_all(self, file: str, path: str, temporary: str, can_seek: bool) -> None:
        copied = self._copy_windows(file, path, temporary, can_seek)
        if copied.lost and can_seek and copied.needs_full_scan:
            copied.delete()
            copied = self._copy_windows(file, path, temporary, False)
        copied.close()
        self._read_paths.append(path)
        self._secrets.begin_file(path)
        self._copies.append(copied)
        if copied.lost:
            self._lose(copied.lost, f"{path}: {copied.error or 'other packets are in their places'}")

    def _copy_windows(self, file: str, path: str, temporary: str, can_seek: bool) -> Copied:
        copied = Copied(temporary)
        copied.on_secrets = self._secrets.take_block
        copy(path, self._windows(file), copied, can_seek=can_seek)
        return copied

    def _lose(self, frames: int, problem: str) -> None:
        """Say how many frames are lost, and why."""
        self._code = console.EXIT_SOURCE
        console.warn(f"{count_of(frames, 'frame') if frames else 'parts of frames'} missing: {problem}")

    def _output(self, stack: ExitStack) -> BinaryIO:
        path = self._options.write
        if path == "-":
            if console.is_terminal(sys.stdout):
                console.fail("--write -: is binary; send it to a file or a pipe: | pwire decode -")
            return cast(BinaryIO, sys.stdout.buffer)
        try:
            return stack.enter_context(open(path, "ab"))  # `_write` empties it once the packets are there
        except OSError as error:
            console.fail(f"--write {path}: {error.strerror}", console.EXIT_OUTPUT)
