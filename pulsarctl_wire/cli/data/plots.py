"""The plots of the summary report."""

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from pulsarctl_wire.cli.data.values import render
from pulsarctl_wire.render.figure import (
    PALETTE,
    UNIT,
    Axis,
    Key,
    amount_axis,
    draw_hover_areas,
    figure,
    make_tooltip,
    time_axis,
    to_x,
    to_y,
)
from pulsarctl_wire.reports.engine import Row
from pulsarctl_wire.reports.overview import BINS, SERIES, Overview

_HEAT: Final = ("#2b4a8b", "#2a7f8f", "#2a9d8f", "#8ab17d", "#e9c46a", "#e76f51")
_END_COLOURS: Final = {"closed": 2, "open": 0, "unanswered": 1, "error": 6, "refused": 3}
"""How a connection ended -> the number of its colour in `PALETTE`."""
_PERCENTILES: Final = {"p50_ns": "p50", "p90_ns": "p90", "p99_ns": "p99", "p999_ns": "p99.9", "max_ns": "max"}
_SECOND: Final = 1_000_000_000
_LABELS: Final = {
    **{
        step * 10**power: f"{step * 10 ** (power % 3)} {('ns', 'µs', 'ms', 's')[power // 3]}"
        for power in range(11)
        for step in (1, 2, 5)
    },
    **{minutes * 60 * _SECOND: f"{minutes} m" for minutes in (1, 2, 5, 10, 30)},
    **{hours * 3600 * _SECOND: f"{hours} h" for hours in (1, 2, 5, 10, 24)},
}
"""Spans in ns at which a latency axis may have a label."""


def shorten(topic: object, limit: int = 48) -> str:
    """Shorten a topic's name for a legend: no `persistent://`, and at most `limit` characters."""
    text = str(topic).removeprefix("persistent://")
    half = limit // 2
    return text if len(text) <= limit else f"{text[: half - 1]}…{text[-half:]}"


def latency_axis(lowest: float, highest: float) -> Axis:
    """Return a logarithmic axis of spans, in ns."""
    low, high = math.log10(max(1.0, lowest)) - 0.05, math.log10(max(1.0, highest)) + 0.05
    high = max(high, low + 0.5)
    has_all_labels = high - low < 2.5
    labels = {
        span: text
        for span, text in _LABELS.items()
        if low <= math.log10(span) <= high and (has_all_labels or text.startswith("1"))
    }
    return Axis("latency", dict(labels), lambda span: (math.log10(max(1.0, span)) - low) / (high - low))


def _span(overview: Overview) -> Axis:
    """Return the time axis that plots share: from the first bucket to the end of the last one."""
    width, totals = overview.bucket_ns, overview.totals
    start, stop = totals["first_ns"] or 0, totals["last_ns"] or 0
    return time_axis(start // width * width, (stop // width + 1) * width)


def publish_lines(overview: Overview) -> str:
    """Plot percentiles of publish latency over time. Buckets without publishes have no line."""
    rows, width = overview.publish_over_time, overview.bucket_ns
    values = [row[key] for row in rows for key in _PERCENTILES]
    if not values:
        return ""
    x, y = _span(overview), latency_axis(min(values), max(values))
    colours = [PALETTE[number] for number in (2, 5, 0, 1, 6)]
    lines = "".join(
        f'<path class="line" stroke="{colour}" d="{_steps(rows, key, x, y, width)}"/>'
        for key, colour in zip(_PERCENTILES, colours, strict=True)
    )
    tooltips = {
        row["time_ns"]: [
            render("time_ns", row["time_ns"]),
            *(f"{name} {render(key, row[key])}" for key, name in _PERCENTILES.items()),
        ]
        for row in rows
    }
    legend = [Key(colour, name) for name, colour in zip(_PERCENTILES.values(), colours, strict=True)]
    return figure(
        "Percentiles over time", x, y, lines + draw_hover_areas(x, width, tooltips), reversed(legend)
    )


def _steps(rows: Sequence[Row], key: str, x: Axis, y: Axis, width: int) -> str:
    """Draw a line with one step per bucket, interrupted where a bucket is missing."""
    parts: list[str] = []
    end = None
    for row in rows:
        time, level = row["time_ns"], to_y(y.place(row[key]))
        parts.append(f"V{level}" if time == end else f"M{to_x(x.place(time))} {level}")
        end = time + width
        parts.append(f"H{to_x(x.place(end))}")
    return "".join(parts)


def heat_map(overview: Overview) -> str:
    """Plot a heat map of publishes by time and latency."""
    if not overview.heat:
        return ""
    bins = [row["bin"] for row in overview.heat]
    x = _span(overview)
    y = latency_axis(10 ** (min(bins) / BINS), 10 ** ((max(bins) + 1) / BINS))
    highest = max(row["count"] for row in overview.heat)
    # the least count of each colour, evenly spaced on a logarithmic scale
    bounds = sorted({max(1, round(highest ** (step / len(_HEAT)))) for step in range(len(_HEAT))})
    cells: list[str] = []
    cell_width = to_x(x.place(overview.bucket_ns) - x.place(0))
    for row in sorted(overview.heat, key=lambda row: (row["time_ns"], row["bin"])):
        low, high = (10 ** ((row["bin"] + step) / BINS) for step in (0, 1))
        level = sum(row["count"] >= bound for bound in bounds) - 1
        top, size = to_y(y.place(high)), f"{UNIT * (y.place(high) - y.place(low)):.1f}"
        text = f"{render('count', row['count'])} took {render('p_ns', low)} to {render('p_ns', high)}"
        tooltip = make_tooltip(render("time_ns", row["time_ns"]), text)
        cells.append(
            f'<rect class="cell" fill="{_HEAT[level]}" x="{to_x(x.place(row["time_ns"]))}" y="{top}" '
            f'width="{cell_width}" height="{size}">{tooltip}</rect>'
        )
    tops = [*(bound - 1 for bound in bounds[1:]), highest]
    legend = [
        Key(colour, f"{low:,}" if low == high else f"{low:,} to {high:,}")
        for colour, low, high in zip(_HEAT, bounds, tops, strict=False)
    ]
    caption = f"Publishes by latency, in each {bucket(overview)}"
    return figure(caption, x, y, "".join(cells), reversed(legend))


class Series(NamedTuple):
    """The bars of one colour: a value per bucket."""

    key: Key
    values: dict[int, float]


def throughput(overview: Overview) -> str:
    """Plot bytes per second, stacked by topic."""
    seconds = overview.bucket_ns / _SECOND
    topics = [row["topic"] for row in overview.topics[:SERIES]]
    keys = [Key(PALETTE[number], shorten(name)) for number, name in enumerate(topics)]
    series = {
        name: Series(key, {})
        for name, key in zip([*topics, None], [*keys, Key(PALETTE[-1], "all others")], strict=True)
    }
    for row in overview.throughput:
        series[row["topic"]].values[row["time_ns"]] = row["bytes"] / seconds

    def format_rate(value: float) -> str:
        return render("bytes_per_s", value).replace(".0 ", " ")

    return _stack_bars(overview, "Bytes per second", "bytes per second", list(series.values()), format_rate)


def errors(overview: Overview) -> str:
    """Plot errors over time, stacked by name."""
    series: dict[str, Series] = {}
    for row in overview.errors_over_time:
        name = str(row["error"])
        colour = PALETTE[len(series) % SERIES]
        series.setdefault(name, Series(Key(colour, shorten(name)), {})).values[row["time_ns"]] = row["count"]

    def format_count(value: float) -> str:
        return render("count", round(value))

    title = f"errors in {bucket(overview)}"
    bars = list(series.values())
    return _stack_bars(overview, "Errors over time", title, bars, format_count, is_whole=True)


def bucket(overview: Overview) -> str:
    """Return the width of the buckets, as text."""
    return render("life_ns", overview.bucket_ns).replace(".00 ", " ")


def _stack_bars(
    overview: Overview,
    caption: str,
    title: str,
    series: list[Series],
    to_text: Callable[[float], str],
    *,
    is_whole: bool = False,
) -> str:
    """Plot stacked bars over time; `title` is that of the axis of values."""
    series = [bars for bars in series if bars.values]
    times = sorted({time for bars in series for time in bars.values})
    if not times:
        return ""
    width = overview.bucket_ns
    sums = {time: sum(bars.values.get(time, 0) for bars in series) for time in times}
    tooltips = {
        time: [
            render("time_ns", time),
            *(f"{bars.key.text}: {to_text(bars.values[time])}" for bars in series if time in bars.values),
        ]
        for time in times
    }
    x, y = _span(overview), amount_axis(title, max(sums.values()), to_text, is_whole=is_whole)
    bases = dict.fromkeys(times, 0.0)
    paths = []
    for bars in series:
        path = []
        for time, value in sorted(bars.values.items()):
            low, high = to_y(y.place(bases[time])), to_y(y.place(bases[time] + value))
            path.append(f"M{to_x(x.place(time))} {low}V{high}H{to_x(x.place(time + width))}V{low}Z")
            bases[time] += value
        paths.append(f'<path fill="{bars.key.colour}" d="{"".join(path)}"/>')
    legend = [bars.key for bars in reversed(series)]
    return figure(caption, x, y, "".join(paths) + draw_hover_areas(x, width, tooltips), legend)


def timeline(rows: Sequence[Row]) -> str:
    """Plot connections as bars from beginning to end."""
    rows = [row for row in rows if row["first_ns"] is not None]
    if not rows:
        return ""
    x = time_axis(min(row["first_ns"] for row in rows), max(row["last_ns"] for row in rows))
    labels: dict[float, str] = {
        number: f"#{row['connection']} {shorten(row['client'], 24)}" for number, row in enumerate(rows)
    }
    y = Axis("connection, client", labels, lambda number: 1 - (number + 0.5) / len(rows))
    bars = []
    for number, row in enumerate(rows):
        tooltip = make_tooltip(
            f"{labels[number]}, {row['ended']}",
            f"{render('first_ns', row['first_ns'])}, {render('life_ns', row['last_ns'] - row['first_ns'])}",
            shorten(row["client_version"] or "unknown client"),
            f"{render('bytes', row['bytes_to_broker'] + row['bytes_from_broker'])}, {row['errors']} errors",
        )
        start, stop = (to_x(x.place(row[key])) for key in ("first_ns", "last_ns"))
        bars.append(
            f'<path class="bar" stroke="{_colour(row["ended"])}" '
            f'd="M{start} {to_y(y.place(number))}H{stop}">{tooltip}</path>'
        )
    legend = [Key(_colour(end), end) for end in sorted({str(row["ended"]) for row in rows})]
    return figure("Connections over time", x, y, "".join(bars), legend, rows=len(rows))


def _colour(end: str) -> str:
    return PALETTE[_END_COLOURS.get(end, -1)]
