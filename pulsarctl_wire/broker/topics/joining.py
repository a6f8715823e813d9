"""Whether a consumer may subscribe to a topic: names, types, limits and rates.

Sources: b/ServerCnx, b/p/PersistentTopic, b/AbstractTopic (4.0).
"""

import re
from typing import TYPE_CHECKING, Final

from pulsarctl_wire.broker.basics.refusal import Refused
from pulsarctl_wire.broker.basics.scheduler import Scheduler
from pulsarctl_wire.broker.tenancy.policies import limit, policy
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSubscribe

if TYPE_CHECKING:
    from pulsarctl_wire.broker.clients.connection import Connection
    from pulsarctl_wire.broker.topics.topic import Topic

_REPLICATOR: Final = "pulsar.repl"  # begins the names of Pulsar's own subscriptions, as the next one
_DEDUPLICATION: Final = "pulsar.dedup"
_MANY: Final = 1000

Who = tuple[str, str, int]
"""A client's host, and its consumer's name and id."""


class SubscribeLimiter:
    """Counts how often each consumer has subscribed in a period."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._left: dict[Who, tuple[int, int]] = {}  # when its period ends, and how often it may until then

    def takes(self, who: Who, most: int, seconds: int) -> bool:
        """Whether it may subscribe once more, if that is allowed `most` times in so many seconds."""
        now = self._scheduler.ticks
        if len(self._left) > _MANY:
            self._left = {each: found for each, found in self._left.items() if found[0] > now}
        end, left = self._left.get(who, (now, 0))
        if end <= now:
            end, left = now + seconds * 1_000_000_000, most
        self._left[who] = end, max(left - 1, 0)
        return left > 0


def check_subscribe(topic: "Topic", connection: "Connection", command: CommandSubscribe, name: str) -> None:
    """Raises Refused if the consumer of a SUBSCRIBE may not have the subscription of this name."""
    consumers = topic.consumers
    most = limit(topic, "max consumers", topic.settings.maxConsumersPerTopic)
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


def _check_type(topic: "Topic", command: CommandSubscribe) -> None:
    kind = CommandSubscribe.SubType.Name(command.subType)
    if kind == "Key_Shared" and kind not in topic.settings.subscriptionTypesEnabled:
        raise Refused("NotAllowedError", "Key_Shared subscription is disabled by broker.")
    if kind not in (policy(topic, "subscription types") or topic.settings.subscriptionTypesEnabled):
        text = f"Topic[{{{topic.name.full}}}] doesn't support {kind} sub type!"
        raise Refused("NotAllowedError", text)


def _check_rate(topic: "Topic", connection: "Connection", command: CommandSubscribe) -> None:
    settings = topic.settings
    most = settings.subscribeThrottlingRatePerConsumer
    seconds = settings.subscribeRatePeriodPerConsumerInSecond
    if found := policy(topic, "subscribe rate"):
        most = found.get("subscribeThrottlingRatePerConsumer", -1)
        seconds = found.get("ratePeriodInSecond", seconds)
    who = connection.host, connection.text(command.consumer_name), command.consumer_id
    if most > 0 and not topic.subscribe_limiter.takes(who, most, seconds):
        raise Refused("NotAllowedError", "Subscribe limited by subscribe rate limit per consumer.")
