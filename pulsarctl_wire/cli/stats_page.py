"""The counts of `pwire stats` for people: a heading, and a table for each thing that was counted by.

On a terminal tables have bars and sparklines and are as wide as it is: names are wrapped, then the
columns that matter least go. In a pipe everything is there, as plain aligned text.
"""

import io
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pulsarctl_wire.cli.console import clean, human_bytes, human_time, narrow, rich_console
from pulsarctl_wire.stats import NAMES, OTHERS, PERCENTILES
from pulsarctl_wire.wire.ending import PULSAR, without_data_in_words

Record = dict[str, Any]

_LEVELS: Final = " ▁▂▃▄▅▆▇█"
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_PERSISTENT: Final = "persistent://"
_LEAST: Final = 24  # cells that a name keeps, where there is one
_LEAST_OF_SEVERAL: Final = 15
_GAP: Final = 2
_QUANTILES: Final = {"p50": 3, "p90": 8, "p99": 2, "p999": 9, "max": 6}  # name -> rank of its column
_TITLES: Final = {"p999": "p99.9"}


class Column(NamedTuple):
    """A column: title, text of a record, how soon it goes where there is no room (0: never)."""

    title: str
    text: Callable[[Record], str]
    rank: int = 0
    style: str = ""
    is_name: bool = False


def page(total: Record, tables: dict[str, list[Record]], sizes: dict[str, int]) -> str:
    """The whole page. `tables` are records by kind, `sizes` how many rows of each kind there are in all."""
    terminal = _is_terminal()
    width = shutil.get_terminal_size().columns if terminal else 1_000_000
    console = rich_console(sys.stdout, file=io.StringIO(), width=width)
    with console.capture() as capture:
        for name, said in _heading(total, terminal, width):
            _print_line(console, name, said)
        for by, records in tables.items():
            console.print()
            for part in _table(by, records, sizes[by], terminal, width):
                console.print(part)
    return "".join(line.rstrip() + "\n" for line in capture.get().splitlines())


def _is_terminal() -> bool:
    return sys.stdout.isatty()


# -- the heading


def _print_line(console: Console, name: str, said: Text) -> None:
    """A line of the heading; what does not fit goes on below."""
    indent = 13 if name else 0
    head = Text(f"  {name:11}" if name else "", "dim")
    for line in said.wrap(console, max(console.width - indent, 20)):
        line.rstrip()
        console.print(Text.assemble(head, line))
        head = Text(" " * indent)


def _heading(total: Record, terminal: bool, width: int) -> Iterator[tuple[str, Text]]:
    seconds = "" if total["seconds"] is None else f" in {total['seconds']:.3f} s"
    packets = f"{_count(total['packets'], 'packet')}, " if total["packets"] else ""
    other = total["other_connections"]
    others = f" (and {other} without Pulsar frames)" if other else ""
    said = (
        f"{packets}{_count(total['connections'], 'connection')}{others}, {_count(total['frames'], 'frame')}"
    )
    yield "", Text(f"{said}{seconds}, {human_bytes(total['bytes'])}", "bold")
    if total["frames_per_s"] is not None:
        rate = f"{_rate(total['frames_per_s'])} frames/s, {human_bytes(round(total['bytes_per_s']))}/s"
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
            yield name, Text(f"{_number(times['count'])}: {quantiles}")
    if total["sent"] or total["delivered"] or total["invalid_checksums"]:
        invalid = total["invalid_checksums"]
        yield "checksums", Text(f"{_number(invalid)} invalid", "bold red" if invalid else "")
    if total["without_data"]:
        yield "no data", Text(without_data_in_words(total["without_data"]), "yellow")
    if total["errors"]:
        yield "errors", Text(_number(total["errors"]), "bold red")
    damage = ", ".join(_damage(total))
    if damage:
        yield "damage", Text(damage, "yellow")


def _messages(total: Record) -> Iterator[str]:
    for name in ("sent", "delivered"):
        rate = total[f"{name}_per_s"]
        yield f"{_number(total[name])} {name}" + (f" ({_rate(rate)}/s)" if rate else "")


def _damage(total: Record) -> Iterator[str]:
    if total["malformed"]:
        yield f"{_number(total['malformed'])} malformed ({total['malformed_bytes']} bytes)"
    if total["gaps"]:
        yield f"{_count(total['gaps'], 'gap')} ({total['gap_bytes']} bytes)"
    if total["partial"]:
        yield _count(total["partial"], "partial frame")
    if total["cut_packets"]:
        yield f"{_count(total['cut_packets'], 'packet')} cut by the snap length"
    if total["dropped_packets"]:
        yield f"{_count(total['dropped_packets'], 'packet')} dropped by the kernel"


# -- a table


def _table(by: str, records: list[Record], size: int, terminal: bool, width: int) -> Iterator[Text | Table]:
    of = "answer" if by == "command" else "publish" if _any(records, "publish_ns") else "request"
    latency = f", times are {of} latencies" if any(map(_times(of), records)) else ""
    shown = sum(1 for record in records if record[NAMES[by][0]] != OTHERS)
    first = f", the first {shown} of {_number(size)}" if shown < size else ""
    yield Text.assemble((f"by {by}", "bold"), (f"{first}{latency}", "dim"))
    if not records:
        yield Text("  none", "dim")
        return
    columns = list(_columns(by, records, of, terminal))
    texts = [[clean(column.text(record)) for column in columns] for record in records]
    widths = [
        max(cell_len(column.title), *(cell_len(row[at]) for row in texts))
        for at, column in enumerate(columns)
    ]
    kept = _fit(columns, widths, width)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    for at in kept:
        column = columns[at]
        left = column.is_name or not column.title
        table.add_column(column.title, justify="left" if left else "right", width=widths[at], overflow="fold")
    for row in texts:
        table.add_row(*(_cell(columns[at], row[at]) for at in kept))
    yield table


def _cell(column: Column, text: str) -> Text:
    return Text(text, "" if text == "0" and "red" in column.style else column.style)


def _fit(columns: list[Column], widths: list[int], width: int) -> list[int]:
    """The columns that there is room for; names get narrower in `widths`."""
    kept = list(range(len(columns)))
    while (excess := sum(widths[at] + _GAP for at in kept) - _GAP - width) > 0:
        names = [at for at in kept if columns[at].is_name]
        least = _LEAST if len(names) == 1 else _LEAST_OF_SEVERAL
        slack = sum(max(0, widths[at] - least) for at in names)
        droppable = [at for at in kept if columns[at].rank]
        if excess <= slack or not droppable:
            narrow(widths, names, excess, 1)
            break
        else:
            kept.remove(max(droppable, key=lambda at: columns[at].rank))
    return kept


def _columns(by: str, records: list[Record], of: str, terminal: bool) -> Iterator[Column]:
    if by == "connection":
        yield Column("#", lambda record: "" if record["client"] is None else str(record["connection"]))
    for name in NAMES[by]:
        if name != "connection":
            yield Column(name, _name(name), style="cyan" if name == by else "", is_name=True)
    if by == "connection" and _any(records, "how"):
        yield Column("end", _end, 5, is_name=True)
    if by == "error":
        yield Column("times", lambda record: _number(record["frames"]), style="bold red")
    else:
        yield Column("frames", lambda record: _number(record["frames"]), 4)
    share = _share_of(records) if by == "error" else (lambda record: float(record["share"]))
    if by != "error":
        yield from _sizes(records)
    if terminal:
        yield Column("", lambda record: bar(share(record), 8), 5, "green")
    else:
        yield Column("share", lambda record: f"{share(record):.1%}")
    if by != "error":
        yield Column("frames/s", lambda record: _rate(record["frames_per_s"]), 12)
        yield Column("bytes/s", lambda record: _bytes_rate(record["bytes_per_s"]), 13)
    times = _times(of)
    if any(map(times, records)):
        for name, rank in _QUANTILES.items():
            yield Column(_title(name), _quantile(times, name), rank)
    if by != "error":
        yield from _wrongs(records)
    if terminal:
        yield Column("", lambda record: sparkline(record["series"], 10), 7, "cyan")


def _sizes(records: list[Record]) -> Iterator[Column]:
    for name in ("sent", "delivered"):
        if any(record[name] for record in records):
            yield Column(name, _counted(name), 11)
    yield Column("bytes", lambda record: human_bytes(record["bytes"]))


def _wrongs(records: list[Record]) -> Iterator[Column]:
    for name, title in (("errors", "errors"), ("invalid_checksums", "bad crc"), ("partial", "partial")):
        if any(record[name] for record in records):
            yield Column(title, _counted(name), 10, "bold red")


def _counted(name: str) -> Callable[[Record], str]:
    return lambda record: _number(record[name])


def _name(name: str) -> Callable[[Record], str]:
    def text(record: Record) -> str:
        value = record[name]
        if value is None:
            return OTHERS if name == "client" else "-"
        return str(value).removeprefix(_PERSISTENT) if name == "topic" else str(value)

    return text


def _end(record: Record) -> str:
    """How a connection went, and what it spoke if that is not Pulsar."""
    other = record["protocol"] if record["protocol"] != PULSAR else None
    return ", ".join(filter(None, (other, record["how"])))


def _times(of: str) -> Callable[[Record], Any]:
    if of == "answer":
        return lambda record: record["publish_ns"] or record["request_ns"]
    return lambda record: record[f"{of}_ns"]


def _quantile(times: Callable[[Record], Any], name: str) -> Callable[[Record], str]:
    return lambda record: human_time(found[name]) if (found := times(record)) else "-"


def _share_of(records: list[Record]) -> Callable[[Record], float]:
    whole = sum(record["frames"] for record in records)
    return lambda record: record["frames"] / whole


def _any(records: list[Record], name: str) -> bool:
    return any(record[name] for record in records)


def _title(name: str) -> str:
    return _TITLES.get(name, name)


# -- texts


def bar(share: float, width: int) -> str:
    """A bar of up to `width` cells for a share of 0 to 1; the smallest share has an eighth of a cell."""
    eighths = max(round(share * width * 8), 1 if share > 0 else 0)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (_EIGHTHS[rest] if rest else "")


def sparkline(series: list[int], width: int) -> str:
    """`series` as a line of at most `width` cells, neighbours taken together; a blank where it is 0."""
    if width <= 0 or not series:
        return ""
    step = -(-len(series) // width)
    sums = [sum(series[at : at + step]) for at in range(0, len(series), step)]
    most = max(sums)
    return "".join(_LEVELS[-(-each * 8 // most) if most else 0] for each in sums)


def _count(number: int, name: str) -> str:
    return f"{_number(number)} {name}{'' if number == 1 else 's'}"


def _number(number: int) -> str:
    return f"{number:,}"


def _rate(rate: float | None) -> str:
    if rate is None:
        return "-"
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _bytes_rate(rate: float | None) -> str:
    return "-" if rate is None else f"{human_bytes(round(rate))}/s"
