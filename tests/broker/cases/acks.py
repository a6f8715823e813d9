"""ACK."""

from __future__ import annotations

from broker.probe import Target, case


@case("ack/response")
async def response(broker: Target) -> None:
    topic = await broker.filled(1)
    consumer = await broker.subscribed(topic, permits=10)
    (message,) = await consumer.messages(1)
    await consumer.acked(message.body.message_id, request_id=5)
