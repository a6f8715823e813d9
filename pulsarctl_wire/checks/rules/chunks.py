"""The rule about chunked messages."""

from dataclasses import dataclass, field
from typing import Final

from pulsarctl_wire.checks.finding import CERTAIN, SUSPECTED, Sighting, Subject
from pulsarctl_wire.checks.ledgers import Consumer
from pulsarctl_wire.checks.rule import CAPTURE, Reporter, Rule
from pulsarctl_wire.checks.state import CheckState
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.session.knowledge import bound

_MAX_UUID: Final = 256  # characters of a uuid that are kept
_MAX_MESSAGES: Final = 4_096  # messages that are followed at a time, and as many that are done

_Key = tuple[str, str, str, str | None]
"""Topic, producer name and uuid; the subscription if the chunks are MESSAGEs, None if they are SENDs."""


@dataclass(slots=True)
class _Parts:
    """The chunks of a message so far.

    next        the chunk id that comes next
    first       chunk 0 of the last try, or what came instead
    early       the first chunk that came too early, and what is wrong with it
    consumer    who got the last chunk; None if the chunks are SENDs
    """

    first: Sighting
    next: int = 0
    early: tuple[Sighting, str] | None = None
    state: CheckState = field(init=False)
    consumer: Consumer | None = None
    count: int = 0
    last: Sighting = field(init=False)
    last_id: int = 0

    def add(
        self, state: CheckState, sighting: Sighting, chunk: int, count: int, consumer: Consumer | None
    ) -> None:
        """Add a chunk that has come: number `chunk`, from 0, of `count`."""
        self.state, self.consumer, self.count = state, consumer, count
        self.last, self.last_id = sighting, chunk
        if chunk == 0:
            self.first, self.next, self.early = sighting, 1, None
        elif chunk == self.next:
            self.next += 1
        elif chunk > self.next and self.early is None:
            self.early = sighting, f"chunk_id {chunk}, expected {self.next}"

    @property
    def is_complete(self) -> bool:
        """Whether all chunks have come in order."""
        return self.next >= self.count

    @property
    def can_continue(self) -> bool:
        """Whether its consumer can get more, or the chunks are SENDs."""
        return self.consumer is None or (self.consumer.is_open and self.consumer.permits > 0)


class IncompleteChunks(Rule):
    """A chunked message is not complete, so its consumers can never assemble it.

    Wire: the chunks of a message (same topic, producer name and uuid) do not reach num_chunks_from_msg, and
    none has come for R. Chunk 0 begins anew, and a lower id is a repetition: both are normal after a
    reconnect. Certain if the first one is not 0 or one is left out; else the producer may come back.

    Advice: Look at why the producer stopped or misnumbered its chunks; the parts expire in the consumer, and
    the message must be sent again.

    Source: https://github.com/apache/pulsar/issues/26395,
    https://github.com/apache/pulsar-client-go/issues/1397
    """

    id = "incomplete_chunks"
    cause = ("client", "topic")
    relies_on = CAPTURE

    def __init__(self, doctor: Reporter) -> None:
        super().__init__(doctor)
        self._messages: dict[_Key, _Parts] = {}  # the one that waits for longest comes first
        self._done: dict[_Key, None] = {}  # complete, reported, or given up without a report

    def on_chunk(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Add a chunk to its message."""
        metadata, base, topic = frame.metadata, frame.base, frame.topic
        if metadata is None or base is None or topic is None:
            return
        consumer = None if sighting.to_broker else state.consumer(base.message.consumer_id)
        send_key = topic, as_text(metadata.producer_name), as_text(metadata.uuid[:_MAX_UUID]), None
        key = (*send_key[:3], frame.subscription or "") if consumer is not None else send_key
        if not (sighting.to_broker or consumer) or key in self._done:
            return
        if consumer is not None and (send_key in self._messages or send_key in self._done):
            return  # the SENDs of its chunks are followed instead
        parts, number, count = self._messages.pop(key, None), metadata.chunk_id, metadata.num_chunks_from_msg
        if parts is None:
            parts = _Parts(sighting)
        elif self._judge(key, parts, sighting.time_ns):
            return
        parts.add(state, sighting, number, count, consumer)
        if parts.is_complete:
            self._finish(key)
        else:
            self._messages[key] = parts
            bound(self._messages, _MAX_MESSAGES)

    def on_due(self, now_ns: int) -> None:
        """Report the messages that wait for too long."""
        for key, parts in list(self._messages.items()):
            if not self._judge(key, parts, now_ns):
                break
            self._messages.pop(key, None)

    def _judge(self, key: _Key, parts: _Parts, now_ns: int) -> bool:
        """Report a message if nothing has come for too long; return whether that is so."""
        if now_ns - parts.last.time_ns < self.thresholds.unanswered:
            return False
        self._finish(key)
        if (parts.early or parts.can_continue) and parts.state.has_all_bytes and self.can_judge(parts.state):
            self._report(key, parts)
        return True

    def _finish(self, key: _Key) -> None:
        self._done[key] = None
        bound(self._done, _MAX_MESSAGES)

    def _report(self, key: _Key, parts: _Parts) -> None:
        rows = {parts.first: "chunk_id 0"} if parts.next else {}
        if parts.early is not None:
            rows |= dict([parts.early])
        rows[parts.last] = f"{rows.get(parts.last, f'chunk_id {parts.last_id}')}, the last that came"
        text = f"A chunked message has {parts.next} of its {parts.count} chunks in order and no more, so its"
        text += " consumers can never assemble it"
        certainty, end = (CERTAIN, ".") if parts.early else (SUSPECTED, ", unless the producer comes back.")
        self.report(parts.state, Subject(key[0], key[3], uuid=key[2]), [*rows.items()], text + end, certainty)
