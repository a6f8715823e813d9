"""The numbers in the commands and metadata of message traffic, read straight from their bytes.

Nearly all frames are SEND, SEND_RECEIPT, MESSAGE and ACK. States, counts and tables need a few numbers of
them, and reading these takes a tenth of the time that parsing does, if this module is compiled (otherwise it
is not used). Anything unusual is left to the parser; then the same numbers are taken from the parsed message.
Both give the same, except for `is_plain`, `several` and `key` (`tests/wire/test_fast_fields.py`).
"""

from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from librt.strings import BytesWriter, read_i64_le, write_i64_le
from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from pulsarctl_wire.wire.commands import ACK, BODIES, MESSAGE, SEND, SEND_RECEIPT
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.PulsarApi_pb2 import (
    BaseCommand,
    CommandAck,
    CommandMessage,
    CommandSend,
    CommandSendReceipt,
    KeyValue,
    MessageIdData,
    MessageMetadata,
)
from pulsarctl_wire.wire.varint import SIZED, read_signed, wire_type

IS_COMPILED: Final = not __file__.endswith(".py")
"""Whether this module is compiled, and so faster than the parser."""

MAX_FAST: Final = 65_535
"""Maximum bytes of a command or metadata that is read here; the parser reads larger ones."""

_ALL_ONES: Final = 2**64 - 1
_MAX_NUMBER: Final = 2**62 - 1
"""The largest number that is read here; the parser reads larger ones."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Ids:
    """The numbers of a SEND, SEND_RECEIPT, MESSAGE or ACK, as in the parsed command; 0 where it has none.

    owner          id of the producer or consumer
    sequence       sequence id
    highest        highest sequence id, or None
    count          messages in a SEND, earlier deliveries of a MESSAGE, ids in an ACK
    ledger, entry  of the (first) message id
    identified     whether there is one
    kind           ack_type of an ACK
    request        request id of an ACK, or None
    several        if an ACK has several ids, of which none has an ack_set: three int64 for each, its ledger,
                   entry and 0 (the bits in its ack_set); or None, also if the command was parsed
    is_plain       whether the command certainly has nothing else that counts: no ack_set, no error, no second
                   id; False if it was parsed
    """

    __slots__ = (
        *("count", "entry", "highest", "identified", "is_plain", "kind", "ledger"),
        *("owner", "request", "sequence", "several"),
    )

    def __init__(self, owner: int) -> None:
        self.owner = owner
        self.sequence = self.count = self.ledger = self.entry = self.kind = 0
        self.highest: int | None = None
        self.request: int | None = None
        self.several: bytes | None = None
        self.identified = self.is_plain = False


@mypyc_attr(allow_interpreted_subclasses=True)
class Head:
    """The usual fields in the metadata of an entry, as in the parsed `MessageMetadata`.

    producer       name of the producer, as text
    publish_time   ms since the epoch
    sequence       sequence id
    unpacked       uncompressed_size, bytes
    codec          compression
    batch          num_messages_in_batch
    chunks, chunk  num_chunks_from_msg, chunk_id
    marker         marker_type
    key            partition_key, if `is_plain`; or None
    is_plain       whether the metadata certainly has no other fields that tables show; False if it was parsed
    """

    __slots__ = (
        *("batch", "chunk", "chunks", "codec", "is_plain", "key", "marker"),
        *("producer", "publish_time", "sequence", "unpacked"),
    )

    def __init__(self, producer: str, publish_time: int, sequence: int) -> None:
        self.producer = producer
        self.publish_time = publish_time
        self.sequence = sequence
        self.unpacked = self.codec = self.chunks = self.chunk = self.marker = 0
        self.batch = 1
        self.key: bytes | None = None
        self.is_plain = False


# -- from parsed messages


def ids_of(number: int, base: BaseCommand) -> Ids:
    """Return the numbers of a parsed SEND, SEND_RECEIPT, MESSAGE or ACK; `number` is its type."""
    body: Any = getattr(base, BODIES[number])
    if number in (SEND, SEND_RECEIPT):
        ids = Ids(body.producer_id)
        ids.sequence = body.sequence_id
        if body.HasField("highest_sequence_id"):
            ids.highest = body.highest_sequence_id
        if number == SEND:
            ids.count = body.num_messages
            return ids
        ids.identified = body.HasField("message_id")
        first: Any = body.message_id
    else:
        ids = Ids(body.consumer_id)
        first = body.message_id
        if number == ACK:
            ids.kind, ids.count = body.ack_type, len(first)
            ids.identified = ids.count > 0
            first = first[0] if ids.identified else MessageIdData()
            if body.HasField("request_id"):
                ids.request = body.request_id
        else:
            ids.count = body.redelivery_count
            ids.identified = body.HasField("message_id")
    ids.ledger, ids.entry = first.ledgerId, first.entryId
    return ids


def head_of(metadata: MessageMetadata) -> Head:
    """Return the usual part of parsed metadata."""
    head = Head(as_text(metadata.producer_name), metadata.publish_time, metadata.sequence_id)
    head.unpacked, head.codec = metadata.uncompressed_size, metadata.compression
    head.batch = metadata.num_messages_in_batch
    head.chunks, head.chunk = metadata.num_chunks_from_msg, metadata.chunk_id
    head.marker = metadata.marker_type
    return head


# -- from bytes

# Slots of values. Literals, as compiled code has only these as constants.
_OTHER: Final = 1  # the slot of values that are only checked
_OWNER: Final = 2
_SEQUENCE: Final = 3
_HIGHEST: Final = 4
_COUNT: Final = 5
_LEDGER: Final = 6
_ENTRY: Final = 7
_KIND: Final = 8
_REQUEST: Final = 9
_ID: Final = 10
_NAME: Final = 11
_NAME_END: Final = 12
_KEY: Final = 13
_KEY_END: Final = 14
_PUBLISHED: Final = 15
_UNPACKED: Final = 16
_CODEC: Final = 17
_BATCH: Final = 18
_EXTRA: Final = 19  # the slot of fields with which metadata is not plain
_SLOTS: Final = 20
_TAGS: Final = 512  # tags below it are looked up in tables: those of field numbers below 64

_values: Final = vec[i64]([0] * _SLOTS)
"""The values that `_read` found last, by slot."""
_ids: Final = BytesWriter()
"""The message ids that `_read` found, as in `Ids.several`."""
_ID_SIZE: Final = 24


class _Shape:
    """The usual fields of a message, and the slot of each.

    By tag: `slots` has the slot (0: the field is unusual), `smallest` and `largest` the usual values of a
    varint, `nested` the shape of a field that is a message. Only `repeated` fields come more than once.
    """

    def __init__(self, message: Any, slots: dict[str, int], **nested: "_Shape") -> None:
        table, repeated = bytearray(_TAGS), bytearray(_TAGS)
        self.smallest = vec[i64]([0] * _TAGS)
        self.largest = vec[i64]([_MAX_NUMBER] * _TAGS)
        self.nested: list[_Shape | None] = [None] * _TAGS
        for name, slot in slots.items():
            field = message.DESCRIPTOR.fields_by_name[name]
            tag = field.number << 3 | wire_type(field)
            table[tag] = slot
            repeated[tag] = field.is_repeated
            if field.enum_type is not None:
                self.largest[tag] = max(field.enum_type.values_by_number)
            elif field.type in _MAX_VALUES:
                self.largest[tag] = _MAX_VALUES[field.type]
            self.smallest[tag] = -(name in _OFTEN_MINUS_ONE)
            self.nested[tag] = nested.get(name)
        self.slots, self.repeated = bytes(table), bytes(repeated)


_MAX_VALUES: Final = {
    FieldDescriptor.TYPE_BOOL: 1,
    FieldDescriptor.TYPE_INT32: 2**31 - 1,
    FieldDescriptor.TYPE_UINT32: 2**32 - 1,
}
_OFTEN_MINUS_ONE: Final = {"partition", "batch_index", "highest_sequence_id"}

_MESSAGE_ID: Final = _Shape(
    MessageIdData, {"ledgerId": _LEDGER, "entryId": _ENTRY, "partition": _OTHER, "batch_index": _OTHER}
)
_COMMANDS: Final = {
    SEND: _Shape(
        CommandSend,
        {
            **{"producer_id": _OWNER, "sequence_id": _SEQUENCE, "num_messages": _COUNT},
            **{"txnid_least_bits": _OTHER, "txnid_most_bits": _OTHER, "highest_sequence_id": _HIGHEST},
        },
    ),
    SEND_RECEIPT: _Shape(
        CommandSendReceipt,
        {"producer_id": _OWNER, "sequence_id": _SEQUENCE, "message_id": _ID, "highest_sequence_id": _HIGHEST},
        message_id=_MESSAGE_ID,
    ),
    MESSAGE: _Shape(
        CommandMessage,
        {"consumer_id": _OWNER, "message_id": _ID, "redelivery_count": _COUNT},
        message_id=_MESSAGE_ID,
    ),
    ACK: _Shape(
        CommandAck,
        {"consumer_id": _OWNER, "ack_type": _KIND, "message_id": _ID, "request_id": _REQUEST},
        message_id=_MESSAGE_ID,
    ),
}
_BY_TYPE: Final = [_COMMANDS.get(number) for number in range(max(_COMMANDS) + 1)]
_PROPERTY: Final = _Shape(KeyValue, {"key": _OTHER, "value": _OTHER})
_METADATA: Final = _Shape(
    MessageMetadata,
    {
        **{"producer_name": _NAME, "sequence_id": _SEQUENCE, "publish_time": _PUBLISHED},
        **{"uncompressed_size": _UNPACKED, "compression": _CODEC, "num_messages_in_batch": _BATCH},
        **dict.fromkeys(("properties", "highest_sequence_id", "replicate_to"), _OTHER),
        "partition_key": _KEY,
        **dict.fromkeys(("partition_key_b64_encoded", "ordering_key"), _EXTRA),
        **dict.fromkeys(("event_time", "schema_version", "null_value"), _EXTRA),
    },
    properties=_PROPERTY,
)


def _read(data: bytes, pos: i64, end: i64, shape: _Shape) -> i64:
    """Put the values of the message at `data[pos:end]` into `_values`; of a SIZED field, where it begins.

    Returns a bit for each slot that has a value; -1 if anything is unusual.
    """
    values, slots = _values, shape.slots
    slot_bits: i64 = 0
    number_bits: i64 = 0  # a bit for each field number
    while pos < end:
        tag, value_at = read_signed(data, pos, end)
        if value_at == pos or tag < 0 or tag >= _TAGS:
            return -1
        slot: i64 = slots[tag]
        if slot == 0 or (number_bits >> (tag >> 3) & 1 and not shape.repeated[tag]):
            return -1
        number_bits |= 1 << (tag >> 3)
        value, pos = read_signed(data, value_at, end)
        if pos == value_at:
            return -1
        if tag & 7 == SIZED:
            stop = pos + value
            if value < 0 or stop > end:
                return -1
            nested_shape = shape.nested[tag]
            if nested_shape is not None:
                nested_bits = _read(data, pos, stop, nested_shape)
                if nested_bits < 0:
                    return -1
                slot_bits |= nested_bits
                if slot == _ID:
                    if nested_bits & _WHOLE_ID != _WHOLE_ID:
                        return -1
                    write_i64_le(_ids, values[_LEDGER])
                    write_i64_le(_ids, values[_ENTRY])
                    write_i64_le(_ids, 0)
            values[slot] = pos
            if slot in (_NAME, _KEY):
                values[slot + 1] = stop
            pos = stop
        elif value < shape.smallest[tag] or value > shape.largest[tag]:
            return -1
        else:
            values[slot] = value
        slot_bits |= 1 << slot
    return slot_bits


def read_ids(raw: bytes, size: i64) -> Ids | None:
    """Read the numbers of a frame's command of `size` bytes; None if it has none, or is unusual."""
    if size < 5 or size > MAX_FAST or raw[8] != 8:
        return None
    number: i64 = raw[9]
    shape = _BY_TYPE[number] if number < len(_BY_TYPE) else None
    if shape is None or raw[10] != number << 3 | SIZED:
        return None
    end = 8 + size
    length, begin = read_signed(raw, 11, end)
    if begin == 11 or begin + length != end:
        return None
    _ids.truncate(0)
    slot_bits = _read(raw, begin, end, shape)
    if slot_bits < 0 or not slot_bits >> _OWNER & 1:
        return None
    values = _values
    ids = Ids(values[_OWNER])
    ids.is_plain = True
    if slot_bits >> _SEQUENCE & 1:
        ids.sequence = values[_SEQUENCE]
    if slot_bits >> _HIGHEST & 1:
        ids.highest = values[_HIGHEST] if values[_HIGHEST] >= 0 else _ALL_ONES
    if slot_bits >> _ID & 1:
        ids.identified = True
        ids.ledger, ids.entry = values[_LEDGER], values[_ENTRY]
    if slot_bits >> _COUNT & 1:
        ids.count = values[_COUNT]
    elif number == SEND:
        ids.count = 1
    elif number == ACK:
        ids.count = len(_ids) // _ID_SIZE
        if ids.count > 1:
            ids.is_plain = False
            ids.several = _ids.getvalue()
            ids.ledger, ids.entry = read_i64_le(ids.several, 0), read_i64_le(ids.several, 8)
        ids.kind = values[_KIND] if slot_bits >> _KIND & 1 else 0
        if slot_bits >> _REQUEST & 1:
            ids.request = values[_REQUEST]
    return ids


def read_head(raw: bytes, pos: i64, end: i64) -> Head | None:
    """Read the usual part of the metadata at `raw[pos:end]`; None if anything in it is unusual."""
    if end - pos > MAX_FAST:
        return None
    slot_bits = _read(raw, pos, end, _METADATA)
    if slot_bits < 0 or slot_bits & _REQUIRED != _REQUIRED:
        return None
    values = _values
    try:
        name = raw[values[_NAME] : values[_NAME_END]].decode()
    except UnicodeDecodeError:
        return None
    head = Head(name, values[_PUBLISHED], values[_SEQUENCE])
    head.is_plain = not slot_bits >> _EXTRA & 1
    if slot_bits >> _UNPACKED & 1:
        head.unpacked = values[_UNPACKED]
        head.is_plain = head.is_plain and head.unpacked > 0
    if slot_bits >> _CODEC & 1:
        head.codec = values[_CODEC]
    if slot_bits >> _BATCH & 1:
        head.batch = values[_BATCH]
    if head.is_plain and slot_bits >> _KEY & 1:
        head.key = raw[values[_KEY] : values[_KEY_END]]
    return head


_WHOLE_ID: Final = 1 << _LEDGER | 1 << _ENTRY
_REQUIRED: Final = 1 << _NAME | 1 << _SEQUENCE | 1 << _PUBLISHED
