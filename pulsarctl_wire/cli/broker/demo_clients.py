"""What `pwire demo` runs: a broker in memory, and clients that produce and consume."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final

from pulsarctl_wire.broker.shell.running import Plan, Running, bind
from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.recording import Trace
from pulsarctl_wire.errors import RequestTimeout
from pulsarctl_wire.net.session.client import Client
from pulsarctl_wire.net.session.producer import Publisher
from pulsarctl_wire.net.session.receive_queue import ConsumerOptions
from pulsarctl_wire.net.session.send_queue import ProducerOptions
from pulsarctl_wire.net.session.subscription import Subscription
from pulsarctl_wire.net.settings import Settings, parse_url
from pulsarctl_wire.wire.entry import Outgoing
from pulsarctl_wire.wire.frame import Event
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSubscribe
from pulsarctl_wire.wire.session.sinks import Follower

_TOPIC: Final = "persistent://public/default/orders"
_MESSAGES: Final = (("ann", "1 x bread"), ("bob", "2 x milk"), ("ann", "3 x eggs"), ("carl", "1 x tea"))
_PAUSE: Final = 0.3  # seconds between two messages, so that they can be followed
_PATIENCE: Final = 10.0  # seconds that a message may take


@dataclass
class Group:
    """A subscription with two consumers, and what each of them has received."""

    name: str
    type: str
    received: dict[str, list[str]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """The number of messages that were received."""
        return sum(map(len, self.received.values()))


class DemoTrace(Trace):
    """Shows the frames until the output fails. The broker must not notice the failure: `error` keeps it."""

    error: OSError | None = None

    def events(self, events: list[Event]) -> None:
        """Show the events."""
        try:
            super().events(events)
        except OSError as error:
            self.error, self.wants_events = error, False
            console.give_up_stdout()  # its buffer may not be empty


async def run_demo(follower: Follower) -> None:
    """Start a broker, have its clients produce and consume, and stop everything."""
    plan = Plan()
    running = Running(plan, bind(plan), tap=follower, note=console.warn)
    try:
        await running.open()
        url = running.brokers[0].service_url
        console.warn(f"a broker of its own, in memory, at {url}")
        async with AsyncExitStack() as stack:
            await Clients(Settings(parse_url(url)), stack).run()
    finally:
        await running.close()


class Clients:
    """The clients of the demo, each with a connection of its own; they are closed with `stack`."""

    def __init__(self, settings: Settings, stack: AsyncExitStack) -> None:
        self._settings = settings
        self._stack = stack
        self._groups = [Group("workers", "Shared"), Group("audit", "Failover")]
        self._delivery_event = asyncio.Event()

    async def run(self) -> None:
        """Subscribe, produce, and tell who received what."""
        for group in self._groups:
            for number in (1, 2):
                await self._join(group, f"{group.name}-{number}")
        await self._produce()
        for group in self._groups:
            for name, payloads in group.received.items():
                console.warn(f"{group.type} consumer {name} received: {', '.join(payloads) or 'nothing'}")

    async def _client(self) -> Client:
        return await self._stack.enter_async_context(Client(self._settings, warn=console.warn))

    async def _join(self, group: Group, name: str) -> None:
        """Subscribe a consumer."""
        console.warn(f"{group.type} consumer {name} subscribes")
        kind = CommandSubscribe.SubType.Value(group.type)
        options = ConsumerOptions(group.name, type=kind, name=name, queue_size=10)
        consumer = Subscription(await self._client(), [_TOPIC], options)
        self._stack.push_async_callback(consumer.close)
        await consumer.open()
        group.received[name] = []
        task = asyncio.create_task(self._consume(consumer, group.received[name]))
        self._stack.callback(task.cancel)

    async def _consume(self, consumer: Subscription, received: list[str]) -> None:
        """Acknowledge what a consumer receives."""
        while delivery := await consumer.take():
            for message in delivery.messages:
                received.append((message.payload or b"").decode())
                delivery.consumer.ack(delivery, message)
            delivery.consumer.release_permits(delivery)
            self._delivery_event.set()

    async def _produce(self) -> None:
        """Send each message, and wait until every subscription has received it."""
        console.warn(f"a producer sends {len(_MESSAGES)} messages")
        options = ProducerOptions(name="shop", batch_count=1)
        publisher = Publisher(await self._client(), _TOPIC, options, lambda sent: None)
        self._stack.push_async_callback(publisher.close)
        await publisher.open()
        for number, (key, text) in enumerate(_MESSAGES, 1):
            await publisher.send(Outgoing(text.encode(), key=key))
            await publisher.flush()
            await self._wait_until_received(number)
            await asyncio.sleep(_PAUSE)

    async def _wait_until_received(self, number: int) -> None:
        while any(group.count < number for group in self._groups):
            self._delivery_event.clear()
            try:
                await asyncio.wait_for(self._delivery_event.wait(), _PATIENCE)
            except (TimeoutError, asyncio.TimeoutError):
                raise RequestTimeout(f"message {number} was not delivered within {_PATIENCE:g} s") from None
