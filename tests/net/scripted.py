"""A broker that does as a test says: it speaks the real protocol on 127.0.0.1, in the test's own event loop.

    @awaited
    async def test_something() -> None:
        async with ScriptedBroker() as broker, broker.client() as client:
            broker.once("PRODUCER", refuse("ServiceNotReady"))
            ...
            assert len(broker.seen("PRODUCER")) == 2

Left alone it answers as a broker does that has no messages: see `_SCRIPT`. A test puts a reaction of its
own in place of an answer, once or always. It stands on the same `FrameProtocol` as our links. What clients
sent is kept, connection by connection; what ours warned of is in `said`. Tests wait for what they want to
see (`saw`, `until`), never for time to pass.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from crc32c import crc32c

from pulsarctl_wire.net.frame_socket import FrameSocket
from pulsarctl_wire.net.protocol import FrameProtocol
from pulsarctl_wire.net.session.client import Client
from pulsarctl_wire.net.session.consumer import Consumer
from pulsarctl_wire.net.session.inbox import Delivery
from pulsarctl_wire.net.session.producer import Producer
from pulsarctl_wire.net.session.receive_queue import ConsumerOptions
from pulsarctl_wire.net.session.send_queue import ProducerOptions, SendResult
from pulsarctl_wire.net.session.subscription import Subscription
from pulsarctl_wire.net.settings import Address, Settings, parse_url
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.entry import Outgoing
from pulsarctl_wire.wire.frame import MAX_MESSAGE_SIZE, Connection, Event, Frame, build_frame
from pulsarctl_wire.wire.PulsarApi_pb2 import (
    BaseCommand,
    BrokerEntryMetadata,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadataResponse,
    MessageMetadata,
    ServerError,
)
from pulsarctl_wire.wire.session.state import NO_REQUEST

if TYPE_CHECKING:
    from typing_extensions import Self  # Python 3.10 has none

__all__ = ["NO_REQUEST"]

HOST = "127.0.0.1"
TOPIC = "persistent://public/default/t"
LEDGER = 7
PATIENCE = 20.0
"""Seconds after which a test that waits for something has failed: far more than any takes."""

Reaction = Callable[["Peer", Frame], "bytes | Awaitable[None] | None"]
"""What a broker does about a frame of a client: the frames to answer with, or something of its own."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


# ---- Running a test ----


def run(test: Coroutine[Any, Any, _T], within: float = PATIENCE) -> _T:
    """Run `test` in an event loop of its own; fails too if an exception got lost or a task is left."""
    odd: list[str] = []
    gc.freeze()  # what was there before is nobody's garbage, and takes long to look through

    async def whole() -> _T:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: odd.append(str(context)))
        try:
            result = await asyncio.wait_for(test, within)
        except BaseException as error:
            if odd:
                raise AssertionError(odd) from error
            raise
        await asyncio.sleep(0)  # for those that were just cancelled
        gc.collect()  # exceptions that nobody asked for are told of when their future goes
        left = [str(task) for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert not left
        return result

    result = asyncio.run(whole())
    gc.collect()
    assert not odd
    return result


def awaited(test: Callable[_P, Coroutine[Any, Any, None]]) -> Callable[_P, None]:
    """Make an async function one that pytest can run."""

    @functools.wraps(test)
    def whole(*args: _P.args, **kwargs: _P.kwargs) -> None:
        run(test(*args, **kwargs))

    return whole


class Bell:
    """Rings whenever something has changed, for those who wait until something is true."""

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    def ring(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def until(self, holds: Callable[[], object]) -> None:
        while not holds():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter


# ---- The broker ----


class Peer(FrameSocket):
    """A connection that a client made, as the broker sees it."""

    def __init__(self, broker: ScriptedBroker) -> None:
        super().__init__(FrameProtocol(Connection(0), to_broker=True))
        self.broker = broker
        self.frames: list[Frame] = []
        self._lost = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.broker.connected(self)

    def handle(self, event: Event) -> None:
        if self._lost:
            return  # what an end has cut off
        assert isinstance(event, Frame), event
        assert not event.notes, event.notes
        self.frames.append(event)
        self.broker.react(self, event)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        super().connection_lost(exc)

    def over(self) -> None:
        self.broker.bell.ring()

    @property
    def commands(self) -> list[str]:
        """The names of what came, in order."""
        return [frame.command for frame in self.frames]

    def send(self, *frames: bytes) -> None:
        """Send frames, all in one piece, if the client is still there."""
        if self.is_open:
            super().send(b"".join(frames))

    def finish(self) -> None:
        """Send nothing more, but read what comes."""
        self.transport.write_eof()

    def hang_up(self) -> None:
        """Close without a word, behind what was sent."""
        self.transport.close()


class ScriptedBroker:
    """A broker on a port of its own; an async context manager.

    `peers` are the connections that were made, in order; `said` what our clients warned of;
    `connected_as` the fields of CONNECTED.
    """

    def __init__(self, **connected_as: Any) -> None:
        self.connected_as: dict[str, Any] = {
            "server_version": "scripted",
            "protocol_version": 21,
            "max_message_size": MAX_MESSAGE_SIZE,
            **connected_as,
        }
        self.peers: list[Peer] = []
        self.said: list[str] = []
        self.bell = Bell()
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
        self._server = await loop.create_server(lambda: Peer(self), HOST, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close all connections, and listen no more."""
        if self._server is not None:
            self._server.close()
        for peer in self.peers:
            peer.hang_up()
            await peer.closed

    @property
    def address(self) -> Address:
        return Address(HOST, self.port)

    @property
    def url(self) -> str:
        return f"pulsar://{self.address}"

    def client(self, url: str | None = None, **settings: Any) -> Client:
        """A client of ours; `settings` are fields of Settings."""
        settings = {"timeout": 10.0, **settings, "url": parse_url(url or self.url)}
        return Client(Settings(**settings), warn=self._warned)

    def _warned(self, text: str) -> None:
        self.said.append(text)
        self.bell.ring()

    # -- the script

    def once(self, command: str, *reactions: Reaction) -> None:
        """Answer the next frames of this command by these, one each."""
        self._once.setdefault(command, deque()).extend(reactions)

    def always(self, command: str, reaction: Reaction) -> None:
        """Answer this command by `reaction` from now on."""
        self._always[command] = reaction

    def connected(self, peer: Peer) -> None:
        self.peers.append(peer)
        self.bell.ring()

    def react(self, peer: Peer, frame: Frame) -> None:
        name = frame.command
        self._log.append(frame)
        queue = self._once.get(name)
        reaction = queue.popleft() if queue else self._always.get(name) or _SCRIPT[name]
        answer = reaction(peer, frame)
        if isinstance(answer, bytes):
            peer.send(answer)
        elif answer is not None:
            task = asyncio.get_running_loop().create_task(_all_of(answer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self.bell.ring()

    # -- what happened

    def seen(self, command: str) -> list[Frame]:
        """The frames of this command that came over all connections, in order."""
        return [frame for frame in self._log if frame.command == command]

    def bodies(self, command: str) -> list[Any]:
        """Their sub-messages."""
        return [frame.body for frame in self.seen(command)]

    async def saw(self, command: str, count: int = 1) -> list[Any]:
        """Wait until `count` frames of this command have come; gives the sub-messages of all there are."""
        await self.until(lambda: len(self.seen(command)) >= count)
        return self.bodies(command)

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait until something is true that a frame, a warning or an end of a connection brings about."""
        await self.bell.until(holds)

    async def warned(self, text: str, count: int = 1) -> None:
        """Wait until our client has warned of something, in words that contain `text`."""
        await self.until(lambda: self.warnings(text) >= count)

    def warnings(self, text: str) -> int:
        """How often our client has warned of something, in words that contain `text`."""
        return sum(text in line for line in self.said)


async def _all_of(answer: Awaitable[None]) -> None:
    await answer


def build(
    name: str, metadata: MessageMetadata | None = None, payload: bytes = b"", /, **fields: Any
) -> bytes:
    """The bytes of a frame."""
    return build_frame(build_command(name, **fields), metadata, payload)


def frame_of(command: bytes, behind: bytes = b"", *, total: int | None = None) -> bytes:
    """A frame around any bytes; `total` is what its TOTAL_SIZE says, if that is not to be true."""
    size = 4 + len(command) + len(behind) if total is None else total
    return struct.pack(">II", size, len(command)) + command + behind


def answer(name: str, **fields: Any) -> Reaction:
    """Answer a request by this command."""
    return lambda peer, frame: build(name, request_id=frame.body.request_id, **fields)


def refuse(code: str, text: str = "the test says no") -> Reaction:
    """Answer a request by ERROR."""
    return lambda peer, frame: build(
        "ERROR", request_id=frame.body.request_id, error=ServerError.Value(code), message=text
    )


def refuse_lookup(code: str, text: str = "the test says no") -> Reaction:
    """Answer LOOKUP by its own kind of refusal."""
    return answer(
        "LOOKUP_RESPONSE",
        response=CommandLookupTopicResponse.Failed,
        error=ServerError.Value(code),
        message=text,
    )


def refuse_connection(code: str, text: str = "the test says no") -> Reaction:
    """Answer by an ERROR about the connection itself."""
    return lambda peer, frame: build(
        "ERROR", request_id=NO_REQUEST, error=ServerError.Value(code), message=text
    )


def connect_to(broker: ScriptedBroker | None = None, **fields: Any) -> Reaction:
    """Answer LOOKUP by Connect; `fields` in place of what is usual."""
    url = {} if broker is None else {"brokerServiceUrl": broker.url}
    return lambda peer, frame: build(
        "LOOKUP_RESPONSE",
        **{
            "request_id": frame.body.request_id,
            "response": CommandLookupTopicResponse.Connect,
            "brokerServiceUrl": peer.broker.url,
            "authoritative": True,
            **url,
            **fields,
        },
    )


def receipt(frame: Frame, entry: int = 0) -> bytes:
    """The receipt for a SEND."""
    body = frame.body
    return build(
        "SEND_RECEIPT",
        producer_id=body.producer_id,
        sequence_id=body.sequence_id,
        highest_sequence_id=body.highest_sequence_id,
        message_id={"ledgerId": LEDGER, "entryId": entry},
    )


def send_error(code: str, text: str = "the test says no") -> Reaction:
    """Answer SEND by SEND_ERROR."""
    return lambda peer, frame: build(
        "SEND_ERROR",
        producer_id=frame.body.producer_id,
        sequence_id=max(frame.body.sequence_id, frame.body.highest_sequence_id),
        error=ServerError.Value(code),
        message=text,
    )


def followed_by(reaction: Reaction, *frames: bytes) -> Reaction:
    """Answer as `reaction` does, with more frames behind it, all in one piece."""

    def both(peer: Peer, frame: Frame) -> bytes:
        first = reaction(peer, frame)
        assert isinstance(first, bytes)
        return b"".join((first, *frames))

    return both


def silence(peer: Peer, frame: Frame) -> None:
    """Answer nothing."""


def hang_up(peer: Peer, frame: Frame) -> None:
    """Close the connection without a word."""
    peer.hang_up()


def close_producer(frame: Frame, **fields: Any) -> bytes:
    """CLOSE_PRODUCER for the producer of a SEND or PRODUCER."""
    return build("CLOSE_PRODUCER", producer_id=frame.body.producer_id, request_id=NO_REQUEST, **fields)


def close_consumer(frame: Frame, **fields: Any) -> bytes:
    """CLOSE_CONSUMER for the consumer of any frame about it."""
    return build("CLOSE_CONSUMER", consumer_id=frame.body.consumer_id, request_id=NO_REQUEST, **fields)


def _connected(peer: Peer, frame: Frame) -> bytes:
    return build("CONNECTED", **peer.broker.connected_as)


def _producer_success(peer: Peer, frame: Frame) -> bytes:
    name = frame.body.producer_name or "scripted-1"
    return build(
        "PRODUCER_SUCCESS",
        request_id=frame.body.request_id,
        producer_name=name,
        last_sequence_id=-1,
        schema_version=b"",
    )


def stored(peer: Peer, frame: Frame) -> bytes:
    """Answer SEND by its receipt, with the next entry id."""
    peer.broker.entries += 1
    return receipt(frame, peer.broker.entries - 1)


def confirmed(peer: Peer, frame: Frame) -> bytes | None:
    """Answer ACK by ACK_RESPONSE if it asks for one."""
    body = frame.body
    if not body.HasField("request_id"):
        return None
    return build("ACK_RESPONSE", consumer_id=body.consumer_id, request_id=body.request_id)


_SCRIPT: dict[str, Reaction] = {
    "CONNECT": _connected,
    "AUTH_RESPONSE": silence,
    "PING": lambda peer, frame: build("PONG"),
    "PONG": silence,
    "LOOKUP": connect_to(),
    "PARTITIONED_METADATA": answer(
        "PARTITIONED_METADATA_RESPONSE",
        partitions=0,
        response=CommandPartitionedTopicMetadataResponse.Success,
    ),
    "GET_TOPICS_OF_NAMESPACE": answer("GET_TOPICS_OF_NAMESPACE_RESPONSE", topics=[]),
    "PRODUCER": _producer_success,
    "SEND": stored,
    "CLOSE_PRODUCER": answer("SUCCESS"),
    "SUBSCRIBE": answer("SUCCESS"),
    "FLOW": silence,
    "ACK": confirmed,
    "REDELIVER_UNACKNOWLEDGED_MESSAGES": silence,
    "SEEK": answer("SUCCESS"),
    "UNSUBSCRIBE": answer("SUCCESS"),
    "CLOSE_CONSUMER": answer("SUCCESS"),
    "WATCH_TOPIC_LIST_CLOSE": answer("SUCCESS"),
}


# ---- Messages for consumers ----

Entry = Callable[[int], bytes]
"""A MESSAGE for the consumer of this id."""


def entry(
    number: int, payload: bytes = b"", *, ledger: int = LEDGER, prefixed: bool = False, **fields: Any
) -> Entry:
    """An entry of one message; `fields` of its metadata, `prefixed` with broker entry metadata."""
    metadata = MessageMetadata(**{"producer_name": "p", "sequence_id": number, "publish_time": 1, **fields})
    prefix = BrokerEntryMetadata(broker_timestamp=1, index=number) if prefixed else None

    def whole(consumer: int) -> bytes:
        command = build_command(
            "MESSAGE", consumer_id=consumer, message_id={"ledgerId": ledger, "entryId": number}
        )
        return build_frame(command, metadata, payload, broker_entry=prefix)

    return whole


def damaged(good: Entry) -> Entry:
    """The same with another last byte, so that its CRC32-C is wrong."""

    def whole(consumer: int) -> bytes:
        data = good(consumer)
        return data[:-1] + bytes([data[-1] ^ 1])

    return whole


def with_metadata(number: int, metadata: bytes) -> Entry:
    """An entry with any bytes for its metadata, and the right CRC32-C."""

    def whole(consumer: int) -> bytes:
        at = {"ledgerId": LEDGER, "entryId": number}
        command = build_command("MESSAGE", consumer_id=consumer, message_id=at).SerializeToString()
        covered = struct.pack(">I", len(metadata)) + metadata
        return frame_of(command, b"\x0e\x01" + struct.pack(">I", crc32c(covered)) + covered)

    return whole


def deliver(*entries: Entry) -> Reaction:
    """Send these to the consumer of the frame that is answered: of FLOW, mostly."""
    return lambda peer, frame: b"".join(each(frame.body.consumer_id) for each in entries)


# ---- Our side ----


class Results(list[SendResult]):
    """What became of a producer's sends."""

    def __init__(self, bell: Bell) -> None:
        super().__init__()
        self._bell = bell

    def add(self, sent: SendResult) -> None:
        self.append(sent)
        self._bell.ring()

    @property
    def stored(self) -> list[int]:
        """Sequence ids of what was stored, in order."""
        return [each.sequence_id for each in self if each.error is None]

    @property
    def failed(self) -> list[int]:
        """Sequence ids of what was not."""
        return [each.sequence_id for each in self if each.error is not None]


@asynccontextmanager
async def producing(
    broker: ScriptedBroker, client: Client, **options: Any
) -> AsyncIterator[tuple[Producer, Results]]:
    """An open producer that sends each message alone unless `options` say otherwise, and the results."""
    results = Results(broker.bell)
    producer = Producer(client, TOPIC, ProducerOptions(**{"batch_count": 1, **options}), results.add)
    await producer.open()
    try:
        yield producer, results
    finally:
        await producer.close()


async def send(producer: Producer, *payloads: bytes) -> None:
    for payload in payloads:
        await producer.send(Outgoing(payload))


@asynccontextmanager
async def subscribed(client: Client, topic: str = TOPIC, **options: Any) -> AsyncIterator[Subscription]:
    """An open subscription to one topic."""
    subscription = Subscription(client, [topic], ConsumerOptions("s", **options))
    await subscription.open()
    try:
        yield subscription
    finally:
        await subscription.close()


async def take(subscription: Subscription, count: int) -> list[Delivery[Consumer]]:
    """Take `count` deliveries, and give their permits back."""
    found: list[Delivery[Consumer]] = []
    while len(found) < count:
        delivery = await take_one(subscription)
        delivery.consumer.release_permits(delivery)
        found.append(delivery)
    return found


async def take_one(subscription: Subscription) -> Delivery[Consumer]:
    """Take a delivery, and keep its permits."""
    delivery = await subscription.take()
    assert delivery is not None
    return delivery


def payloads(deliveries: Iterable[Delivery[Consumer]]) -> list[bytes | None]:
    return [message.payload for delivery in deliveries for message in delivery.messages]


def places(ids: Any) -> list[tuple[int, int]]:
    """Ledger and entry of each of some MessageIdData."""
    return [(each.ledgerId, each.entryId) for each in ids]


def acked(broker: ScriptedBroker) -> list[tuple[int, int]]:
    """Ledger and entry of all that was acknowledged, in order."""
    return [place for body in broker.bodies("ACK") for place in places(body.message_id)]


# ---- Servers that are no brokers ----


@asynccontextmanager
async def server(
    handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """A server that speaks anything: `host:port`. Each connection is closed when `handle` is through."""

    async def whole(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handle(reader, writer)
        finally:
            writer.close()

    listening = await asyncio.start_server(whole, HOST, 0)
    try:
        yield f"{HOST}:{listening.sockets[0].getsockname()[1]}"
    finally:
        listening.close()


@contextmanager
def nobody() -> Iterator[str]:
    """`host:port` where connections are refused."""
    with socket.socket() as held:  # bound, so that nobody else takes it
        held.bind((HOST, 0))
        yield f"{HOST}:{held.getsockname()[1]}"


def command_bytes(name: str, **fields: Any) -> bytes:
    """A BaseCommand alone."""
    command: BaseCommand = build_command(name, **fields)
    return command.SerializeToString()
