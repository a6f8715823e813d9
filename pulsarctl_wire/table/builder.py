"""Events as rows of the frames table, in Arrow batches.

Every frame passes here, so what each command has is packed into a binary record of its own kind, with
one call; numpy reads the records of a batch as columns and puts them where their rows are. What is rare
is kept as plain values beside them.
"""

import struct
from array import array
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
from mmh3 import hash as murmur3

from pulsarctl_wire.capture.sources import PLACE_BITS
from pulsarctl_wire.table.columns import Codes, Columns, Records, signed
from pulsarctl_wire.table.schema import FRAMES, GAPS, ROWS
from pulsarctl_wire.wire.commands import BODIES, ERROR_FIELDS, NUMBERS, command_name
from pulsarctl_wire.wire.credentials import WITH_SECRETS, is_doubtful
from pulsarctl_wire.wire.fields import Walker, as_base64, as_text
from pulsarctl_wire.wire.frame import Connection, Event, Frame, Malformed
from pulsarctl_wire.wire.PulsarApi_pb2 import (
    BaseCommand,
    CommandAck,
    CompressionType,
    MessageMetadata,
    ServerError,
)
from pulsarctl_wire.wire.redaction import shown

_GATHERED: Final = 64  # events that become rows at a time
_MOST_DAMAGE: Final = 4_096  # stretches, which hold as many bytes each
_MOST_BYTES: Final = 64 * 1024 * 1024  # of payloads, JSON, lists of ids, and different texts
_NO_TIME: Final = -(2**63)
_MOST_CONNECTIONS: Final = 65_536  # whose addresses are remembered
_MOST_KEYS: Final = 65_536  # whose hashes are
_LONGEST_KEY: Final = 256  # characters of those
_KNOWN: Final = 2**31  # where types begin that no schema can have


_Ends = tuple[str | None, int | None, str | None, int | None]
"""Address and port of the source, and of the destination."""

_header_at: Final = struct.Struct(">II").unpack_from
_CHECKSUMS: Final = {None: 0, "valid": 1, "invalid": 2, "absent": 3}
_HEADS: Final = (18, 18, 18, 12)
"""Bytes in front of the metadata but for the command: sizes, checksum and magic; by the numbers above."""
_VARINT: Final = tuple(max(1, -(-bits // 7)) for bits in range(65))
"""Bytes that protobuf takes for a number, by its bits."""
_SEND, _RECEIPT, _MESSAGE, _ACK, _FLOW = 6, 7, 9, 10, 11
_ENTRIES: Final = {_SEND, _MESSAGE}
_WITHOUT_JSON: Final = {NUMBERS[name] for name in ("PING", "PONG", "ACK_RESPONSE")}
_IDS: Final = ("request_id", "producer_id", "consumer_id", "sequence_id")


def _present(number: int, names: Iterable[str]) -> tuple[str, ...]:
    fields = getattr(BaseCommand(), BODIES[number]).DESCRIPTOR.fields_by_name
    return tuple(name for name in names if name in fields)


_IDS_OF: Final = {number: _present(number, _IDS) for number in BODIES}
_ERRORS: Final = {value.number: value.name for value in ServerError.DESCRIPTOR.values}
_COMPRESSIONS: Final = {value.number: value.name for value in CompressionType.DESCRIPTOR.values}
_ACK_TYPES: Final = {value.number: value.name for value in CommandAck.AckType.DESCRIPTOR.values}


class TableBuilder:
    """Collects events; `frames` and `gaps` give their rows and begin anew.

    `sources` are the names of the files that the events' places number (see `Decoder`); it may grow
    while rows are collected. `payload` keeps the payload of each frame, as it was on the wire.
    """

    def __init__(self, sources: Sequence[str] | Mapping[int, str], *, payload: bool = False) -> None:
        self.rows = 0
        """Frames collected since the last batch was taken."""
        self._sources = sources
        self._payloads: list[bytes | None] | None = [] if payload else None
        self._walk = Walker()
        self._hide = Walker(hide_all=True)
        self._common = Records(
            **{"half": "i8", "place": "i8", "time": "i8", "start": "i8", "offset": "i8", "total": "i8"},
            **{"size": "i8", "type": "i4", "topic": "i4", "subscription": "i4", "partial": "i1"},
        )
        self._entries = Records(
            **{"owner": "u8", "first": "u8", "second": "u8", "count": "i8", "size": "i8"},
            **{"payload_at": "i8", "row": "i4", "checksum": "i1"},
        )
        self._opened = Records(row="i4", name="i4", publish="u8", codec="i4", messages="i4")
        self._receipts = Records(
            producer="u8", sequence="u8", ledger="u8", entry="u8", row="i4", identified="i1"
        )
        self._acks = Records(
            **{"consumer": "u8", "request": "u8", "ledger": "u8", "entry": "u8"},
            **{"row": "i4", "type": "i4", "count": "i4", "asks": "i1"},
        )
        self._flows = Records(consumer="u8", permits="u4", row="i4")
        self._keys: dict[Any, int] = {}
        self._addresses: dict[int, tuple[str, str, _Ends]] = {}
        self.damage: list[Event] = []
        """What was collected for the gaps table since its last batch was taken."""
        self._damaged: list[int] = []  # the halves of that, as they were called then
        self._begin()

    def _begin(self) -> None:
        self.rows = 0
        self._bytes = 0
        self._topics, self._subscriptions, self._names, self._types = Codes(), Codes(), Codes(), Codes()
        self._connections: dict[int, Connection] = {}
        self._unusual: dict[str, list[tuple[int, Any]]] = {}  # fields of metadata
        self._sparse: dict[str, list[tuple[int, Any]]] = {}
        if self._payloads is not None:
            self._payloads = []

    @property
    def is_full(self) -> bool:
        """Whether it is time to take what was collected."""
        kept = self._bytes + self._names.size + self._topics.size + self._subscriptions.size
        return self.rows >= ROWS or len(self.damage) >= _MOST_DAMAGE or kept >= _MOST_BYTES

    def batches(self, batches: Iterable[list[Event]]) -> Iterator[tuple[Any, Any]]:
        """Frames and gaps of all events, a batch of each at a time; there is at least one, maybe empty."""
        gathered: list[Event] = []
        for events in batches:
            gathered += events
            if len(gathered) >= _GATHERED:
                self.add(gathered)
                gathered = []
                if self.is_full:
                    yield self.frames(), self.gaps()
        self.add(gathered)
        yield self.frames(), self.gaps()

    # -- collecting

    def add(self, events: list[Event]) -> None:
        """Collect `events`."""
        records = self._common
        pack_into, room = records.pack_into, records.room
        topics, subscriptions, entry = self._topics, self._subscriptions, self._entry
        connections, row, last = self._connections, self.rows, None
        for frame in events:
            if frame.__class__ is not Frame:
                self.damage.append(frame)
                self._damaged.append(_half(frame))
                continue
            connection = frame.connection
            if connection is not last:
                last = connection
                connections[connection.index] = connection
            number, base, raw = frame.type, frame.base, frame.raw
            time_ns, start_ns = frame.time_ns, frame.start_ns
            total, size = _header_at(raw) if len(raw) >= 8 else (frame.total_size, 0)
            if time_ns is None or start_ns is None:
                time_ns = start_ns = _NO_TIME
            pack_into(
                records.buffer,
                room(),
                connection.index << 2 | connection.flipped << 1 | frame.to_broker,
                frame.packet,
                time_ns,
                start_ns,
                frame.offset,
                total,
                size,
                number if base is not None and number < _KNOWN else self._odd_type(frame),
                topics[frame.topic],
                subscriptions[frame.subscription],
                frame.partial,
            )
            if base is None or size <= 2:  # cut, or without its sub-message
                pass
            elif number in _ENTRIES:
                entry(row, frame, base, number, size)
            else:
                self._other(row, frame, base, number)
            if self._payloads is not None:
                self._payloads.append(_payload(frame) if frame.payload_at else None)
                self._bytes += len(raw)
            row += 1
        self.rows = row

    def _odd_type(self, frame: Frame) -> int:
        """A number for a type that takes more than 32 bits (below -1), or that is not there (-1)."""
        return -1 if frame.base is None else -1 - self._types[frame.type]

    def _entry(self, row: int, frame: Frame, base: BaseCommand, number: int, size: int) -> None:
        if number == _SEND:
            send = base.send
            owner, first, second, count = send.producer_id, send.sequence_id, 0, send.num_messages
        else:
            message = base.message
            identity = message.message_id
            owner, first, second = message.consumer_id, identity.ledgerId, identity.entryId
            count = message.redelivery_count
        records, payload_at, checksum = self._entries, frame.payload_at, _CHECKSUMS[frame.checksum]
        at = records.room()
        records.pack_into(records.buffer, at, owner, first, second, count, size, payload_at, row, checksum)
        if frame.metadata is not None:
            self._open(row, frame.metadata, payload_at - size - _HEADS[checksum] if checksum else -1)
        if frame.broker_entry or (frame.partial and frame.payload_at):
            start, stop = frame.parts.metadata
            self._keep(row, "metadata_size", stop - start)

    def _open(self, row: int, metadata: MessageMetadata, size: int) -> None:
        """Collect metadata of `size` bytes; if its usual fields explain those, it has no others."""
        name, sequence, publish = metadata.producer_name, metadata.sequence_id, metadata.publish_time
        unpacked, codec = metadata.uncompressed_size, metadata.compression
        messages = metadata.num_messages_in_batch
        records = self._opened
        at = records.room()
        records.pack_into(records.buffer, at, row, self._names[name], publish, codec, messages)
        length = len(name)
        usual = 3 + length + _VARINT[length.bit_length()]
        usual += _VARINT[sequence.bit_length()] + _VARINT[publish.bit_length()]
        if unpacked:
            usual += 1 + _VARINT[unpacked.bit_length()]
        if codec:
            usual += 2
        if messages != 1:
            usual += 1 + _VARINT[messages.bit_length()]
        if usual != size or not (length and sequence and publish) or not name.isascii():
            self._keep_unusual(row, metadata)

    def _other(self, row: int, frame: Frame, base: BaseCommand, number: int) -> None:
        if number == _RECEIPT:
            receipt = base.send_receipt
            identity = receipt.message_id
            ids = receipt.producer_id, receipt.sequence_id, identity.ledgerId, identity.entryId
            records = self._receipts
            records.pack_into(records.buffer, records.room(), *ids, row, receipt.HasField("message_id"))
        elif number == _ACK:
            self._ack(row, base.ack)
        elif number == _FLOW:
            records, flow = self._flows, base.flow
            records.pack_into(records.buffer, records.room(), flow.consumer_id, flow.messagePermits, row)
        else:
            self._rare(row, frame)

    def _ack(self, row: int, ack: CommandAck) -> None:
        acked = ack.message_id
        count = len(acked)
        ledger, entry = (acked[0].ledgerId, acked[0].entryId) if count else (0, 0)
        if count > 1:
            ids = array("Q", [part for each in acked for part in (each.ledgerId, each.entryId)])
            self._keep(row, "acked", ids)
            self._bytes += 8 * len(ids)
        asks, request = ack.HasField("request_id"), ack.request_id
        records, at = self._acks, self._acks.room()
        records.pack_into(
            records.buffer, at, ack.consumer_id, request, ledger, entry, row, ack.ack_type, count, asks
        )

    def _rare(self, row: int, frame: Frame) -> None:
        body = frame.body
        if body is None:
            return
        number = frame.type
        for name in _IDS_OF[number]:
            if body.HasField(name):
                self._keep(row, name, signed(getattr(body, name)))
        field = ERROR_FIELDS.get(number)
        if field is not None and body.HasField(field):
            code = getattr(body, field)
            self._keep(row, "error", _ERRORS.get(code, str(code)))
        if number not in _WITHOUT_JSON:
            walk = self._hide if number in WITH_SECRETS and is_doubtful(frame) else self._walk
            text = orjson.dumps(walk(body)).decode()
            self._keep(row, "command_json", text)
            self._bytes += len(text)
            walk.take_odd()

    def _keep(self, row: int, name: str, value: Any) -> None:
        self._sparse.setdefault(name, []).append((row, value))

    # -- batches

    def frames(self) -> Any:
        """The rows of the frames collected, as a `pyarrow.RecordBatch` of `FRAMES`.

        They are ordered by connection and direction, then as captured: that takes a fifth less space.
        """
        common = self._common.take()
        captured = np.argsort(common["half"] & ~2, kind="stable")
        order = np.empty_like(captured)
        order[captured] = np.arange(len(captured))
        common = common[captured]
        columns = Columns(len(common), self._sparse, order, Columns(len(common), self._unusual, order))
        self._files(columns, common["place"] >> PLACE_BITS)
        columns.numbers("packet_offset", common["place"] & (1 << PLACE_BITS) - 1)
        columns.numbers("time_ns", common["time"], common["time"] != _NO_TIME)
        columns.numbers("start_time_ns", common["start"], common["start"] != common["time"])
        self._ends(columns, common["half"])
        columns.numbers("stream_offset", common["offset"])
        types, codes = np.unique(common["type"], return_inverse=True)
        odd = ["?", *map(command_name, list(self._types)[1:])]
        columns.texts("command", codes, [command_name(n) if n >= 0 else odd[-1 - n] for n in types.tolist()])
        columns.numbers("total_size", common["total"])
        columns.numbers("command_size", common["size"])
        columns.numbers("partial", common["partial"] != 0)
        columns.texts("topic", common["topic"] - 1, list(self._topics)[1:])
        columns.texts("subscription", common["subscription"] - 1, list(self._subscriptions)[1:])
        self._take_entries(columns, common, self._entries.take(order))
        self._take_metadata(columns, common, self._opened.take(order))
        receipts, acks, flows = (each.take(order) for each in (self._receipts, self._acks, self._flows))
        columns.put("producer_id", receipts["row"], receipts["producer"])
        columns.put("sequence_id", receipts["row"], receipts["sequence"])
        identified = receipts[receipts["identified"] != 0]
        some = acks[acks["count"] > 0]
        for name, field in (("ledger_id", "ledger"), ("entry_id", "entry")):
            columns.put(name, identified["row"], identified[field])
            columns.put(name, some["row"], some[field])
        columns.put("consumer_id", acks["row"], acks["consumer"])
        asking = acks[acks["asks"] != 0]
        columns.put("request_id", asking["row"], asking["request"])
        columns.put("ack_count", acks["row"], acks["count"])
        columns.put_texts("ack_type", acks["row"], acks["type"], _ACK_TYPES)
        columns.put("consumer_id", flows["row"], flows["consumer"])
        columns.put("permits", flows["row"], flows["permits"])
        columns.sparse_rest()
        if self._payloads is not None:
            columns.arrays["payload"] = pa.array([self._payloads[row] for row in captured], pa.binary())
        batch = columns.batch(FRAMES)
        self._begin()
        return batch

    def gaps(self) -> Any:
        """The gaps and malformed stretches collected, as a `pyarrow.RecordBatch` of `GAPS`."""
        damage, self.damage = self.damage, []
        reasons = [(row, event.reason) for row, event in enumerate(damage) if isinstance(event, Malformed)]
        columns = Columns(len(damage), {"reason": reasons} if reasons else {})
        places = np.array([event.packet for event in damage], np.int64)
        self._files(columns, places >> PLACE_BITS)
        columns.numbers("packet_offset", places & (1 << PLACE_BITS) - 1)
        halves, self._damaged = self._damaged, []
        self._connections |= {event.connection.index: event.connection for event in damage}
        self._ends(columns, np.array(halves, np.int64))
        columns.texts("kind", np.array([isinstance(event, Malformed) for event in damage], np.int64), _KINDS)
        times = [_NO_TIME if event.time_ns is None else event.time_ns for event in damage]
        columns.numbers("time_ns", np.array(times, np.int64), np.array(times, np.int64) != _NO_TIME)
        columns.numbers("stream_offset", np.array([event.offset for event in damage], np.int64))
        columns.numbers("size", np.array([event.size for event in damage], np.int64))
        columns.sparse_rest()
        return columns.batch(GAPS)

    def _files(self, columns: Columns, numbers: Any) -> None:
        files, codes = np.unique(numbers, return_inverse=True)
        columns.texts("file", codes, [self._sources[number] for number in files.tolist()])

    def _ends(self, columns: Columns, halves: Any) -> None:
        """Addresses, connection and direction, from `connection << 2 | flipped << 1 | to_broker`."""
        kinds, codes = np.unique(halves, return_inverse=True)
        ends = [self._ends_of(half) for half in kinds.tolist()]
        for name, position in (("src_ip", 0), ("dst_ip", 2)):
            texts = Codes()
            numbers = np.array([texts[end[position]] for end in ends], np.int64)
            columns.texts(name, numbers[codes] - 1, list(texts)[1:])
        for name, position in (("src_port", 1), ("dst_port", 3)):
            ports = np.array([-1 if end[position] is None else end[position] for end in ends], np.int64)
            columns.numbers(name, ports[codes], ports[codes] >= 0)
        columns.numbers("connection", halves >> 2)
        columns.numbers("to_broker", (halves & 1) != 0)

    def _ends_of(self, half: int) -> _Ends:
        index = half >> 2
        connection = self._connections[index]
        known = self._addresses.get(index)
        if known is None or known[:2] != (connection.client, connection.server):
            if len(self._addresses) >= _MOST_CONNECTIONS:
                self._addresses.clear()
            client, server = connection.client, connection.server
            known = self._addresses[index] = client, server, (*_address(client), *_address(server))
        ends = known[2]
        from_client = bool(half & 1) is (bool(half & 2) is connection.flipped)
        return ends if from_client else (*ends[2:], *ends[:2])

    def _take_entries(self, columns: Columns, common: Any, entries: Any) -> None:
        """What SEND and MESSAGE have: ids, checksum, sizes, metadata."""
        rows = entries["row"]
        sends = common["type"][rows] == _SEND
        sent, delivered = entries[sends], entries[~sends]
        columns.put("producer_id", sent["row"], sent["owner"])
        columns.put("sequence_id", sent["row"], sent["first"])
        columns.put("num_messages", sent["row"], sent["count"])
        columns.put("consumer_id", delivered["row"], delivered["owner"])
        columns.put("ledger_id", delivered["row"], delivered["first"])
        columns.put("entry_id", delivered["row"], delivered["second"])
        columns.put("redelivery_count", delivered["row"], delivered["count"])
        columns.put_texts("checksum", rows, entries["checksum"], {1: "valid", 2: "invalid", 3: "absent"})
        checked = entries[(entries["checksum"] == 1) | (entries["checksum"] == 2)]
        columns.put("checksum_valid", checked["row"], checked["checksum"] == 1)
        opened = entries["payload_at"] != 0
        whole = opened & (common["partial"][rows] == 0)
        sizes = _metadata_size(entries)
        columns.put("metadata_size", rows[opened], sizes[opened])
        columns.put("payload_size", rows[whole], (common["total"][rows] + 4 - entries["payload_at"])[whole])

    def _take_metadata(self, columns: Columns, common: Any, entries: Any) -> None:
        rows = entries["row"]
        delivered = common["type"][rows] != _SEND
        columns.put("num_messages", rows[delivered], entries["messages"][delivered])
        nested = columns.nested
        assert nested is not None
        nested.present = rows
        nested.put_texts("producer_name", rows, entries["name"], self._names.texts)
        nested.put("publish_time", rows, entries["publish"])
        nested.put("num_messages_in_batch", rows, entries["messages"])
        nested.put_texts("compression", rows, entries["codec"], _COMPRESSIONS)
        nested.sparse_rest()

    def _keep_unusual(self, row: int, metadata: MessageMetadata) -> None:
        has = metadata.HasField
        for name in _NUMBERS_OF_METADATA:
            if has(name):
                self._keep_of(row, name, signed(getattr(metadata, name)))
        if has("schema_version"):
            self._keep_of(row, "schema_version", as_base64(metadata.schema_version))
        if has("uuid"):
            self._keep_of(row, "uuid", as_text(metadata.uuid))
        if has("partition_key") or has("ordering_key"):
            self._keep_of(row, "key_hash", self._key_hash(metadata))

    def _keep_of(self, row: int, name: str, value: Any) -> None:
        self._unusual.setdefault(name, []).append((row, value))
        if isinstance(value, str):
            self._bytes += len(value)

    def _key_hash(self, metadata: MessageMetadata) -> int:
        """What Key_Shared subscriptions and key hashing ranges go by: Murmur3 of the (ordering) key."""
        key = metadata.ordering_key or metadata.partition_key, metadata.partition_key_b64_encoded
        known = self._keys.get(key)
        if known is None:
            data = key[0] if isinstance(key[0], bytes) else key[0].encode()
            if key[1] and not metadata.ordering_key:
                with suppress(ValueError):
                    data = b64decode(data, validate=True)
            known = murmur3(data, signed=False) & 0x7FFFFFFF
            if len(self._keys) >= _MOST_KEYS:
                self._keys.clear()
            if len(key[0]) <= _LONGEST_KEY:
                self._keys[key] = known
        return known


_KINDS: Final = ["gap", "malformed"]
_NUMBERS_OF_METADATA: Final = (
    *("event_time", "deliver_at_time", "num_chunks_from_msg", "chunk_id", "total_chunk_msg_size"),
    *("txnid_least_bits", "txnid_most_bits"),
)


def _half(event: Event) -> int:
    """The direction of a connection as a number."""
    connection = event.connection
    return connection.index << 2 | connection.flipped << 1 | event.to_broker


def _payload(frame: Frame) -> bytes:
    """The payload of a frame as it was on the wire, but for what may be credentials."""
    return (frame.raw if frame.checksum == "valid" else shown(frame))[frame.payload_at :]


def _metadata_size(entries: Any) -> Any:
    """Bytes of the metadata, of entries without broker entry metadata in front."""
    return entries["payload_at"] - entries["size"] - np.array(_HEADS)[entries["checksum"]]


def _address(text: str) -> tuple[str | None, int | None]:
    """IP address and port of "address:port"; None, None of an empty text."""
    address, _, port = text.rpartition(":")
    return (address.strip("[]"), int(port)) if address else (None, None)
