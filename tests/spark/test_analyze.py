"""The pipeline on Spark: the rows of one process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pipeline.comparing import ordered, run
from spark.rows import expected, rows

from pulsarctl_wire.pipeline.inputs import find_inputs
from pulsarctl_wire.pipeline.progress import Options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark", reason="pyspark is not installed")

SAMPLES = Path(__file__).parents[2] / "samples" / "pcaps"


def test_workers_find_what_one_process_does(spark: SparkSession, capture: Path, tmp_path: Path) -> None:
    from pulsarctl_wire.spark.executor import SparkExecutor

    inputs = [f"{SAMPLES}/[ns]*.pcap", str(capture)]
    with SparkExecutor(spark) as executor:
        totals = run(find_inputs(inputs), tmp_path, Options(split_size=200_000), executor)
    found = expected(inputs)
    assert rows(tmp_path) == (found.frames, found.gaps)
    assert (totals.packets, totals.connections) == (found.packets, found.connections)


def test_what_a_worker_raises_is_raised_here(spark: SparkSession) -> None:
    from pulsarctl_wire.spark.executor import SparkExecutor

    with SparkExecutor(spark) as executor, pytest.raises(FileNotFoundError, match="nowhere"):
        executor.submit(os.stat, "/nowhere").result()


@pytest.mark.parametrize("table", ["frames", "gaps"])
def test_captures_are_a_data_source(spark: SparkSession, table: str) -> None:
    from pulsarctl_wire.spark.datasource import Captures

    spark.dataSource.register(Captures)
    paths = [f"{SAMPLES}/n*.pcap", f"{SAMPLES}/snaplen96.pcap"]
    pattern = f"{SAMPLES}/[ns]*.pcap"
    read = spark.read.format("pwire").option("table", table).load(paths if table == "gaps" else pattern)
    found = ordered([row.asDict(recursive=True) for row in read.collect()])
    assert found == getattr(expected([pattern]), table)
