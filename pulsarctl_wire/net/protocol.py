"""The protocol of one side of a connection, without its socket. Pure.

    receive(data, now)   bytes were received; `end` says that there will be no more
    take_events()        the frames received, the outcomes of requests, and warnings
    take_bytes()         the bytes to be sent

The owner of the socket (`net/frame_socket.py`) must close the connection when `failure` is set (it says why),
and call `wake(now)` at `wake_at`.

`FrameProtocol` has what both sides need, and is enough for a broker. `ClientProtocol` adds the client's part:
the handshake, requests and their answers, PING and PONG. Bytes that are not a frame end the connection, as
what follows them cannot be trusted. Unknown commands and frames with extra bytes only cause a warning.
"""

from heapq import heappop, heappush
from itertools import count
from typing import Any, Final, NamedTuple

from pulsarctl_wire import __version__
from pulsarctl_wire.errors import BrokerError, LinkClosed, RequestTimeout, SessionError, Unreachable
from pulsarctl_wire.net.outbox import Now, Outbox, Warned
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
    MAX_KEPT_FRAME,
    MAX_MESSAGE_SIZE,
    Connection,
    Event,
    Frame,
    build_frame,
)
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, FeatureFlags
from pulsarctl_wire.wire.server_errors import MEANINGS, error_name
from pulsarctl_wire.wire.session.state import NO_REQUEST

PROTOCOL_VERSION: Final = 21
"""The protocol version that CONNECT announces: the newest one, as of the Java client 4.0."""

HANDSHAKE: Final = 0
"""The request number of CONNECT; other requests count from 1."""

PING: Final = build_frame(build_command("PING"))
"""The bytes of a PING."""

_PONG: Final = build_frame(build_command("PONG"))
_VERSION: Final = f"pulsarctl-wire-v{__version__}"
_FEATURES: Final = {
    "supports_auth_refresh": True,
    "supports_broker_entry_metadata": True,
    "supports_partial_producer": True,
    "supports_get_partitioned_metadata_without_auto_creation": True,
}
_SMALLEST_FRAME: Final = 10  # bytes: both sizes, and a command with nothing but its type
_MAX_AUTH_ROUNDS: Final = 10  # of AUTH_CHALLENGE before CONNECTED, as in the Java client
_SUBJECTS: Final = {
    "producer_id": ("SEND_RECEIPT", "SEND_ERROR", "CLOSE_PRODUCER"),
    "consumer_id": ("MESSAGE", "CLOSE_CONSUMER", "ACTIVE_CONSUMER_CHANGE", "REACHED_END_OF_TOPIC"),
    "watcher_id": ("WATCH_TOPIC_UPDATE",),
}
_SUBJECT_FIELDS: Final = {NUMBERS[name]: key for key, names in _SUBJECTS.items() for name in names}
"""Type of a command from the broker about a producer, consumer or watcher -> its field with the id."""


class Outcome(NamedTuple):
    """The outcome of request `number` (`HANDSHAKE`: of CONNECT).

    `frame` is its answer, if any; `error` says why it failed, and may come with an answer that refuses it.
    """

    number: int
    frame: Frame | None
    error: SessionError | None


class Challenge(NamedTuple):
    """The broker asks for credentials: answer with `ClientProtocol.respond`."""


class FrameProtocol(Outbox["Event | Warned | Outcome | Challenge"]):
    """The common part of both sides of a connection.

    `to_broker` is the direction of what is received: True on a broker's side. `peer` names the other side in
    errors. Attributes: `failure` says why the connection must be closed, or has ended; the owner of the
    socket sets `paused` while the socket accepts no more bytes.
    """

    def __init__(self, connection: Connection, to_broker: bool, peer: object = "") -> None:
        super().__init__()
        self.connection = connection
        self.to_broker = to_broker
        self.peer = peer
        self.failure = ""
        self.paused = False
        self._sender = "the client" if to_broker else "the broker"
        self._stream = FrameStream(connection, to_broker)
        self._is_garbled = False
        self._is_alive = True  # something was received since the last PING

    # -- receiving and sending

    def receive(self, data: bytes, now: Now) -> None:
        """Process bytes that were received."""
        stream, self._is_alive = self._stream, True
        for event in stream.feed(data, now.time_ns):
            self._handle_event(event)
        if self.failure:
            return
        if not stream.is_in_step:
            for event in stream.close():  # the remaining event says why
                self._handle_event(event)
        elif stream.awaited > stream.limit:
            self._fail_too_large(stream.awaited)
        elif 0 < stream.awaited < _SMALLEST_FRAME:
            self.fail(f"{self._sender} announced a frame of {stream.awaited} bytes, too few for a command")
        elif 0 < stream.awaited <= stream.held_bytes:  # the stream waits to recognize another protocol
            self.fail(f"{self._sender} sent bytes that are not a frame: its sizes do not fit together")

    def send(self, data: bytes) -> None:
        """Send bytes as they are, usually whole frames. Raises LinkClosed."""
        if self.failure:
            raise self.end_error
        self._out.append(data)

    def fail(self, reason: str) -> None:
        """Have the connection closed, because of `reason`; only the first reason counts."""
        self.failure = self.failure or reason

    def end(self, broke: str = "") -> None:
        """End the connection; `broke` says how it ended, if not by an end of file."""
        if not self.failure:
            for event in self._stream.close():
                self._handle_event(event)
        self.fail(broke or f"{self._sender} closed the connection")

    @property
    def end_error(self) -> LinkClosed:
        """The error for callers that use the connection after its end."""
        return LinkClosed(f"{self.peer}: {self.failure or 'the connection is closed'}")

    # -- frames received

    def _handle_event(self, event: Event) -> None:
        if self._is_garbled:
            return
        self._events.append(event)
        if isinstance(event, Frame) and not event.partial:
            self._handle_frame(event)
            return
        self._is_garbled = True
        if isinstance(event, Frame):
            if event.size > self._stream.limit:
                self._fail_too_large(event.size)
            else:
                self.fail(f"{self._sender} closed the connection in the middle of a frame")
            return
        protocol, reason = getattr(event, "protocol", ""), getattr(event, "reason", "bytes are missing")
        if protocol:
            self.fail(f"it speaks {protocol}, not Pulsar's protocol ({reason})")
        else:
            self.fail(f"{self._sender} sent bytes that are not a frame: {reason}")

    def _fail_too_large(self, size: int) -> None:
        limit = self._stream.limit
        self.fail(f"{self._sender} announced a frame of {size} bytes, over the limit of {limit}")

    def _handle_frame(self, frame: Frame) -> None:
        """Handle a whole frame, which is already among the events."""


class _Request(NamedTuple):
    """A request that waits for its answer: its command's type, and the topic it is about.

    `deadline` is in ticks (None: no limit), and `seconds` how long it may wait, for messages.
    """

    type: int
    topic: str
    deadline: int | None
    seconds: float


class ClientProtocol(FrameProtocol):
    """The client's side; `tls` only selects the hint when a broker does not answer CONNECT.

    Attributes in addition to FrameProtocol's: the broker's version text `server`, its protocol version
    `server_version`, `max_message_size` in bytes, and its FeatureFlags `features`.
    """

    def __init__(self, connection: Connection, peer: object = "", *, tls: bool = False) -> None:
        super().__init__(connection, False, peer)
        self.server = ""
        self.server_version = 0
        self.max_message_size = MAX_MESSAGE_SIZE
        self.features = FeatureFlags()
        self._tls = tls
        self._ids = count(1)
        self._requests: dict[int, _Request] = {}
        self._deadlines: list[tuple[int, int]] = []  # a heap; some may have been answered already
        self._last_error = ""  # the broker's latest ERROR about the connection as a whole
        self._rounds = 0
        self._keep_alive = 0.0
        self._ping_at: int | None = None

    # -- the handshake

    def connect(self, auth: tuple[str, bytes] | None, proxy_to: str, now: Now, seconds: float) -> None:
        """Send CONNECT; its `Outcome` follows within `seconds`.

        `auth` is the method's name and the credentials, `proxy_to` the broker ("host:port") that a Pulsar
        proxy must connect us to, or "".
        """
        command = build_command(
            "CONNECT",
            client_version=_VERSION,
            auth_method_name=None if auth is None else auth[0],
            auth_data=None if auth is None else auth[1],
            protocol_version=PROTOCOL_VERSION,
            proxy_to_broker_url=proxy_to or None,
            feature_flags=_FEATURES,
        )
        self._wait_for(HANDSHAKE, NUMBERS["CONNECT"], "", now, seconds)
        if self.failure:  # it was closed before
            self._finish(HANDSHAKE, error=self._make_unanswered_error())
        else:
            self._out.append(build_frame(command))

    def respond(self, method: str, data: bytes) -> None:
        """Answer a `Challenge`."""
        response = {"auth_method_name": method, "auth_data": data}
        answer = build_command(
            "AUTH_RESPONSE", client_version=_VERSION, response=response, protocol_version=PROTOCOL_VERSION
        )
        self._out.append(build_frame(answer))

    def keep_alive(self, seconds: float, now: Now) -> None:
        """Send a PING every `seconds`; if nothing is received between two of them, fail."""
        self._keep_alive = seconds
        self._ping_at = now.ticks + int(seconds * 1e9)

    def _handle_connected(self, frame: Frame) -> None:
        body = frame.body
        self.server = as_text(body.server_version)
        self.server_version = body.protocol_version
        self.features = body.feature_flags
        if body.max_message_size > 0:
            self.max_message_size = min(body.max_message_size, MAX_KEPT_FRAME)
            self._stream.limit = self.max_message_size + FRAME_PADDING
        self._finish(HANDSHAKE, frame)  # does nothing in a replay, which does its own handshake

    def _handle_challenge(self, body: Any) -> None:
        if HANDSHAKE in self._requests and body.challenge.auth_data != REFRESH:
            self._rounds += 1
            if self._rounds > _MAX_AUTH_ROUNDS:
                text = f"{self.peer}: more than {_MAX_AUTH_ROUNDS} rounds of AUTH_CHALLENGE"
                self._finish(HANDSHAKE, error=Unreachable(text))
                return
        self._events.append(Challenge())

    def _make_unanswered_error(self) -> Unreachable:
        """Return the error for a broker that closes the connection after CONNECT without an answer."""
        hint = "perhaps it wants a client certificate"
        if not self._tls:
            hint = "a TLS port? Then its URL begins with pulsar+ssl://"
        return Unreachable(f"{self.peer}: it closed the connection without answering CONNECT; {hint}")

    # -- requests

    def request(self, command: BaseCommand, now: Now, seconds: float) -> int:
        """Send `command` with a new request id; return that id.

        Its `Outcome` follows within `seconds`, or at any time once the broker has told a producer to wait for
        its turn. Raises LinkClosed.
        """
        if self.failure:
            raise self.end_error
        body = getattr(command, BODIES[command.type])
        number = body.request_id = next(self._ids)
        self._out.append(build_frame(command))
        self._wait_for(number, command.type, getattr(body, "topic", ""), now, seconds)
        return number

    def forget(self, number: int) -> None:
        """Stop waiting for the answer to request `number`."""
        self._requests.pop(number, None)

    def _wait_for(self, number: int, kind: int, topic: str, now: Now, seconds: float) -> None:
        deadline = now.ticks + int(seconds * 1e9)
        self._requests[number] = _Request(kind, topic, deadline, seconds)
        heappush(self._deadlines, (deadline, number))

    def _finish(self, number: int, frame: Frame | None = None, error: SessionError | None = None) -> None:
        if self._requests.pop(number, None) is not None:
            self._events.append(Outcome(number, frame, error))

    # -- frames received

    def _handle_frame(self, frame: Frame) -> None:
        for note in frame.notes:
            self._warn(f"{frame.command}: {note}", "notes on frames")
        kind = frame.type
        if kind in _SUBJECT_FIELDS:  # for its owner, to which the link passes it
            return
        if kind in ANSWERS:
            self._handle_answer(frame)
        elif kind == BaseCommand.PING:
            if not self.failure and not self.paused:  # do not pile up answers for a peer that reads nothing
                self._out.append(_PONG)
        elif kind == BaseCommand.AUTH_CHALLENGE and frame.body is not None:
            self._handle_challenge(frame.body)
        elif kind == BaseCommand.CONNECTED and frame.body is not None:
            self._handle_connected(frame)
        elif kind not in BODIES:
            self._warn(f"{frame.command}, an unknown command, was ignored", "unknown commands")

    def _warn(self, text: str, kind: str) -> None:
        self._events.append(Warned(f"{self.peer}: {text}", kind))

    def _handle_answer(self, frame: Frame) -> None:
        body = frame.body
        number = getattr(body, "request_id", None)
        request = self._requests.get(number) if number else None  # 0 is `HANDSHAKE`, which has no request id
        if number is None or request is None or frame.type not in REQUESTS[request.type].answers:
            if frame.type == BaseCommand.ERROR and number == NO_REQUEST:
                self._handle_refusal(frame)
        elif frame.type == BaseCommand.PRODUCER_SUCCESS and not body.producer_ready:
            self._requests[number] = request._replace(deadline=None)
            text = "waiting for exclusive access: another producer has the topic"
            self._events.append(Warned(text, "waiting for access"))
        else:
            error = read_refusal(frame, command_name(request.type), request.topic)
            self._finish(number, frame, error)

    def _handle_refusal(self, frame: Frame) -> None:
        """Handle an ERROR without a request: about the handshake, or why the broker is going to close."""
        if HANDSHAKE in self._requests:
            error = read_refusal(frame, "CONNECT")
            self._finish(HANDSHAKE, error=error)
            self.fail(str(error))
        else:
            self._last_error = str(read_refusal(frame, "an earlier command"))
            self._warn(self._last_error, "errors without a request")

    # -- time, and the end

    @property
    def wake_at(self) -> int | None:
        """When `wake` must be called, or None."""
        heap = self._deadlines
        while heap and not self._is_waiting(*heap[0]):
            heappop(heap)
        if heap and (self._ping_at is None or heap[0][0] < self._ping_at):
            return heap[0][0]
        return self._ping_at

    def _is_waiting(self, deadline: int, number: int) -> bool:
        request = self._requests.get(number)
        return request is not None and request.deadline == deadline

    def wake(self, now: Now) -> None:
        """Fail requests that are late at `now`, and send a PING if it is due."""
        heap = self._deadlines
        while heap and heap[0][0] <= now.ticks:
            deadline, number = heappop(heap)
            if self._is_waiting(deadline, number):
                self._finish(number, error=self._make_timeout(number))
        if self._ping_at is None or now.ticks < self._ping_at or self.failure:
            return
        if not self._is_alive:
            self._ping_at = None
            self.fail(f"PING was not answered by PONG within {self._keep_alive:g} s")
            return
        self._is_alive = False
        self._out.append(PING)
        self.keep_alive(self._keep_alive, now)

    def _make_timeout(self, number: int) -> RequestTimeout:
        request = self._requests[number]
        name, answers = command_name(request.type), "CONNECTED"
        if number != HANDSHAKE:
            names = [command_name(answer) for answer in REQUESTS[request.type].answers]
            names.sort(key=lambda answer: (not answer.startswith(name), answer))
            answers = " or ".join(answer for answer in names if answer != "ERROR")
        return RequestTimeout(
            f"{self.peer}: {name} was not answered by {answers} within {request.seconds:g} s"
        )

    def end(self, broke: str = "") -> None:
        """End the connection: fail all waiting requests. `broke` is as in FrameProtocol."""
        is_ended_by_us = bool(self.failure)
        super().end(self._last_error or broke)
        self._ping_at = None
        is_ended_by_us |= self._is_garbled
        if HANDSHAKE in self._requests:
            error = Unreachable(str(self.end_error)) if is_ended_by_us else self._make_unanswered_error()
            self._finish(HANDSHAKE, error=error)
        for number, request in list(self._requests.items()):
            text = f"{self.end_error}; {command_name(request.type)} has no answer"
            self._finish(number, error=LinkClosed(text))


def find_subject(frame: Frame) -> tuple[str, int] | None:
    """Return the producer, consumer or watcher that a frame is about: ("producer_id", 3), or None."""
    key = _SUBJECT_FIELDS.get(frame.type)
    if key is not None:
        return key, getattr(frame.body, key, -1)
    if frame.type == BaseCommand.TOPIC_MIGRATED and frame.body is not None:
        return "producer_id" if frame.body.resource_type == 0 else "consumer_id", frame.body.resource_id
    return None


def read_refusal(frame: Frame, request: str, about: str = "") -> BrokerError | None:
    """Return the error in `frame`, the answer to `request` about the topic `about`; None if it has none."""
    body = frame.body
    field = ERROR_FIELDS.get(frame.type)
    if body is None or field is None:
        return None
    failed = body.HasField(field)
    if not failed and frame.type in FAILED:
        failed = body.HasField("response") and body.response == FAILED[frame.type]
    if not failed:
        return None
    code = error_name(getattr(body, field))
    detail = body.error_message if field == "error_code" else body.message
    return BrokerError(code, as_text(detail), request, MEANINGS.get(code, ""), about)
