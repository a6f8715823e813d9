"""What cases put behind a SEND and find behind a MESSAGE: batches, and any bytes with a valid CRC."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crc32c import crc32c

from pulsarctl_wire.wire.frame_layout import MAGIC_CHECKSUM
from pulsarctl_wire.wire.PulsarApi_pb2 import SingleMessageMetadata

if TYPE_CHECKING:
    from broker.probe import Probe

    from pulsarctl_wire.wire.frame import Frame

NOT_METADATA = b"\xff\xff\xff\xff"
"""Bytes that do not parse as MessageMetadata."""


def batch(number: int) -> bytes:
    """The payload of a batch of so many messages."""
    single = SingleMessageMetadata(payload_size=1).SerializeToString()
    return b"".join(len(single).to_bytes(4, "big") + single + b"%d" % (each % 10) for each in range(number))


def publish_batch(probe: Probe, sequence_id: int, number: int, highest: int | None = None) -> None:
    """Send SEND of a batch, with a highest sequence id if one is given."""
    fields = {"num_messages": number, "meta_num_messages_in_batch": number}
    if highest is not None:
        fields |= {"highest_sequence_id": highest, "meta_highest_sequence_id": highest}
    probe.publish(sequence_id, batch(number), **fields)


def entry(metadata: bytes, payload: bytes = b"hello", size: int | None = None) -> bytes:
    """An entry with a valid CRC around any bytes; `size` replaces the true METADATA_SIZE."""
    size = len(metadata) if size is None else size
    covered = size.to_bytes(4, "big") + metadata + payload
    return MAGIC_CHECKSUM + crc32c(covered).to_bytes(4, "big") + covered


def tail(frame: Frame) -> bytes:
    """The bytes behind the command."""
    return frame.raw[8 + frame.command_size :]
