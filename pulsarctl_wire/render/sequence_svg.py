"""A sequence diagram as SVG, for light and dark screens.

Labels are cut as on a terminal; tooltips have them in full. Whatever a capture holds, the
output is valid XML.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from pulsarctl_wire.render.line import TimeFormatter
from pulsarctl_wire.render.page import document, escape
from pulsarctl_wire.render.sequence_rows import Row, Styled, lifelines
from pulsarctl_wire.render.text import cells, cut_line, human_time

LIFELINES: Final = 8
"""Maximum number of lifelines at each side."""

_LANE: Final = 104  # characters between the last client and the first broker
_CHARACTER: Final = 7.25  # pixels
_HEIGHT: Final = 26  # of a row
_SPACE: Final = 28  # from one lifeline to the next
_MARGIN: Final = 14


class _Layout:
    """The positions of everything, in pixels."""

    def __init__(self, rows: Sequence[Row], clock: TimeFormatter, note: str) -> None:
        self.lines = lifelines(rows, LIFELINES)
        self.clock = clock
        times = max((len(clock(row.time_ns)) for row in rows), default=1)
        self.number = _MARGIN + 7 * _CHARACTER  # right ends of the three columns
        self.time = self.number + (times + 1) * _CHARACTER
        self.index = self.time + (max((len(row.index) for row in rows), default=1) + 1) * _CHARACTER
        self.clients = [self.index + 14 + index * _SPACE for index in range(len(self.lines.clients))]
        first = (self.clients or [self.index])[-1] + _LANE * _CHARACTER
        self.brokers = [first + index * _SPACE for index in range(len(self.lines.brokers))]
        self.width = (self.brokers or [first])[-1] + _MARGIN
        self.top = _MARGIN + 18 * max(len(self.clients), len(self.brokers))
        self.bottom = self.top + _HEIGHT * len(rows) + 8
        self.height = self.bottom + 26 * bool(note) + _MARGIN


def svg(rows: Sequence[Row], clock: TimeFormatter, note: str = "") -> str:
    """Draw the diagram of `rows` as an SVG document; `note` is a line below it."""
    layout = _Layout(rows, clock, note)
    width, height = round(layout.width), round(layout.height)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="sequence" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}"><style>{_STYLE}</style>'
        f'<rect class="paper" width="{width}" height="{height}"/>',
        *_lifelines(layout),
        *(_row(row, layout, layout.top + _HEIGHT * index) for index, row in enumerate(rows)),
    ]
    if note:
        parts.append(_text(layout.index + 14, layout.bottom + 18, [("dim", note)]))
    return "".join([*parts, "</svg>\n"])


def page(rows: Sequence[Row], clock: TimeFormatter, title: str, subtitle: str, note: str = "") -> str:
    """Build a page with the diagram."""
    return document("sequence", title, subtitle, f"<section>{svg(rows, clock, note)}</section>", _PAGE_STYLE)


def _lifelines(layout: _Layout) -> Iterator[str]:
    clients, brokers = layout.lines
    for index, (name, x) in enumerate(zip(clients, layout.clients, strict=True)):
        y = _MARGIN + 18 * index
        yield f'<path class="life" d="M{x:.1f} {y}V{layout.bottom:.1f}"/>'
        yield _text(x + 7, y + 10, [("bold", cut_line(name, _LANE // 2))])
    for index, (name, x) in enumerate(zip(reversed(brokers), reversed(layout.brokers), strict=True)):
        y = _MARGIN + 18 * index
        yield f'<path class="life" d="M{x:.1f} {y}V{layout.bottom:.1f}"/>'
        yield _text(x - 7, y + 10, [("bold", cut_line(name, _LANE // 2))], "end")


def _row(row: Row, layout: _Layout, top: float) -> str:
    client, broker = layout.lines.of(row)
    left, right = layout.clients[client], layout.brokers[broker]
    line, baseline = top + 19, top + 14
    label, tail = _fit(row)
    kind = f"arrow {row.colour}"
    focus = f'<rect class="focus" y="{top:.1f}" width="{layout.width:.1f}" height="{_HEIGHT}"/>'
    return (
        f"<g><title>{escape(_tooltip(row))}</title>{focus * row.is_focus}"
        + _text(layout.number, baseline, [("dim", str(row.number or ""))], "end")
        + _text(layout.time, baseline, [("dim", layout.clock(row.time_ns))], "end")
        + _text(layout.index, baseline, [("dim", row.index)], "end")
        + f'<path class="{kind}{"" if row.number else " mark"}" d="M{left:.1f} {line:.1f}H{right:.1f}"/>'
        + f'<path class="{kind}" d="{_head(row, left, right, line)}"/>'
        + _text(layout.clients[-1] + 12, baseline, label)
        + (_text(layout.brokers[0] - 12, baseline, tail, "end") if tail else "")
        + "</g>"
    )


def _head(row: Row, left: float, right: float, y: float) -> str:
    """Return the path of an arrow's head: a tip; a cross for an end; nothing if neither side caused it."""
    if row.to_broker is None:
        return ""
    tip, back = (right - 2, -7) if row.to_broker else (left + 2, 7)
    if row.is_end:
        middle = tip + back / 2
        return "".join(f"M{middle - 4:.1f} {y - dy:.1f}L{middle + 4:.1f} {y + dy:.1f}" for dy in (4, -4))
    return f"M{tip + back:.1f} {y - 4:.1f}L{tip:.1f} {y:.1f}L{tip + back:.1f} {y + 4:.1f}"


def _fit(row: Row) -> tuple[list[Styled], list[Styled]]:
    """Cut the label and the tail of a row to the lane; the tail gets half of it at most."""
    width = _LANE - 4
    tail = _cut(row.tail(), width // 2)
    tail_width = sum(cells(part) + 1 for _, part in tail)
    return _cut(row.label(), width - tail_width), tail


def _cut(parts: list[Styled], width: int) -> list[Styled]:
    result = []
    for style, part in parts:
        if width <= 1:
            break
        result.append((style, cut_line(part, width)))
        width -= cells(part) + 1
    return result


def _tooltip(row: Row) -> str:
    times = row.latencies.record() if row.latencies is not None else None
    parts = [part for _, part in [*row.label(), *row.tail()]]
    if times is not None:
        parts += [f"{name} {human_time(times[name])}" for name in ("p90", "p999", "max")]
    return " ".join(parts)


def _text(x: float, y: float, parts: Sequence[Styled], anchor: str = "") -> str:
    attribute = f' text-anchor="{anchor}"' if anchor else ""
    spans = " ".join(
        f'<tspan class="{style}">{escape(part)}</tspan>' if style else escape(part) for style, part in parts
    )
    return f'<text x="{x:.1f}" y="{y:.1f}"{attribute}>{spans}</text>'


_LIGHT: Final = {
    "paper": "#ffffff",
    "ink": "#1b2130",
    "life": "#c3c9d5",
    "focus": "#fff3cf",
    "dim": "#667085",
    "red": "#c8304d",
    "yellow": "#a8650a",
    "cyan": "#187c9b",
    "green": "#137a55",
    "blue": "#2f5fd0",
    "magenta": "#9a3bb0",
}
"""Names of classes -> colours."""
_DARK: Final = {
    "paper": "#171c27",
    "ink": "#e6e9f0",
    "life": "#3a4357",
    "focus": "#3a3420",
    "dim": "#929db2",
    "red": "#ff7591",
    "yellow": "#eab04c",
    "cyan": "#5fc4e0",
    "green": "#4cc79a",
    "blue": "#8fb0ff",
    "magenta": "#d88be8",
}


def _rules(colours: dict[str, str]) -> str:
    """Return CSS rules for text and arrows."""
    rules = [f".sequence text{{fill:{colours['ink']}}}.sequence .life{{stroke:{colours['life']}}}"]
    rules += [f".sequence .{name}{{fill:{colours[name]}}}" for name in ("paper", "focus")]
    for name in ("dim", "red", "yellow", "cyan", "green", "blue", "magenta"):
        rules.append(
            f".sequence tspan.{name}{{fill:{colours[name]}}}.sequence .arrow.{name}{{stroke:{colours[name]}}}"
        )
    return "".join(rules)


_STYLE: Final = (
    ".sequence text{font-family:ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;font-size:12px;"
    "white-space:pre}.sequence .bold{font-weight:600}.sequence path{fill:none}"
    ".sequence .arrow{stroke-width:1.3}.sequence .mark{stroke-dasharray:4 3}"
    f"{_rules(_LIGHT)}@media(prefers-color-scheme:dark){{{_rules(_DARK)}}}"
)
_PAGE_STYLE: Final = "section{overflow-x:auto;padding:8px}"
