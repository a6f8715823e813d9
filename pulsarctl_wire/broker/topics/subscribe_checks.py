"""Checks before a consumer may subscribe to a topic: names, types, limits and rates.

Sources: Pulsar's ServerCnx, PersistentTopic, AbstractTopic (4.0).
"""

import re
from typing import Any, Final

from pulsarctl_wire.broker.basics.refusal import Refused
from pulsarctl_wire.broker.clients.connection import Connection
from pulsarctl_wire.broker.delivery.consumer import EXCLUSIVE, KEY_SHARED, BaseSubscription, Consumer
from pulsarctl_wire.broker.topics.topic import Topic
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSubscribe, KeySharedMode

_REPLICATOR: Final = "pulsar.repl"  # prefix of the replicators' subscriptions
_DEDUPLICATION: Final = "pulsar.dedup"  # name of the subscription that deduplication uses
_BAD_NAME: Final = "ProducerBusy"  # as in Pulsar: its NamingException has this code, for consumers too


def check_subscribe(topic: Topic[Any], connection: Connection, command: CommandSubscribe, name: str) -> None:
    """Check name, type, limits and rate for a SUBSCRIBE. Raises Refused."""
    consumers = topic.consumers
    limit = topic.policies.get_limit("max_consumers_per_topic", topic.settings.maxConsumersPerTopic)
    if limit and len(consumers) >= limit:
        raise Refused("ConsumerBusy", "Topic reached max consumers limit")
    is_checked = topic.settings.strictlyVerifySubscriptionName and name not in topic.subscriptions
    if is_checked and not re.fullmatch(r"[-=:.\w]*", name, re.ASCII):
        text = "Please let the subscription only contains '/w(a-zA-Z_0-9)' or '_', the current value is"
        raise Refused(_BAD_NAME, f"{text} {name}")
    if topic.name.is_persistent:
        _check_type(topic, command)
        if not name.strip():
            raise Refused(_BAD_NAME, "Empty subscription name")
    if name.startswith(_REPLICATOR) or (name == _DEDUPLICATION and topic.name.is_persistent):
        raise Refused(_BAD_NAME, "Subscription with reserved subscription name attempted")
    if topic.name.is_persistent:
        _check_rate(topic, connection, command)
    limit = topic.settings.maxSameAddressConsumersPerTopic
    if limit and sum(consumer.connection.host == connection.host for consumer in consumers) >= limit:
        raise Refused("ConsumerBusy", "Topic reached max same address consumers limit")


def _check_type(topic: Topic[Any], command: CommandSubscribe) -> None:
    kind = CommandSubscribe.SubType.Name(command.subType)
    if kind == "Key_Shared" and kind not in topic.settings.subscriptionTypesEnabled:
        raise Refused("NotAllowedError", "Key_Shared subscription is disabled by broker.")
    if kind not in (
        topic.policies.get("subscription_types_enabled") or topic.settings.subscriptionTypesEnabled
    ):
        text = f"Topic[{{{topic.name.full}}}] doesn't support {kind} sub type!"
        raise Refused("NotAllowedError", text)


def _check_rate(topic: Topic[Any], connection: Connection, command: CommandSubscribe) -> None:
    settings = topic.settings
    limit = settings.subscribeThrottlingRatePerConsumer
    seconds = settings.subscribeRatePeriodPerConsumerInSecond
    if policy := topic.policies.get("clusterSubscribeRate"):
        limit = policy.get("subscribeThrottlingRatePerConsumer", -1)
        seconds = policy.get("ratePeriodInSecond", seconds)
    client = connection.host, connection.text(command.consumer_name), command.consumer_id
    if limit > 0 and not topic.subscribe_limiter.admit(client, limit, seconds):
        raise Refused("NotAllowedError", "Subscribe limited by subscribe rate limit per consumer.")


def _check_matches(consumer: Consumer, other: Consumer) -> None:
    """Raise Refused if a consumer's type or modes differ from those of another one of the subscription."""
    new_meta, active_meta = consumer.key_shared, other.key_shared
    if consumer.kind != other.kind:
        kinds = [CommandSubscribe.SubType.Name(member.kind) for member in (other, consumer)]  # type: ignore[arg-type]
        text = "subscription type of '{}' is different than the connecting consumer's type '{}'"
        text = text.format(*kinds)
    elif consumer.kind != KEY_SHARED:
        return
    elif new_meta.keySharedMode != active_meta.keySharedMode:
        modes = [KeySharedMode.Name(meta.keySharedMode) for meta in (active_meta, new_meta)]
        text = "subscription key_shared mode of '{}' is different than the connecting consumer's"
        text = f"{text} key_shared mode '{{}}'".format(*modes)
    elif new_meta.allowOutOfOrderDelivery == active_meta.allowOutOfOrderDelivery:
        return
    elif active_meta.allowOutOfOrderDelivery:
        text = "subscription allows out of order delivery while the connecting consumer does not allow it"
    else:
        text = "subscription does not allow out of order delivery while the connecting consumer allows it"
    raise Refused("ConsumerBusy", f"Subscription is of different type. Active {text}.")


async def check_can_join(subscription: BaseSubscription, topic: Topic[Any], consumer: Consumer) -> None:
    """Raise Refused if a consumer cannot join; first probe the connection of an Exclusive consumer."""
    if subscription.consumers:
        _check_matches(consumer, subscription.consumers[0])
    if subscription.consumers and subscription.kind == EXCLUSIVE:
        is_alive = await subscription.consumers[0].connection.probe()
        if is_alive or subscription.consumers:
            raise Refused("ConsumerBusy", "Exclusive consumer is already connected")
    default = topic.settings.maxConsumersPerSubscription
    limit = topic.policies.get_limit("max_consumers_per_subscription", default)
    if limit and len(subscription.consumers) >= limit:
        raise Refused("ConsumerBusy", "Subscription reached max consumers limit")
