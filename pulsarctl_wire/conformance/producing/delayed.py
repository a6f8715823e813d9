"""Messages with deliver_at_time, for Shared consumers."""

from __future__ import annotations

from pulsarctl_wire.checks.requirement import OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.checking import equal, require
from pulsarctl_wire.conformance.basics.frames import make_metadata, payloads
from pulsarctl_wire.conformance.basics.probe import Probe
from pulsarctl_wire.conformance.basics.target import Target
from pulsarctl_wire.wire.PulsarApi_pb2 import ServerError


async def _open_both_ends(broker: Target) -> tuple[Probe, Probe]:
    """Return a Shared consumer with permits, and a producer."""
    consumer = await broker.subscribe(topic := broker.topic(), "Shared", 100)
    return consumer, await broker.produce(topic)


@case(SHOULD)
async def shared(broker: Target) -> None:
    """SEND deliver_at_time = now+2 s; Shared consumer with permits.

    Expected: MESSAGE not before 1 s and not after 4 s.

    Source: PIP-26; broker: delayed delivery.
    """
    consumer, producer = await _open_both_ends(broker)
    await producer.publish_all(b"late", meta_deliver_at_time=broker.now_ms() + 2000)
    await broker.advance(0.7)
    await consumer.expect_nothing(0.2)
    await broker.advance(3)
    await consumer.expect("MESSAGE", within=0.5)


@case(SHOULD)
async def overtaken(broker: Target) -> None:
    """Shared: delayed message (2 s), then a plain one.

    Expected: Plain first, delayed later.

    Source: PIP-26.
    """
    consumer, producer = await _open_both_ends(broker)
    await producer.publish_all(b"late", meta_deliver_at_time=broker.now_ms() + 2000)
    await producer.publish_all(b"plain", first=1)
    equal(payloads(await consumer.messages(1)), [b"plain"], "payloads")
    await consumer.expect_nothing(0.2)
    await broker.advance(3.5)
    equal(payloads(await consumer.messages(1)), [b"late"], "payloads")


@case(OBSERVED)
async def tick(broker: Target) -> None:
    """Shared: 8 messages with deliver_at_time spread over 2 s.

    Expected: Each arrives within 1 s before or after its time (tick 1 s).

    Source: PIP-26; delayedDeliveryTickTimeMillis=1000.
    """
    consumer, producer = await _open_both_ends(broker)
    start_ms = broker.now_ms()
    for number, delay in enumerate(range(250, 2001, 250)):
        await producer.publish_all(b"%d" % delay, first=number, meta_deliver_at_time=start_ms + delay)
    times: dict[int, int] = {}
    for _ in range(35):
        await broker.advance(0.1)
        await broker.settle(0.01)
        while consumer.frames:
            times[int((await consumer.expect("MESSAGE")).payload)] = broker.now_ms() - start_ms
    equal(len(times), 8, "number of messages")
    outliers = {delay: time for delay, time in times.items() if abs(time - delay) > 1100}
    require(not outliers, "each message within 1.1 s of its time (in ms)", outliers)


_NOT_ALLOWED = ServerError.NotAllowedError


@case(SHOULD, needs=("admin",), since="3.3")
async def too_long(broker: Target) -> None:
    """Namespace policy maxDeliveryDelayInMillis=5000: SEND with deliver_at_time = publish_time + 4 s; with
    + 6 s and highest_sequence_id=3.

    Expected: SEND_RECEIPT; SEND_ERROR {sequence_id=3, error=NotAllowedError}, 'Exceeds max allowed delivery
    delay of 5000 milliseconds'.

    Source: Broker: PersistentTopic.
    """
    delays = {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 5000}
    topic = f"persistent://{await broker.create_namespace({'delayed_delivery_policies': delays})}/t"
    probe = await broker.produce(topic)
    publish_time = make_metadata().publish_time
    await probe.publish_all(b"m", meta_deliver_at_time=publish_time + 4000)
    probe.publish(1, highest_sequence_id=3, meta_deliver_at_time=publish_time + 6000)
    text = "Exceeds max allowed delivery delay of 5000 milliseconds"
    await probe.expect("SEND_ERROR", sequence_id=3, error=_NOT_ALLOWED, message=text)
