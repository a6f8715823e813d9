"""`pwire report`: answers to the usual questions, from a frames table by Spark."""

import csv
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pulsarctl_wire.cli import completion, console
from pulsarctl_wire.cli.options import CONF, OUTPUT, settings_of
from pulsarctl_wire.errors import how_to_install

if TYPE_CHECKING:
    from pulsarctl_wire.spark.reports import Report
    from pulsarctl_wire.spark.reports.base import Options, Tables
    from pulsarctl_wire.spark.reports.overview import Overview

ROWS: Final = 20
"""Rows of a table on the terminal, where `--top` says nothing else."""
_GAP: Final = 2
_NAMED: Final = 5  # columns
_LEAST: Final = 20
"""Cells that a column of texts keeps on a terminal, if it has as many."""
_UNITS: Final = {"us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}


class Output(str, Enum):
    """How a report is shown."""

    table = "table"
    json = "json"
    csv = "csv"
    html = "html"


MASTER = typer.Option("--master", metavar="URL", help="Where Spark runs: local[*], spark://HOST:7077, yarn.")


def report(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="Which report; without one they are listed.",
            show_default=False,
            autocompletion=completion.reports,
        ),
    ] = None,
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TABLE...",
            help="Frames tables that pwire table wrote, or directories that pwire analyze wrote.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[Output, OUTPUT] = Output.table,
    top: Annotated[
        int | None,
        typer.Option("--top", metavar="N", min=1, help="Rows at the most.", show_default="20 in tables"),
    ] = None,
    bucket: Annotated[
        str | None,
        typer.Option("--bucket", metavar="TIME", help="Width of time buckets: 500ms, 1s, 5m, 1h."),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option("--topic", metavar="TOPIC", help="A topic in any spelling, or a pattern with *."),
    ] = None,
    html: Annotated[
        str | None, typer.Option("--html", metavar="FILE", help="Write the report as a page of its own.")
    ] = None,
    master: Annotated[str, MASTER] = "local[*]",
    conf: Annotated[list[str] | None, CONF] = None,
) -> None:
    """Answer a question about captured traffic: latencies, throughput, errors, message journeys."""
    width = _nanoseconds(bucket)
    settings = settings_of(conf)
    from pulsarctl_wire.spark.reports import REPORTS

    if name is None:
        sys.stdout.writelines(f"{each.name:16} {each.about}\n" for each in REPORTS.values())
        return
    found = REPORTS.get(name)
    if found is None:
        hint = f"; its name comes first: pwire report summary {name}" if os.path.exists(name) else ""
        hint = hint or console.meant(name, REPORTS) or f"; they are: {', '.join(REPORTS)}"
        console.fail(f"report {name}: no such report{hint}", console.EXIT_USAGE)
    if not tables:
        console.fail(f"report {name}: name a TABLE, as pwire table writes it", console.EXIT_USAGE)
    with spark_errors():
        from pulsarctl_wire.spark.reports.base import Options, about

        with loaded(tables, master, settings) as (_, opened):
            chosen = about(opened, topic) if topic else opened
            say_what_is_missing(opened)
            _show(found, chosen, Options(width, top), output, html, title=", ".join(tables))


def _nanoseconds(text: str | None) -> int | None:
    """A span such as 500ms or 1.5s in ns."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(us|ms|s|m|h)", text.strip().replace("µ", "u"))
    width = round(float(match[1]) * _UNITS[match[2]]) if match else 0
    if not 1000 <= width <= 10**18:
        console.fail(f"--bucket {text}: a time such as 500ms, 1s, 5m or 1h", console.EXIT_USAGE)
    return width


@contextmanager
def spark_errors() -> Iterator[None]:
    """Whatever may go wrong with Spark, tables or output ends the command with one line."""
    try:
        from pulsarctl_wire.spark.reports import overview  # noqa: F401
    except ImportError:
        console.fail(f"Spark is not installed: {how_to_install('spark')}", console.EXIT_USAGE)
    from pulsarctl_wire.spark.session import SparkError

    with console.errors_said():
        try:
            yield
        except SparkError as error:  # a master, a setting or a query that is wrong
            text = re.sub(r"^\[[A-Z_.]+\] | SQLSTATE: \w+", "", " ".join(str(error).split()))
            console.fail(text, console.EXIT_USAGE)


@contextmanager
def loaded(paths: Sequence[str], master: str, conf: Mapping[str, str]) -> Iterator[tuple[Any, "Tables"]]:
    """A Spark session and the tables at `paths`; they are looked at before Spark starts."""
    from pulsarctl_wire.spark.reports.load import find, load, settings
    from pulsarctl_wire.spark.session import session

    found = find(paths)
    with session(master, settings(found) | dict(conf)) as spark:
        yield spark, load(spark, found)


def say_what_is_missing(tables: "Tables") -> None:
    """Say which columns `tables` lack."""
    lacks = sorted(tables.lacks)
    if lacks:
        more = f" and {len(lacks) - _NAMED} more" if len(lacks) > _NAMED else ""
        names = ", ".join(lacks[:_NAMED])
        console.complain(f"report: the table lacks {names}{more}: reports that need them are incomplete")


def _show(
    found: "Report", tables: "Tables", options: "Options", output: Output, html: str | None, *, title: str
) -> None:
    if found.name == "summary" and (html or output in (Output.html, Output.table)):
        from pulsarctl_wire.spark.page import summary_page
        from pulsarctl_wire.spark.reports.overview import collect

        wants_page = bool(html) or output == Output.html
        overview = collect(tables, options, plots=wants_page)
        if wants_page:
            _write_page(html, summary_page(overview, title, shown))
        else:
            print_overview(overview)
        return
    made = found.make(tables, options)
    if html or output == Output.html:
        from pulsarctl_wire.spark.page import table_page

        rows, _ = _first(made, options.top or 1000)
        _write_page(html, table_page(rows, made.columns, f"{found.name}: {title}", shown))
        return
    write(made, output, options.top)


def _write_page(path: str | None, page: str) -> None:
    if path is None:
        sys.stdout.write(page)
        return
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(page)
    except OSError as error:
        console.fail(f"--html {path}: {error.strerror or error}", console.EXIT_OUTPUT)


# -- rows on stdout


def write(made: Any, output: Output, top: int | None) -> None:
    """The rows of `made`: JSON lines and CSV with raw numbers, all of them; a table for people."""
    if output == Output.table:
        rows, more = _first(made, top or ROWS)
        print_table("", rows, made.columns, more=more)
        return
    chosen = made.limit(top) if top else made
    rows_of = (row.asDict(recursive=True) for row in chosen.toLocalIterator())
    if output == Output.json:
        import orjson

        for row in rows_of:
            sys.stdout.buffer.write(orjson.dumps(row, default=str, option=orjson.OPT_APPEND_NEWLINE))
        return
    writer = csv.DictWriter(sys.stdout, made.columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows_of)


def _first(made: Any, most: int) -> tuple[list[dict[str, Any]], bool]:
    """The first rows, and whether there are more."""
    rows = [row.asDict(recursive=True) for row in made.limit(most + 1).collect()]
    return rows[:most], len(rows) > most


def print_overview(overview: "Overview") -> None:
    """The summary on the terminal."""
    totals = overview.totals
    first, last = totals["first_ns"], totals["last_ns"]
    told = [
        {"": name.removesuffix("_ns").replace("_", " "), "total": shown(name, value)}
        for name, value in totals.items()
    ]
    if first is not None:
        told.insert(2, {"": "seconds", "total": f"{(last - first) / 1e9:.3f}"})
    print_table("totals", told, ["", "total"])
    percentiles = ["count", "p50_ns", "p90_ns", "p99_ns", "p999_ns", "max_ns"]
    for title, rows, columns in (
        (
            "topics",
            overview.topics,
            ["topic", "share", "bytes", "frames", "published", "delivered", "errors"],
        ),
        ("publish latency", overview.publish_latency, ["topic", "producer", *percentiles]),
        ("request latency", overview.request_latency, ["command", *percentiles, "errors"]),
        ("slowest", overview.slowest, ["latency_ns", "time_ns", "command", "answer", "topic", "connection"]),
        ("errors", overview.errors, ["error", "command", "topic", "client", "count", "example"]),
        (
            "bad checksums",
            overview.checksums,
            ["time_ns", "command", "topic", "connection", "file", "packet_offset"],
        ),
        ("gaps", overview.gaps, ["time_ns", "kind", "size", "reason", "connection"]),
    ):
        if rows:
            print_table(title, rows, columns)


def print_table(
    title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, more: bool = False
) -> None:
    """Rows for people, nothing cut; columns without a value are left out.

    On a terminal texts are wrapped to fit, and what does not fit even so is wider than the terminal.
    """
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    used = [name for name in columns if any(row.get(name) is not None for row in rows)] or list(columns)
    numbers = {name for name in used if any(isinstance(row.get(name), int | float) for row in rows)}
    headings = [name.removesuffix("_ns").replace("_", " ") for name in used]
    texts = [[console.clean(shown(name, row.get(name))) for name in used] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(headings, *texts, strict=True)]
    room = console.terminal_width(sys.stdout)
    if room is not None:
        names = [at for at, name in enumerate(used) if name not in numbers]
        console.narrow(widths, names, sum(widths) + _GAP * (len(widths) - 1) - room, _LEAST)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    for name, heading, width in zip(used, headings, widths, strict=True):
        side: Any = "right" if name in numbers else "left"
        table.add_column(Text(heading), justify=side, overflow="fold", width=width)
    for row in texts:
        table.add_row(*map(Text, row))
    width = max(sum(widths) + _GAP * len(widths), 80)
    terminal = console.rich_console(sys.stdout, width=width, soft_wrap=True)
    if title:
        terminal.print(Text(f"\n{title}", style="bold"))
    terminal.print(table)
    if more:
        terminal.print(Text("… and more: --top N shows as many, -o json all of them", style="dim"))
    if not rows:
        terminal.print(Text("nothing", style="dim"))


# -- values for people

_TIMES: Final = {
    "time_ns",
    "first_ns",
    "last_ns",
    "sent_ns",
    "receipt_ns",
    "delivered_ns",
    "acked_ns",
    "answered_ns",
}
_PLAIN: Final = re.compile(r"(^|_)(id|hash|connection|offset|port)$")


def shown(name: str, value: Any) -> str:
    """A value of column `name` with its unit, for people."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value).removeprefix("persistent://") if name == "topic" else str(value)
    if name in _TIMES or name.endswith("_time_ns"):
        return _moment(int(value))
    formats: dict[str, Callable[[Any], str]] = {
        "_ns": lambda number: console.human_time(int(number)),
        "bytes": lambda number: console.human_bytes(int(number)),
        "size": lambda number: console.human_bytes(int(number)),
        "bytes_per_s": lambda number: f"{console.human_bytes(int(number))}/s",
        "share": lambda number: f"{number:.1%}",
    }
    for ending, form in formats.items():
        if name.endswith(ending):
            return form(value)
    if "bytes_" in name:
        return console.human_bytes(int(value))
    if _PLAIN.search(name):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3g}"


def _moment(time_ns: int) -> str:
    seconds, rest = divmod(time_ns, 10**9)
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M:%S}.{rest // 1000:06}"
