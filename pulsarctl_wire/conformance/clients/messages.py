"""Messages for consumers, valid or not, and `Backlog`: a subscription that delivers messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pulsarctl_wire.conformance.basics.frames import make_entry, make_frame, make_metadata, wrap
from pulsarctl_wire.conformance.clients.scripted import LEDGER, Peer, ScriptedBroker, answer, confirm
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.frame import build_frame
from pulsarctl_wire.wire.frame_layout import MAGIC_CHECKSUM
from pulsarctl_wire.wire.PulsarApi_pb2 import BrokerEntryMetadata

if TYPE_CHECKING:
    from pulsarctl_wire.wire.frame import Frame

Entry = Callable[[int], bytes]
"""A function that builds MESSAGE for a consumer id."""

_CUMULATIVE: Final = 1  # CommandAck.AckType


def make_numbered_entry(
    number: int,
    payload: bytes = b"",
    *,
    ledger: int = LEDGER,
    prefixed: bool = False,
    command: dict[str, Any] | None = None,
    **fields: Any,
) -> Entry:
    """Return entry `number`, of one message or with a `payload` that is a batch.

    `fields` are of its metadata, `command` those of MESSAGE; `prefixed` adds broker entry metadata.
    """
    metadata = make_metadata(**{"sequence_id": number, **fields})
    prefix = BrokerEntryMetadata(broker_timestamp=1, index=number) if prefixed else None

    def build(consumer: int) -> bytes:
        ids = {"consumer_id": consumer, "message_id": {"ledgerId": ledger, "entryId": number}}
        message = build_command("MESSAGE", **{**ids, **(command or {})})
        return build_frame(message, metadata, payload, broker_entry=prefix)

    return build


def damage_payload(source: Entry) -> Entry:
    """Return the same entry with another last byte, so that its CRC32-C is wrong."""

    def build(consumer: int) -> bytes:
        data = source(consumer)
        return data[:-1] + bytes([data[-1] ^ 1])

    return build


def spoil_checksum(source: Entry) -> Entry:
    """Return the same entry with a wrong CRC32-C: the payload stays as it is."""

    def build(consumer: int) -> bytes:
        data = source(consumer)
        position = data.rindex(MAGIC_CHECKSUM) + len(MAGIC_CHECKSUM)
        return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]

    return build


def make_raw_entry(number: int, metadata: bytes) -> Entry:
    """Return an entry with these bytes as its metadata, valid or not, and the right CRC32-C."""

    def build(consumer: int) -> bytes:
        message_id = {"ledgerId": LEDGER, "entryId": number}
        command = build_command("MESSAGE", consumer_id=consumer, message_id=message_id)
        return wrap(command.SerializeToString(), make_entry(metadata, b""))

    return build


@dataclass
class Slot:
    """An entry of a backlog, with its number of `messages`. If `is_sent_once`, it never comes again."""

    entry: Entry
    messages: int = 1
    is_sent_once: bool = False
    is_delivered: bool = False
    is_acked: bool = False


class Backlog:
    """A subscription with entries, numbered from 0, which sets the reactions of its broker.

    It delivers messages as permits allow. When a consumer subscribes again, it delivers again what is not
    acknowledged. `errors` are the validation errors of acknowledgements, by entry.
    """

    def __init__(self, broker: ScriptedBroker, *entries: Entry | Slot) -> None:
        self.entries = [value if isinstance(value, Slot) else Slot(value) for value in entries]
        self.errors: dict[int, int] = {}
        self.permits = 0
        self._consumer: tuple[Peer, int] | None = None
        self._queue: list[Slot] = []
        for command, reaction in {
            "SUBSCRIBE": self.subscribe,
            "FLOW": self.flow,
            "ACK": self.acknowledge,
            "REDELIVER_UNACKNOWLEDGED_MESSAGES": self.redeliver,
        }.items():
            broker.always(command, reaction)

    @property
    def acked(self) -> list[int]:
        """The numbers of the entries that are acknowledged."""
        return [number for number, slot in enumerate(self.entries) if slot.is_acked]

    def subscribe(self, peer: Peer, frame: Frame) -> Any:
        """Begin again with what is not acknowledged, without permits."""
        self._consumer, self.permits = (peer, frame.body.consumer_id), 0
        self._refill_queue()
        return answer("SUCCESS")(peer, frame)

    def _refill_queue(self) -> None:
        self._queue = [
            slot
            for slot in self.entries
            if not slot.is_acked and not (slot.is_sent_once and slot.is_delivered)
        ]

    def flow(self, peer: Peer, frame: Frame) -> bytes | None:
        """Add permits, and deliver."""
        if self._consumer != (peer, frame.body.consumer_id):
            return None
        self.permits += frame.body.messagePermits
        return self._deliver(frame.body.consumer_id)

    def _deliver(self, consumer: int) -> bytes:
        frames = []
        while self._queue and self.permits > 0:
            slot = self._queue.pop(0)
            self.permits -= slot.messages
            slot.is_delivered = True
            frames.append(slot.entry(consumer))
        return b"".join(frames)

    def send(self, command: str, **fields: Any) -> None:
        """Send a command about the consumer."""
        assert self._consumer is not None
        peer, consumer = self._consumer
        peer.send(make_frame(command, consumer_id=consumer, **fields))

    def redeliver(self, peer: Peer, frame: Frame) -> bytes:
        """Deliver again what is not acknowledged, as permits allow."""
        self._refill_queue()
        return self._deliver(frame.body.consumer_id)

    def acknowledge(self, peer: Peer, frame: Frame) -> bytes | None:
        """Note which entries are acknowledged: a batch only with its last message, as `ack_set` shows."""
        body = frame.body
        for message_id in body.message_id:
            number = message_id.entryId
            if message_id.ledgerId != LEDGER or number >= len(self.entries):
                continue
            start = 0 if body.ack_type == _CUMULATIVE else number
            stop = number if any(message_id.ack_set) else number + 1
            for slot in self.entries[start:stop]:
                slot.is_acked = True
            if body.HasField("validation_error"):
                self.errors[number] = body.validation_error
        return confirm(peer, frame)


def make_texts(number: int) -> list[str]:
    """Return so many payloads, which no log line of a client equals."""
    return [f"pwire-message-{index}" for index in range(number)]


def make_entries(texts: Sequence[str], **fields: Any) -> list[Entry]:
    """Return an entry for each payload; `fields` are other parameters of `make_numbered_entry`."""
    return [make_numbered_entry(number, text.encode(), **fields) for number, text in enumerate(texts)]
