"""What the screen looks at: a store, a filter's matches, findings, counts. All of it is read from files."""

import time
from array import array
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from pulsarctl_wire.errors import StoreError
from pulsarctl_wire.record import Recorder
from pulsarctl_wire.render.line import LineRenderer, TimeFormatter
from pulsarctl_wire.render.text import Origin, Paint, human_bytes
from pulsarctl_wire.render.tree import TreeRenderer
from pulsarctl_wire.store.directory import ENDED, read_json
from pulsarctl_wire.store.reader import Dropped, StoreReader
from pulsarctl_wire.wire.frame import Event, Frame, Malformed
from pulsarctl_wire.wire.framing.redaction import event_spans, hex_digits

_POSITION_SIZE: Final = array("I").itemsize
_MAX_MESSAGES: Final = 1_000  # lines of the log
_RATE_SECONDS: Final = 3.0  # of the past, from which rates are calculated


class Jobs(Protocol):
    """What starts filters, and ends processes with the screen."""

    def filter(self, expression: str) -> str:
        """Start a filter in place of an earlier one; return the name of its file."""

    def stop_filter(self) -> None:
        """Stop the filter."""

    def adopt(self, process: int) -> None:
        """End the process with this id when the screen ends, for whatever reason; 0: none any more."""


@dataclass(frozen=True)
class Intercept:
    """What a screen needs to change live traffic.

    `ask` sends a request to the control socket, and raises WireError. `describe` turns a frame into a text to
    edit, `parse` turns such a text into a frame, and raises LocalProtocolError. `refuse` returns a frame that
    refuses a request. `catalogue` has all faults: name, what it does, and its parameters with default and
    help.
    """

    ask: Callable[[dict[str, Any]], dict[str, Any]]
    describe: Callable[[bytes], str]
    parse: Callable[[str], bytes]
    refuse: Callable[[Frame], bytes]
    catalogue: list[tuple[str, str, list[tuple[str, str, str]]]]


@dataclass(frozen=True)
class Session:
    """What a screen is opened with.

    `check` raises FilterError for an expression that is wrong. `names` are the fields of expressions.
    `explain` returns lines about a rule of the doctor. `is_error` says whether an event is damage, or says
    that something failed. `export` writes events to a file, and returns what it did; `replay` sends them to
    the broker of a URL, and returns lines about that. `link` is the source to which links to frames point;
    "": frames have no links.
    """

    directory: Path
    title: str
    jobs: Jobs
    recorder: Recorder
    time_format: str
    check: Callable[[str], object]
    explain: Callable[[str], list[str]]
    names: list[str]
    is_error: Callable[[Event], bool]
    export: Callable[[str, Iterable[Event]], str]
    replay: Callable[[str, Iterable[Event]], Awaitable[list[str]]]
    link: str = ""
    colour: bool = True
    first: int | None = None
    """The number of the frame to go to."""
    expression: str = ""
    """The filter to begin with."""
    live: bool = False
    intercept: Intercept | None = None


class Matches:
    """The positions of the events that a filter lets through, from the file that a job writes.

    `scanned` is how many events the filter has looked at, `count` how many of them match. `error` says why it
    cannot run, or is "".
    """

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = name
        self.count = self.scanned = 0
        self.error = ""
        self.is_done = False

    def refresh(self) -> None:
        """Read how far the filter has come."""
        state = read_json(self._directory, self._name, {})
        self.scanned, self.is_done = state.get("scanned", 0), state.get("is_done", False)
        self.error = state.get("error", "")
        try:
            self.count = (self._directory / self._name).stat().st_size // _POSITION_SIZE
        except OSError:
            self.count = 0

    def position(self, row: int) -> int:
        """Return the position of a match."""
        with open(self._directory / self._name, "rb") as stream:
            stream.seek(row * _POSITION_SIZE)
            values = array("I", stream.read(_POSITION_SIZE))
        return values[0]

    def row(self, position: int) -> int:
        """Return the row of the first match at or after a position; `count` if there is none."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            if self.position(middle) < position:
                low = middle + 1
            else:
                high = middle
        return low


class Rates:
    """Frames and bytes per second of the last seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int, int]] = deque()

    def add(self, now: float, frames: int, size: int) -> None:
        """Note how many frames and bytes there are in all at `now`, in seconds."""
        samples = self._samples
        samples.append((now, frames, size))
        while len(samples) > 1 and samples[1][0] <= now - _RATE_SECONDS:
            samples.popleft()

    @property
    def text(self) -> str:
        """Both rates; "" before there is one."""
        if len(self._samples) < 2:
            return ""
        (start, frames, size), (end, frames_now, size_now) = self._samples[0], self._samples[-1]
        seconds = max(end - start, _RATE_SECONDS / 2)  # the first rates, of too short a time, would jump
        rate, byte_rate = (frames_now - frames) / seconds, (size_now - size) / seconds
        return f"{rate:,.0f} frames/s {human_bytes(int(byte_rate))}/s"


class Model:
    """The data that the screen shows. A row is an event that the filter lets through; rows count from 0."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.reader = StoreReader(session.directory)
        self.matches: Matches | None = None
        self.expression = ""
        self.reading: dict[str, Any] = {}
        self.findings: dict[str, Any] = {}
        self.counts: dict[str, Any] = {}
        """The contents of reading.json, findings.json and counts.json, which jobs write."""
        self.rules_by_frame: dict[str, list[str]] = {}
        """Rules of the doctor, by the numbers of the frames that prove findings."""
        self.problem = ""
        """Why the files cannot be read; "" if they can."""
        self.messages: list[str] = []
        """The log: what the screen and the processes beside it have said."""
        self.ended: int | None = None
        """The exit code of the server whose traffic is shown; None: it runs."""
        self.rates = Rates()
        self._messages_read = 0
        self._written_at: dict[str, int] = {}  # times of files, in ns
        self._origin = Origin()
        paint, recorder = Paint(session.colour), session.recorder
        open_entry = recorder.open if recorder.keys is not None else None
        self.paint = paint
        self.clock = TimeFormatter(session.time_format, self._origin)
        self.line = LineRenderer(paint, self.clock, show_secrets=recorder.show_secrets, open_entry=open_entry)
        self.plain_line = LineRenderer(
            Paint(False), self.clock, show_secrets=recorder.show_secrets, open_entry=open_entry
        )
        self.tree = TreeRenderer(self.line, recorder, paint, show_secrets=recorder.show_secrets)

    def refresh(self) -> None:
        """Look for what is new."""
        directory = self.session.directory
        try:
            self.reader.refresh()
            if not self.reading.get("is_done"):
                self.reading = read_json(directory, "reading", {})
            if not self.findings.get("is_done"):
                self.findings = self._read_changed("findings", self.findings)
                self.rules_by_frame = self.findings.get("frames", {})
                self.counts = self._read_changed("counts", self.counts)
            if self.matches is not None and not self.matches.is_done:
                self.matches.refresh()
            if self.session.live:
                self.ended = read_json(directory, ENDED, {}).get("code")
                size = sum(row["size"] for row in self.counts.get("connections", []))
                self.rates.add(time.monotonic(), self.reader.count, size)
            if self._origin.time_ns is None:
                _, events = next(self.reader.batches(), (0, []))
                self._origin.time_ns = events[0].time_ns if events else None
        except StoreError as error:
            self.problem = str(error)
        self._read_messages()

    def _read_changed(self, name: str, value: dict[str, Any]) -> dict[str, Any]:
        """Return the contents of a file, or `value`, those read last, if they have not changed."""
        try:
            written_at = (self.session.directory / f"{name}.json").stat().st_mtime_ns
        except OSError:
            return value
        if self._written_at.get(name) == written_at:
            return value
        self._written_at[name] = written_at
        contents: dict[str, Any] = read_json(self.session.directory, name, {})
        return value if contents == value else contents

    def _read_messages(self) -> None:
        try:
            with open(self.session.directory / "messages", encoding="utf-8", errors="replace") as stream:
                stream.seek(self._messages_read)
                self.messages += [line.removeprefix("pwire: ") for line in stream.read().splitlines()]
                self._messages_read = stream.tell()
        except OSError:
            return
        del self.messages[:-_MAX_MESSAGES]

    def filter(self, expression: str) -> None:
        """Show only events for which an expression holds; "" shows all. Raises FilterError."""
        if expression:
            self.session.check(expression)
            self.matches = Matches(self.session.directory, self.session.jobs.filter(expression))
        else:
            self.session.jobs.stop_filter()
            self.matches = None
        self.expression = expression

    # -- rows

    @property
    def row_count(self) -> int:
        """The number of rows so far."""
        return self.reader.count if self.matches is None else self.matches.count

    def position(self, row: int) -> int:
        """Return the position of a row's event."""
        return row if self.matches is None else self.matches.position(row)

    def row_of(self, position: int) -> int:
        """Return the row of the event at a position, or of the next one that is shown.

        `row_count` if the filter lets no event through from there on.
        """
        return position if self.matches is None else self.matches.row(position)

    def _event(self, row: int) -> Event | None:
        """Return the event of a row as it is listed: with its findings, without its answer.

        None if there is no such row, or the event is not kept any more.
        """
        if not 0 <= row < self.row_count:
            return None
        try:
            event = self.reader.event(self.position(row))
        except Dropped:
            return None
        if isinstance(event, Frame):
            event.findings = self.rules_by_frame.get(str(event.number), ())
            event.answer = None  # a line says which request it answers; both would be too much
        return event

    def event(self, row: int) -> Event | None:
        """Return the event of a row, with its findings and its answer; None if it is not there."""
        event = self._event(row)
        if isinstance(event, Frame):
            event.answer = self.reader.answer_of(event.number)
        return event

    def row_line(self, row: int, width: int) -> str:
        """Return the line of a row."""
        event = self._event(row)
        if event is None:
            return self.paint("dim", "     - this frame is not kept any more")
        return self.line(event, width)

    def hex_of(self, event: Frame | Malformed) -> str:
        """Return the bytes of an event as hex digits; credentials are masked."""
        return hex_digits(event.raw, [] if self.session.recorder.show_secrets else event_spans(event))

    def walk(self, row: int, step: int) -> Iterator[tuple[int, Event]]:
        """Yield the rows after `row`, or (step -1) before it, with their events as listed."""
        row += step
        while 0 <= row < self.row_count:
            event = self._event(row)
            if event is not None:
                yield row, event
            row += step

    def is_error(self, event: Event) -> bool:
        """Return whether an event is damage, or says that something failed."""
        return self.session.is_error(event)

    @property
    def is_reading(self) -> bool:
        """Whether more events may come."""
        return self.session.live or not self.reading.get("is_done", False)
