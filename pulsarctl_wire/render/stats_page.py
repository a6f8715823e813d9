"""Renders the statistics of `pwire stats` for people: a heading, and a table for each kind of row.

On a terminal tables have bars and sparklines, and are fitted to its width: first names are wrapped, then less
important columns are dropped. In a pipe there are all columns, as plain aligned text.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from pulsarctl_wire.render.columns import PERSISTENT, Column, counted, fit, grid, measured, rate_text
from pulsarctl_wire.render.text import human_bytes, human_time, rich_text
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
    """The page, for a terminal of `width` cells; None for a pipe.

    `tables` are the records to show by kind, `sizes` the total number of rows of each kind.
    """
    terminal = width is not None
    width = width or 1_000_000
    parts: list[RenderableType] = []
    for name, text in _heading(total, terminal, width):
        parts += _lines(name, text, width)
    for by, records in tables.items():
        parts += ("", *_table(by, records, sizes[by], terminal, width))
    return rich_text(parts, width, "standard" if colour else None)


# -- the heading


def _lines(name: str, text: Text, width: int) -> Iterator[Text]:
    """A line of the heading, wrapped to `width`."""
    indent = 13 if name else 0
    head = Text(f"  {name:11}" if name else "", "dim")
    for line in text.wrap(Console(width=width), max(width - indent, 20)):
        line.rstrip()
        yield Text.assemble(head, line)
        head = Text(" " * indent)


def _heading(total: Figures, terminal: bool, width: int) -> Iterator[tuple[str, Text]]:
    seconds = "" if total["seconds"] is None else f" in {total['seconds']:.3f} s"
    packets = f"{counted(total['packets'], 'packet')}, " if total["packets"] else ""
    other = total["other_connections"]
    others = f" (and {other} without Pulsar frames)" if other else ""
    text = (
        f"{packets}{counted(total['connections'], 'connection')}{others}, {counted(total['frames'], 'frame')}"
    )
    yield "", Text(f"{text}{seconds}, {human_bytes(total['bytes'])}", "bold")
    if total["frames_per_s"] is not None:
        rate = f"{rate_text(total['frames_per_s'])} frames/s, {human_bytes(round(total['bytes_per_s']))}/s"
        room = min(48, width - 15 - len(rate)) if terminal else 0
        line = sparkline(total["series"], room).rstrip()
        yield "rate", Text.assemble(rate, (f"  {line}" if line else "", "cyan"))
    if total["sent"] or total["delivered"]:
        yield "messages", Text(", ".join(_messages(total)))
    for name, key in (("publishes", "publish_ns"), ("requests", "request_ns")):
        if total[key]:
            times = total[key]
            names = [each for each in (*PERCENTILES, "max") if width >= 100 or each != "p90"]
            quantiles = ", ".join(f"{_title(each)} {human_time(times[each])}" for each in names)
            unanswered = total["unanswered_sends"] if key == "publish_ns" else 0
            more = f" ({unanswered:,} unanswered)" if unanswered else ""
            yield name, Text(f"{times['count']:,}{more}: {quantiles}")
    if total["sent"] or total["delivered"] or total["invalid_checksums"]:
        invalid = total["invalid_checksums"]
        yield "checksums", Text(f"{invalid:,} invalid", "bold red" if invalid else "")
    if total["without_data"]:
        yield "no data", Text(without_data_in_words(total["without_data"]), "yellow")
    if total["errors"]:
        yield "errors", Text(f"{total['errors']:,}", "bold red")
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
        yield f"{counted(total['gaps'], 'gap')} ({total['gap_bytes']} bytes)"
    if total["partial"]:
        yield counted(total["partial"], "partial frame")
    if total["cut_packets"]:
        yield f"{counted(total['cut_packets'], 'packet')} cut by the snap length"
    if total["dropped_packets"]:
        yield f"{counted(total['dropped_packets'], 'packet')} dropped by the kernel"


# -- a table


def _table(by: str, records: list[Figures], size: int, terminal: bool, width: int) -> Iterator[Text | Table]:
    of = "answer" if by == "command" else "publish" if _any(records, "publish_ns") else "request"
    latency = f", times are {of} latencies" if any(map(_times(of), records)) else ""
    shown = sum(1 for record in records if record[NAMES[by][0]] != OTHERS)
    first = f", the first {shown} of {size:,}" if shown < size else ""
    yield Text.assemble((f"by {by}", "bold"), (f"{first}{latency}", "dim"))
    if not records:
        yield Text("  none", "dim")
        return
    columns = list(_columns(by, records, of, terminal))
    texts, widths = measured(columns, records)
    kept = fit(columns, widths, width)
    table = grid()
    for at in kept:
        column = columns[at]
        left = column.is_name or not column.title
        table.add_column(column.title, justify="left" if left else "right", width=widths[at], overflow="fold")
    for row in texts:
        table.add_row(*(_cell(columns[at], row[at]) for at in kept))
    yield table


def _cell(column: Column, text: str) -> Text:
    return Text(text, "" if text == "0" and "red" in column.style else column.style)


def _columns(by: str, records: list[Figures], of: str, terminal: bool) -> Iterator[Column]:
    if by == "connection":
        yield Column("#", lambda record: "" if record["client"] is None else str(record["connection"]))
    for name in NAMES[by]:
        if name != "connection":
            yield Column(name, _name(name), style="cyan" if name == by else "", is_name=True)
    if by == "connection" and _any(records, "how"):
        yield Column("end", _end, 5, is_name=True)
    if by == "error":
        yield Column("times", lambda record: f"{record['frames']:,}", style="bold red")
    else:
        yield Column("frames", lambda record: f"{record['frames']:,}", 4)
    share = _share_of(records) if by == "error" else (lambda record: float(record["share"]))
    if by != "error":
        yield from _sizes(records)
    if terminal:
        yield Column("", lambda record: bar(share(record), 8), 5, "green")
    else:
        yield Column("share", lambda record: f"{share(record):.1%}")
    if by != "error":
        yield Column("frames/s", lambda record: rate_text(record["frames_per_s"]), 12)
        yield Column("bytes/s", lambda record: _bytes_rate(record["bytes_per_s"]), 13)
    times = _times(of)
    if any(map(times, records)):
        for name, rank in _QUANTILES.items():
            yield Column(_title(name), _quantile(times, name), rank)
    if by != "error":
        yield from _wrongs(records)
    if terminal:
        yield Column("", lambda record: sparkline(record["series"], 10), 7, "cyan")


def _sizes(records: list[Figures]) -> Iterator[Column]:
    for name in ("sent", "delivered"):
        if any(record[name] for record in records):
            yield Column(name, _counted(name), 11)
    yield Column("bytes", lambda record: human_bytes(record["bytes"]))


_WRONGS: Final = {
    "errors": "errors",
    "unanswered_sends": "unanswered",
    "invalid_checksums": "bad crc",
    "partial": "partial",
}
"""Counts of errors -> titles of their columns."""


def _wrongs(records: list[Figures]) -> Iterator[Column]:
    for name, title in _WRONGS.items():
        if any(record[name] for record in records):
            yield Column(title, _counted(name), 14 if name == "unanswered_sends" else 10, "bold red")


def _counted(name: str) -> Callable[[Figures], str]:
    return lambda record: f"{record[name]:,}"


def _name(name: str) -> Callable[[Figures], str]:
    def text(record: Figures) -> str:
        value = record[name]
        if value is None:
            return OTHERS if name == "client" else "-"
        return str(value).removeprefix(PERSISTENT) if name == "topic" else str(value)

    return text


def _end(record: Figures) -> str:
    """How a connection ended, and its protocol if that is not Pulsar."""
    other = record["protocol"] if record["protocol"] != PULSAR else None
    return ", ".join(filter(None, (other, record["how"])))


def _times(of: str) -> Callable[[Figures], Any]:
    if of == "answer":
        return lambda record: record["publish_ns"] or record["request_ns"]
    return lambda record: record[f"{of}_ns"]


def _quantile(times: Callable[[Figures], Any], name: str) -> Callable[[Figures], str]:
    return lambda record: human_time(found[name]) if (found := times(record)) else "-"


def _share_of(records: list[Figures]) -> Callable[[Figures], float]:
    whole = sum(record["frames"] for record in records)
    return lambda record: record["frames"] / whole


def _any(records: list[Figures], name: str) -> bool:
    return any(record[name] for record in records)


def _title(name: str) -> str:
    return _TITLES.get(name, name)


# -- texts


def bar(share: float, width: int) -> str:
    """A bar of up to `width` cells for a share from 0 to 1, at least an eighth of a cell if it is not 0."""
    eighths = max(round(share * width * 8), 1 if share > 0 else 0)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (_EIGHTHS[rest] if rest else "")


def sparkline(series: list[int], width: int) -> str:
    """`series` as a line of at most `width` cells; neighbours are added up, and 0 is blank."""
    if width <= 0 or not series:
        return ""
    step = -(-len(series) // width)
    sums = [sum(series[at : at + step]) for at in range(0, len(series), step)]
    most = max(sums)
    return "".join(LEVELS[-(-each * 8 // most) if most else 0] for each in sums)


def _bytes_rate(rate: float | None) -> str:
    return "-" if rate is None else f"{human_bytes(round(rate))}/s"
