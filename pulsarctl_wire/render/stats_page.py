"""The statistics of `pwire stats` for people: a heading, and a table for each kind of row.

On a terminal tables have bars and sparklines, and are fitted to its width: names are wrapped, and if that is
not enough, less important columns are dropped. In a pipe there are all columns, as plain aligned text.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from pulsarctl_wire.render.columns import PERSISTENT, Column, count_text, fit, grid, measure, rate_text
from pulsarctl_wire.render.text import copies_in_words, human_bytes, human_time, rich_text, skipped_in_words
from pulsarctl_wire.stats.latencies import PERCENTILES
from pulsarctl_wire.stats.report import Figures
from pulsarctl_wire.stats.rows import NAMES, OTHERS
from pulsarctl_wire.wire.session.ending import PULSAR, without_data_in_words

LEVELS: Final = " ▁▂▃▄▅▆▇█"
"""A cell that is filled from below, from 0 to 8 eighths."""
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_QUANTILES: Final = {"p50": 3, "p90": 8, "p99": 2, "p999": 9, "max": 6}  # name -> rank of its column
_TITLES: Final = {"p999": "p99.9"}


def page(
    total: Figures, tables: dict[str, list[Figures]], sizes: dict[str, int], width: int | None, colour: bool
) -> str:
    """Render the page, for a terminal of `width` cells; None for a pipe.

    `tables` are the records to show by kind, `sizes` the total number of rows of each kind.
    """
    terminal = width is not None
    width = width or 1_000_000
    parts: list[RenderableType] = []
    for name, text in _heading(total, terminal, width):
        parts += _lines(name, text, width)
    for kind, records in tables.items():
        parts += ("", *_table(kind, records, sizes[kind], terminal, width))
    return rich_text(parts, width, "standard" if colour else None)


# -- the heading


def _lines(name: str, text: Text, width: int) -> Iterator[Text]:
    """Wrap a line of the heading to `width`."""
    indent = 13 if name else 0
    head = Text(f"  {name:11}" if name else "", "dim")
    for line in text.wrap(Console(width=width), max(width - indent, 20)):
        line.rstrip()
        yield Text.assemble(head, line)
        head = Text(" " * indent)


def _heading(total: Figures, terminal: bool, width: int) -> Iterator[tuple[str, Text]]:
    seconds = "" if total["seconds"] is None else f" in {total['seconds']:.3f} s"
    packets = f"{count_text(total['packets'], 'packet')}, " if total["packets"] else ""
    other_count = total["other_connections"]
    others = f" (and {other_count} without Pulsar frames)" if other_count else ""
    connections = count_text(total["connections"], "connection")
    text = f"{packets}{connections}{others}, {count_text(total['frames'], 'frame')}"
    yield "", Text(f"{text}{seconds}, {human_bytes(total['bytes'])}", "bold")
    if total["frames_per_s"] is not None:
        rate = f"{rate_text(total['frames_per_s'])} frames/s, {human_bytes(round(total['bytes_per_s']))}/s"
        line_width = min(48, width - 15 - len(rate)) if terminal else 0
        line = sparkline(total["series"], line_width).rstrip()
        yield "rate", Text.assemble(rate, (f"  {line}" if line else "", "cyan"))
    if total["sent"] or total["delivered"]:
        yield "messages", Text(", ".join(_messages(total)))
    for name, key in (("publishes", "publish_ns"), ("requests", "request_ns")):
        if total[key]:
            times = total[key]
            names = [quantile for quantile in (*PERCENTILES, "max") if width >= 100 or quantile != "p90"]
            quantiles = ", ".join(f"{_title(quantile)} {human_time(times[quantile])}" for quantile in names)
            unanswered = total["unanswered_sends"] if key == "publish_ns" else 0
            note = f" ({unanswered:,} unanswered)" if unanswered else ""
            yield name, Text(f"{times['count']:,}{note}: {quantiles}")
    if total["sent"] or total["delivered"] or total["invalid_checksums"]:
        invalid = total["invalid_checksums"]
        yield "checksums", Text(f"{invalid:,} invalid", "bold red" if invalid else "")
    if total["without_data"]:
        yield "no data", Text(without_data_in_words(total["without_data"]), "yellow")
    if total["errors"]:
        yield "errors", Text(f"{total['errors']:,}", "bold red")
    if total["copied_packets"]:
        yield "copies", Text(copies_in_words(total["copied_packets"], total["longer_copies"]))
    if total["skipped_packets"]:
        yield "skipped", Text(skipped_in_words(total["skipped_packets"]))
    damage = ", ".join(_damage(total))
    if damage:
        yield "damage", Text(damage, "yellow")


def _messages(total: Figures) -> Iterator[str]:
    for name in ("sent", "delivered"):
        rate = total[f"{name}_per_s"]
        yield f"{total[name]:,} {name}" + (f" ({rate_text(rate)}/s)" if rate else "")


def _damage(total: Figures) -> Iterator[str]:
    if total["malformed"]:
        yield f"{total['malformed']:,} malformed ({total['malformed_bytes']} bytes)"
    if total["gaps"]:
        yield f"{count_text(total['gaps'], 'gap')} ({total['gap_bytes']} bytes)"
    if total["partial"]:
        yield count_text(total["partial"], "partial frame")
    if total["cut_packets"]:
        yield f"{count_text(total['cut_packets'], 'packet')} cut by the snap length"
    if total["dropped_packets"]:
        yield f"{count_text(total['dropped_packets'], 'packet')} dropped by the kernel"


# -- a table


def _table(
    kind: str, records: list[Figures], size: int, terminal: bool, width: int
) -> Iterator[Text | Table]:
    timing = "answer" if kind == "command" else "publish" if _has_any(records, "publish_ns") else "request"
    latency = f", times are {timing} latencies" if any(map(_times(timing), records)) else ""
    row_count = sum(1 for record in records if record[NAMES[kind][0]] != OTHERS)
    first = f", the first {row_count} of {size:,}" if row_count < size else ""
    yield Text.assemble((f"by {kind}", "bold"), (f"{first}{latency}", "dim"))
    if not records:
        yield Text("  none", "dim")
        return
    columns = list(_columns(kind, records, timing, terminal))
    texts, widths = measure(columns, records)
    indices = fit(columns, widths, width)
    table = grid()
    for i in indices:
        column = columns[i]
        is_left = column.is_name or not column.title
        table.add_column(
            column.title, justify="left" if is_left else "right", width=widths[i], overflow="fold"
        )
    for row in texts:
        table.add_row(*(_cell(columns[i], row[i]) for i in indices))
    yield table


def _cell(column: Column, text: str) -> Text:
    return Text(text, "" if text == "0" and "red" in column.style else column.style)


def _columns(kind: str, records: list[Figures], timing: str, terminal: bool) -> Iterator[Column]:
    if kind == "connection":
        yield Column("#", lambda record: "" if record["client"] is None else str(record["connection"]))
    for name in NAMES[kind]:
        if name != "connection":
            yield Column(name, _name(name), style="cyan" if name == kind else "", is_name=True)
    if kind == "connection" and _has_any(records, "how"):
        yield Column("end", _end, 5, is_name=True)
    if kind == "error":
        yield Column("times", lambda record: f"{record['frames']:,}", style="bold red")
    else:
        yield Column("frames", lambda record: f"{record['frames']:,}", 4)
    share = _share_of(records) if kind == "error" else (lambda record: float(record["share"]))
    if kind != "error":
        yield from _sizes(records)
    if terminal:
        yield Column("", lambda record: bar(share(record), 8), 5, "green")
    else:
        yield Column("share", lambda record: f"{share(record):.1%}")
    if kind != "error":
        yield Column("frames/s", lambda record: rate_text(record["frames_per_s"]), 12)
        yield Column("bytes/s", lambda record: _bytes_rate(record["bytes_per_s"]), 13)
    times = _times(timing)
    if any(map(times, records)):
        for name, rank in _QUANTILES.items():
            yield Column(_title(name), _quantile(times, name), rank)
    if kind != "error":
        yield from _problem_columns(records)
    if terminal:
        yield Column("", lambda record: sparkline(record["series"], 10), 7, "cyan")


def _sizes(records: list[Figures]) -> Iterator[Column]:
    for name in ("sent", "delivered"):
        if any(record[name] for record in records):
            yield Column(name, _count_of(name), 11)
    yield Column("bytes", lambda record: human_bytes(record["bytes"]))


_PROBLEMS: Final = {
    "errors": "errors",
    "unanswered_sends": "unanswered",
    "invalid_checksums": "bad crc",
    "partial": "partial",
}
"""Counts of errors -> titles of their columns."""


def _problem_columns(records: list[Figures]) -> Iterator[Column]:
    for name, title in _PROBLEMS.items():
        if any(record[name] for record in records):
            yield Column(title, _count_of(name), 14 if name == "unanswered_sends" else 10, "bold red")


def _count_of(name: str) -> Callable[[Figures], str]:
    return lambda record: f"{record[name]:,}"


def _name(name: str) -> Callable[[Figures], str]:
    def text(record: Figures) -> str:
        value = record[name]
        if value is None:
            return OTHERS if name == "client" else "-"
        return str(value).removeprefix(PERSISTENT) if name == "topic" else str(value)

    return text


def _end(record: Figures) -> str:
    """Describe how a connection ended, and its protocol if that is not Pulsar."""
    protocol = record["protocol"] if record["protocol"] != PULSAR else None
    return ", ".join(filter(None, (protocol, record["how"])))


def _times(timing: str) -> Callable[[Figures], Any]:
    if timing == "answer":
        return lambda record: record["publish_ns"] or record["request_ns"]
    return lambda record: record[f"{timing}_ns"]


def _quantile(times: Callable[[Figures], Any], name: str) -> Callable[[Figures], str]:
    return lambda record: human_time(quantiles[name]) if (quantiles := times(record)) else "-"


def _share_of(records: list[Figures]) -> Callable[[Figures], float]:
    total = sum(record["frames"] for record in records)
    return lambda record: record["frames"] / total


def _has_any(records: list[Figures], name: str) -> bool:
    return any(record[name] for record in records)


def _title(name: str) -> str:
    return _TITLES.get(name, name)


# -- texts


def bar(share: float, width: int) -> str:
    """Draw a bar of up to `width` cells for a share from 0 to 1; one that is not 0 has at least an eighth."""
    eighths = max(round(share * width * 8), 1 if share > 0 else 0)
    full, remainder = divmod(eighths, 8)
    return "█" * full + (_EIGHTHS[remainder] if remainder else "")


def sparkline(series: list[int], width: int) -> str:
    """Draw `series` as a line of at most `width` cells; neighbours are added up, and 0 is blank."""
    if width <= 0 or not series:
        return ""
    step = -(-len(series) // width)
    sums = [sum(series[index : index + step]) for index in range(0, len(series), step)]
    highest = max(sums)
    return "".join(LEVELS[-(-value * 8 // highest) if highest else 0] for value in sums)


def _bytes_rate(rate: float | None) -> str:
    return "-" if rate is None else f"{human_bytes(round(rate))}/s"
