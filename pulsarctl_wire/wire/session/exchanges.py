"""`ExchangeState`: a connection's state that pairs SENDs with their answers, and recognises resent SENDs.

A SEND is answered by SEND_RECEIPT or SEND_ERROR with its producer id and sequence id. The chunks of a message
share both ids and are answered in order, so none is paired if one may be missing. SEND_ERROR names the
highest sequence id of a batch, SEND_RECEIPT the lowest. SENDs that were unanswered when their producer was
closed get no answer after it is reopened. The client sends them again, on this or another connection, and
their latency counts from the first SEND (docs/definitions.md).
"""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import itemgetter
from typing import Any, Final

from mypy_extensions import mypyc_attr

from pulsarctl_wire.wire.commands import NUMBERS, SEND
from pulsarctl_wire.wire.fast_fields import Head
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.frame import Connection, Frame
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.PulsarApi_pb2 import Schema
from pulsarctl_wire.wire.session.counts import messages_in
from pulsarctl_wire.wire.session.knowledge import MAX_PENDING, Knowledge, Unanswered, bound
from pulsarctl_wire.wire.session.state import PRODUCER, PRODUCER_SUCCESS, TopicState
from pulsarctl_wire.wire.session.state_data import (
    SENT_CHUNK,
    SENT_FRAME,
    SENT_HIGHEST,
    SENT_TIME_NS,
    Identity,
    Request,
    Sent,
)

MAX_QUEUE: Final = 1_024
"""Maximum number of pending SENDs of one sequence id, and of chunked messages of a producer."""

_MAX_SEARCHED: Final = 2_048  # how many pending sends are searched for the batch that an error is about


class _Chunks:
    """The SENDs of one chunked message that wait for receipts; `next` is the next chunk id (0: all sent)."""

    __slots__ = ("next", "waiting")

    def __init__(self) -> None:
        self.next = 0
        self.waiting: deque[Sent] = deque()


@mypyc_attr(allow_interpreted_subclasses=True)
class ProducerLedger:
    """The pending SENDs of a producer since it was opened, by sequence id.

    `topic` is None if PRODUCER was not seen; `name` is "" until it is known. `waiting` counts the sends
    without an answer; answers to those up to frame number `doubtful_until` may have been missed.
    `is_open`: its PRODUCER was seen, but not its end. `is_closed`: it was closed and not reopened yet.
    """

    __slots__ = ("chunks", "doubtful_until", "is_closed", "is_open", "name", "pending", "topic", "waiting")

    def __init__(self, topic: str | None) -> None:
        self.topic = topic
        self.name = ""
        self.is_open = self.is_closed = False
        self.waiting = self.doubtful_until = 0
        self.pending: dict[int, Sent | deque[Sent]] = {}
        self.chunks: dict[int, _Chunks] = {}

    def add(self, sequence: int, send: Sent) -> None:
        """Add a SEND."""
        earlier = self.pending.get(sequence)
        if earlier is None:
            self.pending[sequence] = send
        elif isinstance(earlier, deque):
            if len(earlier) >= MAX_QUEUE:
                earlier.popleft()
                self.waiting -= 1
            earlier.append(send)
        else:
            self.pending[sequence] = deque((earlier, send))
        self.waiting += 1

    def add_chunk(self, sequence: int, send: Sent, count: int, *, lossy: bool) -> None:
        """Add the SEND of one of `count` chunks; `lossy` if earlier chunks may have been missed."""
        chunk, chunks = send[SENT_CHUNK], self.chunks.get(sequence)
        if chunks is None and (chunk == 0 or not lossy):
            chunks = self.chunks[sequence] = _Chunks()
            if len(self.chunks) > MAX_QUEUE:
                bound(self.chunks, MAX_QUEUE)
                self._count()
        if chunks is None or (lossy and chunk not in (0, chunks.next)):
            dropped = self.chunks.pop(sequence, None)
            self.waiting -= len(dropped.waiting) if dropped is not None else 0
            return
        chunks.next = (chunk + 1) % count
        chunks.waiting.append(send)
        self.waiting += 1

    def resume_chunks(self, sequence: int, next_chunk: int, sends: Iterable[Sent]) -> None:
        """Restore the pending chunks of a message."""
        chunks = self.chunks[sequence] = _Chunks()
        chunks.next = next_chunk
        chunks.waiting.extend(sends)
        self.waiting += len(chunks.waiting)

    def answer(self, sequence: int, *, lossy: bool) -> Sent | None:
        """Remove and return the SEND that an answer with this sequence id is for; None if there is none.

        `lossy` is that of `add_chunk`.
        """
        send = self.pending.pop(sequence, None)
        if send is None:
            chunks = self.chunks.get(sequence)
            if chunks is None or not chunks.waiting:
                return None
            first = chunks.waiting.popleft()
            if not chunks.waiting and not (lossy and chunks.next):
                del self.chunks[sequence]
            self.waiting -= 1
            return first
        self.waiting -= 1
        if isinstance(send, deque):
            first = send.popleft()
            if send:
                self.pending[sequence] = send
            return first
        return send

    def find_lowest(self, sequence: int) -> int:
        """Return the lowest sequence id of the batch whose highest is `sequence`; `sequence` if none."""
        if sequence and sequence not in self.pending:
            for lowest, send in islice(reversed(self.pending.items()), _MAX_SEARCHED):
                first = send[0] if isinstance(send, deque) else send
                if first[SENT_HIGHEST] == sequence:
                    return lowest
        return sequence

    def sends(self) -> Iterator[tuple[int, Sent]]:
        """Yield the pending sends, with their sequence ids."""
        for sequence, entry in self.pending.items():
            if isinstance(entry, deque):
                yield from ((sequence, send) for send in entry)
            else:
                yield sequence, entry
        for sequence, chunks in self.chunks.items():
            yield from ((sequence, send) for send in chunks.waiting)

    def find_oldest(self) -> tuple[int, Sent] | None:
        """Return the pending send that was sent first, with its sequence id; None if there is none."""
        oldest = list(islice(self.pending.items(), 1))
        candidates = [(sequence, send[0] if isinstance(send, deque) else send) for sequence, send in oldest]
        candidates += [
            (sequence, chunks.waiting[0]) for sequence, chunks in self.chunks.items() if chunks.waiting
        ]
        return min(candidates, key=lambda item: item[1][SENT_FRAME], default=None)

    def count_certain(self) -> tuple[int, int | None]:
        """Return how many sends are certainly pending, and when the oldest was sent (ns, or None)."""
        if self.is_closed or not self.waiting:
            return 0, None
        certain_sends = [send for _, send in self.sends() if send[SENT_FRAME] > self.doubtful_until]
        if not certain_sends:
            return 0, None
        return len(certain_sends), min(certain_sends, key=itemgetter(SENT_FRAME))[SENT_TIME_NS]

    def lose(self, number: int) -> None:
        """Note that bytes were missed after frame `number`: any chunks or answers may be missing."""
        self.doubtful_until = number
        if self.chunks:
            self.chunks.clear()
            self._count()

    def forget(self, number: int) -> int:
        """Forget the sends before frame `number`, and all chunks; return how many sends that were."""
        count = self.waiting
        for sequence, send in list(self.pending.items()):
            if isinstance(send, deque):
                while send and send[0][SENT_FRAME] < number:
                    send.popleft()
                if not send:
                    del self.pending[sequence]
            elif send[SENT_FRAME] < number:
                del self.pending[sequence]
        self.chunks.clear()
        self._count()
        return count - self.waiting

    def _count(self) -> None:
        self.waiting = sum(1 for _ in self.sends())


@mypyc_attr(allow_interpreted_subclasses=True)
class ExchangeState(TopicState):
    """Pairs SENDs with their answers, and finds the schemas of payloads."""

    def __init__(
        self, connection: Connection, knowledge: Knowledge, streams: Iterable[FrameStream] = ()
    ) -> None:
        super().__init__(connection, knowledge, streams)
        self.producers: dict[int, ProducerLedger] = {}
        """By producer id. Producers whose PRODUCER was not seen are added when they send."""
        self._pending = 0  # upper bound of the pending sends of all producers
        self._lossy = True  # bytes may have been missed; False from CONNECT on, until `_lose`

    def _lose(self) -> None:
        super()._lose()
        self._lossy = True
        for ledger in self.producers.values():
            ledger.lose(self._knowledge.frames)

    def end(self) -> None:
        """End the connection: pending sends will get no answer."""
        for ledger in self.producers.values():
            self._give_up(ledger)
        self.producers.clear()

    def _connect(self, frame: Frame) -> None:
        super()._connect(frame)
        self._lossy = self._lossy and frame.type != _CONNECT

    # -- SENDs

    def _send(self, frame: Frame) -> None:
        ids, head = frame.ids, frame.head
        producer, sequence, highest = ids.owner, ids.sequence, ids.highest or 0
        ledger = self.producers.get(producer) or self._ledger(producer)
        topic = frame.topic = ledger.topic
        number = first_number = frame.number
        time_ns = frame.time_ns
        offset = frame.offset if frame.to_broker else -1
        if head is None:
            size = frame.size, 0
            ledger.add(sequence, (number, time_ns, number, topic, highest, "", 0, 0, size, offset))
        else:
            name, publish_time, chunk = head.producer, head.publish_time, head.chunk
            frame.producer = name
            knowledge = self._knowledge
            if knowledge.unanswered:
                original = knowledge.take_resent((topic, name, sequence, publish_time, chunk), time_ns)
                if original is not None:
                    first_number, time_ns = original.number, original.time_ns
                    frame.resend_of = first_number
            count = head.chunks
            if count > 1 or knowledge.schemas:
                self._entry(frame, head, producer)
            size = frame.size, messages_in(frame)
            send = first_number, time_ns, number, topic, highest, name, publish_time, chunk, size, offset
            if count > 1:
                ledger.add_chunk(sequence, send, count, lossy=self._lossy)
            else:
                ledger.add(sequence, send)
        self._pending += 1
        if self._pending > MAX_PENDING:
            self._forget_sends()

    def _ledger(self, producer: int) -> ProducerLedger:
        """Make a new ledger for a producer."""
        ledger = self.producers[producer] = ProducerLedger(self._topic_of(producer))
        bound(self.producers, MAX_PENDING)
        return ledger

    def _forget_sends(self) -> None:
        """Forget the older half of the pending sends if there are too many; their answers never came."""
        self._pending = sum(ledger.waiting for ledger in self.producers.values())
        if self._pending > MAX_PENDING // 2:
            numbers = sorted(
                send[SENT_FRAME] for ledger in self.producers.values() for _, send in ledger.sends()
            )
            middle = numbers[len(numbers) // 2]
            for ledger in self.producers.values():
                self._knowledge.forgotten += ledger.forget(middle)
            self._pending = sum(ledger.waiting for ledger in self.producers.values())

    def _receipt(self, frame: Frame) -> None:
        ids = frame.ids
        ledger = self.producers.get(ids.owner)
        if ledger is not None:
            self._answer_send(frame, ledger, ids.sequence)
        else:
            frame.topic = self._topic_of(ids.owner)

    def _send_error(self, frame: Frame) -> None:
        body = frame.base.send_error  # type: ignore[union-attr]
        ledger = self.producers.get(body.producer_id)
        if ledger is not None:
            self._answer_send(frame, ledger, ledger.find_lowest(body.sequence_id))
        else:
            frame.topic = self._topic_of(body.producer_id)

    def _answer_send(self, frame: Frame, ledger: ProducerLedger, sequence: int) -> Sent | None:
        send = ledger.answer(sequence, lossy=self._lossy)
        if send is None:
            frame.topic = ledger.topic
            return None
        first_number, time_ns, number, topic, _, producer, _, _, size, offset = send
        self._pending -= 1
        frame.request, frame.request_offset, frame.request_type, frame.sent = number, offset, SEND, size
        frame.producer = producer or None
        frame.topic = topic or ledger.topic
        if first_number != number:
            frame.resend_of = first_number
        if frame.time_ns is not None and time_ns is not None:
            frame.latency_ns = frame.time_ns - time_ns
        if self._knowledge.answers is not None:
            self._knowledge.link(first_number, frame.number)
            self._knowledge.link(number, frame.number)
        return send

    def _give_up(self, ledger: ProducerLedger) -> None:
        """Move a producer's pending sends to `unanswered`: they will get no answer here."""
        for identity, send in self._list_unanswered(ledger):
            self._knowledge.add_unanswered(identity, send)
        self._pending -= ledger.waiting

    def _list_unanswered(self, ledger: ProducerLedger) -> list[tuple[Identity, Unanswered]]:
        """Return the pending sends of a producer."""
        sends: list[tuple[Identity, Unanswered]] = []
        for sequence, pending in ledger.sends():
            first_number, time_ns, number, topic, _, producer, publish_time, chunk, _, _ = pending
            send = Unanswered(first_number, time_ns, self.connection, number > ledger.doubtful_until)
            sends.append(((topic, producer, sequence, publish_time, chunk), send))
        return sends

    # -- entries

    def _message(self, frame: Frame) -> None:
        consumer, head = frame.ids.owner, frame.head
        self._name(frame, consumer)
        if head is not None and (head.chunks > 1 or self._knowledge.schemas):
            self._entry(frame, head, consumer)

    def _entry(self, frame: Frame, head: Head, owner: int) -> None:
        """Find the schema of a SEND or MESSAGE, and join its message if that is chunked."""
        if frame.partial:
            return
        if head.chunks > 1:
            self._join(frame)
        schemas = self._knowledge.schemas
        if not schemas:
            return
        version = b"" if head.is_plain else frame.metadata.schema_version  # type: ignore[union-attr]
        if version:
            frame.schema = schemas.find(frame.topic, version)
        else:
            frame.schema = schemas.get((self.connection.index, frame.to_broker, owner))

    # -- opening and closing

    def _request(self, frame: Frame) -> None:
        super()._request(frame)
        if frame.type == _CLOSE_PRODUCER:
            producer = frame.base.close_producer.producer_id  # type: ignore[union-attr]
            ledger = self.producers.get(producer) or self._ledger(producer)
            ledger.is_open, ledger.is_closed = False, True

    def _remember_request(self, key: tuple[str, int], request: Request, body: Any) -> None:
        super()._remember_request(key, request, body)
        if request.type in _SCHEMA_REQUESTS:
            self._knowledge.bodies.put((self.connection.index, *key), body)

    def _open(self, frame: Frame, body: Any) -> None:
        super()._open(frame, body)
        if frame.type == PRODUCER:
            producer = body.producer_id
            ledger = self.producers.get(producer) or self._ledger(producer)
            ledger.topic, ledger.is_open = self._producers[producer], True
            ledger.name = as_text(body.producer_name) or ledger.name
            self._declare(True, producer, None)  # until it succeeds
        else:
            has_schema = frame.type == _SUBSCRIBE and body.HasField("schema")
            self._declare(False, body.consumer_id, body.schema if has_schema else None)
            if has_schema:
                self._knowledge.schemas.add(frame.topic, b"", body.schema)

    def _declare(self, is_producer: bool, owner: int, schema: Schema | None) -> None:
        self._knowledge.schemas.declare((self.connection.index, is_producer, owner), schema)

    def _complete(self, key: tuple[str, int], frame: Frame, body: Any, request: Request, last: bool) -> None:
        """Apply an answer to its request: store schemas by version, give a reopened producer a new ledger."""
        if frame.type == PRODUCER_SUCCESS and request.owner is not None:
            self._record_opened(request.owner[1], as_text(body.producer_name))
        knowledge, body_key = self._knowledge, (self.connection.index, *key)
        request_body = knowledge.bodies.get(body_key)
        if request_body is None:
            return
        if frame.type in (PRODUCER_SUCCESS, _GET_OR_CREATE_SCHEMA_RESPONSE) and not self._is_repeat(request):
            if request_body.HasField("schema") and body.schema_version:
                knowledge.schemas.add(request.topic, body.schema_version, request_body.schema)
                if frame.type == PRODUCER_SUCCESS:
                    self._declare(True, request_body.producer_id, request_body.schema)
        elif frame.type == _GET_SCHEMA_RESPONSE and body.HasField("schema"):
            version = body.schema_version or request_body.schema_version
            knowledge.schemas.add(request.topic, version, body.schema)
        if last:
            knowledge.bodies.drop(body_key)

    def _record_opened(self, producer: int, name: str) -> None:
        """Note that a producer was opened, with this name."""
        ledger = self.producers.get(producer)
        if ledger is None:
            return
        if ledger.is_closed and producer in self._producers:
            self._give_up(ledger)
            ledger = self._ledger(producer)
            ledger.is_open = True
        ledger.name = name


_CONNECT: Final = NUMBERS["CONNECT"]
_SUBSCRIBE: Final = NUMBERS["SUBSCRIBE"]
_CLOSE_PRODUCER: Final = NUMBERS["CLOSE_PRODUCER"]
_GET_SCHEMA_RESPONSE: Final = NUMBERS["GET_SCHEMA_RESPONSE"]
_GET_OR_CREATE_SCHEMA_RESPONSE: Final = NUMBERS["GET_OR_CREATE_SCHEMA_RESPONSE"]
_SCHEMA_REQUESTS: Final = {PRODUCER, NUMBERS["GET_SCHEMA"], NUMBERS["GET_OR_CREATE_SCHEMA"]}
"""Requests whose bodies are kept until their answer arrives, as both together give a schema."""
