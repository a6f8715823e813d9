"""A client's connection to a broker, shared by requests and by the producers and consumers on it.

    Link.open      TCP, TLS, CONNECT … CONNECTED (with rounds of AUTH_CHALLENGE)
    send           sends frames as they are
    request        sends a command with a request id and returns its answer; BrokerError if refused
    claim          registers who gets the frames of a producer, a consumer or a watcher

The protocol itself is in `net/protocol.py`; this module has the socket and the futures of callers that wait.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import count
from typing import Any, Final, Protocol

from pulsarctl_wire.errors import LinkClosed, RequestTimeout, Unreachable, WireError
from pulsarctl_wire.net.driver import Warnings, now
from pulsarctl_wire.net.frame_socket import FrameSocket, Tap
from pulsarctl_wire.net.protocol import HANDSHAKE, PING, Challenge, ClientProtocol, Outcome, find_subject
from pulsarctl_wire.net.settings import Address, Settings
from pulsarctl_wire.net.sockets import explain_failure
from pulsarctl_wire.wire.frame import Connection, Event, Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand

_LOOPBACK: Final = {"localhost", "127.0.0.1", "::1"}
_DEFAULT_PORT: Final = 6650


class Owner(Protocol):
    """The producer, consumer or watcher that has claimed an id on a link."""

    def on_frame(self, frame: Frame) -> None:
        """Handle a frame about this id."""

    def on_loss(self, error: LinkClosed) -> None:
        """Handle the end of the link."""


class Link(FrameSocket):
    """An open connection; see `open`. It must be used from one event loop only.

    Attributes in addition to FrameSocket's: `address`; `observe`, if set, is called with each frame, and with
    bytes that are not a frame.
    """

    protocol: ClientProtocol

    def __init__(
        self,
        settings: Settings,
        address: Address,
        numbers: Iterator[int],
        tap: Tap | None,
        warn: Warnings | None,
    ) -> None:
        super().__init__(ClientProtocol(Connection(-1), address, tls=settings.url.tls), tap, warn)
        self.settings = settings
        self.address = address
        self.observe: Callable[[Event], None] | None = None
        self._numbers = numbers
        self._waiting: dict[int, Callable[[Outcome], object]] = {}
        self._owners: dict[tuple[str, int], Owner] = {}

    # -- opening

    @classmethod
    async def open(
        cls,
        address: Address,
        settings: Settings,
        *,
        numbers: Iterator[int] | None = None,
        proxy_to: str = "",
        tap: Tap | None = None,
        warn: Warnings | None = None,
        handshake: bool = True,
    ) -> "Link":
        """Connect to `address`, with TLS if the service URL asks for it, and do the handshake.

        The connection takes its number from `numbers` once it is made. `proxy_to` is the broker ("host:port")
        that a Pulsar proxy must connect us to. Without `handshake` nothing is sent.
        Raises Unreachable, BrokerError (refused credentials), RequestTimeout; LinkClosed if it is lost
        during the handshake.
        """
        link = cls(settings, address, numbers or count(), tap, warn)
        try:
            await asyncio.wait_for(link._connect(), settings.connect_timeout)
            if handshake:
                await link._greet(proxy_to)
        except (TimeoutError, asyncio.TimeoutError):
            await link.close()
            missing = f"no TCP connection{' or TLS handshake' if settings.url.tls else ''}"
            raise RequestTimeout(f"{address}: {missing} within {settings.connect_timeout:g} s") from None
        except BaseException:
            await link.close()
            raise
        return link

    async def _connect(self) -> None:
        address = self.address
        context = self.settings.tls_context() if self.settings.url.tls else None
        try:
            await self.loop.create_connection(lambda: self, address.host, address.port, ssl=context)
        except (OSError, ValueError) as error:
            raise explain_failure(address, error, has_tls=context is not None) from None

    def connection_made(self, transport: Any) -> None:
        """asyncio: TCP (and TLS) is connected. Only a connected link gets a number, as in captures."""
        self.connection.index = next(self._numbers)
        super().connection_made(transport)

    async def _greet(self, proxy_to: str) -> None:
        auth, settings = self.settings.auth, self.settings
        credentials = None if auth.method == "none" else (auth.method, auth.data())
        self.protocol.connect(credentials, proxy_to, now(), settings.connect_timeout)
        await self._await_outcome(HANDSHAKE)
        if self.protocol.server_version >= 1:  # brokers that speak version 0 know no PING
            self.protocol.keep_alive(settings.keep_alive, now())
            self.sync()

    # -- requests

    async def request(self, command: BaseCommand, *, timeout: float | None = None) -> Frame:
        """Send `command` with a new request id; return the frame that answers it.

        Waits up to `timeout` seconds (default: as in the settings), or forever once the broker has told a
        producer to wait for its turn. Raises BrokerError if the broker refuses, RequestTimeout, LinkClosed.
        """
        if not self.is_open:
            raise self.protocol.end_error
        seconds = self.settings.timeout if timeout is None else timeout
        return await self._await_outcome(self.protocol.request(command, now(), seconds))

    async def _await_outcome(self, number: int) -> Frame:
        answer: asyncio.Future[Outcome] = self.loop.create_future()

        def on_outcome(outcome: Outcome) -> None:
            if not answer.done():
                answer.set_result(outcome)

        self._waiting[number] = on_outcome
        try:
            self.sync()
            outcome = await answer
        finally:
            self.forget(number)
        if outcome.frame is None or outcome.error is not None:
            raise outcome.error or self.protocol.end_error
        return outcome.frame

    def begin(
        self, command: BaseCommand, on_outcome: Callable[[Outcome], object] = lambda outcome: None
    ) -> int:
        """Send `command` with a new request id; return that id. `on_outcome` is called with its outcome.

        Raises LinkClosed.
        """
        number = self.protocol.request(command, now(), self.settings.timeout)
        self._waiting[number] = on_outcome
        self.sync()
        return number

    def forget(self, number: int) -> None:
        """Stop waiting for the answer to request `number`."""
        self._waiting.pop(number, None)
        self.protocol.forget(number)

    def claim(self, kind: str, number: int, owner: Owner) -> None:
        """Pass frames about `kind` ("producer_id", "consumer_id", "watcher_id") `number` to `owner`."""
        self._owners[kind, number] = owner

    def release(self, kind: str, number: int) -> None:
        """Undo `claim`."""
        self._owners.pop((kind, number), None)

    # -- receiving

    def handle(self, event: Event | Outcome | Challenge) -> None:
        """Handle a frame, the outcome of a request, or a request for credentials."""
        if isinstance(event, Outcome):
            on_outcome = self._waiting.pop(event.number, None)
            if on_outcome is not None:
                on_outcome(event)
        elif isinstance(event, Challenge):
            self._respond()
        else:
            if self.observe is not None:
                self.observe(event)
            if isinstance(event, Frame) and not event.partial:
                subject = find_subject(event)
                owner = self._owners.get(subject) if subject is not None else None
                if owner is not None:
                    owner.on_frame(event)

    def _respond(self) -> None:
        if not self.is_open or self.protocol.paused:
            return  # do not pile up answers for a peer that reads nothing
        auth = self.settings.auth
        try:
            self.protocol.respond(auth.method, auth.data())
        except WireError as error:
            self.drop(str(error))
        self.sync()

    async def ping(self, timeout: float) -> int:
        """Send a PING, wait for the PONG; return the round trip in ns. Raises RequestTimeout, LinkClosed."""
        pong: asyncio.Future[int] = self.loop.create_future()

        def watch(event: Event) -> None:
            if isinstance(event, Frame) and event.type == BaseCommand.PONG and not pong.done():
                pong.set_result(now().ticks)

        observer, self.observe = self.observe, watch
        start = now().ticks
        try:
            self.send(PING)
            futures: list[asyncio.Future[Any]] = [pong, self.closed]
            await asyncio.wait(futures, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.observe = observer
        if pong.done():
            return pong.result() - start
        if self.closed.done():
            raise self.protocol.end_error
        raise RequestTimeout(f"{self.address}: PING was not answered by PONG within {timeout:g} s")

    # -- the end

    def over(self) -> None:
        """Notify the owners that the connection has ended."""
        error = self.protocol.end_error
        owners, self._owners = self._owners, {}
        for owner in owners.values():
            owner.on_loss(error)

    async def close(self) -> None:
        """Send the waiting bytes, and close; the owners of ids are not notified."""
        self._owners.clear()
        await super().close()


async def open_first_link(
    addresses: Sequence[Address], settings: Settings, connect: Callable[[Address], Awaitable[Link]]
) -> Link:
    """Return a link to the first host of the service URL that can be reached. Raises as `Link.open` does."""
    errors: list[Unreachable | RequestTimeout] = []
    while len(errors) < len(addresses):
        address = addresses[len(errors)]
        try:
            return await connect(address)
        except (Unreachable, RequestTimeout) as error:
            errors.append(error)
    hints = (
        f"tried {settings.url}; another: --url{'' if settings.url.tls else _suggest_start(addresses, errors)}"
    )
    raise type(errors[0])(f"{'; '.join(map(str, errors))} ({hints})")


def _suggest_start(addresses: Sequence[Address], errors: Sequence[Exception]) -> str:
    """Return how to start a broker, if nobody listens at the only address, and it is on this machine."""
    address = addresses[0]
    if len(addresses) > 1 or address.host not in _LOOPBACK or str(errors[0]) != f"{address}: refused":
        return ""
    port = "" if address.port == _DEFAULT_PORT else f" --port {address.port}"
    return f"; pwire broker{port} starts one"
