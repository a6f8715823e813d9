"""`pwire report`: runs predefined reports on a frames table, with Spark."""

import csv
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from pulsarctl_wire.cli import completion, console
from pulsarctl_wire.cli.data.values import shown
from pulsarctl_wire.cli.options import CONF, MASTER, OUTPUT, settings_of
from pulsarctl_wire.cli.signature import argument, option
from pulsarctl_wire.errors import how_to_install
from pulsarctl_wire.render.text import clean, did_you_mean, narrow
from pulsarctl_wire.spark import SparkError

if TYPE_CHECKING:
    from pulsarctl_wire.spark.reports import Report
    from pulsarctl_wire.spark.reports.base import Options, Tables
    from pulsarctl_wire.spark.reports.overview import Overview

ROWS: Final = 20
"""Rows of a table on the terminal, without `--top`."""
TOP: Final = partial(option, "--top N", "Maximum number of rows.", min=1, show_default=f"{ROWS} in tables")
_NAMED: Final = 5  # columns
_LEAST: Final = 20
"""Columns of text on a terminal are not narrowed below this many cells."""
_UNITS: Final = {"us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}

Output = Literal["table", "json", "csv", "html"]
"""How a report is shown."""


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """The command line of `report`."""

    name: str | None = argument(
        "[NAME]",
        "Name of the report; without it all reports are listed.",
        default=None,
        autocompletion=completion.reports,
    )
    tables: list[str] = argument(
        "TABLE...",
        "Frames tables, as written by pwire table (files) or pwire analyze (directories).",
        default=list,
    )
    output: Output = OUTPUT(default="table")
    top: int | None = TOP()
    bucket: str | None = option("--bucket TIME", "Width of time buckets: 500ms, 1s, 5m, 1h.")
    topic: str | None = option("--topic TOPIC", "A topic, short or full, or a pattern with *.")
    html: str | None = option("--html FILE", "Write the report as an HTML page.")
    master: str = MASTER()
    conf: list[str] = CONF()


def report(options: ReportOptions) -> None:
    """Run a report on captured traffic: latencies, throughput, errors, message journeys."""
    width = _nanoseconds(options.bucket)
    settings = settings_of(options.conf)
    from pulsarctl_wire.spark.reports import REPORTS

    name, tables = options.name, options.tables
    if name is None:
        sys.stdout.writelines(f"{each.name:16} {each.about}\n" for each in REPORTS.values())
        return
    found = REPORTS.get(name)
    if found is None:
        hint = f"; name it before the table: pwire report summary {name}" if os.path.exists(name) else ""
        hint = hint or did_you_mean(name, REPORTS) or f"; use one of {', '.join(REPORTS)}"
        console.fail(f"report {name}: no such report{hint}")
    if not tables:
        console.fail(f"report {name}: name a TABLE, as written by pwire table")
    with spark_errors():
        from pulsarctl_wire.spark.reports.base import Options, about

        with loaded(tables, options.master, settings) as (_, opened):
            chosen = about(opened, options.topic) if options.topic else opened
            report_missing_columns(opened)
            asked = Options(width, options.top)
            _show(found, chosen, asked, options.output, options.html, title=", ".join(tables))


def _nanoseconds(text: str | None) -> int | None:
    """Parse a duration such as 500ms or 1.5s, in ns."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(us|ms|s|m|h)", text.strip().replace("µ", "u"))
    width = round(float(match[1]) * _UNITS[match[2]]) if match else 0
    if not 1000 <= width <= 10**18:
        console.fail(f"--bucket {text}: use a time such as 500ms, 1s, 5m or 1h")
    return width


@contextmanager
def spark_errors() -> Iterator[None]:
    """Turn errors of Spark, tables and the output into one line on stderr and an exit code."""
    try:
        from pulsarctl_wire.spark.reports import overview  # noqa: F401
    except ImportError:
        console.fail(f"Spark is not installed: {how_to_install('spark')}")
    with console.errors_reported():
        try:
            yield
        except SparkError as error:  # a wrong master, setting or query
            text = re.sub(r"^\[[A-Z_.]+\] | SQLSTATE: \w+", "", " ".join(str(error).split()))
            console.fail(text)


@contextmanager
def loaded(paths: Sequence[str], master: str, conf: Mapping[str, str]) -> Iterator[tuple[Any, "Tables"]]:
    """A Spark session and the tables at `paths`, which are checked before Spark starts."""
    from pulsarctl_wire.spark.reports.load import find, load, settings
    from pulsarctl_wire.spark.session import session

    found = find(paths)
    with session(master, settings(found) | dict(conf)) as spark:
        yield spark, load(spark, found)


def report_missing_columns(tables: "Tables") -> None:
    """Print which columns `tables` lack."""
    lacks = sorted(tables.lacks)
    if lacks:
        more = f" and {len(lacks) - _NAMED} more" if len(lacks) > _NAMED else ""
        names = ", ".join(lacks[:_NAMED])
        console.warn(f"report: the table lacks {names}{more}: reports that need them are incomplete")


def _show(
    found: "Report", tables: "Tables", options: "Options", output: Output, html: str | None, *, title: str
) -> None:
    if found.name == "summary" and (html or output in ("html", "table")):
        from pulsarctl_wire.cli.data.page import summary_page
        from pulsarctl_wire.spark.reports.overview import collect

        wants_page = bool(html) or output == "html"
        overview = collect(tables, options, plots=wants_page)
        if wants_page:
            console.write_page(html, summary_page(overview, title))
        else:
            print_overview(overview)
        return
    made = found.make(tables, options)
    if html or output == "html":
        from pulsarctl_wire.cli.data.page import table_page

        rows, _ = _first(made, options.top or 1000)
        console.write_page(html, table_page(rows, made.columns, f"{found.name}: {title}"))
        return
    write(made, output, options.top)


# -- rows on stdout


def write(made: Any, output: Output, top: int | None) -> None:
    """Write the rows of `made`: JSON lines and CSV have all rows with raw numbers, a table the first ones."""
    if output == "table":
        rows, more = _first(made, top or ROWS)
        print_table("", rows, made.columns, more=more)
        return
    chosen = made.limit(top) if top else made
    rows_of = (row.asDict(recursive=True) for row in chosen.toLocalIterator())
    if output == "json":
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
    """Print the summary."""
    totals = overview.totals
    first, last = totals["first_ns"], totals["last_ns"]
    shown_totals = [
        {"": name.removesuffix("_ns").replace("_", " "), "total": shown(name, value)}
        for name, value in totals.items()
    ]
    if first is not None:
        shown_totals.insert(2, {"": "seconds", "total": f"{(last - first) / 1e9:.3f}"})
    print_table("totals", shown_totals, ["", "total"])
    percentiles = ["count", "p50_ns", "p90_ns", "p99_ns", "p999_ns", "max_ns"]
    topics = ["topic", "share", "bytes", "frames", "published", "delivered", "errors"]
    checksums = ["time_ns", "command", "topic", "connection", "file", "packet_offset"]
    for title, rows, columns in (
        ("topics", overview.topics, topics),
        ("publish latency", overview.publish_latency, ["topic", "producer", *percentiles]),
        ("request latency", overview.request_latency, ["command", *percentiles, "errors"]),
        ("slowest", overview.slowest, ["latency_ns", "time_ns", "command", "answer", "topic", "connection"]),
        ("errors", overview.errors, ["error", "command", "topic", "client", "count", "example"]),
        ("bad checksums", overview.checksums, checksums),
        ("gaps", overview.gaps, ["time_ns", "kind", "size", "reason", "connection"]),
    ):
        if rows:
            print_table(title, rows, columns)


def print_table(
    title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, more: bool = False
) -> None:
    """Print rows as a table, without cutting values; columns without any value are left out.

    On a terminal, text is wrapped to fit its width; if the table still does not fit, it is wider.
    """
    from rich.cells import cell_len
    from rich.text import Text

    from pulsarctl_wire.render.columns import GAP, grid

    used = [name for name in columns if any(row.get(name) is not None for row in rows)] or list(columns)
    numbers = {name for name in used if any(isinstance(row.get(name), int | float) for row in rows)}
    headings = [name.removesuffix("_ns").replace("_", " ") for name in used]
    texts = [[clean(shown(name, row.get(name))) for name in used] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(headings, *texts, strict=True)]
    room = console.terminal_width(sys.stdout)
    if room is not None:
        names = [at for at, name in enumerate(used) if name not in numbers]
        narrow(widths, names, sum(widths) + GAP * (len(widths) - 1) - room, _LEAST)
    table = grid()
    for name, heading, width in zip(used, headings, widths, strict=True):
        side: Any = "right" if name in numbers else "left"
        table.add_column(Text(heading), justify=side, overflow="fold", width=width)
    for row in texts:
        table.add_row(*map(Text, row))
    width = max(sum(widths) + GAP * len(widths), 80)
    terminal = console.rich_console(sys.stdout, width=width, soft_wrap=True)
    if title:
        terminal.print(Text(f"\n{title}", style="bold"))
    terminal.print(table)
    if more:
        terminal.print(Text("… and more: --top N shows N rows, -o json all of them", style="dim"))
    if not rows:
        terminal.print(Text("nothing", style="dim"))
