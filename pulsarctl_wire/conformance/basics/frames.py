"""The bytes that cases send, valid or not, and the values that they read from frames."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from crc32c import crc32c

from pulsarctl_wire.wire.commands import BODIES, NUMBERS, build_command
from pulsarctl_wire.wire.frame import build_frame
from pulsarctl_wire.wire.frame_layout import MAGIC_CHECKSUM
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, MessageMetadata, Schema, SingleMessageMetadata

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pulsarctl_wire.wire.frame import Frame

EARLIEST: Final = {"ledgerId": 2**64 - 1, "entryId": 2**64 - 1}
LATEST: Final = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1}

NOT_METADATA: Final = b"\xff\xff\xff\xff"
"""Bytes that do not parse as MessageMetadata."""

# -- frames without an entry


def make_frame(name: str, **fields: Any) -> bytes:
    """Return the bytes of a frame without payload."""
    return build_frame(build_command(name, **fields))


def make_raw_frame(name: str, **fields: Any) -> bytes:
    """Return the bytes of a frame whose required fields may be missing."""
    body = BODIES[NUMBERS[name]]
    command = BaseCommand(type=NUMBERS[name], **{body: fields})  # type: ignore[arg-type]
    return wrap(command.SerializePartialToString())


def wrap(command: bytes, tail: bytes = b"", *, total: int | None = None, size: int | None = None) -> bytes:
    """Return a frame around any bytes; `total` and `size` replace the true TOTAL_SIZE and COMMAND_SIZE."""
    total = 4 + len(command) + len(tail) if total is None else total
    size = len(command) if size is None else size
    return total.to_bytes(4, "big") + size.to_bytes(4, "big") + command + tail


def make_subscription(
    topic: str, kind: str = "Exclusive", consumer_id: int = 1, **fields: Any
) -> dict[str, Any]:
    """Return the fields of SUBSCRIBE without its request id; by default to "s", at Earliest."""
    number = build_command("SUBSCRIBE").subscribe.SubType.Value(kind)
    defaults = {"topic": topic, "subscription": "s", "subType": number, "consumer_id": consumer_id}
    return {**defaults, "initialPosition": 1, **fields}


def make_avro_schema(kind: str) -> dict[str, Any]:
    """Return the fields of an Avro schema: a record with one field "a" of type `kind`."""
    record = {"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]}
    return {"name": "R", "type": Schema.Avro, "schema_data": json.dumps(record).encode()}


# -- entries


def make_metadata(sequence_id: int = 0, **fields: Any) -> MessageMetadata:
    """Return metadata with the required fields."""
    return MessageMetadata(
        **{"producer_name": "p", "sequence_id": sequence_id, "publish_time": 1_700_000_000_000, **fields}
    )


def make_batch(*payloads: bytes, first: int = 0, **fields: Any) -> bytes:
    """Return the payload of a batch with sequence ids from `first`; `fields` are metadata of each message."""
    parts = []
    for number, payload in enumerate(payloads, first):
        metadata = SingleMessageMetadata(payload_size=len(payload), sequence_id=number, **fields)
        size = metadata.ByteSize().to_bytes(4, "big")
        parts.append(size + metadata.SerializeToString() + payload)
    return b"".join(parts)


def make_digit_batch(number: int) -> bytes:
    """Return the payload of a batch of `number` messages, a digit each, without sequence ids."""
    metadata = SingleMessageMetadata(payload_size=1).SerializeToString()
    head = len(metadata).to_bytes(4, "big") + metadata
    return b"".join(head + b"%d" % (index % 10) for index in range(number))


def make_entry(metadata: bytes, payload: bytes = b"hello", size: int | None = None) -> bytes:
    """Return an entry with a valid CRC around any bytes; `size` replaces the true METADATA_SIZE."""
    size = len(metadata) if size is None else size
    content = size.to_bytes(4, "big") + metadata + payload
    return MAGIC_CHECKSUM + crc32c(content).to_bytes(4, "big") + content


# -- SEND


def make_send(sequence_id: int = 0, payload: bytes = b"hello", **fields: Any) -> bytes:
    """Return the bytes of SEND, with a CRC unless `checksum` is False.

    Fields named meta_* are of the metadata, the others of the command.
    """
    meta = {key[5:]: fields.pop(key) for key in list(fields) if key.startswith("meta_")}
    checksum = fields.pop("checksum", True)
    command = build_command("SEND", **{"producer_id": 1, "sequence_id": sequence_id, **fields})
    return build_frame(command, make_metadata(sequence_id, **meta), payload, checksum=checksum)


def make_raw_send(tail: bytes, sequence_id: int = 0, **fields: Any) -> bytes:
    """Return the bytes of SEND with any bytes behind the command."""
    command = build_command("SEND", **{"producer_id": 1, "sequence_id": sequence_id, **fields})
    return wrap(command.SerializeToString(), tail)


# -- what is read


def id_of(message_id: Any) -> dict[str, int]:
    """Return the ledger and the entry of a message id."""
    return {"ledgerId": message_id.ledgerId, "entryId": message_id.entryId}


def ids_of(frames: Iterable[Frame]) -> list[dict[str, int]]:
    """Return the ledgers and entries of MESSAGEs."""
    return [id_of(frame.body.message_id) for frame in frames]


def payloads(frames: Iterable[Frame]) -> list[bytes]:
    """Return the payloads of MESSAGEs."""
    return [frame.payload for frame in frames]


def tail(frame: Frame) -> bytes:
    """Return the bytes behind the command."""
    return frame.raw[8 + frame.command_size :]
