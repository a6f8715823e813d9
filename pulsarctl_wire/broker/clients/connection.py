"""A client's connection: the handshake, PING and PONG, and sending.

    start --CONNECT--> (connecting -->) connected --> closed

CONNECT in a state other than `start`, and any other command before `connected`, closes the connection
without an answer. PING and PONG are accepted at any time. So is AUTH_RESPONSE once the client has been
authenticated; before, it is answered by ERROR, and the connection is closed.
Sources: b/ServerCnx, PulsarHandler (4.0).
"""

import struct
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from pulsarctl_wire import __version__
from pulsarctl_wire.broker.basics.refusal import Refused, Violation
from pulsarctl_wire.broker.basics.scheduler import Completion, Scheduler, Timer
from pulsarctl_wire.broker.basics.settings import Settings
from pulsarctl_wire.broker.clients.identity import Identity
from pulsarctl_wire.broker.storage.log import Entry, Position
from pulsarctl_wire.broker.tenancy.access import Access
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.frame import Frame, build_frame
from pulsarctl_wire.wire.frame_layout import MAGIC_CHECKSUM
from pulsarctl_wire.wire.PulsarApi_pb2 import (
    BaseCommand,
    CommandAuthResponse,
    CommandConnect,
    CommandTopicMigrated,
    FeatureFlags,
    ServerError,
)
from pulsarctl_wire.wire.session.state import NO_REQUEST

PROTOCOL_VERSION: Final = 21
PULSAR_VERSION: Final = "4.0.8"
"""The version of Pulsar whose behaviour the broker has."""

_SERVER: Final = f"Pulsar Server{PULSAR_VERSION} (pwire broker {__version__})"
_FEATURES: Final = {
    "supports_get_partitioned_metadata_without_auto_creation": True,
    "supports_repl_dedup_by_lid_and_eid": True,
}
_PING: Final = build_frame(build_command("PING"))
_PONG: Final = build_frame(build_command("PONG"))
_RECEIPT: Final = BaseCommand(type=BaseCommand.SEND_RECEIPT)  # reused for all receipts, as there are many
_SIZES: Final = struct.Struct(">II").pack

Deferred = Coroutine[Any, None, None]
"""The rest of a handler that has to wait."""

Handler = Callable[["Connection", Any, Frame], Deferred | None]
"""Handles a client's command: gets the connection, the command's sub-message, and the frame."""

MAX_UNSENT_BYTES: Final = 1 << 18
"""With more bytes than these in `out`, consumers get no messages until the owner calls `set_writable`."""

START, CONNECTING, CONNECTED, CLOSED = range(4)
STATES: Final = ("start", "connecting", "connected", "closed")


class ConnectionBroker(Protocol):
    """The broker of a connection."""

    scheduler: Scheduler
    settings: Settings
    access: Access
    is_full: bool
    """Whether so many bytes wait to be stored that connections must not be read from."""

    def buffer(self, size: int) -> None:
        """Add `size`, which may be negative, to the number of bytes that wait to be stored."""

    def touch(self, connection: "Connection") -> None:
        """Have the owner look at a connection."""

    def on_disconnect(self, connection: "Connection") -> None:
        """Forget the watchers of a connection that has ended."""


class Endpoint(Protocol):
    """What has an id on a connection, such as a producer."""

    def leave(self) -> None:
        """Leave, as the connection has ended or the client closes the id."""


class Receiver(Endpoint, Protocol):
    """A consumer."""

    def wake(self) -> None:
        """Try again to deliver, as the connection takes more bytes."""


class Opening:
    """A producer or consumer id whose PRODUCER or SUBSCRIBE is not answered yet."""

    __slots__ = ("cancelled",)

    def __init__(self) -> None:
        self.cancelled = False

    def leave(self) -> None:
        """Cancel the opening, as the connection has ended or the client closes the id."""
        self.cancelled = True

    def wake(self) -> None:
        """Do nothing: there is nothing to receive yet."""


class Connection:
    """A connection to a broker; `client` is the client's address, `address` the same as Pulsar shows it.

    `out` has bytes to be sent; the owner takes them. `version` is the lower of both sides' protocol versions.
    `paused`: the client reads too slowly. `throttled`: the client must not be read from for now.
    """

    def __init__(
        self,
        broker: ConnectionBroker,
        handlers: Mapping[int, Handler],
        number: int,
        client: str,
        certificate: str = "",
    ) -> None:
        self._broker = broker
        self._handlers = handlers
        self.scheduler: Scheduler = broker.scheduler
        self.settings = broker.settings
        self.number = number
        self.client = client
        self.address = f"/{client}"
        self.certificate = certificate
        self.identity = Identity(self, broker.access, broker.settings, broker.scheduler)
        self.state = START
        self.version = 0
        self.client_version = ""
        self.features = FeatureFlags()
        self.out: list[bytes] = []
        self.unsent = 0
        self.paused = False
        self.throttled = False
        self._held_frames: deque[Frame] = deque()
        self.producers: dict[int, Endpoint] = {}
        self.consumers: dict[int, Receiver] = {}
        self.pending = 0
        """The number of SENDs being stored."""
        self._max_pending = self.settings.maxPendingPublishRequestsPerConnection
        self._recently_closed: dict[int, int] = {}  # producer -> ticks until which its SENDs are ignored
        self._read_pause_end = 0  # in ticks
        self._probe: Completion[bool] | None = None
        self._is_ping_unanswered = False
        self._timer: Timer | None = None
        self._schedule_ping()

    @property
    def host(self) -> str:
        """The client's host."""
        return self.client.rpartition(":")[0]

    # -- keep-alive

    def _schedule_ping(self) -> None:
        seconds = self.settings.keepAliveIntervalSeconds
        if seconds > 0:
            self._timer = self.scheduler.call_later(seconds, self._on_interval)

    def _on_interval(self) -> None:
        """Send PING at the end of a keep-alive interval; close if the client is silent or not connected."""
        if self.closed:
            return
        if self.state != CONNECTED or self._is_ping_unanswered:
            self.close()
            return
        if self.version > 0:  # clients of version 0 do not know PING
            self._is_ping_unanswered = True
            self.write(_PING)
        self._schedule_ping()

    def probe(self) -> "Completion[bool]":
        """Send PING, and return whether any frame comes within some seconds; close if none does."""
        if self._probe is None or self._probe.done:
            self._probe = self.scheduler.make_completion()
            completion, limit = self._probe, self.settings.connectionLivenessCheckTimeoutMillis
            if self.closed:
                completion.resolve(False)
            elif limit <= 0:
                completion.resolve(True)
            else:
                self.write(_PING)
                self.scheduler.call_later(limit / 1000, lambda: None if completion.done else self.close())
        return self._probe

    # -- receiving

    def receive(self, frame: Frame) -> None:
        """Handle a frame of the client, once the client may be read from."""
        if self.throttled:
            self._held_frames.append(frame)
        else:
            self._receive(frame)

    def _receive_held(self) -> None:
        while self._held_frames and not self.throttled:
            self._receive(self._held_frames.popleft())

    def _receive(self, frame: Frame) -> None:
        if self.state == CLOSED:
            return
        self._is_ping_unanswered = False
        if self._probe is not None:
            self._probe.resolve(True)
        kind = frame.type
        body = frame.body
        if body is None or not frame.base.IsInitialized():  # type: ignore[union-attr]
            self.close()
        elif kind == BaseCommand.PING:
            self.write(_PONG)
        elif kind == BaseCommand.AUTH_RESPONSE:
            self._refresh(body)
        elif kind == BaseCommand.PONG:
            pass
        elif self.state == CONNECTED:
            self._handle(kind, body, frame)
        elif self.state == START and kind == BaseCommand.CONNECT:
            self._connect(body)
        else:
            self.close()

    def _refresh(self, body: CommandAuthResponse) -> None:
        try:
            self.identity.refresh(body)
        except Refused as refused:
            self.reject(refused)
        except Violation:
            self.close()

    def _handle(self, kind: int, body: Any, frame: Frame) -> None:
        handler = self._handlers.get(kind)
        if handler is None:
            self.close()
            return
        try:
            rest = handler(self, body, frame)
        except Refused as refused:
            self.refuse(body.request_id, refused)
        except Violation:
            self.close()
        else:
            if rest is not None:
                self.scheduler.start(self._finish(rest, body))

    async def _finish(self, rest: Coroutine[Any, None, None], body: Any) -> None:
        try:
            await rest
        except Refused as refused:
            self.refuse(body.request_id, refused)
        except Violation:
            self.close()

    def _connect(self, body: CommandConnect) -> None:
        if self._broker.access.authenticates:
            self.state = CONNECTING  # as in Pulsar, commands before the answer are too early
            self.scheduler.ready.append(lambda: self._authenticate(body))
        else:
            self._accept(body)

    def _authenticate(self, body: CommandConnect) -> None:
        if self.state != CONNECTING:
            return
        try:
            self.identity.establish(body)
        except Refused as refused:
            self.reject(refused)
        else:
            self._accept(body)

    def _accept(self, body: CommandConnect) -> None:
        self.state = CONNECTED
        self.version = min(body.protocol_version, PROTOCOL_VERSION)
        self.client_version = self.text(body.client_version)
        self.features = body.feature_flags
        self.send(
            "CONNECTED",
            server_version=_SERVER,
            protocol_version=self.version,
            max_message_size=self.settings.maxMessageSize,
            feature_flags={
                "supports_topic_watchers": self.settings.enableBrokerSideSubscriptionPatternEvaluation,
                **_FEATURES,
            },
        )

    @staticmethod
    def text(value: str | bytes) -> str:
        """Return a received string as text, even if it is not UTF-8."""
        return as_text(value)

    def read_pairs(self, received: Sequence[Any]) -> dict[str, str]:
        """Return received keys and values. Raises Violation if a key comes twice."""
        pairs = {self.text(pair.key): self.text(pair.value) for pair in received}
        if len(pairs) < len(received):
            raise Violation("a key comes twice")
        return pairs

    # -- sending

    def write(self, data: bytes) -> None:
        """Send bytes."""
        if self.state != CLOSED:
            self.out.append(data)
            self.unsent += len(data)
            if self.unsent > MAX_UNSENT_BYTES:
                self.paused = True
            self._broker.touch(self)

    def take_out(self) -> bytes:
        """Return the bytes to be sent, once."""
        data, self.out, self.unsent = b"".join(self.out), [], 0
        return data

    def send(self, name: str, **fields: Any) -> None:
        """Send a command."""
        if self.state != CLOSED:
            self.write(build_frame(build_command(name, **fields)))

    def refuse(self, request_id: int, refused: Refused) -> None:
        """Answer a request by ERROR."""
        self.send("ERROR", request_id=request_id, **refused.fields)

    def reject(self, refused: Refused) -> None:
        """Send what is wrong with the connection, and close it."""
        self.refuse(NO_REQUEST, refused)
        self.close()

    def send_receipt(self, producer_id: int, sequence: int, highest: int, ledger: int, entry: int) -> None:
        """Send SEND_RECEIPT."""
        receipt = _RECEIPT.send_receipt
        receipt.producer_id = producer_id
        receipt.sequence_id = sequence
        receipt.highest_sequence_id = highest
        message_id = receipt.message_id
        message_id.ledgerId, message_id.entryId = ledger, entry
        command = _RECEIPT.SerializeToString()
        size = len(command)
        self.write(_SIZES(size + 4, size) + command)

    def send_error(self, producer_id: int, sequence: int, code: str, text: str) -> None:
        """Send SEND_ERROR."""
        self.send(
            "SEND_ERROR",
            producer_id=producer_id,
            sequence_id=sequence,
            error=ServerError.Value(code),
            message=text,
        )

    def send_message(
        self,
        consumer_id: int,
        entry: Entry,
        position: Position,
        partition: int,
        epoch: int,
        redelivered: int = 0,
        ack_set: Iterable[int] = (),
    ) -> None:
        """Send MESSAGE; `redelivered` is the redelivery count, and an `epoch` below 0 is not sent.

        Broker entry metadata is sent only if the settings expose it and the client supports it. Clients below
        version 11 get no checksums; below version 4, a batch closes the connection.
        """
        metadata = entry.metadata
        if self.version < 4 and metadata is not None and metadata.HasField("num_messages_in_batch"):
            self.close()
            return
        command = BaseCommand(type=BaseCommand.MESSAGE)
        message = command.message
        message.consumer_id = consumer_id
        message_id = message.message_id
        message_id.ledgerId, message_id.entryId = position
        message_id.partition = partition
        if redelivered:
            message.redelivery_count = redelivered
        if ack_set:
            message.ack_set.extend(ack_set)
        if epoch >= 0:
            message.consumer_epoch = epoch
        data = entry.data
        if entry.start and not self._takes_broker_metadata():
            data = data[entry.start :]
        if self.version < 11 and data[:2] == MAGIC_CHECKSUM:
            data = data[6:]
        head = command.SerializeToString()
        sizes = (4 + len(head) + len(data)).to_bytes(4, "big") + len(head).to_bytes(4, "big")
        self.write(b"".join((sizes, head, data)))

    def _takes_broker_metadata(self) -> bool:
        is_exposed = self.settings.exposingBrokerEntryMetadataToClientEnabled
        return is_exposed and self.version >= 18 and self.features.supports_broker_entry_metadata

    def tell_migrated(self, number: int, urls: tuple[str, str], *, producer: bool) -> None:
        """Send that the topic of producer or consumer `number` has moved: the new `urls` (plain, TLS)."""
        if self.version >= 20:
            kind = CommandTopicMigrated.Producer if producer else CommandTopicMigrated.Consumer
            self.send(
                "TOPIC_MIGRATED",
                resource_id=number,
                resource_type=kind,
                brokerServiceUrl=urls[0] or None,
                brokerServiceUrlTls=urls[1] or None,
            )

    def close_producer(self, producer_id: int, **fields: Any) -> None:
        """Forget a producer, and send CLOSE_PRODUCER; an old client loses its connection instead."""
        self.producers.pop(producer_id, None)
        if self.version < 5:
            self.close()
            return
        wait = int(self.settings.keepAliveIntervalSeconds * 1e9)
        self._recently_closed[producer_id] = self.scheduler.ticks + wait
        self.send("CLOSE_PRODUCER", producer_id=producer_id, request_id=NO_REQUEST, **fields)

    def close_consumer(self, consumer_id: int, **fields: Any) -> None:
        """Forget a consumer, and send CLOSE_CONSUMER; an old client loses its connection instead."""
        self.consumers.pop(consumer_id, None)
        if self.version < 5:
            self.close()
        else:
            self.send("CLOSE_CONSUMER", consumer_id=consumer_id, request_id=NO_REQUEST, **fields)

    def is_recently_closed(self, producer_id: int) -> bool:
        """Return whether the broker closed a producer so recently that the client may not know."""
        return self._recently_closed.get(producer_id, -1) >= self.scheduler.ticks

    # -- flow control

    def count_publishing(self, change: int, size: int) -> None:
        """Add `change` SENDs of `size` bytes (or subtract, if negative) to those being stored.

        While there are too many, the client is not read from.
        """
        self.pending += change
        self._broker.buffer(size)
        if self.throttled or self.pending >= self._max_pending:
            self.update_throttling()

    def update_throttling(self) -> None:
        """Decide whether to read from the client."""
        limit = self._max_pending
        is_throttled = self.pending >= limit if not self.throttled else self.pending > limit // 2
        is_throttled = is_throttled or self._broker.is_full or self._read_pause_end > self.scheduler.ticks
        if is_throttled != self.throttled:
            self.throttled = is_throttled
            self._broker.touch(self)
            if not is_throttled and self._held_frames:
                self.scheduler.ready.append(self._receive_held)

    def pause_reading(self, seconds: float) -> None:
        """Do not read from the client for some seconds."""
        self._read_pause_end = max(self._read_pause_end, self.scheduler.ticks + int(seconds * 1e9))
        self.scheduler.call_later(seconds, self.update_throttling)
        self.update_throttling()

    def set_writable(self, is_writable: bool) -> None:
        """Say whether the client reads fast enough."""
        self.paused = not is_writable
        if is_writable:
            for consumer in self.consumers.values():
                consumer.wake()

    # -- the end

    @property
    def closed(self) -> bool:
        """Whether the connection is closed, or closes once `out` is sent."""
        return self.state == CLOSED

    def close(self) -> None:
        """Close the connection, once `out` is sent."""
        self.on_lost()
        self._broker.touch(self)

    def on_lost(self) -> None:
        """Have producers and consumers leave, as the connection has ended."""
        if self.state == CLOSED:
            return
        self.state = CLOSED
        if self._timer is not None:
            self._timer.cancel()
        if self._probe is not None:
            self._probe.resolve(False)
        endpoints = [*self.producers.values(), *self.consumers.values()]
        self.producers.clear()
        self.consumers.clear()
        for endpoint in endpoints:
            endpoint.leave()
        self._broker.on_disconnect(self)
