"""Tables from files: what `pwire table` and `pwire analyze` write, checked before Spark reads it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pulsarctl_wire.capture.sources import holds_packets
from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.spark.reports.base import Tables
from pulsarctl_wire.table import FRAMES, GAPS, VERSION


class Found(NamedTuple):
    """The files of a table, and how many connection numbers and rows it has."""

    frames: list[Path]
    gaps: list[Path]
    connections: int
    rows: int


SMALL: Final = 300_000
"""Rows up to which Spark takes longer to compile a report than to make it."""
_FOR_SMALL: Final = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.files.openCostInBytes": "1",
}


def settings(found: Sequence[Found]) -> dict[str, str]:
    """What to tell Spark about tables of this size."""
    return _FOR_SMALL if sum(table.rows for table in found) <= SMALL else {}


def find(paths: Sequence[str]) -> list[Found]:
    """The tables at `paths`: frames files with their gaps beside them, or directories of `pwire analyze`.

    `CaptureError` if there is none, or one of another version.
    """
    found = []
    for path in map(Path, paths):
        frames, gaps = list(_frames_files(path)), list(_gaps_files(path))
        checked = [_check(file, FRAMES) for file in frames] + [_check(file, GAPS) for file in gaps]
        last, rows = max(last for last, _ in checked), sum(rows for _, rows in checked)
        found.append(Found(frames, gaps, last + 1, rows))
    return found


def load(spark: SparkSession, found: Sequence[Found]) -> Tables:
    """All of `found` as one. Each counts its connections from 0: those of later ones are numbered on."""
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True  # it prints what we raise
    loaded: Tables | None = None
    taken = 0
    for table in found:
        one = Tables(_read(spark, table.frames, FRAMES, taken), _read(spark, table.gaps, GAPS, taken))
        if loaded is None:
            loaded = one
        else:
            loaded = Tables(loaded.frames.unionByName(one.frames), loaded.gaps.unionByName(one.gaps))
        taken += table.connections
    if loaded is None:
        raise CaptureError("no frames table was named")
    return loaded


def _read(spark: SparkSession, files: list[Path], schema: Any, taken: int) -> DataFrame:
    if not files:
        return spark.createDataFrame(schema.empty_table())
    table = spark.read.parquet(*(str(file.absolute()) for file in files))
    return table.withColumn("connection", F.col("connection") + taken) if taken else table


def _frames_files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    folder = path / "frames" if (path / "frames").is_dir() else path
    files = sorted(file for file in folder.glob("*.parquet") if not file.name.endswith(".gaps.parquet"))
    if not files:
        raise CaptureError(f"{path}: no frames table in there (frames/*.parquet): pwire analyze makes one")
    yield from files


def _gaps_files(path: Path) -> Iterator[Path]:
    if (path / "gaps").is_dir():
        yield from sorted((path / "gaps").glob("*.parquet"))
    elif path.is_dir():
        yield from sorted(path.glob("*.gaps.parquet"))
    elif (beside := path.with_name(f"{path.stem}.gaps{path.suffix}")).exists():
        yield beside


def _check(file: Path, schema: Any) -> tuple[int, int]:
    """The highest connection number (-1: none) and the rows of a file; an error if it is no such table."""
    what = "frames" if schema is FRAMES else "gaps"
    if not file.exists():
        raise CaptureError(f"{file}: no such file")
    try:
        footer = pq.read_metadata(file)
        found = footer.schema.to_arrow_schema()
    except pa.ArrowInvalid:
        if holds_packets(str(file)):
            way_out = f"pwire table {file} --out {file}.parquet makes a table of it"
            raise CaptureError(f"{file} is a capture, no table: {way_out}") from None
        raise CaptureError(f"{file} is no {what} table: pwire table SOURCE... --out makes one") from None
    except OSError as error:
        raise CaptureError(f"{file}: {error.strerror or 'it cannot be read'}") from None
    version = (found.metadata or {}).get(b"pwire.table", b"").decode(errors="replace")
    if version and version != VERSION:
        raise CaptureError(f"{file} is a table of version {version}, not {VERSION}: make it anew")
    if not version or found.names != schema.names:
        raise CaptureError(f"{file} is no {what} table: pwire table SOURCE... --out makes one")
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    at = [group.column(n) for group in groups for n in range(group.num_columns)]
    highest = [each.statistics.max for each in at if each.path_in_schema == "connection" and each.statistics]
    return max(highest, default=-1), footer.num_rows
