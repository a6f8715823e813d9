"""What a subscription owes its consumers, judged by what went over the connections.

It is kept as bits of the messages of each entry, by position:

    open   must be delivered, as nobody can have acknowledged them
    gone   must not be delivered, as their acknowledgement was answered
    none   anything may happen: an acknowledgement was not answered, the subscription was reset, …
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from broker.sim_truth import NEVER, Broken, Message, Position, Topic, Txn, full

from pulsarctl_wire.broker.delivery.consumer import FAILOVER, INDIVIDUAL_ACK_TYPES, KEY_SHARED, SHARED


class Session:
    """A consumer, from its SUBSCRIBE until it is closed."""

    def __init__(self, subscription: Subscription, client: Any, kind: int, options: dict[str, Any]) -> None:
        self.subscription = subscription
        self.client = client
        self.kind = kind
        self.ordered = options.get("ordered", True)
        self.priority: int = options.get("priority", 0)
        self.run: int = options.get("run", 0)
        """Entries that a Shared consumer gets at a time; 0: as many as it may have unacknowledged."""
        self.passed = 0
        """Entries in a row that others got, although it could have got them as well."""
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
        self.parts: dict[Position, int] = {}
        """Bits of single entries, which nobody gets while its transaction is open."""
        self.answered = self.refused = False


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
        self.closed_one = False
        """Whether it closed a consumer, and none has joined since: a reset takes the active one away."""
        self.wild = 0
        """SEEKs to a time that may take effect at any moment."""
        self.tried = -1
        self.asked: set[Session] = set()
        """Consumers whose SUBSCRIBE has no answer: it may make the subscription at any moment."""
        self.open: dict[Position, int] = {}
        self.gone: dict[Position, int] = {}
        self.touched: dict[Position, int] = {}
        self.reopened: dict[Position, int] = {}
        self.sessions: list[Session] = []
        self.done: dict[Position, int] = {}
        self.holders: dict[Position, Session] = {}
        self.doubtful: dict[Position, Session] = {}
        """Who may still have an entry, though it was skipped, or is in a transaction that may be over."""
        self.txns: list[Txn] = []

    def __repr__(self) -> str:
        return f"{self.topic.name}/{self.name}"

    # -- its life

    def subscribing(self, session: Session, no: int) -> None:
        """SUBSCRIBE was received."""
        self.asked.add(session)
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

    def unsubscribed(self, began: int, no: int) -> None:
        """The UNSUBSCRIBE of `began` was answered by SUCCESS: what was learned meanwhile is void too."""
        if self.tried < began and not self.asked:
            self.forget(no)
            self.exists, self.fresh = "no", True

    def forget(self, no: int) -> None:
        """Nothing is known any more."""
        self.open.clear()
        self.gone.clear()
        for position in list(self.holders):
            self.doubt(position)
        self.done.clear()
        for txn in self.txns:
            for _, ack in txn.acks:
                ack.parts.clear()
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
        if done == full(count):
            self.release(position)

    def release(self, position: Position) -> None:
        """An entry is not pending any more."""
        self.holders.pop(position, None)
        self.doubtful.pop(position, None)

    def doubt(self, position: Position) -> None:
        """An entry may be pending, or not."""
        if position in self.holders:
            self.doubtful[position] = self.holders.pop(position)

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

    def is_pending(self, position: Position, now_ms: int, *, answered: bool = True) -> bool:
        """Whether open transactions have acknowledged all that is left; if `answered`, durably."""
        bits = (self.gone if answered else self.done).get(position, 0)
        for txn in self.txns:
            if not txn.ending and now_ms < txn.until_ms:
                acks = [ack for at, ack in txn.acks if at is self and not ack.refused]
                for ack in acks:
                    bits |= ack.parts.get(position, 0) if ack.answered or not answered else 0
        return bits == full(self.topic.at[position].count)

    def is_owed(self, position: Position, now_ms: int) -> bool:
        """Whether messages of an entry must be delivered now."""
        if not self.open.get(position) or self.topic.expires(position, now_ms):
            return False
        return not self.is_pending(position, now_ms, answered=False)

    def committed(self, ack: Ack) -> None:
        """The transaction that it is part of was committed."""
        self.ack_answered(ack)
        for position, bits in ack.bits.items():
            if self.reset_no > ack.no:
                self.touched[position] = self.reset_no + 1  # it may have been committed after the reset
                continue
            done = self.done[position] = self.done.get(position, 0) | bits
            if done == full(self.topic.at[position].count):
                self.release(position)

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
        self.closed_one = False
        if session.kind != FAILOVER:
            session.active = True

    def leave(self, session: Session, no: int) -> None:
        """A consumer has left; a subscription that is not durable goes with the last one."""
        session.closed = True
        if session in self.sessions:
            self.sessions.remove(session)
        for position in self._held_by(session):
            self.release(position)
        if not self.durable and not self.sessions:
            self.forget(no)

    def give_back(self, session: Session, positions: list[Position]) -> None:
        """REDELIVER; without positions, of everything."""
        if session.kind not in INDIVIDUAL_ACK_TYPES:
            if session.active:
                session.rewound()
            return
        for position in self._held_by(session):
            if not positions or position in positions:
                self.release(position)

    def _held_by(self, session: Session) -> list[Position]:
        """What may be pending at a consumer."""
        return [each for each, holder in self._pending.items() if holder is session]

    @property
    def _pending(self) -> dict[Position, Session]:
        """Entries that may be pending, and at which consumers."""
        return self.doubtful | self.holders

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
        if self.txns and self.is_pending(position, session.client.now_ms()):
            raise Broken(f"{what}, where transactions have acknowledged it")
        if mask & self.gone.get(position, 0):
            raise Broken(f"{what}, where it is acknowledged: {mask:b} & {self.gone[position]:b}")
        self.done[position] = full(message.count) & ~mask
        self._spend(session, what, mask.bit_count())
        if session.kind in INDIVIDUAL_ACK_TYPES:
            if session.kind == SHARED and session.run:
                self._in_turn(session, what)
            self._to_one_of_many(session, position, message, what)
        else:
            self._to_active(session, position, what)

    def _spend(self, session: Session, what: str, messages: int) -> None:
        session.entries += 1
        if session.entries > session.granted:
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
            if each not in session.seen and self.is_owed(each, session.client.now_ms()):
                raise Broken(f"{what} before {self.topic.at[each]} at {each}")
        session.seen.add(position)
        session.last = position

    def _in_turn(self, session: Session, what: str) -> None:
        """Shared: nobody gets much more than others of the same priority, or comes before a better one."""
        session.passed = 0
        for other in self.sessions:
            if other is session or other.permits <= 0 or not other.client.reads:
                other.passed = 0
            elif other.priority < session.priority:
                raise Broken(f"{what} before {other}, whose priority is better")
            elif other.priority == session.priority:
                other.passed += 1
                if other.passed > 3 * session.run * len(self.sessions):
                    raise Broken(f"{what}, but {other} gets nothing")

    def _to_one_of_many(self, session: Session, position: Position, message: Message, what: str) -> None:
        if position in self.holders:
            raise Broken(f"{what}, while it is pending at {self.holders[position]}")
        if session.kind == KEY_SHARED and session.ordered:
            now_ms = session.client.now_ms()
            for other, holder in self.holders.items():
                same = holder is not session and self.topic.at[other].key == message.key
                if same and not self.topic.expires(other, now_ms):
                    raise Broken(f"{what}, while {other} of its key is pending at {holder}")
            order = self.topic.order
            for each in order[: bisect_left(order, position)]:
                if (
                    self.topic.at[each].key == message.key
                    and each not in self.holders
                    and self.is_owed(each, now_ms)
                ):
                    raise Broken(f"{what} before {each} of its key")
        self.doubtful.pop(position, None)
        self.holders[position] = session

    # -- when nothing more will happen by itself

    def starving(self, now_ms: int, limit: int) -> str:
        """Which message does not come, although somebody could get it; "" if none."""
        if not self.sessions or self.topic.blocked() or not self.durable:
            return ""
        due = [
            each
            for each in self.topic.order
            if each not in self.holders
            and each not in self.doubtful
            and self.topic.at[each].due_ms <= now_ms
            and self.is_owed(each, now_ms)
        ]
        able = [each for each in self.sessions if each.permits > 0 and each.client.reads]
        if self.sessions[0].kind not in INDIVIDUAL_ACK_TYPES:
            if not self.closed_one and not any(each.active for each in self.sessions):
                return f"{self} has no active consumer"
            for session in able:
                missing = [each for each in due if each not in session.seen]
                if session.active and missing:
                    return f"{missing[0]} of {self} does not come to {session}"
            return ""
        unacked = dict.fromkeys(self.sessions, 0)
        for position, holder in self._pending.items():
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
        held = [self.topic.at[each].slots for each in self._pending]
        return all(each[0] != slots[0] and each[1] != slots[1] for each in held)
