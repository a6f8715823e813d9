"""The tables: a row per frame, gap and connection, in Arrow batches and Parquet files. See docs/tables.md."""

from pulsarctl_wire.table.builder import TableBuilder
from pulsarctl_wire.table.parquet import RowGroups, writer
from pulsarctl_wire.table.schema import FINDINGS, FRAMES, GAPS, READABLE, TABLES, VERSION, beside, described

__all__ = [
    "FINDINGS",
    "FRAMES",
    "GAPS",
    "READABLE",
    "TABLES",
    "VERSION",
    "RowGroups",
    "TableBuilder",
    "beside",
    "described",
    "writer",
]
