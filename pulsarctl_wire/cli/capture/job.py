"""Runs `pwire decode`: makes tests, a renderer and a writer from the options, then decodes the sources."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Final

from pulsarctl_wire.capture.files import RawPacket
from pulsarctl_wire.capture.live import Live
from pulsarctl_wire.capture.numbers import PacketNumbers
from pulsarctl_wire.capture.private_keys import read_private_keys
from pulsarctl_wire.capture.sources import Decoder, collect_rarely
from pulsarctl_wire.capture.writer import EventWriter
from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.capture import select
from pulsarctl_wire.cli.capture.comments import Commenter, describe_decode, describe_findings
from pulsarctl_wire.cli.capture.decode_options import DecodeOptions
from pulsarctl_wire.cli.capture.interface import open_interface
from pulsarctl_wire.cli.capture.reading import Sources, spool_stdin
from pulsarctl_wire.cli.capture.summary import Summary
from pulsarctl_wire.cli.findings import summarize
from pulsarctl_wire.cli.options import schema_of
from pulsarctl_wire.errors import CaptureError, DamagedCapture, FilterError
from pulsarctl_wire.record import Record, Recorder
from pulsarctl_wire.record.connections import CONNECTION_NAMES, connection_record
from pulsarctl_wire.render.events import Render
from pulsarctl_wire.render.line import TimeFormatter
from pulsarctl_wire.render.text import Origin, Paint, count_of
from pulsarctl_wire.wire.frame import Event, Frame
from pulsarctl_wire.wire.payload import Budget
from pulsarctl_wire.wire.session.ending import Contents, EndedConnection
from pulsarctl_wire.wire.session.exchanges import ExchangeState
from pulsarctl_wire.wire.session.state import State, TopicState

MAX_WAITING_LINES: Final = 65_536
"""Maximum number of lines that wait for earlier connections, which are still open."""

_BATCH_SIZE: Final = 64  # events that are counted and shown together


@dataclass
class ConnectionLines:
    """Writes the connections that pass all `tests`, in the order of their first packets.

    A line waits until all earlier connections have ended; if more than `max_waiting` lines wait, all are
    written. `count` more are to be written; -1: all. `total` counts connections, `matches` those that pass.
    """

    render: Callable[[EndedConnection], bytes]
    tests: list[Callable[[Any], bool]]
    write: Callable[[bytes], object]
    _: KW_ONLY
    count: int
    max_waiting: int = MAX_WAITING_LINES
    total: int = field(default=0, init=False)
    matches: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._waiting: dict[int, bytes] = {}
        self._next = 0

    @property
    def is_done(self) -> bool:
        """Whether no more lines are to be written."""
        return self.count == 0

    def add(self, ending: EndedConnection) -> None:
        """Add a connection that has ended."""
        index = ending.connection.index
        is_match = all(test(ending) for test in self.tests)
        self.total += 1
        self.matches += is_match
        line = self.render(ending) if is_match else b""
        if index < self._next:
            self._put(line)  # `flush` has already written later ones
            return
        self._waiting[index] = line
        while self._next in self._waiting:
            self._put(self._waiting.pop(self._next))
            self._next += 1
        if len(self._waiting) > self.max_waiting:
            self.flush()

    def flush(self) -> None:
        """Write all waiting lines."""
        for index in sorted(self._waiting):
            self._put(self._waiting[index])
            self._next = max(self._next, index + 1)
        self._waiting.clear()

    def _put(self, line: bytes) -> None:
        if line and self.count:
            self.count -= 1
            self.write(line)


class DecodeJob:
    """One run. The constructor raises FilterError for an invalid selection; `run` does the rest."""

    def __init__(self, options: DecodeOptions, stack: ExitStack) -> None:
        self.options = options
        self.stack = stack
        self.sources = options.sources
        self.out = sys.stdout.buffer
        self.origin = Origin()
        self.clock = TimeFormatter(options.display.time_format, self.origin)
        self.summary = Summary()
        self.answers: Any = None  # of the first pass: the number of each frame's answer, or 0
        self.findings: dict[int, list[str]] = {}  # ids of rules by frame number
        self.verdict = ""  # of the doctor
        self.live: Live | None = None
        self.code = 0
        self.budget = Budget(options.payload_ratio or Budget.RATIO)
        self.first_pass: Decoder | None = None
        self.numbers = PacketNumbers(several=len(options.sources) > 1)
        self.keys = read_private_keys(options.display.private_keys)
        recorder = Recorder(
            show_secrets=options.display.show_secrets,
            schema=schema_of(options.display.schema),
            answers=options.two_pass,
            budget=self.budget,
            find_packet=self.numbers.find,
            keys=self.keys,
        )
        text = options.selection.expression
        self.expression = None if text is None else self._make_expression(text, recorder)
        self.first_error = select.FirstError(recorder) if options.first_error else None
        self.tests = self._make_tests()
        frames_shown = not (options.quiet or options.list_connections)
        self.render: Render | None = None
        if frames_shown:
            prefix = None if self.first_error is None else self.first_error.prefix
            self.render = console.make_renderer(sys.stdout, options.output, recorder, self.clock, prefix)
        self.listing = self._make_listing() if options.list_connections else None
        self.comment = Commenter(self.clock, show_secrets=options.display.show_secrets)
        self.comments: dict[int, list[str]] = {}  # on findings, by packet
        self.writer = None if options.write is None else self._make_writer(options.write)
        # joining keeps chunks in memory, so join only if whole messages are tested or shown
        self.join_chunks = not options.list_connections and (
            bool(text or options.first_error) or (frames_shown and options.output in ("json", "tree"))
        )

    # -- before

    def _make_expression(self, text: str, recorder: Recorder) -> select.Expression:
        if self.options.list_connections:
            return select.Expression(text, self._make_connection_record, names=CONNECTION_NAMES)
        return select.Expression(text, recorder)

    def _make_connection_record(self, ending: EndedConnection) -> Record:
        return connection_record(ending, self.numbers.find)

    def _make_listing(self) -> ConnectionLines:
        options, render = self.options, self._make_connection_renderer()
        return ConnectionLines(
            lambda ending: render(self._make_connection_record(ending)),
            self.tests,
            (lambda line: None) if options.quiet else self.out.write,
            count=-1 if options.count is None else options.count,
            max_waiting=MAX_WAITING_LINES if self._may_delay_output() else 0,
        )

    def _make_connection_renderer(self) -> Callable[[dict[str, Any]], bytes]:
        if self.options.output == "json":
            from pulsarctl_wire.render.jsonl import json_line

            return json_line
        from pulsarctl_wire.render.connections import connection_line

        paint = Paint(console.has_colour(sys.stdout))

        def line(record: dict[str, Any]) -> bytes:
            text = connection_line(record, paint, self.clock, console.terminal_width(sys.stdout))
            return f"{text}\n".encode("utf-8", "backslashreplace")

        return line

    def _make_tests(self) -> list[select.Test]:
        """Make tests of the selection options, the cheap ones first."""
        options = self.options
        tests = select.tests(options.selection)
        if options.time_range:
            local = options.display.time_format == "local"
            tests.append(select.by_time(options.time_range, self.origin, local=local))
        if self.expression is not None:
            tests.append(self.expression)
        if self.first_error is not None:
            tests.append(self.first_error)
        return tests

    def _make_writer(self, path: str) -> EventWriter:
        if path == "-":
            raise FilterError("--write -: stdout shows the frames; name a file")
        options = self.options
        keys = [*options.read.keylogs, *options.display.private_keys]
        console.refuse_source("--write", path, [*self.sources, *keys])
        try:
            stream = self.stack.enter_context(open(path, "ab"))  # noqa: SIM115
        except OSError as error:
            console.fail(f"--write {path}: {error.strerror}", console.EXIT_OUTPUT)
        writer = EventWriter(stream, describe_decode(self.options), self.comments)
        self.stack.callback(writer.close)
        return writer

    # -- the run

    def run(self) -> int:
        """Decode; returns the exit code."""
        collect_rarely()
        try:
            if self.options.two_pass or self.options.doctor:
                self._run_first_pass()
            inputs = self._plan_inputs()
            if inputs:
                self._count(inputs)
            else:
                self._decode()
            self.out.flush()
        except KeyboardInterrupt:
            self.code = 0 if self.options.interface else console.EXIT_INTERRUPTED
            self.out.flush()
        self._report()
        return self.code

    def _plan_inputs(self) -> list[Any]:
        """Return the inputs that several processes can share: none unless events are only counted."""
        options = self.options
        has_viewers = self.tests or self.listing or self.writer or self.render or options.two_pass
        has_viewers = has_viewers or options.doctor
        if has_viewers or options.interface or options.count is not None:
            return []
        from pulsarctl_wire.cli.capture.pool import plan_inputs

        return plan_inputs(self.sources, options.jobs, options.read.keylogs)

    def _count(self, inputs: list[Any]) -> None:
        """Count in several processes."""
        from pulsarctl_wire.cli.capture.pool import Pool
        from pulsarctl_wire.pipeline.decoding.counting import CountJob

        options = self.options
        pool = Pool(inputs, options.jobs, self.stack)
        counting = CountJob(
            pool.inputs,
            Summary,
            max_frame_size=options.read.max_frame_size,
            keep_duplicates=options.read.keep_duplicates,
            split_size=pool.split_size,
        )
        self.summary = counting.counts
        try:
            pool.count(counting)
        finally:
            self.code = pool.code
            self.summary.finish(counting, 0)
            self.summary.totals["chosen"] = sum(self.summary.commands.values())

    def _may_delay_output(self) -> bool:
        """Return whether all sources are files: then output may be delayed to write more at a time."""
        return not self.options.interface and all(map(os.path.isfile, self.sources))

    def _run_first_pass(self) -> None:
        self.sources = [spool_stdin(self.stack) if source == "-" else source for source in self.sources]
        doctor = self.options.checks.make_doctor() if self.options.doctor else None
        decoder = Decoder(
            self.options.read.reading,
            join_chunks=False,
            link_answers=self.options.two_pass,
            sort=self.options.doctor,
            new_state=ExchangeState if doctor is None else doctor.new_state,
            on_end=None if doctor is None else doctor.end_connection,
        )
        for _ in self._batches(decoder, say=False):
            pass
        self.first_pass = decoder
        if doctor is None:
            for _ in decoder.finish():
                pass
        else:
            doctor.conclude(decoder.last_ns, decoder.finish())
            self.findings = doctor.map_frames_to_rules()
            self.comments |= describe_findings(doctor.findings.values())
            self.verdict = summarize(doctor)
        self.answers = decoder.knowledge.answers

    def _make_tee(self) -> Callable[[int, RawPacket], None] | None:
        if self.listing is not None:  # the first connection to end may not be the first to begin
            return lambda number, packet: self._note_origin(packet[0])
        return None if self.writer is None else self.writer.see

    def _end(self, ending: EndedConnection) -> None:
        """Count a connection that has ended, or is not followed any further."""
        self.summary.add_ended_connection(ending)
        if self.listing is not None:
            self.listing.add(ending)

    def _choose_state(self) -> type[State]:
        """Return the class that follows each connection: the cheapest one that suffices."""
        if self.listing is not None:
            return Contents
        viewers = self.render, self.expression, self.first_error, self.writer
        if any(viewer is not None for viewer in viewers) or self.options.two_pass:
            return ExchangeState
        return TopicState if self.options.selection.topics else State

    def _decode(self) -> None:
        """Decode and show."""
        make = partial(Decoder, self.options.read.reading)
        decoder = (make if self.first_pass is None else self.first_pass.repeat)(
            join_chunks=self.join_chunks,
            tee=self._make_tee(),
            sort=self.options.doctor,
            new_state=self._choose_state(),
            on_end=self._end,
        )
        if self.writer is not None:
            self.writer.secrets = decoder.secrets
        decoder.numbers = self.numbers
        batches = self._batches(decoder)
        try:
            if self.listing is not None:
                self._list(decoder, batches, self.listing)
            else:
                self._show(self._gather(chain(batches, decoder.finish())))
        finally:
            self.summary.finish(decoder, self.budget.unopened)

    def _gather(self, batches: Iterable[list[Event]]) -> Iterator[list[Event]]:
        """Join batches of events into larger ones where output may be delayed."""
        min_size = _BATCH_SIZE if self.options.count is None and self._may_delay_output() else 1
        batch: list[Event] = []
        for events in batches:
            batch += events
            if len(batch) >= min_size:
                yield batch
                batch = []
        yield batch

    def _show(self, batches: Iterable[list[Event]]) -> None:
        remaining = self.options.count if self.options.count is not None else -1
        for events in batches:
            self._note_origin(events[0].time_ns if events else None)
            self.summary.add(events)
            matches = self._select(events)
            self.summary.totals["chosen"] += len(matches)
            if remaining >= 0:
                matches = matches[:remaining]
                remaining -= len(matches)
            if self.render is not None and matches:
                self.out.writelines(self.render(matches))
            if self.writer is not None:
                for event in matches:
                    self.writer.take(event, *self.comment(event))
            if remaining == 0:
                return

    def _list(self, decoder: Decoder, batches: Iterable[list[Event]], listing: ConnectionLines) -> None:
        """Show connections as they end; at the end, or when interrupted, also those that are still open."""
        try:
            for events in batches:
                self.summary.add(events)
                if listing.is_done:
                    return
        finally:
            for events in decoder.finish():
                self.summary.add(events)
            listing.flush()

    def _note_origin(self, time_ns: int | None) -> None:
        if self.origin.time_ns is None:
            self.origin.time_ns = time_ns

    def _select(self, events: list[Event]) -> list[Event]:
        """Return the events that pass all tests, with the answers and findings of the first pass."""
        if self.answers is not None:
            for event in events:
                if isinstance(event, Frame) and event.number < len(self.answers):
                    event.answer = self.answers[event.number] or None
        if self.findings:
            for event in events:
                if isinstance(event, Frame):
                    event.findings = self.findings.get(event.number, ())
        for test in self.tests:
            events = [event for event in events if test(event)]
        return events

    def _batches(self, decoder: Decoder, *, say: bool = True) -> Iterator[list[Event]]:
        """Read all sources. Their errors set the exit code, and are printed if `say`."""
        if self.options.interface:
            yield from self._live_batches(decoder, self.options.interface)
            return
        sources = Sources(
            self.sources,
            self.stack,
            bar=console.is_terminal(sys.stderr) and not sys.stdout.isatty(),
            flush=self.out.flush,
        )
        try:
            yield from sources.read(decoder, say=say)
        finally:
            self.code = self.code or sources.code

    def _live_batches(self, decoder: Decoder, interface: str) -> Iterator[list[Event]]:
        options = self.options
        try:
            with open_interface(
                interface, options.capture_filter, options.buffer_bytes, before_wait=self.out.flush
            ) as self.live:
                decoder.secrets.is_live = True
                yield from decoder.read_packets(self.live)
        except DamagedCapture as error:
            self.code = console.EXIT_DAMAGED
            self.out.flush()
            console.warn(str(error))
        except CaptureError as error:
            console.fail(str(error), console.EXIT_SOURCE)

    # -- after

    def _say_nothing_matched(self, candidates: str) -> None:
        options, selection = self.options, self.options.selection
        chosen_by = {
            "--command": selection.commands,
            "--connection": selection.connections,
            "--topic": selection.topics,
            "--time-range": options.time_range,
            "--filter": selection.expression,
        }
        flags = ", ".join(flag for flag, value in chosen_by.items() if value)
        if flags and not options.quiet:
            text = f"{flags}: none of {candidates} matched"
            if self.expression is not None and self.expression.failed == self.expression.tried > 0:
                text += "; the expression failed on all of them (does it compare text with a number?)"
            console.warn(text)

    def _report(self) -> None:
        paint = Paint(console.has_colour(sys.stderr))
        if self.code == console.EXIT_SOURCE and self.summary.is_empty():
            return
        if self.live is not None:
            self.summary.dropped_packets = self.live.dropped
        for line in self.summary.lines(paint):
            sys.stderr.write(line + "\n")
        if self.verdict:
            console.warn(self.verdict)
        for problem in self.keys.problems if self.keys is not None else ():
            console.warn(f"--private-key: some payloads stay encrypted: {problem}")
        if self.listing is not None and not (self.summary.packets or self.listing.total):
            console.warn(
                "--connections: the source has no packets, only frames, so its connections are unknown"
            )
        elif self.listing is not None and not self.listing.matches:
            self._say_nothing_matched(count_of(self.listing.total, "connection"))
        if self.first_error is not None and not self.first_error.passed:
            console.warn(f"no errors in {count_of(self.first_error.looked_at, 'frame')}")
        elif self.listing is None and not self.summary.totals["chosen"]:
            frames = self.summary.frames + self.summary.totals["partial"]
            self._say_nothing_matched(count_of(frames, "frame"))
        if self.writer is not None and not self.summary.packets:
            console.warn("--write: the source has no packets, only frames; nothing was written")
        elif self.writer is not None and self.writer.lost:
            console.warn(f"--write: {self.writer.lost} packets were no longer in memory and were not written")
        if self.writer is not None and self.writer.uncommented:
            count = count_of(self.writer.uncommented, "frame")
            console.warn(f"--write: {count} without comment, as the packet had been written before")
