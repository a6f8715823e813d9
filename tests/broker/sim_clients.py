"""Clients of the simulation: what they know, what they have sent, and how they react."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from broker.sim_subscription import Ack, Session
from broker.sim_truth import Message, Position, Publisher, Txn

from pulsarctl_wire.broker.clients.connection import Connection
from pulsarctl_wire.conformance.basics.frames import make_frame
from pulsarctl_wire.wire.frame import Connection as Wire
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.framing.stream import FrameStream

Effect = Callable[[], None] | None
OnAnswer = Callable[[Frame], None] | None


class Producer:
    """A producer as an application has it. `unanswered` are sent again when it is opened again."""

    def __init__(self, client: Client, id_: int, topic: str, name: str | None, mode: int) -> None:
        self.client = client
        self.id = id_
        self.topic = topic
        self.name = name
        self.mode = mode
        self.guest = False
        """Whether it only wants to have another one's name."""
        self.epoch = 0
        self.state = "closed"
        self.sequence = 0
        self.topic_epoch: int | None = None
        self.unanswered: deque[tuple[int, bytes, Message]] = deque()


class Consumer:
    """A consumer as an application has it; `received` are (position, messages, mask) not acknowledged."""

    def __init__(self, client: Client, id_: int, fields: dict[str, Any], options: dict[str, Any]) -> None:
        self.client = client
        self.id = id_
        self.fields = fields
        self.options = options
        self.state = "closed"
        self.received: dict[Position, tuple[int, int]] = {}


class Transaction:
    """A transaction as a client has it; `busy` counts answers that it waits for."""

    def __init__(self, truth: Txn) -> None:
        self.truth = truth
        self.topics: set[str] = set()
        self.subscriptions: set[tuple[str, str]] = set()
        self.busy = 0
        self.ending = False


class Client:
    """A client with at most one connection. What it sends waits in `outbox`, what it is sent in `inbox`."""

    def __init__(self, number: int, now_ms: Callable[[], int]) -> None:
        self.number = number
        self.now_ms = now_ms
        self.connection: Connection | None = None
        self.home = 0
        """The number of the broker that it connects to."""
        self.rests_until = 0
        """Until then (ticks) it does not go to another broker."""
        self.authoritative = False
        """Whether it was sent there by a lookup, and asks there authoritatively."""
        self.outbox: deque[tuple[bytes, Effect]] = deque()
        self.inbox: deque[Frame] = deque()
        self.answers: dict[int, tuple[OnAnswer, OnAnswer]] = {}
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []
        self.transactions: list[Transaction] = []
        self.sessions: dict[int, Session] = {}
        self.publishers: dict[int, Publisher] = {}
        self.frozen = False
        self.slow = False
        self.acks: list[Ack] = []
        self._ids = 0

    @property
    def reads(self) -> bool:
        """Whether it takes what it is sent."""
        return not self.slow and self.connection is not None

    def connected(self, connection: Connection) -> None:
        """It has a new connection."""
        self.connection = connection
        wire = Wire(self.number)
        self.to_broker = FrameStream(wire, to_broker=True)
        self.from_broker = FrameStream(wire, to_broker=False)

    def gone(self) -> None:
        """Its connection has ended."""
        self.connection = None
        self.outbox.clear()
        self.inbox.clear()
        self.answers.clear()
        self.transactions = [txn for txn in self.transactions if not txn.ending]
        for txn in self.transactions:
            unanswered = [message for it in self.producers for _, _, message in it.unanswered]
            txn.busy = sum(message.txn is txn.truth for message in unanswered)
        self.frozen = self.slow = False
        for producer in self.producers:
            if producer.state != "dead":
                producer.state = "closed"
        for consumer in self.consumers:
            consumer.state = "closed"

    def tell(self, name: str, effect: Effect = None, **fields: Any) -> None:
        """Send a command; `effect` is called when the broker gets it."""
        self.outbox.append((make_frame(name, **fields), effect))

    def ask(
        self,
        name: str,
        effect: Effect = None,
        answered: OnAnswer = None,
        reaction: OnAnswer = None,
        **fields: Any,
    ) -> None:
        """Send a request; `answered` is called when the answer is sent, `reaction` when it is read."""
        self._ids += 1
        self.answers[self._ids] = answered, reaction
        self.tell(name, effect, request_id=self._ids, **fields)

    def producer(self, id_: int) -> Producer | None:
        """Its producer of an id."""
        return next((each for each in self.producers if each.id == id_), None)

    def consumer(self, id_: int) -> Consumer | None:
        """Its consumer of an id."""
        return next((each for each in self.consumers if each.id == id_), None)

    def forget(self, it: Consumer) -> None:
        """It has this consumer no more."""
        if it in self.consumers:
            self.consumers.remove(it)
