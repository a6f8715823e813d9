"""Runs `pwire extract`: asks the table where the packets are, copies them, and says what is missing."""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from tempfile import TemporaryDirectory
from typing import BinaryIO, Final, cast

from pulsarctl_wire.capture.files import RawPacket
from pulsarctl_wire.capture.sources import collect_rarely
from pulsarctl_wire.capture.writer import PcapngWriter
from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.data.extract import ExtractOptions
from pulsarctl_wire.errors import CaptureError, QueryError
from pulsarctl_wire.pipeline.extract import Checker, Copied, Window, copy, merged, window
from pulsarctl_wire.pipeline.moved import Captures
from pulsarctl_wire.render.text import count_of, human_bytes
from pulsarctl_wire.reports import packets
from pulsarctl_wire.reports.engine import Engine

_TRIED: Final = 8  # windows by which a capture is recognized
_WAY_OUT: Final = "--captures PATH says where it is now"


class ExtractJob:
    """One run."""

    def __init__(self, options: ExtractOptions, engine: Engine) -> None:
        self._options = options
        self._engine = engine
        self._captures = Captures(options.sources, options.captures)
        self._read: list[str] = []
        self._copies: list[Copied] = []
        self._connections = 0
        self._code = 0

    def run(self) -> int:
        """Write the packets; returns the exit code."""
        collect_rarely()
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
            for source in (*self._options.sources, *self._read):
                if os.path.exists(source) and os.path.samefile(path, source):
                    console.fail(f"--write {path}: that is one of the sources; name another file")
            stream.truncate(0)
        writer, checker, size = PcapngWriter(stream), Checker(), 0

        def written() -> Iterator[tuple[RawPacket, int]]:
            nonlocal size
            for packet, ending in merged(self._copies):
                writer.write(packet)
                size += len(packet[2])
                yield packet, ending

        checker.check(written())
        stream.flush()
        frames = sum(each.found for each in self._copies)
        sys.stderr.write(
            f"{count_of(frames, 'frame')} in {count_of(writer.count, 'packet')} ({human_bytes(size)}) "
            f"of {count_of(len(self._read), 'file')}, {count_of(self._connections, 'connection')}\n"
        )
        unclear = max(frames - checker.frames, 0) if self._options.whole else checker.missing
        if unclear:
            more = "" if self._options.whole else "; --connections writes also what came before"
            console.warn(f"{count_of(unclear, 'frame')} cannot be decoded from these packets{more}")

    # -- what is wanted

    def _plan(self) -> list[tuple[str, int]]:
        """Let the engine find out what is wanted of which capture; returns their names and frames."""
        table, where = self._options.table, self._options.where or "true"
        try:
            found = self._engine.rows(packets.counted(table, where))
        except QueryError as error:
            raise QueryError(f"--where: {error}") from None
        self._connections = int(found[0]["connections"])
        if self._options.whole:
            self._engine.keep(packets.WINDOWS, packets.connections(table, where))
        else:
            self._engine.keep(packets.PICKED, packets.picked(table, where))
            self._engine.keep(packets.WINDOWS, packets.windows())
        rows = self._engine.rows(packets.totals())
        if not rows:
            console.warn(f"none of the {table} matched")
        return [(str(row["file"]), int(row["frames"])) for row in rows]

    def _windows(self, file: str) -> Iterator[Window]:
        return map(window, self._engine.query(packets.of_file(file)).values)

    # -- copying

    def _copy(self, file: str, frames: int, temporary: str) -> None:
        """Copy what is wanted of a capture, wherever it is now; say what is missing."""
        probes = list(islice((each for each in self._windows(file) if each.at is not None), _TRIED))
        problem = "no such file"
        for path in self._candidates(file, probes):
            try:
                is_it = not probes
                for can_seek in (True, False):
                    copied = Copied(temporary)
                    try:
                        copy(path, probes, copied, can_seek=can_seek)
                    finally:
                        copied.delete()
                    is_it = is_it or copied.matched > 0
                    if not copied.lost:
                        break
                if is_it:
                    self._copy_all(file, path, temporary, can_seek)
                    return
                problem = f"{path} has other packets: it is not the capture that the table was made of"
            except CaptureError as error:
                problem = f"{path}: {error}" if path != file else str(error)
        self._lose(file, frames, f"{problem}; {_WAY_OUT}")

    def _candidates(self, file: str, probes: list[Window]) -> Iterator[str]:
        yield from self._captures.named(file)
        if probes:
            yield from self._captures.renamed(file, probes[0].at_ns)

    def _copy_all(self, file: str, path: str, temporary: str, can_seek: bool) -> None:
        copied = Copied(temporary)
        copy(path, self._windows(file), copied, can_seek=can_seek)
        if copied.lost and can_seek and copied.is_odd:
            copied.delete()
            copied = Copied(temporary)
            copy(path, self._windows(file), copied, can_seek=False)
        copied.close()
        self._read.append(path)
        self._copies.append(copied)
        if copied.lost:
            self._lose(file, copied.lost, str(copied.error or "other packets are where the table has them"))

    def _lose(self, file: str, frames: int, problem: str) -> None:
        """Say how many frames are lost by a capture."""
        self._code = console.EXIT_SOURCE
        lost = count_of(frames, "frame") if frames else "a part"
        console.warn(f"{file}: {problem}: {lost} missing")

    def _output(self, stack: ExitStack) -> BinaryIO:
        path = self._options.write
        if path == "-":
            if console.is_terminal(sys.stdout):
                console.fail("--write -: is binary; send it to a file or a pipe: | pwire decode -")
            return cast(BinaryIO, sys.stdout.buffer)
        try:
            return stack.enter_context(open(path, "ab"))  # and emptied once the packets are there
        except OSError as error:
            console.fail(f"--write {path}: {error.strerror}", console.EXIT_OUTPUT)
