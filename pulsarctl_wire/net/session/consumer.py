"""A consumer at a broker: connects a `ReceiveQueue` (`net/session/receive_queue.py`) to a link and the clock.

When the link is lost, or the broker closes the consumer (CLOSE_CONSUMER, TOPIC_MIGRATED), it is opened again.
"""

import asyncio
import secrets
from collections.abc import Callable
from functools import partial
from typing import Any

from pulsarctl_wire.errors import LinkClosed, SessionError
from pulsarctl_wire.net.driver import now
from pulsarctl_wire.net.protocol import Outcome
from pulsarctl_wire.net.session.acks import AckRequest, GivenUp
from pulsarctl_wire.net.session.client import FIRST_PAUSE, Client
from pulsarctl_wire.net.session.endpoint import Endpoint
from pulsarctl_wire.net.session.inbox import Delivery, Inbox
from pulsarctl_wire.net.session.receive_queue import Changed, ConsumerOptions, ReceiveQueue
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.names import partition_index
from pulsarctl_wire.wire.payload import Message
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand


def make_reader_name() -> str:
    """Return a unique name for a temporary subscription."""
    return f"reader-{secrets.token_hex(5)}"


class Consumer(Endpoint):
    """Consumes one topic that is not partitioned, or one partition. Deliveries go to `inbox`.

    `on_change` is called after a delivery, when an attribute of `queue` has changed, and at the end of the
    consumer by an error. Attributes in addition to Endpoint's: the `queue` that receives, its `options` and
    `counts`, the `partition`, and the `budget` that limits how much is decompressed and shown.
    """

    KIND = "consumer"
    queue: ReceiveQueue["Consumer"]

    def __init__(
        self,
        client: Client,
        topic: str,
        options: ConsumerOptions,
        inbox: Inbox["Consumer"],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        number = next(client.ids)
        super().__init__(client, topic, number, ReceiveQueue(self, topic, number, options, inbox))
        self.options = options
        self.counts = self.queue.counts
        self.partition = partition_index(topic)
        self.budget = inbox.budget
        self._on_change = on_change
        self._confirming: dict[int, Callable[[], None]] = {}  # ACK number -> stops waiting for its answer

    # -- opening and closing

    def _on_end(self, error: SessionError) -> None:
        self._on_change()

    def resume(self) -> None:
        """Reopen the consumer, whatever its type, to get the messages that were dropped."""
        if self.queue.halted and self._is_open and self.link is not None:
            self.queue.acks.send_waiting()
            self.sync()
            self.link.begin(self._close_command())
            self.queue.ended = False
            self.on_loss(LinkClosed("messages were dropped, as too many waited"))

    async def ask(self, name: str, **fields: Any) -> Any:
        """Send a request about this consumer ("SEEK", "UNSUBSCRIBE", …); return its answer's body."""
        if self.error is not None:
            raise self.error
        assert self.link is not None
        return (await self.link.request(build_command(name, consumer_id=self.id, **fields))).body

    async def close(self) -> None:
        """Send the waiting acknowledgements, and close."""
        self._closing = True
        self.stop_timer()
        if self._is_open:
            await self.flush_acks()
        await super().close()
        if self.queue.acks.unsent_ids:
            self._client.warn(
                f"{self.topic}: {self.queue.acks.unsent_ids} acknowledgements are not confirmed"
            )

    # -- deliveries

    @property
    def generation(self) -> int:
        """A number that is raised whenever the broker redelivers everything (see `ReceiveQueue`)."""
        return self.queue.generation

    def open_entry(self, delivery: Delivery["Consumer"]) -> bool:
        """Open the entry of a delivery; return False if it has no message to be consumed."""
        has_messages = self.queue.open_entry(delivery)
        self.sync()
        return has_messages

    def release_permits(self, delivery: Delivery["Consumer"]) -> None:
        """Give the permits of a consumed delivery back to the broker."""
        self.queue.release_permits(delivery, now())
        self.sync()

    def report_unopened(self, delivery: Delivery["Consumer"], reason: str) -> None:
        """Warn about and count an entry that was not shown completely; see `ReceiveQueue`."""
        self.queue.report_unopened(delivery, reason)
        self.sync()

    def note(self, entry_id: tuple[int, int], text: str, kind: str = "notes on entries") -> None:
        """Warn about the entry with this id."""
        self.queue.note(entry_id, text, kind)
        self.sync()

    def ack(self, delivery: Delivery["Consumer"], message: Message | None = None) -> None:
        """Acknowledge `message`, or all opened messages of the delivery if it is None."""
        self.queue.ack(delivery, message, now())
        self.sync()

    def ack_cumulatively(self, delivery: Delivery["Consumer"], message: Message) -> None:
        """Acknowledge everything up to and including `message`; see `ReceiveQueue`."""
        self.queue.ack_cumulatively(delivery, message)
        self.sync()

    def nack(self, delivery: Delivery["Consumer"]) -> None:
        """Ask for a delivery to be redelivered after `nack_delay`."""
        self.queue.nack(delivery, now())
        self.sync()

    async def flush_acks(self) -> None:
        """Send the waiting acknowledgements, and wait until they are confirmed."""
        if self._reopening is not None:
            await asyncio.wait([self._reopening])
        self.queue.acks.send_waiting()
        self.sync()
        while self._confirming:
            await self.wait_for_sync()

    # -- frames received, and events of the queue

    def on_frame(self, frame: Frame) -> None:
        """Handle a frame about this consumer."""
        if frame.type == BaseCommand.MESSAGE:
            self._pause = FIRST_PAUSE
        super().on_frame(frame)

    def handle(self, event: Changed | AckRequest | GivenUp) -> None:
        """Handle an event of the queue: send an ACK, stop waiting for one, or call `on_change`."""
        if isinstance(event, AckRequest):
            self._send_ack(event)
        elif isinstance(event, GivenUp):
            forget = self._confirming.pop(event.number, None)
            if forget is not None:
                forget()
        else:
            self._on_change()

    def _send_ack(self, request: AckRequest) -> None:
        command = build_command("ACK", consumer_id=self.id, ack_type=request.kind, message_id=request.ids)
        link, on_outcome = self.link, partial(self._settle_ack, request.number)
        assert link is not None  # the queue is ready for acknowledgements
        try:
            self._confirming[request.number] = partial(link.forget, link.begin(command, on_outcome))
        except LinkClosed:
            self.queue.acks.settle(request.number, is_lost=True)

    def _settle_ack(self, number: int, outcome: Outcome) -> None:
        self._confirming.pop(number, None)
        is_lost = isinstance(outcome.error, LinkClosed)
        self.queue.acks.settle(number, is_lost=is_lost)
        if outcome.error is not None and not is_lost:
            self.warn(f"{self.topic}: {outcome.error}")
        self.sync()
