"""`pwire sql`: any question about captured traffic, in SQL."""

import os
from typing import Annotated

import typer

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.options import CONF, settings_of
from pulsarctl_wire.cli.report import (
    MASTER,
    Output,
    loaded,
    spark_errors,
    write,
)


def sql(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="TABLE... QUERY",
            help="Frames tables, as of pwire report, and a query over the views frames and gaps.",
            show_default=False,
        ),
    ],
    output: Annotated[Output, typer.Option("-o", "--output", help="table, json or csv.")] = Output.table,
    top: Annotated[
        int | None,
        typer.Option("--top", metavar="N", min=1, help="Rows at the most.", show_default="20 in tables"),
    ] = None,
    master: Annotated[str, MASTER] = "local[*]",
    conf: Annotated[list[str] | None, CONF] = None,
) -> None:
    """Ask in Spark SQL: pwire sql frames.parquet "select command, count(*) from frames group by 1"."""
    *paths, query = arguments
    if not paths:
        console.fail('sql: TABLE... "select … from frames"', console.EXIT_USAGE)
    if output == Output.html:
        console.fail("sql: -o is table, json or csv", console.EXIT_USAGE)
    if os.path.exists(query):
        said = f"sql: {query} is a file; the query comes last: TABLE... 'select … from frames'"
        console.fail(said, console.EXIT_USAGE)
    settings = settings_of(conf)
    with spark_errors(), loaded(paths, master, settings) as (spark, tables):
        tables.frames.createOrReplaceTempView("frames")
        tables.gaps.createOrReplaceTempView("gaps")
        write(spark.sql(query), output, top)
