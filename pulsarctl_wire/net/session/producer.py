"""A producer at a broker: connects a `SendQueue` (`net/session/send_queue.py`) to a link and the clock.

When the link is lost, or the broker closes the producer (CLOSE_PRODUCER, TOPIC_MIGRATED), it is opened again
(epoch + 1), and all pending sends are sent again. A `Publisher` has a producer for each partition of a topic.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from pulsarctl_wire.errors import SessionError
from pulsarctl_wire.net.driver import now
from pulsarctl_wire.net.session.client import FIRST_PAUSE, Client
from pulsarctl_wire.net.session.endpoint import Endpoint
from pulsarctl_wire.net.session.send_queue import Failed, ProducerOptions, Restart, SendQueue, SendResult
from pulsarctl_wire.wire.entry import Outgoing
from pulsarctl_wire.wire.hashing import java_string_hash, murmur3_32
from pulsarctl_wire.wire.names import partition_name

HASHES: Final[dict[str, Callable[[str], int]]] = {"java": java_string_hash, "murmur3": murmur3_32}
"""Hash functions for keys: JavaStringHash (the Java client's default) and Murmur3_32."""


class Producer(Endpoint):
    """Produces to one topic that is not partitioned, or one partition.

    Calls `on_sent` with each result, and `on_end` with the error that ends it.

    Attributes in addition to Endpoint's: the `queue` that sends.
    """

    KIND = "producer"
    queue: SendQueue

    def __init__(
        self,
        client: Client,
        topic: str,
        options: ProducerOptions,
        on_sent: Callable[[SendResult], None],
        on_end: Callable[[SessionError], None] | None = None,
    ) -> None:
        number = next(client.ids)
        super().__init__(client, topic, number, SendQueue(topic, number, options))
        self._on_sent = on_sent
        self._end_callback = on_end

    def _on_end(self, error: SessionError) -> None:
        self.queue.end(error, now())
        self.sync()
        if self._end_callback is not None:
            self._end_callback(error)

    # -- sending

    async def send(self, message: Outgoing) -> None:
        """Send `message`, alone or in a batch; waits while too much is pending.

        Raises the SessionError that ended the producer, or LocalProtocolError if the message is too large.
        """
        if self.error is not None:
            raise self.error
        queue, is_sent = self.queue, True
        try:
            is_sent = queue.add(message, now())
        finally:
            if is_sent or queue.batched_messages == 1:  # else it joined a batch whose timer is set already
                self.sync()
        if not is_sent:
            return
        await asyncio.sleep(0)  # let the loop process what was received meanwhile
        if self.link is not None:
            await self.link.drain()
        while queue.is_full and self.error is None:
            await self.wait_for_sync()

    async def flush(self) -> None:
        """Send all batches, and wait until each pending send has its result."""
        self.queue.send_batches(now())
        self.sync()
        while self.queue.pending and self.error is None:
            await self.wait_for_sync()

    def handle(self, event: SendResult | Restart | Failed) -> None:
        """Handle an event of the queue: the result of a send, or a failure of the link or producer."""
        if isinstance(event, SendResult):
            if event.error is None:
                self._pause = FIRST_PAUSE
            self._on_sent(event)
        elif isinstance(event, Failed):
            self._end(event.error)
        elif self.link is not None:
            self.link.drop(event.reason)


@dataclass(eq=False)
class Publisher:
    """Produces to `topic` (a full name), partitioned or not; partitions are opened when first used.

    A message with a key goes to the partition that the hash of the key selects (`hashing`, a key of `HASHES`;
    the key is hashed in the form in which it is sent). Messages without a key go to the partitions in turn, a
    batch to each ("round-robin"), or all to one at random ("single"). Source: Pulsar's message routing modes.

    When a producer has ended, `ended` is done; its result is the error.
    """

    client: Client
    topic: str
    options: ProducerOptions
    on_sent: Callable[[SendResult], None]
    routing: str = "round-robin"
    hashing: str = "java"
    partitions: int = field(default=0, init=False)
    producers: dict[int, Producer] = field(default_factory=dict, init=False)
    ended: asyncio.Future[SessionError] = field(init=False)
    _turn: int = field(default=0, init=False)

    async def open(self) -> None:
        """Find the partitions, and open the first producer. Raises SessionError."""
        self.ended = asyncio.get_running_loop().create_future()
        self.partitions = await self.client.count_partitions(self.topic)
        self._turn = random.randrange(self.partitions) if self.partitions else 0
        await self._ensure_producer(self._turn)

    async def _ensure_producer(self, index: int) -> Producer:
        producer = self.producers.get(index)
        if producer is None:
            name = partition_name(self.topic, index) if self.partitions else self.topic
            producer = Producer(self.client, name, self.options, self.on_sent, self._end)
            await producer.open()
            self.producers[index] = producer
        return producer

    def _end(self, error: SessionError) -> None:
        if not self.ended.done():
            self.ended.set_result(error)

    async def send(self, message: Outgoing) -> None:
        """Send `message` to its partition, as `Producer.send` does."""
        count = self.partitions
        if not count:
            await self.producers[0].send(message)
        elif message.key is not None:
            await (await self._ensure_producer(HASHES[self.hashing](message.key) % count)).send(message)
        else:
            producer = await self._ensure_producer(self._turn)
            await producer.send(message)
            if self.routing == "round-robin" and not producer.queue.batched_messages:
                self._turn = (self._turn + 1) % count

    @property
    def pending_messages(self) -> int:
        """Number of messages that were sent and have no receipt yet."""
        return sum(producer.queue.pending_messages for producer in self.producers.values())

    @property
    def unsent_messages(self) -> int:
        """Number of messages that wait in batches."""
        return sum(producer.queue.batched_messages for producer in self.producers.values())

    async def flush(self) -> None:
        """Send all batches, and wait for all receipts."""
        for producer in self.producers.values():
            await producer.flush()

    async def close(self) -> None:
        """Close the producers."""
        for producer in self.producers.values():
            await producer.close()
