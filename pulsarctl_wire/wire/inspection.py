"""Compares the sizes that an entry states with its bytes, without opening its messages.

`pwire doctor` does so for every entry that is compressed or has a batch.
"""

from typing import Final, NamedTuple

from google.protobuf.message import DecodeError
from mypy_extensions import i64

from pulsarctl_wire.wire.fast_fields import IS_COMPILED
from pulsarctl_wire.wire.payload import (
    MAX_MESSAGES,
    MAX_METADATA,
    MAX_PAYLOAD,
    Budget,
    PayloadError,
    PayloadTooLarge,
    decompress,
    decompressed_size,
)
from pulsarctl_wire.wire.PulsarApi_pb2 import MessageMetadata, SingleMessageMetadata
from pulsarctl_wire.wire.varint import FIXED_32, FIXED_64, SIZED, VARINT, read_signed

_PAYLOAD_SIZE_FIELD: Final = SingleMessageMetadata.DESCRIPTOR.fields_by_name["payload_size"].number
_MAX_SIZE: Final = 2**31 - 1  # of payload_size, which is an int32
_TOO_MANY: Final = -2  # more messages than are counted


class Inspection(NamedTuple):
    """What is wrong with the sizes of an entry; None for what is right, or unknown.

    size       of a compressed payload: its bytes once decompressed, if not its uncompressed_size; -1 if its
               codec cannot read it
    messages   of a batch: how many it holds, if not num_messages_in_batch; -1 if its sizes do not fit
    """

    size: int | None = None
    messages: int | None = None


def inspect_entry(metadata: MessageMetadata, payload: bytes, budget: Budget) -> Inspection:
    """Compare what metadata says of a payload, which is no chunk and not encrypted, with its bytes.

    Nothing is known of a payload that is too large, or if the budget or the memory is used up.
    """
    stated_size, codec = metadata.uncompressed_size, metadata.compression
    unpacked = payload
    if codec:
        budget.count_input(len(payload))
        if not budget.spend(stated_size):
            return Inspection()
        try:
            unpacked = decompress(codec, payload, stated_size)
        except (PayloadTooLarge, MemoryError):
            return Inspection()
        except PayloadError:
            return Inspection(size=_measure(codec, payload, stated_size, budget))
    if not metadata.HasField("num_messages_in_batch"):
        return Inspection()
    count = count_messages(unpacked)
    is_right = count in (metadata.num_messages_in_batch, _TOO_MANY)
    return Inspection(messages=None if is_right else count)


def _measure(codec: int, payload: bytes, stated_size: int, budget: Budget) -> int | None:
    """Return the bytes of a payload once decompressed, if not `stated_size`; -1 if it cannot be read."""
    if not budget.spend(MAX_PAYLOAD):
        return None
    try:
        size = decompressed_size(codec, payload)
    except MemoryError:
        return None
    budget.left += MAX_PAYLOAD - min(size or 0, MAX_PAYLOAD)
    if size is None:
        return -1
    return None if size == stated_size else size


def count_messages(batch: bytes) -> int:
    """Return how many messages a decompressed batch holds; -1 if its sizes do not fit, or cannot be read.

    A batch is, per message, [SIZE 4][SingleMessageMetadata][payload of payload_size bytes]. Messages beyond
    `MAX_MESSAGES` are not counted: then it returns -2.
    """
    pos: i64 = 0
    end: i64 = len(batch)
    count: i64 = 0
    while pos < end:
        if count == MAX_MESSAGES:
            return _TOO_MANY
        start = pos + 4
        if start > end:
            return -1
        size: i64 = int.from_bytes(batch[pos:start], "big")
        stop = start + size
        if stop > end:
            return -1
        payload_size: i64 = _read_payload_size(batch, start, stop) if IS_COMPILED else -1
        if payload_size < 0:  # unusual; the parser decides
            payload_size = _parse_payload_size(batch, start, stop)
            if payload_size < 0:
                return -1
        pos = stop + payload_size
        if pos > end:
            return -1
        count += 1
    return count


def _read_payload_size(data: bytes, pos: i64, stop: i64) -> i64:
    """Return the payload_size in the metadata at `data[pos:stop]`; -1 if that is unusual."""
    payload_size: i64 = -1
    while pos < stop:
        key, value_at = read_signed(data, pos, stop)
        if value_at == pos or key < 8:
            return -1
        wire = key & 7
        if wire == VARINT:
            value, pos = read_signed(data, value_at, stop)
            if pos == value_at:
                return -1
            if key >> 3 == _PAYLOAD_SIZE_FIELD:
                if value > _MAX_SIZE:
                    return -1
                payload_size = value
        elif wire == SIZED:
            value, pos = read_signed(data, value_at, stop)
            if pos == value_at or value < 0:
                return -1
            pos += value
        elif wire == FIXED_32:
            pos = value_at + 4
        elif wire == FIXED_64:
            pos = value_at + 8
        else:
            return -1
        if pos > stop:
            return -1
    return payload_size


def _parse_payload_size(data: bytes, start: i64, stop: i64) -> i64:
    """Return the payload_size in the metadata at `data[start:stop]`; -1 if it has none."""
    if stop - start > MAX_METADATA:
        return -1
    try:
        single = SingleMessageMetadata.FromString(data[start:stop])
    except DecodeError:
        return -1
    return single.payload_size if single.HasField("payload_size") else -1
