"""Sends messages that were refused too often to the dead letter topic, or to the retry topic for later.

Topic names (`<topic>-<subscription>-DLQ` and `-RETRY`) and properties are those of Pulsar's clients. Messages
keep their key, properties, event time and schema.
"""

import re
import time
from typing import Final

from pulsarctl_wire.errors import WireError
from pulsarctl_wire.net.session.client import Client
from pulsarctl_wire.net.session.consumer import Consumer
from pulsarctl_wire.net.session.inbox import Delivery
from pulsarctl_wire.net.session.producer import Publisher
from pulsarctl_wire.net.session.send_queue import ProducerOptions, SendResult
from pulsarctl_wire.wire.entry import Outgoing
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.names import without_partition
from pulsarctl_wire.wire.payload import Message

_RETRIES_PROPERTY: Final = "RECONSUMETIMES"
_MAX_PUBLISHERS: Final = 100  # one for each schema version, of which there may be any number
_DELAY_PROPERTY: Final = "DELAY_TIME"


class DeadLetters:
    """Forwards messages. `limit` is how often one may be redelivered (or retried).

    Attributes: `dead_topic`, `retry_topic`, and how many messages were `buried` and `retried`.
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        subscription: str,
        limit: int,
        dead_topic: str | None = None,
        retry_topic: str | None = None,
    ) -> None:
        base = f"{without_partition(topic)}-{subscription}"
        self.limit = limit
        self.dead_topic = dead_topic or f"{base}-DLQ"
        self.retry_topic = retry_topic or f"{base}-RETRY"
        self.buried = self.retried = 0
        self._client = client
        self._subscription = subscription
        self._publishers: dict[tuple[str, bytes], Publisher] = {}
        self._error: WireError | None = None

    async def bury(self, delivery: Delivery[Consumer], message: Message) -> None:
        """Send `message` to the dead letter topic, and acknowledge it once it is stored there."""
        properties = self._properties(delivery, message)
        self.buried += await self._send(self.dead_topic, delivery, message, properties, None)

    async def retry(self, delivery: Delivery[Consumer], message: Message, delay: float) -> None:
        """Send `message` to the retry topic, to be delivered in `delay` seconds; over the limit, bury it."""
        properties = self._properties(delivery, message)
        text = properties.get(_RETRIES_PROPERTY, "")
        retry_count = int(text) + 1 if re.fullmatch("[0-9]{1,9}", text) else 1
        properties |= {_RETRIES_PROPERTY: str(retry_count), _DELAY_PROPERTY: str(int(delay * 1000))}
        if retry_count > self.limit:
            self.buried += await self._send(self.dead_topic, delivery, message, properties, None)
            return
        time_ms = int((time.time() + delay) * 1000)
        self.retried += await self._send(self.retry_topic, delivery, message, properties, time_ms)

    def _properties(self, delivery: Delivery[Consumer], message: Message) -> dict[str, str]:
        """Return the message's own properties, and those that say where it came from originally."""
        properties = {as_text(pair.key): as_text(pair.value) for pair in message.metadata.properties}
        ledger, entry = delivery.id
        origin = f"{ledger}:{entry}:{delivery.consumer.partition}"
        if message.index is not None:
            origin += f":{message.index}"
        properties.setdefault("REAL_TOPIC", delivery.consumer.topic)
        properties.setdefault("REAL_SUBSCRIPTION", self._subscription)
        properties.setdefault("ORIGIN_MESSAGE_ID", origin)
        # not a typing error: Pulsar's clients set this property, too, to the same value
        properties.setdefault("ORIGIN_MESSAGE_IDY_TIME", properties["ORIGIN_MESSAGE_ID"])
        return properties

    async def _send(
        self,
        topic: str,
        delivery: Delivery[Consumer],
        message: Message,
        properties: dict[str, str],
        deliver_at_ms: int | None,
    ) -> bool:
        """Store `message` in `topic` and acknowledge it; return False if it is encrypted, and so refused."""
        if delivery.metadata.encryption_keys:
            self._client.warn(
                f"{delivery.consumer.topic}: an encrypted message cannot be forwarded; it is refused"
            )
            delivery.consumer.nack(delivery)
            return False
        version = delivery.metadata.schema_version
        publisher = self._publishers.get((topic, version))
        if publisher is None:
            schema = await self._client.fetch_schema(delivery.consumer.topic, version) if version else None
            options = ProducerOptions(batch_count=1, chunking=True, schema=schema)
            if len(self._publishers) >= _MAX_PUBLISHERS:
                await self._publishers.pop(next(iter(self._publishers))).close()
            publisher = Publisher(self._client, topic, options, self._record_result)
            await publisher.open()
            self._publishers[topic, version] = publisher
        metadata = message.metadata
        await publisher.send(
            Outgoing(
                message.payload or b"",
                key=as_text(metadata.partition_key) if metadata.HasField("partition_key") else None,
                key_is_base64=metadata.partition_key_b64_encoded,
                ordering_key=metadata.ordering_key or None,
                properties=tuple(properties.items()),
                event_time=metadata.event_time,
                deliver_at=deliver_at_ms,
                null=metadata.null_value,
            )
        )
        await publisher.flush()
        if self._error is not None:
            raise self._error
        delivery.consumer.ack(delivery, message)
        return True

    def _record_result(self, result: SendResult) -> None:
        self._error = self._error or result.error

    async def close(self) -> None:
        """Close the producers."""
        for publisher in self._publishers.values():
            await publisher.close()
