"""A plot of a consumer's permits and unacknowledged messages over time, in the terminal."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

from rich.text import Text

from pulsarctl_wire.render.line import TimeFormatter
from pulsarctl_wire.render.permits import ConsumerReport, is_empty
from pulsarctl_wire.render.stats_page import LEVELS
from pulsarctl_wire.stats.report import Figures

_WIDTH: Final = 100  # cells without a terminal
_CHARTS: Final[dict[str, tuple[int, str, Callable[[list[int]], int]]]] = {
    "permits": (6, "cyan", lambda values: values[-1]),
    "unacked": (4, "yellow", max),
}
"""Figure -> the height of its chart in lines, its colour, and which of several values in a place is drawn."""
_MARKS: Final = {"S": "SUBSCRIBE", "C": "CLOSE_CONSUMER", "R": "REDELIVER", "F": "FLOW"}
"""Signs below the charts; of several in one place the first one is shown."""
_EMPTY: Final = "!"


def plot(report: ConsumerReport, width: int | None, clock: TimeFormatter) -> Iterator[Text]:
    """Yield the charts of a consumer, one below the other over the same time."""
    consumer, rows = report
    labels = {name: f"{name} {max(0, *(row[name] for row in rows)):,}" for name in _CHARTS}
    margin = max(map(len, labels.values())) + 1
    column_count = max((width or _WIDTH) - margin - 1, 10)
    places = _places(consumer, rows, column_count)
    columns = _columns(rows, places, column_count)
    for name, (height, colour, pick) in _CHARTS.items():
        values = [max(pick([row[name] for row in column]), 0) if column else 0 for column in columns]
        for number, line in enumerate(_chart(values, height)):
            label = labels[name] if number == 0 else "0" if number == height - 1 else ""
            yield Text.assemble((f"{label:>{margin - 1}} │", "dim"), (line, colour))
    marks = _marks(rows, places, column_count)
    stalls = [bool(column) and is_empty(column[-1]) for column in columns]
    start, end = clock(consumer["time_ns"]), clock(consumer["last_ns"])
    signs = [f"{sign} {text}" for sign, text in _MARKS.items() if sign in marks]
    footer = [
        ("bold red", "".join(_EMPTY if is_stalled else " " for is_stalled in stalls)),
        ("magenta", marks),
        ("dim", start + end.rjust(column_count - len(start))),
        ("dim", "  ".join([*signs, *([f"{_EMPTY} no permits"] if any(stalls) else [])])),
    ]
    for style, text in footer:
        if text.strip():
            yield Text(" " * (margin + 1) + text.rstrip(), style)


def _places(consumer: Figures, rows: Sequence[Figures], column_count: int) -> list[int]:
    """Return the column in which each row begins: by time, or evenly where there are no times."""
    if consumer["time_ns"] is None:
        return [index * column_count // len(rows) for index in range(len(rows))]
    start = consumer["time_ns"]
    span = max(consumer["last_ns"] - start, 1)
    return [min((row["time_ns"] - start) * column_count // span, column_count - 1) for row in rows]


def _columns(rows: Sequence[Figures], places: Sequence[int], column_count: int) -> list[list[Figures]]:
    """Return the rows of each column: those that begin there, or else the last one before, if any."""
    columns: list[list[Figures]] = [[] for _ in range(column_count)]
    for row, place in zip(rows, places, strict=True):
        columns[place].append(row)
    for previous, column in pairwise(columns):
        if not column:
            column += previous[-1:]
    return columns


def _chart(values: Sequence[int], height: int) -> list[str]:
    """Draw bars of these values, as lines from the top; the highest one is `height` cells high."""
    highest = max(values)
    eighths = [-(-value * 8 * height // highest) if highest else 0 for value in values]
    return [
        "".join(LEVELS[min(max(size - 8 * level, 0), 8)] for size in eighths).rstrip()
        for level in reversed(range(height))
    ]


def _marks(rows: Sequence[Figures], places: Sequence[int], column_count: int) -> str:
    marks = [" "] * column_count
    order = " " + "".join(reversed(_MARKS))
    for row, place in zip(rows, places, strict=True):
        for sign in _signs(row):
            marks[place] = max(marks[place], sign, key=order.index)
    return "".join(marks)


def _signs(row: Figures) -> Iterator[str]:
    counts: dict[str, Any] = {"F": row["flows"], "R": row["asked"]}
    yield from (sign for sign, count in counts.items() if count)
    yield from (text[0] for text in row["moments"] if text.startswith((_MARKS["S"], _MARKS["C"])))
