"""`pwire table --findings` writes what `pwire doctor` finds beside a table, and reports read it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from pwire_run import SAMPLES, pwire
from test_findings import CAPTURES, FAILURES, QUICK, Rows, generate, marked, of_doctor, of_report

from pulsarctl_wire import data
from pulsarctl_wire.checks.rule import DEFAULTS
from pulsarctl_wire.data.duck import DuckEngine
from pulsarctl_wire.table.schema import FINDINGS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SENT_CORRUPT = FAILURES / "05-corrupt-before-send.pcap.gz"
PARTITIONED = FAILURES / "35-producer-on-partitioned-parent.pcap.gz"
FEW = (SENT_CORRUPT.name, "25-incomplete-chunks.pcap.gz", "19-advertised-port-closed.pcap.gz")


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queries of findings that are computed from rows from now on."""
    queries: list[str] = []
    compute = DuckEngine._diagnose

    def recorded(engine: DuckEngine, name: str, sql: str) -> None:
        queries.append(sql)
        compute(engine, name, sql)

    monkeypatch.setattr(DuckEngine, "_diagnose", recorded)
    return queries


def made(path: Path, out: Path, *options: str) -> Path:
    run = pwire("table", str(path), "--out", str(out), "--findings", *options)
    assert run.code == 0
    complaints = [line for line in run.complaints if not line.startswith("pwire: TLS: ")]
    assert all(line.endswith("captured twice, counted once") for line in complaints)
    return out


def found(*paths: Path, **choice: Any) -> Rows:
    with data.tables(*paths, choice=data.Choice(**choice)) as tables:
        return tables.report("findings").rows()


@pytest.mark.parametrize("path", [marked(path, FEW) for path in CAPTURES if path.name in QUICK])
def test_what_the_doctor_finds_is_stored(path: Path, tmp_path: Path, computed: list[str]) -> None:
    pwire("table", str(path), "--out", str(tmp_path / "plain.parquet"))
    out = made(path, tmp_path / "it.parquet")
    assert pq.read_table(out).equals(pq.read_table(tmp_path / "plain.parquet"))
    rows = found(out)
    assert computed == []
    assert of_report(rows) == of_doctor(path, DEFAULTS)
    stored = pq.read_table(tmp_path / "it.findings.parquet")
    assert (stored.schema.names, stored.num_rows) == (FINDINGS.names, len(rows))
    frames = pq.read_table(out, columns=["file", "packet_offset", "command"]).to_pylist()
    for each in [each for row in rows for each in json.loads(row["evidence"])]:
        place = {name: each[name] for name in ("file", "packet_offset", "command")}
        assert each["command"] is None or place in frames


def test_packets_may_be_captured_out_of_order(tmp_path: Path) -> None:
    """The doctor puts them in order, the table does not; places and connections are the same in both."""
    path = tmp_path / "it.pcap"
    with open(path, "wb") as file:
        generate(file, 3_000, connections=3)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    out = made(path, tmp_path / "it.parquet")
    rows = found(out)
    assert of_report(rows) == of_doctor(path, DEFAULTS) != []
    columns = ["file", "packet_offset", "command", "connection"]
    frames = pq.read_table(out, columns=columns).to_pylist()
    for each in [each for row in rows for each in json.loads(row["evidence"])]:
        assert {name: each[name] for name in columns} in frames


def test_several_tables(tmp_path: Path, computed: list[str]) -> None:
    a = made(SENT_CORRUPT, tmp_path / "a.parquet", "--cluster", "a")
    b = made(PARTITIONED, tmp_path / "b.parquet", "--cluster", "b")
    stored = {label: found(a, b, cluster=label) for label in ("a", "b", "c")}
    assert stored["a"] != [] != stored["b"]
    assert found(a, b) == [*stored["a"], *stored["b"]]
    assert (stored["c"], computed) == ([], [])
    for path in (a, b):
        path.with_suffix(".findings.parquet").unlink()
    assert found(a, b) == [*stored["a"], *stored["b"]]
    assert len(computed) == 1


def test_findings_of_other_rows_do_not_count(tmp_path: Path, computed: list[str]) -> None:
    out = made(SENT_CORRUPT, tmp_path / "a.parquet")
    rows = found(out)
    twice = Path(shutil.copy(out, tmp_path / "b.parquet"))
    for name in ("gaps", "connections", "findings"):
        shutil.copy(tmp_path / f"a.{name}.parquet", tmp_path / f"b.{name}.parquet")
    assert computed == []
    found(out, twice)  # both may be of one cluster
    assert len(computed) == 1
    assert found(out, host="another") == []
    assert len(computed) == 2
    assert pwire("table", "optimize", str(out)).code == 0
    assert (found(out), len(computed)) == (rows, 2)
    pq.write_table(pq.read_table(out).slice(0, 10), out)
    assert found(out) != rows
    assert len(computed) == 3
    pwire("table", str(SENT_CORRUPT), "--out", str(out))
    assert not (tmp_path / "a.findings.parquet").exists()


def test_a_table_without_frames_has_findings(tmp_path: Path, computed: list[str]) -> None:
    out = made(SENT_CORRUPT, tmp_path / "it.parquet", "--detail", "connections")
    assert of_report(found(out)) == of_doctor(SENT_CORRUPT, DEFAULTS) != []
    assert computed == []
    assert found(tmp_path) == []  # of a directory they do not count
    assert len(computed) == 1


def test_stdin_cannot_be_read_twice(tmp_path: Path) -> None:
    run = pwire("table", "-", "--out", str(tmp_path / "it.parquet"), "--findings")
    assert (run.code, run.complaints) == (
        2,
        ["pwire: --findings: reads the sources twice, and stdin can be read once; save it to a file first"],
    )
    run = pwire("table", str(SAMPLES / "missing.pcap"), "--out", str(tmp_path / "it.parquet"), "--findings")
    assert (run.code, len(run.complaints), list(tmp_path.iterdir())) == (3, 1, [])


@pytest.mark.slow
def test_spark_reads_them_too(spark: SparkSession, tmp_path: Path) -> None:
    a = made(SENT_CORRUPT, tmp_path / "a.parquet", "--cluster", "a")
    b = made(PARTITIONED, tmp_path / "b.parquet", "--cluster", "b")
    with data.tables(a, b, spark=spark) as tables:
        rows = tables.report("findings").rows()
    assert rows == found(a, b) != []
