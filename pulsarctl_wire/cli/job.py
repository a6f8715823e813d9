"""One run of `pwire decode`: options become tests, a renderer and a writer; sources become output."""

import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from pulsarctl_wire.capture.files import RawPacket
from pulsarctl_wire.capture.live import Live
from pulsarctl_wire.capture.sharing import Sharing, TooMuch
from pulsarctl_wire.capture.sources import Decoder
from pulsarctl_wire.capture.writer import EventWriter
from pulsarctl_wire.cli import console, select, twin
from pulsarctl_wire.cli.interface import open_interface
from pulsarctl_wire.cli.line import Clock
from pulsarctl_wire.cli.reading import Sources
from pulsarctl_wire.cli.render import Render, renderer, schema_of
from pulsarctl_wire.cli.summary import Summary
from pulsarctl_wire.errors import CaptureError, DamagedCapture, FilterError
from pulsarctl_wire.record import CONNECTION_NAMES, Recorder, connection_record
from pulsarctl_wire.wire.ending import Contents, Ending
from pulsarctl_wire.wire.frame import Event, Frame
from pulsarctl_wire.wire.payload import Budget
from pulsarctl_wire.wire.session import Session

if TYPE_CHECKING:
    from pulsarctl_wire.cli.connections import ConnectionLines

_GATHERED: Final = 64  # events that are counted and shown at a time


@dataclass(frozen=True)
class Options:
    """The command line of `decode`, named as its options are; docs/cli.md says what they mean."""

    sources: list[str]
    output: str
    quiet: bool
    expression: str | None
    commands: list[str]
    topics: list[str]
    connections: list[str]
    time_range: str | None
    count: int | None
    first_error: bool
    list_connections: bool
    two_pass: bool
    interface: str | None
    capture_filter: str | None
    buffer: int
    schema: str | None
    max_frame_size: int | None
    write: str | None
    time_format: str
    show_secrets: bool
    jobs: int
    payload_ratio: int | None


class _Rest:
    """An output of which the first `skip` bytes were written before."""

    def __init__(self, out: BinaryIO, skip: int) -> None:
        self._out = out
        self._skip = skip
        self.flush = out.flush

    def write(self, data: bytes) -> None:
        self._out.write(data[self._skip :])
        self._skip = max(self._skip - len(data), 0)

    def writelines(self, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            self.write(piece)


class DecodeJob:
    """One run. Construction raises FilterError for a selection that makes no sense; `run` does the rest."""

    def __init__(self, options: Options, stack: ExitStack) -> None:
        self.options = options
        self.stack = stack
        self.sources = options.sources
        self.out = sys.stdout.buffer
        self.written = 0
        """Bytes of what two processes showed."""
        self.origin = console.Origin()
        self.summary = Summary()
        self.answers: Any = None
        self.live: Live | None = None
        self.twin: twin.Twin | None = None
        self.sizes: dict[str, int] = {}
        """Bytes of the sources that both processes read, however much they grow meanwhile."""
        self.code = 0
        self.budget = Budget(options.payload_ratio or Budget.RATIO)
        recorder = Recorder(
            show_secrets=options.show_secrets,
            schema=schema_of(options.schema),
            answers=options.two_pass,
            budget=self.budget,
        )
        self.expression = (
            None if options.expression is None else self._expression(options.expression, recorder)
        )
        self.first_error = select.FirstError(recorder) if options.first_error else None
        self.tests = self._tests()
        frames_shown = not (options.quiet or options.list_connections)
        self.render = self._renderer(recorder) if frames_shown else None
        self.listing = self._listing() if options.list_connections else None
        self.writer = None if options.write is None else self._writer(options.write)
        # the payloads of chunked messages are worth their memory only where messages are shown
        self.join_chunks = not options.list_connections and (
            bool(options.expression or options.first_error)
            or (frames_shown and options.output in ("json", "tree"))
        )

    # -- before

    def _expression(self, text: str, recorder: Recorder) -> select.Expression:
        if self.options.list_connections:
            return select.Expression(text, connection_record, names=CONNECTION_NAMES)
        return select.Expression(text, recorder)

    def _listing(self) -> "ConnectionLines":
        from pulsarctl_wire.cli.connections import MOST_WAITING, ConnectionLines, connection_renderer

        options = self.options
        paint = console.Paint(console.use_colour(sys.stdout))
        clock = Clock(options.time_format, self.origin)
        render = connection_renderer(options.output, paint, clock, sys.stdout)
        return ConnectionLines(
            render,
            self.tests,
            (lambda line: None) if options.quiet else self.out.write,
            count=-1 if options.count is None else options.count,
            waiting=MOST_WAITING if self._is_patient() else 0,
        )

    def _renderer(self, recorder: Recorder) -> Render:
        options = self.options
        return renderer(
            options.output,
            recorder,
            self.origin,
            stream=sys.stdout,
            time_format=options.time_format,
            show_secrets=options.show_secrets,
            before=None if self.first_error is None else self.first_error.before,
        )

    def _tests(self) -> list[select.Test]:
        """The selecting options as tests, the cheap ones first."""
        options = self.options
        tests = select.tests(options.commands, options.connections, options.topics)
        if options.time_range:
            local = options.time_format == "local"
            tests.append(select.by_time(options.time_range, self.origin, local=local))
        if self.expression is not None:
            tests.append(self.expression)
        if self.first_error is not None:
            tests.append(self.first_error)
        return tests

    def _writer(self, path: str) -> EventWriter:
        if path == "-":
            raise FilterError("--write -: stdout is where the frames are shown; name a file")
        for source in self.sources:
            if os.path.exists(path) and os.path.exists(source) and os.path.samefile(path, source):
                raise FilterError(f"--write {path}: that is one of the sources; name another file")
        try:
            return EventWriter(self.stack.enter_context(open(path, "ab")))
        except OSError as error:
            console.fail(f"--write {path}: {error.strerror}", console.EXIT_OUTPUT)

    # -- the run

    def run(self) -> int:
        """Decode; give the exit code."""
        # frames come and go by the hundred thousand and hold no cycles: collecting them is wasted time
        gc.freeze()
        gc.set_threshold(100_000, 20, 100)
        try:
            if self.options.two_pass:
                self._first_pass()
            if self._can_share() and twin.pays(self.sources):
                self.sizes = {path: os.path.getsize(path) for path in self.sources}
                self.twin = twin.Twin()
            if self.twin is not None and self.twin.is_twin:
                self.twin.run(self._decode)
            self._decode()
            self.out.flush()
        except (TooMuch, twin.Gone):
            if self.render is None:
                raise
            return self._start_over()
        except KeyboardInterrupt:
            self.code = 0 if self.options.interface else console.EXIT_INTERRUPTED
            self.out.flush()
        finally:
            if self.twin is not None:
                self.twin.part()
        self._report()
        return self.code

    def _start_over(self) -> int:
        """Let one process do all that two began; what they have written is left out."""
        assert self.twin is not None
        self.twin.part()
        self.twin = None
        alone = DecodeJob(replace(self.options, jobs=1), self.stack)
        alone.out = cast(BinaryIO, _Rest(self.out, self.written))
        return alone.run()

    def _can_share(self) -> bool:
        """Whether what is to be done can be done by two processes."""
        options = self.options
        return options.jobs > 1 and options.count is None and self.writer is None and self.listing is None

    def _is_patient(self) -> bool:
        """Whether nobody waits for the first lines."""
        return not self.options.interface and all(map(os.path.isfile, self.sources))

    def _first_pass(self) -> None:
        self.sources = [self._spool() if source == "-" else source for source in self.sources]
        decoder = self._decoder(link_answers=True)
        for _ in chain(self._batches(decoder, say=False), decoder.finish()):
            pass
        self.answers = decoder.knowledge.answers

    def _spool(self) -> str:
        """Copy stdin to a file, to read it twice; give the file's path."""
        import shutil
        import tempfile

        file = self.stack.enter_context(tempfile.NamedTemporaryFile(prefix="pwire-"))  # noqa: SIM115
        shutil.copyfileobj(sys.stdin.buffer, file)
        file.flush()
        return file.name

    def _decoder(self, *, link_answers: bool = False, share: tuple[int, int] = (0, 1)) -> Decoder:
        return Decoder(
            max_frame_size=self.options.max_frame_size,
            join_chunks=self.join_chunks and not link_answers,
            link_answers=link_answers,
            tee=None if link_answers else self._tee(),
            share=share,
            new_session=Session if self.listing is None else Contents,
            on_end=None if link_answers else self._ended,
        )

    def _tee(self) -> Callable[[int, RawPacket], None] | None:
        if self.listing is not None:  # the first connection to end need not be the first to begin
            return lambda number, packet: self._note_origin(packet[0])
        return None if self.writer is None else self.writer.see

    def _ended(self, ending: Ending) -> None:
        """A connection has ended, or will not be followed any further."""
        self.summary.without_data.add(ending)
        if self.listing is not None:
            self.listing.add(ending)

    def _decode(self) -> None:
        """Decode and show, in both processes if there are two."""
        is_twin = self.twin is not None and self.twin.is_twin
        decoder = self._decoder(share=(int(is_twin), 2 if self.twin else 1))
        batches = self._batches(decoder, say=not is_twin)
        try:
            if self.listing is not None:
                self._list(decoder, batches, self.listing)
            elif self.twin is not None and self.render is not None:
                self._show_together(decoder, batches, self.twin)
            else:
                self._show(self._gathered(chain(batches, decoder.finish())))
        finally:
            self.summary.finish(decoder, self.budget.unopened)
        if self.twin is not None and is_twin:
            self.twin.send(self.summary)
        elif self.twin is not None:
            self.summary.merge(self.twin.receive())

    def _gathered(self, batches: Iterable[list[Event]]) -> Iterator[list[Event]]:
        """The events in larger batches, where nobody waits for the first ones."""
        enough = _GATHERED if self.options.count is None and self._is_patient() else 1
        gathered: list[Event] = []
        for events in batches:
            gathered += events
            if len(gathered) >= enough:
                yield gathered
                gathered = []
        yield gathered

    def _show(self, batches: Iterable[list[Event]]) -> None:
        left = self.options.count if self.options.count is not None else -1
        for events in batches:
            self._note_origin(events[0].time_ns if events else None)
            self.summary.add(events)
            chosen = self._chosen(events)
            self.summary.totals["chosen"] += len(chosen)
            if left >= 0:
                chosen = chosen[:left]
                left -= len(chosen)
            if self.render is not None and chosen:
                self.out.writelines(self.render(chosen))
            if self.writer is not None:
                for event in chosen:
                    self.writer.take(event)
            if left == 0:
                return

    def _list(self, decoder: Decoder, batches: Iterable[list[Event]], listing: "ConnectionLines") -> None:
        """Show connections as they end, and in the end, or when we are stopped, those that are still open."""
        try:
            for events in batches:
                self.summary.add(events)
                if listing.is_done:
                    return
        finally:
            for events in decoder.finish():
                self.summary.add(events)
            listing.flush()

    def _show_together(self, decoder: Decoder, batches: Iterable[list[Event]], other: twin.Twin) -> None:
        """Render the events of half of the connections, in step with the other process."""
        show = self.render
        assert show is not None
        counted: list[Event] = []

        def render(events: list[Event]) -> bytes:
            self._note_origin(sharing.first_ns)
            counted.extend(events)
            if len(counted) >= _GATHERED:
                self.summary.add(counted)
                counted.clear()
            chosen = self._chosen(events)
            self.summary.totals["chosen"] += len(chosen)
            return b"".join(show(chosen))

        def write(data: bytes) -> None:
            self.out.write(data)
            self.written += len(data)

        sharing = Sharing(decoder, other, render, None if other.is_twin else write)
        for _ in batches:
            pass  # what they hold comes to `render` in its turn
        sharing.finish()
        self.summary.add(counted)

    def _note_origin(self, time_ns: int | None) -> None:
        if self.origin.time_ns is None:
            self.origin.time_ns = time_ns

    def _chosen(self, events: list[Event]) -> list[Event]:
        """The events that pass all tests; after a first pass requests know their answers."""
        if self.answers is not None:
            for event in events:
                if isinstance(event, Frame) and event.number < len(self.answers):
                    event.answer = self.answers[event.number] or None
        for test in self.tests:
            events = [event for event in events if test(event)]
        return events

    def _batches(self, decoder: Decoder, *, say: bool) -> Iterator[list[Event]]:
        """The events of all sources; what is wrong with a source is said, and sets the exit code."""
        if self.options.interface:
            yield from self._live_batches(decoder, self.options.interface)
        sources = Sources(
            self.sources,
            self.stack,
            bar=console.is_terminal(sys.stderr) and not sys.stdout.isatty(),
            flush=self.out.flush,
            sizes=self.sizes,
        )
        try:
            yield from sources.read(decoder, say=say)
        finally:
            self.code = self.code or sources.code

    def _live_batches(self, decoder: Decoder, interface: str) -> Iterator[list[Event]]:
        options = self.options
        try:
            with open_interface(
                interface, options.capture_filter, options.buffer, before_wait=self.out.flush
            ) as self.live:
                yield from decoder.read_packets(self.live)
        except DamagedCapture as error:
            self.code = console.EXIT_DAMAGED
            self.out.flush()
            console.complain(str(error))
        except CaptureError as error:
            console.fail(str(error), console.EXIT_SOURCE)

    # -- after

    def _say_that_nothing_matched(self, looked_at: str) -> None:
        options = self.options
        chosen_by = {
            "--command": options.commands,
            "--connection": options.connections,
            "--topic": options.topics,
            "--time-range": options.time_range,
            "--filter": options.expression,
        }
        flags = ", ".join(flag for flag, value in chosen_by.items() if value)
        if flags and not options.quiet:
            said = f"{flags}: none of {looked_at} matched"
            if self.expression is not None and self.expression.failed == self.expression.tried > 0:
                said += "; none has what the expression compares (text with a number?)"
            console.complain(said)

    def _report(self) -> None:
        paint = console.Paint(console.use_colour(sys.stderr))
        if self.code == console.EXIT_SOURCE and self.summary.is_empty():
            return
        if self.live is not None:
            self.summary.dropped_packets = self.live.dropped
        for line in self.summary.lines(paint):
            sys.stderr.write(line + "\n")
        if self.listing is not None and not self.summary.packets:
            console.complain(
                "--connections: the source has no packets, only frames; nothing tells how they came"
            )
        elif self.listing is not None and not self.listing.chosen:
            self._say_that_nothing_matched(console.count_of(self.listing.seen, "connection"))
        if self.first_error is not None and not self.first_error.passed:
            console.complain(f"nothing wrong in {console.count_of(self.first_error.looked_at, 'frame')}")
        elif self.listing is None and not self.summary.totals["chosen"]:
            frames = self.summary.frames + self.summary.totals["partial"]
            self._say_that_nothing_matched(console.count_of(frames, "frame"))
        if self.writer is not None and not self.summary.packets:
            console.complain("--write: the source has no packets, only frames; nothing was written")
        elif self.writer is not None and self.writer.lost:
            console.complain(
                f"--write: {self.writer.lost} packets had passed too long ago and were not written"
            )
