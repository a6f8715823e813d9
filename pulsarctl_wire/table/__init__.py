"""The frames table: one row per frame, in Arrow batches and Parquet files. See docs/tables.md."""

from pulsarctl_wire.table.builder import TableBuilder
from pulsarctl_wire.table.schema import FRAMES, GAPS, VERSION, gaps_path, writer

__all__ = ["FRAMES", "GAPS", "VERSION", "TableBuilder", "gaps_path", "writer"]
