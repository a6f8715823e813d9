"""Whether a consumer may subscribe to a topic: names, types, limits and rates.

Sources: b/ServerCnx, b/p/PersistentTopic, b/AbstractTopic (4.0).
"""

import re
from typing import Any, Final

from pulsarctl_wire.broker.basics.refusal import Refused
from pulsarctl_wire.broker.clients.connection import Connection
from pulsarctl_wire.broker.delivery.consumer import EXCLUSIVE, KEY_SHARED, Consumer, Subscribed
from pulsarctl_wire.broker.topics.topic import Topic
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSubscribe, KeySharedMode

_REPLICATOR: Final = "pulsar.repl"  # begins the names of Pulsar's own subscriptions, as the next one
_DEDUPLICATION: Final = "pulsar.dedup"


def check_subscribe(topic: Topic[Any], connection: Connection, command: CommandSubscribe, name: str) -> None:
    """Raises Refused if the consumer of a SUBSCRIBE may not have the subscription of this name."""
    consumers = topic.consumers
    most = topic.policies.limit("max consumers", topic.settings.maxConsumersPerTopic)
    if most and len(consumers) >= most:
        raise Refused("ConsumerBusy", "Topic reached max consumers limit")
    verified = topic.settings.strictlyVerifySubscriptionName and name not in topic.subscriptions
    if verified and not re.fullmatch(r"[-=:.\w]*", name, re.ASCII):
        text = "Please let the subscription only contains '/w(a-zA-Z_0-9)' or '_', the current value is"
        raise Refused("ProducerBusy", f"{text} {name}")
    if topic.name.is_persistent:
        _check_type(topic, command)
        if not name.strip():
            raise Refused("ProducerBusy", "Empty subscription name")
    if name.startswith(_REPLICATOR) or (name == _DEDUPLICATION and topic.name.is_persistent):
        raise Refused("ProducerBusy", "Subscription with reserved subscription name attempted")
    if topic.name.is_persistent:
        _check_rate(topic, connection, command)
    most = topic.settings.maxSameAddressConsumersPerTopic
    if most and sum(each.connection.host == connection.host for each in consumers) >= most:
        raise Refused("ConsumerBusy", "Topic reached max same address consumers limit")


def _check_type(topic: Topic[Any], command: CommandSubscribe) -> None:
    kind = CommandSubscribe.SubType.Name(command.subType)
    if kind == "Key_Shared" and kind not in topic.settings.subscriptionTypesEnabled:
        raise Refused("NotAllowedError", "Key_Shared subscription is disabled by broker.")
    if kind not in (topic.policies.policy("subscription types") or topic.settings.subscriptionTypesEnabled):
        text = f"Topic[{{{topic.name.full}}}] doesn't support {kind} sub type!"
        raise Refused("NotAllowedError", text)


def _check_rate(topic: Topic[Any], connection: Connection, command: CommandSubscribe) -> None:
    settings = topic.settings
    most = settings.subscribeThrottlingRatePerConsumer
    seconds = settings.subscribeRatePeriodPerConsumerInSecond
    if found := topic.policies.policy("subscribe rate"):
        most = found.get("subscribeThrottlingRatePerConsumer", -1)
        seconds = found.get("ratePeriodInSecond", seconds)
    who = connection.host, connection.text(command.consumer_name), command.consumer_id
    if most > 0 and not topic.subscribe_limiter.takes(who, most, seconds):
        raise Refused("NotAllowedError", "Subscribe limited by subscribe rate limit per consumer.")


def _check_fits(consumer: Consumer, other: Consumer) -> None:
    """Raises Refused if a consumer cannot join a subscription that has this other one."""
    wanted, active = consumer.key_shared, other.key_shared
    if consumer.kind != other.kind:
        kinds = [CommandSubscribe.SubType.Name(each.kind) for each in (other, consumer)]  # type: ignore[arg-type]
        text = "subscription type of '{}' is different than the connecting consumer's type '{}'"
        text = text.format(*kinds)
    elif consumer.kind != KEY_SHARED:
        return
    elif wanted.keySharedMode != active.keySharedMode:
        modes = [KeySharedMode.Name(each.keySharedMode) for each in (active, wanted)]
        text = "subscription key_shared mode of '{}' is different than the connecting consumer's"
        text = f"{text} key_shared mode '{{}}'".format(*modes)
    elif wanted.allowOutOfOrderDelivery == active.allowOutOfOrderDelivery:
        return
    elif active.allowOutOfOrderDelivery:
        text = "subscription allows out of order delivery while the connecting consumer does not allow it"
    else:
        text = "subscription does not allow out of order delivery while the connecting consumer allows it"
    raise Refused("ConsumerBusy", f"Subscription is of different type. Active {text}.")


async def check_joins(subscription: Subscribed, topic: Topic[Any], consumer: Consumer) -> None:
    """Raises Refused if a consumer cannot join; first waits until an Exclusive one is known to be alive."""
    if subscription.consumers:
        _check_fits(consumer, subscription.consumers[0])
    if subscription.consumers and subscription.kind == EXCLUSIVE:
        alive = await subscription.consumers[0].connection.is_alive()
        if alive or subscription.consumers:
            raise Refused("ConsumerBusy", "Exclusive consumer is already connected")
    default = topic.settings.maxConsumersPerSubscription
    most = topic.policies.limit("max consumers of subscription", default)
    if most and len(subscription.consumers) >= most:
        raise Refused("ConsumerBusy", "Subscription reached max consumers limit")
