"""What persistent and non-persistent topics have in common: producers, and who may be one.

Access modes (PIP-68): Shared producers may be many; an exclusive one is alone, and the topic's epoch counts
who was. Source: b/AbstractTopic (4.0).
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from pulsarctl_wire.broker.basics.names import TopicName
from pulsarctl_wire.broker.basics.refusal import Refused, thrown
from pulsarctl_wire.broker.basics.scheduler import Completion, Scheduler
from pulsarctl_wire.broker.clients.connection import Connection
from pulsarctl_wire.broker.delivery.consumer import Consumer, Subscribed
from pulsarctl_wire.broker.schemas.registry import SchemaRefused, Stored, from_wire
from pulsarctl_wire.broker.storage.journal import Journal
from pulsarctl_wire.broker.tenancy.limits import Limiter, SubscribeLimiter
from pulsarctl_wire.broker.tenancy.policies import DispatchRules, SendRules, TopicPolicies, rate_of_all
from pulsarctl_wire.broker.topics.environment import Environment
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

S = TypeVar("S", bound=Subscribed)

_FENCED = thrown("ServiceNotReady", "Topic is temporarily unavailable", "TopicFencedException")


class Producer:
    """A producer, made from its PRODUCER; `name` is the one it asks for, or a generated one.

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
        self.metadata = connection.pairs(command.metadata)
        self.schema_version = b""
        self.since_ms = connection.scheduler.time_ms
        self.closed = False
        self.closing = False
        """Whether it will be closed once what was sent is stored."""
        self.pending = 0
        self.messages_in = 0
        self.bytes_in = 0
        self._when_idle: list[Completion[None]] = []

    def succeeds(self, other: "Producer") -> bool:
        """Whether it is `other`, made again by the client after it lost track of it."""
        return self.connection is other.connection and self.id == other.id and self.epoch > other.epoch

    def leave(self) -> None:
        """Its connection has ended."""
        self.topic.remove_producer(self)

    # -- SENDs

    def begun(self, size: int) -> None:
        """A SEND of so many bytes is being stored."""
        self.pending += 1
        self.connection.publishing(1, size)

    def _ended(self, size: int) -> None:
        self.pending -= 1
        self.connection.publishing(-1, -size)
        if not self.pending:
            waiting, self._when_idle = self._when_idle, []
            for completion in waiting:
                completion.resolve(None)

    def receipt(self, sequence: int, highest: int, ledger: int, entry: int, size: int) -> None:
        """Answer a SEND of so many bytes that was `begun`."""
        if not self.closed:
            self.connection.send_receipt(self.id, sequence, highest, ledger, entry)
        self._ended(size)

    def error(self, sequence: int, highest: int, code: str, text: str) -> None:
        """Answer a SEND by SEND_ERROR; it was not `begun`."""
        self.connection.send_error(self.id, max(sequence, highest), code, text)

    async def idle(self) -> None:
        """Wait until no SEND is being stored."""
        if self.pending:
            completion = self.connection.scheduler.completion()
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
        self._limiter = Limiter(self.scheduler)
        self.subscribe_limiter = SubscribeLimiter(self.scheduler)
        self._rules: SendRules | None = None
        self._dispatch_rules: DispatchRules | None = None
        self.producers: dict[str, Producer] = {}
        self.subscriptions: dict[str, S] = {}
        self.closed = False
        self.terminated = False
        self.migrated: tuple[str, str] | None = None
        """The service URLs (plain, TLS) of the cluster that the topic has moved to."""
        self.epoch: int | None = None
        self.exclusive: Producer | None = None
        self.waiting: deque[tuple[Producer, Completion[None]]] = deque()
        self.since_ms = self.scheduler.time_ms
        self.messages_in = 0
        self.bytes_in = 0
        self.gone_messages_out = 0
        """What was sent to consumers of subscriptions that do not exist any more."""
        self.gone_bytes_out = 0

    @property
    def consumers(self) -> list[Consumer]:
        """The consumers of all its subscriptions."""
        return [each for subscription in self.subscriptions.values() for each in subscription.consumers]

    # -- producers

    async def add_producer(self, producer: Producer, queued: Callable[[], None]) -> None:
        """A producer joins; `queued` is called if it has to wait for its turn. Raises Refused."""
        self.check_open()
        try:
            if producer.mode != Shared:
                await self._claim(producer, queued)
            elif self.exclusive is not None or self.waiting:
                raise thrown("ProducerBusy", self._exclusive_text)
            await self._register(producer)
            producer.topic_epoch = self.epoch
        except Refused:
            self._release(producer)
            raise

    @property
    def _exclusive_text(self) -> str:
        name = "null" if self.exclusive is None else self.exclusive.name
        return f"Topic has an existing exclusive producer: {name}"

    def check_room(self) -> None:
        """Raises Refused if the topic has as many producers as it may."""
        most = self.policies.limit("max producers", self.settings.maxProducersPerTopic)
        if most and len(self.producers) >= most:
            raise Refused("ProducerBusy", f"Topic '{self.name.full}' reached max producers limit")

    def check_producer(self, encrypted: bool) -> None:
        """Raises Refused if the topic takes no such producers."""
        required = self.rules.encrypted or self.settings.encryptionRequireOnProducer
        if required and not encrypted:
            raise Refused("MetadataError", f"Encryption is required in {self.name.full}")

    @property
    def rules(self) -> SendRules:
        """The rules for SENDs."""
        if self._rules is None:
            self._rules = self.policies.send_rules()
        return self._rules

    @property
    def dispatch_rules(self) -> DispatchRules:
        """The rules for deliveries."""
        if self._dispatch_rules is None:
            self._dispatch_rules = self.policies.dispatch_rules()
        return self._dispatch_rules

    def policies_changed(self) -> None:
        """A policy of the topic or of its namespace was changed."""
        self.policies.read()
        self._rules = self._dispatch_rules = None
        self._close_refused()

    def _close_refused(self) -> None:
        """Close producers and consumers that the policies do not allow any more."""
        for subscription in list(self.subscriptions.values()):
            for consumer in list(subscription.consumers):
                if not consumer.connection.identity.may(self.name, "consume", subscription=subscription.name):
                    subscription.remove(consumer)
                    consumer.connection.close_consumer(consumer.id)
        for producer in list(self.producers.values()):
            allowed = producer.connection.identity.may(self.name, "produce")
            if not allowed or (self.rules.encrypted and not producer.encrypted):
                self.remove_producer(producer)
                producer.connection.close_producer(producer.id)

    def limit_rate(self, producer: Producer, messages: int, size: int) -> None:
        """Messages were published: if that is too fast, the producer's connection is not read for a while."""
        limits = (
            (self._limiter, self.policies.publish_rate()),
            (self.environment.publish_limiter, rate_of_all(self.settings)),
        )
        for limiter, rate in limits:
            if rate.limits and (wait := limiter.take(rate, messages, size)) > 0:
                producer.connection.hold(wait)

    async def register_schema(self, schema: WireSchema) -> bytes:
        """The version of a schema, which is registered if it is new. Raises SchemaRefused."""
        try:
            stored = self._add_schema(schema)
        except SchemaRefused as refused:
            raise refused.thrown() from None
        await self.journal.synced()
        return stored.version

    def _add_schema(self, schema: WireSchema) -> Stored:
        schemas, it = self.environment.schemas, from_wire(schema)
        updates = self.policies.policy("schema updates")
        if self.settings.isAllowAutoUpdateSchemaEnabled if updates is None else updates:
            return schemas.add(self.name, it, self.strategy, self.scheduler.time_ms)
        if (known := schemas.known(self.name, it)) is not None:
            return known
        raise SchemaRefused("incompatible", "Schema not found and schema auto updating is disabled.")

    def check_no_schema(self) -> None:
        """Raises SchemaRefused if producers must have a schema."""
        enforced = self.policies.policy("schema validation") or self.settings.isSchemaValidationEnforced
        if enforced and self.environment.schemas.get(self.name) is not None:
            text = "Producers cannot connect or send message without a schema to topics with a schema"
            text = f"{text}when SchemaValidationEnforced is enabled"  # there is no blank in Pulsar's either
            raise SchemaRefused("incompatible", text).thrown()

    async def check_consumer_schema(self, schema: WireSchema) -> None:
        """Raises Refused if consumers with this schema cannot read the topic; an unused topic gets it.

        What is no valid schema at all is let in, as Pulsar does; the topic does not get it.
        """
        if schema.type == WireSchema.AutoConsume:
            return
        schemas = self.environment.schemas
        reads = any(not each.takes_any_schema for each in self.consumers)
        used = self.producers or self.has_messages or reads
        if used or schemas.get(self.name) is not None:
            schemas.check(self.name, from_wire(schema), self.strategy)
            return
        try:
            self._add_schema(schema)
        except SchemaRefused as refused:
            if refused.kind == "thrown":  # told without the class of the exception
                raise Refused(refused.code, str(refused).partition(": ")[2]) from None
            if refused.kind != "invalid":
                raise
        await self.journal.synced()

    @property
    def has_messages(self) -> bool:
        """Whether any are stored."""
        return False

    @property
    def strategy(self) -> str:
        """How compatible schemas must be."""
        strategy: str = (
            self.policies.policy("schema compatibility") or self.settings.schemaCompatibilityStrategy
        )
        return strategy

    def check_open(self) -> None:
        """Raises Refused if the topic takes no producers."""
        if self.closed:
            raise _FENCED
        if self.terminated:
            text = "Topic was already terminated"
            raise thrown("TopicTerminatedError", text, "TopicTerminatedException")

    async def _claim(self, producer: Producer, queued: Callable[[], None]) -> None:
        """Make `producer` the exclusive one."""
        busy = self.exclusive is not None or bool(self.producers)
        if producer.mode == Exclusive and (self.exclusive is not None or self.waiting):
            raise thrown("ProducerFenced", self._exclusive_text)
        if producer.mode == Exclusive and busy:
            raise thrown("ProducerFenced", "Topic has existing shared producers")
        if producer.mode == WaitForExclusive and busy:
            turn: Completion[None] = self.scheduler.completion()
            self.waiting.append((producer, turn))
            queued()
            await turn  # an epoch that has passed does not matter any more
        else:
            if busy:
                self._fence()
            self._check_epoch(producer)
        self.exclusive = producer
        if producer.topic_epoch is not None:
            self.epoch = producer.topic_epoch
        else:
            self.epoch = 0 if self.epoch is None else self.epoch + 1
        self.save()
        await self.journal.synced()

    def _check_epoch(self, producer: Producer) -> None:
        epoch = producer.topic_epoch
        if epoch is not None and self.epoch is not None and epoch < self.epoch:
            text = f"Current epoch: {self.epoch}, Producer epoch: {epoch}"
            raise thrown("ProducerFenced", f"Topic epoch has already moved. {text}")

    def _fence(self) -> None:
        """Remove all other producers, silently: their next SEND closes their connection."""
        for _, turn in self.waiting:
            turn.fail(thrown("ProducerFenced", "Fenced out"))
        self.waiting.clear()
        for producer in list(self.producers.values()):
            producer.closed = True
            producer.connection.producers.pop(producer.id, None)
        self.producers.clear()
        self.exclusive = None

    async def _register(self, producer: Producer) -> None:
        """Enter it under its name, which must be free."""
        most = self.settings.maxSameAddressProducersPerTopic
        host, others = producer.connection.host, self.producers.values()
        if most and sum(each.connection.host == host for each in others) >= most:
            text = f"Topic '{self.name.full}' reached max same address producers limit"
            raise thrown("ProducerBusy", text)
        text = f"Producer with name '{producer.name}' is already connected to topic '{self.name.full}'"
        busy = thrown("ProducerBusy", text, "NamingException")
        while (other := self.producers.get(producer.name)) is not None:
            if producer.succeeds(other) or other.connection.closed:
                other.closed = True  # though it may still be storing what was sent
                break
            if other.connection is producer.connection or await other.connection.is_alive():
                raise busy
        self.check_open()  # it may have been closed meanwhile
        self.producers[producer.name] = producer

    def remove_producer(self, producer: Producer) -> None:
        """A producer leaves."""
        producer.closed = True
        if self.producers.get(producer.name) is producer:
            del self.producers[producer.name]
        self._release(producer)
        self.last_active_ms = self.scheduler.time_ms

    def _release(self, producer: Producer) -> None:
        """Let the next one have exclusive access, if that is possible now."""
        self.waiting = deque(it for it in self.waiting if it[0] is not producer)
        if self.exclusive is producer:
            self.exclusive = None
        if self.waiting and self.exclusive is None and not self.producers and not self.closed:
            self.exclusive, turn = self.waiting.popleft()
            turn.resolve(None)

    def migrate(self, url: str, url_tls: str) -> None:
        """The topic has moved to another cluster: producers go there now, consumers once they are done."""
        self.migrated = url, url_tls
        for producer in list(self.producers.values()):
            self.remove_producer(producer)
            producer.connection.tell_migrated(producer.id, self.migrated, producer=True)
            producer.connection.close_producer(producer.id)
        for subscription in list(self.subscriptions.values()):
            subscription.check_end()

    # -- what differs

    def publish(self, producer: Producer, command: CommandSend, frame: Frame, tail_at: int) -> None:
        """SEND: the entry is `frame.raw[tail_at:]`."""
        raise NotImplementedError

    def save(self) -> None:
        """Put what is stored of the topic."""

    def last_sequence(self, producer_name: str) -> int:
        """The highest sequence id stored from a producer; -1 if unknown."""
        return -1

    def consumer_left(self, subscription: S) -> None:
        """A consumer of a subscription left."""

    def is_aborted(self, index: int, metadata: MessageMetadata) -> bool:
        """Whether an entry was sent in a transaction that was aborted."""
        return False

    # -- the end

    def stop(self) -> None:
        """Stop timers."""

    def disconnect_producers(self, **told: Any) -> None:
        """Tell all producers to reconnect. `told` are fields of CLOSE_PRODUCER."""
        for producer in list(self.producers.values()):
            self.remove_producer(producer)
            producer.connection.close_producer(producer.id, **told)
        for _, turn in self.waiting:
            turn.fail(_FENCED)
        self.waiting.clear()

    def disconnect(self, **told: Any) -> None:
        """Tell all clients to reconnect. `told` are fields of CLOSE_PRODUCER and CLOSE_CONSUMER."""
        self.disconnect_producers(**told)
        for subscription in list(self.subscriptions.values()):
            subscription.disconnect(**told)
