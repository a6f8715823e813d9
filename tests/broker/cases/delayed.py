"""Messages with deliver_at_time, for Shared consumers."""

from __future__ import annotations

from broker.probe import Probe, Target, case, payloads


async def both_ends(broker: Target) -> tuple[Probe, Probe]:
    """A Shared consumer with permits, and a producer."""
    consumer = await broker.subscribed(topic := broker.topic(), "Shared", 100)
    return consumer, await broker.producing(topic)


@case("delayed/shared")
async def shared(broker: Target) -> None:
    consumer, producer = await both_ends(broker)
    await producer.publish_all(b"late", meta_deliver_at_time=broker.now_ms() + 2000)
    await broker.advance(0.7)
    await consumer.nothing(0.2)
    await broker.advance(3)
    await consumer.expect("MESSAGE", within=0.5)


@case("delayed/overtaken")
async def overtaken(broker: Target) -> None:
    consumer, producer = await both_ends(broker)
    await producer.publish_all(b"late", meta_deliver_at_time=broker.now_ms() + 2000)
    await producer.publish_all(b"plain", first=1)
    assert payloads(await consumer.messages(1)) == [b"plain"]
    await consumer.nothing(0.2)
    await broker.advance(3.5)
    assert payloads(await consumer.messages(1)) == [b"late"]


@case("delayed/tick")
async def tick(broker: Target) -> None:
    consumer, producer = await both_ends(broker)
    began = broker.now_ms()
    for number, delay in enumerate(range(250, 2001, 250)):
        await producer.publish_all(b"%d" % delay, first=number, meta_deliver_at_time=began + delay)
    arrived: dict[int, int] = {}
    for _ in range(35):
        await broker.advance(0.1)
        await broker.settle(0.01)
        while consumer.frames:
            arrived[int((await consumer.expect("MESSAGE")).payload)] = broker.now_ms() - began
    assert len(arrived) == 8, arrived
    assert all(abs(at - delay) <= 1100 for delay, at in arrived.items()), arrived
