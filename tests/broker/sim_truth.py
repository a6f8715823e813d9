"""What must be true of a broker, judged by what went over its connections, in this order.

A position is a message id (ledger, entry). What a subscription owes is kept as bits of the messages of each
entry, by position:

    open   must be delivered, as nobody can have acknowledged them
    gone   must not be delivered, as their acknowledgement was answered
    none   anything may happen: an acknowledgement was not answered, the subscription was reset, …

Times are numbers of events: `no`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from typing import Any

from pulsarctl_wire.broker.consumer import FAILOVER, INDIVIDUAL, KEY_SHARED

Position = tuple[int, int]
NEVER = 1 << 60
NOT_STORED = (1 << 64) - 1


class Broken(AssertionError):
    """A rule was broken."""


def full(count: int) -> int:
    """The bits of all messages of an entry."""
    return (1 << count) - 1


class Message:
    """An entry that a producer sends; when it is sent again, it is still the same."""

    def __init__(self, number: int, topic: Topic, count: int) -> None:
        self.number = number
        self.topic = topic
        self.count = count
        self.producer = ""
        self.sequence = 0
        self.key = ""
        self.slots = (0, 0)
        """Of its key: by consistent hashing, and in ranges."""
        self.due_ms = 0
        self.txn: Txn | None = None
        self.no = NEVER
        """When it was first sent."""
        self.stored = False
        """Whether a receipt said so."""
        self.positions: list[Position] = []

    @property
    def is_visible(self) -> bool:
        """Whether nobody can say that consumers must not see it."""
        return self.txn is None or self.txn.state == "committed"

    def __repr__(self) -> str:
        return f"m{self.number}({self.producer}/{self.sequence} x{self.count} key={self.key})"


class Txn:
    """A transaction. `state`: open, committed, aborted, or unknown."""

    def __init__(self, id_: tuple[int, int]) -> None:
        self.id = id_
        self.state = "open"
        self.commit_sent = False
        self.until_ms = 0
        """When it is aborted, unless it was ended."""
        self.ending = False
        self.finished = False
        """Whether it must have ended by now, either way."""
        self.messages: list[Message] = []
        self.acks: list[tuple[Subscription, Ack]] = []

    def may_be_over(self, now_ms: int) -> bool:
        """Whether it may have been aborted, so that what is done in it waits for a later one to end."""
        return now_ms >= self.until_ms

    @property
    def over(self) -> bool:
        return self.state in ("committed", "aborted")

    def ended(self, *, commit: bool) -> None:
        """It was answered that it has ended."""
        self.state = "committed" if commit else "aborted"
        for subscription, ack in self.acks:
            if not ack.refused and commit:
                subscription.committed(ack)
            elif not ack.refused:
                subscription.undo(ack)
                for session in subscription.sessions:
                    session.may_rewind = True
        for message in self.messages if commit else ():
            for position in message.positions:
                for subscription in message.topic.subscriptions.values():
                    subscription.learn(position, message)


class Topic:
    """The positions that are known: those of receipts and of deliveries."""

    def __init__(self, name: str, *, deduplicates: bool, trims: bool) -> None:
        self.name = name
        self.deduplicates = deduplicates
        self.trims = trims
        self.fenced = False
        """Whether producers may have been shut out without a word."""
        self.ending = False
        """Whether it was asked to terminate."""
        self.stuck = False
        """Whether something was sent in a transaction that may have been over: it may hide what follows."""
        self.order: list[Position] = []
        self.at: dict[Position, Message] = {}
        self.messages: list[Message] = []
        self.subscriptions: dict[str, Subscription] = {}

    def learn(self, position: Position, message: Message) -> None:
        """A message is at a position, durably."""
        known = self.at.get(position)
        if known is message:
            return
        if known is not None:
            raise Broken(f"{message} is at {position}, where {known} was")
        insort(self.order, position)
        self.at[position] = message
        message.positions.append(position)
        if self.deduplicates and len(message.positions) > 1:
            raise Broken(f"{message} was stored twice: {message.positions}")
        for subscription in self.subscriptions.values():
            subscription.learn(position, message)

    def blocked(self) -> bool:
        """Whether a transaction may hide what follows it."""
        return self.stuck or any(
            each.txn is not None and not each.txn.over and not each.txn.finished for each in self.messages
        )


class Session:
    """A consumer, from its SUBSCRIBE until it is closed."""

    def __init__(self, subscription: Subscription, client: Any, kind: int, options: dict[str, Any]) -> None:
        self.subscription = subscription
        self.client = client
        self.kind = kind
        self.ordered = options.get("ordered", True)
        self.ranges: list[tuple[int, int]] = options.get("ranges", [])
        self.label = options.get("label", "")
        self.opened = self.closed = False
        self.active = False
        self.granted = self.messages = self.entries = 0
        self.seen: set[Position] = set()
        """What was delivered since it began from the mark."""
        self.last: Position | None = None
        self.may_rewind = False
        """Whether the end of a transaction may make it begin from the mark again."""

    @property
    def permits(self) -> int:
        return self.granted - self.messages

    def rewound(self) -> None:
        """Everything is to be delivered again."""
        self.seen.clear()
        self.last = None

    def __repr__(self) -> str:
        return f"{self.label}"


class Ack:
    """Acknowledged bits by position. `undone` are those that were open before."""

    def __init__(self, no: int) -> None:
        self.no = no
        self.bits: dict[Position, int] = {}
        self.undone: dict[Position, int] = {}
        self.held: dict[Position, Session] = {}
        self.hides: list[Position] = []
        """Entries that nobody gets while its transaction is open; known once it was answered."""
        self.refused = False


class Subscription:
    """What is known of a subscription. `exists`: no, maybe, yes."""

    def __init__(self, topic: Topic, name: str, *, early: bool, durable: bool) -> None:
        self.topic = topic
        self.name = name
        self.early = early
        self.durable = durable
        self.exists = "no"
        self.fresh = True
        """Nobody can have acknowledged anything."""
        self.sure = NEVER
        """Messages sent after this must be delivered."""
        self.low: Position = (-1, -1)
        """Up to here, all may be acknowledged."""
        self.reset_no = -1
        self.wild = 0
        """SEEKs to a time that may take effect at any moment."""
        self.tried = -1
        self.open: dict[Position, int] = {}
        self.gone: dict[Position, int] = {}
        self.touched: dict[Position, int] = {}
        self.reopened: dict[Position, int] = {}
        self.sessions: list[Session] = []
        self.done: dict[Position, int] = {}
        self.holders: dict[Position, Session] = {}
        self.txns: list[Txn] = []

    def __repr__(self) -> str:
        return f"{self.topic.name}/{self.name}"

    # -- its life

    def subscribing(self, no: int) -> None:
        """SUBSCRIBE was received."""
        self.tried = no
        if self.exists == "no":
            self.exists = "maybe"

    def subscribed(self, no: int) -> None:
        """SUBSCRIBE was answered by SUCCESS."""
        if not self.durable:
            return
        if self.exists != "yes":
            self.exists = "yes"
            if self.fresh and self.early and not self.topic.trims:
                self.sure = -1
                for position, message in self.topic.at.items():
                    self.learn(position, message)
            else:
                self.sure = no
        self.fresh = False

    def unsubscribing(self, no: int) -> None:
        """UNSUBSCRIBE was received, and will succeed."""
        self.forget(no)
        self.exists = "maybe"

    def unsubscribed(self, no: int) -> None:
        """The UNSUBSCRIBE of `no` was answered by SUCCESS."""
        if self.tried < no and self.reset_no == no:
            self.exists, self.fresh = "no", True

    def forget(self, no: int) -> None:
        """Nothing is known any more."""
        self.open.clear()
        self.gone.clear()
        self.holders.clear()
        self.done.clear()
        for txn in self.txns:
            for _, ack in txn.acks:
                ack.hides.clear()
        self.low = (-1, -1)
        self.sure, self.reset_no = NEVER, no

    def learn(self, position: Position, message: Message) -> None:
        """There is a message."""
        visible = message.is_visible
        untouched = self.touched.get(position, -1) < max(self.reset_no, 0)
        if self.exists == "yes" and message.no > self.sure and position > self.low and visible and untouched:
            self.open[position] = full(message.count)

    def sought(self, no: int, target: Position | None, known: list[Position], before: set[Position]) -> None:
        """The SEEK of `no` was answered; `known` were the positions then, `before` those that were open."""
        if self.reset_no != no or self.wild:
            return
        self.sure = max(self.tried, no)
        hidden = {each for txn in self.txns if not txn.over for _, ack in txn.acks for each in ack.bits}
        for position in known:
            message = self.topic.at[position]
            if self.touched.get(position, -1) > no or position in hidden:
                continue
            if target is None or position < target:
                self.gone[position] = full(message.count)
            elif message.is_visible and (not self.topic.trims or position in before):
                self.open[position] = full(message.count)

    def sought_time(self, no: int) -> None:
        """A SEEK to a time was answered."""
        self.wild -= 1
        self.forget(no)
        if self.exists == "yes" and not self.wild:
            self.sure = no

    # -- acknowledgements

    def take(self, ack: Ack, position: Position, bits: int, *, settles: bool) -> None:
        """Messages of an entry are being acknowledged; `settles`: the entry is not pending any more."""
        ack.bits[position] = ack.bits.get(position, 0) | bits
        self.touched[position] = ack.no
        was = self.open.get(position, 0)
        if was & bits:
            ack.undone[position] = ack.undone.get(position, 0) | was & bits
            self.open[position] = was & ~bits
        if settles and position in self.holders:
            ack.held[position] = self.holders.pop(position)

    def ack(self, ack: Ack, position: Position, bits: int) -> None:
        """An ordinary acknowledgement."""
        count = self.topic.at[position].count
        done = self.done[position] = self.done.get(position, 0) | bits
        self.take(ack, position, bits, settles=done == full(count))

    def ack_until(self, ack: Ack, position: Position, left: int, *, whole: bool) -> None:
        """A cumulative one; messages of the last entry in `left` stay open. `whole`: it has no ack_set."""
        self.low = max(self.low, position)
        order = self.topic.order
        for each in order[: bisect_left(order, position)]:
            self.take(ack, each, full(self.topic.at[each].count), settles=False)
        bits = full(self.topic.at[position].count) & ~left
        self.take(ack, position, bits, settles=False)
        if not whole:
            self.reopened[position] = ack.no
            self.gone[position] = self.gone.get(position, 0) & ~left

    def ack_answered(self, ack: Ack) -> None:
        """It is durable."""
        if self.reset_no > ack.no or self.wild:
            return
        for position, bits in ack.bits.items():
            if self.reopened.get(position, -1) <= ack.no:
                self.gone[position] = self.gone.get(position, 0) | bits

    def committed(self, ack: Ack) -> None:
        """The transaction that it is part of was committed."""
        self.ack_answered(ack)
        if self.reset_no < ack.no:
            for position, bits in ack.bits.items():
                done = self.done[position] = self.done.get(position, 0) | bits
                if done == full(self.topic.at[position].count):
                    self.holders.pop(position, None)

    def undo(self, ack: Ack) -> None:
        """It was refused, or its transaction aborted."""
        if self.reset_no > ack.no:
            return
        for position, bits in ack.undone.items():
            if self.touched.get(position) == ack.no:
                self.open[position] = self.open.get(position, 0) | bits

    # -- sessions

    def opened(self, session: Session) -> None:
        """A consumer has joined."""
        session.opened = True
        self.sessions.append(session)
        if session.kind != FAILOVER:
            session.active = True

    def leave(self, session: Session, no: int) -> None:
        """A consumer has left; a subscription that is not durable goes with the last one."""
        session.closed = True
        if session in self.sessions:
            self.sessions.remove(session)
        for position in [each for each, holder in self.holders.items() if holder is session]:
            del self.holders[position]
        if not self.durable and not self.sessions:
            self.forget(no)

    def give_back(self, session: Session, positions: list[Position]) -> None:
        """REDELIVER; without positions, of everything."""
        if session.kind not in INDIVIDUAL:
            if session.active:
                session.rewound()
            return
        for position in [each for each, holder in self.holders.items() if holder is session]:
            if not positions or position in positions:
                del self.holders[position]

    # -- deliveries

    def delivered(self, session: Session, position: Position, message: Message, mask: int) -> None:
        """A consumer gets messages of an entry: those in `mask`."""
        what = f"{message} at {position} to {session} of {self}"
        if session.closed or not session.opened:
            raise Broken(f"{what}, which is not there")
        if message.txn is not None and (not message.txn.commit_sent or message.txn.state == "aborted"):
            raise Broken(f"{what}: its transaction is {message.txn.state}")
        if mask & ~full(message.count):
            raise Broken(f"{what}: mask {mask:b}")
        for txn in self.txns:
            hides = not txn.ending and session.client.now_ms() < txn.until_ms
            if hides and any(position in ack.hides for it, ack in txn.acks if it is self):
                raise Broken(f"{what}, where {txn.id} has acknowledged it")
        if mask & self.gone.get(position, 0):
            raise Broken(f"{what}, where it is acknowledged: {mask:b} & {self.gone[position]:b}")
        self.done[position] = full(message.count) & ~mask
        self._spend(session, what, mask.bit_count())
        if session.kind in INDIVIDUAL:
            self._to_one_of_many(session, position, message, what)
        else:
            self._to_active(session, position, what)

    def _spend(self, session: Session, what: str, messages: int) -> None:
        session.entries += 1
        if session.kind == KEY_SHARED:
            if session.permits <= 0:
                raise Broken(f"{what}, which has {session.permits} permits")
        elif session.entries > session.granted:
            raise Broken(f"{what}, which has got {session.entries} entries for {session.granted} permits")
        session.messages += messages

    def _to_active(self, session: Session, position: Position, what: str) -> None:
        if not session.active:
            raise Broken(f"{what}, which is not active")
        if session.last is not None and position <= session.last:
            if all(txn.over for txn in self.txns) and self.durable and not session.may_rewind:
                raise Broken(f"{what} again")
            session.may_rewind = False
            session.rewound()
        order = self.topic.order
        for each in order[: bisect_left(order, position)]:
            if self.open.get(each) and each not in session.seen:
                raise Broken(f"{what} before {self.topic.at[each]} at {each}")
        session.seen.add(position)
        session.last = position

    def _to_one_of_many(self, session: Session, position: Position, message: Message, what: str) -> None:
        if position in self.holders:
            raise Broken(f"{what}, while it is pending at {self.holders[position]}")
        if session.kind == KEY_SHARED and session.ordered:
            for other, holder in self.holders.items():
                if holder is not session and self.topic.at[other].key == message.key:
                    raise Broken(f"{what}, while {other} of its key is pending at {holder}")
            order = self.topic.order
            for each in order[: bisect_left(order, position)]:
                if (
                    self.topic.at[each].key == message.key
                    and self.open.get(each)
                    and each not in self.holders
                ):
                    raise Broken(f"{what} before {each} of its key")
        self.holders[position] = session

    # -- when nothing more will happen by itself

    def starving(self, now_ms: int, limit: int) -> str:
        """Which message does not come, although somebody could get it; "" if none."""
        if not self.sessions or self.topic.blocked() or not self.durable:
            return ""
        due = [
            each
            for each in self.topic.order
            if self.open.get(each) and each not in self.holders and self.topic.at[each].due_ms <= now_ms
        ]
        able = [each for each in self.sessions if each.permits > 0 and each.client.reads]
        if self.sessions[0].kind not in INDIVIDUAL:
            for session in able:
                missing = [each for each in due if each not in session.seen]
                if session.active and missing:
                    return f"{missing[0]} of {self} does not come to {session}"
            return ""
        unacked = dict.fromkeys(self.sessions, 0)
        for position, holder in self.holders.items():
            unacked[holder] += self.topic.at[position].count
        able = [each for each in able if not limit or unacked[each] <= limit // 2]
        if self.sessions[0].kind == KEY_SHARED:
            due = [each for each in due if self._is_free(each)] if len(able) == len(self.sessions) else []
        return f"{due[0]} of {self} does not come to any of {able}" if due and able else ""

    def _is_free(self, position: Position) -> bool:
        """Whether a position's key has an owner who can get it now."""
        slots = self.topic.at[position].slots
        if self.sessions[0].ranges:
            ranges = [each for session in self.sessions for each in session.ranges]
            if not any(low <= slots[1] <= high for low, high in ranges):
                return False
        held = [self.topic.at[each].slots for each in self.holders]
        return all(each[0] != slots[0] and each[1] != slots[1] for each in held)


class Publisher:
    """A producer, from its PRODUCER until it is closed; `waiting` are the SENDs to be answered."""

    def __init__(self, topic: Topic, label: str) -> None:
        self.topic = topic
        self.label = label
        self.opened = self.closed = False
        self.waiting: deque[tuple[int, Message]] = deque()

    def receipt(self, sequence: int, position: Position) -> None:
        """A SEND is answered by SEND_RECEIPT."""
        if not self.waiting or self.waiting[0][0] != sequence:
            raise Broken(f"{self.label}: receipt of {sequence}, expected {list(self.waiting)[:1]}")
        message = self.waiting.popleft()[1]
        message.stored = True
        if position != (NOT_STORED, NOT_STORED):
            self.topic.learn(position, message)
        elif not self.topic.deduplicates:
            raise Broken(f"{self.label}: {message} was not stored")

    def error(self, sequence: int) -> None:
        """A SEND is answered by SEND_ERROR."""
        for each in self.waiting:
            if sequence in (each[0], each[0] + each[1].count - 1):
                self.waiting.remove(each)
                return
        raise Broken(f"{self.label}: SEND_ERROR of {sequence}, which was not sent")
