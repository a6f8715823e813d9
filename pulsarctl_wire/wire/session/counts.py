"""The single definition of each number that pwire counts, used by every command. See docs/definitions.md."""

from typing import Any, Final

from pulsarctl_wire.wire.commands import ERROR_FIELDS, NUMBERS
from pulsarctl_wire.wire.frame import Event, Frame, Gap, Malformed

MAX_PERMITS: Final = 2**31 - 1
"""The most permits of a consumer that a broker can count."""
ALWAYS_ERRORS: Final = {NUMBERS["SEND_ERROR"], NUMBERS["ERROR"]}
"""Type numbers of the commands that always report an error."""

_PRODUCER_SUCCESS: Final = NUMBERS["PRODUCER_SUCCESS"]
_SEND_RECEIPT: Final = NUMBERS["SEND_RECEIPT"]
_WORD_MASK: Final = 2**64 - 1


def messages_in(frame: Frame) -> int:
    """Return how many messages a SEND or MESSAGE carries; 0 if the frame is cut.

    In a batch, messages that the ack_set masks count too. A chunked message counts once, with its last
    chunk, if all its chunks were seen.
    """
    head = frame.head
    if head is None or frame.partial:
        return 0
    if head.chunks > 1:
        return int(frame.joined is not None)
    return max(head.batch, 0)


def damage_of(event: Event) -> dict[str, int]:
    """Return what an event that is no frame adds to the counts: only gaps and malformed stretches do."""
    if isinstance(event, Gap):
        return {"gaps": 1, "gap_bytes": event.size}
    return {"malformed": 1, "malformed_bytes": event.size} if isinstance(event, Malformed) else {}


def error_of(frame: Frame) -> int | None:
    """Return the ServerError that a frame reports; None if it reports none, or its body is missing.

    ERROR and SEND_ERROR report one always: 0 (UnknownError) if the field is missing.
    """
    body, field = frame.body, ERROR_FIELDS.get(frame.type)
    if body is None or field is None or not (frame.type in ALWAYS_ERRORS or body.HasField(field)):
        return None
    error: int = getattr(body, field)
    return error


def is_publish(frame: Frame) -> bool:
    """Return whether the frame completes a publish: it is a receipt, and its SEND was seen."""
    return frame.type == _SEND_RECEIPT and frame.request is not None


def latency_of(frame: Frame) -> int | None:
    """Return the latency (ns) of the request that this frame answers; None if none, or more answers follow.

    A producer that waits for its turn (WaitForExclusive, PIP-68) gets two answers: only the last one counts.
    """
    if frame.latency_ns is not None and frame.type == _PRODUCER_SUCCESS:
        ready: bool = frame.base.producer_success.producer_ready  # type: ignore[union-attr]
        return frame.latency_ns if ready else None
    return frame.latency_ns


def permits_used(frame: Frame) -> int:
    """Return the permits that a MESSAGE uses: one for each message that its ack_set does not mask.

    A chunk uses one, a marker none.
    """
    head = frame.head
    if head is None:
        return 1
    if head.marker:
        return 0
    if head.batch <= 1 or frame.ids.is_plain:
        return max(head.batch, 1)
    words: Any = frame.base.message.ack_set  # type: ignore[union-attr]
    return max(count_ones(words), 1) if words else head.batch


def count_ones(words: Any) -> int:
    """Return how many messages of a batch an ack_set (signed 64-bit words) leaves unacknowledged (PIP-54)."""
    return sum((word & _WORD_MASK).bit_count() for word in words)
