"""Frames that clients and brokers exchange, built beforehand for loads."""

import time
from collections.abc import Sequence
from typing import Any

from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.entry import Batch, Outgoing, Stamp
from pulsarctl_wire.wire.frame import build_frame
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand


def build(name: str, **fields: Any) -> bytes:
    """Return the frame of a command without an entry."""
    return build_frame(build_command(name, **fields))


def build_send(payloads: Sequence[bytes], sequence: int = 0) -> bytes:
    """Return a SEND of producer 1: a batch, or a single message."""
    count = len(payloads) if len(payloads) > 1 else None
    return _build(
        build_command("SEND", producer_id=1, sequence_id=sequence, num_messages=count), payloads, sequence
    )


def build_message(payloads: Sequence[bytes], entry: int = 0) -> bytes:
    """Return a MESSAGE for consumer 1."""
    position = {"ledgerId": 1, "entryId": entry}
    return _build(build_command("MESSAGE", consumer_id=1, message_id=position), payloads, entry)


def _build(command: BaseCommand, payloads: Sequence[bytes], sequence: int) -> bytes:
    batch = Batch()
    for number, payload in enumerate(payloads, sequence):
        batch.add(Outgoing(payload), number)
    return build_frame(command, *batch.entry(Stamp("bench-0-1"), time.time_ns() // 1_000_000))
