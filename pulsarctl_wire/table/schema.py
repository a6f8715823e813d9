"""Defines the columns of the frames table and of the gaps table, and how Parquet stores them.

docs/tables.md says what each column means; a test compares the two. The protocol's uint64 integers are
stored as int64, so that the value which Pulsar sends for -1 becomes -1. Texts are dictionary-encoded.
"""

from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

VERSION: Final = "3"
"""Schema version, in the Parquet metadata `pwire.table`. Increase it when a column changes its meaning."""

TEXT: Final = pa.dictionary(pa.int32(), pa.string())

METADATA: Final = pa.struct(
    [
        ("producer_name", TEXT),
        ("publish_time", pa.int64()),
        ("event_time", pa.int64()),
        ("deliver_at_time", pa.int64()),
        ("key_hash", pa.int32()),
        ("compression", TEXT),
        ("uncompressed_size", pa.int64()),
        ("num_messages_in_batch", pa.int32()),
        ("uuid", TEXT),
        ("num_chunks_from_msg", pa.int32()),
        ("chunk_id", pa.int32()),
        ("total_chunk_msg_size", pa.int32()),
        ("schema_version", TEXT),
        ("null_value", pa.bool_()),
        ("encrypted", pa.bool_()),
        ("marker_type", pa.int32()),
        ("replicated_from", TEXT),
        ("txnid_least_bits", pa.int64()),
        ("txnid_most_bits", pa.int64()),
    ]
)
_ACKED: Final = pa.struct(
    [
        *(("ledger_id", pa.int64()), ("entry_id", pa.int64()), ("left", pa.int64())),
        ("ack_set", pa.list_(pa.int64())),
    ]
)

_PLACE: Final = [
    ("file", TEXT),
    ("series", TEXT),
    ("cluster", TEXT),
    ("packet_offset", pa.int64()),
    ("time_ns", pa.int64()),
]
_REPORTED: Final = [("reported_ns", pa.int64()), ("reported_place", pa.int32())]
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
        *_REPORTED,
        *_CONNECTION,
        ("command", TEXT),
        ("total_size", pa.int64()),
        ("command_size", pa.int64()),
        ("partial", pa.bool_()),
        ("request_id", pa.int64()),
        ("producer_id", pa.int64()),
        ("consumer_id", pa.int64()),
        ("sequence_id", pa.int64()),
        ("highest_sequence_id", pa.int64()),
        ("num_messages", pa.int32()),
        ("messages", pa.int32()),
        ("producer", TEXT),
        ("resend", pa.bool_()),
        ("answers", TEXT),
        ("latency_ns", pa.int64()),
        ("sent_size", pa.int64()),
        ("ledger_id", pa.int64()),
        ("entry_id", pa.int64()),
        ("topic", TEXT),
        ("subscription", TEXT),
        ("error", TEXT),
        ("permits", pa.int64()),
        ("redelivery_count", pa.int64()),
        ("consumer_epoch", pa.int64()),
        ("ack_type", TEXT),
        ("ack_count", pa.int32()),
        ("acked", pa.list_(_ACKED)),
        ("left", pa.int64()),
        ("ack_set", pa.list_(pa.int64())),
        ("validation_error", TEXT),
        ("checksum", TEXT),
        ("checksum_valid", pa.bool_()),
        ("metadata_size", pa.int64()),
        ("payload_size", pa.int64()),
        ("payload_crc", pa.int64()),
        ("unpacked_size", pa.int64()),
        ("head_crc", pa.int64()),
        ("metadata", METADATA),
        ("command_json", pa.string()),
        ("token_expires_ns", pa.int64()),
        ("payload", pa.binary()),
    ],
    metadata=_ABOUT,
)
"""The frames table."""

GAPS: Final = pa.schema(
    [*_PLACE, *_REPORTED, *_CONNECTION, ("kind", TEXT), ("size", pa.int64()), ("reason", pa.string())],
    metadata=_ABOUT,
)
"""The gaps table: bytes that were never captured (kind "gap") or are not frames ("malformed")."""

CONNECTIONS: Final = pa.schema(
    [
        *_PLACE,
        ("connection", pa.int64()),
        ("client_ip", TEXT),
        ("client_port", pa.int32()),
        ("server_ip", TEXT),
        ("server_port", pa.int32()),
        ("protocol", TEXT),
        ("client_version", TEXT),
        ("server_version", TEXT),
        ("protocol_version", pa.int32()),
        ("proxy_to_broker_url", TEXT),
        ("syns", pa.int64()),
        ("joined", pa.bool_()),
        ("end", TEXT),
        ("by_broker", pa.bool_()),
        ("both", pa.bool_()),
        ("end_ns", pa.int64()),
        ("last_ns", pa.int64()),
        ("bytes_to_broker", pa.int64()),
        ("bytes_to_client", pa.int64()),
    ],
    metadata=_ABOUT,
)
"""The connections table: one row per TCP connection, when it has ended or the capture has."""

MESSAGES: Final = pa.schema(
    [
        *_PLACE,
        *_CONNECTION,
        ("command", TEXT),
        ("topic", TEXT),
        ("subscription", TEXT),
        ("producer", TEXT),
        ("producer_id", pa.int64()),
        ("consumer_id", pa.int64()),
        ("ledger_id", pa.int64()),
        ("entry_id", pa.int64()),
        ("batch_index", pa.int32()),
        ("num_messages_in_batch", pa.int32()),
        ("num_chunks_from_msg", pa.int32()),
        ("sequence_id", pa.int64()),
        ("publish_time", pa.int64()),
        ("event_time", pa.int64()),
        ("deliver_at_time", pa.int64()),
        ("redelivery_count", pa.int64()),
        ("already_acked", pa.bool_()),
        ("key", pa.string()),
        ("key_hash", pa.int32()),
        ("ordering_key", pa.string()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("schema_version", TEXT),
        ("compression", TEXT),
        ("encrypted", pa.bool_()),
        ("marker_type", pa.int32()),
        ("null_value", pa.bool_()),
        ("size", pa.int64()),
        ("payload", pa.binary()),
        ("value", pa.string()),
        ("note", pa.string()),
    ],
    metadata=_ABOUT,
)
"""The messages table, if asked for: one row per message of each SEND and MESSAGE, with batches opened."""

TABLES: Final = {"frames": FRAMES, "gaps": GAPS, "connections": CONNECTIONS, "messages": MESSAGES}
"""The tables of a directory, by name."""

FINDINGS: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("cluster", "rule", "severity", "certainty")),
        *(("topic", pa.string()), ("subscription", pa.string())),
        *(("producer_id", pa.int64()), ("consumer_id", pa.int64())),
        *(("message_id", pa.string()), ("sequence_id", pa.int64()), ("uuid", pa.string())),
        *(("connection", pa.int64()), ("client", pa.string()), ("server", pa.string())),
        *((name, pa.int64()) for name in ("first_ns", "last_ns", "count")),
        *((name, pa.string()) for name in ("explanation", "advice", "evidence")),
    ]
)
"""What the report `findings` has (docs/reports.md)."""

ROWS: Final = 65_536
"""Rows of a batch, and of a Parquet row group."""

_DIFFERENCES: Final = (
    *("packet_offset", "time_ns", "start_time_ns", "stream_offset", "request_id", "sequence_id", "entry_id"),
    *("highest_sequence_id", "permits", "latency_ns", "acked.list.element.entry_id"),
    *("metadata.publish_time", "metadata.event_time", "metadata.deliver_at_time"),
    *("publish_time", "event_time", "deliver_at_time"),
)
"""Columns of many different numbers, stored as differences. Most others use a dictionary."""

_VARIOUS: Final = ("command_json", "payload", "payload_crc", "value")
"""Columns of many different texts, and of digests."""


def _leaves(schema: Any) -> list[str]:
    """The path of each column that holds values."""
    leaves: list[str] = []
    for field in schema:
        if pa.types.is_struct(field.type):
            leaves += [f"{field.name}.{name}" for name in _leaves(field.type)]
        elif pa.types.is_map(field.type):
            leaves += [f"{field.name}.key_value.{part}" for part in ("key", "value")]
        elif pa.types.is_list(field.type) and pa.types.is_struct(field.type.value_type):
            leaves += [f"{field.name}.list.element.{name}" for name in _leaves(field.type.value_type)]
        else:
            leaves.append(f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name)
    return leaves


def beside(frames: str, name: str) -> str:
    """Where another table of the frames table at `frames` is: frames.parquet has frames.gaps.parquet."""
    stem, dot, ending = frames.rpartition(".")
    return f"{stem}.{name}.{ending}" if dot and "/" not in ending else f"{frames}.{name}"


def writer(where: Any, schema: Any, **options: Any) -> Any:
    """A `pyarrow.parquet.ParquetWriter` of `schema` to a path or file."""
    paths = _leaves(schema)
    return pq.ParquetWriter(
        where,
        schema,
        compression="zstd",
        compression_level=3,
        use_dictionary=[path for path in paths if path not in (*_DIFFERENCES, *_VARIOUS)],
        column_encoding={path: "DELTA_BINARY_PACKED" for path in paths if path in _DIFFERENCES},
        write_batch_size=8_192,
        **options,
    )
