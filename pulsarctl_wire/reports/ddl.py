"""Translates the views of the reports to SQL for other tools: DuckDB, Spark and Trino.

The source is `VIEWS`, which the reports themselves read. It is Spark's SQL.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, get_args

from pulsarctl_wire.errors import QueryError, require
from pulsarctl_wire.reports.views import VIEWS, clustered

Dialect = Literal["duckdb", "spark", "trino"]
"""The tool that the SQL is for."""

PUBLISHED: Final = ("answered", "exchanges", "journeys", "arrivals")
"""The views that users read; these need the other views."""

_FRAMES: Final = {
    "duckdb": "SELECT * FROM read_parquet('{}', union_by_name = true, hive_types_autocast = false)",
    "spark": "SELECT * FROM parquet.`{}`",
}
"""How a dialect reads the files of frames. In Trino, a catalog has them."""


def statements(dialect: Dialect, files: Sequence[str], clusters: Mapping[str, int]) -> Iterator[str]:
    """Yield the statements that make the published views, each after the views that it needs.

    All read `frames`, which the first statement makes of `files`; in Trino it must exist. `clusters` has the
    number of each broker's cluster by the broker's address. Raises QueryError for another dialect,
    MissingLibrary if sqlglot, which translates, is not installed.
    """
    if dialect not in get_args(Dialect):
        raise QueryError(f"{dialect}: no such dialect; use one of {', '.join(get_args(Dialect))}")
    require("sqlglot")
    from sqlglot import exp, parse_one

    if dialect in _FRAMES:
        yield f"CREATE OR REPLACE VIEW frames AS\n{_FRAMES[dialect].format(_place(files, dialect))};\n"
    sources = VIEWS | {"clustered": clustered(clusters), "followed": "SELECT * FROM frames"}
    trees: dict[str, Any] = {}

    def visit(name: str) -> None:
        tree = parse_one(sources[name], read="spark")
        for table in tree.find_all(exp.Table):
            if table.name in sources and table.name not in trees:
                visit(table.name)
        trees[name] = tree

    for name in PUBLISHED:
        if name not in trees:
            visit(name)
    for name, tree in trees.items():
        if dialect == "trino":  # its UNNEST makes a column of each field; wrapped in a row, one of the struct
            for explode in tree.find_all(exp.Explode):
                explode.set("this", parse_one(f"transform({explode.this.sql()}, x -> ROW(x))", read="trino"))
        yield f"CREATE OR REPLACE VIEW {name} AS\n{tree.sql(dialect, pretty=True)};\n"


def _place(files: Sequence[str], dialect: Dialect) -> str:
    """Return the one file of frames, or a path that stands for all files, later ones too."""
    scheme, slashes, _ = files[0].rpartition("://")
    folder = os.path.commonpath([os.path.dirname(file.removeprefix(scheme + slashes)) for file in files])
    folder = re.sub(r"(/[^/=]+=[^/]*)+$", "", folder)  # later files may have other values in NAME=VALUE
    is_file = len(files) == 1 and os.path.basename(folder) != "frames"
    place = files[0] if is_file else scheme + slashes + folder
    if dialect == "spark":
        return place.replace("`", "``")
    return (place if is_file else f"{place}/**/*.parquet").replace("'", "''")
