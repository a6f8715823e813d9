"""Makes rows of the frames table, in Arrow batches.

This runs for every frame, so it must be fast: the fields of a command are written into a record of the
command's kind, which compiled code does without making objects. numpy reads the records of a batch as columns
and puts their values into the right rows. Rare fields are kept as plain values.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
from crc32c import crc32c
from librt.strings import write_i64_le
from mypy_extensions import i64

from pulsarctl_wire.capture.hosts import host_of
from pulsarctl_wire.capture.series import series_of
from pulsarctl_wire.table.columns import (
    Codes,
    Columns,
    Records,
    bytes_array,
    make_topic_columns,
    microseconds,
    pick_texts,
    select,
)
from pulsarctl_wire.table.metadata import Examiner, find_unusual_fields, hash_key
from pulsarctl_wire.table.rows import parse_address
from pulsarctl_wire.table.schema import FRAMES
from pulsarctl_wire.wire.commands import (
    ACK,
    ERROR_FIELDS,
    FLOW,
    MESSAGE,
    NUMBERS,
    SEND,
    SEND_RECEIPT,
    command_name,
)
from pulsarctl_wire.wire.credentials import WITH_SECRETS, WITH_TOKENS, is_doubtful, token_expiry
from pulsarctl_wire.wire.detail import ALL, EXCHANGES, is_exchange
from pulsarctl_wire.wire.fast_fields import Head, Ids
from pulsarctl_wire.wire.fields import Walker, to_signed
from pulsarctl_wire.wire.fixed import u32_at
from pulsarctl_wire.wire.frame import PACKET_OFFSET_BITS, PACKET_OFFSET_MASK, Connection, Event, Frame
from pulsarctl_wire.wire.framing.redaction import mask_event
from pulsarctl_wire.wire.hashing import uid_of
from pulsarctl_wire.wire.PulsarApi_pb2 import (
    CommandAck,
    CompressionType,
    MessageMetadata,
    ServerError,
)
from pulsarctl_wire.wire.session.counts import count_ones, latency_of, messages_in, permits_used
from pulsarctl_wire.wire.session.state import FIELDS

_NO_TIME: Final = -(2**63)
_TYPE_LIMIT: Final = 2**31  # types from here on do not fit in an int32
_MAX_SHORT: Final = 2**62 - 1  # compiled code compares numbers up to this without making objects

_CHECKSUMS: Final = {None: 0, "valid": 1, "invalid": 2, "absent": 3}
_INVALID: Final = _CHECKSUMS["invalid"]
_OVERHEADS: Final = (18, 18, 18, 12)
"""Bytes in front of the metadata, without the command: sizes, magic, checksum. By code of `_CHECKSUMS`."""
_WITHOUT_JSON: Final = {NUMBERS[name] for name in ("PING", "PONG", "ACK_RESPONSE")}
_IDS: Final = ("request_id", "producer_id", "consumer_id", "sequence_id")
_IDS_OF: Final = {number: [name for name in _IDS if name in fields] for number, fields in FIELDS.items()}
_ERRORS: Final = {value.number: value.name for value in ServerError.DESCRIPTOR.values}
_COMPRESSIONS: Final = {value.number: value.name for value in CompressionType.DESCRIPTOR.values}
_VALIDATION_ERRORS: Final = {code.number: code.name for code in CommandAck.ValidationError.DESCRIPTOR.values}
_ACK_TYPES: Final = {value.number: value.name for value in CommandAck.AckType.DESCRIPTOR.values}


class FrameRows:
    """Collects frames; `take` returns their rows and starts over. Arguments are those of `TableBuilder`."""

    def __init__(
        self,
        sources: Sequence[str] | Mapping[int, str],
        payload: bool,
        cluster: str | None,
        host: str | None,
        detail: str,
    ) -> None:
        self.row_count = 0
        """Frames collected since rows were taken."""
        self._sources = sources
        self._cluster = cluster
        self._host = host
        self._detail = detail
        self._payloads: list[bytes | None] | None = [] if payload else None
        self._walk = Walker()
        self._hide = Walker(hide_all=True)
        self._examiner = Examiner()
        self._common = Records(
            *("direction", "packet", "time", "start", "offset", "total"),
            *("size", "type", "topic", "subscription", "partial"),
        )
        self._entries = Records(
            *("owner", "sequence_or_ledger", "entry", "count", "size", "payload_at", "crc"),
            *("row", "permits", "checksum"),
        )
        self._heads = Records("row", "producer", "publish", "unpacked", "codec", "batch", "messages", "hash")
        self._answers = Records("latency", "size", "row", "type", "producer", "messages", "request")
        self._receipts = Records(
            "producer", "sequence", "highest", "ledger", "entry", "row", "identified", "has_highest"
        )
        self._acks = Records(
            "consumer", "request", "ledger", "entry", "left", "row", "type", "count", "has_request"
        )
        self._flows = Records("consumer", "permits", "row")
        self._begin()

    def _begin(self) -> None:
        self.row_count = 0
        self._bytes = 0
        self._topics, self._subscriptions = Codes(), Codes()
        self._producers, self._large_types = Codes(), Codes()
        self._connections: dict[int, Connection] = {}
        self._sparse: dict[str, list[tuple[int, Any]]] = {}
        self._sparse_metadata: dict[str, list[tuple[int, Any]]] = {}
        if self._payloads is not None:
            self._payloads = []

    # -- collecting

    @property
    def size(self) -> int:
        """Bytes of payloads, JSON, lists of ids and distinct texts collected."""
        return self._bytes + self._producers.size + self._topics.size + self._subscriptions.size

    def add(self, events: list[Event]) -> list[Event]:
        """Collect the frames of `events` that `detail` asks for; return the events that are no frames."""
        other_events: list[Event] = []
        is_all, has_exchanges = self._detail == ALL, self._detail == EXCHANGES
        common, topics, subscriptions = self._common.writer, self._topics, self._subscriptions
        connections, row, last_connection = self._connections, self.row_count, None
        for frame in events:
            if not isinstance(frame, Frame):
                other_events.append(frame)
                continue
            if not is_all and not (has_exchanges and is_exchange(frame)):
                continue
            connection = frame.connection
            if connection is not last_connection:
                last_connection = connection
                connections[connection.index] = connection
            number, raw, has_command = frame.type, frame.raw, frame.has_command
            total, size = u32_at(raw, 0), u32_at(raw, 4) if len(raw) >= 8 else 0
            time_ns, start_ns = frame.time_ns, frame.start_ns
            if time_ns is None or start_ns is None:
                time_ns = start_ns = _NO_TIME
            write_i64_le(common, connection.index << 2 | connection.flipped << 1 | frame.to_broker)
            write_i64_le(common, frame.packet)
            write_i64_le(common, time_ns)
            write_i64_le(common, start_ns)
            write_i64_le(common, frame.offset)
            write_i64_le(common, total)
            write_i64_le(common, size)
            write_i64_le(common, number if has_command and number < _TYPE_LIMIT else self._encode_type(frame))
            write_i64_le(common, topics[frame.topic])
            write_i64_le(common, subscriptions[frame.subscription])
            write_i64_le(common, frame.partial)
            if frame.reported is not None:
                self._keep(row, "reported_ns", frame.reported[0])
                self._keep(row, "reported_place", frame.reported[1])
            if not has_command or size <= 2:  # cut, or without its sub-message
                pass
            elif number in (SEND, MESSAGE):
                self._record_entry(row, frame, number, size)
            else:
                if number == SEND_RECEIPT:
                    self._record_receipt(row, frame.ids)
                elif number == ACK:
                    self._record_ack(row, frame)
                elif number == FLOW:
                    self._record_flow(row, frame)
                else:
                    self._keep_command(row, frame)
                if frame.request_type is not None:
                    self._record_answer(row, frame, frame.request_type)
            if self._payloads is not None:
                self._payloads.append(_payload(frame) if frame.payload_at else None)
                self._bytes += len(raw)
            row += 1
        self.row_count = row
        return other_events

    def _encode_type(self, frame: Frame) -> int:
        """Return a code for a type that is missing (-1), or that does not fit in an int32 (below -1)."""
        return -1 - self._large_types[frame.type] if frame.has_command else -1

    def _record_entry(self, row: int, frame: Frame, number: int, size: int) -> None:
        ids, head = frame.ids, frame.head
        payload_at, checksum = frame.payload_at, _CHECKSUMS[frame.checksum]
        is_send = number == SEND
        if is_send:
            if ids.highest is not None:
                self._keep(row, "highest_sequence_id", to_signed(ids.highest))
        elif not ids.is_plain:
            message: Any = frame.body
            if message is not None and message.HasField("consumer_epoch"):
                self._keep(row, "consumer_epoch", to_signed(message.consumer_epoch))
            if message is not None and message.ack_set:
                self._keep_set(row, message.ack_set)
        records = self._entries.writer
        write_i64_le(records, fit_i64(ids.owner))
        write_i64_le(records, fit_i64(ids.sequence if is_send else ids.ledger))
        write_i64_le(records, fit_i64(ids.entry))
        write_i64_le(records, ids.count)
        write_i64_le(records, size)
        write_i64_le(records, payload_at)
        write_i64_le(records, crc32c(frame.payload) if is_send else 0)
        write_i64_le(records, row)
        write_i64_le(records, 0 if is_send else permits_used(frame))
        write_i64_le(records, checksum)
        if head is not None:
            self._record_head(row, frame, head)
            if is_send and head.sequence != ids.sequence:
                self._keep(row, "metadata_sequence_id", to_signed(head.sequence))
        # Others are not compressed, and no batch or one of a single message, which is not examined.
        if checksum and (head is None or head.codec or head.batch != 1 or checksum == _INVALID):
            for name, value in self._examiner.examine(frame):
                self._keep(row, name, value)
        if frame.resend_of is not None:
            self._keep(row, "resend", 1)
        if frame.broker_entry or (frame.partial and payload_at):  # `_fill_entries` gets these wrong
            self._keep(row, "metadata_size", payload_at - frame.metadata_at)

    def _record_head(self, row: int, frame: Frame, head: Head) -> None:
        records = self._heads.writer
        write_i64_le(records, row)
        write_i64_le(records, self._producers[head.producer])
        write_i64_le(records, fit_i64(head.publish_time))
        write_i64_le(records, head.unpacked)
        write_i64_le(records, head.codec)
        write_i64_le(records, head.batch)
        write_i64_le(records, messages_in(frame))
        write_i64_le(records, -1 if head.key is None else hash_key(head.key))
        if not head.is_plain:
            metadata = frame.metadata
            assert metadata is not None
            self._keep_metadata(row, metadata)

    def _record_answer(self, row: int, frame: Frame, request_type: int) -> None:
        """Collect what an answer says about its request."""
        latency = latency_of(frame)
        size, messages = frame.sent or (-1, -1)
        records = self._answers.writer
        write_i64_le(records, _NO_TIME if latency is None else latency)
        write_i64_le(records, size)
        write_i64_le(records, row)
        write_i64_le(records, request_type)
        write_i64_le(records, self._producers[frame.producer])
        write_i64_le(records, messages)
        write_i64_le(records, frame.request_offset)

    def _record_receipt(self, row: int, ids: Ids) -> None:
        highest = ids.highest
        records = self._receipts.writer
        write_i64_le(records, fit_i64(ids.owner))
        write_i64_le(records, fit_i64(ids.sequence))
        write_i64_le(records, 0 if highest is None else fit_i64(highest))
        write_i64_le(records, fit_i64(ids.ledger))
        write_i64_le(records, fit_i64(ids.entry))
        write_i64_le(records, row)
        write_i64_le(records, ids.identified)
        write_i64_le(records, highest is not None)

    def _record_ack(self, row: int, frame: Frame) -> None:
        ids = frame.ids
        remaining = 0
        if ids.several is not None:  # ledger, entry and 0 of each id, as int64
            self._keep(row, "acked", (ids.several, ()))
            self._bytes += len(ids.several)
        elif not ids.is_plain:
            remaining = self._keep_ack_details(row, frame.base.ack)  # type: ignore[union-attr]
        request = ids.request
        records = self._acks.writer
        write_i64_le(records, fit_i64(ids.owner))
        write_i64_le(records, 0 if request is None else fit_i64(request))
        write_i64_le(records, fit_i64(ids.ledger))
        write_i64_le(records, fit_i64(ids.entry))
        write_i64_le(records, remaining)
        write_i64_le(records, row)
        write_i64_le(records, ids.kind)
        write_i64_le(records, ids.count)
        write_i64_le(records, request is not None)

    def _keep_ack_details(self, row: int, ack: CommandAck) -> int:
        """Collect rare fields of an ACK; return how many messages of its first entry stay unacknowledged."""
        acked = ack.message_id
        count, remaining = len(acked), 0
        if count and acked[0].ack_set:
            remaining = count_ones(acked[0].ack_set)
            self._keep_set(row, acked[0].ack_set)
        if count > 1:
            parts = [(entry.ledgerId, entry.entryId, count_ones(entry.ack_set)) for entry in acked]
            ids = array("Q", [part for entry in parts for part in entry]).tobytes()
            sets = [array("q", entry.ack_set) for entry in acked]
            self._keep(row, "acked", (ids, sets))
            self._bytes += len(ids) + 8 * sum(map(len, sets))
        if ack.HasField("validation_error"):
            error = ack.validation_error
            self._keep(row, "validation_error", _VALIDATION_ERRORS.get(error, str(error)))
        return remaining

    def _record_flow(self, row: int, frame: Frame) -> None:
        flow: Any = frame.base.flow  # type: ignore[union-attr]
        records = self._flows.writer
        write_i64_le(records, fit_i64(flow.consumer_id))
        write_i64_le(records, flow.messagePermits)
        write_i64_le(records, row)

    def _keep_command(self, row: int, frame: Frame) -> None:
        """Collect ids, error, expiry of a token and JSON of a command that has no records of its own."""
        body = frame.body
        if body is None:
            return
        number = frame.type
        for name in _IDS_OF[number]:
            if body.HasField(name):
                self._keep(row, name, to_signed(getattr(body, name)))
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
            walk.take_problems()  # begins the limits of the next frame; tables have no notes

    def _keep_set(self, row: int, ack_set: Iterable[int]) -> None:
        words = array("q", ack_set)
        self._keep(row, "ack_set", words)
        self._bytes += 8 * len(words)

    def _keep(self, row: int, name: str, value: Any) -> None:
        self._sparse.setdefault(name, []).append((row, value))

    # -- batches

    def take(self) -> Any:
        """Return the rows of the frames collected, as a `pyarrow.RecordBatch` of `FRAMES`.

        They are ordered by connection and direction, then as captured, which takes a fifth less space.
        """
        common = self._common.take()
        origins = np.argsort(common["direction"] & ~2, kind="stable")  # row of the table -> row as captured
        order = np.empty_like(origins)  # row as captured -> row of the table
        order[origins] = np.arange(len(origins))
        common = select(common, origins)
        columns = Columns(
            len(common), self._sparse, order, Columns(len(common), self._sparse_metadata, order)
        )
        self._fill_files(columns, common["packet"] >> PACKET_OFFSET_BITS)
        columns.set_numbers("packet_offset", common["packet"] & PACKET_OFFSET_MASK)
        columns.set_numbers("time_ns", common["time"], common["time"] != _NO_TIME)
        columns.set_numbers("time", microseconds(common["time"]), common["time"] != _NO_TIME)
        columns.set_numbers("start_time_ns", common["start"], common["start"] != common["time"])
        self._fill_addresses(columns, common["direction"])
        columns.set_numbers("stream_offset", common["offset"])
        types, codes = np.unique(common["type"], return_inverse=True)
        coded_names = ["?", *map(command_name, list(self._large_types)[1:])]
        names = [
            command_name(number) if number >= 0 else coded_names[-1 - number] for number in types.tolist()
        ]
        columns.set_texts("command", codes, names)
        columns.set_numbers("total_size", common["total"])
        columns.set_numbers("command_size", common["size"])
        columns.set_numbers("partial", common["partial"] != 0)
        columns.set_texts("topic", common["topic"] - 1, list(self._topics)[1:])
        columns.arrays.update(make_topic_columns(columns.arrays["topic"]))
        columns.set_texts("subscription", common["subscription"] - 1, list(self._subscriptions)[1:])
        self._fill_entries(columns, common, self._entries.take(order))
        heads, answers = self._heads.take(order), self._answers.take(order)
        self._fill_metadata(columns, common, heads)
        self._fill_answers(columns, answers)
        send_heads = select(heads, common["type"][heads["row"]] == SEND)
        named_answers = select(answers, answers["producer"] != 0)
        rows, producers = (
            np.concatenate([send_heads[field], named_answers[field]]) for field in ("row", "producer")
        )
        columns.put_texts("producer", rows, producers, self._producers.texts)
        receipts, acks, flows = (records.take(order) for records in (self._receipts, self._acks, self._flows))
        columns.put_all(receipts, producer_id="producer", sequence_id="sequence")
        columns.put_all(select(receipts, receipts["identified"] != 0), ledger_id="ledger", entry_id="entry")
        columns.put_all(select(receipts, receipts["has_highest"] != 0), highest_sequence_id="highest")
        columns.put_all(acks, consumer_id="consumer", ack_count="count")
        columns.put_all(acks[acks["count"] > 0], ledger_id="ledger", entry_id="entry", left="left")
        columns.put_all(acks[acks["has_request"] != 0], request_id="request")
        columns.put_texts("ack_type", acks["row"], acks["type"], _ACK_TYPES)
        columns.put_all(flows, consumer_id="consumer", permits="permits")
        columns.put_sparse()
        if self._payloads is not None:
            columns.arrays["payload"] = bytes_array([self._payloads[row] for row in origins], pa.binary())
        batch = columns.make_batch(FRAMES)
        self._begin()
        return batch

    def _fill_files(self, columns: Columns, numbers: Any) -> None:
        files, codes = np.unique(numbers, return_inverse=True)
        names = [self._sources[number] for number in files.tolist()]
        columns.set_texts("file", codes, names)
        columns.set_texts("series", codes, [series_of(name) for name in names])
        columns.arrays["host"] = pick_texts(codes, [host_of(name, self._host) for name in names])
        if self._cluster is not None:
            columns.set_texts("cluster", np.zeros_like(codes), [self._cluster])

    def _fill_addresses(self, columns: Columns, directions: Any) -> None:
        """Fill in addresses, connection and direction, from `connection << 2 | flipped << 1 | to_broker`."""
        kinds, codes = np.unique(directions, return_inverse=True)
        ends = [self._find_addresses(direction) for direction in kinds.tolist()]
        for name, position in (("src_ip", 0), ("dst_ip", 2), ("uid", 4), ("broker", 5)):
            columns.arrays[name] = pick_texts(codes, [end[position] for end in ends])
        for name, position in (("src_port", 1), ("dst_port", 3)):
            ports = np.array([-1 if end[position] is None else end[position] for end in ends], np.int64)
            columns.set_numbers(name, ports[codes], ports[codes] >= 0)
        columns.set_numbers("connection", directions >> 2)
        columns.set_numbers("to_broker", (directions & 1) != 0)

    def _find_addresses(self, direction: int) -> tuple[Any, ...]:
        """Return address and port of source and destination, and the connection's `uid` and broker."""
        connection = self._connections[direction >> 2]
        client, server = connection.client, connection.server
        if bool(direction & 2) is not connection.flipped:  # they were swapped after the frame
            client, server = server, client
        source, target = map(parse_address, (client, server) if direction & 1 else (server, client))
        return *source, *target, uid_of(connection), connection.broker or server or None

    def _fill_entries(self, columns: Columns, common: Any, entries: Any) -> None:
        """Fill in fields of SEND and MESSAGE: ids, checksum, sizes."""
        rows = entries["row"]
        sends = common["type"][rows] == SEND
        send_columns = {"producer_id": "owner", "sequence_id": "sequence_or_ledger", "num_messages": "count"}
        columns.put_all(select(entries, sends), **send_columns)
        message_columns = {"consumer_id": "owner", "ledger_id": "sequence_or_ledger", "entry_id": "entry"}
        columns.put_all(
            select(entries, ~sends), **message_columns, redelivery_count="count", permits="permits"
        )
        columns.put_texts("checksum", rows, entries["checksum"], {1: "valid", 2: "invalid", 3: "absent"})
        has_checksum = (entries["checksum"] == 1) | (entries["checksum"] == 2)
        columns.put("checksum_valid", rows[has_checksum], entries["checksum"][has_checksum] == 1)
        has_head = entries["payload_at"] != 0
        is_whole = has_head & (common["partial"][rows] == 0)
        sizes = entries["payload_at"] - entries["size"] - np.array(_OVERHEADS)[entries["checksum"]]
        columns.put("metadata_size", rows[has_head], sizes[has_head])
        columns.put(
            "payload_size", rows[is_whole], (common["total"][rows] + 4 - entries["payload_at"])[is_whole]
        )
        columns.put_all(select(entries, is_whole & sends), payload_crc="crc")

    def _fill_metadata(self, columns: Columns, common: Any, heads: Any) -> None:
        rows = heads["row"]
        columns.put_all(select(heads, common["type"][rows] != SEND), num_messages="batch")
        columns.put_all(heads, messages="messages")
        nested = columns.nested
        assert nested is not None
        nested.present = rows
        nested.put_texts("producer_name", rows, heads["producer"], self._producers.texts)
        nested.put_all(heads, publish_time="publish", num_messages_in_batch="batch")
        nested.put_all(select(heads, heads["unpacked"] != 0), uncompressed_size="unpacked")
        nested.put_all(select(heads, heads["hash"] >= 0), key_hash="hash")
        nested.put_texts("compression", rows, heads["codec"], _COMPRESSIONS)
        nested.put_sparse()

    def _fill_answers(self, columns: Columns, answers: Any) -> None:
        types, codes = np.unique(answers["type"], return_inverse=True)
        commands = dict(enumerate(map(command_name, types.tolist())))
        columns.put_texts("answers", answers["row"], codes, commands)
        columns.put_all(select(answers, answers["latency"] != _NO_TIME), latency_ns="latency")
        columns.put_all(select(answers, answers["size"] >= 0), sent_size="size", messages="messages")
        columns.put_all(select(answers, answers["request"] >= 0), request="request")

    def _keep_metadata(self, row: int, metadata: MessageMetadata) -> None:
        for name, value in find_unusual_fields(metadata).items():
            self._sparse_metadata.setdefault(name, []).append((row, value))
            self._bytes += len(value) if isinstance(value, str) else 0


def fit_i64(number: int) -> i64:
    """Return a uint64 as the int64 with the same bits."""
    return number if number <= _MAX_SHORT else to_signed(number)


def _payload(frame: Frame) -> bytes:
    """Return the payload of a frame as it was on the wire, except that possible credentials are masked."""
    return (frame.raw if frame.checksum == "valid" else mask_event(frame))[frame.payload_at :]
