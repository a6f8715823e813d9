"""`pwire stats`: statistics of a capture by command, connection, topic, producer, and so on."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal

from pulsarctl_wire.cli import completion, console
from pulsarctl_wire.cli.options import JOBS, OUTPUT, SOURCES, ReadOptions
from pulsarctl_wire.cli.signature import flag, group, option, several
from pulsarctl_wire.render.text import Paint, did_you_mean
from pulsarctl_wire.stats.rows import NAMES

if TYPE_CHECKING:
    from pulsarctl_wire.checks.finding import Finding
    from pulsarctl_wire.record import FindPacket
    from pulsarctl_wire.wire.frame import Event
    from pulsarctl_wire.wire.session.ending import EndedConnection

_BATCH_SIZE: Final = 64  # events that are counted together


@dataclass(frozen=True, kw_only=True)
class StatsOptions:
    """The command line of `stats`; an empty `by` means all kinds that occur."""

    sources: list[str] = SOURCES(default=list)
    output: Literal["table", "json"] = OUTPUT(default="table")
    by: list[str] = several(
        "--by WHAT",
        f"Group by {', '.join(NAMES)}; several with commas.",
        show_default="all that occur",
        autocompletion=completion.kinds,
    )
    top: int = option("--top N", "Rows per group, the largest first; 0: all.", default=10, min=0)
    no_doctor: bool = flag("--no-doctor", "Leave out the findings, which pwire doctor shows in full.")
    jobs: int | None = JOBS()
    read: ReadOptions = group(ReadOptions)

    @property
    def is_examined(self) -> bool:
        """Whether findings are shown: without `--by`, unless `--no-doctor` is given."""
        return not (self.no_doctor or self.by)


def stats(options: StatsOptions) -> int:
    """Show statistics of a capture by command, topic, producer, ...: rates, latencies, errors."""
    if not options.sources:
        console.fail("stats: name a SOURCE (a file, or - for stdin); see pwire stats --help")
    kinds = [kind.strip().lower() for text in options.by for kind in text.split(",")]
    for kind in kinds:
        if kind not in NAMES:
            hint = did_you_mean(kind, NAMES) or f"; use one of {', '.join(NAMES)}"
            console.fail(f"--by {kind}: unknown{hint}")
    from pulsarctl_wire.cli.capture.reading import find_captures

    options = replace(options, by=list(dict.fromkeys(kinds)), sources=find_captures(options.sources))
    with console.errors_reported(), ExitStack() as stack:
        return StatsJob(options, stack).run()


class StatsJob:
    """One run: counts the sources, and shows the result."""

    def __init__(self, options: StatsOptions, stack: ExitStack) -> None:
        from pulsarctl_wire.record import find_no_packet
        from pulsarctl_wire.stats.counting import Stats

        self.options = options
        self.stack = stack
        self.stats = Stats()
        self.counting = self.stopped = False
        self.code = 0
        self.find_findings: Callable[[], tuple[list[Any], FindPacket]] = lambda: ([], find_no_packet)
        self.findings: list[Finding] = []
        self.find_packet: FindPacket = find_no_packet

    def run(self) -> int:
        """Count and show; returns the exit code."""
        from pulsarctl_wire.capture.sources import collect_rarely

        collect_rarely()
        try:
            self._count()
            if self.code != console.EXIT_INTERRUPTED:
                self.findings, self.find_packet = self.find_findings()
        finally:
            if self.code == console.EXIT_INTERRUPTED:
                from pulsarctl_wire.pipeline.decoding.counting import stop_processes

                stop_processes()
            self.stack.close()  # removes the progress bar before the counts are shown
        if self.stats.all_connections or self.code != console.EXIT_SOURCE:
            self._show()
        return self.code

    def _count(self) -> None:
        """Count the sources, until Ctrl-C."""
        from pulsarctl_wire.cli.capture.pool import plan_inputs

        inputs = plan_inputs(self.options.sources, self.options.jobs, self.options.read.keylogs)
        handler = signal.signal(signal.SIGINT, self._interrupt)
        decoder, source, count = self._prepare_pool(inputs) if inputs else self._prepare_alone()
        try:
            count()
            self.code = source.code
        except KeyboardInterrupt:
            self.code = console.EXIT_INTERRUPTED
        finally:
            signal.signal(signal.SIGINT, handler)
        self.stats.finish(decoder)

    def _prepare_alone(self) -> tuple[Any, Any, Callable[[], object]]:
        """Return a `Decoder`, its sources (for the exit code), and a function that counts in this process."""
        from pulsarctl_wire.capture.sources import Decoder
        from pulsarctl_wire.cli.capture.reading import Sources

        reading = self.options.read.reading
        sources = Sources(self.options.sources, self.stack, bar=console.is_terminal(sys.stderr))
        if not self.options.is_examined:
            decoder = Decoder(reading, join_chunks=False, on_end=self.stats.add_ended_connection)
            return decoder, sources, lambda: self._add(chain(sources.read(decoder), decoder.finish()))
        from pulsarctl_wire.capture.numbers import PacketNumbers
        from pulsarctl_wire.checks.doctor import Doctor

        doctor = Doctor()

        def end(ending: EndedConnection) -> None:
            self.stats.add_ended_connection(ending)
            doctor.end_connection(ending)

        decoder = Decoder(reading, join_chunks=False, sort=True, new_state=doctor.new_state, on_end=end)
        decoder.numbers = PacketNumbers(several=len(self.options.sources) > 1)

        def count() -> None:
            self._add(sources.read(decoder))
            doctor.check_last_silences(decoder.last_ns)
            self._add(decoder.finish())
            doctor.finish()

        self.find_findings = lambda: (list(doctor.findings.values()), decoder.numbers.find)
        return decoder, sources, count

    def _prepare_pool(self, inputs: list[Any]) -> tuple[Any, Any, Callable[[], object]]:
        """Return a `CountJob`, the pool (for the exit code), and a function that counts in the pool."""
        from pulsarctl_wire.cli.capture.pool import Pool
        from pulsarctl_wire.pipeline.decoding.counting import CountJob
        from pulsarctl_wire.stats.counting import Stats

        reading = self.options.read.reading
        if self.options.is_examined:
            from pulsarctl_wire.cli.capture.examination import examine_beside

            wait = examine_beside(self.stack, self.options.sources, reading)

            def find_findings() -> tuple[list[Any], FindPacket]:
                examination = wait()
                return examination.findings, examination.packets.__getitem__

            self.find_findings = find_findings
        pool = Pool(inputs, self.options.jobs, self.stack, self._raise_if_stopped)
        count_job = CountJob(
            pool.inputs,
            Stats,
            max_frame_size=reading.max_frame_size,
            keep_duplicates=reading.keep_duplicates,
            split_size=pool.split_size,
        )
        self.stats = count_job.counts

        def count() -> None:
            self.counting = True  # defer an interrupt until a split is counted
            pool.count(count_job)

        return count_job, pool, count

    def _raise_if_stopped(self) -> None:
        if self.stopped:
            raise KeyboardInterrupt

    def _interrupt(self, *_: object) -> None:
        """Stop at Ctrl-C, but not in the middle of counting a batch."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # ignore further ones
        self.stopped = True
        if not self.counting:
            raise KeyboardInterrupt

    def _add(self, batches: Iterable[list[Event]]) -> None:
        batch: list[Event] = []
        try:
            for events in batches:
                batch += events
                if len(batch) >= _BATCH_SIZE:
                    self._add_batch(batch)
                    batch = []
        finally:
            self._add_batch(batch)

    def _add_batch(self, events: list[Event]) -> None:
        self.counting = True
        self.stats.add(events)
        self.counting = False
        events.clear()
        self._raise_if_stopped()

    # -- after

    def _show(self) -> None:
        from pulsarctl_wire.checks.folding import fold
        from pulsarctl_wire.render.findings import FindingText, finding_record, limit_findings
        from pulsarctl_wire.render.line import TimeFormatter
        from pulsarctl_wire.stats.report import records, total_record

        total, findings = total_record(self.stats), fold(self.findings)
        kinds = self.options.by or [kind for kind in NAMES if self.stats.rows[kind]]
        tables = {kind: records(self.stats, kind, self.options.top) for kind in kinds}
        if self.options.output == "json":
            from pulsarctl_wire.render.jsonl import json_line

            records_found = (finding_record(finding, self.find_packet) for finding in findings)
            finding_records = [{"by": "finding", **record} for record in records_found]
            out = b"".join(map(json_line, [total, *chain.from_iterable(tables.values()), *finding_records]))
        else:
            from pulsarctl_wire.render.stats_page import page

            sizes = {kind: sum(1 for key in self.stats.rows[kind] if key) for kind in kinds}
            text = page(
                total, tables, sizes, console.terminal_width(sys.stdout), console.has_colour(sys.stdout)
            )
            paint, width = Paint(console.has_colour(sys.stdout)), console.terminal_width(sys.stdout)
            format_finding = FindingText(paint, TimeFormatter(), width)
            top, note = limit_findings(findings)
            text += "".join(f"\n{format_finding(finding, {})}" for finding in top) + (note and f"\n{note}")
            out = text.encode("utf-8", "backslashreplace")
        sys.stdout.buffer.write(out)
        sys.stdout.buffer.flush()
