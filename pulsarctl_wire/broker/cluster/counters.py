"""Counters of brokers, and their rates, for the admin API and metrics.

Rates are those of the last full minute, as Pulsar's are; until one has passed, they are 0.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pulsarctl_wire.broker.basics.scheduler import Scheduler
from pulsarctl_wire.broker.delivery.consumer import BaseSubscription, Consumer
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


def get_producer_counts(producer: Producer) -> Counts:
    """Return the counters of a producer."""
    return Counts(producer.messages_in, producer.bytes_in)


def get_consumer_counts(consumer: Consumer) -> Counts:
    """Return the counters of a consumer."""
    return Counts(
        0, 0, consumer.messages_out, consumer.bytes_out, consumer.redelivered, consumer.acked_messages
    )


def get_subscription_counts(subscription: BaseSubscription) -> Counts:
    """Return the counters of a subscription.

    What was sent to consumers that have left is included, but not what was redelivered to them or
    acknowledged by them.
    """
    consumers = list(map(get_consumer_counts, subscription.consumers))
    return Counts(
        0,
        0,
        subscription.past_messages_out + sum(counts.messages_out for counts in consumers),
        subscription.past_bytes_out + sum(counts.bytes_out for counts in consumers),
        sum(counts.redelivered for counts in consumers),
        sum(counts.acked for counts in consumers),
        getattr(subscription, "expired_messages", 0),
    )


def get_topic_counts(topic: Topic[Any]) -> Counts:
    """Return the counters of a topic, including what was sent to deleted subscriptions."""
    subscriptions = list(map(get_subscription_counts, topic.subscriptions.values()))
    return Counts(
        topic.messages_in,
        topic.bytes_in,
        topic.past_messages_out + sum(counts.messages_out for counts in subscriptions),
        topic.past_bytes_out + sum(counts.bytes_out for counts in subscriptions),
    )


class Rates:
    """The rates of the loaded `topics` of a broker, and of what is in them."""

    def __init__(self, scheduler: Scheduler, topics: Mapping[str, Topic[Any]]) -> None:
        self._scheduler = scheduler
        self._topics = topics
        self._last_counts: dict[object, Counts] = {}
        self._rates: dict[object, Counts] = {}
        self._is_running = False

    def of(self, item: object) -> Counts:
        """Return the rates of a topic, subscription, producer or consumer."""
        return self._rates.get(item, ZERO)

    def start(self) -> None:
        """Measure from now on, as a topic was loaded."""
        if not self._is_running:
            self._is_running = True
            self._scheduler.call_later(INTERVAL, self._measure)

    def _measure(self) -> None:
        counts_now: dict[object, Counts] = {}
        for topic in self._topics.values():
            counts_now[topic] = get_topic_counts(topic)
            counts_now.update(
                (producer, get_producer_counts(producer)) for producer in topic.producers.values()
            )
            for subscription in topic.subscriptions.values():
                counts_now[subscription] = get_subscription_counts(subscription)
                counts_now.update(
                    (consumer, get_consumer_counts(consumer)) for consumer in subscription.consumers
                )
        for item, counts in counts_now.items():
            last_counts = self._last_counts.get(item, ZERO)
            rates = (max(now - then, 0) / INTERVAL for now, then in zip(counts, last_counts, strict=True))
            self._rates[item] = Counts(*rates)
        self._rates = {item: self._rates[item] for item in counts_now}
        self._last_counts = counts_now
        self._is_running = False
        if counts_now:
            self.start()
