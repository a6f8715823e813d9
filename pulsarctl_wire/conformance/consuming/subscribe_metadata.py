"""Metadata and properties in SUBSCRIBE."""

from __future__ import annotations

from pulsarctl_wire.checks.requirement import OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.checking import equal
from pulsarctl_wire.conformance.basics.frames import make_subscription
from pulsarctl_wire.conformance.basics.probe import SOON
from pulsarctl_wire.conformance.basics.target import Target, admin_path


@case(OBSERVED, needs=("admin",), since="3.3")
async def properties_of_one_key(broker: Target) -> None:
    """SUBSCRIBE a new subscription with subscription_properties k=1 and k=2; its properties.

    Expected: k=1.

    Source: Broker: ServerCnx.handleSubscribe.
    """
    pairs = [{"key": "k", "value": value} for value in "12"]
    await broker.subscribe(topic := broker.topic(), subscription_properties=pairs)
    equal(
        await broker.rest("GET", f"{admin_path(topic)}/subscription/s/properties"), {"k": "1"}, "properties"
    )


@case(OBSERVED)
async def metadata_too_large(broker: Target) -> None:
    """SUBSCRIBE with metadata of 2 KiB.

    Expected: ERROR MetadataError (limit 1024 bytes).

    Source: Broker: ServerCnx.handleSubscribe (maxConsumerMetadataSize).
    """
    consumer = await broker.connect()
    await consumer.look_up(topic := broker.topic())
    large = [{"key": "k", "value": "v" * 2048}]
    await consumer.expect_error("MetadataError", "SUBSCRIBE", **make_subscription(topic, metadata=large))


@case(OBSERVED)
async def metadata_key_twice(broker: Target) -> None:
    """SUBSCRIBE with two pairs of metadata that have one key.

    Expected: No frame; the broker closes the connection within 1 s.

    Source: Common: CommandUtils.metadataFromCommand.
    """
    probe = await broker.connect()
    await probe.look_up(topic := broker.topic())
    pairs = [{"key": "k", "value": value} for value in "12"]
    probe.start("SUBSCRIBE", **make_subscription(topic, metadata=pairs))
    await probe.expect_close(SOON)


@case(SHOULD, needs=("admin",))
async def properties(broker: Target) -> None:
    """SUBSCRIBE with subscription_properties a=1; another with a=2; statistics of the topic.

    Expected: SUCCESS twice; subscriptionProperties {a: 1}: only the first one sets them.

    Source: Broker: PersistentTopic.
    """
    topic = broker.topic()
    for value in "12":
        await broker.subscribe(topic, "Shared", subscription_properties=[{"key": "a", "value": value}])
    stats = await broker.rest("GET", f"{admin_path(topic)}/stats")
    equal(stats["subscriptions"]["s"]["subscriptionProperties"], {"a": "1"}, "subscriptionProperties")
