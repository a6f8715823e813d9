"""DuckDB and Spark give the same rows for every report."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pwire_run import SAMPLES, pwire
from united import united

from pulsarctl_wire import data
from pulsarctl_wire.data.duck import DuckEngine
from pulsarctl_wire.pipeline.storage.tables import find
from pulsarctl_wire.reports import REPORTS
from pulsarctl_wire.reports.engine import Engine
from pulsarctl_wire.reports.overview import collect
from pulsarctl_wire.reports.sql import Choice, Options, Window
from pulsarctl_wire.reports.views import KEPT, VIEWS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOGETHER = ("java-nack-dlq", "errors", "corrupt-in-transit")


@contextmanager
def engines(
    spark: SparkSession, captures: list[str], folder: Path, choice: Choice
) -> Iterator[tuple[Engine, Engine]]:
    """Both engines over tables of captures. What Spark keeps would slow down all later queries."""
    from pulsarctl_wire.spark.engine import SparkEngine

    paths = [str(folder / f"{Path(name).name}.parquet") for name in captures]
    for name, path in zip(captures, paths, strict=True):
        pwire("table", name, "--out", path)
    found = find(paths)
    with closing(DuckEngine(found, choice)) as one, closing(SparkEngine(spark, found, choice)) as other:
        yield one, other


def rounded(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows whose fractions are compared to 12 digits: sums may be in another order."""
    return [
        {name: float(f"{value:.12g}") if isinstance(value, float) else value for name, value in row.items()}
        for row in rows
    ]


def with_window(name: str, options: Options) -> Options:
    """The options, for `unusual` with the time that it needs: the day of most samples, at 17:45 and later."""
    since = 1_795_196_700 * 10**9
    return replace(options, window=Window(since, since + 86_400 * 10**9)) if name == "unusual" else options


DIFFERENT = (Options(), Options(bucket_ns=100_000_000, top=3))


def compare(one: Engine, other: Engine, name: str, options: Options) -> None:
    query = REPORTS[name].sql(with_window(name, options))
    assert rounded(one.rows(query)) == rounded(other.rows(query)), name


def compare_once(one: Engine, other: Engine, first: int = 0) -> None:
    """Compare each report with one of the options, which take turns."""
    for place, name in enumerate(REPORTS, first):
        compare(one, other, name, DIFFERENT[place % 2])


def test_all_reports(spark: SparkSession, tmp_path: Path) -> None:
    paths = [str(SAMPLES / f"{name}.pcap") for name in TOGETHER]
    with engines(spark, paths, tmp_path, Choice()) as (one, other):
        compare_once(one, other)
        pages = [collect(each, Options()) for each in (one, other)]
        for page in pages:
            page.heat.sort(key=lambda row: (row["time_ns"], row["bin"]))
        assert pages[0] == pages[1]


def test_a_session_of_ones_own_is_left_as_it_is(spark: SparkSession) -> None:
    spark.range(3).createOrReplaceTempView("frames")
    one, other = SAMPLES / "java-simple.pcap", SAMPLES / "java-nack-dlq.pcap"
    with data.tables(one, spark=spark) as simple, data.tables(other, spark=spark) as mail:
        for tables, source in ((simple, one), (mail, other)):
            with data.tables(source) as expected:
                made, rows = tables.report("slowest"), expected.report("slowest").rows()
            assert made.rows() == made.arrow().to_pylist() == made.polars().to_dicts() == rows
            assert made.lazy().count() == len(made.pandas()) == len(rows)
            assert str(made.pandas().request_id.dtype) == "Int64"
    assert spark.sql("SELECT * FROM frames").count() == 3
    spark.catalog.dropTempView("frames")


def test_what_is_chosen(spark: SparkSession, tmp_path: Path) -> None:
    since = 1_795_196_818_000_000_000
    choice = Choice("java-*'\\", since, since + 10**9)
    with engines(spark, [str(SAMPLES / "java-simple.pcap")], tmp_path, choice) as (one, other):
        assert one.rows("SELECT * FROM frames") == other.rows("SELECT * FROM frames") == []
    choice = Choice("java-*", since, since + 10**9)
    with engines(spark, [str(SAMPLES / "java-simple.pcap")], tmp_path, choice) as (one, other):
        rows = one.rows("SELECT time_ns, packet_offset FROM frames ORDER BY 1, 2")
        assert rows == other.rows("SELECT time_ns, packet_offset FROM frames ORDER BY 1, 2")
        assert len(rows) > 10
        assert all(since <= row["time_ns"] < since + 10**9 for row in rows)


def test_each_capture_as_a_cluster(spark: SparkSession, tmp_path: Path) -> None:
    table = united(sorted(SAMPLES.glob("*.pcap*")), tmp_path)
    with data.tables(table) as one, data.tables(table, spark=spark) as other:
        for name, options in product(REPORTS, DIFFERENT):
            compare(one.engine, other.engine, name, options)


LACKING = ("http-client-on-binary-port", "advertised-address-silent", "no-checksum")


@pytest.mark.parametrize("name", LACKING)
def test_a_capture_that_lacks_most(spark: SparkSession, name: str, tmp_path: Path) -> None:
    with engines(spark, [str(SAMPLES / f"{name}.pcap")], tmp_path, Choice()) as (one, other):
        compare_once(one, other, LACKING.index(name))


def test_plans(spark: SparkSession, tmp_path: Path) -> None:
    """What is kept is not computed again; no report runs Python, or sorts all rows in one task."""
    with engines(spark, [str(SAMPLES / "java-simple.pcap")], tmp_path, Choice()) as (_, engine):

        def plan_of(query: str) -> str:
            (row,) = engine.rows(f"EXPLAIN {query}")
            return str(row["plan"])

        for name in sorted(KEPT):
            plan = plan_of(f"WITH read AS (SELECT * FROM {name}) SELECT * FROM read")
            assert "InMemoryTableScan" in plan, name
        for report in REPORTS.values():
            query = report.sql(with_window(report.name, Options()))
            assert "Python" not in plan_of(query), report.name
            assert not re.search(r"OVER \((?!\s*PARTITION BY)", query), report.name
    assert not [name for name, sql in VIEWS.items() if re.search(r"OVER \((?!\s*PARTITION BY)", sql)]
