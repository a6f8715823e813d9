"""The pipeline on Spark: the rows of one process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pipeline.comparing import ordered
from spark.rows import expected, rows

from pulsarctl_wire.pipeline.inputs import find_inputs
from pulsarctl_wire.pipeline.progress import Options
from pulsarctl_wire.pipeline.run import Run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


@pytest.mark.parametrize("table", ["frames", "gaps"])
def test_captures_are_a_data_source(spark: SparkSession, table: str) -> None:
    from pulsarctl_wire.spark.datasource import Captures

    spark.dataSource.register(Captures)
    paths = [f"{SAMPLES}/n*.pcap", f"{SAMPLES}/snaplen96.pcap"]
    pattern = f"{SAMPLES}/[ns]*.pcap"
    read = spark.read.format("pwire").option("table", table).load(paths if table == "gaps" else pattern)
    found = ordered([row.asDict(recursive=True) for row in read.collect()])
    assert found == getattr(expected([pattern]), table)
