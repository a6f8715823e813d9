"""Makes frames from the plain rows of tables, as numbers that compiled code reads without making objects.

Nearly all rows are plain SEND, SEND_RECEIPT, MESSAGE and ACK, of which the doctor needs a few numbers.
`row_events.py` makes the events of all other rows. Both give the same (`tests/checks/test_plain_rows.py`).
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from librt.strings import BytesWriter, read_i64_le, write_i32_be
from mypy_extensions import i32, i64, mypyc_attr

from pulsarctl_wire.checks.row_events import (
    ACK_TYPES,
    CODECS,
    Columns,
    RowFrame,
    RowReader,
    make_command,
    make_metadata,
)
from pulsarctl_wire.wire.commands import ACK, MESSAGE, SEND, SEND_RECEIPT
from pulsarctl_wire.wire.fast_fields import Head, Ids
from pulsarctl_wire.wire.frame import PACKET_OFFSET_MASK, Connection
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, MessageMetadata

_TYPES: Final = {"SEND": SEND, "SEND_RECEIPT": SEND_RECEIPT, "MESSAGE": MESSAGE, "ACK": ACK}
_RARE: Final = (
    *("at_end", "partial", "error", "consumer_epoch", "ack_set", "validation_error"),
    *("unpacked_size", "head_crc", "deliver_at_time", "uuid", "num_chunks_from_msg", "chunk_id", "encrypted"),
    *("marker_type", "txnid_most_bits"),
)
"""Columns that are null or false in plain rows."""
_OF_ALL: Final = ("connection", "time_ns", "stream_offset", "total_size", "command_size")
_OF_ENTRY: Final = ("has_metadata", "publish_time", "payload_size")
_ID: Final = ("ledger_id", "entry_id")
_NEEDED: Final = {
    SEND: (*_OF_ALL, *_OF_ENTRY, "producer_id", "sequence_id"),
    SEND_RECEIPT: (*_OF_ALL, "producer_id", "sequence_id", *_ID),
    MESSAGE: (*_OF_ALL, *_OF_ENTRY, "consumer_id", *_ID),
    ACK: (*_OF_ALL, "consumer_id", "ack_count", *_ID),
}
"""Type number of a command -> the columns that its plain rows have."""
_LARGEST: Final = {
    **dict.fromkeys(("connection", "time_ns", "stream_offset", "publish_time"), 2**62),
    **dict.fromkeys(("producer_id", "consumer_id", "sequence_id", *_ID), 2**62),
    **dict.fromkeys(("total_size", "command_size", "payload_size"), 2**31 - 1),
    **dict.fromkeys(("redelivery_count", "uncompressed_size"), 2**32 - 1),
}
"""The largest number of a column in plain rows; the smallest is 0."""
_ABSENT: Final = -(2**63)
"""In place of a number that is absent."""
_IF_ABSENT: Final = {"highest_sequence_id": _ABSENT, "num_messages_in_batch": 1}
"""Column of numbers -> the number in place of null; 0 for all other columns."""
_ALL_ONES: Final = 2**64 - 1

# Where the numbers of a row are, in bytes. Literals, as compiled code has only these as constants.
_CONNECTION: Final = 0
_TIME: Final = 8
_TYPE: Final = 16
_TO_BROKER: Final = 24
_OFFSET: Final = 32
_PACKET: Final = 40
_TOTAL: Final = 48
_SIZE: Final = 56
_PAYLOAD: Final = 64
_CRC: Final = 72
_LEDGER: Final = 80
_ENTRY: Final = 88
_COUNT: Final = 96
_KIND: Final = 104
_NAME: Final = 112
_OWNER: Final = 120  # from here to _FIRST: what makes a SEND differ from others, besides the producer's name
_SEQUENCE: Final = 128
_HIGHEST: Final = 136
_PUBLISHED: Final = 144
_UNPACKED: Final = 152
_CODEC: Final = 160
_BATCH: Final = 168
_FIRST: Final = 176
_LAST: Final = 184
_FILE: Final = 192
_WIDTH: Final = 200
_ID_SIZE: Final = 24  # bytes of an id in `Ids.several`

_COLUMNS: Final = {
    **{_CONNECTION: "connection", _TIME: "time_ns", _TO_BROKER: "to_broker", _OFFSET: "stream_offset"},
    **{_TOTAL: "total_size", _SIZE: "command_size", _PAYLOAD: "payload_size", _CRC: "payload_crc"},
    **{_LEDGER: "ledger_id", _ENTRY: "entry_id", _SEQUENCE: "sequence_id"},
    **{_PUBLISHED: "publish_time", _UNPACKED: "uncompressed_size"},
}
"""Offset of a number -> the column that it is copied from; 0 in place of null."""


@mypyc_attr(allow_interpreted_subclasses=True)
class PlainRowFrame(RowFrame):
    """The frame of a plain row. Its `raw` has the sizes, and of a SEND numbers in place of its head.

    Its command and its metadata are made when they are first used.
    """

    __slots__ = ("_row", "_rows")

    _rows: "TableRows"
    _row: int

    @property
    def base(self) -> BaseCommand | None:
        """The command. Overrides the parent's property."""
        if self._base is None:
            self._base = make_command(self.type, self._rows.values(self._row), 0)
        return self._base

    @base.setter
    def base(self, base: BaseCommand) -> None:
        self._base = base

    @property
    def metadata(self) -> MessageMetadata | None:
        """The metadata. Overrides the parent's property."""
        if self._metadata is None and self._head is not None:
            self._metadata = make_metadata(self._rows.values(self._row), 0)
        return self._metadata

    @metadata.setter
    def metadata(self, metadata: MessageMetadata | None) -> None:
        self._metadata = metadata


class TableRows:
    """Some rows in order: an Arrow batch with the columns that `tables.diagnose` needs.

    clusters      the cluster of each row
    is_plain      a byte for each row: 1 if it is plain
    other_rows    the rows that are not plain, as values
    """

    def __init__(self, batch: Any, reader: RowReader) -> None:
        columns = _Columns(batch)
        plain = columns.find_plain()
        self.clusters: list[str] = batch.column("cluster").to_pylist()
        self.is_plain: bytes = plain.tobytes()
        self.other_rows: Columns = batch.take(np.flatnonzero(~plain)).to_pydict()
        self._batch = batch
        self._several: bytes = columns.ids.tobytes()
        self._names = columns.encode_texts("producer_name")[1]
        self._places = [reader.locate_packet(name, 0) for name in columns.encode_texts("file")[1]]
        self._data: bytes = columns.pack_records().tobytes()
        self._raw = BytesWriter()

    def values(self, row: int) -> Columns:
        """Return a row, as the values of a row 0."""
        values: Columns = self._batch.slice(row, 1).to_pydict()
        return values

    def connection(self, row: i64) -> int:
        """Return the connection of a plain row."""
        return read_i64_le(self._data, row * _WIDTH + _CONNECTION)

    def time_ns(self, row: i64) -> int:
        """Return the time of a plain row, ns since the epoch."""
        return read_i64_le(self._data, row * _WIDTH + _TIME)

    def frame(self, row: i64, connection: Connection) -> PlainRowFrame:
        """Return the frame of a plain row."""
        data, offset, raw = self._data, row * _WIDTH, self._raw
        kind, total = read_i64_le(data, offset + _TYPE), read_i64_le(data, offset + _TOTAL)
        raw.truncate(0)
        write_i32_be(raw, i32(total))
        write_i32_be(raw, i32(read_i64_le(data, offset + _SIZE)))
        head: Head | None = None
        if kind in (SEND, MESSAGE):
            head = self._head(offset)
        if kind == SEND and head is not None:
            raw.write(data[offset + _OWNER : offset + _FIRST])
            raw.write(head.producer.encode())
        frame = PlainRowFrame(
            raw.getvalue(),
            None,
            kind,
            connection,
            read_i64_le(data, offset + _TO_BROKER) != 0,
            read_i64_le(data, offset + _OFFSET),
            read_i64_le(data, offset + _TIME),
            self._places[read_i64_le(data, offset + _FILE)] | read_i64_le(data, offset + _PACKET),
        )
        frame._rows, frame._row = self, row
        frame.ids = self._make_ids(kind, offset)
        frame.head_crc = frame.unpacked_size = frame.payload_size = frame.payload_crc = None
        if head is not None:
            frame.checksum, frame.head = "valid", head
            size = read_i64_le(data, offset + _PAYLOAD)
            frame.payload_size, frame.payload_at = size, total + 4 - size
            frame.payload_crc = read_i64_le(data, offset + _CRC)
        return frame

    def _make_ids(self, kind: i64, offset: i64) -> Ids:
        data = self._data
        ids = Ids(read_i64_le(data, offset + _OWNER))
        ids.is_plain = True
        ids.sequence, ids.count = read_i64_le(data, offset + _SEQUENCE), read_i64_le(data, offset + _COUNT)
        highest = read_i64_le(data, offset + _HIGHEST)
        if highest != _ABSENT:
            ids.highest = highest if highest >= 0 else int(highest) & _ALL_ONES
        ids.identified = kind != SEND
        ids.ledger, ids.entry = read_i64_le(data, offset + _LEDGER), read_i64_le(data, offset + _ENTRY)
        ids.kind = read_i64_le(data, offset + _KIND)
        first, last = read_i64_le(data, offset + _FIRST), read_i64_le(data, offset + _LAST)
        if first < last:
            ids.several = self._several[first * _ID_SIZE : last * _ID_SIZE]
            ids.ledger, ids.entry = read_i64_le(ids.several, 0), read_i64_le(ids.several, 8)
            ids.is_plain = False
        return ids

    def _head(self, offset: i64) -> Head:
        data = self._data
        head = Head(
            self._names[read_i64_le(data, offset + _NAME)] or "", read_i64_le(data, offset + _PUBLISHED)
        )
        head.is_plain = True
        head.unpacked, head.codec = read_i64_le(data, offset + _UNPACKED), read_i64_le(data, offset + _CODEC)
        head.batch = read_i64_le(data, offset + _BATCH)
        return head


class _Columns:
    """The columns of a batch as NumPy arrays. `ids` and the positions in them are as in `_acked`."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self._numbers: dict[str, Any] = {}
        self._types = self._code_texts("command", _TYPES, -1)
        self._first, self._last, self.ids = _read_acked(batch.column("acked"))

    def find_plain(self) -> Any:
        """Return which rows are plain."""
        types, numbers = self._types, self._read_numbers
        plain = (types >= 0) & (self._code_texts("event", {"frame": 1}) == 1)
        for name in _RARE:
            plain &= ~self._find_present(name)
        for name, largest in _LARGEST.items():
            plain &= (numbers(name) >= 0) & (numbers(name) <= largest)
        for kind, names in _NEEDED.items():
            for name in names:
                plain &= self._find_present(name) | (types != kind)
        is_absent = numbers("highest_sequence_id") == _ABSENT
        plain &= ~(is_absent & self._find_present("highest_sequence_id"))
        negative = np.concatenate([[0], np.cumsum(self.ids.min(axis=1, initial=0) < 0)])  # ids before each
        plain &= negative[self._first] == negative[self._last]
        asks, several = self._find_present("request_id"), self._last - self._first
        plain &= (several > 0) == self._find_present("acked")
        alike = (numbers("ack_count") == np.maximum(several, 1)) & ~asks
        plain &= np.where(types == ACK, alike, several == 0)
        is_valid = self._code_texts("checksum", {"valid": 1}) == 1
        plain &= ((types != SEND) & (types != MESSAGE)) | is_valid
        return plain & (numbers("command_size") > 2) & (numbers("payload_size") <= numbers("total_size"))

    def pack_records(self) -> Any:
        """Return the numbers of all rows, a record of `_WIDTH` bytes for each."""
        types, numbers = self._types, self._read_numbers
        of_producer = (types == SEND) | (types == SEND_RECEIPT)
        columns = {offset: numbers(name) for offset, name in _COLUMNS.items()} | {
            _TYPE: types,
            _FILE: self.encode_texts("file")[0],
            _PACKET: numbers("packet_offset") & PACKET_OFFSET_MASK,
            _OWNER: np.where(of_producer, numbers("producer_id"), numbers("consumer_id")),
            _COUNT: np.select(
                [types == SEND, types == MESSAGE, types == ACK],
                [1, numbers("redelivery_count"), numbers("ack_count")],
            ),
            _KIND: self._code_texts("ack_type", ACK_TYPES),
            _NAME: self.encode_texts("producer_name")[0],
            _HIGHEST: numbers("highest_sequence_id"),
            _CODEC: self._code_texts("compression", CODECS),
            _BATCH: numbers("num_messages_in_batch"),
            _FIRST: self._first,
            _LAST: self._last,
        }
        records = np.empty((len(types), _WIDTH // 8), "<i8")
        for offset, column in columns.items():
            records[:, offset // 8] = column
        return records

    def encode_texts(self, name: str) -> tuple[Any, list[str | None]]:
        """Return a code for the text of each row, and the texts by code."""
        encoded = self._batch.column(name).dictionary_encode()
        texts = [*encoded.dictionary.to_pylist(), None]
        return encoded.indices.fill_null(len(texts) - 1).to_numpy(zero_copy_only=False), texts

    def _code_texts(self, name: str, numbers: Mapping[str, int], default: int = 0) -> Any:
        """Return the numbers of a column's texts: those in `numbers`, or `default`."""
        codes, texts = self.encode_texts(name)
        return np.array([numbers.get(text or "", default) for text in texts], np.int64)[codes]

    def _read_numbers(self, name: str) -> Any:
        """Return the numbers of a column, with `_IF_ABSENT` in place of null."""
        numbers = self._numbers.get(name)
        if numbers is None:
            column = self._batch.column(name).cast("int64")
            if column.null_count:
                column = column.fill_null(_IF_ABSENT.get(name, 0))
            numbers = self._numbers[name] = column.to_numpy(zero_copy_only=False)
        return numbers

    def _find_present(self, name: str) -> Any:
        """Return in which rows a column is neither null nor false."""
        column = self._batch.column(name)
        if column.null_count == len(column):
            return np.False_
        if str(column.type) == "bool":
            return column.fill_null(False).to_numpy(zero_copy_only=False)
        return column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else np.True_


def _read_acked(lists: Any) -> tuple[Any, Any, Any]:
    """Return for each row the index of its first id and of the one after its last, and the ids of all rows.

    Only ACKs of several entries have ids here, as in `Ids.several`, but negative if they have an ack_set.
    """
    names = [field.name for field in lists.type.value_type]
    fields = dict(zip(names, lists.values.flatten(), strict=True))
    numbers = np.empty((len(lists.values), 3), "<i8")
    for index, name in enumerate(_ID):
        numbers[:, index] = fields[name].fill_null(-1).to_numpy(zero_copy_only=False)
    sizes = fields["ack_set"].value_lengths()
    numbers[:, 2] = -sizes.fill_null(0).to_numpy(zero_copy_only=False)
    positions = lists.offsets.to_numpy()
    return positions[:-1], positions[1:], numbers
