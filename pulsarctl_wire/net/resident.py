"""What lives at a broker under an id of ours, a producer or a consumer: opened, moved, opened again, closed.

Its topic is looked up and it registers there. When its link is lost, or the broker closes it (CLOSE_PRODUCER,
CLOSE_CONSUMER, maybe behind TOPIC_MIGRATED), it registers again, at the broker it was assigned to if one was
named, else where a lookup says.
"""

import asyncio
from typing import Any, ClassVar

from pulsarctl_wire.errors import LinkClosed, SessionError, Unanswered
from pulsarctl_wire.net.client import FIRST_PAUSE, LONGEST_PAUSE, Broker, Client
from pulsarctl_wire.net.link import Link
from pulsarctl_wire.net.settings import Address
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.frame import Frame, build_frame
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand


class Resident:
    """Base of Producer and Consumer.

    Attributes: `topic` (a full name), `id`, `link` over which it registered last, `error` what ended it.
    """

    KIND: ClassVar[str]
    """"producer" or "consumer"."""

    def __init__(self, client: Client, topic: str) -> None:
        self.topic = topic
        self.id = next(client.ids)
        self.link: Link | None = None
        self.error: SessionError | None = None
        self._client = client
        self._key = f"{self.KIND}_id"
        self._opened = self._closing = False
        self._assigned: Broker | None = None
        self._proxy: Address | None = None
        self._gone: LinkClosed | None = None  # since it last registered
        self._reopening: asyncio.Task[None] | None = None
        self._pause = FIRST_PAUSE  # before it is opened again; longer if that does not last

    # -- for those who inherit

    async def _register(self, link: Link) -> None:
        """Send the request that opens it, and take its answer. Raises SessionError."""
        raise NotImplementedError

    def _settled(self) -> None:
        """It is open, for the first time or again."""
        raise NotImplementedError

    def _ended(self) -> None:
        """`error` has ended it."""
        raise NotImplementedError

    # -- opening and closing

    async def open(self) -> None:
        """Register at the broker of the topic. Raises SessionError."""
        try:
            await self._client.patiently(self._settle, f"{self.KIND} of {self.topic}")
        except Unanswered:
            # a broker that is slow is told that nobody waits any more
            if self.link is not None and self.link.is_open:
                self.link.send(build_frame(self._close_command(request_id=self.link.next_id())))
                self.link.release(self._key, self.id)
            raise

    def _close_command(self, **fields: Any) -> BaseCommand:
        return build_command(f"CLOSE_{self.KIND.upper()}", **{self._key: self.id}, **fields)

    async def _settle(self) -> None:
        broker, self._assigned = self._assigned or await self._client.lookup(self.topic), None
        link = await self._client.link(broker)
        if self.link is not None and self.link is not link:
            self.link.release(self._key, self.id)  # its end is nothing to us any more
        self._proxy = broker.address if broker.proxy_to else None
        link.claim(self._key, self.id, self)
        self.link, self._gone = link, None
        await self._register(link)
        if self._gone is not None:  # in the same breath as the answer
            raise self._gone
        self._opened = True
        self._settled()

    async def _leave(self) -> None:
        """Close it at the broker, if it is open there."""
        if self.link is None or not self.link.is_open or self.error is not None:
            return
        try:
            await self.link.request(self._close_command())
        except SessionError as error:
            self._client.warn(str(error))
        self.link.release(self._key, self.id)

    # -- losing the broker, and finding it again

    def received(self, frame: Frame) -> None:
        """A frame about this one: here those by which the broker gives it up or sends it elsewhere."""
        body, name = frame.body, frame.command
        if name == "TOPIC_MIGRATED":
            self._assign(body.brokerServiceUrl, body.brokerServiceUrlTls, name)
        elif name == f"CLOSE_{self.KIND.upper()}":
            if body.assignedBrokerServiceUrl or body.assignedBrokerServiceUrlTls:
                self._assign(body.assignedBrokerServiceUrl, body.assignedBrokerServiceUrlTls, name)
            self.lost(LinkClosed(f"the broker closed the {self.KIND}"))

    def _assign(self, url: str | bytes, url_tls: str | bytes, source: str) -> None:
        try:
            self._assigned = self._client.named(as_text(url), as_text(url_tls), source, through=self._proxy)
        except SessionError as error:
            self._client.warn(f"{self.topic}: {error}")

    def lost(self, error: LinkClosed) -> None:
        """The link has ended, or the broker gave it up."""
        self._gone = error
        if not self._opened or self._closing or self.error is not None or self._reopening is not None:
            return
        if not self._client.settings.reconnect:
            self._end(error)
            return
        self._client.warn(f"{self.KIND} of {self.topic}: {error}; opening it again")
        self._reopening = asyncio.get_running_loop().create_task(self._open_again())

    async def _open_again(self) -> None:
        what = f"{self.KIND} of {self.topic}"
        try:
            await self._client.patiently(self._settle, what, opened_before=True, pause=self._pause)
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
        except SessionError as error:
            self._end(error)
        finally:
            self._reopening = None

    def _end(self, error: SessionError) -> None:
        self.error = error
        self._ended()
