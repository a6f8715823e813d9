"""Tables whose files are replaced by others after they were found: queries start over, or say it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from pwire_run import SAMPLES, pwire

from pulsarctl_wire import data
from pulsarctl_wire.errors import WireError
from pulsarctl_wire.reports.engine import MAX_AGAIN, Answer, _begin_reading
from pulsarctl_wire.reports.overview import collect
from pulsarctl_wire.reports.sql import Options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAIL = SAMPLES / "java-nack-dlq.pcap"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / "table").mkdir()
    pwire("table", MAIL, "--out", tmp_path / "mail.parquet")
    for name, ending in (("frames", ""), ("gaps", ".gaps"), ("connections", ".connections")):
        (tmp_path / "table" / name).mkdir()
        shutil.move(tmp_path / f"mail{ending}.parquet", tmp_path / "table" / name / "0.parquet")
    return tmp_path / "table"


def replace(table: Path) -> None:
    """As a rebuild does: the same rows in other files, in another order."""
    for file in [*table.rglob("*.parquet")]:
        rows = pq.read_table(file)
        again = file.with_name(f"{file.stem}x.parquet")
        pq.write_table(rows, again)
        file.unlink()


QUERIES: dict[str, Callable[[data.Tables], Any]] = {
    "rows": lambda tables: tables.report("topics").rows(),
    "answer": lambda tables: list(tables.report("journey").answer().rows()),
    "arrow": lambda tables: tables.report("backlog").arrow().to_pylist(),
    "findings": lambda tables: tables.report("findings").rows(),
    "summary": lambda tables: collect(tables.engine, Options()),
    "lazy": lambda tables: tables.report("topics").lazy().fetchall(),
    "ddl": lambda tables: tables.ddl("duckdb")[:0],
}


@pytest.mark.parametrize("name", QUERIES)
def test_queries_start_over(name: str, table: Path) -> None:
    with data.tables(table) as tables:
        expected = QUERIES[name](tables)
    with data.tables(table) as tables:
        replace(table)
        assert QUERIES[name](tables) == expected


@pytest.mark.slow
def test_queries_start_over_with_spark(table: Path, spark: SparkSession) -> None:
    with data.tables(table) as tables:
        expected = {name: QUERIES[name](tables) for name in ("rows", "answer")}
    with data.tables(table, spark=spark) as tables:
        for name, result in expected.items():
            replace(table)
            assert QUERIES[name](tables) == result


def test_a_table_that_is_gone_is_said_to_be(table: Path) -> None:
    with data.tables(table) as tables:
        shutil.rmtree(table)
        with pytest.raises(WireError, match="no such file"):
            tables.report("topics").rows()


def test_what_never_was_there_is_not_looked_for_again(table: Path) -> None:
    with data.tables(table) as tables, pytest.raises(WireError, match="No files found that match"):
        tables.sql("SELECT * FROM 'no-such.parquet'").rows()


def test_a_table_that_is_replaced_all_the_time_is_given_up(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with data.tables(table) as tables:
        ran = []

        def replaced(sql: str) -> Any:
            ran.append(sql)
            replace(table)
            return type(tables.engine)._rows(tables.engine, sql)

        monkeypatch.setattr(tables.engine, "_rows", replaced)
        with pytest.raises(WireError, match=r"No files found|No such file"):
            tables.report("topics").rows()
        assert len(ran) == MAX_AGAIN + 1


def test_rows_that_were_given_cannot_be_taken_back() -> None:
    def values() -> Any:
        yield [1]
        raise OSError("x.parquet: No such file or directory")

    answer = _begin_reading(Answer(["n"], values()))
    rows = answer.rows()
    assert next(rows) == {"n": 1}
    with pytest.raises(WireError, match="the table was replaced while its rows were read"):
        next(rows)
