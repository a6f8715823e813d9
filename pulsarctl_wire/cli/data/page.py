"""The HTML page of a report."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from pulsarctl_wire.cli.data import plots
from pulsarctl_wire.cli.data.values import render
from pulsarctl_wire.render import figure
from pulsarctl_wire.render.page import document, escape, section, table
from pulsarctl_wire.reports.engine import Row
from pulsarctl_wire.reports.overview import LINES, SERIES, Overview


def summary_page(overview: Overview, title: str) -> str:
    """Format the summary report as a page."""
    pair = plots.publish_lines(overview) + plots.heat_map(overview)
    latency = f'<div class="pair">{pair}</div>' if pair else ""
    largest = f"the {LINES} with the most bytes, in the order in which they began"
    sections = [
        _cards(overview),
        section("Publish latency", "SEND to SEND_RECEIPT", latency),
        section("Throughput", f"bytes of frames, the {SERIES} largest topics", plots.throughput(overview)),
        section("Errors", "what brokers reported", plots.errors(overview)),
        section("Connections", largest, plots.timeline(overview.connections)),
        *(
            section(name, note, _table(rows, columns), wide=wide)
            for name, note, rows, columns, wide in _tables(overview)
        ),
    ]
    return document("report", title, _span(overview.totals), "".join(sections), _STYLE + figure.STYLE)


def table_page(rows: Sequence[Row], columns: Sequence[str], title: str) -> str:
    """Format any other report as a page: its rows as a table."""
    return document("report", title, f"{len(rows)} rows", section("", "", _table(rows, columns)), _STYLE)


# -- parts of the page


def _span(totals: dict[str, Any]) -> str:
    if totals["first_ns"] is None:
        return "the capture has no times"
    return f"{render('first_ns', totals['first_ns'])} to {render('last_ns', totals['last_ns'])} UTC"


def _cards(overview: Overview) -> str:
    totals = overview.totals
    span = (totals["last_ns"] or 0) - (totals["first_ns"] or 0)
    sends = sum(row["count"] for row in overview.publish_over_time)
    p99 = [row["p99_ns"] for row in overview.publish_over_time]
    worst = render("p99_ns", max(p99)) if p99 else "none"
    damage = totals["gaps"] + totals["malformed"]
    damage_kind = "warn" if damage else "good"
    error_kind, checksum_kind = ("bad" if totals[name] else "good" for name in ("errors", "bad_checksums"))

    def total(name: str) -> str:
        return render("n", totals[name])

    cards = [
        ("Frames", total("frames"), render("bytes", totals["bytes"]), ""),
        ("Time", render("life_ns", span), f"buckets of {plots.bucket(overview)}", ""),
        ("Connections", total("connections"), f"{total('producers')} producers", ""),
        ("Topics", total("topics"), f"{total('subscriptions')} subscriptions", ""),
        ("Published", total("published"), "messages", ""),
        ("Delivered", total("delivered"), "messages", ""),
        ("Worst p99", worst, f"of {render('n', sends)} publishes, by bucket", ""),
        ("Errors", total("errors"), "by brokers", error_kind),
        ("Bad checksums", total("bad_checksums"), "CRC32-C of SEND and MESSAGE", checksum_kind),
        ("Damage", render("n", damage), f"{total('gaps')} gaps, {total('malformed')} malformed", damage_kind),
    ]
    return '<section class="cards">{}</section>'.format(
        "".join(
            f'<div class="card {kind}"><h3>{escape(name)}</h3><b>{escape(value)}</b>'
            f"<span>{escape(note)}</span></div>"
            for name, value, note, kind in cards
        )
    )


def _tables(overview: Overview) -> Iterable[tuple[str, str, Sequence[Row], Sequence[str], bool]]:
    percentiles = ("count", "p50_ns", "p90_ns", "p99_ns", "p999_ns", "max_ns")
    slowest = ("latency_ns", "time_ns", "command", "answer", "topic", "connection", "packet_offset")
    topics = (
        *("topic", "share", "bytes", "frames", "published", "delivered"),
        *("producers", "subscriptions", "errors"),
    )
    yield "Topics", "by bytes", overview.topics, topics, True
    producers = ("topic", "producer", *percentiles)
    yield "Publish latency", "by topic and producer", overview.publish_latency, producers, True
    yield "Slowest requests", "including publishes", overview.slowest, slowest, True
    yield "Request latency", "by command", overview.request_latency, ("command", *percentiles, "errors"), True
    errors = ("error", "command", "topic", "client", "count", "first_ns", "example")
    yield "Errors", "by code, topic and client", overview.errors, errors, True
    checksums = ("time_ns", "command", "topic", "connection", "bytes", "file", "packet_offset")
    yield "Bad checksums", "the captured bytes differ from those sent", overview.checksums, checksums, False
    gaps = ("time_ns", "kind", "size", "reason", "connection", "src", "dst")
    yield "Gaps", "bytes that were not captured, or are not frames", overview.gaps, gaps, False


_NUMERIC: Final = (int, float)


def _table(rows: Sequence[Row], columns: Sequence[str]) -> str:
    if not rows:
        return '<p class="none">none</p>'
    titles = [name.removesuffix("_ns").replace("_", " ") for name in columns]
    return table(titles, ("".join(_cell(name, row.get(name)) for name in columns) for row in rows))


def _cell(name: str, value: Any) -> str:
    kind = ' class="n"' if isinstance(value, _NUMERIC) and not isinstance(value, bool) else ""
    text = escape(render(name, value))
    if not kind and len(text) < 32:
        kind = ' class="w"'  # short text is not wrapped
    bar = f' style="--share:{min(1.0, value):.4f}"' if name == "share" and value is not None else ""
    return f"<td{kind}{bar}>{text}</td>"


_STYLE: Final = """
main{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,560px),1fr));gap:18px}
.wide,.cards{grid-column:1/-1}
.cards{background:none;border:0;padding:0;display:grid;grid-template-columns:repeat(auto-fit,minmax(220px,1fr));gap:12px}
.card{background:var(--panel);border:1px solid var(--line);border-radius:12px;padding:14px 16px;display:flex;
flex-direction:column;min-width:0}
.card h3{font-size:12px;font-weight:500;color:var(--soft);margin:0}
.card b{font-size:25px;font-weight:640;letter-spacing:-.02em;line-height:1.35;
font-variant-numeric:tabular-nums}
.card span{font-size:12px}
.good b{color:var(--good)}.warn b{color:var(--warn)}.bad b{color:var(--bad)}
.cell:hover,.bar:hover{opacity:.7}
.pair{display:grid;gap:18px 24px;grid-template-columns:repeat(auto-fit,minmax(min(100%,520px),1fr))}
@media(max-width:640px){header,main,footer{padding-left:12px;padding-right:12px}section{padding:14px 12px}
.cards{grid-template-columns:1fr 1fr}.card b{font-size:20px}}
td[style]{background:linear-gradient(90deg,color-mix(in srgb,var(--accent) 28%,transparent)
calc(var(--share)*100%),transparent 0) no-repeat 0 50%/calc(100% - 14px) 62%}
"""
