"""How Parquet stores the tables, and what a file says of its columns."""

import json
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pulsarctl_wire.table.schema import COMMENT, TIMES

if TYPE_CHECKING:
    from typing_extensions import Self  # Python 3.10 has none

GROUP_ROWS: Final = 65_536
"""Rows of a batch, and of a Parquet row group."""
GROUP_BYTES: Final = 32 * 1024 * 1024
"""Bytes of rows that are worth a row group, however few the rows are."""

_DIFFERENCES: Final = (
    *("packet_offset", "time_ns", "start_time_ns", "stream_offset", "request_id", "sequence_id"),
    *("entry_id", "highest_sequence_id", "permits", "request", "latency_ns", "acked.list.element.entry_id"),
    *("metadata.publish_time", "metadata.event_time", "metadata.deliver_at_time"),
    *("publish_time", "event_time", "deliver_at_time"),
)
"""Columns of many different numbers, stored as differences. Most others use a dictionary."""

_PLAIN: Final = ("command_json", "payload", "payload_crc", "value", *TIMES)
"""Columns stored as they are: many different texts or digests, and times, where differences save nothing."""

_SPARK: Final = "org.apache.spark.sql.parquet.row.metadata"
"""Where Spark looks for the columns of a file, with comments."""
_SPARK_TYPES: Final = {
    **{pa.string(): "string", pa.binary(): "binary", pa.bool_(): "boolean"},
    **{pa.int32(): "integer", pa.int64(): "long", pa.date32(): "date"},
}


def writer(target: Any, schema: Any, **options: Any) -> Any:
    """Return a `pyarrow.parquet.ParquetWriter` of `schema` to a path or file."""
    paths = _list_leaves(schema)
    parquet = pq.ParquetWriter(
        target,
        schema,
        compression="zstd",
        compression_level=3,
        use_dictionary=[path for path in paths if path not in (*_DIFFERENCES, *_PLAIN)],
        column_encoding={path: "DELTA_BINARY_PACKED" for path in paths if path in _DIFFERENCES},
        write_batch_size=8_192,
        **options,
    )
    # Not in the metadata of the Arrow schema, which would be stored twice.
    parquet.add_key_value_metadata({_SPARK: json.dumps(_to_spark(schema), separators=(",", ":"))})
    return parquet


class RowGroups:
    """A Parquet file of the columns of `schema`, written to a path or file.

    Rows are gathered until they are `GROUP_ROWS`, or `max_bytes` in memory; then they become a row group.
    """

    def __init__(self, target: Any, schema: Any, max_bytes: int = GROUP_BYTES) -> None:
        self._parquet = writer(target, schema)
        self._max_bytes = max_bytes
        self._tables: list[Any] = []
        self._rows = self._size = 0

    def write(self, rows: Any) -> None:
        """Append a record batch or a table."""
        if not rows.num_rows:
            return
        self._tables.append(pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows)
        self._rows += rows.num_rows
        self._size += rows.nbytes
        if self._rows >= GROUP_ROWS or self._size >= self._max_bytes:
            self._flush()

    def note(self, name: bytes, text: str) -> None:
        """Add a text to the metadata of the file."""
        self._parquet.add_key_value_metadata({name: text.encode()})

    def close(self) -> None:
        """Write the remaining rows, and complete the file."""
        if self._tables:
            self._flush()
        self._parquet.close()

    def _flush(self) -> None:
        rows, self._tables = pa.concat_tables(self._tables), []
        # With one dictionary for all batches, texts are written as numbers.
        self._parquet.write_table(rows.unify_dictionaries(), row_group_size=rows.num_rows)
        self._rows = self._size = 0

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _list_leaves(schema: Any) -> list[str]:
    """Return the path of each column that holds values."""
    leaves: list[str] = []
    for field in schema:
        if pa.types.is_struct(field.type):
            leaves += [f"{field.name}.{name}" for name in _list_leaves(field.type)]
        elif pa.types.is_map(field.type):
            leaves += [f"{field.name}.key_value.{part}" for part in ("key", "value")]
        elif pa.types.is_list(field.type) and pa.types.is_struct(field.type.value_type):
            leaves += [f"{field.name}.list.element.{name}" for name in _list_leaves(field.type.value_type)]
        else:
            leaves.append(f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name)
    return leaves


def _to_spark(type_: Any) -> Any:
    """Return an Arrow type or schema in the JSON form that Spark has for types."""
    if isinstance(type_, pa.Schema) or pa.types.is_struct(type_):
        fields = [
            {"name": field.name, "type": _to_spark(field.type), "nullable": True, "metadata": _comment(field)}
            for field in type_
        ]
        return {"type": "struct", "fields": fields}
    if pa.types.is_list(type_):
        return {"type": "array", "elementType": _to_spark(type_.value_type), "containsNull": True}
    if pa.types.is_map(type_):
        key, value = _to_spark(type_.key_type), _to_spark(type_.item_type)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    if pa.types.is_dictionary(type_):
        return _to_spark(type_.value_type)
    return "timestamp" if pa.types.is_timestamp(type_) else _SPARK_TYPES[type_]


def _comment(field: Any) -> dict[str, str]:
    comment = (field.metadata or {}).get(COMMENT)
    return {} if comment is None else {COMMENT.decode(): comment.decode()}
