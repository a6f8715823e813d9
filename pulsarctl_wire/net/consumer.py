"""Consuming: one consumer of one topic or partition, its permits and its acknowledgements.

    SUBSCRIBE, FLOW -> MESSAGE -> `Delivery` -> ack | nack -> ACK (with a request id, so that it is confirmed)

Permits are given back when a delivery is taken by whoever consumes, half a queue at a time; so a slow reader
slows the broker. What comes again although it was acknowledged is acknowledged again and not shown. What is
corrupt is acknowledged with its validation_error and counted, as Pulsar's clients do.
"""

import asyncio
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pulsarctl_wire.errors import LinkClosed
from pulsarctl_wire.net.acks import Acks, Position, id_data
from pulsarctl_wire.net.client import FIRST_PAUSE, Client
from pulsarctl_wire.net.link import Link
from pulsarctl_wire.net.resident import Resident
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.frame import Frame, build_frame
from pulsarctl_wire.wire.names import partition_index
from pulsarctl_wire.wire.payload import MAX_MESSAGES, ChunkJoiner, Message, open_entry
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, CommandAck, CommandSubscribe, Schema

_MOST_BEYOND: Final = 2 * MAX_MESSAGES  # permits that a broker may overdraw: it never splits a batch
REMEMBERED: Final = 65_536
"""Acknowledged entries that are known again when they are delivered once more."""

EARLIEST: Final[Position] = (-1, -1, -1)
LATEST: Final[Position] = (2**63 - 1, 2**63 - 1, -1)


@dataclass(frozen=True)
class ConsumerOptions:
    """How to subscribe. Times in seconds.

    `start` is where a subscription that is not durable begins, `inclusive` whether with that very message;
    `rollback` seconds back in time from now, instead. `queue_size` counts messages.
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

    @property
    def is_shared(self) -> bool:
        """Whether messages are acknowledged and redelivered one by one."""
        return self.type in (CommandSubscribe.Shared, CommandSubscribe.Key_Shared)


def reader_name() -> str:
    """A name for a subscription that nobody else has, and that nobody keeps."""
    return f"reader-{secrets.token_hex(5)}"


class Delivery:
    """An entry that was delivered: its `frame` and the `messages` of it that are to be consumed.

    `id` is (ledger, entry), of a chunked message its last chunk's, all of whose ids are in `ids`.
    `left` has a bit for each message (by batch index) that is not acknowledged yet.
    """

    __slots__ = (
        "consumer",
        "frame",
        "generation",
        "id",
        "ids",
        "left",
        "messages",
        "redelivered",
        "refused",
        "size",
    )

    def __init__(
        self, consumer: "Consumer", frame: Frame, messages: list[Message], ids: list[tuple[int, int]]
    ) -> None:
        self.consumer = consumer
        self.frame = frame
        self.messages = messages
        self.ids = ids
        self.id = ids[-1]
        self.generation = consumer.generation
        self.redelivered: int = frame.body.redelivery_count
        self.size = _cost(frame)
        self.refused = False
        self.left = 0
        for message in messages:
            self.left |= 1 << (message.index or 0)

    @property
    def is_current(self) -> bool:
        """Whether its consumer was not opened again since: then it comes once more."""
        return self.generation == self.consumer.generation

    def position(self, message: Message) -> Position:
        """Where `message` of this entry is."""
        return (*self.id, -1 if message.index is None else message.index)


class Consumer(Resident):
    """Consumes one topic that is not partitioned, or one partition. `deliver` is given each delivery.

    Attributes beside those of Resident: `generation` counts how often it was opened, `active` is what a
    Failover consumer was told, `ended` whether the topic was terminated and all of it acknowledged, `counts`
    of "corrupt" and "duplicate" entries.
    """

    KIND = "consumer"

    def __init__(
        self,
        client: Client,
        topic: str,
        options: ConsumerOptions,
        deliver: Callable[[Delivery], None],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(client, topic)
        self.options = options
        self.generation = 0
        self.active: bool | None = None
        self.ended = False
        self.counts: Counter[str] = Counter()
        self.partition = partition_index(topic)
        self._deliver = deliver
        self._changed = changed
        self._stored = not topic.startswith("non-persistent:")  # else every message is 0:0
        self._start: Position | None = None
        self._inclusive = True
        self._credit = 0  # permits to be given back
        self._balance = 0  # permits that the broker has
        self._epoch = 0
        self._chunks = ChunkJoiner()
        self._chunk_ids: OrderedDict[str, list[tuple[int, int]]] = OrderedDict()
        self._acks = Acks(
            lambda ids, kind: self.ask("ACK", ack_type=kind, message_id=ids),
            lambda text: client.warn(f"{topic}: {text}"),
        )
        self._acked: OrderedDict[tuple[int, int], None] = OrderedDict()
        self._partly: dict[tuple[int, int], int] = {}
        self._nacked: list[tuple[float, tuple[int, int]]] = []
        self._outstanding: OrderedDict[tuple[int, int], float] = OrderedDict()
        self._clock: asyncio.TimerHandle | None = None
        self._last: Position | None = None

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
        self.generation += 1
        self._chunks = ChunkJoiner()
        self._chunk_ids.clear()
        await link.request(command)

    def _settled(self) -> None:
        self._balance = 0
        self._fill()
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
            self._give_back(delivery.size)
            if self.options.ack_timeout and delivery.left and not delivery.refused:
                for each in delivery.ids:
                    self._outstanding[each] = time.monotonic() + self.options.ack_timeout
        self._last = delivery.position(delivery.messages[-1]) if delivery.messages else self._last

    def _fill(self) -> None:
        """Give as many permits as make up a whole queue: nothing waits in ours."""
        self._credit = 0
        if self._balance < self.options.queue_size:
            self._flow(min(self.options.queue_size - self._balance, 2**31 - 1))

    def _give_back(self, permits: int) -> None:
        self._credit += permits
        if self._credit >= (self.options.queue_size + 1) // 2:
            self._flow(self._credit)
            self._credit = 0

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
        body = frame.body
        self._balance -= _cost(frame)
        if self._balance < -_MOST_BEYOND and self.link is not None:
            self.link.drop(f"{self.topic}: the broker sends far more messages than it was asked for")
            return
        self._pause = FIRST_PAUSE
        if body.HasField("consumer_epoch") and body.consumer_epoch < self._epoch:
            self._give_back(_cost(frame))
            return
        place = body.message_id
        where = (place.ledgerId, place.entryId)
        if where in self._acked:
            self.counts["duplicate"] += 1
            self._drop(frame, where)
            return
        metadata = frame.metadata
        if frame.checksum == "invalid" or metadata is None:
            self._corrupt(frame, [where], CommandAck.ChecksumMismatch)
            return
        frame.topic, frame.subscription = self.topic, self.options.subscription
        ids = [where]
        if metadata.num_chunks_from_msg > 1:
            joined = self._chunk(frame, where)
            if joined is None:
                return
            ids = joined
        entry = open_entry(frame)
        if not entry.messages or any(message.payload is None for message in entry.messages):
            compressed = metadata.compression and not metadata.encryption_keys
            self._corrupt(
                frame,
                ids,
                CommandAck.DecompressionError if compressed else CommandAck.BatchDeSerializeError,
                "; ".join(entry.notes),
            )
            return
        for note in entry.notes:
            self._client.warn(f"{self.topic} {where[0]}:{where[1]}: {note}")
        messages = [message for message in entry.messages if not message.skipped]
        left = self._partly.get(where)
        if left is not None:
            messages = [message for message in messages if left >> (message.index or 0) & 1]
        if not self.options.durable:
            messages = self._from_start(where, messages)
        if messages:
            self._deliver(Delivery(self, frame, messages, ids))
        else:
            self._give_back(_cost(frame))

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

    def _chunk(self, frame: Frame, where: tuple[int, int]) -> list[tuple[int, int]] | None:
        """Keep a chunk; with the last one of a message give the ids of all its chunks."""
        metadata = frame.metadata
        assert metadata is not None
        self._chunks.add(frame, metadata, self.id)
        uuid = as_text(metadata.uuid[:256])
        if metadata.chunk_id == 0:
            self._chunk_ids.pop(uuid, None)
        ids = self._chunk_ids.setdefault(uuid, [])
        if len(ids) <= metadata.chunk_id and where not in ids[-1:]:
            ids.append(where)
        for note in frame.notes:
            self._client.warn(f"{self.topic} {where[0]}:{where[1]}: {note}")
        if frame.joined is not None:
            del self._chunk_ids[uuid]
            return ids
        if len(self._chunk_ids) > ChunkJoiner.MAX_MESSAGES:
            self._chunk_ids.popitem(last=False)
        self._give_back(1)
        return None

    def _corrupt(self, frame: Frame, ids: list[tuple[int, int]], why: int, text: str = "") -> None:
        where = ids[-1]
        name = CommandAck.ValidationError.Name(why)  # type: ignore[arg-type]
        self.counts["corrupt"] += 1
        more = f" ({text})" if text else ""
        self._client.warn(
            f"{self.topic} {where[0]}:{where[1]}: corrupt, acknowledged with validation_error {name}{more}"
        )
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
        self._give_back(_cost(frame))

    def _drop(self, frame: Frame, where: tuple[int, int]) -> None:
        """Acknowledge once more what was acknowledged before."""
        self._acks.add([id_data((*where, -1))])
        self._give_back(_cost(frame))

    # -- acknowledging

    def ack(self, delivery: Delivery, message: Message | None = None) -> None:
        """Acknowledge one message of a delivery, or all of it."""
        delivery.left = 0 if message is None else delivery.left & ~(1 << (message.index or 0))
        if delivery.left and not self._stored:
            return
        if delivery.left:
            self._partly[delivery.id] = delivery.left
            if self.options.batch_index_ack:
                size = delivery.frame.metadata.num_messages_in_batch if delivery.frame.metadata else 0
                self._acks.add([id_data((*delivery.id, -1), delivery.left, size)])
            return
        self._partly.pop(delivery.id, None)
        self._remember(delivery.ids)
        self._acks.add([id_data((*each, -1)) for each in delivery.ids])

    def ack_cumulatively(self, delivery: Delivery, message: Message) -> None:
        """Acknowledge everything up to and with `message`. Exclusive and Failover only."""
        index = message.index or 0
        left = delivery.left & ~((1 << index + 1) - 1)
        delivery.left = left
        size = delivery.frame.metadata.num_messages_in_batch if delivery.frame.metadata else 0
        if left and not self.options.batch_index_ack:
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
        if self._clock is None:
            self._check()

    def _check(self) -> None:
        """Ask again for what was refused, or not acknowledged in time."""
        now = time.monotonic()
        due = [where for when, where in self._nacked if when <= now]
        self._nacked = [each for each in self._nacked if each[0] > now]
        for where, when in list(self._outstanding.items()):
            if when > now:
                break
            del self._outstanding[where]
            due.append(where)
        if due:
            self.redeliver(due)
        waits = [when for when, _ in self._nacked] + list(self._outstanding.values())[:1]
        if self.options.ack_timeout:
            waits.append(now + self.options.ack_timeout / 4)
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
            self.generation += 1
            command = build_command(
                "REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=self.id, consumer_epoch=self._epoch
            )
        self._acks.send_waiting()
        self.link.send(build_frame(command))
        if not self.options.is_shared:
            self._fill()

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


def _cost(frame: Frame) -> int:
    """Permits that a MESSAGE used: one a message, but for those its ack_set masks."""
    metadata = frame.metadata
    if metadata is None:
        return 1
    count = metadata.num_messages_in_batch
    masked = frame.body.ack_set
    if masked:
        count = sum(bin(word & 2**64 - 1).count("1") for word in masked)
    return max(count, 1)
