"""Makes the rows of a sequence diagram from events.

    events -> Diagram -> rows (sequence_rows.py), in the order of time -> sequence_text.py, sequence_svg.py

Long runs are folded while they are read, in two ways:

    a run        frames that stream on one connection (SEND, MESSAGE, ACK, …): a row for all that are alike
    repetition   rows that come again in the same order (a client that tries again): they are counted

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
    row_of,
    wrong_of,
)
from pulsarctl_wire.wire.commands import NUMBERS
from pulsarctl_wire.wire.frame import Connection, Event, Frame
from pulsarctl_wire.wire.numbers import Numbers
from pulsarctl_wire.wire.session.ending import EndedConnection

ROWS: Final = 500
"""The limit of rows if no other is given."""
SHORT: Final = 12
"""Up to this many rows are not folded."""
REPEATED: Final = 3
"""How often rows must come in the same order, at least, before they are folded."""
PERIOD: Final = 24
"""Maximum number of rows that are recognized when they come again."""

_SPARE: Final = REPEATED * PERIOD  # rows beyond the limit, which may still be folded
_STREAMED: Final = {
    *(NUMBERS[name] for name in ("SEND", "SEND_RECEIPT", "SEND_ERROR", "MESSAGE", "ACK", "ACK_RESPONSE")),
    *(NUMBERS[name] for name in ("FLOW", "REDELIVER_UNACKNOWLEDGED_MESSAGES", "PING", "PONG")),
}
"""Type numbers of the commands that make runs."""


@dataclass(slots=True)
class _Run:
    """Frames that stream on a connection: its rows, and after it was folded those by key."""

    rows: list[Row] = field(default_factory=list)
    folded: dict[Key, Row] = field(default_factory=dict)


class Diagram:
    """Turns events into rows; call `finish` after the last one.

    `line` renders fields. With `fold` False each frame has a row. `around` is the number of a frame, and how
    many frames are kept before and after it; then nothing is folded.
    """

    def __init__(
        self,
        line: LineRenderer,
        *,
        fold: bool = True,
        limit: int = ROWS,
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
        self._around = around
        self._before = 0
        self._after = -1  # frames that are still wanted after the frame; -1: it has not come yet
        self._seen = Numbers()
        self._runs: dict[int, _Run] = {}

    def shows(self, connection: Connection) -> bool:
        """Whether a connection has had an event."""
        return connection.index in self._seen

    def add(self, event: Event) -> None:
        """Add an event."""
        index = event.connection.index
        wrong = wrong_of(event)
        key = key_of(event, wrong)
        run = self._runs.get(index)
        streams = self._fold and not wrong and isinstance(event, Frame) and event.type in _STREAMED
        if run is not None and not streams:
            self._close(self._runs.pop(index))
        elif run is not None and key in run.folded:
            run.folded[key].merge(brief_row(event, key))
            return
        if index not in self._seen:
            self._seen.add(index)
            if event.connection.client:
                self._put(beginning_of(event))
        if self._is_full():
            self.left_out += 1
            return
        row = row_of(event, key, wrong, self._line)
        self._put(row)
        if streams:
            self._stream(row)

    def end(self, ending: EndedConnection) -> None:
        """Add the end of a connection, after its last event."""
        run = self._runs.pop(ending.connection.index, None)
        if run is not None:
            self._close(run)
        row = end_of(ending)
        at = len(self.rows)
        while at and row.time_ns is not None and (self.rows[at - 1].time_ns or 0) > row.time_ns:
            at -= 1
        if at == len(self.rows) or self._around is not None or self._is_full():
            self._put(row)
        else:
            self.rows.insert(at, row)

    @property
    def note(self) -> str:
        """What is not in the rows; "" if all is."""
        return f"… and {self.left_out:,} more frames and marks: see --rows" if self.left_out else ""

    def finish(self) -> None:
        """Count what is beyond the limit; without the frame that was asked for there are no rows."""
        if self._around is not None:
            self.rows = self.rows if self._after >= 0 else []
            return
        self.left_out += sum(row.count for row in islice(self.rows, self._limit, None))
        del self.rows[self._limit :]

    # -- rows

    def _is_full(self) -> bool:
        return self._around is None and len(self.rows) >= self._limit + _SPARE * self._fold

    def _put(self, row: Row) -> None:
        """Add a row at the end; fold the last rows if they are a repetition of those before."""
        if self._around is not None:
            self._put_around(row, *self._around)
            return
        if self._is_full():
            self.left_out += row.count
            return
        rows = self.rows
        rows.append(row)
        for period in range(1, min(PERIOD, len(rows) // 2) + 1 if self._fold else 1):
            if rows[-1 - period].key == row.key and (start := self._repetition(period)) >= 0:
                first = rows[start : start + period]
                for at in range(start + period, len(rows)):
                    first[(at - start) % period].merge(rows[at])
                for each in first:
                    each.period = period
                del rows[start + period :]
                return

    def _repetition(self, period: int) -> int:
        """Where the rows begin that the last `period` rows repeat often enough; -1 if they do not."""
        rows = self.rows
        last = len(rows) - period
        times = 2 if rows[last - period].period == period else max(REPEATED, SHORT // period + 1)
        start = len(rows) - times * period
        if start < 0 or any(row.is_open for row in rows[start:]):
            return -1
        if any(rows[at].key != rows[at + period].key for at in range(start, last)):
            return -1
        return start

    def _put_around(self, row: Row, number: int, most: int) -> None:
        """Add a row if it is near the frame. Marks come in addition to the frames before and after it."""
        rows, counts = self.rows, not row.is_mark
        if self.is_done:
            return
        rows.append(row)
        if self._after >= 0:
            self._after -= counts
        elif row.number == number:
            row.is_focus = True
            self._after = most
        else:
            self._before += counts
            while self._before > most or len(rows) > self._limit:
                self._before -= not rows.pop(0).is_mark
        self.is_done = self._after == 0 or len(rows) > 2 * self._limit

    # -- runs

    def _stream(self, row: Row) -> None:
        """Add a row to the run of its connection; fold the run when it gets long."""
        run = self._runs.setdefault(row.connection.index, _Run())
        run.rows.append(row)
        row.is_open = True
        if run.folded:
            run.folded[row.key] = row
        elif len(run.rows) > SHORT:
            for each in run.rows:
                first = run.folded.setdefault(each.key, each)
                if first is not each:
                    first.merge(each)
            gone = {id(each) for each in run.rows} - {id(each) for each in run.folded.values()}
            run.rows = list(run.folded.values())
            kept = [each for each in self.rows if id(each) not in gone]
            self.rows = []
            for each in kept:
                self._put(each)

    def _close(self, run: _Run) -> None:
        for row in run.rows:
            row.is_open = False
