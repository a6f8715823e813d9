"""A broker that does as it is told: it speaks the real protocol on loopback, in the caller's event loop.

    async with ScriptedBroker() as broker:
        broker.once("PRODUCER", refuse("ServiceNotReady"))
        ...
        len(broker.list_frames("PRODUCER"))

By default it answers as a broker without messages does: see `SCRIPT`. A reaction takes the place of such an
answer, once or always. All frames of clients are kept.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from pulsarctl_wire.conformance.basics.frames import make_frame
from pulsarctl_wire.faults.answers import build_refusal
from pulsarctl_wire.net.frame_socket import FrameSocket, Tap
from pulsarctl_wire.net.protocol import FrameProtocol
from pulsarctl_wire.net.settings import Address
from pulsarctl_wire.wire.commands import REQUESTS
from pulsarctl_wire.wire.frame import MAX_MESSAGE_SIZE, Connection, Event, Frame, build_frame
from pulsarctl_wire.wire.PulsarApi_pb2 import (
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadataResponse,
    ServerError,
)
from pulsarctl_wire.wire.session.state import NO_REQUEST

if TYPE_CHECKING:
    from typing_extensions import Self  # Python 3.10 has none

HOST: Final = "127.0.0.1"
LEDGER: Final = 7
"""The ledger of all messages."""

_REASON: Final = "refused on purpose"

Reaction = Callable[["Peer", Frame], "bytes | Awaitable[None] | None"]
"""What a broker does about a frame of a peer: it returns bytes to send, an awaitable to run, or None."""


class Bell:
    """A signal that something has changed, for those who wait for a condition."""

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    def ring(self) -> None:
        """Wake all who wait."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait until `holds()` is true; it is called at each ring."""
        while not holds():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter


class Peer(FrameSocket):
    """A connection that a client made, as the broker sees it. `frames` are the received ones, in order."""

    def __init__(self, broker: ScriptedBroker) -> None:
        connection = Connection(next(broker.numbers))
        super().__init__(FrameProtocol(connection, to_broker=True), broker.tap)
        self.broker = broker
        self.frames: list[Frame] = []
        self._is_lost = False

    def connection_made(self, transport: Any) -> None:
        """Keep the connection (called by asyncio)."""
        super().connection_made(transport)
        self.broker.add_peer(self)

    def handle(self, event: Event) -> None:
        """Have the broker react to a frame."""
        if not self._is_lost:  # later events are about what the end has cut off
            self.broker.receive(self, event)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end (called by asyncio)."""
        self._is_lost = True
        super().connection_lost(exc)

    def over(self) -> None:
        """Wake those who wait for the broker's bell."""
        self.broker.bell.ring()

    @property
    def commands(self) -> list[str]:
        """The names of the commands that came, in order."""
        return [frame.command for frame in self.frames]

    def send(self, *frames: bytes) -> None:
        """Send frames, all in one piece, if the client is still there."""
        if self.is_open:
            super().send(b"".join(frames))

    def finish(self) -> None:
        """Send nothing more, but read what comes."""
        self.transport.write_eof()

    def hang_up(self) -> None:
        """Close the connection once all that was sent has left."""
        self.transport.close()


class ScriptedBroker:
    """A broker on a port of its own; an async context manager.

    `peers` are the connections that were made, in order; `entries` is how many entries were stored,
    `receipts` counts their messages by sequence id; `connected_as` are the fields of CONNECTED. Several
    brokers can share a `tap`, the `numbers` of connections, and the `bell` that rings at every frame and end.
    """

    def __init__(
        self,
        *,
        tap: Tap | None = None,
        numbers: count[int] | None = None,
        bell: Bell | None = None,
        **connected_as: Any,
    ) -> None:
        self.connected_as: dict[str, Any] = {
            "server_version": "scripted",
            "protocol_version": 21,
            "max_message_size": MAX_MESSAGE_SIZE,
            **connected_as,
        }
        self.tap = tap
        self.numbers = numbers or count()
        self.bell = bell or Bell()
        self.peers: list[Peer] = []
        self.receipts: dict[int, int] = {}
        self.port = 0
        self.entries = 0
        self._log: list[Frame] = []
        self._once: dict[str, deque[Reaction]] = {}
        self._always: dict[str, Reaction] = {}
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *reason: object) -> None:
        await self.stop()
        for task in self._tasks:
            task.cancel()

    async def start(self) -> None:
        """Listen; after `stop` on the same port again."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self.make_peer, HOST, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close all connections, and listen no more."""
        if self._server is not None:
            self._server.close()
        for peer in self.peers:
            peer.hang_up()
            await peer.closed

    def make_peer(self) -> Peer:
        """Return the protocol of a new connection."""
        return Peer(self)

    @property
    def address(self) -> Address:
        """Where it listens."""
        return Address(HOST, self.port)

    @property
    def url(self) -> str:
        """Its service URL."""
        return f"pulsar://{self.address}"

    # -- the script

    def once(self, command: str, *reactions: Reaction) -> None:
        """Answer the next frames of this command by these, one each."""
        self._once.setdefault(command, deque()).extend(reactions)

    def always(self, command: str, reaction: Reaction) -> None:
        """Answer this command by `reaction` from now on."""
        self._always[command] = reaction

    def add_peer(self, peer: Peer) -> None:
        """Keep a new connection."""
        self.peers.append(peer)
        self.bell.ring()

    def receive(self, peer: Peer, event: Event) -> None:
        """Keep a frame and react to it. Bytes that are no frame make the peer's protocol fail."""
        if isinstance(event, Frame) and not event.partial:
            peer.frames.append(event)
            self._log.append(event)
            self._react(peer, event)
            self.bell.ring()

    def _react(self, peer: Peer, frame: Frame) -> None:
        queue = self._once.get(frame.command)
        result = (queue.popleft() if queue else self.find_reaction(frame.command))(peer, frame)
        if isinstance(result, bytes):
            peer.send(result)
        elif result is not None:
            task = asyncio.get_running_loop().create_task(_await(result))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def find_reaction(self, command: str) -> Reaction:
        """Return the usual reaction to a command."""
        return self._always.get(command) or SCRIPT.get(command) or _refuse_unknown

    # -- what happened

    def list_frames(self, command: str) -> list[Frame]:
        """Return the frames of this command that came over all connections, in order."""
        return [frame for frame in self._log if frame.command == command]

    def list_bodies(self, command: str) -> list[Any]:
        """Return the sub-messages of the frames of this command."""
        return [frame.body for frame in self.list_frames(command)]

    def add_receipt(self, frame: Frame) -> int:
        """Count the messages of a SEND as stored; return the id of their entry."""
        self.receipts[frame.body.sequence_id] = frame.body.num_messages
        self.entries += 1
        return self.entries - 1


async def _await(result: Awaitable[None]) -> None:
    await result


# -- reactions


def answer(name: str, **fields: Any) -> Reaction:
    """Answer a request by this command."""
    return lambda peer, frame: make_frame(name, request_id=frame.body.request_id, **fields)


def reply(name: str, **fields: Any) -> Reaction:
    """Answer by a command without a request id."""
    return lambda peer, frame: make_frame(name, **fields)


def refuse(code: str, text: str = _REASON) -> Reaction:
    """Answer a request by ERROR."""
    return lambda peer, frame: make_frame(
        "ERROR", request_id=frame.body.request_id, error=ServerError.Value(code), message=text
    )


def refuse_lookup(code: str, text: str = _REASON) -> Reaction:
    """Answer LOOKUP by its own kind of refusal."""
    failed = CommandLookupTopicResponse.Failed
    return answer("LOOKUP_RESPONSE", response=failed, error=ServerError.Value(code), message=text)


def refuse_connection(code: str, text: str = _REASON) -> Reaction:
    """Answer by an ERROR about the connection itself."""
    return reply("ERROR", request_id=NO_REQUEST, error=ServerError.Value(code), message=text)


def connect_to(broker: ScriptedBroker | None = None, **fields: Any) -> Reaction:
    """Answer LOOKUP by Connect, by default to the same broker; `fields` replace what is usual."""
    return lambda peer, frame: make_frame(
        "LOOKUP_RESPONSE",
        **{
            "request_id": frame.body.request_id,
            "response": CommandLookupTopicResponse.Connect,
            "brokerServiceUrl": (broker or peer.broker).url,
            "authoritative": True,
            **fields,
        },
    )


def make_receipt(frame: Frame, entry: int = 0) -> bytes:
    """Return the receipt for a SEND."""
    body = frame.body
    return make_frame(
        "SEND_RECEIPT",
        producer_id=body.producer_id,
        sequence_id=body.sequence_id,
        highest_sequence_id=body.highest_sequence_id,
        message_id={"ledgerId": LEDGER, "entryId": entry},
    )


def store(peer: Peer, frame: Frame) -> bytes:
    """Answer SEND by its receipt, with the next entry id."""
    return make_receipt(frame, peer.broker.add_receipt(frame))


def refuse_send(code: str, text: str = _REASON) -> Reaction:
    """Answer SEND by SEND_ERROR."""
    return lambda peer, frame: make_frame(
        "SEND_ERROR",
        producer_id=frame.body.producer_id,
        # brokers name the last message of a batch
        sequence_id=max(frame.body.sequence_id, frame.body.highest_sequence_id),
        error=ServerError.Value(code),
        message=text,
    )


def append(reaction: Reaction, *frames: bytes) -> Reaction:
    """Answer as `reaction` does, with more frames behind it, all in one piece."""

    def react(peer: Peer, frame: Frame) -> bytes:
        first = reaction(peer, frame)
        assert isinstance(first, bytes)
        return b"".join((first, *frames))

    return react


def delay(reaction: Reaction, seconds: float) -> Reaction:
    """Answer as `reaction` does, so many seconds later."""

    async def wait(peer: Peer, frame: Frame) -> None:
        await asyncio.sleep(seconds)
        frames = reaction(peer, frame)
        assert isinstance(frames, bytes)
        peer.send(frames)

    return wait


def ignore(peer: Peer, frame: Frame) -> None:
    """Answer nothing."""


def hang_up(peer: Peer, frame: Frame) -> None:
    """Close the connection without a word."""
    peer.hang_up()


def make_close_producer(frame: Frame, **fields: Any) -> bytes:
    """Return CLOSE_PRODUCER for the producer of a SEND or PRODUCER."""
    return make_frame("CLOSE_PRODUCER", producer_id=frame.body.producer_id, request_id=NO_REQUEST, **fields)


def make_close_consumer(frame: Frame, **fields: Any) -> bytes:
    """Return CLOSE_CONSUMER for the consumer that a frame is about."""
    return make_frame("CLOSE_CONSUMER", consumer_id=frame.body.consumer_id, request_id=NO_REQUEST, **fields)


def admit(peer: Peer, frame: Frame) -> bytes:
    """Answer CONNECT by CONNECTED."""
    return make_frame("CONNECTED", **peer.broker.connected_as)


def open_producer(peer: Peer, frame: Frame, **fields: Any) -> bytes:
    """Answer PRODUCER by PRODUCER_SUCCESS; `fields` replace what is usual."""
    defaults = {"producer_name": frame.body.producer_name or "scripted-1", "last_sequence_id": -1}
    defaults |= {"request_id": frame.body.request_id, "schema_version": b""}
    return make_frame("PRODUCER_SUCCESS", **{**defaults, **fields})


def confirm(peer: Peer, frame: Frame) -> bytes | None:
    """Answer ACK by ACK_RESPONSE if it asks for one."""
    body = frame.body
    if not body.HasField("request_id"):
        return None
    return make_frame("ACK_RESPONSE", consumer_id=body.consumer_id, request_id=body.request_id)


def _refuse_unknown(peer: Peer, frame: Frame) -> bytes | None:
    """Refuse a request that the script does not have; ignore a command that is no request."""
    if frame.type not in REQUESTS or frame.body is None or not frame.body.HasField("request_id"):
        return None
    return build_frame(build_refusal(frame, "NotAllowedError", "the scripted broker does not have this"))


SCRIPT: Final[dict[str, Reaction]] = {
    "CONNECT": admit,
    "AUTH_RESPONSE": ignore,
    "PING": reply("PONG"),
    "PONG": ignore,
    "LOOKUP": connect_to(),
    "PARTITIONED_METADATA": answer(
        "PARTITIONED_METADATA_RESPONSE",
        partitions=0,
        response=CommandPartitionedTopicMetadataResponse.Success,
    ),
    "GET_TOPICS_OF_NAMESPACE": answer("GET_TOPICS_OF_NAMESPACE_RESPONSE", topics=[]),
    "PRODUCER": open_producer,
    "SEND": store,
    "CLOSE_PRODUCER": answer("SUCCESS"),
    "SUBSCRIBE": answer("SUCCESS"),
    "FLOW": ignore,
    "ACK": confirm,
    "REDELIVER_UNACKNOWLEDGED_MESSAGES": ignore,
    "SEEK": answer("SUCCESS"),
    "UNSUBSCRIBE": answer("SUCCESS"),
    "CLOSE_CONSUMER": answer("SUCCESS"),
    "WATCH_TOPIC_LIST_CLOSE": answer("SUCCESS"),
}
"""Command of a client -> the usual reaction."""
