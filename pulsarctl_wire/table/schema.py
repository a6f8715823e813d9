"""Defines the columns of the tables, and what they mean.

docs/tables.md shows the same; a test compares the two. The protocol's uint64 integers are stored as int64, so
that the value which Pulsar sends for -1 becomes -1. Texts are dictionary-encoded.
"""

import json
from functools import partial
from typing import Any, Final

import pyarrow as pa

from pulsarctl_wire.wire.detail import ALL, TABLE_NAMES

VERSION: Final = "6"
"""Schema version, in the Parquet metadata `pwire.table`. The columns of a version keep names and meanings."""

READABLE: Final = ("3", "4", "5", VERSION)
"""The versions that reports read. Earlier ones lack columns."""

DETAIL: Final = b"pwire.detail"
"""The key in the Parquet metadata under which a table that does not hold all frames has its detail."""

COMMENT: Final = b"comment"
"""The key of a column's meaning in the metadata of its Arrow field, as in Delta Lake and Spark."""

TEXT: Final = pa.dictionary(pa.int32(), pa.string())
TIME: Final = pa.timestamp("us", "UTC")

TIMES: Final = {"time": "time_ns", "end_time": "end_ns", "last_time": "last_ns"}
"""Columns of the type `TIME` -> those with the same times in ns."""


def _column(type_: Any, name: str, meaning: str, unit: str = "") -> Any:
    """Return the Arrow field of a column."""
    return pa.field(name, type_, metadata={COMMENT: f"{meaning} ({unit})" if unit else meaning})


_text: Final = partial(_column, TEXT)
_long_text: Final = partial(_column, pa.string())
_int32: Final = partial(_column, pa.int32())
_int64: Final = partial(_column, pa.int64())
_bool: Final = partial(_column, pa.bool_())
_bytes: Final = partial(_column, pa.binary())
_words: Final = partial(_column, pa.list_(pa.int64()))

_NS: Final = "ns since 1970"
_MS: Final = "ms since 1970"


def _time(name: str) -> Any:
    """Return a column of `TIMES`."""
    return _column(TIME, name, f"{TIMES[name]} in microseconds, as a timestamp in UTC")


_PANDAS: Final = {
    pa.int32(): ("int32", "Int32"),
    pa.int64(): ("int64", "Int64"),
    pa.bool_(): ("bool", "boolean"),
}
"""Arrow type -> pandas' names of it without nulls, and with nulls."""


def for_pandas(schema: Any) -> Any:
    """Return `schema` with metadata that makes pandas keep the types of integers and booleans with nulls."""
    columns = [
        {"name": field.name, "pandas_type": plain, "numpy_type": nullable}
        for field in schema
        if field.type in _PANDAS
        for plain, nullable in [_PANDAS[field.type]]
    ]
    description = {"columns": columns, "index_columns": [], "column_indexes": []}
    text = json.dumps(description, separators=(",", ":"))
    return schema.with_metadata((schema.metadata or {}) | {b"pandas": text.encode()})


def _table(fields: list[Any]) -> Any:
    return for_pandas(pa.schema(fields, {b"pwire.table": VERSION.encode()}))


METADATA: Final = pa.struct(
    [
        _text("producer_name", "name of the message's producer"),
        _int64("publish_time", "when the producer published it", _MS),
        _int64("event_time", "as the application set it", _MS),
        _int64("deliver_at_time", "when it is to be delivered, for delayed messages", _MS),
        _int32(
            "key_hash",
            "Murmur3 (x86, 32 bits, seed 0, without sign) of the ordering key, otherwise of the partition "
            "key, decoded from base64 if it is marked as such",
        ),
        _text("compression", "NONE, LZ4, ZLIB, ZSTD, SNAPPY"),
        _int64("uncompressed_size", "of the payload; null if the field is not there", "bytes"),
        _int32("num_messages_in_batch", "1 if there is no batch", "messages"),
        _text("uuid", "of a chunked message"),
        _int32("num_chunks_from_msg", "how many chunks it has"),
        _int32("chunk_id", "number of the chunk, from 0"),
        _int32("total_chunk_msg_size", "size of all chunks together", "bytes"),
        _text("schema_version", "base64"),
        _bool("null_value", "true if the message has no value; otherwise null"),
        _bool("encrypted", "true if the payload is encrypted; otherwise null"),
        _int32("marker_type", "of a marker that a broker wrote for replication or transactions"),
        _text("replicated_from", "the cluster that it was replicated from"),
        _int64("txnid_least_bits", "of the transaction that it belongs to"),
        _int64("txnid_most_bits", "of the transaction that it belongs to"),
    ]
)
"""The column `metadata` of frames."""

_ACKED: Final = pa.list_(
    pa.struct(
        [
            *((name, pa.int64()) for name in ("ledger_id", "entry_id", "left")),
            ("ack_set", pa.list_(pa.int64())),
        ]
    )
)
_WHERE: Final = (
    "where that packet's record begins in the file (in a compressed file: after decompression); "
    "in a text the packet's number, in a log the line's; 0 for raw frames"
)
_SERIES: Final = (
    "the series of rotated files that it belongs to: its name without what differs from file to file"
)
_HOST: Final = (
    "where it was captured: as --host says, or the directory host=NAME that the file is in; otherwise null"
)


def _make_place_columns(file: str, time: str) -> list[Any]:
    """Return the columns that say where something was captured, with the meanings of `file` and `time_ns`."""
    return [
        _text("file", file),
        _text("series", _SERIES),
        _text("cluster", "the label given with --cluster; otherwise null"),
        _text("host", _HOST),
        _int64("packet_offset", _WHERE, "bytes"),
        _int64("time_ns", time, _NS),
        _time("time"),
    ]


_REPORT_COLUMNS: Final = [
    _int64(
        "reported_ns",
        "time of the packet that let it be decoded, if it or what was decoded with it had waited for other "
        "bytes: by this time events are in order; otherwise null",
        _NS,
    ),
    _int32(
        "reported_place", "its place among what was decoded together with it then, from 1; otherwise null"
    ),
]
_CONNECTION_COLUMNS: Final = [
    _int64("connection", "TCP connections of the table, counted from 0 in order of appearance"),
    _text(
        "uid",
        "the connection in any table: a hash of both addresses and the time of its first packet; "
        "null if there are no packets",
    ),
]


def _make_end_columns(offset: str) -> list[Any]:
    """Return the columns that say who sent something to whom, with the meaning of `stream_offset`."""
    return [
        _text("src_ip", "sender's address; null if there are no packets"),
        _int32("src_port", "sender's port"),
        _text("dst_ip", "receiver's address"),
        _int32("dst_port", "receiver's port"),
        *_CONNECTION_COLUMNS,
        _bool("to_broker", "true from client to broker"),
        _int64("stream_offset", offset, "bytes"),
    ]


_FRAME_OFFSET: Final = (
    "offset of the frame's first byte in its direction of the connection, "
    "from where that begins in the capture"
)
_BROKER: Final = _text(
    "broker",
    "who serves it, as HOST:PORT: the broker that CONNECT, the first frame, asks a proxy for, or the server",
)
_TOPIC: Final = [
    _text(
        "topic",
        "full name of the topic it is about, known by name or by producer, consumer or request id; "
        "null if unknown",
    ),
    _text("tenant", "of the topic"),
    _text("namespace", "of the topic: tenant/namespace, of the oldest names tenant/cluster/namespace"),
    _text("subscription", "name of the subscription it is about, known likewise"),
]

FRAMES: Final = _table(
    [
        *_make_place_columns(
            "source that holds the packet which completed the frame, by the name that was given",
            "when its last byte was captured; null if the source has no times",
        ),
        _int64("start_time_ns", "when its first byte was captured; null if that was in the same packet", _NS),
        *_REPORT_COLUMNS,
        *_make_end_columns(_FRAME_OFFSET),
        _BROKER,
        _text(
            "command",
            "SEND, LOOKUP_RESPONSE, …; UNKNOWN(99) for a type that the schema does not have; "
            "? if the command is cut",
        ),
        _int64(
            "total_size", "TOTAL_SIZE: size of the frame without its length prefix of four bytes", "bytes"
        ),
        _int64("command_size", "COMMAND_SIZE", "bytes"),
        _bool("partial", "its end was not captured"),
        _int64("request_id", "of the command"),
        _int64("producer_id", "of the command"),
        _int64("consumer_id", "of the command"),
        _int64("sequence_id", "of the command: of SEND the lowest one of its messages"),
        _int64(
            "highest_sequence_id",
            "of SEND and SEND_RECEIPT: that of the last message; null if the field is not there",
        ),
        _int32("num_messages", "of SEND from the command, of MESSAGE from its metadata", "messages"),
        _int32(
            "messages",
            "in the entry of SEND and MESSAGE, as definitions count them; "
            "of an answer to a SEND those of the SEND",
            "messages",
        ),
        _text("producer", "name of the producer, of SEND and of the answers to it"),
        _bool("resend", "of SEND: true if it was sent before and had no answer; otherwise null"),
        _text("answers", "of an answer: the command that it answers; null if that was not seen"),
        _int64(
            "request",
            "of an answer: the stream_offset of its request, in the other direction of the connection; "
            "null if that was not seen",
            "bytes",
        ),
        _int64(
            "latency_ns", "of an answer: time since its request, of a resend since it was first sent", "ns"
        ),
        _int64("sent_size", "of an answer to a SEND: that SEND, with its length prefix", "bytes"),
        _int64("ledger_id", "of MESSAGE and SEND_RECEIPT; of ACK, that of its first id"),
        _int64("entry_id", "of MESSAGE and SEND_RECEIPT; of ACK, that of its first id"),
        *_TOPIC,
        _text("error", "of ERROR, SEND_ERROR and responses that failed: a name of ServerError"),
        _int64("permits", "of FLOW the permits it grants, of MESSAGE those it costs", "messages"),
        _int64("redelivery_count", "of MESSAGE"),
        _int64("consumer_epoch", "of MESSAGE: null if the field is not there"),
        _text("ack_type", "of ACK: Individual, Cumulative"),
        _int32("ack_count", "of ACK: number of ids in it"),
        _column(_ACKED, "acked", "of ACK: its ids, if there are several"),
        _int64(
            "left",
            "of ACK: messages of the first id's entry that its ack_set leaves unacknowledged; "
            "0 if it has none",
            "messages",
        ),
        _words(
            "ack_set",
            "of MESSAGE, and of the first id of ACK: the words of its ack_set, whose set bits are "
            "unacknowledged messages; null if it has none",
        ),
        _text("validation_error", "of ACK: a name of ValidationError"),
        _text("checksum", "of SEND and MESSAGE: valid, invalid, absent; null if it is cut"),
        _bool("checksum_valid", "whether the checksum is valid; null if there is none"),
        _int64("metadata_size", "of SEND and MESSAGE: size of MessageMetadata", "bytes"),
        _int64(
            "payload_size",
            "of SEND and MESSAGE: size of what follows the metadata, as on the wire; null if it is cut",
            "bytes",
        ),
        _int64(
            "payload_crc",
            "of SEND: CRC32-C of what follows the metadata, without sign: copies have the same; "
            "null if it is cut",
        ),
        _int64(
            "unpacked_size",
            "of SEND and MESSAGE that are compressed, with a right checksum: size of the payload once "
            "decompressed if that is not uncompressed_size, -1 if its codec cannot read it; otherwise null",
            "bytes",
        ),
        _int32(
            "batch_messages",
            "of SEND and MESSAGE with a batch and a right checksum: how many messages its bytes hold if that "
            "is not num_messages_in_batch, -1 if its sizes do not fit; otherwise null",
            "messages",
        ),
        _int64(
            "head_crc",
            "of SEND and MESSAGE with a wrong checksum, with metadata that does not parse, an "
            "unpacked_size or batch_messages: CRC32-C of magic number, checksum, METADATA_SIZE and metadata, "
            "without sign; otherwise null",
        ),
        _int64(
            "metadata_sequence_id", "of SEND: its metadata's, if that is not the command's; otherwise null"
        ),
        _column(METADATA, "metadata", "of SEND and MESSAGE; null if it is cut or does not parse"),
        _long_text(
            "command_json",
            "the command's fields as JSON, secrets redacted; null for the commands of message traffic "
            "(SEND, SEND_RECEIPT, MESSAGE, ACK, FLOW), PING, PONG and ACK_RESPONSE",
        ),
        _int64(
            "token_expires_ns",
            "of CONNECT and AUTH_RESPONSE: when the JSON Web Token in it expires; null if there is none",
            _NS,
        ),
        _bytes(
            "payload",
            "the payload as on the wire, only with --payload; "
            "stars for what may be credentials, if no checksum is valid",
        ),
    ]
)
"""The frames table."""

GAPS: Final = _table(
    [
        *_make_place_columns(
            "source that holds the packet which revealed it",
            "when that packet was captured; null if the source has no times",
        ),
        *_REPORT_COLUMNS,
        *_make_end_columns("where it begins in its direction of the connection"),
        _text(
            "kind",
            "gap: bytes that were sent and never captured; malformed: captured bytes that are not a frame",
        ),
        _int64("size", "its size", "bytes"),
        _long_text("reason", "what is wrong with a malformed stretch; not Pulsar: … names another protocol"),
        _text("protocol", "of a malformed stretch in another protocol: TLS, HTTP or SSH; otherwise null"),
        _bytes(
            "head",
            "the first bytes of a malformed stretch, at most 16, with stars for what may be credentials; "
            "null for a gap",
        ),
    ]
)
"""The gaps table: bytes that were never captured (kind "gap") or are not frames ("malformed")."""

CONNECTIONS: Final = _table(
    [
        *_make_place_columns(
            "source that holds its first packet",
            "when that packet was captured; null if the source has no times",
        ),
        *_CONNECTION_COLUMNS,
        _text("client_ip", "the client's address; null if there are no packets"),
        _int32("client_port", "the client's port"),
        _text("server_ip", "the server's address: a broker or proxy"),
        _int32("server_port", "the server's port"),
        _BROKER,
        _text(
            "protocol", "Pulsar, another protocol (TLS, HTTP, SSH), unknown; null if neither side sent a byte"
        ),
        _text("client_version", "from CONNECT; null if that was not seen"),
        _text("server_version", "from CONNECTED; null if that was not seen"),
        _int32("protocol_version", "from CONNECTED; null if that was not seen"),
        _text("proxy_to_broker_url", "from CONNECT: the broker that is asked for through a proxy"),
        _int64("syns", "the client's SYNs, with those sent again; 0 if none was captured"),
        _bool("joined", "no SYN was captured: the capture began later than the connection"),
        _text("end", "how it ended: closed or reset, open, unanswered, refused, reused, dropped"),
        _bool("by_broker", "the server sent the first FIN or RST; null if nobody did"),
        _bool("both", "both sides closed it, or one reset it"),
        _int64("end_ns", "when the first FIN or RST was captured", _NS),
        _time("end_time"),
        _int64("last_ns", "when its last packet up to its end was captured", _NS),
        _time("last_time"),
        _int64("bytes_to_broker", "sent by the client, with those that were not captured", "bytes"),
        _int64("bytes_to_client", "sent by the server, with those that were not captured", "bytes"),
    ]
)
"""The connections table: one row per TCP connection, when it has ended or the capture has."""

MESSAGES: Final = _table(
    [
        *_make_place_columns(
            "source that holds the packet which completed its frame",
            "when the last byte of its frame was captured; null if the source has no times",
        ),
        *_make_end_columns(_FRAME_OFFSET),
        _text("command", "SEND or MESSAGE"),
        *_TOPIC,
        _text("producer", "name of the producer"),
        _int64("producer_id", "of SEND"),
        _int64("consumer_id", "of MESSAGE"),
        _int64("ledger_id", "of MESSAGE"),
        _int64("entry_id", "of MESSAGE"),
        _int32("batch_index", "its position in the batch, from 0; null if there is no batch"),
        _int32("num_messages_in_batch", "null if there is no batch", "messages"),
        _int32("num_chunks_from_msg", "null if there are no chunks"),
        _int64("sequence_id", "null if a message in a batch has none of its own"),
        _int64("publish_time", "when the producer published it", _MS),
        _int64("event_time", "as the application set it", _MS),
        _int64("deliver_at_time", "when it is to be delivered", _MS),
        _int64("redelivery_count", "of MESSAGE"),
        _bool("already_acked", "true if the ack_set of a MESSAGE masks it; otherwise null"),
        _long_text("key", "as it was sent: base64 of a binary key; with --hash-keys its BLAKE2b hash"),
        _int32("key_hash", "as in the metadata of frames"),
        _long_text(
            "ordering_key",
            "takes the place of the key in Key_Shared subscriptions; with --hash-keys its hash",
        ),
        _column(pa.map_(pa.string(), pa.string()), "properties", "of names that come twice, the last"),
        _text("schema_version", "base64"),
        _text("compression", "of its entry"),
        _bool("encrypted", "true if its entry is encrypted; otherwise null"),
        _int32("marker_type", "of a marker"),
        _bool("null_value", "true if it has no value; otherwise null"),
        _int64("size", "of its payload once decompressed; null if that could not be opened", "bytes"),
        _bytes("payload", "with --values raw; of an entry that is still encrypted the ciphertext"),
        _long_text(
            "value",
            "with --values json: the payload if it is JSON, or its text as a JSON string; "
            "null if it is not UTF-8",
        ),
        _long_text("note", "what is odd about its entry, in the row of its first message"),
    ]
)
"""The messages table, if asked for: one row per message of each SEND and MESSAGE, with batches opened."""

TABLES: Final = dict(zip(TABLE_NAMES, (FRAMES, GAPS, CONNECTIONS, MESSAGES), strict=True))
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
"""The columns of the report `findings` (docs/reports.md)."""


def with_detail(schema: Any, detail: str) -> Any:
    """Return the schema of a table with a note of its `detail`, if it does not hold all frames."""
    return schema if detail == ALL else schema.with_metadata({**schema.metadata, DETAIL: detail})


def sibling_path(frames: str, name: str) -> str:
    """Return the path of another table beside that of frames: frames.parquet has frames.gaps.parquet."""
    stem, dot, ending = frames.rpartition(".")
    return f"{stem}.{name}.{ending}" if dot and "/" not in ending else f"{frames}.{name}"
