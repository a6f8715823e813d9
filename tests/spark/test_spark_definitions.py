"""The reports give the numbers that everything else gives: docs/definitions.md."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from planted import PLANTED
from pwire_run import pwire
from test_definitions import FILES, counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pulsarctl_wire.spark.reports.base import Tables


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("planted")
    for name, make in PLANTED.items():
        (folder / f"{name}.pcap").write_bytes(make())
    return [*FILES, *sorted(folder.iterdir())]


@pytest.fixture(scope="module")
def tables(spark: SparkSession, captures: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Tables:
    from pulsarctl_wire.spark.reports.base import Tables
    from pulsarctl_wire.spark.reports.load import find, load

    folder = tmp_path_factory.mktemp("tables")
    paths = [str(folder / f"{path.name}.parquet") for path in captures]
    for path, out in zip(captures, paths, strict=True):
        pwire("table", path, "--out", out)
    loaded = load(spark, find(paths))
    return Tables(loaded.frames.coalesce(1).cache(), loaded.gaps)


def test_each_number_is_the_same_in_reports(tables: Tables, captures: list[Path]) -> None:
    from pyspark.sql import functions as F

    from pulsarctl_wire.spark.reports.base import whole
    from pulsarctl_wire.spark.reports.latency import exchanges
    from pulsarctl_wire.spark.reports.traffic import counts

    is_publish = F.col("answer") == "SEND_RECEIPT"
    told = exchanges(tables.frames).where("command = 'SEND'").groupBy("file")
    publishes = told.agg(
        F.count_if(is_publish).alias("publishes"),
        F.max(F.when(is_publish, F.col("latency_ns"))).alias("longest"),
        F.count_if(~is_publish).alias("failed"),
    )
    traffic = whole(tables.frames).groupBy("file").agg(*counts())
    found: dict[str, dict[str, Any]] = {}
    for row in traffic.join(publishes, "file", "left").collect():
        found[row.file] = {
            "sent": row.published,
            "delivered": row.delivered,
            "publishes": row.publishes or 0,
            "longest": row.longest,
            "failed": row.failed or 0,
            "frames": row.frames,
        }
    for path in captures:
        numbers = counted(path)
        if numbers["frames"]:
            assert found[str(path)] == {name: numbers[name] for name in found[str(path)]}, path.name


def test_two_clusters_share_no_message(tables: Tables, captures: list[Path]) -> None:
    from pulsarctl_wire.spark.reports import REPORTS
    from pulsarctl_wire.spark.reports.base import Options

    planted = tables._replace(frames=tables.frames.where("file like '%/two-clusters.pcap'"))
    rows = REPORTS["journey"].make(planted, Options()).collect()
    assert sorted((row.ledger_id, row.entry_id, row.deliveries, row.bytes) for row in rows) == [
        *((7, 0, 1, size) for size in sorted({row.bytes for row in rows})),
        (7, 1, 1, max(row.bytes for row in rows)),
    ]
    assert all(row.acked_ns is not None for row in rows)
    backlog = REPORTS["backlog"].make(planted, Options()).collect()
    assert sorted(row.published for row in backlog) == [1, 2]
