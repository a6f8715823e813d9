"""FLOW and CONSUMER_STATS."""

from __future__ import annotations

from typing import Any

from pulsarctl_wire.checks.requirement import MUST, OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.checking import absent, equal, present, require
from pulsarctl_wire.conformance.basics.frames import make_batch, make_frame, make_subscription, payloads
from pulsarctl_wire.conformance.basics.probe import Probe
from pulsarctl_wire.conformance.basics.target import Target, admin_path
from pulsarctl_wire.wire.PulsarApi_pb2 import ServerError

_BATCH = [b"0", b"1", b"2", b"3", b"4"]


async def _ask_stats(consumer: Probe) -> Any:
    return await consumer.request("CONSUMER_STATS", "CONSUMER_STATS_RESPONSE", consumer_id=1)


@case(MUST)
async def exact(broker: Target) -> None:
    """5 messages, Exclusive, FLOW 2, later FLOW 1.

    Expected: Exactly 2 MESSAGEs, then exactly 1.

    Source: Protocol: Flow control.
    """
    consumer = await broker.subscribe(await broker.fill(5), permits=2)
    await consumer.messages(2)
    await consumer.expect_nothing()
    consumer.flow(1)
    await consumer.messages(1)
    await consumer.expect_nothing()


@case(MUST)
async def adds_up(broker: Target) -> None:
    """FLOW 1 three times before any message; then 5 messages.

    Expected: 3 MESSAGEs.

    Source: Protocol: Flow control.
    """
    consumer = await broker.subscribe(topic := broker.topic())
    for _ in range(3):
        consumer.flow(1)
    await consumer.expect_nothing()
    await broker.fill(5, topic)
    await consumer.messages(3)
    await consumer.expect_nothing()


async def _expect_close_at(broker: Target, permits: int) -> None:
    consumer = await broker.subscribe(await broker.fill(1))
    consumer.flow(permits)
    await consumer.expect_close(2)


@case(OBSERVED)
async def zero(broker: Target) -> None:
    """FLOW messagePermits=0.

    Expected: No frame; the broker closes the connection within 1 s.

    Source: Broker: Consumer.flowPermits.
    """
    await _expect_close_at(broker, 0)


@case(OBSERVED)
async def max_uint32(broker: Target) -> None:
    """FLOW messagePermits=4294967295.

    Expected: No frame; the broker closes the connection within 1 s.

    Source: Broker: Consumer.flowPermits.
    """
    await _expect_close_at(broker, 2**32 - 1)


@case(OBSERVED)
async def max_int32(broker: Target) -> None:
    """FLOW messagePermits=2^31-1 on 3 messages.

    Expected: 3 MESSAGEs.

    Source: Broker: Consumer.flowPermits.
    """
    consumer = await broker.subscribe(await broker.fill(3), permits=2**31 - 1)
    await consumer.messages(3)


@case(OBSERVED)
async def overflow(broker: Target) -> None:
    """FLOW 2^31-1 twice on an empty topic, then 3 messages are published.

    Expected: No MESSAGE, no close: permits became -2 (CONSUMER_STATS availablePermits=2^64-2).

    Source: Broker: Consumer.flowPermits.
    """
    # Shared: with Exclusive, a read that begins between the two FLOWs delivers what it waits for
    consumer = await broker.subscribe(topic := broker.topic(), "Shared")
    consumer.flow(2**31 - 1)
    consumer.flow(2**31 - 1)
    await consumer.expect_nothing()
    await broker.fill(3, topic)
    await consumer.expect_nothing()
    equal((await _ask_stats(consumer)).availablePermits, 2**64 - 2, "availablePermits")


@case(SHOULD)
async def batch_shared_1(broker: Target) -> None:
    """Batch of 5 in one entry, then 3 singles; Shared, FLOW 1.

    Expected: One MESSAGE with the whole batch, which leaves -4 permits; FLOW 4 (0 permits) -> nothing; FLOW 1
    -> next single.

    Source: Broker: Consumer.sendMessages.
    """
    producer = await broker.produce(topic := broker.topic())
    await producer.publish_batch(*_BATCH)
    await producer.publish_all(b"5", b"6", b"7", first=5)
    consumer = await broker.subscribe(topic, "Shared", 1)
    equal(payloads(await consumer.messages(1)), [make_batch(*_BATCH)], "payloads")
    await consumer.expect_nothing()
    consumer.flow(4)
    await consumer.expect_nothing()
    consumer.flow(1)
    equal(payloads(await consumer.messages(1)), [b"5"], "payloads")
    await consumer.expect_nothing()


@case(OBSERVED, since="3.3")
async def batch_exclusive_overshoot(broker: Target) -> None:
    """10 batches of 5; Exclusive, FLOW 5.

    Expected: 5 MESSAGEs = 25 messages (permits are read as entries); availablePermits=-20.

    Source: Broker: PersistentDispatcherSingleActiveConsumer.
    """
    producer = await broker.produce(topic := broker.topic())
    for number in range(10):
        await producer.publish_batch(*_BATCH, first=number * 5)
    consumer = await broker.subscribe(topic, permits=5)
    messages = await consumer.messages(5)
    equal(payloads(messages), [make_batch(*_BATCH, first=number * 5) for number in range(5)], "payloads")
    await consumer.expect_nothing()
    equal((await _ask_stats(consumer)).availablePermits, 2**64 - 20, "availablePermits")


@case(MUST)
async def permits_lost_on_close(broker: Target) -> None:
    """FLOW 10, CLOSE_CONSUMER, SUBSCRIBE again without FLOW, publish.

    Expected: No frame.

    Source: Protocol: Flow control.
    """
    consumer = await broker.subscribe(topic := broker.topic(), permits=10)
    await consumer.resubscribe(topic, permits=0)
    await broker.fill(1, topic)
    await consumer.expect_nothing()
    consumer.flow(1)
    await consumer.messages(1)


@case(OBSERVED)
async def stats_permits(broker: Target) -> None:
    """FLOW 10, 3 messages delivered, CONSUMER_STATS.

    Expected: CONSUMER_STATS_RESPONSE {availablePermits=7, unackedMessages=0 (not counted for Exclusive),
    msgBacklog=3, type='Exclusive', blockedConsumerOnUnackedMsgs=false, address, connectedSince; no
    error_code}.

    Source: Broker: ServerCnx.handleConsumerStats.
    """
    consumer = await broker.subscribe(await broker.fill(3), permits=10)
    await consumer.messages(3)
    body = await _ask_stats(consumer)
    equal(
        (body.availablePermits, body.unackedMessages, body.msgBacklog),
        (7, 0, 3),
        "availablePermits, unackedMessages, msgBacklog",
    )
    equal(body.type, "Exclusive", "type")
    present(body, "blockedConsumerOnUnackedMsgs")
    require(
        not body.blockedConsumerOnUnackedMsgs,
        "no blockedConsumerOnUnackedMsgs",
        body.blockedConsumerOnUnackedMsgs,
    )
    require(body.address, "address", body.address)
    require(body.connectedSince, "connectedSince", body.connectedSince)
    absent(body, "error_code")


@case(OBSERVED)
async def stats_unknown_consumer(broker: Target) -> None:
    """CONSUMER_STATS consumer_id=99.

    Expected: No frame; the broker closes the connection within 1 s.

    Source: Broker: ServerCnx.handleConsumerStats.
    """
    consumer = await broker.connect()
    consumer.start("CONSUMER_STATS", consumer_id=99)
    await consumer.expect_close(2)


@case(OBSERVED)
async def stats_while_subscribing(broker: Target) -> None:
    """SUBSCRIBE of a new topic and CONSUMER_STATS of its id in one write.

    Expected: CONSUMER_STATS_RESPONSE {error_code=ConsumerNotFound}, SUCCESS; or, if it was done by then, the
    statistics.

    Source: Broker: ServerCnx.handleConsumerStats.
    """
    probe = await broker.connect()
    await probe.look_up(topic := broker.topic())
    request = make_frame("SUBSCRIBE", request_id=51, **make_subscription(topic))
    probe.send(request + make_frame("CONSUMER_STATS", request_id=52, consumer_id=1))
    answers = {item.command: item.body for item in [await probe.next() for _ in range(2)]}
    equal(answers["SUCCESS"].request_id, 51, "request_id")
    stats = answers["CONSUMER_STATS_RESPONSE"]
    equal(stats.request_id, 52, "request_id")
    is_usual = not stats.HasField("error_code") or stats.error_code == ServerError.ConsumerNotFound
    require(is_usual, "no error_code, or ConsumerNotFound", stats)


@case(OBSERVED, needs=("admin",))
async def expired_unacked(broker: Target) -> None:
    """Shared, FLOW 1 on 2 messages; expireMessages by the admin API when they are 2 s old; CONSUMER_STATS.

    Expected: unackedMessages=1, msgBacklog=0.

    Source: Broker: PersistentMessageExpiryMonitor.
    """
    topic = await broker.fill(2)
    consumer = await broker.subscribe(topic, "Shared", 1)
    await consumer.messages(1)
    await broker.advance(2.5)
    await broker.rest("POST", f"{admin_path(topic)}/subscription/s/expireMessages/1")
    await broker.advance(0.5)
    body = await _ask_stats(consumer)
    equal((body.unackedMessages, body.msgBacklog), (1, 0), "unackedMessages, msgBacklog")


@case(SHOULD, needs=("admin",))
async def dispatch_rate(broker: Target) -> None:
    """Namespace with dispatchRate of 3 messages in 60 s; Shared and Exclusive, FLOW 10 on 8 messages.

    Expected: 3 MESSAGEs.

    Source: Broker: DispatchRateLimiter.
    """
    namespace = await broker.create_namespace()
    rate = {"dispatchThrottlingRateInMsg": 3, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 60}
    await broker.rest("POST", f"/admin/v2/namespaces/{namespace}/dispatchRate", rate)
    await broker.advance(1)
    for kind in ("Shared", "Exclusive"):
        topic = await broker.fill(8, f"persistent://{namespace}/{kind}")
        consumer = await broker.subscribe(topic, kind, 10)
        await consumer.messages(3)
        await consumer.expect_nothing()


@case(OBSERVED, needs=("limits",))
async def while_blocked(broker: Target) -> None:
    """Shared, maxUnackedMessagesPerConsumer=10: FLOW 100 on 30 messages, FLOW 50, CONSUMER_STATS;
    acknowledge 5, CONSUMER_STATS.

    Expected: 10 messages; availablePermits=90: FLOW while it is blocked counts only later; 5 more;
    availablePermits=135.

    Source: Broker: Consumer.flowPermits.
    """
    consumer = await broker.subscribe(await broker.fill(30), "Shared", 100)
    ids = [item.body.message_id for item in await consumer.messages(10)]
    consumer.flow(50)
    for permits in (90, 135):
        body = await consumer.request("CONSUMER_STATS", "CONSUMER_STATS_RESPONSE", consumer_id=1)
        equal(body.availablePermits, permits, "availablePermits")
        if permits == 90:
            consumer.ack(*ids[:5])
            await consumer.messages(5)
