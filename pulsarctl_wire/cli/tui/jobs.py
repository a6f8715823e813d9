"""What runs beside the screen, each in a process of its own: reading, examining and filtering.

    Reading      sources -> events of the store; numbers.json, of packets; reading.json, at the end
    Examination  the same sources again -> findings.json, counts.json
    Filtering    events of the store -> match.PROCESS.N, an array of positions; match.PROCESS.N.json, progress

The screen looks at the files that these processes write.
"""

import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

from pulsarctl_wire.capture.numbers import PacketNumbers
from pulsarctl_wire.capture.sources import Decoder, collect_rarely
from pulsarctl_wire.cli.capture import select
from pulsarctl_wire.cli.capture.reading import Sources
from pulsarctl_wire.cli.tui.job import Job, write_numbers
from pulsarctl_wire.cli.tui.sink import write_state
from pulsarctl_wire.errors import FilterError
from pulsarctl_wire.stats.overview import Overview
from pulsarctl_wire.store.directory import read_json, write_json
from pulsarctl_wire.store.reader import StoreReader
from pulsarctl_wire.store.writer import StoreWriter
from pulsarctl_wire.wire.frame import Event, Frame

POLL_SECONDS: Final = 0.2
"""Seconds between two looks at files that are still written, and between two times that they are written."""

_MAX_STRETCHES: Final = 1_000  # of packets: more are written only at the end, as that takes a while
_EXAMINED_EVERY: Final = 1.0  # seconds between two times that findings and counts are written


class _Timer:
    """Says when it is time again."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._due = 0.0

    def is_due(self) -> bool:
        """Return whether it is time; if so, it is time again after some seconds."""
        now = time.monotonic()
        if now < self._due:
            return False
        self._due = now + self._seconds
        return True


def read(job: Job) -> None:
    """Read the sources into the store."""
    collect_rarely()
    writer = StoreWriter(job.directory)
    decoder = Decoder(job.read.reading)
    decoder.numbers = PacketNumbers(several=len(job.sources) > 1)
    timer = _Timer(POLL_SECONDS)
    with ExitStack() as stack:
        sources = Sources(job.sources, stack, bar=False)
        for events in chain(sources.read(decoder), decoder.finish()):
            writer.add(events)
            if timer.is_due():
                writer.flush()
                if len(stretches := decoder.numbers.list_stretches()) < _MAX_STRETCHES:
                    write_numbers(job.directory, decoder.packets, stretches)
        writer.finish()
        write_numbers(job.directory, decoder.packets, decoder.numbers.list_stretches())
        has_secrets = decoder.secrets.keylog.secrets > 0
        state = {"is_done": True, "code": sources.code, "has_secrets": has_secrets}
        write_json(job.directory, "reading", state)


def examine(job: Job) -> None:
    """Read the sources again, for findings and counts."""
    collect_rarely(every=1_000_000)
    doctor = job.checks.make_doctor()
    overview = Overview(doctor.states)
    numbers = PacketNumbers(several=len(job.sources) > 1)
    decoder = Decoder(
        job.read.reading,
        join_chunks=False,
        sort=True,
        new_state=doctor.new_state,
        on_end=doctor.end_connection,
    )
    decoder.numbers = numbers
    timer = _Timer(_EXAMINED_EVERY)

    write = partial(write_state, job.directory, doctor, overview, find_packet=numbers.find)
    with ExitStack() as stack:
        for events in Sources(job.sources, stack, bar=False).read(decoder, say=False):
            overview.add(events)
            if timer.is_due():
                write(is_done=False)
        doctor.conclude(decoder.last_ns, decoder.finish())
    write(is_done=True)


def filter_events(job: Job, name: str, expression: str) -> None:
    """Note the positions of all events for which an expression holds, also of those to come."""
    collect_rarely()
    rules: dict[str, list[str]] = {}
    try:
        compiled = select.Expression(expression, job.make_recorder())
    except FilterError as error:
        write_json(job.directory, name, {"error": str(error), "is_done": True})
        return
    test = _make_test(job, compiled, rules)
    scanned = matched = 0
    timer = _Timer(POLL_SECONDS)

    def read_findings() -> bool:
        findings = read_json(job.directory, "findings", {})
        rules.update(findings.get("frames", {}))
        return bool(findings.get("is_done"))

    def write_progress(*, is_done: bool) -> None:
        write_json(job.directory, name, {"scanned": scanned, "matched": matched, "is_done": is_done})

    if needs_findings := compiled.has("findings"):
        while not read_findings() and job.sources:  # in live traffic, there are always more to come
            time.sleep(POLL_SECONDS)
    with open(job.directory / name, "wb", buffering=0) as stream:
        for position, events in _follow(job.directory):
            matches = [position + index for index, event in enumerate(events) if test(event)]
            stream.write(array("I", matches).tobytes())
            scanned, matched = position + len(events), matched + len(matches)
            if timer.is_due():
                write_progress(is_done=False)
                if needs_findings:
                    read_findings()
        write_progress(is_done=True)


def _make_test(
    job: Job, expression: select.Expression, rules: dict[str, list[str]]
) -> Callable[[Event], bool]:
    """Return the test of a filter; `rules` are those of the findings that a frame proves, by its number."""
    reader = StoreReader(job.directory)
    needs_answers = expression.has("answer")

    def test(event: Event) -> bool:
        if isinstance(event, Frame):
            if rules:
                event.findings = rules.get(str(event.number), ())
            if needs_answers:
                event.answer = reader.answer_of(event.number)
        return expression(event)

    return test


def _follow(directory: Path) -> Iterator[tuple[int, list[Event]]]:
    """Yield batches of a store's events until it is complete, each with the position of its first event."""
    reader, position = StoreReader(directory), 0
    while True:
        is_done = read_json(directory, "reading", {}).get("is_done", False)
        reader.refresh()
        for start, events in reader.batches(position):
            yield start, events
            position = start + len(events)
        if is_done:
            return
        time.sleep(POLL_SECONDS)
