"""A client's connection to a broker, shared by requests and by the producers and consumers on it.

    Link.open      TCP, TLS, CONNECT … CONNECTED (with rounds of AUTH_CHALLENGE)
    send           sends frames as they are
    request        sends a command with a request id and returns its answer; BrokerError if refused
    claim          registers who gets the frames of a producer, a consumer or a watcher

The protocol itself is in `net/protocol.py`; this module has the socket and the futures of callers that wait.
"""

import asyncio
import errno
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import count
from typing import Any, Final, Protocol

from pulsarctl_wire.errors import LinkClosed, RequestTimeout, Unreachable, WireError
from pulsarctl_wire.net.driver import Warnings, now
from pulsarctl_wire.net.frame_socket import FrameSocket, Tap
from pulsarctl_wire.net.protocol import HANDSHAKE, PING, Challenge, ClientProtocol, Outcome, subject_of
from pulsarctl_wire.net.settings import Address, Settings
from pulsarctl_wire.wire.frame import Connection, Event, Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand

_OTHER_HOST: Final = {62, 64}
"""OpenSSL's error codes for a certificate of another host name, or IP address."""

_LOOPBACK: Final = {"localhost", "127.0.0.1", "::1"}
_DEFAULT_PORT: Final = 6650


class Owner(Protocol):
    """The producer, consumer or watcher that has claimed an id on a link."""

    def received(self, frame: Frame) -> None:
        """The link has received a frame about this id."""

    def lost(self, error: LinkClosed) -> None:
        """The link has ended."""


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
        Raises Unreachable, BrokerError (refused credentials), RequestTimeout.
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
        except ssl.SSLCertVerificationError as error:
            why = error.verify_message.rstrip(".")
            hint = "name its CA with --tls-ca, or use --tls-allow-insecure"
            if error.verify_code in _OTHER_HOST:
                hint = "connect by a name in the certificate, or use --no-tls-hostname-check"
            raise Unreachable(f"{address}: its certificate is not trusted: {why}; {hint}") from None
        except (ssl.SSLError, ConnectionResetError, ConnectionAbortedError) as error:
            why = getattr(error, "reason", None) or error.strerror or "the connection was closed"
            hint = (
                "is this a port without TLS? Then its URL begins with pulsar://" if context else "try again"
            )
            raise Unreachable(
                f"{address}: {'no TLS there' if context else 'reset'} ({why}); {hint}"
            ) from None
        except (socket.gaierror, ValueError) as error:  # ValueError: not a valid name at all
            why = getattr(error, "strerror", None) or "not a valid host name"
            raise Unreachable(f"{address.host}: no such host ({why})") from None
        except OSError as error:
            raise Unreachable(f"{address}: {_why(error)}") from None

    def connection_made(self, transport: Any) -> None:
        """asyncio: TCP (and TLS) is connected. Only now does it get a number, as captures number them."""
        self.connection.index = next(self._numbers)
        super().connection_made(transport)

    async def _greet(self, proxy_to: str) -> None:
        auth, settings = self.settings.auth, self.settings
        credentials = None if auth.method == "none" else (auth.method, auth.data())
        self.protocol.connect(credentials, proxy_to, now(), settings.connect_timeout)
        await self._outcome(HANDSHAKE)
        if self.protocol.server_version >= 1:
            self.protocol.keep_alive(settings.keep_alive, now())
            self.sync()

    # -- requests

    async def request(self, command: BaseCommand, *, timeout: float | None = None) -> Frame:
        """Send `command` with a new request id; return the frame that answers it.

        Waits up to `timeout` seconds (default: as in the settings), or forever once the broker has told a
        producer to wait for its turn. Raises BrokerError if the broker refuses, RequestTimeout, LinkClosed.
        """
        if not self.is_open:
            raise self.protocol.ended
        seconds = self.settings.timeout if timeout is None else timeout
        return await self._outcome(self.protocol.request(command, now(), seconds))

    async def _outcome(self, number: int) -> Frame:
        answer: asyncio.Future[Outcome] = self.loop.create_future()

        def done(outcome: Outcome) -> None:
            if not answer.done():
                answer.set_result(outcome)

        self._waiting[number] = done
        try:
            self.sync()
            outcome = await answer
        finally:
            self.forget(number)
        if outcome.frame is None or outcome.error is not None:
            raise outcome.error or self.protocol.ended
        return outcome.frame

    def begin(self, command: BaseCommand, done: Callable[[Outcome], object] = lambda outcome: None) -> int:
        """Send `command` with a new request id; return that id. `done` is called with the outcome.

        Raises LinkClosed.
        """
        number = self.protocol.request(command, now(), self.settings.timeout)
        self._waiting[number] = done
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
            done = self._waiting.pop(event.number, None)
            if done is not None:
                done(event)
        elif isinstance(event, Challenge):
            self._respond()
        else:
            if self.observe is not None:
                self.observe(event)
            if isinstance(event, Frame) and not event.partial:
                subject = subject_of(event)
                owner = self._owners.get(subject) if subject is not None else None
                if owner is not None:
                    owner.received(event)

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
        done: asyncio.Future[int] = self.loop.create_future()

        def watch(event: Event) -> None:
            if isinstance(event, Frame) and event.type == BaseCommand.PONG and not done.done():
                done.set_result(now().ticks)

        before, self.observe = self.observe, watch
        sent = now().ticks
        try:
            self.send(PING)
            either: list[asyncio.Future[Any]] = [done, self.closed]
            await asyncio.wait(either, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.observe = before
        if done.done():
            return done.result() - sent
        if self.closed.done():
            raise self.protocol.ended
        raise RequestTimeout(f"{self.address}: PING was not answered by PONG within {timeout:g} s")

    # -- the end

    def over(self) -> None:
        """The connection has ended: notify its owners."""
        error = self.protocol.ended
        owners, self._owners = self._owners, {}
        for owner in owners.values():
            owner.lost(error)

    async def close(self) -> None:
        """Send the waiting bytes, and close; the owners of ids are not notified."""
        self._owners.clear()
        await super().close()


async def first_link(
    addresses: Sequence[Address], settings: Settings, connect: Callable[[Address], Awaitable[Link]]
) -> Link:
    """A link to the first host of the service URL that can be reached. Raises the same as `Link.open`."""
    tried: list[Unreachable | RequestTimeout] = []
    while len(tried) < len(addresses):
        address = addresses[len(tried)]
        try:
            return await connect(address)
        except (Unreachable, RequestTimeout) as error:
            tried.append(error)
    hints = f"tried {settings.url}; another: --url{'' if settings.url.tls else _starting(addresses, tried)}"
    raise type(tried[0])(f"{'; '.join(map(str, tried))} ({hints})")


def _why(error: OSError) -> str:
    """Why no connection was made; for a name with several addresses asyncio joins the errors of all."""
    numbers = {int(number) for number in re.findall(r"\[Errno (\d+)\]", str(error))}
    refused = errno.ECONNREFUSED in numbers and numbers <= {errno.ECONNREFUSED, errno.EADDRNOTAVAIL}
    return "refused" if refused else error.strerror or str(error)


def _starting(addresses: Sequence[Address], tried: Sequence[Exception]) -> str:
    """How to start a broker, if nobody listens at the only address, and it is on this machine."""
    address = addresses[0]
    if len(addresses) > 1 or address.host not in _LOOPBACK or str(tried[0]) != f"{address}: refused":
        return ""
    port = "" if address.port == _DEFAULT_PORT else f" --port {address.port}"
    return f"; pwire broker{port} starts one"
