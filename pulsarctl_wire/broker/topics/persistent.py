"""A persistent topic: stores what producers send, and has subscriptions that keep their place."""

from typing import Any

from pulsarctl_wire.broker.basics.names import TopicName
from pulsarctl_wire.broker.basics.refusal import Refused, java_refusal
from pulsarctl_wire.broker.clients.connection import Connection
from pulsarctl_wire.broker.delivery.consumer import EXCLUSIVE, FAILOVER, Consumer
from pulsarctl_wire.broker.storage.compaction import COMPACTION_SUBSCRIPTION
from pulsarctl_wire.broker.storage.cursor import Cursor, load_cursor
from pulsarctl_wire.broker.storage.log import Position, signed
from pulsarctl_wire.broker.tenancy.policies import Quota
from pulsarctl_wire.broker.topics.stored_topic import StoredTopic
from pulsarctl_wire.broker.topics.subscription import Subscription
from pulsarctl_wire.broker.topics.topic import Environment
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSubscribe


class PersistentTopic(StoredTopic[Subscription]):
    """A loaded persistent topic."""

    def __init__(self, environment: Environment, name: TopicName) -> None:
        super().__init__(environment, name)
        prefix = f"{self.log.number}/"
        for key in [key for key in self.journal.table("cursors") if key.startswith(prefix)]:
            subscription = Subscription(self, key.removeprefix(prefix), load_cursor(self.journal, key))
            subscription.is_stored = True
            self.subscriptions[subscription.name] = subscription
        if self.subscriptions:
            self.trim()
        self.save()

    def trim(self, *, retains: bool = True) -> None:
        """Delete ledgers that all durable subscriptions have acknowledged.

        The last ledger stays, and if `retains`, what retention keeps.
        """
        if self.closed:
            return
        marks = [item.cursor.mark for item in self.subscriptions.values() if item.cursor.durable]
        retention, now_ms = self.policies.get_retention(), self.scheduler.time_ms
        deleted_id = self.log.trim(
            min(marks, default=self.log.end),
            lambda closed_ms, size: retains and retention.keeps(now_ms - closed_ms, size),
            forget_ids=self.compaction.log_number is None,
        )
        if deleted_id is not None:
            self.save()
            self.transactions.trim()
            for subscription in self.subscriptions.values():
                if not subscription.reads_compacted:
                    subscription.cursor.ack_before(self.log.first)
                if subscription.cursor.mark == self.log.first:
                    subscription.cursor.keep_id(deleted_id)

    async def exceeds(self, quota: Quota) -> bool:
        """Return whether the largest backlog of a subscription exceeds a quota."""
        marks = [
            subscription.cursor.mark
            for subscription in self.subscriptions.values()
            if subscription.cursor.durable
        ]
        oldest = min(marks, default=self.log.stored_end)
        if 0 <= quota.size <= self.log.estimate_size_from(oldest):
            return True
        if quota.seconds <= 0 or oldest >= self.log.stored_end:
            return False
        entry = await self.log.load_entry(oldest, self.scheduler)
        return entry is not None and self.scheduler.time_ms - entry.time_ms > quota.seconds * 1000

    async def check_backlog(self) -> None:
        """Raise Refused if producers must wait until a backlog is smaller."""
        for quota in self.policies.get_quotas():
            if quota.policy != "consumer_backlog_eviction" and await self.exceeds(quota):
                kind = "Exception" if quota.policy == "producer_exception" else "Error"
                text = "Cannot create producer on topic with backlog quota exceeded"
                code = f"ProducerBlockedQuotaExceeded{kind}"
                raise java_refusal(code, text, "TopicBacklogQuotaExceededException")

    # -- subscriptions

    async def subscribe(self, connection: Connection, command: CommandSubscribe, name: str) -> Consumer:
        """Add a consumer to a subscription, which is made if there is none. Raises Refused."""
        if command.read_compacted and command.subType not in (EXCLUSIVE, FAILOVER):
            text = "readCompacted only allowed on failover or exclusive subscriptions"
            raise Refused("NotAllowedError", text)
        subscription = self.subscriptions.get(name)
        if subscription is not None and subscription.cursor.durable != command.durable:
            kind = "Durable" if subscription.cursor.durable else "NonDurable"
            raise Refused("NotAllowedError", f"{kind} subscription with the same name already exists.")
        if subscription is None:
            subscription = self._create(command, name)
            if command.start_message_rollback_duration_sec:
                time_ms = self.scheduler.time_ms - command.start_message_rollback_duration_sec * 1000
                subscription.cursor.reset(await self.find_index_at(time_ms))
        if command.replicate_subscription_state and not subscription.cursor.replicated:
            subscription.cursor.replicated = True
            subscription.cursor.save()
        if command.durable and not subscription.is_stored:
            await self.journal.sync()
            subscription.is_stored = True
        consumer = Consumer(connection, command, subscription)
        try:
            await subscription.add(consumer)
        except Refused:
            self.on_consumer_left(subscription)
            raise
        return consumer

    def _create(self, command: CommandSubscribe, name: str) -> Subscription:
        if command.durable and not self.policies.can_create_subscription():
            raise Refused("SubscriptionNotFound", "Subscription does not exist")
        limit = self.policies.get_limit("max_subscriptions_per_topic", self.settings.maxSubscriptionsPerTopic)
        if limit and len(self.subscriptions) >= limit:
            text = f"Exceed the maximum number of subscriptions of the topic: {self.name.full}"
            raise Refused("NotAllowedError", text)
        return self.create_subscription(
            name,
            self._find_start(command),
            durable=command.durable,
            properties={
                as_text(pair.key): as_text(pair.value)
                for pair in reversed(command.subscription_properties)  # the first of a key counts
            },
        )

    def create_subscription(
        self, name: str, start: int, *, durable: bool = True, properties: dict[str, str] | None = None
    ) -> Subscription:
        """Create a subscription that begins at an index."""
        start, open_mask = self.reset_to.pop(name, (start, 0))
        if self.compaction.log_number is None:
            start = max(start, self.log.first)
        cursor = Cursor(self.journal, f"{self.log.number}/{name}", start, durable=durable)
        if open_mask:
            cursor.set_open(start, open_mask)
        cursor.last_active_ms = self.scheduler.time_ms
        cursor.properties = properties or {}
        subscription = self.subscriptions[name] = Subscription(self, name, cursor)
        if durable:
            cursor.save()
        return subscription

    def _find_start(self, command: CommandSubscribe) -> int:
        """Return the index at which a new subscription begins.

        A reader begins at its start message, which the client skips.
        """
        start_id = command.start_message_id
        if not command.durable and command.HasField("start_message_id"):
            ledger, entry = signed(start_id.ledgerId), signed(start_id.entryId)
            # Pulsar compares where it would put the cursor: at the id before the message
            previous_entry = entry - 1 if ledger >= 0 and entry >= 0 else entry
            if (ledger, previous_entry) <= self.log.position_before(self.log.end):
                return self.locate(start_id)  # a message beyond the end, such as `latest`, does not count
        if command.initialPosition == CommandSubscribe.Earliest:
            return 0 if command.read_compacted and self.compaction.log_number is not None else self.log.first
        return self.log.end

    async def create_initial_subscription(self, name: str) -> None:
        """Create the initial subscription that a producer asks for. Raises Refused."""
        if name not in self.subscriptions:
            if not self.policies.can_create_subscription():
                text = "the auto subscription creation is not allowed."
                raise Refused("NotAllowedError", f"Could not create the initial subscription due to {text}")
            self.create_subscription(name, self.log.first)
            await self.journal.sync()

    def get_compaction_cursor(self) -> Cursor:
        """Return the cursor of the subscription that keeps uncompacted entries."""
        if COMPACTION_SUBSCRIPTION not in self.subscriptions:
            self.create_subscription(COMPACTION_SUBSCRIPTION, self.log.first)
        return self.subscriptions[COMPACTION_SUBSCRIPTION].cursor

    def on_consumer_left(self, subscription: Subscription) -> None:
        """Drop a non-durable subscription when its last consumer has left."""
        is_present = self.subscriptions.get(subscription.name) is subscription
        if is_present and not subscription.cursor.durable and not subscription.consumers:
            del self.subscriptions[subscription.name]
            self.past_messages_out += subscription.past_messages_out
            self.past_bytes_out += subscription.past_bytes_out
        self.last_active_ms = self.scheduler.time_ms

    # -- the end

    async def terminate(self) -> Position:
        """Accept no more messages. Returns the id of the last one."""
        self.terminated = True
        self.save()
        await self.journal.sync()
        for producer in list(self.producers.values()):
            self.remove_producer(producer)
            producer.connection.close_producer(producer.id)
        for subscription in self.subscriptions.values():
            subscription.check_end()
        return self.log.position_before(self.log.end)

    async def close(self, **close_fields: Any) -> None:
        """Close the topic: clients reconnect, as CLOSE_PRODUCER and CLOSE_CONSUMER with these fields say."""
        self.closed = True
        await self.journal.sync()
        self.disconnect(**close_fields)
        self.stop()

    def stop(self) -> None:
        """Stop timers, and write the cursors for the last time."""
        for subscription in self.subscriptions.values():
            subscription.close()

    def forget(self) -> None:
        """Delete all that is stored of the topic."""
        for subscription in self.subscriptions.values():
            subscription.forget()
        self.journal.delete_table(self._sequence_table)
        self.transactions.delete()
        self.compaction.delete()
        self.log.delete()
        self.journal.delete("topics", self.name.full)
