"""The state of a consumer: permits, deliveries, acknowledgements and redeliveries. Pure.

    SUBSCRIBE, FLOW -> MESSAGE -> `Delivery` -> ack | nack -> ACK | REDELIVER_UNACKNOWLEDGED_MESSAGES

Permits go back to the broker, half a queue at a time, once deliveries are taken; so a slow reader slows the
broker. The larger messages are, the fewer permits are given, so that they fit into the inbox. A message that
does not fit is dropped unacknowledged, and asked for again later. One that comes again after it was
acknowledged is acknowledged again and not shown. A corrupt entry is counted and acknowledged with its
validation_error, as in Pulsar's clients. An entry too large to be opened is counted and never acknowledged.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple

from pulsarctl_wire.net.outbox import Now, Outbox, Warned
from pulsarctl_wire.net.session.acks import AckRequest, Acks, GivenUp, Position, id_data
from pulsarctl_wire.net.session.inbox import ROOM, Delivery, Inbox, R
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.frame import Frame, build_frame
from pulsarctl_wire.wire.payload import MAX_MESSAGES, Message, open_entry
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, CommandAck, CommandSubscribe, Schema
from pulsarctl_wire.wire.session.counts import MAX_PERMITS, permits_used

REMEMBERED: Final = 65_536
"""Maximum acknowledged entries remembered, to detect duplicates; maximum entries waiting for redelivery."""

PARTLY: Final = 8_192
"""Maximum number of partly acknowledged batches that are remembered."""

_EXPECTED: Final = ROOM // 1000  # assumed bytes of a message before the first one is received
_REST: Final = 1 << MAX_MESSAGES  # the bit in `left` for the messages of a batch that are not opened
_SHORTEST_PAUSE: Final = 10_000_000  # minimum ns between two checks for entries to be redelivered

EARLIEST: Final[Position] = (-1, -1, -1)
LATEST: Final[Position] = (2**63 - 1, 2**63 - 1, -1)


@dataclass(frozen=True)
class ConsumerOptions:
    """How to subscribe. Times in seconds.

    `start` is where a subscription that is not durable begins, `inclusive` whether that message is included;
    `rollback` makes it begin so many seconds ago instead. `queue_size` counts messages. `payload_ratio` is
    the `ratio` of the `Budget` that limits how much is decompressed.
    """

    subscription: str
    type: int = CommandSubscribe.Exclusive
    name: str | None = None
    durable: bool = True
    initial: int = CommandSubscribe.Latest
    queue_size: int = 1000
    start: Position | None = None
    inclusive: bool = True
    rollback: int = 0
    schema: Schema | None = None
    priority: int | None = None
    read_compacted: bool = False
    replicated: bool = False
    create_topic: bool = True
    properties: Sequence[tuple[str, str]] = ()
    batch_index_ack: bool = False
    nack_delay: float = 60.0
    ack_timeout: float = 0.0
    payload_ratio: int | None = None

    @property
    def is_shared(self) -> bool:
        """Whether messages are acknowledged and redelivered one by one."""
        return self.type in (CommandSubscribe.Shared, CommandSubscribe.Key_Shared)


class Changed(NamedTuple):
    """There is a new delivery, or the broker has changed the state of the consumer."""


class ReceiveQueue(Outbox[Warned | Changed | AckRequest | GivenUp], Generic[R]):
    """The state of consumer `consumer_id` of `topic`; deliveries for `consumer` go to `inbox`.

    Attributes: `generation` is raised whenever the broker redelivers everything, `active` is what the broker
    told a Failover consumer, `ended` whether the topic was terminated and all of it acknowledged, `halted`
    whether messages are dropped, `counts` of entries "corrupt", "duplicate", "unopened" or "dropped".
    """

    def __init__(
        self, consumer: R, topic: str, consumer_id: int, options: ConsumerOptions, inbox: Inbox[R]
    ) -> None:
        super().__init__()
        self.generation = 0
        self.active: bool | None = None
        self.ended = self.halted = False
        self.counts: Counter[str] = Counter()
        self.acks = Acks(topic, lambda event: self._events.append(event))
        self._consumer = consumer
        self._topic = topic
        self._id = consumer_id
        self._options = options
        self._inbox = inbox
        self._stored = not topic.startswith("non-persistent:")  # else every message has the id 0:0
        self._start: Position | None = None
        self._inclusive = True
        self._balance = 0  # permits that the broker has
        self._held = 0  # permits of deliveries that wait to be taken
        self._typical = 0  # bytes of a message (0: unknown): rises at once, and falls slowly
        self._unopened: tuple[int, int] | None = None  # id of the first unopened entry
        self._epoch = 0
        self._acked: OrderedDict[tuple[int, int], None] = OrderedDict()
        self._partly: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._nacked: list[tuple[float, tuple[int, int]]] = []
        self._outstanding: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._check_at: int | None = None  # when to check for entries to be redelivered
        self._last: Position | None = None
        self._opened = False

    # -- opening

    def command(self) -> BaseCommand:
        """SUBSCRIBE, for the first time or again: the broker redelivers everything unacknowledged."""
        options = self._options
        self.acks.ready = False
        start = None if options.durable or not self._stored else self._last or options.start
        self._start, self._inclusive = start, self._last is None and options.inclusive
        rollback = options.rollback if self._last is None and not self._opened else 0
        command = build_command(
            "SUBSCRIBE",
            topic=self._topic,
            subscription=options.subscription,
            subType=options.type,
            consumer_id=self._id,
            consumer_name=options.name,
            durable=options.durable,
            start_message_id=None if start is None else id_data(start),
            initialPosition=options.initial,
            start_message_rollback_duration_sec=rollback or None,
            schema=options.schema,
            priority_level=options.priority,
            read_compacted=options.read_compacted or None,
            replicate_subscription_state=options.replicated or None,
            force_topic_creation=None if options.create_topic else False,
            metadata=[{"key": key, "value": value} for key, value in options.properties] or None,
            consumer_epoch=None if options.is_shared else self._epoch,
        )
        self._renew()
        return command

    def _renew(self) -> None:
        """The broker redelivers everything unacknowledged: waiting deliveries become invalid."""
        self.generation += 1
        self._held = 0
        self.halted = False
        self._unopened = None

    def registered(self, body: Any, largest: int) -> None:
        """SUBSCRIBE was answered; nothing in the answer is needed."""

    def opened(self, now: Now) -> None:
        """The consumer is subscribed: send permits and the kept acknowledgements."""
        self._opened = True
        self._balance = 0
        self.acks.opened()
        self._permit(1)
        if self._options.ack_timeout and self._check_at is None:
            self._check(now)

    def suspend(self) -> None:
        """The consumer is not subscribed for now: send nothing."""
        self.acks.ready = False
        self._out.clear()

    def _send(self, name: str, **fields: Any) -> None:
        self._out.append(build_frame(build_command(name, consumer_id=self._id, **fields)))

    def _warn(self, text: str, kind: str = "") -> None:
        self._events.append(Warned(text, kind))

    # -- permits

    def consumed(self, delivery: Delivery[R], now: Now) -> None:
        """A delivery is consumed: its permits go back to the broker."""
        if delivery.is_current:
            self._release(delivery)
            if self._options.ack_timeout and delivery.left and not delivery.refused:
                for each in delivery.ids:
                    self._outstanding[each] = now.ticks + int(self._options.ack_timeout * 1e9)
                if len(self._outstanding) > REMEMBERED:
                    self._check(now)
        self._last = delivery.position(delivery.messages[-1]) if delivery.messages else self._last

    def _release(self, delivery: Delivery[R]) -> None:
        self._held -= delivery.size
        self._permit()

    def _permit(self, least: int = 0) -> None:
        """Send the permits there is room for if they are at least `least` (0: half a queue)."""
        size = min(self._options.queue_size, max(self._inbox.share // (self._typical or _EXPECTED), 1))
        permits = size - self._balance - self._held
        if permits >= (least or (size + 1) // 2) and not self.halted and self.acks.ready:
            permits = min(permits, MAX_PERMITS)
            self._balance += permits
            self._send("FLOW", messagePermits=permits)

    # -- frames received

    def received(self, frame: Frame, now: Now) -> None:
        """The broker has sent a frame about this consumer."""
        kind = frame.type
        if kind == BaseCommand.MESSAGE:
            self._message(frame, now)
        elif kind == BaseCommand.ACTIVE_CONSUMER_CHANGE:
            self.active = frame.body.is_active
            self._events.append(Changed())
        elif kind == BaseCommand.REACHED_END_OF_TOPIC:
            self.ended = True
            self._events.append(Changed())
        elif kind == BaseCommand.CLOSE_CONSUMER:
            # maybe because of a SEEK back: then acknowledged messages are to be delivered again
            self._acked.clear()
            self._partly.clear()
            self.acks.forget()

    def _message(self, frame: Frame, now: Now) -> None:
        body, size = frame.body, permits_used(frame)
        self._balance -= size
        self._inbox.budget.read(len(frame.raw))
        where = (body.message_id.ledgerId, body.message_id.entryId)
        metadata = frame.metadata
        if self.halted:
            self.counts["dropped"] += 1
        elif body.HasField("consumer_epoch") and body.consumer_epoch < self._epoch:
            self._permit()
        elif where in self._acked:
            self.counts["duplicate"] += 1
            self.acks.add([id_data((*where, -1))], now)
            self._permit()
        elif frame.checksum == "invalid" or metadata is None:
            self._corrupt([where], CommandAck.ChecksumMismatch)
        else:
            frame.topic, frame.subscription = self._topic, self._options.subscription
            ids = self._chunk(frame, where) if metadata.num_chunks_from_msg > 1 else [where]
            if ids:
                self._keep(Delivery(self._consumer, frame, ids, size))

    def _keep(self, delivery: Delivery[R]) -> None:
        """Add a delivery to the inbox; if there is no room, drop it and halt."""
        self._typical = max(delivery.weight // max(delivery.size, 1), self._typical - self._typical // 64)
        if self._inbox.put(delivery):
            self._held += delivery.size
            self._events.append(Changed())
            return
        self.halted = True
        self.counts["dropped"] += 1
        beyond = f", {-self._balance} messages more than were asked for" if self._balance < 0 else ""
        self._warn(
            f"{self._topic}: {self._inbox.bytes} bytes of messages wait{beyond}: new ones are dropped "
            "unacknowledged, and asked for again when the waiting ones are taken",
            "messages dropped",
        )

    def _chunk(self, frame: Frame, where: tuple[int, int]) -> list[tuple[int, int]]:
        """Keep a chunk; after a message's last chunk return the ids of all its chunks, else no ids."""
        metadata = frame.metadata
        assert metadata is not None
        ids = self._inbox.chunks.add(frame, metadata, self._id << 32 | self.generation, where)
        self._note_all(where, frame.notes)
        if not ids:
            self._permit()
        return ids

    # -- opening entries

    def open_entry(self, delivery: Delivery[R]) -> bool:
        """Open the entry of a delivery; False if it has no message to be consumed."""
        where, metadata, budget = delivery.id, delivery.metadata, self._inbox.budget
        refused = budget.unopened
        entry = open_entry(delivery.frame, budget)
        refused = budget.unopened - refused
        if not entry.messages or any(message.payload is None for message in entry.messages):
            self._held -= delivery.size
            text = "; ".join(entry.notes)
            if entry.corrupt or not (entry.messages or refused):
                compressed = metadata.compression and not metadata.encryption_keys
                why = CommandAck.DecompressionError if compressed else CommandAck.BatchDeSerializeError
                self._corrupt(delivery.ids, why, text)
            else:
                self.skip(delivery, text)
                self._permit()
            return False
        if refused:
            self.skip(delivery, "; ".join(entry.notes))
        else:
            self._note_all(where, entry.notes)
        messages = self._wanted(where, [message for message in entry.messages if not message.skipped])
        if not messages:
            self._release(delivery)
            return False
        delivery.messages = messages
        whole = len(messages) == len(entry.messages)
        delivery.left = (1 << len(messages)) - 1 if whole else sum(1 << (it.index or 0) for it in messages)
        if refused or len(entry.messages) == MAX_MESSAGES < metadata.num_messages_in_batch:
            delivery.left |= _REST
            self._unopened = self._unopened or where
        return True

    def _wanted(self, where: tuple[int, int], messages: list[Message]) -> list[Message]:
        """Those that are not acknowledged, and not before a reader's start: brokers send whole entries."""
        left = self._partly.get(where)
        if left is not None:
            messages = [message for message in messages if left >> (message.index or 0) & 1]
        start = self._start
        if self._options.durable or start is None or start[0] < 0 or start == LATEST:
            return messages
        kept = []
        for message in messages:
            at = (*where, -1 if message.index is None or start[2] < 0 else message.index)
            if at > start or (self._inclusive and at == start):
                kept.append(message)
        return kept

    def skip(self, delivery: Delivery[R], why: str) -> None:
        """Warn about and count an entry that was not opened or shown completely. It is never acknowledged."""
        self.counts["unopened"] += 1
        self._unopened = self._unopened or delivery.id
        self.note(delivery.id, f"left unopened and unacknowledged: {why}", "entries left unopened")

    def _note_all(self, where: tuple[int, int], notes: Sequence[str]) -> None:
        for note in notes:
            self.note(where, note)

    def note(self, where: tuple[int, int], text: str, kind: str = "notes on entries") -> None:
        """Warn about the entry with this id."""
        self._warn(f"{self._topic} {where[0]}:{where[1]}: {text}", kind)

    def _corrupt(self, ids: list[tuple[int, int]], why: int, text: str = "") -> None:
        name = CommandAck.ValidationError.Name(why)  # type: ignore[arg-type]
        self.counts["corrupt"] += 1
        more = f" ({text})" if text else ""
        self.note(ids[-1], f"corrupt, acknowledged with validation_error {name}{more}", "corrupt entries")
        self._remember(ids)
        if self.acks.ready:
            wanted = [id_data((*each, -1)) for each in ids]
            self._send("ACK", ack_type=CommandAck.Individual, message_id=wanted, validation_error=why)
        self._permit()

    # -- acknowledging

    def ack(self, delivery: Delivery[R], message: Message | None, now: Now) -> None:
        """Acknowledge one message of a delivery, or the whole delivery."""
        done = _REST - 1 if message is None else 1 << (message.index or 0)
        delivery.left &= ~done
        if delivery.left and not self._stored:
            return
        if delivery.left:
            self._partly[delivery.id] = delivery.left
            if len(self._partly) > PARTLY:
                self._partly.popitem(last=False)
            if self._options.batch_index_ack and delivery.left < _REST:
                size = delivery.metadata.num_messages_in_batch
                self.acks.add([id_data((*delivery.id, -1), delivery.left, size)], now)
            return
        self._partly.pop(delivery.id, None)
        self._remember(delivery.ids)
        self.acks.add([id_data((*each, -1)) for each in delivery.ids], now)

    def ack_cumulatively(self, delivery: Delivery[R], message: Message) -> None:
        """Acknowledge everything up to and including `message`, unless there is an unopened entry before it.

        For Exclusive and Failover only.
        """
        if self._unopened is not None and self._unopened < delivery.id:
            return
        index = message.index or 0
        left = delivery.left & ~((1 << index + 1) - 1)
        delivery.left = left
        size = delivery.metadata.num_messages_in_batch
        if left and (left >= _REST or not self._options.batch_index_ack):
            return  # the broker would acknowledge only up to the previous entry
        self.acks.send([id_data((*delivery.id, -1), left, size)], CommandAck.Cumulative)
        if not left:
            self._remember(delivery.ids)

    def _remember(self, ids: list[tuple[int, int]]) -> None:
        for each in ids:
            if self._stored:
                self._acked[each] = None
            self._outstanding.pop(each, None)
        while len(self._acked) > REMEMBERED:
            self._acked.popitem(last=False)

    # -- redelivery

    def nack(self, delivery: Delivery[R], now: Now) -> None:
        """Ask for a delivery to be redelivered after `nack_delay`."""
        delivery.refused = True
        when = now.ticks + int(self._options.nack_delay * 1e9)
        for each in delivery.ids:
            self._outstanding.pop(each, None)
            self._nacked.append((when, each))
        if self._check_at is None or len(self._nacked) > REMEMBERED:
            self._check(now)

    @property
    def wake_at(self) -> int | None:
        """When `wake` must be called (ticks in ns), or None."""
        check, acks = self._check_at, self.acks.wake_at
        return acks if check is None else check if acks is None else min(check, acks)

    def wake(self, now: Now) -> None:
        """Send the acknowledgements that are due, and ask for the redeliveries that are due."""
        if self.acks.wake_at is not None and self.acks.wake_at <= now.ticks:
            self.acks.send_waiting()
        if self._check_at is not None and self._check_at <= now.ticks:
            self._check(now)

    def _check(self, now: Now) -> None:
        """Ask for redelivery of entries refused, or not acknowledged in time; of all if too many wait."""
        by: float = now.ticks
        if max(len(self._nacked), len(self._outstanding)) > REMEMBERED:
            by = math.inf
            self._warn(f"{self._topic}: more than {REMEMBERED} messages wait for redelivery: asking now")
        due = [where for when, where in self._nacked if when <= by]
        self._nacked = [each for each in self._nacked if each[0] > by]
        for where, when in list(self._outstanding.items()):
            if when > by:
                break
            del self._outstanding[where]
            due.append(where)
        if due:
            self._redeliver(due)
        waits = [when for when, _ in self._nacked[:1]] + list(self._outstanding.values())[:1]
        if self._options.ack_timeout:
            waits.append(now.ticks + int(self._options.ack_timeout * 1e9 / 4))
        self._check_at = max(int(min(waits)), now.ticks + _SHORTEST_PAUSE) if waits else None

    def _redeliver(self, ids: list[tuple[int, int]]) -> None:
        """Ask for these entries again; Exclusive and Failover get everything that is not acknowledged."""
        if not self.acks.ready:
            return  # the broker redelivers them anyway once the consumer is subscribed again
        self.acks.send_waiting()
        if self._options.is_shared:
            wanted = [id_data((*each, -1)) for each in dict.fromkeys(ids)]
            self._send("REDELIVER_UNACKNOWLEDGED_MESSAGES", message_ids=wanted)
        else:
            self._epoch += 1
            self._renew()
            self._send("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_epoch=self._epoch)
            self._permit(1)
