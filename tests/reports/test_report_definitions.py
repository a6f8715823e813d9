"""The reports give the numbers that everything else gives: docs/definitions.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from planted import PLANTED
from pwire_run import pwire
from test_definitions import FILES, counted

from pulsarctl_wire import data
from pulsarctl_wire.reports.views import COUNTED


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("planted")
    for name, make in PLANTED.items():
        (folder / f"{name}.pcap").write_bytes(make())
    return [*FILES, *sorted(folder.iterdir())]


@pytest.fixture(scope="module")
def tables(captures: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[data.Tables]:
    folder = tmp_path_factory.mktemp("tables")
    paths = [str(folder / f"{path.name}.parquet") for path in captures]
    for path, out in zip(captures, paths, strict=True):
        pwire("table", path, "--out", out)
    with data.tables(*paths) as opened:
        yield opened


def test_each_number_is_the_same_in_reports(tables: data.Tables, captures: list[Path]) -> None:
    query = f"""
        SELECT * FROM (SELECT file, {COUNTED} FROM whole GROUP BY file) traffic
        LEFT JOIN (
            SELECT file, count_if(answer = 'SEND_RECEIPT') AS publishes,
                max(CASE WHEN answer = 'SEND_RECEIPT' THEN latency_ns END) AS longest,
                count_if(answer <> 'SEND_RECEIPT') AS failed
            FROM answered WHERE command = 'SEND' GROUP BY file
        ) told USING (file)"""
    found: dict[str, dict[str, Any]] = {}
    for row in tables.sql(query).rows():
        found[row["file"]] = {
            "sent": row["published"],
            "delivered": row["delivered"],
            "publishes": row["publishes"] or 0,
            "longest": row["longest"],
            "failed": row["failed"] or 0,
            "frames": row["frames"],
        }
    for path in captures:
        numbers = counted(path)
        if numbers["frames"]:
            assert found[str(path)] == {name: numbers[name] for name in found[str(path)]}, path.name


def test_two_clusters_share_no_message(captures: list[Path]) -> None:
    (planted,) = (str(path) for path in captures if path.name == "two-clusters.pcap")
    with data.tables(planted) as tables:
        rows = tables.report("journey").rows()
        backlog = tables.report("backlog").rows()
    assert sorted((row["ledger_id"], row["entry_id"], row["deliveries"], row["bytes"]) for row in rows) == [
        *((7, 0, 1, size) for size in sorted({row["bytes"] for row in rows})),
        (7, 1, 1, max(row["bytes"] for row in rows)),
    ]
    assert all(row["acked_ns"] is not None for row in rows)
    assert sorted(row["published"] for row in backlog) == [1, 2]
