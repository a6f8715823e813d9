"""A client's connection: the handshake, PING and PONG, and what is sent to the client.

    start --CONNECT--> (connecting -->) connected --> closed

CONNECT in any other state, and any other command before `connected`, closes without an answer. PING,
PONG and AUTH_RESPONSE are taken at any time. Sources: b/ServerCnx, PulsarHandler (4.0).
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
"""The version of Pulsar whose behaviour this is."""

_SERVER: Final = f"Pulsar Server{PULSAR_VERSION} (pwire broker {__version__})"
_FEATURES: Final = {
    "supports_get_partitioned_metadata_without_auto_creation": True,
    "supports_repl_dedup_by_lid_and_eid": True,
}
_PING: Final = build_frame(build_command("PING"))
_PONG: Final = build_frame(build_command("PONG"))
_RECEIPT: Final = BaseCommand(type=BaseCommand.SEND_RECEIPT)  # reused, as there are so many
_SIZES: Final = struct.Struct(">II").pack

Waiting = Coroutine[Any, None, None]
"""A handler that has to wait."""

Handler = Callable[["Connection", Any, Frame], Waiting | None]
"""What is done about a command of a client: its connection, the command's sub-message, and the frame."""

MAX_UNSENT_BYTES: Final = 1 << 18
"""Bytes after which consumers get no more messages until the owner has taken them."""

START, CONNECTING, CONNECTED, CLOSED = range(4)
STATES: Final = ("start", "connecting", "connected", "closed")
"""Their names."""


class Host(Protocol):
    """The broker of a connection."""

    scheduler: Scheduler
    settings: Settings
    access: Access
    is_full: bool
    """Whether so much waits to be stored that connections must not be read from for now."""

    def buffer(self, size: int) -> None:
        """So many bytes wait to be stored, or if negative, do not any more."""

    def touch(self, connection: "Connection") -> None:
        """The owner must look at a connection."""

    def left(self, connection: "Connection") -> None:
        """A client has left."""


class Attached(Protocol):
    """What has an id on a connection: a producer."""

    def leave(self) -> None:
        """The connection has ended."""


class Receiving(Attached, Protocol):
    """A consumer."""

    def wake(self) -> None:
        """The connection takes more bytes again."""


class Opening:
    """A producer or consumer id whose PRODUCER or SUBSCRIBE is not answered yet."""

    __slots__ = ("cancelled",)

    def __init__(self) -> None:
        self.cancelled = False

    def leave(self) -> None:
        """The connection has ended."""
        self.cancelled = True

    def wake(self) -> None:
        """There is nothing to receive yet."""


class Connection:
    """A connection to a broker; `client` is the client's address, and `address` as Pulsar shows it.

    `out` are bytes to be sent; the owner takes them. `version` is the protocol version that both sides know.
    `paused`: the client reads too slowly. `throttled`: the client must not be read from for now.
    """

    def __init__(
        self, host: Host, handlers: Mapping[int, Handler], number: int, client: str, certificate: str = ""
    ) -> None:
        self._broker = host
        self._handlers = handlers
        self.scheduler: Scheduler = host.scheduler
        self.settings = host.settings
        self.number = number
        self.client = client
        self.address = f"/{client}"
        self.certificate = certificate
        self.identity = Identity(self, host.access, host.settings, host.scheduler)
        self.state = START
        self.version = 0
        self.client_version = ""
        self.features = FeatureFlags()
        self.out: list[bytes] = []
        self.unsent = 0
        self.paused = False
        self.throttled = False
        self._held: deque[Frame] = deque()
        self.producers: dict[int, Attached] = {}
        self.consumers: dict[int, Receiving] = {}
        self.pending = 0
        """SENDs that are being stored."""
        self._most_pending = self.settings.maxPendingPublishRequestsPerConnection
        self._told_closed: dict[int, int] = {}  # producers that we closed -> when SENDs are wrong again
        self._held_until = 0
        self._probe: Completion[bool] | None = None
        self._pinged = False
        self._timer: Timer | None = None
        self._keep_alive()

    @property
    def host(self) -> str:
        """The client's host."""
        return self.client.rpartition(":")[0]

    # -- keep-alive

    def _keep_alive(self) -> None:
        seconds = self.settings.keepAliveIntervalSeconds
        if seconds > 0:
            self._timer = self.scheduler.later(seconds, self._tick)

    def _tick(self) -> None:
        """The end of a keep-alive interval."""
        if self.closed:
            return
        if self.state != CONNECTED or self._pinged:
            self.close()
            return
        if self.version > 0:
            self._pinged = True
            self.write(_PING)
        self._keep_alive()

    def is_alive(self) -> "Completion[bool]":
        """Whether the client still answers: it gets a PING, and some seconds to send anything."""
        if self._probe is None or self._probe.done:
            self._probe = self.scheduler.completion()
            probe, limit = self._probe, self.settings.connectionLivenessCheckTimeoutMillis
            if self.closed:
                probe.resolve(False)
            elif limit <= 0:
                probe.resolve(True)
            else:
                self.write(_PING)
                self.scheduler.later(limit / 1000, lambda: None if probe.done else self.close())
        return self._probe

    # -- receiving

    def receive(self, frame: Frame) -> None:
        """The client has sent a frame, which waits while the client must not be read from."""
        if self.throttled:
            self._held.append(frame)
        else:
            self._receive(frame)

    def _receive_held(self) -> None:
        while self._held and not self.throttled:
            self._receive(self._held.popleft())

    def _receive(self, frame: Frame) -> None:
        if self.state == CLOSED:
            return
        self._pinged = False
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
            waiting = handler(self, body, frame)
        except Refused as refused:
            self.refuse(body.request_id, refused)
        except Violation:
            self.close()
        else:
            if waiting is not None:
                self.scheduler.start(self._finish(waiting, body))

    async def _finish(self, waiting: Coroutine[Any, None, None], body: Any) -> None:
        try:
            await waiting
        except Refused as refused:
            self.refuse(body.request_id, refused)
        except Violation:
            self.close()

    def _connect(self, body: CommandConnect) -> None:
        if self._broker.access.authenticates:
            self.state = CONNECTING  # as in Pulsar, what comes before the answer is too early
            self.scheduler.ready.append(lambda: self._authenticate(body))
        else:
            self._connected(body)

    def _authenticate(self, body: CommandConnect) -> None:
        if self.state != CONNECTING:
            return
        try:
            self.identity.establish(body)
        except Refused as refused:
            self.reject(refused)
        else:
            self._connected(body)

    def _connected(self, body: CommandConnect) -> None:
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
        """A received string; it may not be UTF-8."""
        return as_text(value)

    def pairs(self, received: Sequence[Any]) -> dict[str, str]:
        """Received keys and values. Raises Violation if a key comes twice."""
        found = {self.text(pair.key): self.text(pair.value) for pair in received}
        if len(found) < len(received):
            raise Violation("a key comes twice")
        return found

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
        """The bytes to be sent."""
        data, self.out, self.unsent = b"".join(self.out), [], 0
        return data

    def send(self, name: str, **fields: Any) -> None:
        """Send a command."""
        if self.state != CLOSED:
            self.write(build_frame(build_command(name, **fields)))

    def refuse(self, request_id: int, refused: Refused) -> None:
        """Answer a request by ERROR."""
        code = ServerError.Value(refused.code)
        self.send("ERROR", request_id=request_id, error=code, message=str(refused))

    def reject(self, refused: Refused) -> None:
        """Say what is wrong with the connection, and close it."""
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
        """Send MESSAGE; an `epoch` below 0 is left out.

        Clients of old versions get no batches, no checksums, nothing of the broker's own.
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
        if entry.at and not self._knows_broker_metadata():
            data = data[entry.at :]
        if self.version < 11 and data[:2] == MAGIC_CHECKSUM:
            data = data[6:]
        head = command.SerializeToString()
        sizes = (4 + len(head) + len(data)).to_bytes(4, "big") + len(head).to_bytes(4, "big")
        self.write(b"".join((sizes, head, data)))

    def _knows_broker_metadata(self) -> bool:
        exposed = self.settings.exposingBrokerEntryMetadataToClientEnabled
        return exposed and self.version >= 18 and self.features.supports_broker_entry_metadata

    def tell_migrated(self, number: int, urls: tuple[str, str], *, producer: bool) -> None:
        """Say that the topic of a producer or consumer has moved to another cluster."""
        if self.version >= 20:
            kind = CommandTopicMigrated.Producer if producer else CommandTopicMigrated.Consumer
            self.send(
                "TOPIC_MIGRATED",
                resource_id=number,
                resource_type=kind,
                brokerServiceUrl=urls[0] or None,
                brokerServiceUrlTls=urls[1] or None,
            )

    def close_producer(self, producer_id: int, **told: Any) -> None:
        """Tell the client that its producer was closed."""
        self.producers.pop(producer_id, None)
        if self.version < 5:
            self.close()
            return
        wait = int(self.settings.keepAliveIntervalSeconds * 1e9)
        self._told_closed[producer_id] = self.scheduler.ticks + wait
        self.send("CLOSE_PRODUCER", producer_id=producer_id, request_id=NO_REQUEST, **told)

    def close_consumer(self, consumer_id: int, **told: Any) -> None:
        """Tell the client that its consumer was closed."""
        self.consumers.pop(consumer_id, None)
        if self.version < 5:
            self.close()
        else:
            self.send("CLOSE_CONSUMER", consumer_id=consumer_id, request_id=NO_REQUEST, **told)

    def was_told_closed(self, producer_id: int) -> bool:
        """Whether the broker closed this producer so recently that the client may not know."""
        return self._told_closed.get(producer_id, -1) >= self.scheduler.ticks

    # -- flow control

    def publishing(self, change: int, size: int) -> None:
        """The number and bytes of SENDs being stored have changed; reading stops while they are too many."""
        self.pending += change
        self._broker.buffer(size)
        if self.throttled or self.pending >= self._most_pending:
            self.throttle()

    def throttle(self) -> None:
        """Decide whether to read from the client."""
        most = self._most_pending
        throttled = self.pending >= most if not self.throttled else self.pending > most // 2
        throttled = throttled or self._broker.is_full or self._held_until > self.scheduler.ticks
        if throttled != self.throttled:
            self.throttled = throttled
            self._broker.touch(self)
            if not throttled and self._held:
                self.scheduler.ready.append(self._receive_held)

    def hold(self, seconds: float) -> None:
        """Do not read from the client for a while."""
        self._held_until = max(self._held_until, self.scheduler.ticks + int(seconds * 1e9))
        self.scheduler.later(seconds, self.throttle)
        self.throttle()

    def set_writable(self, writable: bool) -> None:
        """Whether the client reads fast enough."""
        self.paused = not writable
        if writable:
            for consumer in self.consumers.values():
                consumer.wake()

    # -- the end

    @property
    def closed(self) -> bool:
        """Whether the connection is closed, or will be once `out` is sent."""
        return self.state == CLOSED

    def close(self) -> None:
        """Close the connection, after what was sent."""
        self.lost()
        self._broker.touch(self)

    def lost(self) -> None:
        """The connection has ended: its producers and consumers leave."""
        if self.state == CLOSED:
            return
        self.state = CLOSED
        if self._timer is not None:
            self._timer.cancel()
        if self._probe is not None:
            self._probe.resolve(False)
        attached = [*self.producers.values(), *self.consumers.values()]
        self.producers.clear()
        self.consumers.clear()
        for each in attached:
            each.leave()
        self._broker.left(self)
