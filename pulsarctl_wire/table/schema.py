"""What the columns of the frames table and of the gaps table are, and how they are stored in Parquet.

docs/frames-table.md says what each column means; a test compares. Integers that the protocol has as
uint64 are stored as int64, so that what Pulsar sends for -1 is -1. Texts are dictionaries.
"""

from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

VERSION: Final = "1"
"""Of the schema, in the Parquet metadata under `pwire.table`; it grows when a column changes its meaning."""

TEXT: Final = pa.dictionary(pa.int32(), pa.string())

METADATA: Final = pa.struct(
    [
        ("producer_name", TEXT),
        ("publish_time", pa.int64()),
        ("event_time", pa.int64()),
        ("deliver_at_time", pa.int64()),
        ("key_hash", pa.int32()),
        ("compression", TEXT),
        ("num_messages_in_batch", pa.int32()),
        ("uuid", TEXT),
        ("num_chunks_from_msg", pa.int32()),
        ("chunk_id", pa.int32()),
        ("total_chunk_msg_size", pa.int32()),
        ("schema_version", TEXT),
        ("txnid_least_bits", pa.int64()),
        ("txnid_most_bits", pa.int64()),
    ]
)
_MESSAGE_ID: Final = pa.struct([("ledger_id", pa.int64()), ("entry_id", pa.int64())])

_PLACE: Final = [
    ("file", TEXT),
    ("packet_offset", pa.int64()),
    ("time_ns", pa.int64()),
]
_CONNECTION: Final = [
    ("src_ip", TEXT),
    ("src_port", pa.int32()),
    ("dst_ip", TEXT),
    ("dst_port", pa.int32()),
    ("connection", pa.int64()),
    ("to_broker", pa.bool_()),
    ("stream_offset", pa.int64()),
]
_ABOUT: Final = {b"pwire.table": VERSION.encode()}

FRAMES: Final = pa.schema(
    [
        *_PLACE,
        ("start_time_ns", pa.int64()),
        *_CONNECTION,
        ("command", TEXT),
        ("total_size", pa.int64()),
        ("command_size", pa.int64()),
        ("partial", pa.bool_()),
        ("request_id", pa.int64()),
        ("producer_id", pa.int64()),
        ("consumer_id", pa.int64()),
        ("sequence_id", pa.int64()),
        ("num_messages", pa.int32()),
        ("ledger_id", pa.int64()),
        ("entry_id", pa.int64()),
        ("topic", TEXT),
        ("subscription", TEXT),
        ("error", TEXT),
        ("permits", pa.int64()),
        ("redelivery_count", pa.int64()),
        ("ack_type", TEXT),
        ("ack_count", pa.int32()),
        ("acked", pa.list_(_MESSAGE_ID)),
        ("checksum", TEXT),
        ("checksum_valid", pa.bool_()),
        ("metadata_size", pa.int64()),
        ("payload_size", pa.int64()),
        ("metadata", METADATA),
        ("command_json", pa.string()),
        ("payload", pa.binary()),
    ],
    metadata=_ABOUT,
)
"""The frames table."""

GAPS: Final = pa.schema(
    [*_PLACE, *_CONNECTION, ("kind", TEXT), ("size", pa.int64()), ("reason", pa.string())], metadata=_ABOUT
)
"""The gaps table: bytes that were never captured (kind "gap") or are no frames ("malformed")."""

ROWS: Final = 65_536
"""Rows of a batch, and of a Parquet row group."""

_DIFFERENCES: Final = (
    *("packet_offset", "time_ns", "start_time_ns", "stream_offset", "request_id", "sequence_id", "entry_id"),
    *(
        "permits",
        "acked.list.element.entry_id",
        "metadata.publish_time",
        "metadata.event_time",
        "metadata.deliver_at_time",
    ),
)
"""Columns that count something: their differences are stored. The others have few values: dictionaries."""


def _leaves(schema: Any) -> list[str]:
    """The path of each column that holds values."""
    leaves: list[str] = []
    for field in schema:
        if pa.types.is_struct(field.type):
            leaves += [f"{field.name}.{name}" for name in _leaves(field.type)]
        elif pa.types.is_list(field.type):
            leaves += [f"{field.name}.list.element.{name}" for name in _leaves(field.type.value_type)]
        else:
            leaves.append(field.name)
    return leaves


def writer(where: Any, schema: Any, **options: Any) -> Any:
    """A `pyarrow.parquet.ParquetWriter` of `schema` to a path or file."""
    paths = _leaves(schema)
    return pq.ParquetWriter(
        where,
        schema,
        compression="zstd",
        compression_level=3,
        use_dictionary=[path for path in paths if path not in (*_DIFFERENCES, "command_json", "payload")],
        column_encoding={path: "DELTA_BINARY_PACKED" for path in paths if path in _DIFFERENCES},
        write_batch_size=8_192,
        **options,
    )
