"""Which frames belong together: filters for all frames of one party, and the next step of a message.

SEND ── its receipt ── MESSAGE, the first delivery ── ACK
"""

import json
from collections.abc import Callable

from pulsarctl_wire.wire.commands import ACK, MESSAGE, SEND_RECEIPT
from pulsarctl_wire.wire.frame import Event, Frame, HttpMessage
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandAck
from pulsarctl_wire.wire.session.ledgers import acknowledged_by

KINDS = ("connection", "topic", "subscription", "producer", "consumer", "message")
"""The parties of a frame that a filter can follow."""


def follow(event: Event, kind: str) -> str:
    """Return the filter for all events of one party of `event`; `kind` is one of `KINDS`.

    "" if the event has no such party.
    """
    topic = event.topic if isinstance(event, Frame | HttpMessage) else None
    if kind == "connection":
        return f"connection == {event.connection.index}"
    if kind == "topic" and topic:
        return f"topic == {json.dumps(topic)}"
    if not isinstance(event, Frame):
        return ""
    if kind == "subscription" and event.subscription:
        return f"topic == {json.dumps(topic)} and subscription == {json.dumps(event.subscription)}"
    if kind in ("producer", "consumer"):
        party_id = getattr(event.body, f"{kind}_id", None)
        if party_id is not None:
            return f"connection == {event.connection.index} and fields.{kind}_id == {party_id}"
    if kind == "message" and (entry := _entry_of(event)) is not None:
        _, ledger, number = entry
        return f"fields.message_id.ledgerId == {ledger} and fields.message_id.entryId == {number}"
    return ""


def next_step(event: Event) -> Callable[[Event], bool] | None:
    """Return the test for the next step of the message that `event` is about.

    None if there is none, or if it is the answer to this frame, as it is for a SEND.
    """
    if not isinstance(event, Frame):
        return None
    entry = _entry_of(event)
    if entry is None:
        return None
    if event.type == SEND_RECEIPT:
        return lambda other: isinstance(other, Frame) and other.type == MESSAGE and _entry_of(other) == entry
    index, owner, (_, ledger, number) = event.connection.index, event.ids.owner, entry

    def acknowledges(other: Event) -> bool:
        if not isinstance(other, Frame) or other.type != ACK or other.partial:
            return False
        if other.connection.index != index or other.ids.owner != owner:
            return False
        is_cumulative = other.ids.kind == CommandAck.Cumulative
        entries = [acknowledged for acknowledged, _ in acknowledged_by(other)]
        return any(
            acknowledged == (ledger, number) or (is_cumulative and acknowledged >= (ledger, number))
            for acknowledged in entries
        )

    return acknowledges


def _entry_of(frame: Frame) -> tuple[str, int, int] | None:
    """Return topic, ledger and entry of a SEND_RECEIPT or MESSAGE; None if the frame names none."""
    if frame.type not in (SEND_RECEIPT, MESSAGE) or not frame.has_command or frame.topic is None:
        return None
    ids = frame.ids
    return frame.topic, ids.ledger, ids.entry
