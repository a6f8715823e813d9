"""Reads the sources that a command line names, and reports their problems on stderr."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass, field
from typing import BinaryIO, cast

from pulsarctl_wire.capture.series import arrange, read_all, spans_of
from pulsarctl_wire.capture.sources import Decoder, Source, open_source
from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.capture.progress import LARGE, FlushingStream, Progress
from pulsarctl_wire.errors import CaptureError, DamagedCapture
from pulsarctl_wire.wire.frame import Event


def find_captures(sources: list[str]) -> list[str]:
    """Return the sources, with the captures below a directory in its place; notes name other files there.

    Ends the command if a directory holds no captures or cannot be read.
    """
    if not any(map(os.path.isdir, sources)):
        return sources
    from pulsarctl_wire.pipeline.files.inputs import list_inputs  # imports pyarrow

    paths: list[str] = []
    with console.errors_reported():
        for source in sources:
            inside = list_inputs([source], console.warn) if os.path.isdir(source) else None
            paths += [source] if inside is None else [entry.path for entry in inside]
    return list(dict.fromkeys(paths))


@dataclass
class Sources:
    """Sources by path; `-` is stdin. `code` becomes the exit code, by the problems found.

    `flush` is called before each read. With `bar`, large sources have a progress bar, which ends when `stack`
    closes. Use `buffered=False` in a thread that may still read at interpreter exit: it must not hold the
    lock of stdin's buffer.
    """

    paths: list[str]
    stack: ExitStack
    _: KW_ONLY
    bar: bool
    flush: Callable[[], object] = lambda: None
    buffered: bool = True
    code: int = field(default=0, init=False)

    def read(self, decoder: Decoder, *, say: bool = True) -> Iterator[list[Event]]:
        """Read all sources, in order of time. Problems are printed if `say`."""

        def problem(error: CaptureError) -> None:
            self.code = console.worsen_code(self.code, damaged=isinstance(error, DamagedCapture))
            if say:
                self.flush()
                console.warn(str(error))

        def note(text: str) -> None:
            if say:
                self.flush()
                console.warn(text)

        secrets = decoder.secrets
        secrets.is_live = "-" in self.paths
        if not secrets.is_live:
            secrets.require_logs()
        order = arrange(self.paths, spans_of(self.paths))
        for text in order.notes:
            note(text)
        yield from read_all(
            decoder, order.turns, lambda index: self._open(self.paths[index], say), problem, note
        )
        for text in secrets.describe_problems():
            note(text)

    @contextmanager
    def _open(self, path: str, bar: bool) -> Iterator[Source]:
        source = Source("stdin", sys.stdin.buffer) if path == "-" else open_source(path)
        with source.stream if path != "-" else nullcontext():
            yield self._watch(source, bar)

    def _watch(self, source: Source, bar: bool) -> Source:
        progress = None
        if bar and self.bar and source.size > LARGE:
            progress = Progress(source.name, source.size, self.stack)
        stream = source.stream if self.buffered else getattr(source.stream, "raw", source.stream)
        wrapper = FlushingStream(stream, self.flush, progress, None)
        return source._replace(stream=cast(BinaryIO, wrapper))
