"""Reading the sources that a command line names, with what is wrong with them said on stderr."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import BinaryIO, cast

from pulsarctl_wire.capture.series import arrange, read_all, spans_of
from pulsarctl_wire.capture.sources import Decoder, Source, open_source
from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.progress import LARGE, Progress, Watched
from pulsarctl_wire.errors import CaptureError, DamagedCapture
from pulsarctl_wire.wire.frame import Event


class Sources:
    """Sources by their paths; `-` is stdin. `code` becomes the exit code that they deserve.

    `flush` is called before each wait for more; `stack` ends the progress bar, which large sources have if
    there is to be a `bar`. `sizes` are bytes after which files end, however much they have grown.
    """

    def __init__(
        self,
        paths: list[str],
        stack: ExitStack,
        *,
        bar: bool,
        flush: Callable[[], object] = lambda: None,
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        self.code = 0
        self._paths = paths
        self._stack = stack
        self._bar = bar
        self._flush = flush
        self._sizes = sizes or {}

    def read(self, decoder: Decoder, *, say: bool = True) -> Iterator[list[Event]]:
        """The events of all sources, in order of time; what is wrong is said if we are to `say` it."""

        def problem(error: CaptureError) -> None:
            if not isinstance(error, DamagedCapture):
                self.code = console.EXIT_SOURCE
            elif self.code != console.EXIT_SOURCE:
                self.code = console.EXIT_DAMAGED
            if say:
                self._flush()
                console.complain(str(error))

        def note(text: str) -> None:
            if say:
                self._flush()
                console.complain(text)

        order = arrange(self._paths, spans_of(self._paths, self._sizes))
        for text in order.notes:
            note(text)
        return read_all(
            decoder, order.turns, lambda given: self._opened(self._paths[given], say), problem, note
        )

    @contextmanager
    def _opened(self, path: str, bar: bool) -> Iterator[Source]:
        source = Source("stdin", sys.stdin.buffer) if path == "-" else open_source(path)
        with source.stream if path != "-" else nullcontext():
            yield self._watched(source, bar)

    def _watched(self, source: Source, bar: bool) -> Source:
        progress = None
        if bar and self._bar and source.size > LARGE:
            progress = Progress(source, self._stack)
        watched = Watched(source.stream, self._flush, progress, self._sizes.get(source.name))
        return source._replace(stream=cast(BinaryIO, watched))
