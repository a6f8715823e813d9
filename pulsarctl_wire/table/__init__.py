"""The frames table: one row a frame, in Arrow batches and Parquet files. See docs/frames-table.md."""

from pulsarctl_wire.table.builder import TableBuilder
from pulsarctl_wire.table.columns import renumbered
from pulsarctl_wire.table.schema import FRAMES, GAPS, VERSION, writer

__all__ = ["FRAMES", "GAPS", "VERSION", "TableBuilder", "renumbered", "writer"]
