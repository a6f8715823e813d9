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
from typing import Any, Final, Generic, Literal, NamedTuple

from pulsarctl_wire.errors import DecryptionError
from pulsarctl_wire.net.outbox import Now, Outbox, Warned
from pulsarctl_wire.net.session.acks import AckRequest, Acks, GivenUp, Position, make_id_fields
from pulsarctl_wire.net.session.inbox import ROOM, Delivery, Inbox, R
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.encryption import KeyRing
from pulsarctl_wire.wire.frame import Frame, build_frame
from pulsarctl_wire.wire.payload import MAX_MESSAGES, Message, open_entry
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, CommandAck, CommandSubscribe, Schema
from pulsarctl_wire.wire.session.counts import MAX_PERMITS, permits_used

REMEMBERED: Final = 65_536
"""Maximum acknowledged entries remembered, to detect duplicates; maximum entries waiting for redelivery."""

MAX_PARTLY_ACKED: Final = 8_192
"""Maximum number of partly acknowledged batches that are remembered."""

_EXPECTED: Final = ROOM // 1000  # assumed bytes of a message before the first one is received
_REST: Final = 1 << MAX_MESSAGES  # the bit in `left` for the messages of a batch that are not opened
_SHORTEST_PAUSE: Final = 10_000_000  # minimum ns between two checks for entries to be redelivered

EARLIEST: Final[Position] = (-1, -1, -1)
LATEST: Final[Position] = (2**63 - 1, 2**63 - 1, -1)


CryptoFailure = Literal["fail", "discard", "consume"]
"""What to do with an encrypted message that no key opens: end, acknowledge it, or deliver the ciphertext."""


@dataclass(frozen=True)
class ConsumerOptions:
    """The options of a subscription. Times in seconds.

    `start` is where a subscription that is not durable begins, `inclusive` whether that message is included;
    `rollback` makes it begin so many seconds ago instead. `queue_size` counts messages. `payload_ratio` is
    the `ratio` of the `Budget` that limits how much is decompressed. `keys` open encrypted messages;
    `crypto_failure` says what to do with those that they do not open.
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
    keys: KeyRing | None = None
    crypto_failure: CryptoFailure = "consume"

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
    whether messages are dropped, `counts` of entries "corrupt", "undecryptable", "duplicate", "unopened" or
    "dropped".
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
        self._is_persistent = not topic.startswith("non-persistent:")  # else every entry has the id 0:0
        self._start: Position | None = None
        self._inclusive = True
        self._balance = 0  # permits that the broker has
        self._held = 0  # permits of deliveries that wait to be taken
        self._typical_size = 0  # bytes of a message (0: unknown): rises at once, and falls slowly
        self._first_unopened: tuple[int, int] | None = None  # id of the first unopened entry
        self._epoch = 0
        self._acked: OrderedDict[tuple[int, int], None] = OrderedDict()
        self._remaining_bits: OrderedDict[tuple[int, int], int] = OrderedDict()  # id -> `left` of the entry
        self._nacked: list[tuple[float, tuple[int, int]]] = []  # when to ask for redelivery, id of the entry
        self._outstanding: OrderedDict[tuple[int, int], int] = OrderedDict()  # id -> end of its `ack_timeout`
        self._check_at: int | None = None  # when to check for entries to be redelivered
        self._last_position: Position | None = None  # of the last message consumed: a reader goes on after it
        self._first_ticks = 0  # when SUBSCRIBE was made first

    # -- opening

    def make_command(self, now: Now) -> BaseCommand:
        """Return SUBSCRIBE, for the first time or again: the broker redelivers everything unacknowledged."""
        options = self._options
        self.acks.ready = False
        start = None if options.durable or not self._is_persistent else self._last_position or options.start
        self._start, self._inclusive = start, self._last_position is None and options.inclusive
        self._first_ticks = self._first_ticks or now.ticks
        rollback = 0
        if options.rollback and self._last_position is None:
            rollback = options.rollback + math.ceil((now.ticks - self._first_ticks) / 1e9)
        command = build_command(
            "SUBSCRIBE",
            topic=self._topic,
            subscription=options.subscription,
            subType=options.type,
            consumer_id=self._id,
            consumer_name=options.name,
            durable=options.durable,
            start_message_id=None if start is None else make_id_fields(start),
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
        self._invalidate_deliveries()
        return command

    def _invalidate_deliveries(self) -> None:
        """Invalidate the waiting deliveries, as the broker redelivers everything unacknowledged."""
        self.generation += 1
        self._held = 0
        self.halted = False
        self._first_unopened = None

    def on_registered(self, body: Any, largest: int) -> None:
        """Ignore the answer to SUBSCRIBE: nothing in it is needed."""

    def on_open(self, now: Now) -> None:
        """Send permits and the kept acknowledgements, as the consumer is subscribed."""
        self._balance = 0
        self.acks.on_open()
        self._send_permits(1)
        if self._options.ack_timeout and self._check_at is None:
            self._check_redeliveries(now)

    def suspend(self) -> None:
        """Send nothing for now, as the consumer is not subscribed."""
        self.acks.ready = False
        self._out.clear()

    def _send(self, name: str, **fields: Any) -> None:
        self._out.append(build_frame(build_command(name, consumer_id=self._id, **fields)))

    def _warn(self, text: str, kind: str = "") -> None:
        self._events.append(Warned(text, kind))

    # -- permits

    def release_permits(self, delivery: Delivery[R], now: Now) -> None:
        """Give the permits of a consumed delivery back to the broker; start its `ack_timeout`.

        Also note how far a reader has come.
        """
        if delivery.is_current:
            self._release(delivery)
            if self._options.ack_timeout and delivery.left and not delivery.refused:
                for entry_id in delivery.ids:
                    self._outstanding[entry_id] = now.ticks + int(self._options.ack_timeout * 1e9)
                if len(self._outstanding) > REMEMBERED:
                    self._check_redeliveries(now)
        self._last_position = (
            delivery.position(delivery.messages[-1]) if delivery.messages else self._last_position
        )

    def _release(self, delivery: Delivery[R]) -> None:
        self._held -= delivery.permits
        self._send_permits()

    def _send_permits(self, minimum: int = 0) -> None:
        """Send the permits there is room for if they are at least `minimum` (0: half a queue)."""
        size = min(self._options.queue_size, max(self._inbox.share // (self._typical_size or _EXPECTED), 1))
        permits = size - self._balance - self._held
        if permits >= (minimum or (size + 1) // 2) and not self.halted and self.acks.ready:
            permits = min(permits, MAX_PERMITS)
            self._balance += permits
            self._send("FLOW", messagePermits=permits)

    # -- frames received

    def on_frame(self, frame: Frame, now: Now) -> None:
        """Handle a frame about this consumer."""
        kind = frame.type
        if kind == BaseCommand.MESSAGE:
            self._handle_message(frame, now)
        elif kind == BaseCommand.ACTIVE_CONSUMER_CHANGE:
            self.active = frame.body.is_active
            self._events.append(Changed())
        elif kind == BaseCommand.REACHED_END_OF_TOPIC:
            self.ended = True
            self._events.append(Changed())
        elif kind == BaseCommand.CLOSE_CONSUMER:
            # maybe because of a SEEK back: then acknowledged messages are to be delivered again
            self._acked.clear()
            self._remaining_bits.clear()
            self.acks.forget()

    def _handle_message(self, frame: Frame, now: Now) -> None:
        body, permits = frame.body, permits_used(frame)
        self._balance -= permits
        self._inbox.budget.count_input(len(frame.raw))
        entry_id = (body.message_id.ledgerId, body.message_id.entryId)
        metadata = frame.metadata
        if self.halted:
            self.counts["dropped"] += 1
        elif body.HasField("consumer_epoch") and body.consumer_epoch < self._epoch:
            self._send_permits()
        elif entry_id in self._acked:
            self.counts["duplicate"] += 1
            self.acks.add([make_id_fields((*entry_id, -1))], now)
            self._send_permits()
        elif frame.checksum == "invalid" or metadata is None:
            self._reject([entry_id], CommandAck.ChecksumMismatch)
        else:
            frame.topic, frame.subscription = self._topic, self._options.subscription
            ids = self._add_chunk(frame, entry_id) if metadata.num_chunks_from_msg > 1 else [entry_id]
            if ids:
                self._add_delivery(Delivery(self._consumer, frame, ids, permits))

    def _add_delivery(self, delivery: Delivery[R]) -> None:
        """Add a delivery to the inbox; if there is no room, drop it and halt."""
        self._typical_size = max(
            delivery.weight // max(delivery.permits, 1), self._typical_size - self._typical_size // 64
        )
        if self._inbox.put(delivery):
            self._held += delivery.permits
            self._events.append(Changed())
            return
        self.halted = True
        self.counts["dropped"] += 1
        excess = f", {-self._balance} messages more than were asked for" if self._balance < 0 else ""
        self._warn(
            f"{self._topic}: {self._inbox.bytes} bytes of messages wait{excess}: new ones are dropped "
            "unacknowledged, and asked for again when the waiting ones are taken",
            "messages dropped",
        )

    def _add_chunk(self, frame: Frame, entry_id: tuple[int, int]) -> list[tuple[int, int]]:
        """Keep a chunk. If it completes its message, return the ids of all its chunks, else an empty list."""
        metadata = frame.metadata
        assert metadata is not None
        # the generation, too: chunks from before a redelivery are not joined with those after it
        ids = self._inbox.chunks.add(frame, metadata, self._id << 32 | self.generation, entry_id)
        self._note_all(entry_id, frame.notes)
        if not ids:
            self._send_permits()
        return ids

    # -- opening entries

    def open_entry(self, delivery: Delivery[R]) -> bool:
        """Open the entry of a delivery; return False if it has no message to be consumed.

        Raises DecryptionError if no key opens it, and that is to end the session.
        """
        entry_id, metadata = delivery.id, delivery.metadata
        entry = open_entry(delivery.frame, self._inbox.budget, self._options.keys)
        if not entry.messages or any(message.payload is None for message in entry.messages):
            self._held -= delivery.permits
            text = "; ".join(entry.notes)
            if entry.corrupt or not (entry.messages or entry.is_limited):
                is_compressed = metadata.compression
                error = CommandAck.DecompressionError if is_compressed else CommandAck.BatchDeSerializeError
                self._reject(delivery.ids, error, text)
            else:
                self.report_unopened(delivery, text)
                self._send_permits()
            return False
        if metadata.encryption_keys and entry.opened is None and self._options.crypto_failure != "consume":
            self._reject_undecryptable(
                delivery, "; ".join(entry.notes) or "encrypted, and no private key was given"
            )
            return False
        delivery.decryption = entry.opened
        if entry.is_limited:
            self.report_unopened(delivery, "; ".join(entry.notes))
        else:
            self._note_all(entry_id, entry.notes)
        messages = self._select_messages(
            entry_id, [message for message in entry.messages if not message.skipped]
        )
        if not messages:
            self._release(delivery)
            return False
        delivery.messages = messages
        bits = (1 << (message.index or 0) for message in messages)
        is_whole = len(messages) == len(entry.messages)
        delivery.left = (1 << len(messages)) - 1 if is_whole else sum(bits)
        if entry.is_limited or len(entry.messages) == MAX_MESSAGES < metadata.num_messages_in_batch:
            delivery.left |= _REST
            self._first_unopened = self._first_unopened or entry_id
        return True

    def _reject_undecryptable(self, delivery: Delivery[R], reason: str) -> None:
        """Acknowledge an entry that no key opens, or raise DecryptionError."""
        if self._options.crypto_failure == "fail":
            ledger, entry = delivery.id
            raise DecryptionError(
                f"{self._topic} {ledger}:{entry}: {reason}; it stays unacknowledged "
                "(--crypto-failure discard or consume goes on)"
            )
        self._held -= delivery.permits
        self._reject(delivery.ids, CommandAck.DecryptionError, reason, "undecryptable")

    def _select_messages(self, entry_id: tuple[int, int], messages: list[Message]) -> list[Message]:
        """Return the messages that are not acknowledged, and not before a reader's start."""
        remaining = self._remaining_bits.get(entry_id)
        if remaining is not None:
            messages = [message for message in messages if remaining >> (message.index or 0) & 1]
        start = self._start
        if self._options.durable or start is None or start[0] < 0 or start == LATEST:
            return messages
        selected = []
        for message in messages:
            position = (*entry_id, -1 if message.index is None or start[2] < 0 else message.index)
            if position > start or (self._inclusive and position == start):
                selected.append(message)
        return selected

    def report_unopened(self, delivery: Delivery[R], reason: str) -> None:
        """Warn about and count an entry that was not opened or shown completely.

        Cumulative acknowledgements stop before it. The caller must not acknowledge it.
        """
        self.counts["unopened"] += 1
        self._first_unopened = self._first_unopened or delivery.id
        self.note(delivery.id, f"left unopened and unacknowledged: {reason}", "entries left unopened")

    def _note_all(self, entry_id: tuple[int, int], notes: Sequence[str]) -> None:
        for note in notes:
            self.note(entry_id, note)

    def note(self, entry_id: tuple[int, int], text: str, kind: str = "notes on entries") -> None:
        """Warn about the entry with this id."""
        self._warn(f"{self._topic} {entry_id[0]}:{entry_id[1]}: {text}", kind)

    def _reject(self, ids: list[tuple[int, int]], error: int, text: str = "", kind: str = "corrupt") -> None:
        """Acknowledge an entry with a validation_error, and count it as `kind`."""
        name = CommandAck.ValidationError.Name(error)  # type: ignore[arg-type]
        self.counts[kind] += 1
        detail = f" ({text})" if text else ""
        self.note(ids[-1], f"{kind}, acknowledged with validation_error {name}{detail}", f"{kind} entries")
        self._remember(ids)
        if self.acks.ready:
            fields = [make_id_fields((*entry_id, -1)) for entry_id in ids]
            self._send("ACK", ack_type=CommandAck.Individual, message_id=fields, validation_error=error)
        self._send_permits()

    # -- acknowledging

    def ack(self, delivery: Delivery[R], message: Message | None, now: Now) -> None:
        """Acknowledge `message`, or all opened messages of the delivery if it is None."""
        bits = _REST - 1 if message is None else 1 << (message.index or 0)
        delivery.left &= ~bits
        if delivery.left and not self._is_persistent:
            return
        if delivery.left:
            self._remaining_bits[delivery.id] = delivery.left
            if len(self._remaining_bits) > MAX_PARTLY_ACKED:
                self._remaining_bits.popitem(last=False)
            if self._options.batch_index_ack and delivery.left < _REST:
                size = delivery.metadata.num_messages_in_batch
                self.acks.add([make_id_fields((*delivery.id, -1), delivery.left, size)], now)
            return
        self._remaining_bits.pop(delivery.id, None)
        self._remember(delivery.ids)
        self.acks.add([make_id_fields((*entry_id, -1)) for entry_id in delivery.ids], now)

    def ack_cumulatively(self, delivery: Delivery[R], message: Message) -> None:
        """Acknowledge everything up to and including `message`, unless there is an unopened entry before it.

        Without `batch_index_ack`, a batch is acknowledged only with its last message. For Exclusive
        and Failover only.
        """
        if self._first_unopened is not None and self._first_unopened < delivery.id:
            return
        index = message.index or 0
        remaining = delivery.left & ~((1 << index + 1) - 1)
        delivery.left = remaining
        size = delivery.metadata.num_messages_in_batch
        if remaining and (remaining >= _REST or not self._options.batch_index_ack):
            return  # the broker would acknowledge only up to the previous entry
        self.acks.send([make_id_fields((*delivery.id, -1), remaining, size)], CommandAck.Cumulative)
        if not remaining:
            self._remember(delivery.ids)

    def _remember(self, ids: list[tuple[int, int]]) -> None:
        for entry_id in ids:
            if self._is_persistent:
                self._acked[entry_id] = None
            self._outstanding.pop(entry_id, None)
        while len(self._acked) > REMEMBERED:
            self._acked.popitem(last=False)

    # -- redelivery

    def nack(self, delivery: Delivery[R], now: Now) -> None:
        """Ask for a delivery to be redelivered after `nack_delay`."""
        delivery.refused = True
        due = now.ticks + int(self._options.nack_delay * 1e9)
        for entry_id in delivery.ids:
            self._outstanding.pop(entry_id, None)
            self._nacked.append((due, entry_id))
        if self._check_at is None or len(self._nacked) > REMEMBERED:
            self._check_redeliveries(now)

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
            self._check_redeliveries(now)

    def _check_redeliveries(self, now: Now) -> None:
        """Ask for redelivery of the entries that are due, and set when to check again.

        Due are those whose `nack_delay` or `ack_timeout` is over; if too many wait, all.
        """
        limit: float = now.ticks
        if max(len(self._nacked), len(self._outstanding)) > REMEMBERED:
            limit = math.inf
            self._warn(f"{self._topic}: more than {REMEMBERED} messages wait for redelivery: asking now")
        ids = [entry_id for due, entry_id in self._nacked if due <= limit]
        self._nacked = [row for row in self._nacked if row[0] > limit]
        for entry_id, due in list(self._outstanding.items()):
            if due > limit:
                break
            del self._outstanding[entry_id]
            ids.append(entry_id)
        if ids:
            self._redeliver(ids)
        due_times = [due for due, _ in self._nacked[:1]] + list(self._outstanding.values())[:1]
        if self._options.ack_timeout:  # `release_permits` adds entries, but sets no time for a check
            due_times.append(now.ticks + int(self._options.ack_timeout * 1e9 / 4))
        self._check_at = max(int(min(due_times)), now.ticks + _SHORTEST_PAUSE) if due_times else None

    def _redeliver(self, ids: list[tuple[int, int]]) -> None:
        """Ask for these entries again; Exclusive and Failover get everything that is not acknowledged."""
        if not self.acks.ready:
            return  # the broker redelivers them anyway once the consumer is subscribed again
        self.acks.send_waiting()
        if self._options.is_shared:
            fields = [make_id_fields((*entry_id, -1)) for entry_id in dict.fromkeys(ids)]
            self._send("REDELIVER_UNACKNOWLEDGED_MESSAGES", message_ids=fields)
        else:
            self._epoch += 1
            self._invalidate_deliveries()
            self._send("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_epoch=self._epoch)
            self._send_permits(1)
