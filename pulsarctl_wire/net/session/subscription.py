"""A subscription to several topics: partitions of a topic, a list, or those that match a pattern."""

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pulsarctl_wire.errors import SessionError, Unreachable
from pulsarctl_wire.net.session.acks import Position
from pulsarctl_wire.net.session.client import Client
from pulsarctl_wire.net.session.consumer import Consumer
from pulsarctl_wire.net.session.inbox import Delivery, Inbox
from pulsarctl_wire.net.session.receive_queue import ConsumerOptions
from pulsarctl_wire.net.session.watch import TopicWatch
from pulsarctl_wire.wire.names import namespace_of, partition_name, without_partition
from pulsarctl_wire.wire.payload import Budget
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSubscribe

MAX_TOPICS: Final = 10_000
"""Maximum number of topics and partitions of a subscription."""


@dataclass(eq=False)
class Subscription:
    """The consumers of one subscription, with one `inbox` for their deliveries and the same `options`.

    `topics` are full names; partitioned ones get a consumer for each partition. With `pattern` (a regular
    expression for full names of topics in one namespace), the topics that match it are used instead, and new
    ones are added as they appear; `extra_topics` are topics that need not match it. `starts` overrides
    `ConsumerOptions.start` for some topics.
    """

    client: Client
    topics: Iterable[str]
    options: ConsumerOptions
    pattern: str | None = None
    extra_topics: Iterable[str] = ()
    starts: Mapping[str, Position] = field(default_factory=dict)
    consumers: dict[str, Consumer] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.inbox: Inbox[Consumer] = Inbox(
            self.consumers, Budget(self.options.payload_ratio or Budget.RATIO)
        )
        self._event = asyncio.Event()
        self._watch: TopicWatch | None = None
        self._tasks: set[asyncio.Task[None]] = set()  # open or close consumers, as topics change
        self._late_topics: set[str] = set()  # that are being added
        self._left_out = 0

    @property
    def counts(self) -> Counter[str]:
        """The sums of the consumers' counts."""
        return sum((consumer.counts for consumer in self.consumers.values()), Counter())

    async def open(self) -> None:
        """Subscribe to all topics. Raises SessionError."""
        topics = list(self.topics)
        if self.pattern is not None:
            self._watch = TopicWatch(self.client, namespace_of(self.pattern), self.pattern, self._on_change)
            names = sorted({without_partition(name) for name in await self._watch.open()})
            topics = names[:MAX_TOPICS]
            self._leave_out(len(names) - MAX_TOPICS)
        for topic in [*topics, *self.extra_topics]:
            await self._add(topic, self.options)

    async def _add(self, topic: str, options: ConsumerOptions) -> None:
        count = await self.client.count_partitions(topic, create=self.options.create_topic)
        if len(self.consumers) + max(count, 1) > MAX_TOPICS:
            raise Unreachable(f"{topic}: more than {MAX_TOPICS} topics and partitions in one subscription")
        for name in [partition_name(topic, index) for index in range(count)] or [topic]:
            if name not in self.consumers:
                own_options = replace(options, start=self.starts.get(name, options.start))
                consumer = Consumer(self.client, name, own_options, self.inbox, self._event.set)
                self.consumers[name] = consumer
                try:
                    await consumer.open()
                except BaseException:
                    if self.consumers.get(name) is consumer:  # the topic may have been removed meanwhile
                        del self.consumers[name]
                    raise

    def _on_change(self, added: list[str], removed: list[str]) -> None:
        self._event.set()  # the watch may have ended
        topics = sorted({without_partition(name) for name in added})
        waiting = sum(topic not in self.consumers for topic in self._late_topics)
        room = max(MAX_TOPICS - len(self.consumers) - waiting, 0)
        for topic in topics[:room]:
            self._late_topics.add(topic)
            self._begin(self._add_late(topic))
        self._leave_out(len(topics) - room)
        for topic in removed:
            consumer = self.consumers.pop(topic, None)
            if consumer is not None:
                self._begin(consumer.close())

    def _leave_out(self, count: int) -> None:
        if count > 0:
            self._left_out += count
            text = f"more than {MAX_TOPICS} topics and partitions in one subscription"
            self.client.warn(f"{self.pattern}: {text}: {self._left_out} topics are left out")

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _add_late(self, topic: str) -> None:
        try:  # a new topic is read from its beginning
            await self._add(topic, replace(self.options, initial=CommandSubscribe.Earliest))
        except SessionError as error:
            self.client.warn(f"{topic}: {error}")
        finally:
            self._late_topics.discard(topic)

    async def take(self, seconds: float | None = None) -> Delivery[Consumer] | None:
        """Return the next delivery, with its entry opened; wait for it for up to `seconds`.

        Return None if nothing comes in that time, or if all topics were terminated and read to their ends.
        Raises the SessionError that ended the watch, or (without a pattern) a consumer; and DecryptionError
        as `ReceiveQueue.open_entry` does.
        """
        timeouts: list[bool] = []
        timer: asyncio.TimerHandle | None = None
        try:
            while (delivery := self.inbox.next()) is None and not self._is_over() and not timeouts:
                if seconds is not None and timer is None:
                    timer = asyncio.get_running_loop().call_later(seconds, self._give_up, timeouts)
                self._event.clear()
                await self._event.wait()
        finally:
            if timer is not None:
                timer.cancel()
        return delivery

    def _give_up(self, timeouts: list[bool]) -> None:
        timeouts.append(True)
        self._event.set()

    def _is_over(self) -> bool:
        """Return whether all topics were terminated and read.

        Raises the error of the watch, or of a consumer. With a pattern, consumers that have ended are removed
        with a warning instead.
        """
        for topic, consumer in list(self.consumers.items()):
            if consumer.error is None:
                continue
            if self.pattern is None:
                raise consumer.error
            self.client.warn(f"{topic} is no longer consumed: {consumer.error}")  # the others go on
            del self.consumers[topic]
        if self._watch is not None and self._watch.error is not None:
            raise self._watch.error
        if self.pattern is not None or not self.consumers:
            return False
        return all(consumer.queue.ended for consumer in self.consumers.values())

    async def close(self) -> None:
        """Close all consumers, after sending the waiting acknowledgements."""
        for task in self._tasks:
            task.cancel()
        if self._watch is not None:
            await self._watch.close()
        await asyncio.gather(*(consumer.close() for consumer in self.consumers.values()))
