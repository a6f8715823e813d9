"""What the setting "subscribing" changes: SUBSCRIBEs that it forbids, redelivery counts, permits."""

from __future__ import annotations

from pulsarctl_wire.checks.requirement import OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.checking import absent
from pulsarctl_wire.conformance.basics.frames import make_subscription
from pulsarctl_wire.conformance.basics.target import Target


@case(SHOULD, needs=("subscribing",))
async def strict_name(broker: Target) -> None:
    """strictlyVerifySubscriptionName: SUBSCRIBE of 'a/b', 'ü', 'a-b=:.'.

    Expected: ERROR ProducerBusy twice, SUCCESS.

    Source: Broker: ServerCnx.handleSubscribe.
    """
    probe = await broker.connect()
    await probe.look_up(topic := broker.topic())
    for number, name in enumerate(("a/b", "ü")):
        fields = make_subscription(topic, consumer_id=number, subscription=name)
        await probe.expect_error("ProducerBusy", "SUBSCRIBE", **fields)
    await probe.subscribe(topic, consumer_id=2, subscription="a-b=:.")


@case(SHOULD, needs=("subscribing",))
async def key_shared_disabled(broker: Target) -> None:
    """subscriptionTypesEnabled without Key_Shared: SUBSCRIBE Key_Shared.

    Expected: ERROR NotAllowedError.

    Source: Broker: PersistentTopic.
    """
    probe = await broker.connect()
    await probe.look_up(topic := broker.topic())
    await probe.expect_error("NotAllowedError", "SUBSCRIBE", **make_subscription(topic, "Key_Shared"))


@case(SHOULD, needs=("subscribing",))
async def same_address(broker: Target) -> None:
    """maxSameAddressConsumersPerTopic=2: three SUBSCRIBEs of three subscriptions.

    Expected: ERROR ConsumerBusy for the third.

    Source: Broker: AbstractTopic.
    """
    topic = broker.topic()
    for name in "ab":
        await broker.subscribe(topic, subscription=name, consumer_name=name)
    probe = await broker.connect()
    await probe.look_up(topic)
    third = make_subscription(topic, subscription="c", consumer_name="c")
    await probe.expect_error("ConsumerBusy", "SUBSCRIBE", **third)


@case(SHOULD, needs=("subscribing",))
async def rate(broker: Target) -> None:
    """subscribeThrottlingRatePerConsumer=2: SUBSCRIBE and CLOSE_CONSUMER twice, and SUBSCRIBE a third time;
    then SUBSCRIBE with another consumer name.

    Expected: ERROR NotAllowedError for the third; SUCCESS for the other name.

    Source: Broker: SubscribeRateLimiter.
    """
    probe = await broker.connect()
    topic = broker.topic()
    for _ in range(2):
        await probe.subscribe(topic, consumer_name="x")
        await probe.request("CLOSE_CONSUMER", "SUCCESS", consumer_id=1)
    await probe.expect_error("NotAllowedError", "SUBSCRIBE", **make_subscription(topic, consumer_name="x"))
    await probe.subscribe(topic, consumer_id=2, consumer_name="y")


@case(SHOULD, needs=("subscribing",))
async def no_redelivery_count(broker: Target) -> None:
    """subscriptionRedeliveryTrackerEnabled=false: Shared, REDELIVER.

    Expected: MESSAGE without redelivery_count.

    Source: Broker: RedeliveryTrackerDisabled.
    """
    consumer = await broker.subscribe(await broker.fill(1), "Shared", 10)
    await consumer.messages(1)
    consumer.redeliver()
    (message,) = await consumer.messages(1)
    absent(message.body, "redelivery_count")


@case(OBSERVED, needs=("subscribing",))
async def precise_flow(broker: Target) -> None:
    """preciseDispatcherFlowControl: 12 batches of 3; Exclusive, FLOW 4, then 14.

    Expected: 4 MESSAGEs, for 12 permits, as the sizes of batches are not known yet; then 2, for the 6 left.

    Source: Broker: Consumer.getAvgMessagesPerEntry.
    """
    producer = await broker.produce(topic := broker.topic())
    for number in range(12):
        await producer.publish_batch(b"0", b"1", b"2", first=3 * number)
    consumer = await broker.subscribe(topic, permits=4)
    await consumer.messages(4)
    await consumer.expect_nothing()
    consumer.flow(14)  # 4 - 12 + 14 = 6 permits: two batches of 3
    await consumer.messages(2)
    await consumer.expect_nothing()
