"""The scripted broker of `pwire conform client`, in a test's own event loop, and what tests do with it.

    @awaited
    async def test_something() -> None:
        async with ScriptedBroker() as broker, broker.client() as client:
            broker.once("PRODUCER", refuse("ServiceNotReady"))
            ...
            assert len(broker.seen("PRODUCER")) == 2

Here it allows no command that the script does not have, and no odd frame: our clients send none. What they
warned of is in `said`. Tests wait for what they want to see (`saw`, `until`), never for time to pass.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, ParamSpec, TypeVar

from pulsarctl_wire.conformance.basics.frames import wrap as frame_of
from pulsarctl_wire.conformance.clients import scripted
from pulsarctl_wire.conformance.clients.messages import Entry
from pulsarctl_wire.conformance.clients.messages import damage_payload as damaged
from pulsarctl_wire.conformance.clients.messages import make_numbered_entry as entry
from pulsarctl_wire.conformance.clients.messages import make_raw_entry as with_metadata
from pulsarctl_wire.conformance.clients.scripted import (
    HOST,
    LEDGER,
    Bell,
    Peer,
    Reaction,
    answer,
    connect_to,
    hang_up,
    refuse,
    refuse_connection,
    refuse_lookup,
)
from pulsarctl_wire.conformance.clients.scripted import append as followed_by
from pulsarctl_wire.conformance.clients.scripted import confirm as confirmed
from pulsarctl_wire.conformance.clients.scripted import ignore as silence
from pulsarctl_wire.conformance.clients.scripted import make_close_consumer as close_consumer
from pulsarctl_wire.conformance.clients.scripted import make_close_producer as close_producer
from pulsarctl_wire.conformance.clients.scripted import make_receipt as receipt
from pulsarctl_wire.conformance.clients.scripted import refuse_send as send_error
from pulsarctl_wire.conformance.clients.scripted import store as stored
from pulsarctl_wire.net.session.client import Client
from pulsarctl_wire.net.session.consumer import Consumer
from pulsarctl_wire.net.session.inbox import Delivery
from pulsarctl_wire.net.session.producer import Producer
from pulsarctl_wire.net.session.receive_queue import ConsumerOptions
from pulsarctl_wire.net.session.send_queue import ProducerOptions, SendResult
from pulsarctl_wire.net.session.subscription import Subscription
from pulsarctl_wire.net.settings import Settings, parse_url
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.entry import Outgoing
from pulsarctl_wire.wire.frame import Event, Frame, build_frame
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, MessageMetadata
from pulsarctl_wire.wire.session.state import NO_REQUEST

__all__ = [
    "HOST",
    "LEDGER",
    "NO_REQUEST",
    "Bell",
    "Entry",
    "Peer",
    "Reaction",
    "answer",
    "close_consumer",
    "close_producer",
    "confirmed",
    "connect_to",
    "damaged",
    "entry",
    "followed_by",
    "frame_of",
    "hang_up",
    "receipt",
    "refuse",
    "refuse_connection",
    "refuse_lookup",
    "send_error",
    "silence",
    "stored",
    "with_metadata",
]

TOPIC = "persistent://public/default/t"
PATIENCE = 60.0
"""Seconds after which a test that waits for something has failed: far more than any takes."""

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


# ---- The broker ----


class ScriptedBroker(scripted.ScriptedBroker):
    """A broker on a port of its own; an async context manager. `said` is what our clients warned of."""

    def __init__(self, **connected_as: Any) -> None:
        super().__init__(**connected_as)
        self.said: list[str] = []

    def receive(self, peer: Peer, event: Event) -> None:
        assert isinstance(event, Frame), event
        assert not event.notes, event.notes
        super().receive(peer, event)

    def find_reaction(self, command: str) -> Reaction:
        reaction = super().find_reaction(command)
        assert command in self._always or command in scripted.SCRIPT, command
        return reaction

    def client(self, url: str | None = None, **settings: Any) -> Client:
        """A client of ours; `settings` are fields of Settings."""
        settings = {"timeout": 10.0, **settings, "url": parse_url(url or self.url)}
        return Client(Settings(**settings), warn=self._warned)

    def _warned(self, text: str) -> None:
        self.said.append(text)
        self.bell.ring()

    # -- what happened

    def seen(self, command: str) -> list[Frame]:
        """The frames of this command that came over all connections, in order."""
        return self.list_frames(command)

    def bodies(self, command: str) -> list[Any]:
        """Their sub-messages."""
        return self.list_bodies(command)

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


def build(
    name: str, metadata: MessageMetadata | None = None, payload: bytes = b"", /, **fields: Any
) -> bytes:
    """The bytes of a frame."""
    return build_frame(build_command(name, **fields), metadata, payload)


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
