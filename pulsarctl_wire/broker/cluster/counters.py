"""What brokers count, and how fast the counters grow: for the admin API and metrics.

Rates are those of the last full minute, as Pulsar's are; they are 0 before.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pulsarctl_wire.broker.basics.scheduler import Scheduler
from pulsarctl_wire.broker.delivery.consumer import Consumer, Subscribed
from pulsarctl_wire.broker.topics.topic import Producer, Topic

INTERVAL: Final = 60
"""Seconds between two measurements (statsUpdateFrequencyInSecs)."""


class Counts(NamedTuple):
    """Counters of a topic, subscription, producer or consumer, or their rates per second."""

    messages_in: float = 0
    bytes_in: float = 0
    messages_out: float = 0
    bytes_out: float = 0
    redelivered: float = 0
    acked: float = 0
    expired: float = 0


ZERO: Final = Counts(*[0.0] * len(Counts._fields))


def of_producer(producer: Producer) -> Counts:
    """The counters of a producer."""
    return Counts(producer.messages_in, producer.bytes_in)


def of_consumer(consumer: Consumer) -> Counts:
    """The counters of a consumer."""
    return Counts(
        0, 0, consumer.messages_out, consumer.bytes_out, consumer.redelivered, consumer.acked_messages
    )


def of_subscription(subscription: Subscribed) -> Counts:
    """The counters of a subscription: of all consumers that it has, and those that have left."""
    consumers = list(map(of_consumer, subscription.consumers))
    return Counts(
        0,
        0,
        subscription.gone_messages_out + sum(each.messages_out for each in consumers),
        subscription.gone_bytes_out + sum(each.bytes_out for each in consumers),
        sum(each.redelivered for each in consumers),
        sum(each.acked for each in consumers),
        getattr(subscription, "expired_messages", 0),
    )


def of_topic(topic: Topic[Any]) -> Counts:
    """The counters of a topic; what was sent to subscriptions that were deleted counts too."""
    subscriptions = list(map(of_subscription, topic.subscriptions.values()))
    return Counts(
        topic.messages_in,
        topic.bytes_in,
        topic.gone_messages_out + sum(each.messages_out for each in subscriptions),
        topic.gone_bytes_out + sum(each.bytes_out for each in subscriptions),
    )


class Rates:
    """The rates of the loaded `topics` of a broker, and of what is in them."""

    def __init__(self, scheduler: Scheduler, topics: Mapping[str, Topic[Any]]) -> None:
        self._scheduler = scheduler
        self._topics = topics
        self._seen: dict[object, Counts] = {}
        self._rates: dict[object, Counts] = {}
        self._runs = False

    def of(self, counted: object) -> Counts:
        """The rates of a topic, subscription, producer or consumer."""
        return self._rates.get(counted, ZERO)

    def start(self) -> None:
        """A topic was loaded: measure from now on."""
        if not self._runs:
            self._runs = True
            self._scheduler.later(INTERVAL, self._measure)

    def _measure(self) -> None:
        seen: dict[object, Counts] = {}
        for topic in self._topics.values():
            seen[topic] = of_topic(topic)
            seen.update((each, of_producer(each)) for each in topic.producers.values())
            for subscription in topic.subscriptions.values():
                seen[subscription] = of_subscription(subscription)
                seen.update((each, of_consumer(each)) for each in subscription.consumers)
        for counted, counts in seen.items():
            before = self._seen.get(counted, ZERO)
            grown = (max(now - then, 0) / INTERVAL for now, then in zip(counts, before, strict=True))
            self._rates[counted] = Counts(*grown)
        self._rates = {counted: self._rates[counted] for counted in seen}
        self._seen = seen
        self._runs = False
        if seen:
            self.start()
