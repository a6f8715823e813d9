"""`pwire sql`: runs SQL queries on captured traffic."""

import os
import sys
from dataclasses import dataclass
from typing import Literal

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.data.report import TOP, Output, SourceOptions, opened, write
from pulsarctl_wire.cli.signature import argument, option

Dialect = Literal["duckdb", "spark", "trino"]
"""Whose SQL is printed."""


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
        with opened(options.arguments, options) as tables:
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
    with opened(sources, options) as tables:
        write(tables.sql(query), options.output, options.top)
