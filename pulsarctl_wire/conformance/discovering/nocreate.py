"""Topics and subscriptions that the broker does not create by itself."""

from __future__ import annotations

from pulsarctl_wire.checks.requirement import SHOULD
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.frames import make_subscription
from pulsarctl_wire.conformance.basics.target import Target, admin_path


@case(SHOULD, needs=("nocreate",))
async def producer(broker: Target) -> None:
    """allowAutoTopicCreation=false: LOOKUP, PRODUCER on a missing topic.

    Expected: LOOKUP_RESPONSE Connect; PRODUCER ERROR TopicNotFound.

    Source: Broker: BrokerService.
    """
    probe, topic = await broker.connect(), broker.topic()
    await probe.look_up(topic)
    await probe.expect_error("TopicNotFound", "PRODUCER", topic=topic, producer_id=1)


@case(SHOULD, needs=("nocreate",))
async def subscribe(broker: Target) -> None:
    """SUBSCRIBE on a missing topic.

    Expected: ERROR TopicNotFound.

    Source: Broker: BrokerService.
    """
    probe, topic = await broker.connect(), broker.topic()
    await probe.look_up(topic)
    await probe.expect_error("TopicNotFound", "SUBSCRIBE", **make_subscription(topic))


@case(SHOULD, needs=("nocreate", "admin"))
async def subscription(broker: Target) -> None:
    """The topic exists, allowAutoSubscriptionCreation=false: SUBSCRIBE to a new durable subscription.

    Expected: ERROR SubscriptionNotFound.

    Source: Broker: ServerCnx.handleSubscribe.
    """
    probe, topic = await broker.connect(), broker.topic()
    await broker.rest("PUT", admin_path(topic))
    await probe.look_up(topic)
    await probe.expect_error("SubscriptionNotFound", "SUBSCRIBE", **make_subscription(topic, durable=True))


@case(SHOULD, needs=("nocreate", "admin"))
async def nondurable(broker: Target) -> None:
    """The topic exists, allowAutoSubscriptionCreation=false: SUBSCRIBE with durable=false.

    Expected: SUCCESS.

    Source: Broker: ServerCnx.handleSubscribe.
    """
    topic = broker.topic()
    await broker.rest("PUT", admin_path(topic))
    await broker.subscribe(topic, durable=False)
