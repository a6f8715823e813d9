"""The HTML page of `pwire permits`: for each consumer a plot of its permits, and its rows."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from pulsarctl_wire.render import figure
from pulsarctl_wire.render.columns import Column, count_text
from pulsarctl_wire.render.figure import (
    PALETTE,
    UNIT,
    Axis,
    Key,
    amount_axis,
    draw_hover_areas,
    time_axis,
    to_x,
    to_y,
)
from pulsarctl_wire.render.line import TimeFormatter
from pulsarctl_wire.render.page import document, escape, section, table
from pulsarctl_wire.render.permits import (
    ConsumerReport,
    choose_detailed,
    consumer_columns,
    describe_row,
    doubt_text,
    is_empty,
    name_of,
    rest_note,
    row_columns,
    row_span,
    subscription_of,
    sums_text,
    warnings,
)
from pulsarctl_wire.stats.report import Figures

_LINES: Final = {"permits": PALETTE[0], "unacked": PALETTE[1]}
_EMPTY: Final = PALETTE[6]


def html_page(reports: Sequence[ConsumerReport], title: str, clock: TimeFormatter) -> str:
    """Build the page of these consumers."""
    consumers = [report.consumer for report in reports]
    subtitle = count_text(len(consumers), "consumer")
    parts = [section("", "", _table(consumer_columns(consumers), consumers))] if len(reports) > 1 else []
    parts += [_consumer(report, clock) for report in choose_detailed(reports)]
    parts += [section("", "", f"<p>{escape(note)}</p>") for note in [rest_note(reports)] if note]
    return document("permits", title, subtitle, "".join(parts), figure.STYLE + _STYLE)


def _consumer(report: ConsumerReport, clock: TimeFormatter) -> str:
    consumer, rows = report
    lines = [
        ("", f"{subscription_of(consumer)}; {consumer['how']}"),
        ("", sums_text(consumer)),
        *(("bad", warning) for warning in warnings(consumer)),
        ("warn", doubt_text(consumer)),
    ]
    paragraphs = "".join(f'<p class="{kind}">{escape(text)}</p>' for kind, text in lines if text)
    span = f"<p>{escape(row_span(consumer))}</p>"
    body = f"{paragraphs}{_plot(consumer, rows, clock)}{_table(row_columns(rows, clock), rows)}{span}"
    return section(name_of(consumer), "", body)


def _table(columns: Iterable[Column], records: Sequence[Figures]) -> str:
    columns = list(columns)
    rows = ("".join(f"<td>{escape(column.text(record))}</td>" for column in columns) for record in records)
    return table([column.title for column in columns], rows)


def _plot(consumer: Figures, rows: Sequence[Figures], clock: TimeFormatter) -> str:
    """Draw permits and unacknowledged messages as step lines, and a bar below where there are no permits."""
    x, bounds = _make_time_axis(consumer, rows)
    y = amount_axis(
        "", max(0, *(row[name] for row in rows for name in _LINES)), "{:,.0f}".format, is_whole=True
    )
    spans = list(zip(rows, pairwise(bounds), strict=True))
    drawing = "".join(
        f'<rect fill="{_EMPTY}" x="{to_x(x.place(start))}" y="{UNIT * 0.98:.0f}" '
        f'width="{to_x(x.place(end) - x.place(start))}" height="{UNIT * 0.02:.0f}"/>'
        for row, (start, end) in spans
        if is_empty(row)
    )
    for name, colour in _LINES.items():
        steps = "V".join(
            f"{to_y(y.place(max(row[name], 0)))}H{to_x(x.place(end))}" for row, (_, end) in spans
        )
        drawing += f'<path class="line" stroke="{colour}" d="M0 {steps}"/>'
    drawing += "".join(
        draw_hover_areas(x, end - start, {start: [clock(row["time_ns"]), *_tooltip(row)]})
        for row, (start, end) in spans
    )
    legend = [*(Key(colour, name) for name, colour in _LINES.items()), Key(_EMPTY, "no permits")]
    return figure.figure("Permits and unacknowledged messages over time", x, y, drawing, legend)


def _tooltip(row: Figures) -> list[str]:
    return [*(f"{name} {row[name]:,}" for name in _LINES), *describe_row(row)]


def _make_time_axis(consumer: Figures, rows: Sequence[Figures]) -> tuple[Axis, list[int]]:
    """Make the horizontal axis; also return where on it each row begins, and where the last one ends.

    These are times, or numbers of rows if the rows have no times.
    """
    if consumer["time_ns"] is None:
        return Axis("rows", {}, lambda row: row / len(rows)), [*range(len(rows) + 1)]
    starts = [row["time_ns"] for row in rows]
    return time_axis(starts[0], consumer["last_ns"]), [*starts, max(consumer["last_ns"], starts[-1] + 1)]


_STYLE: Final = """
main{display:grid;gap:18px}
section p{margin:0 0 6px}p.bad{color:var(--bad);font-weight:600}p.warn{color:var(--warn)}
td{font-variant-numeric:tabular-nums;white-space:nowrap}
"""
