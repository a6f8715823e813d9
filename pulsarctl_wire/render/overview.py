"""Tables of connections, topics, producers and subscriptions, with what each has done over the whole time."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.cells import cell_len

from pulsarctl_wire.render.columns import GAP, PERSISTENT, Column, fit, measure
from pulsarctl_wire.render.live_page import shorten
from pulsarctl_wire.render.stats_page import sparkline
from pulsarctl_wire.render.text import Paint, human_bytes, human_time

_SPARK: Final = 24  # cells

Row = Mapping[str, Any]
"""A `stats.overview.Row` as a mapping."""


def _count(name: str) -> Column:
    return Column(name, lambda row: f"{row[name]:,}" if row[name] else "-", _RANKS.get(name, 3))


def _topic(name: str) -> Column:
    return Column("topic", lambda row: row[name].removeprefix(PERSISTENT), is_name=True)


_RANKS: Final = {"frames": 9, "consumers": 6, "sent": 4, "delivered": 4, "errors": 2}
_SIZE: Final = Column("bytes", lambda row: human_bytes(row["size"]), 8)
_LATENCY: Final = Column(
    "latency", lambda row: "-" if row["latency_ns"] is None else human_time(row["latency_ns"]), 2
)
_OWNER: Final = Column("conn", lambda row: str(row["connection"]), 5)


def _past(title: str) -> Column:
    return Column(title, lambda row: sparkline(list(map(round, row["past"])), _SPARK), 7, "cyan")


COLUMNS: Final[dict[str, tuple[Column, ...]]] = {
    "connections": (
        Column("", lambda row: str(row["connection"])),
        Column("client-server", lambda row: row["name"], is_name=True),
        *map(_count, ("frames", "sent", "delivered", "pending", "permits", "unacked", "errors")),
        *(_SIZE, _past("bytes over time")),
    ),
    "topics": (
        _topic("name"),
        *map(_count, ("sent", "delivered", "pending", "permits", "unacked", "consumers", "errors")),
        *(_SIZE, _past("messages over time")),
    ),
    "producers": (
        Column("producer", lambda row: row["name"] or f"id {row['id']}", is_name=True),
        *(_topic("topic"), _OWNER),
        *map(_count, ("sent", "pending", "errors")),
        *(_LATENCY, _SIZE, _past("latency over time")),
    ),
    "subscriptions": (
        Column("subscription", lambda row: row["name"], is_name=True),
        _topic("topic"),
        *map(_count, ("consumers", "delivered", "permits", "unacked")),
        *(_SIZE, _past("unacked over time")),
    ),
}
"""The columns of each kind of row."""


class OverviewTable:
    """The rows of a kind, formatted for `width` cells."""

    def __init__(self, kind: str, rows: Sequence[Row], width: int, paint: Paint) -> None:
        columns = COLUMNS[kind]
        self._texts, self._widths = measure(columns, rows)
        self._columns = columns
        self._indices = fit(columns, self._widths, width)
        self._width = width
        self._paint = paint

    @property
    def heading(self) -> str:
        """The titles of the columns."""
        return self._paint("dim", self._join([column.title for column in self._columns]))

    def line(self, index: int) -> str:
        """Return the line of a row."""
        return self._join(self._texts[index])

    def _join(self, texts: Sequence[str]) -> str:
        cells = []
        for index in self._indices:
            text, width, column = texts[index], self._widths[index], self._columns[index]
            if cell_len(text) > width:
                text = shorten(text, width)
            blanks = " " * (width - cell_len(text))
            is_number = text[:1].isdecimal() or text == "-"
            painted = self._paint(column.style, text) if column.style else text
            cells.append(blanks + painted if is_number and not column.is_name else painted + blanks)
        return (" " * GAP).join(cells).rstrip()
