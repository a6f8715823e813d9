"""The HTML page of a report: one file with everything in it, that asks no network for anything.

What comes from captures is escaped three times over: control characters as \\xNN; as HTML, also in the
labels of plots, which know some HTML themselves; and `<`, `>`, `&` of the plots' JSON as \\uNNNN, so that no
text can end its script element. A content security policy forbids whatever may be left.
"""

import html
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from typing import Any, Final

from plotly.offline import get_plotlyjs

from pulsarctl_wire.spark.reports.overview import BINS, LINES, SERIES, Overview, Rows

Shown = Callable[[str, Any], str]
"""How a value of a column is shown to people: its text, not yet escaped."""

PALETTE: Final = (
    *("#4c7ef3", "#f2994a", "#27ae84", "#c65fd8", "#e8c33a", "#3fb7d9", "#e2617f", "#8c9a3c", "#9a7bf0"),
    *("#b5805a", "#9aa3b2"),
)
"""Colours of series, told apart on dark and on light; the last is that of all others."""
_ENDS: Final = {"closed": 2, "open": 0, "unanswered": 1, "error": 6, "refused": 6}


def summary_page(overview: Overview, title: str, shown: Shown) -> str:
    """The page of the summary report."""
    totals = overview.totals
    publish, heat = _plot("publish", _publish_lines(overview)), _plot("heat", _heat(overview))
    sections = [
        _cards(totals, overview, shown),
        _section(
            "Publish latency",
            "SEND to SEND_RECEIPT",
            f'<div class="pair">{publish}{heat}</div>',
            wide=True,
        ),
        _section(
            "Throughput",
            f"bytes of frames, the {SERIES} largest topics",
            _plot("throughput", _throughput(overview)),
        ),
        _section(
            "Errors", "what brokers reported", _plot("errors", _errors(overview)) if overview.errors else ""
        ),
        _section(
            "Connections",
            f"those of most bytes, at most {LINES}, in order of their beginning",
            _plot("connections", _timeline(overview)),
            wide=True,
        ),
        *(
            _section(name, note, _table(rows, columns, shown), wide=wide)
            for name, note, rows, columns, wide in _tables(overview)
        ),
    ]
    return _document(title, _span(totals, shown), "".join(sections), with_plots=True)


def table_page(rows: Rows, columns: Sequence[str], title: str, shown: Shown) -> str:
    """The page of any other report: its rows as a table."""
    return _document(title, f"{len(rows)} rows", _section("", "", _table(rows, columns, shown), wide=True))


# -- texts


def plain(text: object) -> str:
    r"""Text of a capture, for HTML and for labels of plots: control characters as \xNN, markup escaped."""
    shown = re.sub(r"[^\x20-\x7e]", lambda match: _printable(match[0]), str(text))
    return html.escape(shown)


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape", "surrogatepass").decode()


def short(topic: object, most: int = 48) -> str:
    """A name for a label: without what most topics begin with, its middle left out if it is long."""
    text = str(topic).removeprefix("persistent://")
    half = most // 2
    return plain(text if len(text) <= most else f"{text[: half - 1]}…{text[-half:]}")


def _time(time_ns: int) -> str:
    """A time as plots read it, in UTC."""
    seconds, rest = divmod(time_ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M:%S}.{rest // 1000:06}"


def _span(totals: dict[str, Any], shown: Shown) -> str:
    if totals["first_ns"] is None:
        return "no times in this capture"
    return f"{shown('first_ns', totals['first_ns'])} to {shown('last_ns', totals['last_ns'])} UTC"


# -- parts of the page


def _cards(totals: dict[str, Any], overview: Overview, shown: Shown) -> str:
    span = (totals["last_ns"] or 0) - (totals["first_ns"] or 0)
    sends = sum(row["count"] for row in overview.publish_over_time)
    p99 = [row["p99_ns"] for row in overview.publish_over_time]
    damage = totals["gaps"] + totals["malformed"]
    cards = [
        ("Frames", shown("frames", totals["frames"]), shown("bytes", totals["bytes"]), ""),
        ("Time", shown("life_ns", span), f"buckets of {shown('life_ns', overview.bucket_ns)}", ""),
        (
            "Connections",
            shown("n", totals["connections"]),
            f"{shown('n', totals['producers'])} producers",
            "",
        ),
        ("Topics", shown("n", totals["topics"]), f"{shown('n', totals['subscriptions'])} subscriptions", ""),
        ("Published", shown("n", totals["published"]), "messages", ""),
        ("Delivered", shown("n", totals["delivered"]), "messages", ""),
        (
            "Worst p99",
            shown("p99_ns", max(p99)) if p99 else "none",
            f"of {shown('n', sends)} publishes, by bucket",
            "",
        ),
        ("Errors", shown("n", totals["errors"]), "by brokers", "bad" if totals["errors"] else "good"),
        (
            *("Bad checksums", shown("n", totals["bad_checksums"]), "CRC32-C of SEND and MESSAGE"),
            "bad" if totals["bad_checksums"] else "good",
        ),
        (
            *(
                "Damage",
                shown("n", damage),
                f"{shown('n', totals['gaps'])} gaps, {shown('n', totals['malformed'])} malformed",
            ),
            "warn" if damage else "good",
        ),
    ]
    return '<section class="cards">{}</section>'.format(
        "".join(
            f'<div class="card {kind}"><h3>{plain(name)}</h3><b>{plain(value)}</b>'
            f"<span>{plain(note)}</span></div>"
            for name, value, note, kind in cards
        )
    )


def _tables(overview: Overview) -> Iterable[tuple[str, str, Rows, Sequence[str], bool]]:
    percentiles = ("count", "p50_ns", "p90_ns", "p99_ns", "p999_ns", "max_ns")
    slowest = ("latency_ns", "time_ns", "command", "answer", "topic", "connection", "packet_offset")
    yield (
        *("Topics", "by bytes", overview.topics),
        (
            "topic",
            "share",
            "bytes",
            "frames",
            "published",
            "delivered",
            "producers",
            "subscriptions",
            "errors",
        ),
        True,
    )
    yield (
        "Publish latency",
        "by topic and producer",
        overview.publish_latency,
        ("topic", "producer", *percentiles),
        True,
    )
    yield "Slowest requests", "publishes among them", overview.slowest, slowest, True
    yield "Request latency", "by command", overview.request_latency, ("command", *percentiles, "errors"), True
    errors = ("error", "command", "topic", "client", "count", "first_ns", "example")
    yield "Errors", "by code, topic and client", overview.errors, errors, True
    checksums = ("time_ns", "command", "topic", "connection", "bytes", "file", "packet_offset")
    yield "Bad checksums", "what was sent is not what was captured", overview.checksums, checksums, False
    gaps = ("time_ns", "kind", "size", "reason", "connection", "src", "dst")
    yield "Gaps", "bytes that were not captured, or are no frames", overview.gaps, gaps, False


_NUMERIC: Final = (int, float)


def _table(rows: Rows, columns: Sequence[str], shown: Shown) -> str:
    if not rows:
        return '<p class="none">none</p>'
    head = "".join(f"<th>{plain(name.removesuffix('_ns').replace('_', ' '))}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(_cell(name, row.get(name), shown) for name in columns) + "</tr>" for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(name: str, value: Any, shown: Shown) -> str:
    kind = ' class="n"' if isinstance(value, _NUMERIC) and not isinstance(value, bool) else ""
    text = plain(shown(name, value))
    if not kind and len(text) < 32:
        kind = ' class="w"'
    bar = f' style="--share:{min(1.0, value):.4f}"' if name == "share" and value is not None else ""
    return f"<td{kind}{bar}>{text}</td>"


def _section(title: str, note: str, body: str, *, wide: bool = False) -> str:
    heading = f"<h2>{plain(title)} <small>{plain(note)}</small></h2>" if title else ""
    return f'<section class="{"wide" if wide else ""}">{heading}{body or "<p class=none>none</p>"}</section>'


def _plot(name: str, figure: dict[str, Any]) -> str:
    data = json.dumps(figure, separators=(",", ":"), ensure_ascii=True)
    for character in "<>&":
        data = data.replace(character, f"\\u{ord(character):04x}")
    return (
        f'<div class="plot" id="plot-{name}"></div>'
        f'<script type="application/json" class="figure" data-for="plot-{name}">{data}</script>'
    )


# -- figures


def _figure(traces: list[dict[str, Any]], y: dict[str, Any], **layout: Any) -> dict[str, Any]:
    return {"data": traces, "layout": {"xaxis": {"type": "date"}, "yaxis": y, **layout}}


def _latency_axis(lowest: float, highest: float) -> dict[str, Any]:
    """A logarithmic axis of nanoseconds with labels that people read."""
    units = {0: "ns", 3: "µs", 6: "ms", 9: "s"}
    ticks = {
        step * 10**power: f"{step * 10 ** (power % 3)} {units[power - power % 3]}"
        for power in range(12)
        for step in ((1, 2, 5) if highest < 300 * lowest else (1,))
    }
    low, high = math.log10(max(1.0, lowest)) - 0.05, math.log10(max(1.0, highest)) + 0.05
    return {
        "type": "log",
        "tickvals": list(ticks),
        "ticktext": list(ticks.values()),
        "range": [low, max(high, low + 0.5)],
    }


def _publish_lines(overview: Overview) -> dict[str, Any]:
    rows = overview.publish_over_time
    lines = {"p50_ns": "p50", "p90_ns": "p90", "p99_ns": "p99", "p999_ns": "p99.9", "max_ns": "max"}
    traces = [
        {
            "type": "scatter",
            "mode": "lines" if len(rows) > 1 else "markers",
            "name": name,
            "x": [_time(row["time_ns"]) for row in rows],
            "y": [max(1, row[key]) for row in rows],
            "line": {
                "width": 2 if number < 4 else 1,
                "color": PALETTE[(2, 5, 0, 1, 6)[number]],
                "shape": "hvh",
            },
            "hovertemplate": "%{y:.3s} ns",
        }
        for number, (key, name) in enumerate(lines.items())
    ]
    values = [row[key] for row in rows for key in lines] or [1]
    return _figure(traces, _latency_axis(min(values), max(values)), hovermode="x unified")


def _heat(overview: Overview) -> dict[str, Any]:
    counts = {(row["time_ns"], row["bin"]): row["count"] for row in overview.heat}
    if not counts:
        return _figure([], {})
    width = overview.bucket_ns
    first, last = min(time for time, _ in counts), max(time for time, _ in counts)
    low, high = min(power for _, power in counts), max(power for _, power in counts)
    times = range(first, last + 1, width)
    grid = [[counts.get((time, power)) for time in times] for power in range(low, high + 1)]
    trace = {
        "type": "heatmap",
        "x": [_time(time + width // 2) for time in times],
        "y": [10 ** ((power + 0.5) / BINS) for power in range(low, high + 1)],
        "z": [[None if count is None else math.log10(count) for count in row] for row in grid],
        "customdata": grid,
        "colorscale": [[0, "#2b4a8b"], [0.35, "#2a9d8f"], [0.7, "#e9c46a"], [1, "#e76f51"]],
        "showscale": False,
        "hovertemplate": "%{customdata} publishes<br>about %{y:.2s} ns<extra></extra>",
    }
    return _figure([trace], _latency_axis(10 ** (low / BINS), 10 ** ((high + 1) / BINS)))


def _throughput(overview: Overview) -> dict[str, Any]:
    seconds = overview.bucket_ns / 1e9
    names = [row["topic"] for row in overview.topics[:SERIES]] + [None]
    times = sorted({row["time_ns"] for row in overview.throughput})
    cells = {(row["time_ns"], row["topic"]): row["bytes"] / seconds for row in overview.throughput}
    width = overview.bucket_ns
    grid = list(range(times[0], times[-1] + 1, width)) if times else []
    traces = [
        {
            "type": "bar",
            "name": "all others" if name is None else short(name, 40),
            "x": [_time(time + width // 2) for time in grid],
            "y": [cells.get((time, name), 0) for time in grid],
            "marker": {
                "color": PALETTE[min(number if name is not None else SERIES, SERIES)],
                "line": {"width": 0},
            },
            "hovertemplate": "%{y:.3s}B/s",
        }
        for number, name in enumerate(names)
        if any((time, name) in cells for time in grid)
    ]
    axis = {"ticksuffix": "B/s", "tickformat": "~s", "rangemode": "tozero"}
    return _figure(traces, axis, barmode="stack", bargap=0, hovermode="x unified")


def _errors(overview: Overview) -> dict[str, Any]:
    names = sorted({str(row["error"]) for row in overview.errors_over_time})
    width = overview.bucket_ns
    traces = [
        {
            "type": "bar",
            "name": short(name),
            "x": [
                _time(row["time_ns"] + width // 2)
                for row in overview.errors_over_time
                if str(row["error"]) == name
            ],
            "y": [row["count"] for row in overview.errors_over_time if str(row["error"]) == name],
            "width": max(width / 1e6, 1),
            "marker": {"color": PALETTE[number % SERIES]},
            "hovertemplate": "%{y}",
        }
        for number, name in enumerate(names)
    ]
    start, stop = overview.totals["first_ns"], overview.totals["last_ns"]
    axis = {"type": "date"} | (
        {"range": [_time(start - width), _time(stop + width)]} if start is not None else {}
    )
    figure = _figure(traces, {"rangemode": "tozero", "tickformat": "d"}, barmode="stack")
    figure["layout"]["xaxis"] = axis
    return figure


def _timeline(overview: Overview) -> dict[str, Any]:
    rows = [row for row in overview.connections if row["first_ns"] is not None]
    labels = [f"{row['connection']}  {short(row['client'], 24)}" for row in rows]
    traces = []
    for ended, colour in _ENDS.items():
        mine = [(label, row) for label, row in zip(labels, rows, strict=True) if row["ended"] == ended]
        if not mine:
            continue
        x: list[str | None] = []
        y: list[str | None] = []
        about: list[str | None] = []
        for label, row in mine:
            size = row["bytes_to_broker"] + row["bytes_from_broker"]
            client = short(row["client_version"] or "unknown client")
            text = f"{client}<br>{size:,} bytes, {row['errors']} errors"
            x += [_time(row["first_ns"]), _time(row["last_ns"]), None]
            y += [label, label, None]
            about += [text, text, None]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": ended,
                "x": x,
                "y": y,
                "text": about,
                "connectgaps": False,
                "line": {"width": 7, "color": PALETTE[colour]},
                "marker": {"size": 7, "color": PALETTE[colour]},
                "hovertemplate": "%{y}<br>%{x|%H:%M:%S.%L}<br>%{text}<extra></extra>",
            }
        )
    axis = {"type": "category", "categoryorder": "array", "categoryarray": labels, "autorange": "reversed"}
    return _figure(traces, axis | {"automargin": True}, showlegend=True, rows=len(rows))


# -- the document

_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
)


def _document(title: str, subtitle: str, body: str, *, with_plots: bool = False) -> str:
    scripts = f"<script>{get_plotlyjs()}</script><script>{_SCRIPT}</script>" if with_plots else ""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{plain(title)}</title><style>{_STYLE}</style></head>"
        f"<body><header><h1>{plain(title)}</h1><p>{plain(subtitle)}</p></header><main>{body}</main>"
        f"<footer>pwire report</footer>{scripts}</body></html>\n"
    )


_STYLE: Final = """
:root{--bg:#f5f6f9;--panel:#fff;--ink:#1b2130;--soft:#667085;--line:#e4e7ee;--grid:#e9ecf2;--accent:#4c7ef3;
--good:#1f9d74;--warn:#c27c0e;--bad:#d43f5e}
@media(prefers-color-scheme:dark){:root{--bg:#0f131b;--panel:#171c27;--ink:#e6e9f0;--soft:#929db2;--line:#262d3c;
--grid:#252c3a;--accent:#7ea2ff;--good:#4cc79a;--warn:#eab04c;--bad:#ff7591}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:14px/1.5 Inter,system-ui,-apple-system,"Segoe UI",
Roboto,"Helvetica Neue",Arial,sans-serif;-webkit-font-smoothing:antialiased}
header,main,footer{max-width:1440px;margin:0 auto;padding:0 28px}
header{padding-top:36px}
h1{font-size:26px;font-weight:650;letter-spacing:-.02em;margin:0;overflow-wrap:anywhere}
header p,small,footer,.card span,.none{color:var(--soft)}
header p{margin:4px 0 24px;font-variant-numeric:tabular-nums}
main{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,560px),1fr));gap:18px}
section{background:var(--panel);border:1px solid var(--line);border-radius:12px;padding:18px 20px;min-width:0}
.wide,.cards{grid-column:1/-1}
h2{font-size:15px;font-weight:620;margin:0 0 10px}
h2 small{font-size:12.5px;font-weight:400;margin-left:6px}
.cards{background:none;border:0;padding:0;display:grid;grid-template-columns:repeat(auto-fit,minmax(220px,1fr));gap:12px}
.card{background:var(--panel);border:1px solid var(--line);border-radius:12px;padding:14px 16px;display:flex;
flex-direction:column;min-width:0}
.card h3{font-size:12px;font-weight:500;color:var(--soft);margin:0}
.card b{font-size:25px;font-weight:640;letter-spacing:-.02em;line-height:1.35;
font-variant-numeric:tabular-nums}
.card span{font-size:12px}
.good b{color:var(--good)}.warn b{color:var(--warn)}.bad b{color:var(--bad)}
.plot{height:300px}
.pair{display:grid;gap:6px 24px;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr))}
.pair .plot{min-width:0}
.scroll{overflow-x:auto;margin:0 -20px;padding:0 20px}
table{border-collapse:collapse;width:100%;font-size:13px}
th{text-align:left;font-weight:500;font-size:12px;color:var(--soft);border-bottom:1px solid var(--line);
padding:5px 14px 5px 0;white-space:nowrap}
td{padding:6px 14px 6px 0;border-bottom:1px solid var(--line);vertical-align:top;min-width:64px;
overflow-wrap:anywhere}
tbody tr:last-child td{border-bottom:0}
tbody tr:hover td{background:color-mix(in srgb,var(--accent) 7%,transparent)}
.n{font-variant-numeric:tabular-nums}.n,.w{white-space:nowrap}
td[style]{background:linear-gradient(90deg,color-mix(in srgb,var(--accent) 28%,transparent)
calc(var(--share)*100%),transparent 0) no-repeat 0 50%/calc(100% - 14px) 62%}
footer{padding-top:26px;padding-bottom:40px;font-size:12px}
"""

_SCRIPT: Final = """
"use strict";
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const look = layout => {
  const axis = {gridcolor: css("--grid"), linecolor: css("--line"), zerolinecolor: css("--grid")};
  return {...layout, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: {family: getComputedStyle(document.body).fontFamily, size: 12, color: css("--soft")},
    margin: {l: 62, r: 8, t: 8, b: 46},
    legend: {orientation: "h", y: 1.02, yanchor: "bottom", x: 0, traceorder: "normal"},
    hoverlabel: {bgcolor: css("--panel"), bordercolor: css("--line"), font: {color: css("--ink")},
      namelength: -1},
    xaxis: {...layout.xaxis, ...axis}, yaxis: {...layout.yaxis, ...axis}};
};
const figures = [...document.querySelectorAll("script.figure")].map(script => {
  const at = document.getElementById(script.dataset.for), figure = JSON.parse(script.textContent);
  if (figure.layout.rows) at.style.height = Math.max(180, 90 + 17 * figure.layout.rows) + "px";
  delete figure.layout.rows;
  return [at, figure];
});
const draw = () => figures.forEach(([at, figure]) => Plotly.react(at, figure.data, look(figure.layout),
  {responsive: true, displayModeBar: false, typesetMath: false}));
draw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
"""
