"""The pipeline on Spark: the rows of one process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pipeline.comparing import Now, Row, ordered
from spark.rows import expected, rows

from pulsarctl_wire.pipeline.decoding.edges import Options
from pulsarctl_wire.pipeline.files.inputs import find_inputs
from pulsarctl_wire.pipeline.run import Run
from pulsarctl_wire.pipeline.storage.tasks import Pool

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytest.importorskip("pyspark", reason="pyspark is not installed")

SAMPLES = Path(__file__).parents[2] / "samples" / "pcaps"


def test_workers_find_what_one_process_does(spark: SparkSession, capture: Path, tmp_path: Path) -> None:
    from pulsarctl_wire.spark.executor import SparkWorkers

    inputs = [f"{SAMPLES}/[ns]*.pcap", str(capture)]
    run = Run(find_inputs(inputs), str(tmp_path), options=Options(split_size=200_000))
    totals = run.run(SparkWorkers(spark))
    found = expected(inputs)
    assert rows(tmp_path) == found.tables
    assert (totals.packets, totals.connections) == (found.packets, len(found.tables["connections"]))


def test_what_a_worker_raises_is_raised_here(spark: SparkSession) -> None:
    from pulsarctl_wire.spark.executor import SparkWorkers

    futures = SparkWorkers(spark).submit(os.listdir, [("/",), ("/nowhere",)], 0)
    assert futures[0].result() == os.listdir("/")
    with pytest.raises(FileNotFoundError, match="No such file"):
        futures[1].result()


@pytest.fixture
def registered(spark: SparkSession, tmp_path: Path) -> Iterator[None]:
    """The data source, with a cache of its own where queries are planned."""
    from pulsarctl_wire.spark.datasource import Captures

    environment = spark.sparkContext.environment
    environment["XDG_CACHE_HOME"] = str(tmp_path)
    spark.dataSource.register(Captures)
    yield
    del environment["XDG_CACHE_HOME"]


def in_order(table: DataFrame) -> list[Row]:
    from pulsarctl_wire.spark.columns import as_dict

    return ordered([as_dict(row) for row in table.collect()])


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("table", ["frames", "gaps"])
def test_captures_are_a_data_source(spark: SparkSession, table: str) -> None:
    paths = [f"{SAMPLES}/n*.pcap", f"{SAMPLES}/snaplen96.pcap"]
    pattern = f"{SAMPLES}/[ns]*.pcap"
    read = spark.read.format("pwire").option("table", table).load(paths if table == "gaps" else pattern)
    found = in_order(read)
    assert found == getattr(expected([pattern]), table)


@pytest.mark.usefixtures("registered")
def test_a_filter_of_one_query_is_none_of_another(spark: SparkSession) -> None:
    pattern = f"{SAMPLES}/[ns]*.pcap"
    captures = spark.read.format("pwire").schema("command string").load(pattern)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        counts = captures.where("command = 'SEND'").count(), captures.count()
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    commands = [row["command"] for row in expected([pattern]).frames]
    assert counts == (commands.count("SEND"), len(commands))


@pytest.mark.slow
@pytest.mark.usefixtures("registered")
def test_what_follows_a_directory_is_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    inputs, table = find_inputs([f"{SAMPLES}/[ns]*.pcap"]), tmp_path / "table"
    Run(inputs, str(table)).run(Pool(Now()))
    (table / "progress" / "checkpoint").mkdir()  # as if it followed a directory
    stream = spark.readStream.format("pwire").load(str(table)).writeStream
    stream = stream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    for _ in range(2):  # the second time there is nothing new
        stream.trigger(availableNow=True).start(str(tmp_path / "copy")).awaitTermination()
        copied = spark.read.parquet(str(tmp_path / "copy"))
        assert in_order(copied) == rows(table)["frames"]
