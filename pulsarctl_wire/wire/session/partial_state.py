"""Tracks a connection in parts: several processes track one part each, and another one joins the parts.

A `PartState` begins in the middle of the connection. Whatever depends on earlier frames it leaves in a
`Part` to the joining process, which has a `KnownState`:

    topics of producers and consumers opened earlier   stand-ins, replaced later (`resolve_names`)
    answers to earlier requests and SENDs              deferred: the joining process tracks them
    handshake, PING and PONG, paired by their order    deferred
    SENDs that may be resends, chunks, reused ids      ranges; if they overlap with earlier ones, the
                                                       part cannot be used (`KnownState.contradicts`)
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mypy_extensions import mypyc_attr

from pulsarctl_wire.wire.commands import ANSWERS, BODIES, REQUESTS
from pulsarctl_wire.wire.fast_fields import Head
from pulsarctl_wire.wire.frame import Connection, Frame
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.session.exchanges import ExchangeState, ProducerLedger
from pulsarctl_wire.wire.session.greeting import CONNECT, CONNECTED
from pulsarctl_wire.wire.session.knowledge import MAX_PENDING, Knowledge, Unanswered, bound
from pulsarctl_wire.wire.session.state_data import (
    SENT_PRODUCER,
    Deferred,
    Identity,
    Known,
    Owner,
    Part,
    Request,
    Sends,
    Sent,
)

MaybeResent = Mapping[str, list[tuple[int, int, int]]]
"""Producer name -> (lowest, highest, number): sequence ids that may be resent after frame `number`."""


@mypyc_attr(allow_interpreted_subclasses=True)
class KnownState(ExchangeState):
    """An `ExchangeState` that can be handed to another process, and can continue after a `Part`."""

    def snapshot(self) -> Known:
        """Return everything the state knows, as plain data."""
        return Known(
            dict(self._producers),
            dict(self._consumers),
            dict(self._in_use),
            dict(self._pending_requests),
            {producer: _to_sends(ledger) for producer, ledger in self.producers.items()},
            self._knowledge.chunks.incomplete(self.connection),
            self._lossy,
            self._handshake,
            self._challenge,
            tuple((to_broker, ping) for to_broker, queue in self._pings.items() for ping in queue),
            self.greeting,
            self.connection.broker,
        )

    def resume(self, state: Known) -> None:
        """Continue from what another state knew; this state must be new."""
        self._update(state, {}, 0, 0)
        self._handshake, self._challenge, self.greeting = state.handshake, state.challenge, state.greeting
        self.connection.broker = state.broker
        for to_broker, request in state.pings:
            self._wait_for_pong(to_broker, request)

    def list_pending(self) -> Iterator[tuple[str, int]]:
        """Yield producer name and sequence id of the pending sends."""
        for ledger in self.producers.values():
            for sequence, send in ledger.sends():
                yield send[SENT_PRODUCER], sequence

    def resolve_names(self, part: Part) -> dict[str, str | None]:
        """Return stand-in -> real name, for the stand-ins of a part that begins at this point."""
        names = {name: self._producers.get(producer) for producer, name in part.producers.items()}
        for consumer, stand_ins in part.consumers.items():
            names.update(zip(stand_ins, self._consumers.get(consumer, (None, None)), strict=True))
        return names

    def resolve(
        self, deferred: list[Deferred], names: dict[str, str | None], shifts: tuple[int, int]
    ) -> list[Frame]:
        """Track the deferred frames of a part, before `join`; returns them.

        `names` is from `resolve_names`; `shifts` are added to the offsets to the client and to the broker.
        """
        frames = []
        for item in deferred:
            frame = item.frame(self.connection, shifts[item.to_broker])
            self.track([frame])
            if frame.request is None and item.topic is not None:
                frame.topic = _real_name(item.topic, names)
                frame.subscription = _real_name(item.subscription, names)
            frames.append(frame)
        return frames

    def contradicts(self, part: Part, resent: MaybeResent) -> bool:
        """Return whether a part that begins at this point is wrong, because of what came before it."""
        if part.doubtful or (
            part.chunked and (self._lossy or self._knowledge.chunks.incomplete(self.connection))
        ):
            return True
        if any(owner in self._in_use for owner in part.taken):
            return True
        errors = set(part.errors)
        for family, number in self._pending_requests:
            low, high = part.asked.get(family, (0, -1))
            if low <= number <= high or (family == "request" and number in errors):
                return True
        for producer in part.opened:
            ledger = self.producers.get(producer)
            if ledger is not None and (ledger.is_closed or ledger.waiting) and producer not in part.reopened:
                return True
        return any(
            lowest <= high and low <= highest and number_before < last
            for name, (low, high, last) in part.sent.items()
            for lowest, highest, number_before in resent.get(name, ())
        )

    def join(
        self, state: Known, part: Part, names: dict[str, str | None], shift: int, offset_shift: int
    ) -> list[tuple[int, Identity, Unanswered]]:
        """Continue after a part: `state` is what its state knew at its end.

        `names` is from `resolve_names` at its beginning; `shift` is added to its frame numbers,
        `offset_shift` to its offsets to the broker. Returns the sends that got no answer before their
        producer was reopened, each with the turn of the reopening.
        """
        unanswered: list[tuple[int, Identity, Unanswered]] = []
        if part.lost is not None:
            self._in_use.clear()
            for ledger in self.producers.values():
                ledger.lose(part.lost + shift)
        for owner in part.freed:
            self._free(owner)
        for (topic, name, sequence, publish_time, chunk), number, time_ns, is_sure, turn in part.left:
            identity = _real_name(topic, names), name, sequence, publish_time, chunk
            unanswered.append((turn, identity, Unanswered(number + shift, time_ns, self.connection, is_sure)))
        for producer, turn in part.reopened.items():
            if producer in self.producers:
                unanswered += [(turn, *send) for send in self._list_unanswered(self.producers.pop(producer))]
        self._update(state, names, shift, offset_shift)
        if not offset_shift:  # the part has the connection's first byte
            self.connection.broker = self.connection.broker or state.broker
        return unanswered

    def _update(self, state: Known, names: dict[str, str | None], shift: int, offset_shift: int) -> None:
        self._producers.update(state.producers)
        self._consumers.update(state.consumers)
        for key, request in state.asked.items():
            self._pending_requests[key] = request._replace(
                number=request.number + shift,
                offset=request.offset + offset_shift,
                topic=_real_name(request.topic, names),
                subscription=_real_name(request.subscription, names),
            )
        for producer, sends in state.sends.items():
            self._add_sends(producer, sends, names, shift, offset_shift)
        self._in_use.update((owner, number + shift) for owner, number in state.in_use.items())
        for table in (self._producers, self._consumers, self._pending_requests, self._in_use):
            bound(table, MAX_PENDING)
        self._pending = sum(ledger.waiting for ledger in self.producers.values())
        if self._pending > MAX_PENDING:
            self._forget_sends()
        self._knowledge.chunks.resume(self.connection, state.chunks)
        if state.lossy is not None:
            self._lossy = state.lossy

    def _add_sends(
        self, producer: int, sends: Sends, names: dict[str, str | None], shift: int, offset_shift: int
    ) -> None:
        ledger = self.producers.get(producer) or self._ledger(producer)
        if sends.is_open or sends.is_closed:
            ledger.is_open, ledger.is_closed = sends.is_open, sends.is_closed
        ledger.topic = _real_name(sends.topic, names)
        ledger.name = sends.name or ledger.name
        if sends.doubtful:
            ledger.doubtful_until = sends.doubtful + shift
        for sequence, send in sends.pending:
            ledger.add(sequence, _shift_send(send, names, shift, offset_shift))
        for sequence, chunk, queue in sends.chunks:
            ledger.resume_chunks(
                sequence, chunk, [_shift_send(send, names, shift, offset_shift) for send in queue]
            )


def _real_name(text: str | None, names: dict[str, str | None]) -> str | None:
    return None if text is None else names.get(text, text)


def _shift_send(send: Sent, names: dict[str, str | None], shift: int, offset_shift: int) -> Sent:
    first_number, time_ns, number, topic, highest, producer, publish_time, chunk, size, offset = send
    first_number, number, topic = first_number + shift, number + shift, _real_name(topic, names)
    offset = offset + offset_shift if offset >= 0 else -1
    return first_number, time_ns, number, topic, highest, producer, publish_time, chunk, size, offset


def _to_sends(ledger: ProducerLedger) -> Sends:
    chunks = [(sequence, entry.next, list(entry.waiting)) for sequence, entry in ledger.chunks.items()]
    pending = [
        (sequence, send)
        for sequence, item in ledger.pending.items()
        for send in ([item] if isinstance(item, tuple) else item)
    ]
    return Sends(
        ledger.topic, ledger.name, ledger.is_open, ledger.is_closed, ledger.doubtful_until, pending, chunks
    )


@mypyc_attr(allow_interpreted_subclasses=True)
class PartState(KnownState):
    """Tracks one part of a connection, from `begin` on, without knowing what came before.

    It sets the number of a deferred frame to 0. Attributes in addition to the base's: `sent`, as in `Part`.
    """

    def __init__(
        self, connection: Connection, knowledge: Knowledge, streams: Iterable[FrameStream] = ()
    ) -> None:
        super().__init__(connection, knowledge, streams)
        self.begin("")

    def begin(self, prefix: str) -> None:
        """Begin the part. Stand-ins begin with `prefix`; no real name may begin with it."""
        self._maybe_resent = [(name, sequence, 0) for name, sequence in self.list_pending()]
        self._prefix = prefix
        self._unknown_producers: dict[int, str] = {}
        self._unknown_consumers: dict[int, tuple[str, str]] = {}
        self._producers, self._consumers, self._pending_requests, self.producers = {}, {}, {}, {}
        self._in_use = {}
        self._taken: dict[Owner, None] = {}
        self._freed: dict[Owner, None] = {}
        self._pending = 0
        self._lossy = False
        self._reopened: dict[int, int] = {}
        self._deferred: list[Frame] = []
        self._left: list[tuple[Identity, int, int | None, bool, int]] = []
        self.sent: dict[str, tuple[int, int, int]] = {}
        self._asked_here: dict[str, tuple[int, int]] = {}
        self._errors: list[int] = []
        self._lost: int | None = None
        self._ended: int | None = None
        self._chunked = self._doubtful = False
        self._lossy_here: bool | None = None

    def export_part(self) -> Part:
        """Return what this state leaves to the joining process."""
        producers, consumers = self._unknown_producers, self._unknown_consumers
        tables = producers, consumers, self.sent, self._deferred, self._left, self._taken, self._freed
        max_size = max(len(table) for table in tables)
        return Part(
            producers,
            consumers,
            [
                Deferred(
                    *(frame.raw, frame.to_broker, frame.offset, frame.time_ns, frame.start_ns, frame.packet),
                    *(frame.reported, frame.topic, frame.subscription),
                )
                for frame in self._deferred
            ],
            [producer for producer in self._producers if self._is_known(producer)],
            self._reopened,
            list(self._taken),
            list(self._freed),
            self._left,
            self._maybe_resent,
            self.sent,
            self._asked_here,
            self._errors,
            self._lost,
            self._ended,
            self._chunked,
            self._doubtful or max_size > MAX_PENDING,
        )

    def snapshot(self) -> Known:
        """Return what the state knows, but no stand-ins. It knows nothing from deferred frames."""
        producers = {owner: topic for owner, topic in self._producers.items() if self._is_known(owner)}
        unknown = self._unknown_consumers
        consumers = {owner: names for owner, names in self._consumers.items() if names != unknown.get(owner)}
        return super().snapshot()._replace(producers=producers, consumers=consumers, lossy=self._lossy_here)

    def end(self) -> None:
        """End the connection. Pending sends are kept for the joining process."""
        if self._ended is None:  # late packets can end it again
            self._ended = self._knowledge.turn()
            count = self._knowledge.frames
            self._maybe_resent += [(name, sequence, count) for name, sequence in self.list_pending()]

    def _defer(self, frame: Frame) -> None:
        if len(self._deferred) <= MAX_PENDING:
            self._deferred.append(frame)
        frame.number = 0

    def _lose(self) -> None:
        super()._lose()
        self._lost, self._lossy_here = self._knowledge.frames, True

    # -- topics and subscriptions

    def _is_known(self, producer: int) -> bool:
        """Return whether a producer was opened in this part."""
        topic = self._producers.get(producer)
        return topic is not None and topic != self._unknown_producers.get(producer)

    def _topic_of(self, producer: int) -> str | None:
        """Return the topic of a producer, or a stand-in for it."""
        if producer not in self._producers and len(self._unknown_producers) <= MAX_PENDING:
            topic = self._unknown_producers.setdefault(producer, f"{self._prefix}p{producer}")
            self._producers[producer] = topic
        return super()._topic_of(producer)

    def _name(self, frame: Frame, consumer: int) -> None:
        """Set a frame's topic and subscription to those of a consumer, or to stand-ins."""
        if consumer not in self._consumers and len(self._unknown_consumers) <= MAX_PENDING:
            names = f"{self._prefix}t{consumer}", f"{self._prefix}s{consumer}"
            self._consumers[consumer] = self._unknown_consumers.setdefault(consumer, names)
        super()._name(frame, consumer)

    # -- SENDs

    def _send(self, frame: Frame) -> None:
        super()._send(frame)
        sequence, name = frame.ids.sequence, frame.producer or ""
        low, high, _ = self.sent.get(name, (sequence, sequence, 0))
        if len(self.sent) <= MAX_PENDING:
            self.sent[name] = min(low, sequence), max(high, sequence), frame.number

    def _receipt(self, frame: Frame) -> None:
        self._ensure_ledger(frame.ids.owner)
        super()._receipt(frame)

    def _send_error(self, frame: Frame) -> None:
        self._ensure_ledger(frame.base.send_error.producer_id)  # type: ignore[union-attr]
        super()._send_error(frame)

    def _ensure_ledger(self, producer: int) -> None:
        if producer not in self.producers:
            self._ledger(producer)

    def _answer_send(self, frame: Frame, ledger: ProducerLedger, sequence: int) -> Sent | None:
        send = super()._answer_send(frame, ledger, sequence)
        if send is None and not self._is_known(getattr(frame.base, BODIES[frame.type]).producer_id):
            self._defer(frame)
        elif send is None and ledger.is_closed:
            self._doubtful = True  # the producer is being reopened
        return send

    def _give_up(self, ledger: ProducerLedger) -> None:
        count = self._knowledge.frames
        if len(self._left) <= MAX_PENDING:
            for identity, send in self._list_unanswered(ledger):
                self._left.append((identity, send.number, send.time_ns, send.is_sure, self._knowledge.turn()))
                self._maybe_resent.append((identity[1], identity[2], count))
        self._pending -= ledger.waiting

    def _entry(self, frame: Frame, head: Head, owner: int) -> None:
        if head.chunks > 1 and not frame.partial:
            self._chunked = True
            metadata = frame.metadata
            assert metadata is not None
            if head.chunk and not self._knowledge.chunks.has_begun(frame, metadata, owner):
                self._doubtful = True
        super()._entry(frame, head, owner)

    # -- requests and answers

    def _take(self, owner: Owner, number: int) -> bool:
        if self._lost is None and owner not in self._freed and len(self._taken) <= MAX_PENDING:
            self._taken.setdefault(owner)
        return super()._take(owner, number)

    def _free(self, owner: Owner) -> None:
        super()._free(owner)
        if len(self._freed) <= MAX_PENDING:
            self._freed.setdefault(owner)

    def _remember_request(self, key: tuple[str, int], request: Request, body: Any) -> None:
        super()._remember_request(key, request, body)
        family, number = key
        low, high = self._asked_here.get(family, (number, number))
        self._asked_here[family] = min(low, number), max(high, number)

    def _answer(self, frame: Frame) -> None:
        body: Any = frame.body
        families = ANSWERS[frame.type]
        is_known = body is None or any(
            (family, getattr(body, name)) in self._pending_requests for family, name in families
        )
        super()._answer(frame)
        if not is_known:
            self._defer(frame)
        elif frame.request_type is not None and REQUESTS[frame.request_type].family != families[0][0]:
            # an ERROR for a lookup; if an earlier request that is no lookup has this id, it is for that one
            self._errors.append(body.request_id)
            self._doubtful |= len(self._errors) > MAX_PENDING

    def _record_opened(self, producer: int, name: str) -> None:
        ledger = self.producers.get(producer)
        if ledger is not None and ledger.is_closed:
            self._reopened.setdefault(producer, self._knowledge.turn())
        super()._record_opened(producer, name)

    # -- the connection itself

    def _connect(self, frame: Frame) -> None:
        if frame.type == CONNECT:
            self._lossy = self._lossy_here = False
        self._defer(frame)

    def _connected(self, frame: Frame) -> None:
        if frame.type == CONNECTED:
            self.apply_limit(frame)
        self._defer(frame)

    def _ping(self, frame: Frame) -> None:
        self._defer(frame)

    def _pong(self, frame: Frame) -> None:
        self._defer(frame)
