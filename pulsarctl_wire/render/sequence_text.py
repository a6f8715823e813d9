"""A sequence diagram, drawn with characters.

     ┌ 127.0.0.1                                     127.0.0.1:7200 ┐
     │                                            127.0.0.1:7201 ┐  │
5 0  ├─ LOOKUP r1 ──────────────────────────────────────────────►│  │
6 0  │◄─ LOOKUP_RESPONSE Redirect … ─────────────────── 12.06 ms ┤  │
7 1  ├─ CONNECT Pulsar-CPP-v4.2.0 ──────────────────────────────┼──►│
"""

from collections.abc import Iterator, Sequence
from typing import Final

from rich.cells import cell_len

from pulsarctl_wire.render.line import TimeFormatter
from pulsarctl_wire.render.sequence_rows import TIMES, Row, Styled, lifelines
from pulsarctl_wire.render.text import Paint, cells, cut_line

LIFELINES: Final = 4
"""Maximum number of lifelines at each side."""

_SPACE: Final = 3  # from one lifeline to the next
_MIN_LANE: Final = 30  # cells between the last client and the first broker


class _Layout:
    """The positions in a line of `width` cells; None: as wide as the longest label needs."""

    def __init__(self, rows: Sequence[Row], clock: TimeFormatter, width: int | None) -> None:
        self.lines = lifelines(rows, LIFELINES)
        self.clock = clock
        self.number_width = max((len(str(row.number)) for row in rows), default=1)
        self.time_width = max((len(clock(row.time_ns)) for row in rows), default=1)
        self.index_width = max((len(row.index) for row in rows), default=1)
        self.has_focus = any(row.is_focus for row in rows)
        self.gutter = self.number_width + self.time_width + self.index_width + 3 + 2 * self.has_focus
        sides = _SPACE * (len(self.lines.clients) + len(self.lines.brokers) - 2) + 2
        if width is None:
            self.lane = max(map(_width_of, rows), default=_MIN_LANE)
        else:
            self.lane = max(width - self.gutter - sides, _MIN_LANE)
        self.width = self.gutter + sides + self.lane

    def head(self, row: Row, paint: Paint) -> str:
        """Return what is before the lifelines: number, time, connection."""
        sign = ("▶ " if row.is_focus else "  ") if self.has_focus else ""
        number = str(row.number or "-").rjust(self.number_width)
        text = (
            f"{number} {self.clock(row.time_ns).rjust(self.time_width)} {row.index.rjust(self.index_width)} "
        )
        return paint("yellow" if row.is_focus else "", sign) + paint("bold" if row.is_focus else "", text)


def text(
    rows: Sequence[Row], paint: Paint, clock: TimeFormatter, width: int | None, note: str = ""
) -> Iterator[str]:
    """Yield the lines of a diagram, at most `width` cells wide (None: any width), and `note` as the last."""
    layout = _Layout(rows, clock, width)
    lines = [*_names(layout), *(_line(row, layout, paint) for row in rows)]
    for line in [*lines, *([note] if note else [])]:
        yield line if width is None else cut_line(line, width)


def _names(layout: _Layout) -> Iterator[str]:
    """Yield the lines that name the lifelines, which begin there."""
    clients, brokers = layout.lines
    width = layout.width - layout.gutter
    for index in range(max(len(clients), len(brokers))):
        left = ("│" + " " * (_SPACE - 1)) * min(index, len(clients))
        right = ((" " * (_SPACE - 1)) + "│") * min(index, len(brokers))
        if index < len(clients):
            left += cut_line(f"┌ {clients[index]}", width // 2 - len(left))
        if index < len(brokers):
            right = cut_line(brokers[-1 - index], width // 2 - len(right) - 2) + " ┐" + right
        left = left.rstrip()
        yield " " * layout.gutter + left + " " * (width - cell_len(left) - cell_len(right)) + right


def _line(row: Row, layout: _Layout, paint: Paint) -> str:
    """Draw a row: an arrow from lifeline to lifeline, with its label where all arrows pass."""
    clients, brokers = layout.lines
    client, broker = layout.lines.of(row)
    stroke = "─" if row.number else "╌"
    to_broker, to_client = row.to_broker is True, row.to_broker is False
    at_broker = (TIMES if row.is_end else "►") if to_broker else stroke
    at_client = (TIMES if row.is_end else "◄") if to_client else stroke
    left, right = "", ""
    for index in range(len(clients)):
        crossing = "│  " if index < client else f"┼{stroke * 2}"
        left += f"{'│' if to_client else '├'}{at_client}{stroke}" if index == client else crossing
    for index in reversed(range(len(brokers))):
        crossing = "  │" if index > broker else f"{stroke * 2}┼"
        right = (f"{stroke}{at_broker}{'│' if to_broker else '┤'}" if index == broker else crossing) + right
    # the outermost cells of the lane have the arrow; those between them, the label
    lane_start, lane_end = left[1 - _SPACE], right[_SPACE - 2]
    begin, end = _SPACE * client, _SPACE * broker + 1
    left, right = left[: 1 - _SPACE], right[_SPACE - 1 :]
    colour = row.colour
    return (
        f"{layout.head(row, paint)}{left[:begin]}{paint(colour, left[begin:] + lane_start)}"
        f" {_label(row, layout.lane - 3, stroke, paint)}"
        f"{paint(colour, lane_end + right[:end])}{right[end:]}"
    )


def _label(row: Row, width: int, stroke: str, paint: Paint) -> str:
    """Return the label and the tail of a row, in exactly `width` cells; the label is cut first."""
    label, tail = _paint_all(row.label(), paint), _paint_all(row.tail(), paint)
    end = f" {tail} " if tail else ""
    free = width - cells(label) - 1 - cells(end)
    if free >= 0:
        return f"{label} {paint(row.colour, stroke * free)}{end}"
    line = cut_line(label + end, width, end)
    return line + " " * (width - cells(line))


def _paint_all(parts: Sequence[Styled], paint: Paint) -> str:
    return " ".join(paint(style, part) for style, part in parts)


def _width_of(row: Row) -> int:
    """Return the width of the lane that a row needs: label, tail, blanks, and some of the arrow."""
    return 6 + sum(cell_len(part) + 1 for _, part in [*row.label(), *row.tail()])
