"""`pwire sequence`: a session as a sequence diagram, in the terminal, as SVG or as a page."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.options import (
    OUTPUT,
    PRIVATE_KEY,
    SOURCES,
    TIME,
    WIDE,
    ReadOptions,
    SelectOptions,
    TimeFormat,
)
from pulsarctl_wire.cli.signature import flag, group, option

if TYPE_CHECKING:
    from pulsarctl_wire.wire.frame import Event
    from pulsarctl_wire.wire.session.ending import EndedConnection

_WIDTH: Final = 100
"""Columns of a diagram that does not go to a terminal."""
_MAX_ROWS: Final = 2_000


@dataclass(frozen=True, kw_only=True)
class SequenceOptions:
    """The command line of `sequence`; docs/cli.md describes its options."""

    sources: list[str] = SOURCES()
    output: Literal["text", "svg", "html"] = OUTPUT(default="text")
    html: str | None = option("--html FILE", "Write the diagram as an HTML page.")
    selection: SelectOptions = group(SelectOptions)
    time_range: str | None = option(
        "--time-range FROM..TO", "ISO 8601, epoch seconds, or +seconds from the first event."
    )
    around: int | None = option("--around FRAME", "Only this frame, and those before and after it.", min=1)
    context: int = option(
        "--context N", "With --around: frames before and after.", default=10, min=0, max=200
    )
    no_fold: bool = flag("--no-fold", "Give each frame a row of its own.")
    rows: int = option(
        "--rows N", "Maximum number of rows; the rest is counted.", default=500, min=1, max=_MAX_ROWS
    )
    private_keys: list[str] = PRIVATE_KEY()
    time_format: TimeFormat = TIME()
    read: ReadOptions = group(ReadOptions)
    wide: bool = WIDE()


def sequence(options: SequenceOptions) -> int:
    """Draw captured sessions as a sequence diagram: who sent what to whom, and how long it took."""
    from pulsarctl_wire.cli.capture.reading import find_captures

    options = replace(options, sources=find_captures(options.sources))
    with console.errors_reported(), ExitStack() as stack:
        return SequenceJob(options, stack).run()


class SequenceJob:
    """One run. The constructor raises FilterError for an invalid selection; `run` does the rest."""

    def __init__(self, options: SequenceOptions, stack: ExitStack) -> None:
        from pulsarctl_wire.capture.private_keys import read_private_keys
        from pulsarctl_wire.cli.capture import select
        from pulsarctl_wire.record import Recorder
        from pulsarctl_wire.render.line import LineRenderer, TimeFormatter
        from pulsarctl_wire.render.sequence import Diagram
        from pulsarctl_wire.render.text import Origin, Paint

        selection, recorder = options.selection, Recorder(keys=read_private_keys(options.private_keys))
        self.options = options
        self.stack = stack
        self.origin = Origin()
        self.clock = TimeFormatter(options.time_format, self.origin)
        self.frames = self.code = 0
        self.tests: list[Callable[[Any], bool]] = [*select.tests(selection)]
        self.selects = bool(selection.topics or selection.commands or selection.expression or options.around)
        if options.time_range:
            self.selects = True
            local = options.time_format == "local"
            self.tests.append(select.by_time(options.time_range, self.origin, local=local))
        if selection.expression is not None:
            self.tests.append(select.Expression(selection.expression, recorder))
        self.ended: list[EndedConnection] = []
        around = None if options.around is None else (options.around, options.context)
        line = LineRenderer(Paint(False), open_entry=recorder.open if recorder.keys is not None else None)
        self.diagram = Diagram(line, fold=not options.no_fold, limit=options.rows, around=around)

    def run(self) -> int:
        """Read and draw; returns the exit code."""
        from pulsarctl_wire.capture.sources import Decoder, collect_rarely
        from pulsarctl_wire.cli.capture.reading import Sources

        collect_rarely()
        decoder = Decoder(
            self.options.read.reading,
            join_chunks=bool(self.options.selection.expression),
            on_end=self.ended.append,
        )
        sources = Sources(self.options.sources, self.stack, bar=console.is_terminal(sys.stderr))
        try:
            self._add(chain(sources.read(decoder), decoder.finish()))
            self.code = sources.code
        except KeyboardInterrupt:
            self.code = console.EXIT_INTERRUPTED
        finally:
            self.stack.close()  # removes the progress bar before the diagram is shown
        self.diagram.finish()
        if not self.diagram.rows:
            console.warn_of_packets(decoder.skipped)
        if self.diagram.rows or self.code != console.EXIT_SOURCE:
            self._show()
        return self.code

    def _add(self, batches: Iterator[list[Event]]) -> None:
        from pulsarctl_wire.wire.frame import Frame

        for events in batches:
            for event in events:
                if self.origin.time_ns is None:
                    self.origin.time_ns = event.time_ns
                number = event.number if isinstance(event, Frame) else 0
                self.frames = max(self.frames, number)
                if number == self.options.around or all(test(event) for test in self.tests):
                    self.diagram.add(event)
            self._end_connections()
            if self.diagram.is_done:
                return
        self._end_connections()

    def _end_connections(self) -> None:
        """Show the ends of connections that are in the diagram, or on which nobody sent a byte.

        The latter are left out if an option chooses frames.
        """
        for ending in self.ended:
            silent = ending.protocol is None and not self.selects and all(test(ending) for test in self.tests)
            if silent or self.diagram.shows(ending.connection):
                self.diagram.end(ending)
        self.ended.clear()

    def _show(self) -> None:
        from pulsarctl_wire.render import sequence_svg, sequence_text
        from pulsarctl_wire.render.text import Paint, count_of

        diagram, options = self.diagram, self.options
        if not diagram.rows:
            self._say_nothing_matched()
        if options.html is not None or options.output == "html":
            title = ", ".join(options.sources)
            subtitle = f"{count_of(self.frames, 'frame')}, {count_of(len(diagram.rows), 'row')}"
            page = sequence_svg.page(diagram.rows, self.clock, title, subtitle, diagram.note)
            console.write_page(options.html, page, options.sources)
        elif options.output == "svg":
            sys.stdout.write(sequence_svg.svg(diagram.rows, self.clock, diagram.note))
        else:
            width = None if console.screen.wide else console.terminal_width(sys.stdout) or _WIDTH
            paint = Paint(console.has_colour(sys.stdout))
            for line in sequence_text.text(diagram.rows, paint, self.clock, width, diagram.note):
                sys.stdout.write(f"{line}\n")

    def _say_nothing_matched(self) -> None:
        from pulsarctl_wire.render.text import count_of

        read, around = count_of(self.frames, "frame"), self.options.around
        if around is not None:
            console.warn(f"--around {around}: there is no such frame in {read}")
        else:
            console.warn(f"sequence: there is nothing to draw: none of {read} matched")
