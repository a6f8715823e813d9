"""Tables as others leave them: at URIs, rewritten, partitioned, with a column more or fewer."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pwire_run import pwire

from pulsarctl_wire import data
from pulsarctl_wire.capture import read_events
from pulsarctl_wire.cli.data.report import ReportOptions, report
from pulsarctl_wire.data.duck import DuckEngine
from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline.files.filesystems import arrow_uri
from pulsarctl_wire.pipeline.storage.finish import begin_file
from pulsarctl_wire.pipeline.storage.tables import find
from pulsarctl_wire.reports.engine import Engine
from pulsarctl_wire.reports.sql import Choice
from pulsarctl_wire.spark.columns import spark_uri
from pulsarctl_wire.spark.engine import SparkEngine
from pulsarctl_wire.table.builder import TableBuilder
from pulsarctl_wire.table.parquet import writer
from pulsarctl_wire.table.schema import VERSION

pytestmark = pytest.mark.slow
SAMPLES = Path(__file__).parents[2] / "samples" / "pcaps"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A frames table with gaps beside it, as `pwire table` writes it."""
    builder = TableBuilder(["some/it%"])
    builder.add(list(read_events(SAMPLES / "snaplen96.pcap", SAMPLES / "errors.pcap")))
    folder = tmp_path_factory.mktemp("made")
    for name, rows in (("it.parquet", builder.take_frames()), ("it.gaps.parquet", builder.take_gaps())):
        with writer(folder / name, rows.schema.with_metadata({"pwire.table": VERSION})) as file:
            file.write_batch(rows)
    return folder / "it.parquet"


def placed(table: Path, out: Path) -> str:
    """As `pwire analyze` places them."""
    for kind, name in (("frames", table.name), ("gaps", f"{table.stem}.gaps.parquet")):
        (out / kind).mkdir(parents=True)
        shutil.copy(table.with_name(name), out / kind / "000000-00000.parquet")
    (out / "progress").mkdir()
    return str(out)


def in_directories(table: Path, out: Path) -> str:
    """As `pwire analyze --partition-by` places them."""
    for kind, source in (("frames", table), ("gaps", table.with_name("it.gaps.parquet"))):
        file = pq.ParquetFile(source)
        by = ("series", "date", "cluster")
        written = begin_file(str(out / kind), "000000-00000", file.schema_arrow, by)
        for batch in file.iter_batches():
            written.write(batch)
        written.close()
    return str(out)


def without_a_column(table: Path, out: Path) -> str:
    rows = pq.read_table(table).drop_columns(["subscription"])
    pq.write_table(rows, out.with_suffix(".parquet"))
    return str(out.with_suffix(".parquet"))


def with_a_column(table: Path, out: Path) -> str:
    rows = pq.read_table(table)
    out.mkdir()
    pq.write_table(rows.slice(0, 20), out / "a.parquet")
    pq.write_table(
        rows.slice(20).append_column("machine", pa.array(["h"] * (len(rows) - 20))), out / "b.parquet"
    )
    return str(out)


def by_command(table: Path, out: Path) -> str:
    pq.write_to_dataset(pq.read_table(table), out / "frames", partition_cols=["command", "to_broker"])
    pq.write_to_dataset(pq.read_table(table.with_name("it.gaps.parquet")), out / "gaps")
    return str(out)


def by_connection(table: Path, out: Path) -> str:
    pq.write_to_dataset(pq.read_table(table), out, partition_cols=["connection"])
    return str(out)


def with_less_metadata(table: Path, out: Path) -> str:
    rows = pq.read_table(table)
    at = rows.schema.get_field_index("metadata")
    metadata = rows.column(at).combine_chunks()
    kept = [field for field in metadata.type if field.name != "uuid"]
    thinner = pa.StructArray.from_arrays(
        [metadata.field(field.name) for field in kept], fields=kept, mask=metadata.is_null()
    )
    pq.write_table(rows.set_column(at, "metadata", thinner), out.with_suffix(".parquet"))
    return str(out.with_suffix(".parquet"))


MADE: dict[Callable[[Path, Path], str], dict[str, None]] = {
    placed: {},
    in_directories: {},
    (lambda table, out: "file://" + in_directories(table, out)): {},
    (lambda table, out: "file://" + placed(table, out)): {},
    (lambda table, out: f"file://{table}"): {},
    (lambda table, out: f"file:{table}"): {},
    without_a_column: {"subscription": None},
    with_a_column: {},
    by_command: {},
    by_connection: {},
    with_less_metadata: {},
}
"""How tables are made, and what their rows do not tell."""


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_these_are_tables(spark: SparkSession, table: Path, tmp_path: Path, engine: str) -> None:
    found = find([made(table, tmp_path / f"out{number}") for number, made in enumerate(MADE)])
    expected = pq.read_table(table)
    running: Engine = (
        DuckEngine(found, Choice()) if engine == "duckdb" else SparkEngine(spark, found, Choice())
    )
    assert running.rows("SELECT count(date) AS n FROM frames") == [{"n": 2 * len(expected)}]
    assert running.rows("SELECT count(DISTINCT machine) AS n FROM frames") == [{"n": 1}]
    columns = ", ".join(f"f.{name}" for name in expected.column_names)
    rows = running.rows(f"SELECT {columns} FROM frames f")
    each = max(expected.column("connection").to_pylist()) + 1
    assert [one.connections for one in found] == [each] * len(MADE)
    for number, lacks in enumerate(MADE.values()):
        own = [row for row in rows if row["connection"] // each == number]
        wanted = [
            {**row, **lacks, "connection": row["connection"] + number * each} for row in expected.to_pylist()
        ]
        assert _rows(own) == _rows(wanted)


def test_columns_that_a_table_lacks_are_said(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = pq.read_table(table)
    pq.write_table(whole.drop_columns(["command", "payload"]), tmp_path / "one.parquet")
    gaps = pq.read_table(table.with_name("it.gaps.parquet"))
    pq.write_table(gaps.drop_columns(["reason"]), tmp_path / "one.gaps.parquet")
    other = with_less_metadata(table, tmp_path / "two")
    paths = [str(table), str(tmp_path / "one.parquet"), other, by_command(table, tmp_path / "three")]
    report(ReportOptions(name="errors", sources=paths, topic="orders"))
    lacks = "command, gaps.reason, metadata.uuid"
    assert capsys.readouterr().err == (
        f"pwire: report: the table lacks {lacks}: reports that need them are incomplete\n"
    )
    report(ReportOptions(name="errors", sources=paths[:1]))
    assert capsys.readouterr().err == ""


def _rows(rows: list[dict[str, Any]]) -> list[str]:
    def plain(value: Any) -> Any:
        return value.isoformat() if isinstance(value, datetime) else value

    return sorted(repr([(name, plain(row[name])) for name in sorted(row)]) for row in rows)


def test_what_spark_wrote_is_a_table(spark: SparkSession, table: Path, tmp_path: Path) -> None:
    first = SparkEngine(spark, find([str(table)]), Choice())
    out = tmp_path / "again.parquet"
    first.lazy("SELECT * FROM frames").coalesce(1).write.partitionBy("command").parquet(str(out))
    first.lazy("SELECT * FROM gaps").coalesce(1).write.parquet(str(tmp_path / "again.gaps.parquet"))
    assert (out / "_SUCCESS").exists()
    count = "SELECT count(*) AS frames, (SELECT count(*) FROM gaps) AS gaps FROM frames"
    connections = "SELECT DISTINCT connection FROM frames"
    (counted,), once = first.rows(count), {row["connection"] for row in first.rows(connections)}
    with data.tables(str(out), f"file://{table}") as again:
        assert again.sql(count).rows() == [{name: 2 * value for name, value in counted.items()}]
        numbers = {row["connection"] for row in again.sql(connections).rows()}
    assert numbers == once | {number + max(once) + 1 for number in once}


def test_a_gaps_table_is_no_frames_table(table: Path) -> None:
    with pytest.raises(CaptureError, match="is not a frames table"):
        find([str(table.with_name("it.gaps.parquet"))])


def test_uris_are_those_that_each_side_knows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert spark_uri("s3://bucket/a/b") == spark_uri("s3a://bucket/a/b") == "s3a://bucket/a/b"
    assert spark_uri("hdfs://name:8020/a") == "hdfs://name:8020/a"
    assert spark_uri("file:///a/b") == "file:///a/b"
    assert spark_uri("file:/a/b") == "file:/a/b"
    assert arrow_uri("s3a://bucket/a") == arrow_uri("s3://bucket/a") == "s3://bucket/a"
    assert arrow_uri("hdfs://name:8020/a") == "hdfs://name:8020/a"
    monkeypatch.chdir(tmp_path)
    assert spark_uri("a/b") == f"{tmp_path}/a/b"


def test_a_capture_may_have_no_frames(tmp_path: Path) -> None:
    pwire("analyze", SAMPLES / "http-client-on-binary-port.pcap", "--out", tmp_path / "table")
    (found,) = find([str(tmp_path / "table")])
    assert (len(found.files["frames"].paths), len(found.files["gaps"].paths), found.rows) == (1, 1, 2)


@pytest.mark.parametrize("verb", ["table", "analyze"])
def test_reports_warn_of_frames_that_a_table_leaves_out(tmp_path: Path, verb: str) -> None:
    out = str(tmp_path / "out.parquet")
    for detail, warnings in (("frames", 0), ("exchanges", 1)):
        assert pwire(verb, SAMPLES / "python-simple.pcap", "--out", out, "--detail", detail).code == 0
        complaints = pwire("report", "findings", out).complaints
        assert [f"--detail {detail} leaves out" in text for text in complaints] == [True] * warnings
