"""One connection to a broker: bytes in and out, the handshake, requests and their answers, PING and PONG.

    Link.open      TCP, TLS, CONNECT … CONNECTED (with rounds of AUTH_CHALLENGE)
    send           frames out, as they are
    request        a command with a request id out, its answer in; refused: BrokerError
    claim          who gets the frames of a producer, a consumer or a watcher

What comes in goes through the decoder's FrameStream. Bytes that are no frame end the connection, for what
comes after them cannot be trusted; a command nobody knows, or a frame with bytes too many, is passed over
with a warning. A `Tap` sees the bytes of both directions as they pass.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import Callable
from itertools import count
from typing import Any, Final, Protocol

from pulsarctl_wire import __version__
from pulsarctl_wire.errors import BrokerError, LinkClosed, Unanswered, Unreachable, WireError
from pulsarctl_wire.net.settings import Address, Settings
from pulsarctl_wire.net.warnings import Warnings
from pulsarctl_wire.wire.commands import (
    ANSWERS,
    BODIES,
    ERROR_FIELDS,
    FAILED,
    NUMBERS,
    REQUESTS,
    build_command,
    command_name,
)
from pulsarctl_wire.wire.fields import REFRESH, as_text
from pulsarctl_wire.wire.frame import (
    FRAME_PADDING,
    KEPT_FRAME,
    MAX_MESSAGE_SIZE,
    Connection,
    Event,
    Frame,
    build_frame,
)
from pulsarctl_wire.wire.PulsarApi_pb2 import (
    BaseCommand,
    FeatureFlags,
)
from pulsarctl_wire.wire.server_errors import MEANINGS, error_name
from pulsarctl_wire.wire.session import NO_REQUEST
from pulsarctl_wire.wire.stream import FrameStream

PROTOCOL_VERSION: Final = 21
"""What CONNECT says: the newest version of the protocol, as the Java client 4.0 has it."""

MOST_UNSENT: Final = 160 * 1024 * 1024
"""Bytes that wait to be sent: more than a producer has pending, and a message."""

_VERSION: Final = f"pulsarctl-wire-v{__version__}"
_OTHER_HOST: Final = {62, 64}
"""OpenSSL's codes for a certificate of another host name, or IP address."""
_FEATURES: Final = {
    "supports_auth_refresh": True,
    "supports_broker_entry_metadata": True,
    "supports_partial_producer": True,
    "supports_get_partitioned_metadata_without_auto_creation": True,
}
_MOST_ROUNDS: Final = 10  # of AUTH_CHALLENGE before CONNECTED, as in the Java client
_PONG: Final = build_frame(build_command("PONG"))
_PING: Final = build_frame(build_command("PING"))
_PRODUCER_SUCCESS: Final = NUMBERS["PRODUCER_SUCCESS"]
_ERROR: Final = NUMBERS["ERROR"]
_OWNERS: Final = {
    **dict.fromkeys(("SEND_RECEIPT", "SEND_ERROR", "CLOSE_PRODUCER"), "producer_id"),
    **dict.fromkeys(
        ("MESSAGE", "CLOSE_CONSUMER", "ACTIVE_CONSUMER_CHANGE", "REACHED_END_OF_TOPIC"), "consumer_id"
    ),
    "WATCH_TOPIC_UPDATE": "watcher_id",
}
_OWNER_FIELDS: Final = {NUMBERS[name]: key for name, key in _OWNERS.items()}


class Tap(Protocol):
    """Sees the bytes of links as they pass."""

    def opened(self, connection: Connection, time_ns: int) -> None:
        """A connection was made, at `time_ns` since the epoch."""

    def carried(self, connection: Connection, to_broker: bool, data: bytes, time_ns: int) -> None:
        """It carried `data`."""

    def closed(self, connection: Connection, time_ns: int, by_broker: bool) -> None:
        """It ended."""


class Owner(Protocol):
    """A producer, a consumer or a watcher: whoever an id on a link stands for."""

    def received(self, frame: Frame) -> None:
        """A frame about this id came."""

    def lost(self, error: LinkClosed) -> None:
        """The link has ended."""


class _Asked:
    """A request that waits for its answer."""

    __slots__ = ("answer", "name", "timer", "type")

    def __init__(self, kind: int, answer: "asyncio.Future[Frame]") -> None:
        self.type = kind
        self.name = command_name(kind)
        self.answer = answer
        self.timer: asyncio.TimerHandle | None = None


class Link(asyncio.Protocol):
    """An open connection; see `open`. All of it runs in one event loop.

    Attributes: `connection` its addresses, `server` the broker's version text, `server_version` its
    protocol version, `max_message_size` in bytes, `features` its FeatureFlags, `closed` a future that is
    done when the connection has ended.
    """

    def __init__(self, settings: Settings, address: Address, index: int, tap: Tap | None) -> None:
        self.settings = settings
        self.address = address
        self.connection = Connection(index)
        self.server = ""
        self.server_version = 0
        self.max_message_size = MAX_MESSAGE_SIZE
        self.features = FeatureFlags()
        self.warn = Warnings(lambda text: None)
        self.observe: Callable[[Event], None] | None = None
        loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._tap = tap
        self._transport: Any = None
        self._stream = FrameStream(self.connection, False)
        self._ids = count(1)
        self._asked: dict[int, _Asked] = {}
        self._owners: dict[tuple[str, int], Owner] = {}
        self._greeting: asyncio.Future[Frame] | None = None
        self._reason = ""
        self._parting = ""  # what the broker said last about the connection
        self._by_us = self._garbled = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._heard = self._pinged = False
        self._ticker: asyncio.TimerHandle | None = None

    # -- opening

    @classmethod
    async def open(
        cls,
        address: Address,
        settings: Settings,
        *,
        index: int = 0,
        proxy_to: str = "",
        tap: Tap | None = None,
        warn: Warnings | None = None,
        handshake: bool = True,
    ) -> "Link":
        """Connect to `address`, by TLS if the service URL asks for it, and shake hands.

        `proxy_to` is the broker ("host:port") that a Pulsar proxy is to pass us on to. Without
        `handshake` nothing is sent. Raises Unreachable, BrokerError (refused credentials), Unanswered.
        """
        link = cls(settings, address, index, tap)
        if warn is not None:
            link.warn = warn
        try:
            await asyncio.wait_for(link._connect(), settings.connect_timeout)
            if handshake:
                await asyncio.wait_for(link._greet(proxy_to), settings.connect_timeout)
        except (TimeoutError, asyncio.TimeoutError):
            await link.close()
            missing = f"no TCP connection{' or TLS handshake' if settings.url.tls else ''}"
            if link._transport is not None:
                missing = "CONNECT was not answered by CONNECTED"
            raise Unanswered(f"{address}: {missing} within {settings.connect_timeout:g} s") from None
        except BaseException:
            await link.close()
            raise
        if link.server_version >= 1:
            link._ticker = link._loop.call_later(settings.keep_alive, link._tick)
        return link

    async def _connect(self) -> None:
        address = self.address
        context = self.settings.tls_context() if self.settings.url.tls else None
        try:
            await self._loop.create_connection(lambda: self, address.host, address.port, ssl=context)
        except ssl.SSLCertVerificationError as error:
            why = error.verify_message.rstrip(".")
            way_out = "name its CA with --tls-ca, or --tls-allow-insecure"
            if error.verify_code in _OTHER_HOST:
                way_out = "connect by a name that it has, or --no-tls-hostname-check"
            raise Unreachable(f"{address}: its certificate is not trusted: {why}; {way_out}") from None
        except (ssl.SSLError, ConnectionResetError, ConnectionAbortedError) as error:
            why = getattr(error, "reason", None) or error.strerror or "the connection was closed"
            hint = (
                "is this a port without TLS? Its URL would begin with pulsar://" if context else "try again"
            )
            raise Unreachable(
                f"{address}: {'no TLS there' if context else 'reset'} ({why}); {hint}"
            ) from None
        except (socket.gaierror, ValueError) as error:  # ValueError: what cannot even be asked for
            why = getattr(error, "strerror", None) or "no host has such a name"
            raise Unreachable(f"{address.host}: no such host ({why})") from None
        except OSError as error:
            why = "refused" if isinstance(error, ConnectionRefusedError) else error.strerror or str(error)
            raise Unreachable(f"{address}: {why}") from None

    async def _greet(self, proxy_to: str) -> None:
        auth = self.settings.auth
        command = build_command(
            "CONNECT",
            client_version=_VERSION,
            auth_method_name=None if auth.method == "none" else auth.method,
            auth_data=None if auth.method == "none" else auth.data(),
            protocol_version=PROTOCOL_VERSION,
            proxy_to_broker_url=proxy_to or None,
            feature_flags=_FEATURES,
        )
        self._greeting = self._loop.create_future()
        try:
            self.send(build_frame(command))
            for _ in range(_MOST_ROUNDS + 1):
                frame = await self._greeting
                if frame.type == BaseCommand.CONNECTED:
                    self._connected(frame)
                    return
                self._greeting = self._loop.create_future()
                self._respond()
        except LinkClosed:
            raise self._silent() from None
        finally:
            self._greeting = None
        raise Unreachable(f"{self.address}: more than {_MOST_ROUNDS} rounds of AUTH_CHALLENGE")

    def _connected(self, frame: Frame) -> None:
        body = frame.body
        self.server = as_text(body.server_version)
        self.server_version = body.protocol_version
        self.features = body.feature_flags
        if body.max_message_size > 0:
            self.max_message_size = min(body.max_message_size, KEPT_FRAME)
            self._stream.limit = self.max_message_size + FRAME_PADDING

    def _respond(self) -> None:
        if not self.is_open or not self._writable.is_set():
            return  # a peer that takes nothing gets no answers heaped up
        auth = self.settings.auth
        try:
            data = auth.data()
        except WireError as error:
            self.drop(str(error))
            return
        response = {"auth_method_name": auth.method, "auth_data": data}
        answer = build_command(
            "AUTH_RESPONSE", client_version=_VERSION, response=response, protocol_version=PROTOCOL_VERSION
        )
        self.send(build_frame(answer))

    # -- going out

    def send(self, data: bytes) -> None:
        """Send bytes as they are: whole frames, unless the user wants it otherwise. Raises LinkClosed."""
        if self._transport is None or self._transport.is_closing():
            raise self._ended()
        self._transport.write(data)
        if not self._writable.is_set() and self._transport.get_write_buffer_size() > MOST_UNSENT:
            self.drop(f"the broker takes nothing: {MOST_UNSENT} bytes wait to be sent")
        if self._tap is not None:
            self._tap.carried(self.connection, True, data, time.time_ns())

    async def drain(self) -> None:
        """Wait until the socket takes more."""
        if not self._writable.is_set():
            await self._writable.wait()

    def next_id(self) -> int:
        """A request id that is not in use."""
        return next(self._ids)

    async def request(self, command: BaseCommand, *, timeout: float | None = None) -> Frame:
        """Send `command` with a request id of its own; give the frame that answers it.

        Waits `timeout` seconds (default: that of the settings), without end once a producer was told to
        wait for its turn. Raises BrokerError where the broker refuses, Unanswered, LinkClosed.
        """
        number = command.type
        body = getattr(command, BODIES[number])
        key = body.request_id = self.next_id()
        asked = _Asked(number, self._loop.create_future())
        self._asked[key] = asked
        seconds = self.settings.timeout if timeout is None else timeout
        try:
            self.send(build_frame(command))
            asked.timer = self._loop.call_later(seconds, self._too_late, asked, seconds)
            frame = await asked.answer
        finally:
            self._asked.pop(key, None)
            if asked.timer is not None:
                asked.timer.cancel()
        raise_refusal(frame, asked.name, getattr(body, "topic", ""))
        return frame

    def _too_late(self, asked: _Asked, seconds: float) -> None:
        if not asked.answer.done():
            names = [command_name(each) for each in REQUESTS[asked.type].answers]
            names.sort(key=lambda name: (not name.startswith(asked.name), name))
            wanted = " or ".join(name for name in names if name != "ERROR")
            text = f"{self.address}: {asked.name} was not answered by {wanted} within {seconds:g} s"
            asked.answer.set_exception(Unanswered(text))

    def claim(self, kind: str, number: int, owner: Owner) -> None:
        """Give `owner` the frames about `kind` ("producer_id", "consumer_id", "watcher_id") `number`."""
        self._owners[kind, number] = owner

    def release(self, kind: str, number: int) -> None:
        """Undo `claim`."""
        self._owners.pop((kind, number), None)

    # -- coming in

    def connection_made(self, transport: Any) -> None:
        """asyncio: TCP (and TLS) stands."""
        self._transport = transport
        transport.set_write_buffer_limits(high=1 << 20)
        for name, attribute in (("sockname", "client"), ("peername", "server")):
            value = transport.get_extra_info(name)
            setattr(self.connection, attribute, str(Address(value[0], value[1])) if value else "")
        if self._tap is not None:
            self._tap.opened(self.connection, time.time_ns())

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes came."""
        now = time.time_ns()
        self._heard = True
        if self._tap is not None:
            self._tap.carried(self.connection, False, data, now)
        stream = self._stream
        for event in stream.feed(data, now):
            self._event(event)
        if self.is_open and not stream.in_step:
            for event in stream.close():  # what it has says why
                self._event(event)
        elif self.is_open and stream.awaited > stream.limit:
            self.drop(
                f"the broker announced a frame of {stream.awaited} bytes, over the limit of {stream.limit}"
            )

    def _event(self, event: Event) -> None:
        if self._garbled:
            return
        if self.observe is not None:
            self.observe(event)
        if not isinstance(event, Frame):
            protocol = getattr(event, "protocol", "")
            reason = getattr(event, "reason", "bytes are missing")
            if protocol:
                self.drop(f"{protocol} is spoken there, not Pulsar's protocol ({reason})")
            else:
                self.drop(f"the broker sent what is no frame: {reason}")
            self._garbled = True
            return
        if event.partial:
            limit = self._stream.limit
            self._garbled = True
            self.drop(
                f"the broker announced a frame of {event.size} bytes, over the limit of {limit}"
                if event.size > limit
                else "the broker closed the connection in the middle of a frame"
            )
            return
        for note in event.notes:
            self.warn(f"{self.address}: {event.command}: {note}", "notes on frames")
        key = _OWNER_FIELDS.get(event.type)
        if key is not None:
            owner = self._owners.get((key, getattr(event.body, key, -1)))
            if owner is not None:
                owner.received(event)
        elif event.type in ANSWERS:
            self._answer(event)
        else:
            self._other(event)

    def _answer(self, frame: Frame) -> None:
        body = frame.body
        key = getattr(body, "request_id", None)
        asked = self._asked.get(key) if key is not None else None
        if asked is None or frame.type not in REQUESTS[asked.type].answers:
            if frame.type == _ERROR and body is not None and body.request_id == NO_REQUEST:
                self._refused(frame)
            return
        if frame.type == _PRODUCER_SUCCESS and not body.producer_ready:
            if asked.timer is not None:
                asked.timer.cancel()
            self.warn("waiting for exclusive access: another producer has the topic", "waiting for access")
            return
        if not asked.answer.done():
            asked.answer.set_result(frame)

    def _refused(self, frame: Frame) -> None:
        """An ERROR without a request: of the handshake, or what the broker says before it closes."""
        greeting = self._greeting
        try:
            raise_refusal(frame, "CONNECT" if greeting is not None else "an earlier command")
        except BrokerError as error:
            if greeting is None:
                self._parting = str(error)
                self.warn(f"{self.address}: {error}", "errors without a request")
                return
            if not greeting.done():
                greeting.set_exception(error)
            self.drop(str(error))

    def _other(self, frame: Frame) -> None:
        kind = frame.type
        if kind == BaseCommand.PING:
            if self.is_open and self._writable.is_set():
                self.send(_PONG)
        elif kind == BaseCommand.AUTH_CHALLENGE and frame.body is not None:
            if self._greeting is None or frame.body.challenge.auth_data == REFRESH:
                self._respond()
            elif not self._greeting.done():
                self._greeting.set_result(frame)
        elif kind == BaseCommand.CONNECTED and frame.body is not None:
            if self._greeting is None:
                self._connected(frame)  # somebody else's handshake
            elif not self._greeting.done():
                self._greeting.set_result(frame)
        elif kind == BaseCommand.TOPIC_MIGRATED and frame.body is not None:
            producer = frame.body.resource_type == 0
            owner = self._owners.get(("producer_id" if producer else "consumer_id", frame.body.resource_id))
            if owner is not None:
                owner.received(frame)
        elif kind not in BODIES:
            text = f"{self.address}: {frame.command}, a command nobody knows, was passed over"
            self.warn(text, "commands nobody knows")

    def pause_writing(self) -> None:
        """asyncio: the socket takes no more for now."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """asyncio: it does again."""
        self._writable.set()

    # -- keeping alive, and ending

    def _tick(self) -> None:
        seconds = self.settings.keep_alive
        if not self._heard and self._pinged:
            self.drop(f"PING was not answered by PONG within {seconds:g} s")
            return
        self._heard, self._pinged = False, True
        if self.is_open:
            self.send(_PING)
        self._ticker = self._loop.call_later(seconds, self._tick)

    async def ping(self, timeout: float) -> int:
        """Send a PING and wait for the PONG; gives the round trip in ns. Raises Unanswered, LinkClosed."""
        done: asyncio.Future[int] = self._loop.create_future()

        def watch(event: Event) -> None:
            if isinstance(event, Frame) and event.type == BaseCommand.PONG and not done.done():
                done.set_result(time.perf_counter_ns())

        before, self.observe = self.observe, watch
        sent = time.perf_counter_ns()
        try:
            self.send(_PING)
            either: list[asyncio.Future[Any]] = [done, self.closed]
            await asyncio.wait(either, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.observe = before
        if done.done():
            return done.result() - sent
        if self.closed.done():
            raise self._ended()
        raise Unanswered(f"{self.address}: PING was not answered by PONG within {timeout:g} s")

    def drop(self, reason: str) -> None:
        """Close at once, because of `reason`: whoever uses the link is told, and may connect anew."""
        self._reason = self._reason or reason
        if self._transport is not None:
            self._by_us = True
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection has ended."""
        by_broker = not self._by_us
        if not self._reason:
            for event in self._stream.close():
                self._event(event)
        if self._tap is not None:
            self._tap.closed(self.connection, time.time_ns(), by_broker)
        if self._ticker is not None:
            self._ticker.cancel()
        if not self._reason:
            closed = exc is None or isinstance(exc, (ConnectionResetError, BrokenPipeError))
            broke = self._parting or f"the connection broke: {exc}"
            self._reason = "the broker closed the connection" if closed and not self._parting else broke
        error = self._ended()
        self._writable.set()
        if self._greeting is not None and not self._greeting.done():
            self._greeting.set_exception(self._silent() if not self._by_us else Unreachable(str(error)))
        for asked in list(self._asked.values()):
            if not asked.answer.done():
                asked.answer.set_exception(LinkClosed(f"{error}; {asked.name} has no answer"))
        if not self.closed.done():
            self.closed.set_result(None)
        owners, self._owners = self._owners, {}
        for owner in owners.values():
            owner.lost(error)

    def _silent(self) -> Unreachable:
        """Closed behind our CONNECT, without a word."""
        tls = self.settings.url.tls
        hint = (
            "perhaps it wants a client certificate"
            if tls
            else "a TLS port? Its URL would begin with pulsar+ssl://"
        )
        return Unreachable(f"{self.address}: it closed the connection without answering CONNECT; {hint}")

    def _ended(self) -> LinkClosed:
        return LinkClosed(f"{self.address}: {self._reason or 'the connection is closed'}")

    @property
    def is_open(self) -> bool:
        """Whether frames can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    async def close(self) -> None:
        """Send what waits to be sent, and close; whom the link served is not told."""
        self._owners.clear()
        if self._transport is None:
            return
        self._by_us = True
        self._reason = self._reason or "we closed the connection"
        if self._ticker is not None:
            self._ticker.cancel()
        self._transport.close()
        await asyncio.wait([self.closed], timeout=2)
        if not self.closed.done():
            self._transport.abort()


def raise_refusal(frame: Frame, request: str, about: str = "") -> None:
    """Raise BrokerError if `frame`, the answer to command `request` about a topic, is a refusal."""
    body = frame.body
    field = ERROR_FIELDS.get(frame.type)
    if body is None or field is None:
        return
    failed = body.HasField(field)
    if not failed and frame.type in FAILED:
        failed = body.HasField("response") and body.response == FAILED[frame.type]
    if failed:
        code = error_name(getattr(body, field))
        detail = body.error_message if field == "error_code" else body.message
        raise BrokerError(code, as_text(detail), request, MEANINGS.get(code, ""), about)
