"""The tables: a row per frame, gap and connection, in Arrow batches and Parquet files. See docs/tables.md."""

from pulsarctl_wire.table.builder import TableBuilder
from pulsarctl_wire.table.groups import RowGroups
from pulsarctl_wire.table.schema import FINDINGS, FRAMES, GAPS, TABLES, VERSION, beside, writer

__all__ = ["FINDINGS", "FRAMES", "GAPS", "TABLES", "VERSION", "RowGroups", "TableBuilder", "beside", "writer"]
