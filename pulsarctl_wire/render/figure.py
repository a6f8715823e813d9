"""Plots of HTML pages: static SVG and HTML, without scripts.

A drawing is an SVG of 1000 x 1000 units that the browser scales to the size available; line widths do not
scale. Labels are HTML around it, positioned in per cent, so that text keeps its size on any screen. Tooltips
are <title> elements.
"""

import math
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from typing import Final, NamedTuple

from pulsarctl_wire.render.page import escape

PALETTE: Final = (
    *("#4c7ef3", "#f2994a", "#27ae84", "#c65fd8", "#e8c33a", "#3fb7d9", "#e2617f", "#8c9a3c", "#9a7bf0"),
    *("#b5805a", "#9aa3b2"),
)
"""Colours of series, distinct on dark and light backgrounds; the last one is for "all others"."""
UNIT: Final = 1000
"""Width and height of a drawing."""

_SECOND: Final = 1_000_000_000
_STEPS: Final = [
    *(step * 10**power for power in range(3, 9) for step in (1, 2, 5)),
    *(seconds * _SECOND for seconds in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600)),
    *(hours * 3600 * _SECOND for hours in (2, 3, 6, 12, 24, 48, 120, 240, 720)),
]
"""Spans in ns between the labels of an axis of times."""


class Axis(NamedTuple):
    """An axis: its title, its labels by value, and the function from a value to its position, 0 to 1."""

    title: str
    labels: dict[float, str]
    place: Callable[[float], float]


class Key(NamedTuple):
    """An entry of a legend."""

    colour: str
    text: str


# -- axes


def time_axis(start: int, stop: int) -> Axis:
    """Make an axis of times in UTC, in ns since 1970."""
    stop = max(stop, start + 1)
    step = next((span for span in _STEPS if stop - start <= 6 * span), (stop - start) // 6)
    form, digits = "%H:%M:%S", max(0, 9 - len(str(step)) + 1)
    if step >= 24 * 3600 * _SECOND:
        form = "%m-%d"
    elif step >= 60 * _SECOND:
        form = "%H:%M"
    labels: dict[float, str] = {}
    for time in range(-(-start // step) * step, stop + 1, step):
        seconds, fraction_ns = divmod(time, _SECOND)
        fraction = f".{fraction_ns:09d}"[: digits + 1] if step < _SECOND else ""
        labels[time] = f"{datetime.fromtimestamp(seconds, timezone.utc):{form}}{fraction}"
    days = {f"{datetime.fromtimestamp(time // _SECOND, timezone.utc):%Y-%m-%d}" for time in (start, stop)}
    title = f"time (UTC), {' to '.join(sorted(days))}"
    return Axis(title, labels, lambda time: (time - start) / (stop - start))


def amount_axis(title: str, maximum: float, text: Callable[[float], str], *, is_whole: bool = False) -> Axis:
    """Make an axis from 0 to `maximum`; `text` makes the labels, of integers only if `is_whole`."""
    maximum = maximum or 1
    step = 10 ** math.floor(math.log10(maximum / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if maximum <= 5 * factor * step)
    step = max(step, 1) if is_whole else step
    count = int(maximum / step)
    return Axis(
        title, {number * step: text(number * step) for number in range(count + 1)}, lambda n: n / maximum
    )


# -- a plot


def figure(caption: str, x: Axis, y: Axis, drawing: str, legend: Iterable[Key] = (), *, rows: int = 0) -> str:
    """Draw a plot: caption, drawing, axes and legend. `rows`: number of rows, instead of a y axis."""
    grid = "".join(
        f'<path class="grid" d="M0 {to_y(y.place(value))}H{UNIT}"/>' for value in (() if rows else y.labels)
    )
    y_labels = "".join(
        f'<span style="top:{100 - 100 * y.place(value):.2f}%">{escape(text)}</span>'
        for value, text in y.labels.items()
    )
    x_labels = "".join(
        f'<span style="left:{100 * x.place(value):.2f}%">{escape(text)}</span>'
        for value, text in x.labels.items()
    )
    keys = "".join(f'<li><i style="background:{key.colour}"></i>{escape(key.text)}</li>' for key in legend)
    style = f' style="height:{24 * rows + 12}px"' if rows else ""
    return (
        f'<figure class="plot{" rows" if rows else ""}"><figcaption>{escape(caption)}</figcaption>'
        f'<div class="y title">{escape(y.title)}</div><div class="area"{style}>'
        f'<div class="y">{y_labels}</div>'
        f'<svg viewBox="0 0 {UNIT} {UNIT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(caption)}">{grid}{drawing}</svg><div class="x">{x_labels}</div></div>'
        f'<div class="x title">{escape(x.title)}</div>{f"<ul>{keys}</ul>" if keys else ""}</figure>'
    )


def make_tooltip(*lines: str) -> str:
    """Make a tooltip of these lines."""
    return f"<title>{chr(10).join(map(escape, lines))}</title>"


def to_y(position: float) -> str:
    """Format a position on the vertical axis, 0 to 1, in units of the drawing."""
    return f"{UNIT - UNIT * position:.1f}"


def to_x(position: float) -> str:
    """Format a position on the horizontal axis, 0 to 1, in units of the drawing."""
    return f"{UNIT * position:.2f}"


def draw_hover_areas(x: Axis, width: int, tooltips: dict[int, list[str]]) -> str:
    """Draw invisible columns on the axis `x`, each with a tooltip of several lines.

    `tooltips` are by the value at which a column begins. `width` is in the same unit.
    """
    size = to_x(x.place(width) - x.place(0))
    return "".join(
        f'<rect class="hit" x="{to_x(x.place(time))}" y="0" width="{size}" height="{UNIT}">'
        f"{make_tooltip(*lines)}</rect>"
        for time, lines in tooltips.items()
    )


STYLE: Final = """
.plot{--left:64px;display:grid;grid-template-columns:minmax(0,1fr) auto;
grid-template-rows:repeat(4,auto) 1fr;gap:0 18px;margin:0;min-width:0;
font-size:12px;color:var(--soft)}
.plot.rows{--left:190px}
figcaption{grid-column:1/-1;color:var(--ink);font-weight:560;margin-bottom:6px}
.plot .title{grid-column:1}
.plot .x.title{text-align:center;padding-left:var(--left)}
.area{grid-column:1;position:relative;height:250px;margin:8px 14px 24px var(--left)}
.area svg{display:block;width:100%;height:100%;overflow:visible;border:solid var(--line);
border-width:0 0 1px 1px}
.area .y span{position:absolute;right:calc(100% + 8px);transform:translateY(-50%);white-space:nowrap}
.area .x span{position:absolute;top:calc(100% + 4px);transform:translateX(-50%);white-space:nowrap}
.area .y span,.area .x span{font-variant-numeric:tabular-nums}
.plot ul{grid-column:2;grid-row:2/6;list-style:none;margin:24px 0 0;padding:0;max-width:210px;
overflow-wrap:anywhere}
.plot li{margin-bottom:4px;padding-left:17px;text-indent:-17px;line-height:1.35}
.plot i{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:6px;vertical-align:-1px}
path.line,path.bar,path.grid{fill:none;vector-effect:non-scaling-stroke}
path.line{stroke-width:2}path.bar{stroke-width:8;stroke-linecap:round}path.grid{stroke:var(--grid)}
.hit{fill:transparent}.hit:hover{fill:color-mix(in srgb,var(--ink) 10%,transparent)}
@media(max-width:640px){.plot{grid-template-columns:minmax(0,1fr)}
.plot.rows{--left:0px}.rows .area .y span{right:auto;left:4px;transform:translateY(-110%);font-size:10.5px}
.plot ul{grid-column:1;grid-row:auto;max-width:none;margin-top:8px;display:flex;flex-wrap:wrap;gap:2px 14px}
.area .x span:nth-child(even){display:none}}
"""
"""The CSS that plots need."""
