"""`pwire report` and `pwire sql`: run predefined reports and queries on captured traffic."""

import csv
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from pulsarctl_wire.cli import completion, console
from pulsarctl_wire.cli.data.values import render
from pulsarctl_wire.cli.options import (
    CONF,
    ENGINE,
    KEYLOG,
    MASTER,
    OUTPUT,
    EngineName,
    parse_conf,
    parse_time,
)
from pulsarctl_wire.cli.signature import argument, flag, option
from pulsarctl_wire.errors import TABLE_LIBRARIES, QueryError, SettingsError
from pulsarctl_wire.render.text import clean, count_of, did_you_mean, human_bytes, narrow

if TYPE_CHECKING:
    from pulsarctl_wire.data import Result, Tables
    from pulsarctl_wire.reports.overview import Overview

ROWS: Final = 20
"""Rows of a table on the terminal, without `--top`."""
TOP: Final = partial(option, "--top N", "Maximum number of rows.", min=1, show_default=f"{ROWS} in tables")
_DAY_NS: Final = 86_400 * 10**9
_MAX_NAMED: Final = 5  # columns that a warning names
_NAME_FLAGS: Final = ("topic", "cluster", "tenant", "namespace", "producer", "subscription", "client", "host")
"""The options that choose rows by a name."""
_MIN_WIDTH: Final = 20
"""Columns of text on a terminal are not narrowed below this many cells."""
Output = Literal["table", "json", "csv", "parquet", "html"]
"""How a report is shown."""
Dialect = Literal["duckdb", "spark", "trino"]
"""Whose SQL is printed."""


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Which rows are read, and what runs the queries."""

    topic: str | None = option("--topic TOPIC", "A topic, short or full, or a pattern with *.")
    since: str | None = option("--since TIME", "Only rows from then on: ISO 8601, seconds since 1970, -10m.")
    until: str | None = option("--until TIME", "Only rows before that time.")
    cluster: str | None = option("--cluster NAME", "Only rows with this label, as given to table or analyze.")
    tenant: str | None = option("--tenant NAME", "Only rows about topics of this tenant.")
    namespace: str | None = option("--namespace NAME", "Only rows about topics of this TENANT/NAMESPACE.")
    producer: str | None = option("--producer NAME", "Only rows of this producer, and the messages it sent.")
    subscription: str | None = option("--subscription NAME", "Only rows of this subscription.")
    client: str | None = option(
        "--client ADDRESS", "Only rows of this client: 10.0.0.7, 10.0.0.7:43118, 10.*"
    )
    host: str | None = option("--host NAME", "Only rows that were captured on this host.")
    keylogs: list[str] = KEYLOG()
    engine: EngineName | None = ENGINE()
    master: str | None = MASTER()
    conf: list[str] = CONF()


@dataclass(frozen=True, kw_only=True)
class ReportOptions(SourceOptions):
    """The command line of `report`."""

    name: str | None = argument(
        "[NAME]",
        "Name of the report; without it all reports are listed.",
        default=None,
        autocompletion=completion.reports,
    )
    sources: list[str] = argument(
        "SOURCE...",
        "Captures, or tables as written by pwire table (files) or pwire analyze (directories).",
        default=list,
    )
    output: Output = OUTPUT(default="table")
    top: int | None = TOP()
    bucket: str | None = option("--bucket TIME", "Width of time buckets: 500ms, 1s, 5m, 1h.")
    by: str | None = option("--by NAMES", "Group by these instead: tenant, client, hour, …, or tenant,hour.")
    key: str | None = option("--key KEY", "journey: only messages with this key, or this id (LEDGER:ENTRY).")
    window: str | None = option(
        "--window FROM..TO", "compare, unusual: the time to look at; a date is that day (UTC)."
    )
    against: str | None = option(
        "--against FROM..TO",
        "With --window: the time to compare it with.",
        show_default="as long a time before it; unusual: all other",
    )
    html: str | None = option("--html FILE", "Write the report as an HTML page.")
    clear_cache: bool = flag("--clear-cache", "Delete the tables and findings that were kept.")


def report(options: ReportOptions) -> None:
    """Run a report on captured traffic: latencies, throughput, errors, message journeys."""
    from pulsarctl_wire.reports import REPORTS

    name, sources = options.name, options.sources
    if options.clear_cache:
        console.require(*TABLE_LIBRARIES)
        from pulsarctl_wire.pipeline.cache import clear

        count, size = clear()
        sys.stderr.write(f"{count_of(count, 'kept result')} deleted, {human_bytes(size)}\n")
        return
    if name is None:
        sys.stdout.writelines(f"{entry.name:16} {entry.about}\n" for entry in REPORTS.values())
        return
    if name not in REPORTS:
        hint = f"; name it before the source: pwire report summary {name}" if os.path.exists(name) else ""
        hint = hint or did_you_mean(name, REPORTS) or f"; use one of {', '.join(REPORTS)}"
        console.fail(f"report {name}: no such report{hint}")
    if not sources:
        console.fail(f"report {name}: name a SOURCE: a capture, or a table as written by pwire table")
    _width(options)  # a wrong --bucket ends the command before anything is opened
    windows = _windows(options)
    if windows and name not in ("compare", "unusual"):
        console.fail(f"report {name}: has no --window: use --since and --until")
    if name == "compare" and len(sources) < 2 and not windows:
        console.fail("report compare: name two sources, the earlier one first, or a --window")
    if name == "unusual" and not windows:
        console.fail("report unusual: name the time to look at: --window FROM..TO, or a date")
    with open_tables(sources, options, apart=name == "compare" and not windows) as tables:
        missing = sorted(tables.lacks)
        if missing:
            note = f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
            names = ", ".join(missing[:_MAX_NAMED])
            console.warn(f"report: the table lacks {names}{note}: reports that need them are incomplete")
        _show(tables, name, options, ", ".join(sources))


@contextmanager
def open_tables(sources: Sequence[str], options: SourceOptions, *, apart: bool = False) -> "Iterator[Tables]":
    """Open `sources` as tables; errors within the block become one line on stderr and an exit code.

    With `apart`, captures are not joined: each source is a table of its own, to be compared.
    """
    console.require(*TABLE_LIBRARIES)
    times = {name: getattr(options, name) for name in ("since", "until")}
    choice: dict[str, Any] = {name: getattr(options, name) for name in _NAME_FLAGS}
    choice |= {name: _moment(name, text) for name, text in times.items() if text is not None}
    settings = parse_conf(options.conf)
    with console.errors_reported():
        from pulsarctl_wire import data
        from pulsarctl_wire.capture.sources import collect_rarely

        collect_rarely()
        with data.tables(
            *sources,
            choice=data.Choice(**choice),
            engine=options.engine,
            master=options.master,
            conf=settings,
            apart=apart,
            keylogs=options.keylogs,
            say=console.warn,
        ) as tables:
            yield tables


def has_row_choice(options: SourceOptions) -> bool:
    """Return whether an option chooses some of the rows."""
    return any(getattr(options, name) is not None for name in (*_NAME_FLAGS, "since", "until"))


def _moment(name: str, text: str) -> int:
    try:
        return parse_time(text)
    except SettingsError as error:
        console.fail(f"--{name} {error}")


def _windows(options: ReportOptions) -> dict[str, tuple[int, int]]:
    """Return the spans of --window and --against, if given: option -> (since, until), in ns."""
    if options.against and not options.window:
        console.fail("--against: name the time to look at: --window FROM..TO")
    texts = {name: getattr(options, name) for name in ("window", "against")}
    return {name: _span(name, text) for name, text in texts.items() if text is not None}


def _span(name: str, text: str) -> tuple[int, int]:
    first, dots, last = text.partition("..")
    if not dots and re.fullmatch(r"\d{4}-\d\d-\d\d", text):
        since = _moment(name, text)
        return since, since + _DAY_NS
    if not dots:
        console.fail(f"--{name} {text}: use FROM..TO, or a date")
    since, until = _moment(name, first), _moment(name, last)
    if since >= until:
        console.fail(f"--{name} {text}: ends before it begins")
    return since, until


def _width(options: ReportOptions) -> int | None:
    """Return the width of time buckets, in ns; None without `--bucket`."""
    from pulsarctl_wire.reports.sql import nanoseconds

    try:
        return nanoseconds(options.bucket) if options.bucket else None
    except QueryError as error:
        console.fail(f"--bucket {error}")


def _show(tables: "Tables", name: str, options: ReportOptions, title: str) -> None:
    output, html = options.output, options.html
    wants_page = bool(html) or output == "html"
    if name == "summary" and (wants_page or output == "table"):
        from pulsarctl_wire.cli.data.page import summary_page
        from pulsarctl_wire.reports.overview import collect
        from pulsarctl_wire.reports.sql import Options

        overview = collect(tables.engine, Options(_width(options), options.top), plots=wants_page)
        if wants_page:
            console.write_page(html, summary_page(overview, title), options.sources)
        else:
            print_overview(overview)
        return
    result = tables.report(
        name,
        bucket=_width(options),
        top=options.top,
        key=options.key,
        by=options.by.split(",") if options.by else (),
        **_windows(options),
    )
    if wants_page:
        from pulsarctl_wire.cli.data.page import table_page

        rows, columns, _ = _first(result, options.top or 1000)
        console.write_page(html, table_page(rows, columns, f"{name}: {title}"), options.sources)
        return
    write(result, output, options.top)


@dataclass(frozen=True, kw_only=True)
class SqlOptions(SourceOptions):
    """The command line of `sql`."""

    arguments: list[str] = argument(
        "SOURCE... QUERY",
        "Captures or tables, as for pwire report, and a query on frames, gaps, exchanges…",
    )
    ddl: Dialect | None = option(
        "--ddl DIALECT", "Print SQL that makes the views of reports, for duckdb, spark or trino: no QUERY."
    )
    output: Output = option("-o --output", "Output format: table, json, csv or parquet.", default="table")
    top: int | None = TOP()


def sql(options: SqlOptions) -> None:
    """Query in SQL: pwire sql capture.pcap "select command, count(*) from frames group by 1"."""
    if options.ddl:
        console.require("sqlglot")
        with open_tables(options.arguments, options) as tables:
            sys.stdout.write(tables.ddl(options.ddl))
        return
    *sources, query = options.arguments
    if not sources:
        console.fail('sql: name a SOURCE and a query: pwire sql SOURCE... "select … from frames"')
    if options.output == "html":
        console.fail("sql: use -o table, json, csv or parquet")
    if os.path.exists(query):
        text = f"sql: {query} is a file; the query comes last: SOURCE... 'select … from frames'"
        console.fail(text)
    with open_tables(sources, options) as tables:
        result = tables.sql(query)
        is_limited = options.top is not None and options.output != "table"
        write(replace(result, most=options.top) if is_limited else result, options.output, options.top)


# -- rows on stdout


def write(result: "Result", output: Output, top: int | None) -> None:
    """Write the rows of `result`: in a table the first ones, else all of them, with raw numbers."""
    if output == "table":
        rows, columns, has_more = _first(result, top or ROWS)
        print_table("", rows, columns, has_more=has_more)
        return
    if output == "parquet":
        import pyarrow.parquet as pq

        if console.is_terminal(sys.stdout):
            console.fail("-o parquet: is binary; send it to a file: > rows.parquet")
        pq.write_table(result.arrow(), sys.stdout.buffer)
        return
    answer = result.answer()
    if output == "json":
        import orjson

        for row in answer.rows():
            sys.stdout.buffer.write(orjson.dumps(row, default=str, option=orjson.OPT_APPEND_NEWLINE))
        return
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(answer.columns)
    writer.writerows(answer.values)


def _first(result: "Result", limit: int) -> tuple[list[dict[str, Any]], list[str], bool]:
    """Return the first rows, the names of their columns, and whether there are more."""
    answer = replace(result, most=limit + 1).answer()
    rows = list(answer.rows())
    return rows[:limit], answer.columns, len(rows) > limit


def print_overview(overview: "Overview") -> None:
    """Print the summary."""
    totals = overview.totals
    first, last = totals["first_ns"], totals["last_ns"]
    shown_totals = [
        {"": name.removesuffix("_ns").replace("_", " "), "total": render(name, value)}
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
    title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, has_more: bool = False
) -> None:
    """Print rows as a table, without cutting values; columns without any value are left out.

    On a terminal, text is wrapped to fit its width; if the table still does not fit, it is wider.
    """
    from rich.cells import cell_len
    from rich.text import Text

    from pulsarctl_wire.render.columns import GAP, grid

    names = [name for name in columns if any(row.get(name) is not None for row in rows)] or list(columns)
    numeric = {name for name in names if any(isinstance(row.get(name), int | float) for row in rows)}
    headings = [name.removesuffix("_ns").replace("_", " ") for name in names]
    texts = [[clean(render(name, row.get(name))) for name in names] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(headings, *texts, strict=True)]
    room = console.terminal_width(sys.stdout)
    if room is not None:
        text_indices = [index for index, name in enumerate(names) if name not in numeric]
        narrow(widths, text_indices, sum(widths) + GAP * (len(widths) - 1) - room, _MIN_WIDTH)
    table = grid()
    for name, heading, width in zip(names, headings, widths, strict=True):
        side: Any = "right" if name in numeric else "left"
        table.add_column(Text(heading), justify=side, overflow="fold", width=width)
    for row in texts:
        table.add_row(*map(Text, row))
    width = max(sum(widths) + GAP * len(widths), 80)
    terminal = console.make_console(sys.stdout, width=width, soft_wrap=True)
    if title:
        terminal.print(Text(f"\n{title}", style="bold"))
    terminal.print(table)
    if has_more:
        terminal.print(Text("… and more: --top N shows N rows, -o json all of them", style="dim"))
    if not rows:
        terminal.print(Text("nothing", style="dim"))
