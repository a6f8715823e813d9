"""A subscription to several topics at once, partitioned or by a pattern."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from pulsarctl_wire.errors import SessionError, Unreachable
from pulsarctl_wire.net.acks import Position
from pulsarctl_wire.net.client import Client
from pulsarctl_wire.net.consumer import Consumer, ConsumerOptions
from pulsarctl_wire.net.inbox import Delivery, Inbox
from pulsarctl_wire.net.watch import TopicWatch
from pulsarctl_wire.wire.names import namespace_of, partition_name, without_partition
from pulsarctl_wire.wire.payload import Budget
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSubscribe

MOST: Final = 10_000
"""Topics and partitions that are consumed together."""


class Subscription:
    """The consumers of one subscription, and one `inbox` for what they get; `options` are those of all.

    `topics` are full names; partitioned ones get a consumer for each partition. `pattern` (a regular
    expression over full names, of topics in one namespace) adds topics as they appear. `starts` are where to
    begin in some of them, in place of `ConsumerOptions.start`.
    """

    def __init__(
        self,
        client: Client,
        topics: Iterable[str],
        options: ConsumerOptions,
        *,
        pattern: str | None = None,
        extra_topics: Iterable[str] = (),
        starts: Mapping[str, Position] = MappingProxyType({}),
    ) -> None:
        self.consumers: dict[str, Consumer] = {}
        self._client = client
        self._topics = list(topics)
        self.options = options
        self._pattern = pattern
        self._extra = list(extra_topics)
        self._starts = starts
        self.inbox = Inbox(self.consumers, Budget(options.payload_ratio or Budget.RATIO))
        self._event = asyncio.Event()
        self._watch: TopicWatch | None = None
        self._opening: set[asyncio.Task[None]] = set()
        self._left_out = 0

    @property
    def counts(self) -> Counter[str]:
        """What the consumers counted, summed."""
        return sum((each.counts for each in self.consumers.values()), Counter())

    async def open(self) -> None:
        """Subscribe to all topics. Raises SessionError."""
        topics = self._topics
        if self._pattern is not None:
            self._watch = TopicWatch(self._client, namespace_of(self._pattern), self._pattern, self._appeared)
            found = sorted({without_partition(each) for each in await self._watch.open()})
            topics = found[:MOST]
            self._leave_out(len(found) - MOST)
        for topic in [*topics, *self._extra]:
            await self._add(topic, self.options)

    async def _add(self, topic: str, options: ConsumerOptions) -> None:
        count = await self._client.partitions(topic, create=self.options.create_topic)
        if len(self.consumers) + count > MOST:
            raise Unreachable(f"{topic}: more than {MOST} topics and partitions are not consumed together")
        for name in [partition_name(topic, index) for index in range(count)] or [topic]:
            if name not in self.consumers:
                own = replace(options, start=self._starts.get(name, options.start))
                consumer = Consumer(self._client, name, own, self.inbox, self._event.set)
                self.consumers[name] = consumer
                try:
                    await consumer.open()
                except BaseException:
                    del self.consumers[name]
                    raise

    def _appeared(self, added: list[str], removed: list[str]) -> None:
        self._event.set()  # the watch may have ended
        topics = sorted({without_partition(each) for each in added})
        room = max(MOST - len(self.consumers) - len(self._opening), 0)
        for topic in topics[:room]:
            self._begin(self._add_late(topic))
        self._leave_out(len(topics) - room)
        for topic in removed:
            consumer = self.consumers.pop(topic, None)
            if consumer is not None:
                self._begin(consumer.close())

    def _leave_out(self, count: int) -> None:
        if count > 0:
            self._left_out += count
            text = f"more than {MOST} topics and partitions are not consumed together"
            self._client.warn(f"{self._pattern}: {text}: {self._left_out} topics are left out")

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _add_late(self, topic: str) -> None:
        try:  # all of a topic that has just appeared is news
            await self._add(topic, replace(self.options, initial=CommandSubscribe.Earliest))
        except SessionError as error:
            self._client.warn(f"{topic}: {error}")

    async def take(self, seconds: float | None = None) -> Delivery | None:
        """The next delivery, its entry opened; waits for one, for `seconds` at the most.

        None when nothing came in that time, or when all topics have been terminated and read to their
        ends. Raises the SessionError that ended a consumer.
        """
        delivery = self.inbox.next()
        if delivery is not None:
            return delivery
        late = False

        def give_up() -> None:
            nonlocal late
            late = True
            self._event.set()

        timer = None if seconds is None else asyncio.get_running_loop().call_later(seconds, give_up)
        try:
            return await self._next(lambda: late)
        finally:
            if timer is not None:
                timer.cancel()

    async def _next(self, is_late: Callable[[], bool]) -> Delivery | None:
        while True:
            delivery = self.inbox.next()
            if delivery is not None:
                return delivery
            for topic, consumer in list(self.consumers.items()):
                if consumer.error is None:
                    continue
                if self._pattern is None:
                    raise consumer.error
                self._client.warn(f"{topic} is left: {consumer.error}")  # the others go on
                del self.consumers[topic]
            if (
                self._pattern is None
                and self.consumers
                and all(each.ended for each in self.consumers.values())
            ):
                return None
            if self._watch is not None and self._watch.error is not None:
                raise self._watch.error
            if is_late():
                return None
            self._event.clear()
            await self._event.wait()

    async def close(self) -> None:
        """Close all consumers; acknowledgements that wait are sent first."""
        for task in self._opening:
            task.cancel()
        if self._watch is not None:
            await self._watch.close()
        await asyncio.gather(*(each.close() for each in self.consumers.values()))
