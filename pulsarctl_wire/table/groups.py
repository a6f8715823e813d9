"""Writes Parquet files in full row groups, whatever the batches in which their rows come."""

from typing import Any, Final, Self

import pyarrow as pa

from pulsarctl_wire.table.parquet import ROWS, writer

GATHERED: Final = 32 * 1024 * 1024
"""Bytes of rows that are worth a row group, however few they are."""


class RowGroups:
    """A Parquet file of the columns of `schema`, written to a path or file.

    Rows are gathered until they are `ROWS`, or `most` bytes in memory; then they become a row group.
    """

    def __init__(self, where: Any, schema: Any, most: int = GATHERED) -> None:
        self._parquet = writer(where, schema)
        self._most = most
        self._gathered: list[Any] = []
        self._rows = self._size = 0

    def write(self, rows: Any) -> None:
        """Append a record batch or a table."""
        if not rows.num_rows:
            return
        self._gathered.append(pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows)
        self._rows += rows.num_rows
        self._size += rows.nbytes
        if self._rows >= ROWS or self._size >= self._most:
            self._flush()

    def note(self, name: bytes, text: str) -> None:
        """Add a text to the metadata of the file."""
        self._parquet.add_key_value_metadata({name: text.encode()})

    def close(self) -> None:
        """Write the remaining rows, and complete the file."""
        if self._gathered:
            self._flush()
        self._parquet.close()

    def _flush(self) -> None:
        rows, self._gathered = pa.concat_tables(self._gathered), []
        # With one dictionary for all batches, texts are written as numbers.
        self._parquet.write_table(rows.unify_dictionaries(), row_group_size=rows.num_rows)
        self._rows = self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
