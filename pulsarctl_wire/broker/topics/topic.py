"""The base of persistent and non-persistent topics: producers, access modes, schemas.

Access modes (PIP-68): there may be many Shared producers; an exclusive one is alone, and the topic's epoch
counts exclusive ones. Source: Pulsar's AbstractTopic (4.0).
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from pulsarctl_wire.broker.basics.names import TopicName
from pulsarctl_wire.broker.basics.refusal import Refused, java_refusal
from pulsarctl_wire.broker.basics.scheduler import Completion, Scheduler
from pulsarctl_wire.broker.basics.settings import Settings
from pulsarctl_wire.broker.clients.connection import Connection
from pulsarctl_wire.broker.delivery.consumer import BaseSubscription, Consumer
from pulsarctl_wire.broker.schemas.registry import SchemaRefused, Schemas, StoredSchema, from_wire
from pulsarctl_wire.broker.storage.journal import Journal
from pulsarctl_wire.broker.storage.log import Cache
from pulsarctl_wire.broker.tenancy.limits import Limiter, SubscribeLimiter
from pulsarctl_wire.broker.tenancy.namespaces import Namespaces
from pulsarctl_wire.broker.tenancy.policies import DispatchRules, SendRules, TopicPolicies, get_broker_rate
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import (
    CommandProducer,
    CommandSend,
    Exclusive,
    MessageMetadata,
    Shared,
    WaitForExclusive,
)
from pulsarctl_wire.wire.PulsarApi_pb2 import Schema as WireSchema

_CACHE_BYTES: Final = 16 * 1024 * 1024


class Environment:
    """What all topics of a broker share. `ends` maps each stored log to the index after its last entry."""

    def __init__(
        self,
        number: int,
        settings: Settings,
        scheduler: Scheduler,
        journal: Journal,
        namespaces: Namespaces,
        schemas: Schemas,
        ends: dict[int, int],
    ) -> None:
        self.number = number
        """The number of the broker in its cluster."""
        self.settings = settings
        self.scheduler = scheduler
        self.journal = journal
        self.namespaces = namespaces
        self.schemas = schemas
        self.ends = ends
        self.cache = Cache(_CACHE_BYTES)
        self.publish_limiter = Limiter(scheduler)
        self.dispatch_limiter = Limiter(scheduler)
        interceptors = ",".join(settings.brokerEntryMetadataInterceptors)
        self.adds_timestamp = "AppendBrokerTimestamp" in interceptors
        self.adds_index = "AppendIndex" in interceptors
        self.adds_metadata = self.adds_timestamp or self.adds_index


S = TypeVar("S", bound=BaseSubscription)

_FENCED = java_refusal("ServiceNotReady", "Topic is temporarily unavailable", "TopicFencedException")


class Producer:
    """A producer, made from its PRODUCER; `name` is the requested or a generated one.

    `pending` counts its SENDs that have no receipt yet.
    """

    def __init__(
        self, connection: Connection, command: CommandProducer, topic: "Topic[Any]", name: str
    ) -> None:
        self.connection = connection
        self.topic = topic
        self.id: int = command.producer_id
        self.name = name
        self.epoch: int = command.epoch
        self.mode: int = command.producer_access_mode
        self.topic_epoch: int | None = command.topic_epoch if command.HasField("topic_epoch") else None
        self.encrypted: bool = command.encrypted
        self.metadata = connection.read_pairs(command.metadata)
        self.schema_version = b""
        self.since_ms = connection.scheduler.time_ms
        self.closed = False
        self.is_closing = False
        """Whether it closes once its SENDs are stored."""
        self.pending = 0
        self.messages_in = 0
        self.bytes_in = 0
        self._when_idle: list[Completion[None]] = []

    def is_reconnect_of(self, other: "Producer") -> bool:
        """Return whether this is `other` reconnecting: same connection and id, higher epoch."""
        return self.connection is other.connection and self.id == other.id and self.epoch > other.epoch

    def leave(self) -> None:
        """Leave the topic, as the connection has ended."""
        self.topic.remove_producer(self)

    # -- SENDs

    def begin_send(self, size: int) -> None:
        """Count a SEND of `size` bytes that is being stored."""
        self.pending += 1
        self.connection.count_publishing(1, size)

    def _end_send(self, size: int) -> None:
        self.pending -= 1
        self.connection.count_publishing(-1, -size)
        if not self.pending:
            completions, self._when_idle = self._when_idle, []
            for completion in completions:
                completion.resolve(None)

    def confirm_send(self, sequence: int, highest: int, ledger: int, entry: int, size: int) -> None:
        """Answer a SEND of `size` bytes, counted by `begin_send`, by SEND_RECEIPT."""
        if not self.closed:
            self.connection.send_receipt(self.id, sequence, highest, ledger, entry)
        self._end_send(size)

    def reject_send(self, sequence: int, highest: int, code: str, text: str) -> None:
        """Answer a SEND by SEND_ERROR; it was not counted by `begin_send`."""
        self.connection.send_error(self.id, max(sequence, highest), code, text)

    async def wait_idle(self) -> None:
        """Wait until no SEND is being stored."""
        if self.pending:
            completion = self.connection.scheduler.make_completion()
            self._when_idle.append(completion)
            await completion


class Topic(Generic[S]):
    """A loaded topic. `epoch` counts its exclusive producers; None if there was none."""

    def __init__(self, environment: Environment, name: TopicName) -> None:
        self.environment = environment
        self.name = name
        self.partition = name.partition
        self.scheduler: Scheduler = environment.scheduler
        self.settings = environment.settings
        self.journal: Journal = environment.journal
        self.policies = TopicPolicies(name, environment.namespaces, environment.settings)
        self.last_active_ms = self.scheduler.time_ms
        self._publish_limiter = Limiter(self.scheduler)
        self.subscribe_limiter = SubscribeLimiter(self.scheduler)
        self._rules: SendRules | None = None
        self._dispatch_rules: DispatchRules | None = None
        self.producers: dict[str, Producer] = {}
        self.subscriptions: dict[str, S] = {}
        self.closed = False
        self.terminated = False
        self.migrated: tuple[str, str] | None = None
        """The service URLs (plain, TLS) of the cluster to which the topic has moved."""
        self.epoch: int | None = None
        self.exclusive: Producer | None = None
        self.waiting_producers: deque[tuple[Producer, Completion[None]]] = deque()
        self.since_ms = self.scheduler.time_ms
        self.messages_in = 0
        self.bytes_in = 0
        self.past_messages_out = 0
        """Messages sent to consumers of deleted subscriptions; likewise bytes."""
        self.past_bytes_out = 0

    @property
    def consumers(self) -> list[Consumer]:
        """The consumers of all its subscriptions."""
        return [
            consumer for subscription in self.subscriptions.values() for consumer in subscription.consumers
        ]

    # -- producers

    async def add_producer(self, producer: Producer, on_queued: Callable[[], None]) -> None:
        """Add a producer; `on_queued` is called if it has to wait for its turn. Raises Refused."""
        if self.closed:
            raise _FENCED
        try:
            if producer.mode != Shared:
                await self._claim(producer, on_queued)
            elif self.exclusive is not None or self.waiting_producers:
                raise java_refusal("ProducerBusy", self._exclusive_text)
            await self._register(producer)
            producer.topic_epoch = self.epoch
        except Refused:
            if not self.terminated:  # the claim on a terminated topic stays, as in Pulsar
                self._release(producer)
            raise

    @property
    def _exclusive_text(self) -> str:
        name = "null" if self.exclusive is None else self.exclusive.name
        return f"Topic has an existing exclusive producer: {name}"

    def check_producer_limit(self) -> None:
        """Raise Refused if the topic has its maximum of producers."""
        limit = self.policies.get_limit("max_producers_per_topic", self.settings.maxProducersPerTopic)
        if limit and len(self.producers) >= limit:
            raise Refused("ProducerBusy", f"Topic '{self.name.full}' reached max producers limit")

    def check_encryption(self, encrypted: bool) -> None:
        """Raise Refused if the topic does not accept unencrypted producers, and this is one."""
        required = self.rules.requires_encryption or self.settings.encryptionRequireOnProducer
        if required and not encrypted:
            raise Refused("MetadataError", f"Encryption is required in {self.name.full}")

    @property
    def rules(self) -> SendRules:
        """The rules for SENDs."""
        if self._rules is None:
            self._rules = self.policies.make_send_rules()
        return self._rules

    @property
    def dispatch_rules(self) -> DispatchRules:
        """The rules for deliveries."""
        if self._dispatch_rules is None:
            self._dispatch_rules = self.policies.make_dispatch_rules()
        return self._dispatch_rules

    def on_policies_changed(self) -> None:
        """Read the policies of the topic and its namespace again, and apply them."""
        self.policies.read()
        self._rules = self._dispatch_rules = None
        self._close_unauthorized()

    def _close_unauthorized(self) -> None:
        """Close producers and consumers that the policies no longer allow."""
        for subscription in list(self.subscriptions.values()):
            for consumer in list(subscription.consumers):
                if not consumer.connection.identity.is_allowed(
                    self.name, "consume", subscription=subscription.name
                ):
                    subscription.remove(consumer)
                    consumer.connection.close_consumer(consumer.id)
        for producer in list(self.producers.values()):
            is_allowed = producer.connection.identity.is_allowed(self.name, "produce")
            if not is_allowed or (self.rules.requires_encryption and not producer.encrypted):
                self.remove_producer(producer)
                producer.connection.close_producer(producer.id)

    def limit_rate(self, producer: Producer, messages: int, size: int) -> None:
        """Count published messages; if they are too fast, pause reading from the producer's connection."""
        limits = (
            (self._publish_limiter, self.policies.get_publish_rate()),
            (self.environment.publish_limiter, get_broker_rate(self.settings)),
        )
        for limiter, rate in limits:
            if rate.has_limits and (wait := limiter.take(rate, messages, size)) > 0:
                producer.connection.pause_reading(wait)

    async def register_schema(self, schema: WireSchema) -> bytes:
        """Register a schema, if it is new, and return its version. Raises SchemaRefused."""
        try:
            stored = self._add_schema(schema)
        except SchemaRefused as refused:
            raise refused.as_java_refusal() from None
        await self.journal.sync()
        return stored.version

    def _add_schema(self, schema: WireSchema) -> StoredSchema:
        schemas, data = self.environment.schemas, from_wire(schema)
        policy = self.policies.get("is_allow_auto_update_schema")
        if self.settings.isAllowAutoUpdateSchemaEnabled if policy is None else policy:
            return schemas.add(self.name, data, self.schema_strategy, self.scheduler.time_ms)
        if (stored := schemas.find(self.name, data)) is not None:
            return stored
        raise SchemaRefused("incompatible", "Schema not found and schema auto updating is disabled.")

    def check_schema_optional(self) -> None:
        """Raise SchemaRefused if producers must have a schema."""
        enforced = self.policies.get("schema_validation_enforced") or self.settings.isSchemaValidationEnforced
        if enforced and self.environment.schemas.get(self.name) is not None:
            text = "Producers cannot connect or send message without a schema to topics with a schema"
            text = f"{text}when SchemaValidationEnforced is enabled"  # Pulsar's text has no blank here either
            raise SchemaRefused("incompatible", text).as_java_refusal()

    async def check_consumer_schema(self, schema: WireSchema) -> None:
        """Raise Refused if consumers with this schema cannot read the topic; register it on an unused topic.

        Like Pulsar, this accepts a schema that is invalid in itself, but does not register it.
        """
        if schema.type == WireSchema.AutoConsume:
            return
        schemas = self.environment.schemas
        has_typed_consumers = any(not consumer.takes_any_schema for consumer in self.consumers)
        is_used = self.producers or self.has_messages or has_typed_consumers
        if is_used or schemas.get(self.name) is not None:
            schemas.check(self.name, from_wire(schema), self.schema_strategy)
            return
        try:
            self._add_schema(schema)
        except SchemaRefused as refused:
            if refused.kind == "thrown":  # the answer does not name the exception's class
                raise Refused(refused.code, str(refused).partition(": ")[2]) from None
            if refused.kind != "invalid":
                raise
        await self.journal.sync()

    @property
    def has_messages(self) -> bool:
        """Whether any messages are stored."""
        return False

    @property
    def schema_strategy(self) -> str:
        """The schema compatibility strategy, by Pulsar's name."""
        strategy: str = (
            self.policies.get("schema_compatibility_strategy") or self.settings.schemaCompatibilityStrategy
        )
        return strategy

    def check_open(self) -> None:
        """Raise Refused if the topic accepts no producers."""
        if self.closed:
            raise _FENCED
        if self.terminated:
            text = "Topic was already terminated"
            raise java_refusal("TopicTerminatedError", text, "TopicTerminatedException")

    async def _claim(self, producer: Producer, on_queued: Callable[[], None]) -> None:
        """Give `producer` exclusive access, perhaps after a wait. Raises Refused."""
        is_busy = self.exclusive is not None or bool(self.producers)
        if producer.mode == Exclusive and (self.exclusive is not None or self.waiting_producers):
            raise java_refusal("ProducerFenced", self._exclusive_text)
        if producer.mode == Exclusive and is_busy:
            raise java_refusal("ProducerFenced", "Topic has existing shared producers")
        if producer.mode == WaitForExclusive and is_busy:
            turn: Completion[None] = self.scheduler.make_completion()
            self.waiting_producers.append((producer, turn))
            on_queued()
            await turn  # an outdated epoch no longer matters
        else:
            if is_busy:
                self._fence()
            self._check_epoch(producer)
            self._give_access(producer)
        if self.name.is_persistent:
            await self.journal.sync()

    def _give_access(self, producer: Producer) -> None:
        """Let a producer be the only one, in an epoch of its own."""
        self.exclusive = producer
        if producer.topic_epoch is not None:
            self.epoch = producer.topic_epoch
        else:
            self.epoch = 0 if self.epoch is None else self.epoch + 1
        self.save()

    def _check_epoch(self, producer: Producer) -> None:
        epoch = producer.topic_epoch
        if epoch is not None and self.epoch is not None and epoch < self.epoch:
            text = f"Current epoch: {self.epoch}, Producer epoch: {epoch}"
            raise java_refusal("ProducerFenced", f"Topic epoch has already moved. {text}")

    def _fence(self) -> None:
        """Refuse producers that wait; remove the others silently: their next SEND closes their connection."""
        for _, turn in self.waiting_producers:
            turn.fail(java_refusal("ProducerFenced", "Fenced out"))
        self.waiting_producers.clear()
        for producer in list(self.producers.values()):
            producer.closed = True
            producer.connection.producers.pop(producer.id, None)
        self.producers.clear()
        self.exclusive = None

    async def _register(self, producer: Producer) -> None:
        """Add a producer by its name, which must be free."""
        limit = self.settings.maxSameAddressProducersPerTopic
        host, others = producer.connection.host, self.producers.values()
        if limit and sum(other.connection.host == host for other in others) >= limit:
            text = f"Topic '{self.name.full}' reached max same address producers limit"
            raise java_refusal("ProducerBusy", text)
        text = f"Producer with name '{producer.name}' is already connected to topic '{self.name.full}'"
        refusal = java_refusal("ProducerBusy", text, "NamingException")
        while (other := self.producers.get(producer.name)) is not None:
            if producer.is_reconnect_of(other) or other.connection.closed:
                other.closed = True  # though some of its SENDs may not be stored yet
                break
            if other.connection is producer.connection or await other.connection.probe():
                raise refusal
        self.check_open()  # the topic may have been closed meanwhile
        self.producers[producer.name] = producer

    def remove_producer(self, producer: Producer) -> None:
        """Remove a producer."""
        producer.closed = True
        if self.producers.get(producer.name) is producer:
            del self.producers[producer.name]
        self._release(producer)
        self.last_active_ms = self.scheduler.time_ms

    def _release(self, producer: Producer) -> None:
        """Drop a producer's exclusive access, or its place in the queue; then the next one may get access."""
        self.waiting_producers = deque(pair for pair in self.waiting_producers if pair[0] is not producer)
        if self.exclusive is producer:
            self.exclusive = None
        if not self.closed:
            self._hand_over()

    def _hand_over(self) -> None:
        """Give access to the next producer that waits for it, unless another one has it."""
        if self.waiting_producers and self.exclusive is None and not self.producers:
            producer, turn = self.waiting_producers.popleft()
            self._give_access(producer)
            turn.resolve(None)

    def migrate(self, url: str, url_tls: str) -> None:
        """Close producers now, consumers once their backlog is empty: the topic has moved to these URLs."""
        self.migrated = url, url_tls
        for producer in list(self.producers.values()):
            self.remove_producer(producer)
            producer.connection.tell_migrated(producer.id, self.migrated, producer=True)
            producer.connection.close_producer(producer.id)
        for subscription in list(self.subscriptions.values()):
            subscription.check_end()

    # -- for subclasses

    def publish(self, producer: Producer, command: CommandSend, frame: Frame, tail_start: int) -> None:
        """Handle SEND: the entry is `frame.raw[tail_start:]`."""
        raise NotImplementedError

    def save(self) -> None:
        """Put the topic's row."""

    def get_last_sequence(self, producer_name: str) -> int:
        """Return the highest sequence id stored from a producer; -1 if unknown."""
        return -1

    def on_consumer_left(self, subscription: S) -> None:
        """Record that a consumer of a subscription has left."""

    def is_aborted(self, index: int, metadata: MessageMetadata) -> bool:
        """Return whether an entry was sent in a transaction that was aborted."""
        return False

    # -- the end

    def stop(self) -> None:
        """Stop timers, and write what is not written yet."""

    def disconnect_producers(self, **close_fields: Any) -> None:
        """Tell all producers to reconnect; the fields are those of CLOSE_PRODUCER."""
        for producer in list(self.producers.values()):
            self.remove_producer(producer)
            producer.connection.close_producer(producer.id, **close_fields)
        # as in Pulsar, even if closed: the next producer is then refused, and the others wait in vain
        self._hand_over()

    def disconnect(self, **close_fields: Any) -> None:
        """Tell all clients to reconnect; the fields are those of CLOSE_PRODUCER and CLOSE_CONSUMER."""
        self.disconnect_producers(**close_fields)
        for subscription in list(self.subscriptions.values()):
            subscription.disconnect(**close_fields)
