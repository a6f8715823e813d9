"""Messages for consumers, also wrong ones, and `Backlog`: a subscription that has some."""

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
"""A MESSAGE for the consumer of this id."""

_CUMULATIVE: Final = 1  # CommandAck.AckType


def entry(
    number: int,
    payload: bytes = b"",
    *,
    ledger: int = LEDGER,
    prefixed: bool = False,
    command: dict[str, Any] | None = None,
    **fields: Any,
) -> Entry:
    """Return an entry of one message, or with a `payload` that is a batch.

    `fields` are of its metadata, `command` those of MESSAGE; `prefixed`: with broker entry metadata.
    """
    metadata = make_metadata(**{"sequence_id": number, **fields})
    prefix = BrokerEntryMetadata(broker_timestamp=1, index=number) if prefixed else None

    def build(consumer: int) -> bytes:
        place = {"ledgerId": ledger, "entryId": number}
        base = build_command("MESSAGE", **{"consumer_id": consumer, "message_id": place, **(command or {})})
        return build_frame(base, metadata, payload, broker_entry=prefix)

    return build


def damage(source: Entry) -> Entry:
    """Return the same entry with another last byte, so that its CRC32-C is wrong."""

    def build(consumer: int) -> bytes:
        data = source(consumer)
        return data[:-1] + bytes([data[-1] ^ 1])

    return build


def spoil_checksum(source: Entry) -> Entry:
    """Return the same entry with another CRC32-C: the payload stays as it is."""

    def build(consumer: int) -> bytes:
        data = source(consumer)
        place = data.rindex(MAGIC_CHECKSUM) + len(MAGIC_CHECKSUM)
        return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]

    return build


def entry_of(number: int, metadata: bytes) -> Entry:
    """Return an entry with any bytes for its metadata, and the right CRC32-C."""

    def build(consumer: int) -> bytes:
        place = {"ledgerId": LEDGER, "entryId": number}
        command = build_command("MESSAGE", consumer_id=consumer, message_id=place)
        return wrap(command.SerializeToString(), make_entry(metadata, b""))

    return build


@dataclass
class Slot:
    """An entry of a backlog: so many messages. One that is `fragile` is only sent once."""

    entry: Entry
    messages: int = 1
    fragile: bool = False
    is_delivered: bool = False
    is_acked: bool = False


class Backlog:
    """A subscription with entries, numbered from 0, at a broker that it tells how to react.

    It delivers as many messages as there are permits, and what is not acknowledged once more to a consumer
    that has subscribed again. `errors` are the validation errors of acknowledgements, by entry.
    """

    def __init__(self, broker: ScriptedBroker, *entries: Entry | Slot) -> None:
        self.entries = [value if isinstance(value, Slot) else Slot(value) for value in entries]
        self.errors: dict[int, int] = {}
        self.permits = 0
        self._consumer: tuple[Peer, int] | None = None
        self._waiting: list[Slot] = []
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
        """Begin again with what is not acknowledged."""
        self._consumer, self.permits = (peer, frame.body.consumer_id), 0
        self._renew()
        return answer("SUCCESS")(peer, frame)

    def _renew(self) -> None:
        self._waiting = [
            slot for slot in self.entries if not slot.is_acked and not (slot.fragile and slot.is_delivered)
        ]

    def flow(self, peer: Peer, frame: Frame) -> bytes | None:
        """Add permits, and deliver."""
        if self._consumer != (peer, frame.body.consumer_id):
            return None
        self.permits += frame.body.messagePermits
        return self._deliver(frame.body.consumer_id)

    def _deliver(self, consumer: int) -> bytes:
        frames = []
        while self._waiting and self.permits > 0:
            slot = self._waiting.pop(0)
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
        """Deliver what is not acknowledged once more."""
        self._renew()
        return self._deliver(frame.body.consumer_id)

    def acknowledge(self, peer: Peer, frame: Frame) -> bytes | None:
        """Note what is acknowledged: an entry only if no message of it is left out."""
        body = frame.body
        for place in body.message_id:
            if place.ledgerId != LEDGER or place.entryId >= len(self.entries) or any(place.ack_set):
                continue
            first = 0 if body.ack_type == _CUMULATIVE else place.entryId
            for slot in self.entries[first : place.entryId + 1]:
                slot.is_acked = True
            if body.HasField("validation_error"):
                self.errors[place.entryId] = body.validation_error
        return confirm(peer, frame)


def make_texts(number: int) -> list[str]:
    """Return so many payloads that no log line is equal to."""
    return [f"pwire-message-{index}" for index in range(number)]


def make_entries(texts: Sequence[str], **fields: Any) -> list[Entry]:
    """Return an entry for each payload; `fields` are of their metadata."""
    return [entry(number, text.encode(), **fields) for number, text in enumerate(texts)]
