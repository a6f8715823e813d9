"""Makes rows of the frames table, in Arrow batches.

This runs for every frame, so it must be fast: the fields of a command are packed with one call into a binary
record of the command's kind. numpy reads the records of a batch as columns and puts their values into the
right rows. Rare fields are kept as plain values.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
from crc32c import crc32c

from pulsarctl_wire.capture.series import series
from pulsarctl_wire.table.columns import Codes, Columns, Records, bytes_array, chosen
from pulsarctl_wire.table.metadata import unusual_fields
from pulsarctl_wire.table.odd import Examiner
from pulsarctl_wire.table.rows import address
from pulsarctl_wire.table.schema import FRAMES
from pulsarctl_wire.wire.commands import ERROR_FIELDS, NUMBERS, command_name
from pulsarctl_wire.wire.counts import latency_of, messages_in, ones, permits_used
from pulsarctl_wire.wire.credentials import WITH_SECRETS, WITH_TOKENS, is_doubtful, token_expiry
from pulsarctl_wire.wire.fields import Walker, signed
from pulsarctl_wire.wire.frame import OFFSET_BITS, PLACE_BITS, Connection, Event, Frame, header_at
from pulsarctl_wire.wire.PulsarApi_pb2 import (
    BaseCommand,
    CommandAck,
    CompressionType,
    MessageMetadata,
    ServerError,
)
from pulsarctl_wire.wire.redaction import shown
from pulsarctl_wire.wire.state import FIELDS

_NO_TIME: Final = -(2**63)
_KNOWN: Final = 2**31  # types from here on do not fit in an int32


_CHECKSUMS: Final = {None: 0, "valid": 1, "invalid": 2, "absent": 3}
_INVALID: Final = _CHECKSUMS["invalid"]
_HEADS: Final = (18, 18, 18, 12)
"""Bytes in front of the metadata, without the command: sizes, magic, checksum. By code of `_CHECKSUMS`."""
_VARINT: Final = tuple(max(1, -(-bits // 7)) for bits in range(65))
"""Size of a protobuf varint in bytes, by the bits of its number."""
_SEND, _RECEIPT, _MESSAGE, _ACK, _FLOW = 6, 7, 9, 10, 11
_ENTRIES: Final = {_SEND, _MESSAGE}
_WITHOUT_JSON: Final = {NUMBERS[name] for name in ("PING", "PONG", "ACK_RESPONSE")}
_IDS: Final = ("request_id", "producer_id", "consumer_id", "sequence_id")


_IDS_OF: Final = {number: [name for name in _IDS if name in fields] for number, fields in FIELDS.items()}
_ERRORS: Final = {value.number: value.name for value in ServerError.DESCRIPTOR.values}
_COMPRESSIONS: Final = {value.number: value.name for value in CompressionType.DESCRIPTOR.values}
_VALIDATION_ERRORS: Final = {each.number: each.name for each in CommandAck.ValidationError.DESCRIPTOR.values}
_ACK_TYPES: Final = {value.number: value.name for value in CommandAck.AckType.DESCRIPTOR.values}


class FrameRows:
    """Collects frames; `take` returns their rows and starts over. Its arguments are as in `TableBuilder`."""

    def __init__(
        self, sources: Sequence[str] | Mapping[int, str], payload: bool, cluster: str | None
    ) -> None:
        self.rows = 0
        """Frames collected since rows were taken."""
        self._sources = sources
        self._cluster = cluster
        self._payloads: list[bytes | None] | None = [] if payload else None
        self._walk = Walker()
        self._hide = Walker(hide_all=True)
        self._examiner = Examiner()
        self._common = Records(
            **{"half": "i8", "place": "i8", "time": "i8", "start": "i8", "offset": "i8", "total": "i8"},
            **{"size": "i8", "type": "i4", "topic": "i4", "subscription": "i4", "partial": "i1"},
        )
        self._entries = Records(
            **{"owner": "u8", "first": "u8", "second": "u8", "count": "i8", "size": "i8"},
            **{"payload_at": "i8", "crc": "u4", "row": "i4", "permits": "i4", "checksum": "i1"},
        )
        self._opened = Records(
            **{"row": "i4", "name": "i4", "publish": "u8", "unpacked": "u4", "codec": "i4"},
            **{"batch": "i4", "messages": "i4"},
        )
        self._answers = Records(latency="i8", size="i8", row="i4", type="i4", name="i4", messages="i4")
        self._receipts = Records(
            **{"producer": "u8", "sequence": "u8", "highest": "u8", "ledger": "u8", "entry": "u8"},
            **{"row": "i4", "identified": "i1", "ranges": "i1"},
        )
        self._acks = Records(
            **{"consumer": "u8", "request": "u8", "ledger": "u8", "entry": "u8"},
            **{"left": "i8", "row": "i4", "type": "i4", "count": "i4", "asks": "i1"},
        )
        self._flows = Records(consumer="u8", permits="u4", row="i4")
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

    # -- collecting

    @property
    def size(self) -> int:
        """Bytes of payloads, JSON, lists of ids and distinct texts collected."""
        return self._bytes + self._names.size + self._topics.size + self._subscriptions.size

    def add(self, events: list[Event]) -> list[Event]:
        """Collect the frames of `events`; returns the other events."""
        others: list[Event] = []
        records = self._common
        pack_into, room = records.pack_into, records.room
        topics, subscriptions, entry = self._topics, self._subscriptions, self._entry
        connections, row, last = self._connections, self.rows, None
        for frame in events:
            if frame.__class__ is not Frame:
                others.append(frame)
                continue
            connection = frame.connection
            if connection is not last:
                last = connection
                connections[connection.index] = connection
            number, base, raw = frame.type, frame.base, frame.raw
            time_ns, start_ns = frame.time_ns, frame.start_ns
            total, size = header_at(raw) if len(raw) >= 8 else (frame.total_size, 0)
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
            if frame.reported is not None:
                self._keep(row, "reported_ns", frame.reported[0])
                self._keep(row, "reported_place", frame.reported[1])
            if base is None or size <= 2:  # cut, or without its sub-message
                pass
            elif number in _ENTRIES:
                entry(row, frame, base, number, size)
            else:
                self._other(row, frame, base, number)
                if frame.request_type is not None:
                    self._answer(row, frame, frame.request_type)
            if self._payloads is not None:
                self._payloads.append(_payload(frame) if frame.payload_at else None)
                self._bytes += len(raw)
            row += 1
        self.rows = row
        return others

    def _odd_type(self, frame: Frame) -> int:
        """A number for a type that does not fit in an int32 (below -1), or that is missing (-1)."""
        return -1 if frame.base is None else -1 - self._types[frame.type]

    def _entry(self, row: int, frame: Frame, base: BaseCommand, number: int, size: int) -> None:
        if number == _SEND:
            send = base.send
            owner, first, second, count = send.producer_id, send.sequence_id, 0, send.num_messages
            permits, crc = 0, crc32c(frame.payload)
            if send.HasField("highest_sequence_id"):
                self._keep(row, "highest_sequence_id", signed(send.highest_sequence_id))
        else:
            message = base.message
            identity = message.message_id
            owner, first, second = message.consumer_id, identity.ledgerId, identity.entryId
            count = message.redelivery_count
            permits, crc = permits_used(frame), 0
            if message.HasField("consumer_epoch"):
                self._keep(row, "consumer_epoch", signed(message.consumer_epoch))
            if message.ack_set:
                self._keep_set(row, message.ack_set)
        records, payload_at, checksum = self._entries, frame.payload_at, _CHECKSUMS[frame.checksum]
        at = records.room()  # a call with *ids would be slower
        records.pack_into(
            records.buffer, at, owner, first, second, count, size, payload_at, crc, row, permits, checksum
        )
        metadata = frame.metadata
        if metadata is not None:
            self._open(row, frame, metadata, payload_at - size - _HEADS[checksum] if checksum else -1)
        if checksum and (metadata is None or metadata.compression or checksum == _INVALID):
            for name, value in self._examiner.look(frame):
                self._keep(row, name, value)
        if frame.resend_of is not None:
            self._keep(row, "resend", 1)
        if frame.broker_entry or (frame.partial and frame.payload_at):
            start, stop = frame.parts.metadata
            self._keep(row, "metadata_size", stop - start)

    def _open(self, row: int, frame: Frame, metadata: MessageMetadata, size: int) -> None:
        """Collect metadata of `size` bytes; if its usual fields take all of them, it has no others."""
        name, codec = metadata.producer_name, metadata.compression
        sequence: int = metadata.sequence_id
        publish: int = metadata.publish_time
        unpacked: int = metadata.uncompressed_size
        messages: int = metadata.num_messages_in_batch
        records = self._opened
        at = records.room()
        counted = messages_in(frame)
        records.pack_into(
            records.buffer, at, row, self._names[name], publish, unpacked, codec, messages, counted
        )
        length = len(name)
        usual = 3 + length + _VARINT[length.bit_length()]
        usual += _VARINT[sequence.bit_length()] + _VARINT[publish.bit_length()]
        if unpacked:
            usual += 1 + _VARINT[unpacked.bit_length()]
        if codec:
            usual += 2
        if messages != 1:
            usual += 1 + _VARINT[messages.bit_length()]
            highest: int = metadata.highest_sequence_id
            if highest:
                usual += 2 + _VARINT[highest.bit_length()]
        if usual != size or not (length and sequence and publish) or not name.isascii():
            self._keep_unusual(row, metadata)

    def _answer(self, row: int, frame: Frame, asked: int) -> None:
        """Collect what an answer says about its request."""
        latency = latency_of(frame)
        size, messages = frame.sent or (-1, -1)
        records, at = self._answers, self._answers.room()
        name = self._names[frame.producer]
        taken = _NO_TIME if latency is None else latency
        records.pack_into(records.buffer, at, taken, size, row, asked, name, messages)

    def _other(self, row: int, frame: Frame, base: BaseCommand, number: int) -> None:
        if number == _RECEIPT:
            receipt = base.send_receipt
            identity = receipt.message_id
            producer, sequence = receipt.producer_id, receipt.sequence_id
            ledger, entry, identified = identity.ledgerId, identity.entryId, receipt.HasField("message_id")
            records = self._receipts
            at = records.room()
            highest, ranges = receipt.highest_sequence_id, receipt.HasField("highest_sequence_id")
            records.pack_into(
                records.buffer, at, producer, sequence, highest, ledger, entry, row, identified, ranges
            )
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
        ledger = entry = left = 0
        if count:
            first = acked[0]
            ledger, entry, words = first.ledgerId, first.entryId, first.ack_set
            if words:
                left = ones(words)
                self._keep_set(row, words)
        if count > 1:
            parts = [(each.ledgerId, each.entryId, ones(each.ack_set)) for each in acked]
            ids = array("Q", [part for each in parts for part in each])
            sets = [array("q", each.ack_set) for each in acked]
            self._keep(row, "acked", (ids, sets))
            self._bytes += 8 * (len(ids) + sum(map(len, sets)))
        asks, request = ack.HasField("request_id"), ack.request_id
        if ack.HasField("validation_error"):
            error = ack.validation_error
            self._keep(row, "validation_error", _VALIDATION_ERRORS.get(error, str(error)))
        records, at = self._acks, self._acks.room()
        records.pack_into(
            records.buffer, at, ack.consumer_id, request, ledger, entry, left, row, ack.ack_type, count, asks
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
        if number in WITH_TOKENS and (expiry := token_expiry(frame)) is not None and expiry < 2**63:
            self._keep(row, "token_expires_ns", expiry)
        if number not in _WITHOUT_JSON:
            walk = self._hide if number in WITH_SECRETS and is_doubtful(frame) else self._walk
            text = orjson.dumps(walk(body)).decode()
            self._keep(row, "command_json", text)
            self._bytes += len(text)
            walk.take_odd()

    def _keep_set(self, row: int, ack_set: Iterable[int]) -> None:
        words = array("q", ack_set)
        self._keep(row, "ack_set", words)
        self._bytes += 8 * len(words)

    def _keep(self, row: int, name: str, value: Any) -> None:
        self._sparse.setdefault(name, []).append((row, value))

    # -- batches

    def take(self) -> Any:
        """The rows of the frames collected, as a `pyarrow.RecordBatch` of `FRAMES`.

        They are ordered by connection and direction, then as captured, which takes a fifth less space.
        """
        common = self._common.take()
        captured = np.argsort(common["half"] & ~2, kind="stable")
        order = np.empty_like(captured)
        order[captured] = np.arange(len(captured))
        common = chosen(common, captured)
        columns = Columns(len(common), self._sparse, order, Columns(len(common), self._unusual, order))
        self._files(columns, common["place"] >> PLACE_BITS)
        columns.numbers("packet_offset", common["place"] & OFFSET_BITS)
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
        opened, answers = self._opened.take(order), self._answers.take(order)
        self._take_metadata(columns, common, opened)
        self._take_answers(columns, answers)
        sends = chosen(opened, common["type"][opened["row"]] == _SEND)
        named = chosen(answers, answers["name"] != 0)
        rows, names = (np.concatenate([sends[name], named[name]]) for name in ("row", "name"))
        columns.put_texts("producer", rows, names, self._names.texts)
        receipts, acks, flows = (each.take(order) for each in (self._receipts, self._acks, self._flows))
        columns.put_all(receipts, producer_id="producer", sequence_id="sequence")
        columns.put_all(chosen(receipts, receipts["identified"] != 0), ledger_id="ledger", entry_id="entry")
        columns.put_all(chosen(receipts, receipts["ranges"] != 0), highest_sequence_id="highest")
        columns.put_all(acks, consumer_id="consumer", ack_count="count")
        columns.put_all(acks[acks["count"] > 0], ledger_id="ledger", entry_id="entry", left="left")
        columns.put_all(acks[acks["asks"] != 0], request_id="request")
        columns.put_texts("ack_type", acks["row"], acks["type"], _ACK_TYPES)
        columns.put_all(flows, consumer_id="consumer", permits="permits")
        columns.sparse_rest()
        if self._payloads is not None:
            columns.arrays["payload"] = bytes_array([self._payloads[row] for row in captured], pa.binary())
        batch = columns.batch(FRAMES)
        self._begin()
        return batch

    def _files(self, columns: Columns, numbers: Any) -> None:
        files, codes = np.unique(numbers, return_inverse=True)
        names = [self._sources[number] for number in files.tolist()]
        columns.texts("file", codes, names)
        columns.texts("series", codes, [series(name) for name in names])
        if self._cluster is not None:
            columns.texts("cluster", np.zeros_like(codes), [self._cluster])

    def _ends(self, columns: Columns, halves: Any) -> None:
        """Fill in addresses, connection and direction, from `connection << 2 | flipped << 1 | to_broker`."""
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

    def _ends_of(self, half: int) -> tuple[str | None, int | None, str | None, int | None]:
        """Address and port of the source, and of the destination."""
        connection = self._connections[half >> 2]
        client, server = address(connection.client), address(connection.server)
        from_client = bool(half & 1) is (bool(half & 2) is connection.flipped)
        return (*client, *server) if from_client else (*server, *client)

    def _take_entries(self, columns: Columns, common: Any, entries: Any) -> None:
        """Fill in fields of SEND and MESSAGE: ids, checksum, sizes."""
        rows = entries["row"]
        sends = common["type"][rows] == _SEND
        columns.put_all(
            chosen(entries, sends), producer_id="owner", sequence_id="first", num_messages="count"
        )
        delivered = {"consumer_id": "owner", "ledger_id": "first", "entry_id": "second"}
        columns.put_all(chosen(entries, ~sends), **delivered, redelivery_count="count", permits="permits")
        columns.put_texts("checksum", rows, entries["checksum"], {1: "valid", 2: "invalid", 3: "absent"})
        checked = (entries["checksum"] == 1) | (entries["checksum"] == 2)
        columns.put("checksum_valid", rows[checked], entries["checksum"][checked] == 1)
        opened = entries["payload_at"] != 0
        whole = opened & (common["partial"][rows] == 0)
        sizes = entries["payload_at"] - entries["size"] - np.array(_HEADS)[entries["checksum"]]
        columns.put("metadata_size", rows[opened], sizes[opened])
        columns.put("payload_size", rows[whole], (common["total"][rows] + 4 - entries["payload_at"])[whole])
        columns.put_all(chosen(entries, whole & sends), payload_crc="crc")

    def _take_metadata(self, columns: Columns, common: Any, entries: Any) -> None:
        rows = entries["row"]
        columns.put_all(chosen(entries, common["type"][rows] != _SEND), num_messages="batch")
        columns.put_all(entries, messages="messages")
        nested = columns.nested
        assert nested is not None
        nested.present = rows
        nested.put_texts("producer_name", rows, entries["name"], self._names.texts)
        nested.put_all(entries, publish_time="publish", num_messages_in_batch="batch")
        nested.put_all(chosen(entries, entries["unpacked"] != 0), uncompressed_size="unpacked")
        nested.put_texts("compression", rows, entries["codec"], _COMPRESSIONS)
        nested.sparse_rest()

    def _take_answers(self, columns: Columns, answers: Any) -> None:
        types, codes = np.unique(answers["type"], return_inverse=True)
        commands = dict(enumerate(map(command_name, types.tolist())))
        columns.put_texts("answers", answers["row"], codes, commands)
        columns.put_all(chosen(answers, answers["latency"] != _NO_TIME), latency_ns="latency")
        columns.put_all(chosen(answers, answers["size"] >= 0), sent_size="size", messages="messages")

    def _keep_unusual(self, row: int, metadata: MessageMetadata) -> None:
        for name, value in unusual_fields(metadata).items():
            self._unusual.setdefault(name, []).append((row, value))
            self._bytes += len(value) if isinstance(value, str) else 0


def _payload(frame: Frame) -> bytes:
    """The payload of a frame as it was on the wire, except that possible credentials are masked."""
    return (frame.raw if frame.checksum == "valid" else shown(frame))[frame.payload_at :]
