"""What must be true of a broker, judged by what went over its connections, in this order.

A position is a message id (ledger, entry). Times are numbers of events: `no`. sim_subscription.py has what
subscriptions owe.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.sim_subscription import Ack, Subscription

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
        self.compacts = ""
        """Its key for compaction; empty if compaction may drop it."""
        self.slots = (0, 0)
        """Of its key: by consistent hashing, and in ranges."""
        self.due_ms = 0
        self.txn: Txn | None = None
        self.no = NEVER
        """When it was first sent."""
        self.sent_ms = 0
        self.stored = False
        """Whether a receipt said so."""
        self.positions: list[Position] = []
        self.loose = False
        """Whether its topic may have been deleted since."""

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
            if commit and ack.answered:  # others may have been lost in a crash
                subscription.committed(ack)
            elif not commit and not ack.refused:
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
        """Whether what nobody needs may be deleted, even the topic itself."""
        self.ttl_ms = 0
        self.fenced = False
        """Whether producers may have been shut out without a word."""
        self.ending = False
        """Whether it was asked to terminate."""
        self.terminations = 0
        """Requests to terminate it that have no answer: they may end the next topic of its name."""
        self.stuck = False
        """Whether something was sent in a transaction that may have been over: it may hide what follows."""
        self.deleted_no = 0
        """When somebody asked to delete it, and has no answer yet."""
        self.compacted = False
        """Whether somebody asked for compaction."""
        self.buried: set[Position] = set()
        """Positions that were deleted with a former topic of its name."""
        self.last: Position | None = None
        """The last position, once it has terminated."""
        self.sequences: dict[str, int] = {}
        """The highest sequence id of each producer that has a receipt."""
        self.order: list[Position] = []
        self.at: dict[Position, Message] = {}
        self.messages: list[Message] = []
        self.doubtful: list[Message] = []
        """Those that may have been deleted: if not, their transactions may hide what follows them."""
        self.subscriptions: dict[str, Subscription] = {}

    def learn(self, position: Position, message: Message) -> None:
        """A message is at a position, durably."""
        known = self.at.get(position)
        if known is message:
            return
        if known is not None:
            raise Broken(f"{message} is at {position}, where {known} was")
        if position in self.buried:
            raise Broken(f"{message} is at {position}, which was deleted")
        if self.last is not None and position > self.last:
            raise Broken(f"{message} is at {position}, but the topic had ended at {self.last}")
        insort(self.order, position)
        self.at[position] = message
        message.positions.append(position)
        if self.deduplicates and len(message.positions) > 1 and not message.loose:
            raise Broken(f"{message} was stored twice: {message.positions}")
        for subscription in self.subscriptions.values():
            subscription.learn(position, message)

    # -- its end

    def deleting(self, no: int) -> None:
        """It may be deleted from now on."""
        self.deleted_no = no
        for message in self.messages:
            message.loose = True
            message.positions.clear()
        self.doubtful += [message for message in self.messages if message.no != NEVER]
        self.messages = [message for message in self.messages if message.no == NEVER]
        self.sequences.clear()
        for subscription in self.subscriptions.values():
            if subscription.exists != "no":
                subscription.unsubscribing(no)

    def deleted(self, no: int) -> None:
        """It was answered that it is deleted: that has happened since it was asked for."""
        for subscription in self.subscriptions.values():
            subscription.unsubscribed(self.deleted_no, no)
        self.deleting(no)
        for message in self.at.values():
            message.positions.clear()
        self.buried |= self.at.keys()
        self.order.clear()
        self.at.clear()
        self.doubtful.clear()
        self.ending, self.last, self.deleted_no = self.terminations > 0, None, 0

    def crashed(self, no: int) -> None:
        """The broker has crashed: it may have been deleted, or not."""
        self.terminations = 0
        if self.deleted_no:
            self.deleting(no)
            self.last, self.deleted_no, self.trims = None, 0, True

    def expires(self, position: Position, now_ms: int) -> bool:
        """Whether a message may have been acknowledged as it is too old."""
        return 0 < self.ttl_ms <= now_ms - self.at[position].sent_ms

    def blocked(self) -> bool:
        """Whether a transaction may hide what follows it."""
        return self.stuck or any(
            each.txn is not None and not each.txn.over and not each.txn.finished
            for each in (*self.messages, *self.doubtful, *self.at.values())  # some may be sent again
        )


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
        last = max(self.topic.sequences.get(message.producer, -1), sequence + message.count - 1)
        self.topic.sequences[message.producer] = last
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
