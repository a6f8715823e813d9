"""Reading the sources that a command line names, with what is wrong with them said on stderr."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack

from pulsarctl_wire.capture.sources import Decoder, Source, open_source
from pulsarctl_wire.cli import console
from pulsarctl_wire.errors import CaptureError, DamagedCapture
from pulsarctl_wire.wire.frame import Event


class Sources:
    """Sources by their paths; `-` is stdin. `code` becomes the exit code that they deserve."""

    def __init__(self, paths: list[str]) -> None:
        self.code = 0
        self._paths = paths

    def read(self, decoder: Decoder) -> Iterator[list[Event]]:
        """The events of all sources."""
        for path in self._paths:
            try:
                source = Source("stdin", sys.stdin.buffer) if path == "-" else open_source(path)
                with source.stream if path != "-" else ExitStack():
                    yield from decoder.read(source)
            except CaptureError as error:  # noqa: PERF203 (a source, not a frame)
                if not isinstance(error, DamagedCapture):
                    self.code = console.EXIT_SOURCE
                elif self.code != console.EXIT_SOURCE:
                    self.code = console.EXIT_DAMAGED
                console.complain(str(error))
