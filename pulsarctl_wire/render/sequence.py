"""The rows of a sequence diagram, made from events.

    events -> Diagram -> rows (sequence_rows.py), in the order of time -> sequence_text.py, sequence_svg.py

Long runs are folded while they are read, in two ways:

    a run        frames that stream on one connection (SEND, MESSAGE, ACK, …): a row for all that are alike
    repetition   rows that are repeated in the same order (a client's retries): they are counted

Short runs stay as they are. A diagram has a limit of rows; what comes after it is counted.
"""

from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from pulsarctl_wire.render.line import LineRenderer
from pulsarctl_wire.render.sequence_rows import (
    Key,
    Row,
    beginning_of,
    brief_row,
    end_of,
    key_of,
    problem_of,
    row_of,
)
from pulsarctl_wire.wire.commands import NUMBERS
from pulsarctl_wire.wire.frame import Connection, Event, Frame
from pulsarctl_wire.wire.numbers import Numbers
from pulsarctl_wire.wire.session.ending import EndedConnection

DEFAULT_ROWS: Final = 500
"""The limit of rows by default."""
MAX_UNFOLDED: Final = 12
"""Up to this many rows are not folded."""
MIN_REPEATS: Final = 3
"""Minimum number of repetitions of rows before they are folded."""
MAX_PERIOD: Final = 24
"""Maximum number of rows that are recognized as a repeated group."""

_SPARE: Final = MIN_REPEATS * MAX_PERIOD  # rows beyond the limit, which may still be folded
_STREAMED: Final = {
    *(NUMBERS[name] for name in ("SEND", "SEND_RECEIPT", "SEND_ERROR", "MESSAGE", "ACK", "ACK_RESPONSE")),
    *(NUMBERS[name] for name in ("FLOW", "REDELIVER_UNACKNOWLEDGED_MESSAGES", "PING", "PONG")),
}
"""Type numbers of the commands that make runs."""


@dataclass(slots=True)
class _Run:
    """The rows of frames that stream on a connection; once folded, also by key."""

    rows: list[Row] = field(default_factory=list)
    folded: dict[Key, Row] = field(default_factory=dict)


class Diagram:
    """A diagram's rows, made from events; call `finish` after the last one.

    `line` renders fields. With `fold` False each frame has a row. `around` is a frame's number, and how many
    frames to show before it and after it; then nothing is folded.
    """

    def __init__(
        self,
        line: LineRenderer,
        *,
        fold: bool = True,
        limit: int = DEFAULT_ROWS,
        around: tuple[int, int] | None = None,
    ) -> None:
        self.rows: list[Row] = []
        self.left_out = 0
        """Frames and marks beyond the limit of rows."""
        self.is_done = False
        """Whether all rows around the frame are there."""
        self._line = line
        self._fold = fold and around is None
        self._limit = limit
        self._window = around
        self._frames_before = 0
        self._frames_left = -1  # frames still to show after the frame; -1: the frame has not come yet
        self._connections = Numbers()
        self._runs: dict[int, _Run] = {}

    def shows(self, connection: Connection) -> bool:
        """Return whether a connection has had an event."""
        return connection.index in self._connections

    def add(self, event: Event) -> None:
        """Add an event."""
        index = event.connection.index
        problem = problem_of(event)
        key = key_of(event, problem)
        run = self._runs.get(index)
        is_streamed = self._fold and not problem and isinstance(event, Frame) and event.type in _STREAMED
        if run is not None and not is_streamed:
            self._close(self._runs.pop(index))
        elif run is not None and key in run.folded:
            run.folded[key].merge(brief_row(event, key))
            return
        if index not in self._connections:
            self._connections.add(index)
            if event.connection.client:
                self._append(beginning_of(event))
        if self._is_full():
            self.left_out += 1
            return
        row = row_of(event, key, problem, self._line)
        self._append(row)
        if is_streamed:
            self._stream(row)

    def end(self, ending: EndedConnection) -> None:
        """Add the end of a connection, after its last event."""
        run = self._runs.pop(ending.connection.index, None)
        if run is not None:
            self._close(run)
        row = end_of(ending)
        index = len(self.rows)
        while index and row.time_ns is not None and (self.rows[index - 1].time_ns or 0) > row.time_ns:
            index -= 1
        if index == len(self.rows) or self._window is not None or self._is_full():
            self._append(row)
        else:
            self.rows.insert(index, row)

    @property
    def note(self) -> str:
        """What is not in the rows; "" if all is."""
        return f"… and {self.left_out:,} more frames and marks: see --rows" if self.left_out else ""

    def finish(self) -> None:
        """Count what is beyond the limit. If the frame of `around` has not come, there are no rows."""
        if self._window is not None:
            self.rows = self.rows if self._frames_left >= 0 else []
            return
        self.left_out += sum(row.count for row in islice(self.rows, self._limit, None))
        del self.rows[self._limit :]

    # -- rows

    def _is_full(self) -> bool:
        return self._window is None and len(self.rows) >= self._limit + _SPARE * self._fold

    def _append(self, row: Row) -> None:
        """Add a row at the end; fold the last rows if they are a repetition of those before."""
        if self._window is not None:
            self._append_in_window(row, *self._window)
            return
        if self._is_full():
            self.left_out += row.count
            return
        rows = self.rows
        rows.append(row)
        for period in range(1, min(MAX_PERIOD, len(rows) // 2) + 1 if self._fold else 1):
            if rows[-1 - period].key == row.key and (start := self._repetition(period)) >= 0:
                first = rows[start : start + period]
                for index in range(start + period, len(rows)):
                    first[(index - start) % period].merge(rows[index])
                for repeated in first:
                    repeated.period = period
                del rows[start + period :]
                return

    def _repetition(self, period: int) -> int:
        """Return where enough repetitions of the last `period` rows begin; -1 if there are too few."""
        rows = self.rows
        last = len(rows) - period
        times = 2 if rows[last - period].period == period else max(MIN_REPEATS, MAX_UNFOLDED // period + 1)
        start = len(rows) - times * period
        if start < 0 or any(row.is_in_run for row in rows[start:]):
            return -1
        if any(rows[index].key != rows[index + period].key for index in range(start, last)):
            return -1
        return start

    def _append_in_window(self, row: Row, number: int, frames_around: int) -> None:
        """Add a row if it is near the frame. Marks come in addition to the frames before and after it."""
        rows, is_counted = self.rows, not row.is_mark
        if self.is_done:
            return
        rows.append(row)
        if self._frames_left >= 0:
            self._frames_left -= is_counted
        elif row.number == number:
            row.is_focus = True
            self._frames_left = frames_around
        else:
            self._frames_before += is_counted
            while self._frames_before > frames_around or len(rows) > self._limit:
                self._frames_before -= not rows.pop(0).is_mark
        self.is_done = self._frames_left == 0 or len(rows) > 2 * self._limit

    # -- runs

    def _stream(self, row: Row) -> None:
        """Add a row to the run of its connection; fold the run when it gets long."""
        run = self._runs.setdefault(row.connection.index, _Run())
        run.rows.append(row)
        row.is_in_run = True
        if run.folded:
            run.folded[row.key] = row
        elif len(run.rows) > MAX_UNFOLDED:
            for member in run.rows:
                first = run.folded.setdefault(member.key, member)
                if first is not member:
                    first.merge(member)
            merged = {id(member) for member in run.rows} - {id(member) for member in run.folded.values()}
            run.rows = list(run.folded.values())
            remaining = [member for member in self.rows if id(member) not in merged]
            self.rows = []
            for member in remaining:
                self._append(member)

    def _close(self, run: _Run) -> None:
        for row in run.rows:
            row.is_in_run = False
