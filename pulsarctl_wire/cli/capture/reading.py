"""Reads the sources that a command line names, and reports their problems on stderr."""

import os
import select
import signal
import stat
import sys
import threading
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
    """Return the sources, each directory replaced by the captures below it; warn of its other files.

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


@contextmanager
def interruptible(source: Source) -> Iterator[Source]:
    """Yield a source without a buffer, so that signals are handled at once while a pipe is silent.

    Python handles signals between two of its instructions. A signal just before a read would be handled only
    when the read ends, and a pipe may stay silent for long. So a read begins only when there is something to
    read; until then each signal is a byte in a pipe of our own. In other threads, reads are left as they are:
    only the main thread handles signals.
    """
    stream = getattr(source.stream, "raw", source.stream)
    if not _can_wait(stream) or threading.current_thread() is not threading.main_thread():
        yield source._replace(stream=stream)
        return
    signals, writer = os.pipe()
    os.set_blocking(writer, False)
    previous = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def wait() -> None:
        while signals in select.select([stream, signals], [], [])[0]:
            os.read(signals, 4096)

    try:
        yield source._replace(stream=cast(BinaryIO, FlushingStream(stream, wait, None, None)))
    finally:
        signal.set_wakeup_fd(previous)
        os.close(signals)
        os.close(writer)


def _can_wait(stream: BinaryIO) -> bool:
    """Return whether a read may block: the stream is a pipe, a terminal or the like, not a file."""
    try:
        return not stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except OSError:  # the stream is in memory
        return False


def spool_stdin(stack: ExitStack) -> str:
    """Copy stdin to a file, to read it more than once; return its path. It is deleted when `stack` closes."""
    import shutil
    import tempfile

    file = stack.enter_context(tempfile.NamedTemporaryFile(prefix="pwire-"))  # noqa: SIM115
    with interruptible(Source("stdin", sys.stdin.buffer)) as source:
        shutil.copyfileobj(source.stream, file)
    file.flush()
    return file.name


@dataclass
class Sources:
    """Sources by path; `-` is stdin. `code` is the exit code for the problems found so far.

    `flush` is called before each read. With `bar`, large sources have a progress bar, which ends when `stack`
    closes.
    """

    paths: list[str]
    stack: ExitStack
    _: KW_ONLY
    bar: bool
    flush: Callable[[], object] = lambda: None
    code: int = field(default=0, init=False)

    def read(self, decoder: Decoder, *, say: bool = True) -> Iterator[list[Event]]:
        """Read all sources, in order of time. Problems and progress are shown only if `say`."""

        def report(error: CaptureError) -> None:
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
            decoder, order.turns, lambda index: self._open(self.paths[index], say), report, note
        )
        for text in secrets.describe_problems():
            note(text)

    @contextmanager
    def _open(self, path: str, say: bool) -> Iterator[Source]:
        source = Source("stdin", sys.stdin.buffer) if path == "-" else open_source(path)
        with source.stream if path != "-" else nullcontext(), interruptible(source) as source:
            yield self._watch(source, say)

    def _watch(self, source: Source, say: bool) -> Source:
        progress = None
        if say and self.bar and source.size > LARGE:
            progress = Progress(source.name, source.size, self.stack)
        wrapper = FlushingStream(source.stream, self.flush, progress, None)
        return source._replace(stream=cast(BinaryIO, wrapper))
