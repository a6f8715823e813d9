"""The published SQL of views gives the rows of the reports: in DuckDB and Spark. For Trino it is parsed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow.parquet as pq
import pytest
import sqlglot
from pwire_run import SAMPLES, pwire
from reports import traffic
from sqlglot import exp

from pulsarctl_wire import data
from pulsarctl_wire.errors import QueryError
from pulsarctl_wire.reports.ddl import PUBLISHED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, Any]


def one_file(folder: Path) -> Path:
    pwire("table", SAMPLES / "java-nack-dlq.pcap", "--out", folder / "mail's.parquet")
    return folder / "mail's.parquet"


def two_clusters(folder: Path) -> Path:
    (folder / "random.pcap").write_bytes(traffic.random_traffic(1, 400, 0))
    pwire("table", folder / "random.pcap", "--out", folder / "random.parquet")
    return folder / "random.parquet"


def many_files(folder: Path) -> Path:
    captures = (SAMPLES / f"{name}.pcap" for name in ("java-keyshared", "java-batchindexack", "errors"))
    for number, capture in enumerate(captures):
        pwire("table", capture, "--out", folder / "table" / "frames" / f"{number}.parquet")
        for name in ("gaps", "connections"):
            (folder / "table" / "frames" / f"{number}.{name}.parquet").unlink(missing_ok=True)
    return folder / "table"


@pytest.fixture(params=[one_file, two_clusters, many_files], scope="module")
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    make: Callable[[Path], Path] = request.param
    folder = tmp_path_factory.mktemp("made")
    (folder / "table" / "frames").mkdir(parents=True)
    return make(folder)


def rows_of_reports(table: Path) -> dict[str, list[str]]:
    with data.tables(table) as tables:
        return {name: in_order(tables.sql(f"SELECT * FROM {name}").rows()) for name in PUBLISHED}


def in_order(rows: list[Row]) -> list[str]:
    return sorted(repr(row) for row in rows)


def published(table: Path, dialect: str) -> list[str]:
    """The statements that `pwire sql --ddl` prints."""
    run = pwire("sql", "--ddl", dialect, table)
    assert run.code == 0
    return [statement for statement in run.out.decode().split(";\n") if statement.strip()]


def test_duckdb_gives_the_rows_of_the_reports(table: Path) -> None:
    expected = rows_of_reports(table)
    with duckdb.connect() as database:
        for statement in published(table, "duckdb"):
            database.execute(statement)
        for name in PUBLISHED:
            relation = database.sql(f"SELECT * FROM {name}")
            rows = [dict(zip(relation.columns, row, strict=True)) for row in relation.fetchall()]
            assert in_order(rows) == expected[name]
            assert rows


@pytest.mark.slow
def test_spark_gives_the_rows_of_the_reports(table: Path, spark: SparkSession) -> None:
    """For one table all of it: for others only the place of the files and the clusters differ."""
    expected = rows_of_reports(table)
    names = PUBLISHED if table.name == "random.parquet" else PUBLISHED[:1]
    statements = published(table, "spark")
    views = [statement.split()[4] for statement in statements]
    del statements[views.index(names[-1]) + 1 :]
    for statement in statements:
        spark.sql(statement)
    for name in names:
        rows = [row.asDict(recursive=True) for row in spark.sql(f"SELECT * FROM {name}").collect()]
        assert in_order(rows) == expected[name]
    for statement in reversed(statements):
        spark.sql(f"DROP VIEW {statement.split()[4]}")


def test_trino_knows_all_that_is_said(table: Path) -> None:
    """A parser for Trino knows every statement, and no function is one that it has never heard of."""
    made: set[str] = set()
    for statement in published(table, "trino"):
        tree = sqlglot.parse_one(statement, read="trino")
        assert isinstance(tree, exp.Create)
        assert not [each for each in tree.find_all(exp.Anonymous) if each.name.lower() != "row"]
        assert not list(tree.find_all(exp.Explode))
        ctes = {each.alias for each in tree.find_all(exp.CTE)}
        read = {each.name for each in tree.expression.find_all(exp.Table)} - ctes
        assert read <= made | {"frames"}
        made.add(tree.this.name)
    assert made >= {*PUBLISHED}


def test_least_is_null_in_trino_if_one_is(table: Path) -> None:
    (statement,) = [each for each in published(table, "trino") if "VIEW first_acks " in each]
    assert "COALESCE(LEAST(single_ns, covered_ns), single_ns, covered_ns)" in statement


@pytest.mark.parametrize("by", ["none", "host,cluster"])
def test_files_that_are_added_later_are_read(tmp_path: Path, by: str) -> None:
    captures, table = tmp_path / "captures", tmp_path / "table"
    for host, name in (("a", "java-simple"), ("b", "java-nack-dlq")):
        (captures / f"host={host}").mkdir(parents=True)
        shutil.copy(SAMPLES / f"{name}.pcap", captures / f"host={host}")
        assert pwire("analyze", captures, "--out", table, "--partition-by", by).code == 0
        if host == "a":
            (table / "frames" / "end.parquet").unlink(missing_ok=True)  # then it has one file
            statement = published(table, "duckdb")[0]
    with duckdb.connect() as database:
        database.execute(statement)
        assert database.sql("SELECT DISTINCT host FROM frames ORDER BY 1").fetchall() == [("a",), ("b",)]


def test_what_has_no_views(tmp_path: Path) -> None:
    simple, mail = SAMPLES / "java-simple.pcap", one_file(tmp_path)
    earlier = tmp_path / "earlier.parquet"
    pq.write_table(pq.read_table(mail).drop_columns(["host", "uid"]), earlier)
    run = pwire("sql", "--ddl", "duckdb", earlier)
    text = "pwire: the table lacks host, uid, which views may read: make it again"
    assert (run.code, run.complaints) == (2, [text])
    run = pwire("sql", "--ddl", "duckdb", mail, simple)
    assert (run.code, run.err.count("\n")) == (2, 1)
    assert "views are made on one table" in run.err
    with data.tables(mail) as tables, pytest.raises(QueryError, match="oracle: no such dialect"):
        tables.ddl("oracle")  # type: ignore[arg-type]
