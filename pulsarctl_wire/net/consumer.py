"""Consuming: one consumer of one topic or partition, its permits and its acknowledgements.

    SUBSCRIBE, FLOW -> MESSAGE -> `Delivery` -> ack | nack -> ACK (with a request id, so that it is confirmed)

Permits are given back when a delivery is taken by whoever consumes, half a queue at a time; so a slow reader
slows the broker. Large messages get fewer, so that they fit into the inbox; what comes although there is no
room is let go unacknowledged, and comes again when there is. What comes again although it was acknowledged
is acknowledged again and not shown. What is corrupt is acknowledged with its validation_error and counted, as
Pulsar's clients do. What is not opened, for its size or for lack of memory, is counted and not acknowledged.
"""

import asyncio
import math
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pulsarctl_wire.errors import LinkClosed
from pulsarctl_wire.net.acks import Acks, Position, id_data
from pulsarctl_wire.net.client import FIRST_PAUSE, Client
from pulsarctl_wire.net.inbox import ROOM, Delivery, Inbox, permits_of
from pulsarctl_wire.net.link import Link
from pulsarctl_wire.net.resident import Resident
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.frame import Frame, build_frame
from pulsarctl_wire.wire.names import partition_index
from pulsarctl_wire.wire.payload import MAX_MESSAGES, Budget, Message, open_entry
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, CommandAck, CommandSubscribe, Schema

REMEMBERED: Final = 65_536
"""Acknowledged entries that are known again when they are delivered once more; refused ones that wait."""

PARTLY: Final = 8_192
"""Batches of which some messages are acknowledged that are known again."""

_EXPECTED: Final = ROOM // 1000  # bytes of a message, before the first has come
_REST: Final = 1 << MAX_MESSAGES  # stands for the messages of a batch that are not opened

EARLIEST: Final[Position] = (-1, -1, -1)
LATEST: Final[Position] = (2**63 - 1, 2**63 - 1, -1)


@dataclass(frozen=True)
class ConsumerOptions:
    """How to subscribe. Times in seconds.

    `start` is where a subscription that is not durable begins, `inclusive` whether with that very message;
    `rollback` seconds back in time from now, instead. `queue_size` counts messages. `payload_ratio` is the
    `ratio` of the `Budget` that bounds what is opened.
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


def reader_name() -> str:
    """A name for a subscription that nobody else has, and that nobody keeps."""
    return f"reader-{secrets.token_hex(5)}"


class Consumer(Resident):
    """Consumes one topic that is not partitioned, or one partition. Deliveries go to `inbox`.

    `changed` is called when one came, or an attribute has changed. Attributes beside those of Resident:
    `generation` counts how often it was opened, `active` is what a Failover consumer was told, `ended` is
    whether the topic was terminated and all of it acknowledged, `counts` are of entries that were "corrupt",
    "duplicate", "unopened" or "let go".
    """

    KIND = "consumer"

    def __init__(
        self,
        client: Client,
        topic: str,
        options: ConsumerOptions,
        inbox: Inbox,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(client, topic)
        self.options = options
        self.generation = 0
        self.active: bool | None = None
        self.ended = False
        self.counts: Counter[str] = Counter()
        self.partition = partition_index(topic)
        self._inbox = inbox
        self._changed = changed
        self._stored = not topic.startswith("non-persistent:")  # else every message is 0:0
        self._start: Position | None = None
        self._inclusive = True
        self._balance = 0  # permits that the broker has
        self._held = 0  # permits of what waits to be taken
        self._typical = 0  # bytes of a message, once there was one; large ones rather than small ones
        self._halted = False  # what comes is let go
        self._unopened: tuple[int, int] | None = None  # the first one
        self._epoch = 0
        self._acks = Acks(
            lambda ids, kind: self.ask("ACK", ack_type=kind, message_id=ids),
            lambda text: client.warn(f"{topic}: {text}"),
        )
        self._acked: OrderedDict[tuple[int, int], None] = OrderedDict()
        self._partly: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._nacked: list[tuple[float, tuple[int, int]]] = []
        self._outstanding: OrderedDict[tuple[int, int], float] = OrderedDict()
        self._clock: asyncio.TimerHandle | None = None
        self._last: Position | None = None

    @property
    def budget(self) -> Budget:
        """What bounds how much is opened and shown."""
        return self._inbox.budget

    # -- opening

    async def _register(self, link: Link) -> None:
        options = self.options
        self._acks.lost()
        start = None if options.durable or not self._stored else self._last or options.start
        self._start, self._inclusive = start, self._last is None and options.inclusive
        rollback = options.rollback if self._last is None and not self._opened else 0
        command = build_command(
            "SUBSCRIBE",
            topic=self.topic,
            subscription=options.subscription,
            subType=options.type,
            consumer_id=self.id,
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
        await link.request(command)

    def _renew(self) -> None:
        """All that is not acknowledged comes again: what waits is void."""
        self.generation += 1
        self._held = 0
        self._halted = False
        self._unopened = None

    def _settled(self) -> None:
        self._balance = 0
        self._permit(1)
        self._acks.opened()
        if self.options.ack_timeout and self._clock is None:
            self._check()

    async def ask(self, name: str, **fields: Any) -> Any:
        """Send a request about this consumer ("SEEK", "UNSUBSCRIBE", …); give its answer's body."""
        if self.error is not None:
            raise self.error
        assert self.link is not None
        return (await self.link.request(build_command(name, consumer_id=self.id, **fields))).body

    async def close(self) -> None:
        """Send what acknowledgements wait, and close."""
        self._closing = True
        self._acks.stop()
        if self._clock is not None:
            self._clock.cancel()
        if self._reopening is not None:
            self._reopening.cancel()
        elif self.link is not None and self.link.is_open and self.error is None:
            await self.flush_acks()
            await self._leave()
        if self._acks.open:
            self._client.warn(f"{self.topic}: {self._acks.open} acknowledgements are not confirmed")

    # -- permits

    def taken(self, delivery: Delivery) -> None:
        """Say that a delivery is consumed: its permits are given back."""
        if delivery.is_current:
            self._release(delivery)
            if self.options.ack_timeout and delivery.left and not delivery.refused:
                for each in delivery.ids:
                    self._outstanding[each] = time.monotonic() + self.options.ack_timeout
                if len(self._outstanding) > REMEMBERED:
                    self._check()
        self._last = delivery.position(delivery.messages[-1]) if delivery.messages else self._last

    def _release(self, delivery: Delivery) -> None:
        self._held -= delivery.size
        self._permit()

    def _permit(self, least: int = 0) -> None:
        """Give the broker the permits there is room for, if they are `least` or more: else half a queue."""
        size = min(self.options.queue_size, max(self._inbox.share // (self._typical or _EXPECTED), 1))
        permits = size - self._balance - self._held
        if permits >= (least or (size + 1) // 2) and not self._halted:
            self._flow(min(permits, 2**31 - 1))

    def _flow(self, permits: int) -> None:
        if self.link is not None and self.link.is_open:
            self._balance += permits
            self.link.send(build_frame(build_command("FLOW", consumer_id=self.id, messagePermits=permits)))

    # -- what comes in

    def received(self, frame: Frame) -> None:
        """A frame about this consumer."""
        kind = frame.type
        if kind == BaseCommand.MESSAGE:
            self._message(frame)
        elif kind == BaseCommand.ACTIVE_CONSUMER_CHANGE:
            self.active = frame.body.is_active
            self._changed()
        elif kind == BaseCommand.REACHED_END_OF_TOPIC:
            self.ended = True
            self._changed()
        else:
            if kind == BaseCommand.CLOSE_CONSUMER:
                # somebody may have sought back: then what was acknowledged is to come again
                self._acked.clear()
                self._partly.clear()
                self._acks.forget()
            super().received(frame)

    def _message(self, frame: Frame) -> None:
        body, size = frame.body, permits_of(frame)
        self._balance -= size
        self.budget.read(len(frame.raw))
        self._pause = FIRST_PAUSE
        where = (body.message_id.ledgerId, body.message_id.entryId)
        metadata = frame.metadata
        if self._halted:
            self.counts["let go"] += 1
        elif body.HasField("consumer_epoch") and body.consumer_epoch < self._epoch:
            self._permit()
        elif where in self._acked:
            self.counts["duplicate"] += 1
            self._acks.add([id_data((*where, -1))])
            self._permit()
        elif frame.checksum == "invalid" or metadata is None:
            self._corrupt([where], CommandAck.ChecksumMismatch)
        else:
            frame.topic, frame.subscription = self.topic, self.options.subscription
            ids = self._chunk(frame, where) if metadata.num_chunks_from_msg > 1 else [where]
            if ids:
                self._keep(Delivery(self, frame, ids, size))

    def _keep(self, delivery: Delivery) -> None:
        """Put a delivery where it waits to be taken; where there is no room, let it go."""
        self._typical = max(delivery.weight // delivery.size, self._typical - self._typical // 64)
        if self._inbox.put(delivery):
            self._held += delivery.size
            self._changed()
            return
        self._halted = True
        self.counts["let go"] += 1
        beyond = f", {-self._balance} of them more than were asked for" if self._balance < 0 else ""
        self._client.warn(
            f"{self.topic}: {self._inbox.bytes} bytes of messages wait{beyond}: what comes now is let go, "
            "unacknowledged; it is asked for again when they are taken",
            "messages let go",
        )

    def resume(self) -> None:
        """Ask again for what was let go: the consumer is closed and opened again, for all kinds alike."""
        if self._halted and self._reopening is None and self.link is not None and self.link.is_open:
            self._acks.send_waiting()
            self.link.send(build_frame(self._close_command(request_id=self.link.next_id())))
            self.ended = False
            self.lost(LinkClosed("messages were let go, as too many waited"))

    def opens(self, delivery: Delivery) -> bool:
        """Open the entry of a delivery that is to be taken; False if nothing of it is to be consumed."""
        where, metadata = delivery.id, delivery.frame.metadata
        assert metadata is not None  # else it would not wait
        refused = self.budget.unopened
        entry = open_entry(delivery.frame, self.budget)
        refused = self.budget.unopened - refused
        if not entry.messages or any(message.payload is None for message in entry.messages):
            self._held -= delivery.size
            text = "; ".join(entry.notes)
            if entry.corrupt or not (entry.messages or refused):
                compressed = metadata.compression and not metadata.encryption_keys
                why = CommandAck.DecompressionError if compressed else CommandAck.BatchDeSerializeError
                self._corrupt(delivery.ids, why, text)
            else:
                self.leave(delivery, text)
                self._permit()
            return False
        if refused:
            self.leave(delivery, "; ".join(entry.notes))
        else:
            self._note_all(where, entry.notes)
        messages = [message for message in entry.messages if not message.skipped]
        left = self._partly.get(where)
        if left is not None:
            messages = [message for message in messages if left >> (message.index or 0) & 1]
        if not self.options.durable:
            messages = self._from_start(where, messages)
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

    def leave(self, delivery: Delivery, why: str) -> None:
        """Say and count that an entry could not be opened or shown to its end. It is never acknowledged."""
        self.counts["unopened"] += 1
        self._unopened = self._unopened or delivery.id
        self.note(delivery.id, f"left unopened and unacknowledged: {why}", "entries left unopened")

    def _note_all(self, where: tuple[int, int], notes: Sequence[str]) -> None:
        for note in notes:
            self.note(where, note)

    def note(self, where: tuple[int, int], text: str, kind: str = "notes on entries") -> None:
        """Warn of something about the entry with this id."""
        self._client.warn(f"{self.topic} {where[0]}:{where[1]}: {text}", kind)

    def _from_start(self, where: tuple[int, int], messages: list[Message]) -> list[Message]:
        """What is not before the place where a reader begins, or goes on: the broker sends whole entries."""
        start, inclusive = self._start, self._inclusive
        if start is None or start[0] < 0 or start == LATEST:
            return messages
        kept = []
        for message in messages:
            at = (*where, -1 if message.index is None or start[2] < 0 else message.index)
            if at > start or (inclusive and at == start):
                kept.append(message)
        return kept

    def _chunk(self, frame: Frame, where: tuple[int, int]) -> list[tuple[int, int]]:
        """Keep a chunk; with the last one of a message give the ids of all its chunks."""
        metadata = frame.metadata
        assert metadata is not None
        ids = self._inbox.chunks.add(frame, metadata, self.id << 32 | self.generation, where)
        self._note_all(where, frame.notes)
        if not ids:
            self._permit()
        return ids

    def _corrupt(self, ids: list[tuple[int, int]], why: int, text: str = "") -> None:
        name = CommandAck.ValidationError.Name(why)  # type: ignore[arg-type]
        self.counts["corrupt"] += 1
        more = f" ({text})" if text else ""
        self.note(ids[-1], f"corrupt, acknowledged with validation_error {name}{more}", "corrupt entries")
        self._remember(ids)
        command = build_command(
            "ACK",
            consumer_id=self.id,
            ack_type=CommandAck.Individual,
            message_id=[id_data((*each, -1)) for each in ids],
            validation_error=why,
        )
        if self.link is not None and self.link.is_open:
            self.link.send(build_frame(command))
        self._permit()

    # -- acknowledging

    def ack(self, delivery: Delivery, message: Message | None = None) -> None:
        """Acknowledge one message of a delivery, or all of it."""
        done = _REST - 1 if message is None else 1 << (message.index or 0)
        delivery.left &= ~done
        if delivery.left and not self._stored:
            return
        if delivery.left:
            self._partly[delivery.id] = delivery.left
            if len(self._partly) > PARTLY:
                self._partly.popitem(last=False)
            if self.options.batch_index_ack and delivery.left < _REST:
                size = delivery.frame.metadata.num_messages_in_batch if delivery.frame.metadata else 0
                self._acks.add([id_data((*delivery.id, -1), delivery.left, size)])
            return
        self._partly.pop(delivery.id, None)
        self._remember(delivery.ids)
        self._acks.add([id_data((*each, -1)) for each in delivery.ids])

    def ack_cumulatively(self, delivery: Delivery, message: Message) -> None:
        """Acknowledge everything up to and with `message`, unless something unopened is before it.

        Exclusive and Failover only.
        """
        if self._unopened is not None and self._unopened < delivery.id:
            return
        index = message.index or 0
        left = delivery.left & ~((1 << index + 1) - 1)
        delivery.left = left
        size = delivery.frame.metadata.num_messages_in_batch if delivery.frame.metadata else 0
        if left and (left >= _REST or not self.options.batch_index_ack):
            return  # the broker would take it for the entry before
        self._acks.send([id_data((*delivery.id, -1), left, size)], CommandAck.Cumulative)
        if not left:
            self._remember(delivery.ids)

    def _remember(self, ids: list[tuple[int, int]]) -> None:
        for each in ids:
            if self._stored:
                self._acked[each] = None
            self._outstanding.pop(each, None)
        while len(self._acked) > REMEMBERED:
            self._acked.popitem(last=False)

    async def flush_acks(self) -> None:
        """Send what acknowledgements wait, and wait until they are confirmed."""
        if self._reopening is not None:
            await asyncio.wait([self._reopening])
        await self._acks.flush()

    # -- asking for messages again

    def nack(self, delivery: Delivery) -> None:
        """Refuse a delivery: it is to come again after `nack_delay`."""
        delivery.refused = True
        when = time.monotonic() + self.options.nack_delay
        for each in delivery.ids:
            self._outstanding.pop(each, None)
            self._nacked.append((when, each))
        if self._clock is None or len(self._nacked) > REMEMBERED:
            self._check()

    def _check(self) -> None:
        """Ask again for what was refused, or not acknowledged in time; for all of it if that is too much."""
        now = time.monotonic()
        by = now
        if max(len(self._nacked), len(self._outstanding)) > REMEMBERED:
            by = math.inf
            self._client.warn(
                f"{self.topic}: more than {REMEMBERED} messages wait to be asked for again: now"
            )
        due = [where for when, where in self._nacked if when <= by]
        self._nacked = [each for each in self._nacked if each[0] > by]
        for where, when in list(self._outstanding.items()):
            if when > by:
                break
            del self._outstanding[where]
            due.append(where)
        if due:
            self.redeliver(due)
        waits = [when for when, _ in self._nacked] + list(self._outstanding.values())[:1]
        if self.options.ack_timeout:
            waits.append(now + self.options.ack_timeout / 4)
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None
        if waits and not self._closing:
            pause = max(min(waits) - now, 0.01)
            self._clock = asyncio.get_running_loop().call_later(pause, self._check)

    def redeliver(self, ids: list[tuple[int, int]]) -> None:
        """Ask for these entries again; Exclusive and Failover get all that is not acknowledged."""
        if self.link is None or not self.link.is_open or not self._acks.ready:
            return  # they come by themselves
        if self.options.is_shared:
            wanted = [id_data((*each, -1)) for each in dict.fromkeys(ids)]
            command = build_command(
                "REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=self.id, message_ids=wanted
            )
        else:
            self._epoch += 1
            self._renew()
            command = build_command(
                "REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=self.id, consumer_epoch=self._epoch
            )
        self._acks.send_waiting()
        self.link.send(build_frame(command))
        if not self.options.is_shared:
            self._permit(1)

    # -- losing the broker, and finding it again

    def lost(self, error: LinkClosed) -> None:
        """The link has ended, or the broker gave the consumer up."""
        self._acks.lost()
        super().lost(error)

    def sought(self) -> None:
        """Forget where we were: a SEEK was sent, after which the broker closes all consumers."""
        self._last = None
        self.ended = False
        self.options = replace(self.options, start=EARLIEST if self.options.start else None, rollback=0)

    def _ended(self) -> None:
        self._changed()
