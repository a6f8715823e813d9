"""Producing to a topic that may be partitioned: a producer for each partition, and which one a message takes.

Source of the routing: Pulsar's message routing modes. A key decides where there is one, by its hash as it is
carried; otherwise partitions take turns (a whole batch each) or one of them, chosen at random, takes all.
"""

import random
from collections.abc import Callable
from typing import Final

from pulsarctl_wire.net.client import Client
from pulsarctl_wire.net.producer import Producer, ProducerOptions, Sent
from pulsarctl_wire.wire.entry import Outgoing
from pulsarctl_wire.wire.hashing import java_string_hash, murmur3_32
from pulsarctl_wire.wire.names import partition_name

HASHES: Final[dict[str, Callable[[str], int]]] = {"java": java_string_hash, "murmur3": murmur3_32}
"""How keys are hashed: JavaStringHash (the Java client's default) or Murmur3_32."""


class Publisher:
    """Produces to `topic` (a full name), whatever its partitions; they are opened when first used.

    `routing` is "round-robin" or "single", `hashing` a key of `HASHES`.
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        options: ProducerOptions,
        on_sent: Callable[[Sent], None],
        *,
        routing: str = "round-robin",
        hashing: str = "java",
    ) -> None:
        self.topic = topic
        self.partitions = 0
        self.producers: dict[int, Producer] = {}
        self._client = client
        self._options = options
        self._on_sent = on_sent
        self._single = routing == "single"
        self._hash = HASHES[hashing]
        self._turn = 0

    async def open(self) -> None:
        """Find the partitions, and open the first producer. Raises SessionError."""
        self.partitions = await self._client.partitions(self.topic)
        self._turn = random.randrange(self.partitions) if self.partitions else 0
        await self._producer(self._turn)

    async def _producer(self, index: int) -> Producer:
        producer = self.producers.get(index)
        if producer is None:
            name = partition_name(self.topic, index) if self.partitions else self.topic
            producer = Producer(self._client, name, self._options, self._on_sent)
            await producer.open()
            self.producers[index] = producer
        return producer

    async def send(self, message: Outgoing) -> None:
        """Send `message` to its partition; as `Producer.send`."""
        count = self.partitions
        if not count:
            await self.producers[0].send(message)
        elif message.key is not None:
            await (await self._producer(self._hash(message.key) % count)).send(message)
        else:
            producer = await self._producer(self._turn)
            await producer.send(message)
            if not self._single and not producer.unsent_messages:
                self._turn = (self._turn + 1) % count

    @property
    def pending_messages(self) -> int:
        """Messages that were sent and have no receipt yet."""
        return sum(each.pending_messages for each in self.producers.values())

    @property
    def unsent_messages(self) -> int:
        """Messages that wait in batches."""
        return sum(each.unsent_messages for each in self.producers.values())

    async def flush(self) -> None:
        """Send what is batched, and wait for all receipts."""
        for producer in self.producers.values():
            await producer.flush()

    async def close(self) -> None:
        """Close the producers."""
        for producer in self.producers.values():
            await producer.close()
