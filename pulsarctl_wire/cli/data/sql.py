"""`pwire sql`: runs SQL queries on a frames table."""

import os
from dataclasses import dataclass

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.data.report import TOP, Output, loaded, spark_errors, write
from pulsarctl_wire.cli.options import CONF, MASTER, settings_of
from pulsarctl_wire.cli.signature import argument, option


@dataclass(frozen=True, kw_only=True)
class SqlOptions:
    """The command line of `sql`."""

    arguments: list[str] = argument(
        "TABLE... QUERY", "Frames tables, as for pwire report, and a query on the views frames and gaps."
    )
    output: Output = option("-o --output", "Output format: table, json or csv.", default="table")
    top: int | None = TOP()
    master: str = MASTER()
    conf: list[str] = CONF()


def sql(options: SqlOptions) -> None:
    """Query in Spark SQL: pwire sql frames.parquet "select command, count(*) from frames group by 1"."""
    *paths, query = options.arguments
    if not paths:
        console.fail('sql: name a TABLE and a query: pwire sql TABLE... "select … from frames"')
    if options.output == "html":
        console.fail("sql: use -o table, json or csv")
    if os.path.exists(query):
        text = f"sql: {query} is a file; the query comes last: TABLE... 'select … from frames'"
        console.fail(text)
    settings = settings_of(options.conf)
    with spark_errors(), loaded(paths, options.master, settings) as (spark, tables):
        tables.frames.createOrReplaceTempView("frames")
        tables.gaps.createOrReplaceTempView("gaps")
        write(spark.sql(query), options.output, options.top)
