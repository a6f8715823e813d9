"""`pwire stats`: what a capture held, counted by command, connection, topic, producer, and so on."""

import gc
import os
import signal
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pulsarctl_wire.cli import completion, console
from pulsarctl_wire.cli.options import JOBS, MAX_FRAME_SIZE, OUTPUT

if TYPE_CHECKING:
    from pulsarctl_wire.capture.sources import Decoder
    from pulsarctl_wire.cli.twin import Twin
    from pulsarctl_wire.wire.frame import Event
    from pulsarctl_wire.wire.session import Session

Record = dict[str, Any]

KINDS: Final = ("command", "connection", "topic", "producer", "subscription", "error")
"""What `--by` takes."""

_GATHERED: Final = 64  # events that are counted at a time
_MAX_OPENED: Final = 1_000_000


class Output(str, Enum):
    """How the counts are shown."""

    table = "table"
    json = "json"


def stats(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE...",
            help="As of decode: pcap or pcapng files (also .gz, .zst), hex dumps, raw frames; - is stdin.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[Output, OUTPUT] = Output.table,
    by: Annotated[
        list[str] | None,
        typer.Option(
            "--by",
            metavar="WHAT",
            help=f"What to count by: {', '.join(KINDS)}; several with commas.",
            show_default="all that occur",
            autocompletion=completion.kinds,
        ),
    ] = None,
    top: Annotated[
        int, typer.Option("--top", metavar="N", min=0, help="Rows of each, the largest first; 0: all.")
    ] = 10,
    jobs: Annotated[int, JOBS] = 2,
    max_frame_size: Annotated[int | None, MAX_FRAME_SIZE] = None,
) -> None:
    """Count a capture by command, topic, producer, ...: messages, bytes, latencies, errors."""
    if not sources:
        console.fail(
            "stats: name a SOURCE (a file, or - for stdin); see pwire stats --help", console.EXIT_USAGE
        )
    kinds = [kind.strip().lower() for each in by or [] for kind in each.split(",")]
    for kind in kinds:
        if kind not in KINDS:
            hint = console.meant(kind, KINDS) or f"; it is one of {', '.join(KINDS)}"
            console.fail(f"--by {kind}: no such thing{hint}", console.EXIT_USAGE)
    options = Options(sources, output.value, list(dict.fromkeys(kinds)), top, jobs, max_frame_size)
    with console.errors_said(), ExitStack() as stack:
        code = StatsJob(options, stack).run()
    raise SystemExit(code)


@dataclass(frozen=True)
class Options:
    """The command line of `stats`; `by` is empty for all that occurs."""

    sources: list[str]
    output: str
    by: list[str]
    top: int
    jobs: int
    max_frame_size: int | None


class StatsJob:
    """One run: sources are counted, by two processes if that pays, and what came of it is shown."""

    def __init__(self, options: Options, stack: ExitStack) -> None:
        from pulsarctl_wire.stats import Stats

        self.options = options
        self.stack = stack
        self.stats = Stats()
        self.twin: Twin | None = None
        self.sizes: dict[str, int] = {}
        """Bytes of the sources that both processes read, however much they grow meanwhile."""
        self.opened = array("Q")
        """Packets that opened this process's connections, to number those of both."""
        self.counting = self.stopped = False
        self.code = 0

    def run(self) -> int:
        """Count and show; give the exit code."""
        from pulsarctl_wire.cli import twin

        # frames come and go by the hundred thousand and hold no cycles: collecting them is wasted time
        gc.freeze()
        gc.set_threshold(100_000, 20, 100)
        try:
            if self.options.jobs > 1 and twin.pays(self.options.sources):
                self.sizes = {path: os.path.getsize(path) for path in self.options.sources}
                self.twin = twin.Twin()
                if self.twin.is_twin:
                    self.twin.run(self._count_for_other)
                self._count_with_twin(self.twin)
            else:
                self._count(None)
        finally:
            if self.twin is not None:
                self.twin.part()
            self.stack.close()  # the progress bar goes before the counts come
        if self.stats.all_connections or self.code != console.EXIT_SOURCE:
            self._show()
        return self.code

    # -- two processes

    def _count_for_other(self) -> None:
        """In the second process: count half of the connections, and send that."""
        assert self.twin is not None
        self.twin.send(os.getpid())
        self.twin.flush()
        self._count((1, 2))
        self.twin.send(self.opened)
        for part in self.stats.parts():
            self.twin.send(part)
            self.twin.flush()  # one after the other, so that they take little memory
        self.twin.send(None)

    def _count_with_twin(self, other: "Twin") -> None:
        pid = other.receive()
        self._count((0, 2))
        if self.code == console.EXIT_INTERRUPTED:
            os.kill(pid, signal.SIGINT)
        if self.options.output == "table":
            import pulsarctl_wire.cli.stats_page  # noqa: F401 (while the other one is still counting)
        theirs = other.receive()
        mine = self.opened
        self.stats.renumber(lambda index: _number(index, mine, theirs))
        while (part := other.receive()) is not None:
            part.renumber(lambda index: _number(index, theirs, mine))
            self.stats.merge(part)

    # -- one of them

    def _count(self, share: tuple[int, int] | None) -> None:
        """Count what the sources hold; after Ctrl-C, what they held so far."""
        from pulsarctl_wire.capture.sources import Decoder
        from pulsarctl_wire.wire.session import Session

        def new_session(*arguments: Any) -> "Session":
            if len(self.opened) < _MAX_OPENED:
                self.opened.append(decoder.packets)
            return Session(*arguments)

        decoder = Decoder(
            max_frame_size=self.options.max_frame_size,
            join_chunks=False,
            share=share or (0, 1),
            new_session=new_session if share else Session,
            on_end=self.stats.end,
        )
        before = signal.signal(signal.SIGINT, self._interrupt)
        try:
            self._add(chain(self._batches(decoder), decoder.finish()))
        except KeyboardInterrupt:
            self.code = console.EXIT_INTERRUPTED
        finally:  # what the second process has counted is to arrive whatever else is pressed
            is_twin = self.twin is not None and self.twin.is_twin
            signal.signal(signal.SIGINT, signal.SIG_IGN if is_twin else before)
        self.stats.finish(decoder)

    def _interrupt(self, *_: object) -> None:
        """Ctrl-C ends the reading, but not in the middle of a count."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # once is enough
        self.stopped = True
        if not self.counting:
            raise KeyboardInterrupt

    def _add(self, batches: "Iterable[list[Event]]") -> None:
        gathered: list[Event] = []
        try:
            for events in batches:
                gathered += events
                if len(gathered) >= _GATHERED:
                    self._add_all(gathered)
                    gathered = []
        finally:
            self._add_all(gathered)

    def _add_all(self, events: "list[Event]") -> None:
        self.counting = True
        self.stats.add(events)
        self.counting = False
        events.clear()
        if self.stopped:
            raise KeyboardInterrupt

    def _batches(self, decoder: "Decoder") -> "Iterator[list[Event]]":
        """The events of all sources; what is wrong with a source is said, and sets the exit code."""
        from pulsarctl_wire.cli.reading import Sources

        sources = Sources(
            self.options.sources, self.stack, bar=console.is_terminal(sys.stderr), sizes=self.sizes
        )
        try:
            yield from sources.read(decoder, say=self.twin is None or not self.twin.is_twin)
        finally:
            self.code = self.code or sources.code

    # -- after

    def _show(self) -> None:
        from pulsarctl_wire.stats import records, total_record

        total = total_record(self.stats)
        kinds = self.options.by or [kind for kind in KINDS if self.stats.rows[kind]]
        tables = {kind: records(self.stats, kind, self.options.top) for kind in kinds}
        if self.options.output == "json":
            from pulsarctl_wire.cli.jsonl import json_line

            out = b"".join(map(json_line, [total, *chain.from_iterable(tables.values())]))
        else:
            from pulsarctl_wire.cli.stats_page import page

            sizes = {kind: sum(1 for key in self.stats.rows[kind] if key) for kind in kinds}
            shown = page(total, tables, sizes)
            out = shown.encode("utf-8", "backslashreplace")
        sys.stdout.buffer.write(out)
        sys.stdout.buffer.flush()


def _number(index: int, own: "array[int]", others: "array[int]") -> int:
    """The number among all connections of the one that is number `index` of `own`; both in packet numbers."""
    return index + (bisect_left(others, own[index]) if index < len(own) else len(others))
