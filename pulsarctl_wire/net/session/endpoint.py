"""The common base of producers and consumers: opens them at a broker, reopens them, and closes them.

Messages are handled by the endpoint's `queue`, which is pure; this module has its link, timer and tasks. An
endpoint looks up its topic and registers at the broker. When its link is lost, or the broker closes it
(CLOSE_PRODUCER, CLOSE_CONSUMER, maybe after TOPIC_MIGRATED), it registers again: at the broker it was
assigned to if one was named, otherwise where a lookup says.
"""

import asyncio
from typing import Any, ClassVar

from pulsarctl_wire.errors import LinkClosed, RequestTimeout, SessionError
from pulsarctl_wire.net.driver import Driver, now
from pulsarctl_wire.net.session.client import FIRST_PAUSE, LONGEST_PAUSE, Broker, Client
from pulsarctl_wire.net.session.link import Link
from pulsarctl_wire.net.session.receive_queue import ReceiveQueue
from pulsarctl_wire.net.session.send_queue import SendQueue
from pulsarctl_wire.net.settings import Address
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand


class Endpoint(Driver):
    """Base of Producer and Consumer.

    Attributes: `topic` (a full name), `id`, `link` (where it last registered), `error` (what ended it).
    """

    KIND: ClassVar[str]
    """"producer" or "consumer"."""

    queue: SendQueue | ReceiveQueue[Any]
    """The state of what it sends or receives."""

    def __init__(self, client: Client, topic: str, number: int, queue: SendQueue | ReceiveQueue[Any]) -> None:
        super().__init__(queue, client.warn)
        self.queue = queue
        self.topic = topic
        self.id = number
        self.link: Link | None = None
        self.error: SessionError | None = None
        self._client = client
        self._key = f"{self.KIND}_id"
        self._opened = self._closing = False
        self._assigned: Broker | None = None
        self._proxy: Address | None = None
        self._loss: LinkClosed | None = None  # how it was lost since it last registered
        self._reopening: asyncio.Task[None] | None = None
        self._pause = FIRST_PAUSE  # before it is reopened; doubled each time until messages flow again

    # -- for subclasses

    def _on_end(self, error: SessionError) -> None:
        """Do what the end of the endpoint, by `error`, requires."""
        raise NotImplementedError

    # -- opening and closing

    async def open(self) -> None:
        """Register at the broker of the topic. Raises SessionError."""
        try:
            await self._client.retry(self._register, f"{self.KIND} of {self.topic}")
        except RequestTimeout:
            # the broker may only be slow: tell it that nobody waits any more
            if self.link is not None and self.link.is_open:
                self.link.begin(self._close_command())
                self.link.release(self._key, self.id)
            raise

    def _close_command(self) -> BaseCommand:
        return build_command(f"CLOSE_{self.KIND.upper()}", **{self._key: self.id})

    async def _register(self) -> None:
        broker, self._assigned = self._assigned or await self._client.lookup(self.topic), None
        link = await self._client.open_link(broker)
        if self._closing:  # `close` could not send anything yet
            raise SessionError(f"the {self.KIND} was closed before it was open")
        if self.link is not None and self.link is not link:
            self.link.release(self._key, self.id)  # from now on its loss must not reopen the endpoint
        self._proxy = broker.address if broker.proxy_to else None
        link.claim(self._key, self.id, self)
        self.link, self._loss = link, None
        answer = await link.request(self.queue.make_command(now()))
        self.queue.on_registered(answer.body, link.protocol.max_message_size)
        if self._loss is not None:  # it was lost right after the answer
            raise self._loss
        self._opened = True
        self.queue.on_open(now())
        self.sync()

    @property
    def _is_open(self) -> bool:
        """Whether it is open at the broker, as far as we know."""
        link = self.link
        return self._reopening is None and self.error is None and link is not None and link.is_open

    async def close(self) -> None:
        """Close it, without waiting for anything pending."""
        self._closing = True
        self.stop_timer()
        if self._reopening is not None:
            self._reopening.cancel()
        if self.link is None or not self._is_open:
            return
        try:
            await self.link.request(self._close_command())
        except SessionError as error:
            self._client.warn(str(error))
        self.link.release(self._key, self.id)

    # -- frames from the broker, and reopening

    def on_frame(self, frame: Frame) -> None:
        """Handle a frame about this endpoint."""
        self.queue.on_frame(frame, now())
        self.sync()
        kind = frame.type
        if kind == BaseCommand.TOPIC_MIGRATED:
            self._assign(frame.body.brokerServiceUrl, frame.body.brokerServiceUrlTls, frame.command)
        elif kind in (BaseCommand.CLOSE_PRODUCER, BaseCommand.CLOSE_CONSUMER):
            url, url_tls = frame.body.assignedBrokerServiceUrl, frame.body.assignedBrokerServiceUrlTls
            if url or url_tls:
                self._assign(url, url_tls, frame.command)
            self.on_loss(LinkClosed(f"the broker closed the {self.KIND}"))

    def _assign(self, url: str | bytes, url_tls: str | bytes, source: str) -> None:
        try:
            self._assigned = self._client.make_broker(
                as_text(url), as_text(url_tls), source, through=self._proxy
            )
        except SessionError as error:
            self._client.warn(f"{self.topic}: {error}")

    def on_loss(self, error: LinkClosed) -> None:
        """Open the endpoint again, after the link has ended or the broker has closed the endpoint."""
        self.queue.suspend()
        self._loss = error
        if not self._opened or self._closing or self.error is not None or self._reopening is not None:
            return
        if not self._client.settings.reconnect:
            self._end(error)
            return
        self._client.warn(f"{self.KIND} of {self.topic}: {error}; opening it again")
        self._reopening = asyncio.get_running_loop().create_task(self._open_again())

    async def _open_again(self) -> None:
        name = f"{self.KIND} of {self.topic}"
        try:
            await self._client.retry(self._register, name, opened_before=True, pause=self._pause)
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
        except SessionError as error:
            self._end(error)
        finally:
            self._reopening = None

    def _end(self, error: SessionError) -> None:
        self.error = error
        self._on_end(error)

    # -- sending

    def write(self, data: bytes) -> None:
        """Send a frame, if the link is open."""
        if self.link is not None and self.link.is_open:
            self.link.send(data)
