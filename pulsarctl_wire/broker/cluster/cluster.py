"""Brokers over one storage: their topics and connections, and which of them owns which topic."""

from collections.abc import Iterable, Mapping
from typing import Any

from pulsarctl_wire.broker.basics.names import TopicName, find_bundle_number, format_bundle_name, parse_topic
from pulsarctl_wire.broker.basics.refusal import Refused, java_refusal
from pulsarctl_wire.broker.basics.scheduler import Completion, Scheduler
from pulsarctl_wire.broker.basics.settings import Settings
from pulsarctl_wire.broker.clients.connection import Connection
from pulsarctl_wire.broker.clients.watchers import Watchers
from pulsarctl_wire.broker.cluster.catalogue import Catalogue
from pulsarctl_wire.broker.cluster.coordinators import Coordinators
from pulsarctl_wire.broker.cluster.counters import Rates
from pulsarctl_wire.broker.schemas.registry import Schemas
from pulsarctl_wire.broker.storage.journal import Journal
from pulsarctl_wire.broker.tenancy.access import Access, Keys
from pulsarctl_wire.broker.tenancy.namespaces import Namespaces
from pulsarctl_wire.broker.topics.non_persistent import NonPersistentTopic
from pulsarctl_wire.broker.topics.persistent import PersistentTopic
from pulsarctl_wire.broker.topics.topic import Environment

NO_KEYS = Keys()
NO_CLOSE_FIELDS: Mapping[str, str] = {}

AnyTopic = PersistentTopic | NonPersistentTopic


class Broker:
    """A broker. Its URLs are set once its ports are known; those of TLS ports may stay empty."""

    def __init__(self, cluster: "Cluster", number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.scheduler = cluster.scheduler
        self.settings = cluster.settings
        self.journal = cluster.journal
        self.access = cluster.access
        self.environment = Environment(
            number,
            cluster.settings,
            cluster.scheduler,
            cluster.journal,
            cluster.namespaces,
            cluster.schemas,
            cluster.ends,
        )
        self.service_url = self.service_url_tls = self.http_url = self.https_url = ""
        self.listeners: dict[str, tuple[str, str]] = {}
        """Listener name -> its service URLs without and with TLS (advertisedListeners)."""
        self.topics: dict[str, AnyTopic] = {}
        self.connections: dict[int, Connection] = {}
        self._opening: dict[str, Completion[AnyTopic]] = {}
        self._name_count = 0
        self._run = self.journal.next_number("run")
        self.rates = Rates(self.scheduler, self.topics)
        self.alive = True
        self._lookups = (0, 0)  # ticks of the last lookup, and the number of lookups in that tick
        self._max_buffered = self.settings.maxMessagePublishBufferSizeInMB << 20
        self._buffered = 0
        self.is_full = False
        """Whether so many bytes wait to be stored that connections must not be read from."""

    # -- connections

    def accept(self, connection: Connection) -> None:
        """Add a connection, and reject it if there are too many; it stays added until its end."""
        others = self.connections.values()
        limit, ip_limit = self.settings.brokerMaxConnections, self.settings.brokerMaxConnectionsPerIp
        if limit and len(others) >= limit:
            connection.reject(Refused("NotAllowedError", "Reached the maximum number of connections"))
        elif ip_limit and sum(other.host == connection.host for other in others) >= ip_limit:
            text = f"Reached the maximum number of connections on address{connection.address}"
            connection.reject(Refused("NotAllowedError", text))
        self.connections[connection.number] = connection

    def touch(self, connection: Connection) -> None:
        """Have the owner look at a connection."""
        self.cluster.touched[connection] = None

    def on_disconnect(self, connection: Connection) -> None:
        """Forget the watchers of a connection that has ended."""
        self.cluster.watchers.remove_all(connection)

    def admit_lookup(self) -> None:
        """Count a lookup. Raises Refused if more came in one tick than may be under way at once."""
        ticks, count = self._lookups
        now = self.scheduler.ticks
        self._lookups = now, count + 1 if ticks == now else 1
        if self._lookups[1] > self.settings.maxConcurrentLookupRequest:
            raise Refused("TooManyRequests", "Failed due to too many pending lookup requests")

    def buffer(self, size: int) -> None:
        """Add `size`, which may be negative, to the number of bytes that wait to be stored."""
        self._buffered += size
        limit = self._max_buffered
        is_full = self._buffered > (limit // 2 if self.is_full else limit)
        if is_full != self.is_full:
            self.is_full = is_full
            for connection in self.connections.values():
                connection.update_throttling()

    def make_producer_name(self) -> str:
        """Return a new producer name; it is unique once the journal's current state is durable."""
        self._name_count += 1
        return f"{self.settings.clusterName}-{self._run}-{self._name_count - 1}"

    # -- topics

    async def get_topic(self, name: TopicName, *, create: bool) -> AnyTopic:
        """Return a topic; load it, or create it if there is none and `create` is true. Raises Refused."""
        self._check_owner(name)
        while True:
            topic = self.topics.get(name.full)
            if topic is not None and not topic.closed:
                return topic
            opening = self._opening.get(name.full)
            if opening is not None:
                await opening
            elif topic is not None:  # being closed
                await self.journal.sync()
            else:
                opening = self.scheduler.spawn(self._open(name, create))
                if not opening.done:
                    self._opening[name.full] = opening
                return await opening

    def _check_owner(self, name: TopicName) -> None:
        """Raise Refused unless this broker owns the topic."""
        if not self.cluster.is_owner(self, name):
            bundle = f"{name.namespace}/{self.cluster.bundle_of(name)}"
            address = self.http_url.partition("://")[2]
            text = (
                f"Namespace bundle ({bundle}) for topic ({name.full}) not served by this instance:{address}"
            )
            text = f"{text}. Please redo the lookup."
            if name.is_persistent:
                raise Refused("ServiceNotReady", text)
            raise java_refusal("ServiceNotReady", text, "ServiceUnitNotReadyException")

    async def _open(self, name: TopicName, create: bool) -> AnyTopic:
        try:
            return await self._load(name, create)
        finally:
            self._opening.pop(name.full, None)  # at once: before callbacks run, the topic may be closed again

    async def _load(self, name: TopicName, create: bool) -> AnyTopic:
        switches = self.settings.enablePersistentTopics, self.settings.enableNonPersistentTopics
        if not switches[not name.is_persistent]:  # the text is the same for both
            raise Refused("NotAllowedError", "Broker is unable to load persistent topic")
        if name.is_of_transactions:
            raise Refused("NotAllowedError", f"Can not create transaction system topic {name.full}")
        is_stored = name.full in self.cluster.namespaces.topics
        if not is_stored and not (create and self.cluster.catalogue.can_create(name)):
            raise Refused("TopicNotFound", f"Topic not found {name.full}")
        topic: AnyTopic
        if not name.is_persistent:
            topic = NonPersistentTopic(self.environment, name)
        else:
            if not is_stored:
                self.cluster.catalogue.check_topic_limit(name)
                await self.cluster.catalogue.create_topic(name)
            await self.journal.sync()  # another broker may just have changed its rows
            self._check_owner(name)
            if name.full not in self.cluster.namespaces.topics:
                raise Refused("ServiceNotReady", f"Topic {name.full} is being deleted")
            topic = PersistentTopic(self.environment, name)
        self.topics[name.full] = topic
        self.rates.start()
        return topic

    def kill(self) -> None:
        """Stop at once: cut the connections and drop the topics."""
        self.alive = False
        for connection in list(self.connections.values()):
            connection.close()
        for topic in list(self.topics.values()):
            topic.closed = True
            topic.stop()
        self.topics.clear()

    async def unload(self, topic: AnyTopic, **close_fields: Any) -> None:
        """Close a topic, with `close_fields` for its clients; it is loaded again when a client needs it."""
        await topic.close(**close_fields)
        if self.topics.get(topic.name.full) is topic:
            del self.topics[topic.name.full]

    async def delete(self, topic: AnyTopic) -> None:
        """Delete a topic with all its data."""
        await topic.close()
        self.topics.pop(topic.name.full, None)
        # Its bundle may have moved meanwhile: then its new owner has loaded the topic.
        for other in self.cluster.brokers:
            if topic.name.full in other.topics:
                return await other.delete(other.topics[topic.name.full])
        if isinstance(topic, PersistentTopic):
            topic.forget()
            if not self.cluster.namespaces.count_partitions(topic.name.parent):
                self.cluster.schemas.delete(topic.name)
            self.cluster.watchers.on_change(topic.name, is_created=False)
        await self.journal.sync()


class Cluster:
    """Brokers that share namespaces and storage.

    `rows` are those of storage: (table, key, value); `ends` maps each log to the index after its last entry;
    `brokers` is the number of brokers; `now` is as in `Scheduler.set_time`.
    """

    def __init__(
        self,
        settings: Settings,
        rows: Iterable[tuple[str, str, str]],
        ends: Mapping[int, int] | None,
        brokers: int,
        keys: Keys,
        now: tuple[int, int],
    ) -> None:
        self.settings = settings
        self.scheduler = Scheduler()
        self.scheduler.set_time(*now)
        self.journal = Journal(self.scheduler, rows)
        self.ends = dict(ends or {})
        self.namespaces = Namespaces(self.journal, settings)
        self.schemas = Schemas(self.journal)
        self.access = Access(settings, keys, self.namespaces)
        self.watchers = Watchers(self.namespaces)
        self.catalogue = Catalogue(settings, self.journal, self.namespaces, self.watchers)
        self.transactions = Coordinators(
            settings, self.scheduler, self.journal, self.namespaces, self.load_persistent
        )
        self.touched: dict[Connection, None] = {}
        """Connections that the owner must look at."""
        self.brokers = [Broker(self, number) for number in range(brokers)]
        self._owners: dict[tuple[str, int], Broker] = {}
        self._moving: dict[tuple[str, int], Completion[None]] = {}
        """Bundles whose topics are being closed, which no broker loads before the completion is done."""

    # -- owners of bundles

    def _bundle(self, name: TopicName) -> tuple[str, int]:
        return name.namespace, find_bundle_number(name, self.count_bundles(name.namespace))

    def is_owner(self, broker: Broker, name: TopicName) -> bool:
        """Return whether a broker owns the bundle of a topic, and keeps it."""
        return self._owners.get(self._bundle(name)) is broker and not self.is_moving(name)

    def is_moving(self, name: TopicName) -> bool:
        """Return whether the bundle of a topic is being unloaded."""
        return self._bundle(name) in self._moving

    def get_owner(self, name: TopicName) -> Broker | None:
        """Return the broker that owns the bundle of a topic, if any."""
        return self._owners.get(self._bundle(name))

    def acquire(self, broker: Broker, name: TopicName) -> Broker:
        """Return the owner of a topic's bundle; give it to `broker` if it has none."""
        return self._owners.setdefault(self._bundle(name), broker)

    def find_owner(self, broker: Broker, name: TopicName, authoritative: bool) -> tuple[Broker, bool, bool]:
        """Return `broker`'s answer to a lookup: a broker, whether to repeat it there, and `authoritative`.

        If the topic has no owner, the leader chooses one. A broker becomes the owner by an authoritative
        lookup, or as the leader by choosing itself. Raises Refused.
        """
        if self.is_moving(name):
            raise Refused("ServiceNotReady", f"Namespace bundle {self.bundle_of(name)} is being unloaded")
        owner = self.get_owner(name)
        if owner is None and not authoritative:
            if broker is not self.leader:
                return self.leader, True, False
            candidate = self.choose_owner(name)
            if candidate is not broker:
                return candidate, True, True
        return self.acquire(broker, name), False, True

    @property
    def leader(self) -> Broker:
        """The broker that assigns bundles."""
        return next(broker for broker in self.brokers if broker.alive)

    def choose_owner(self, name: TopicName) -> Broker:
        """Return the living broker with the fewest bundles."""
        bundle_counts = {broker: 0 for broker in self.brokers if broker.alive}
        for owner in self._owners.values():
            if owner in bundle_counts:
                bundle_counts[owner] += 1
        return min(bundle_counts, key=lambda broker: bundle_counts[broker])

    async def unload_bundle(
        self, name: TopicName, next_owner: Broker | None = None, *, tells_clients: bool = False
    ) -> None:
        """Give a topic's bundle to `next_owner`; None: to nobody.

        If `tells_clients`, clients learn the new owner.
        """
        close_fields: dict[str, str] = {}
        if next_owner is not None and tells_clients:
            close_fields["assignedBrokerServiceUrl"] = next_owner.service_url
            if next_owner.service_url_tls:
                close_fields["assignedBrokerServiceUrlTls"] = next_owner.service_url_tls
        await self._unload(self._bundle(name), next_owner, close_fields)

    async def _unload(
        self,
        bundle: tuple[str, int],
        next_owner: Broker | None = None,
        close_fields: Mapping[str, str] = NO_CLOSE_FIELDS,
    ) -> None:
        """Close the topics of a bundle, and only then give it to `next_owner`, or nobody."""
        while (moving := self._moving.get(bundle)) is not None:
            await moving
        completion = self._moving[bundle] = self.scheduler.make_completion()
        for broker in self.brokers:
            for topic in [item for item in broker.topics.values() if self._bundle(item.name) == bundle]:
                await broker.unload(topic, **close_fields)
        del self._moving[bundle]
        self._owners.pop(bundle, None)
        if next_owner is not None and next_owner.alive:
            self._owners[bundle] = next_owner
        completion.resolve(None)

    def kill(self, broker: Broker) -> None:
        """Kill a broker, unless it is the last one alive. Nobody owns its bundles afterwards."""
        if sum(member.alive for member in self.brokers) > 1:
            self._kill(broker)

    def _kill(self, broker: Broker) -> None:
        broker.kill()
        self._owners = {bundle: owner for bundle, owner in self._owners.items() if owner is not broker}
        self.scheduler.run()

    def start(self, broker: Broker) -> None:
        """Start a broker that was killed; it owns nothing yet."""
        broker.alive = True

    def restart(self, broker: Broker) -> None:
        """Kill and start a broker, which may be the only one."""
        self._kill(broker)
        self.start(broker)

    async def unload(self, namespace: str, bundle: str = "") -> None:
        """Take all bundles of a namespace, or one of them, from their owners, and close their topics."""
        for key in [key for key in self._owners if key[0] == namespace]:
            if bundle in ("", self.bundle_name(*key)):
                await self._unload(key)

    def count_bundles(self, namespace: str) -> int:
        """Return the number of bundles of a namespace; 1 if it was not created."""
        number: int = self.namespaces.get_policies(namespace).get("bundles", 1)
        return number

    def bundle_name(self, namespace: str, number: int) -> str:
        """Return the name of a bundle, such as 0x40000000_0x80000000."""
        return format_bundle_name(number, self.count_bundles(namespace))

    def bundle_of(self, name: TopicName) -> str:
        """Return the name of the bundle that a topic is in."""
        return self.bundle_name(*self._bundle(name))

    def list_owned(self, broker: Broker) -> list[str]:
        """Return the bundles that a broker owns: tenant/namespace/range."""
        bundles = [bundle for bundle, owner in self._owners.items() if owner is broker]
        return [f"{bundle[0]}/{self.bundle_name(*bundle)}" for bundle in bundles]

    # -- topics

    def exists(self, name: TopicName) -> bool:
        """Return whether a topic exists, not counting partitioned ones."""
        is_partition = 0 <= name.partition < self.namespaces.count_partitions(name.parent)
        return is_partition or self.is_stored_or_loaded(name)

    def is_stored_or_loaded(self, name: TopicName) -> bool:
        """Return whether a topic is stored or loaded, which a partition need not be."""
        return name.full in self.namespaces.topics or any(
            name.full in broker.topics for broker in self.brokers
        )

    async def load(self, name: TopicName, preferred: Broker | None = None) -> AnyTopic:
        """Return a topic that exists, loaded by its owner. Raises Refused.

        If it has no owner, `preferred` becomes the owner; None: the broker with the fewest bundles.
        """
        while True:
            while (moving := self._moving.get(self._bundle(name))) is not None:
                await moving
            owner = self.acquire(preferred or self.choose_owner(name), name)
            try:
                is_stored = name.full in self.namespaces.topics  # if deleted meanwhile, it must stay so
                return await owner.get_topic(name, create=not is_stored and self.exists(name))
            except Refused:
                if self.is_owner(owner, name):
                    raise

    def broker_of(self, topic: AnyTopic) -> Broker:
        """Return the broker that has loaded a topic."""
        return self.brokers[topic.environment.number]

    async def delete_topic(self, name: TopicName) -> None:
        """Delete a topic with all its data, even if it has clients."""
        topic = await self.load(name)
        await self.broker_of(topic).delete(topic)

    async def delete_partitioned(self, name: TopicName) -> None:
        """Delete a partitioned topic with its partitions."""
        for partition in self.catalogue.list_partitions(name):
            if self.exists(partition):
                await self.delete_topic(partition)
        self.namespaces.delete_partitioned(name)
        self.schemas.delete(name)
        await self.journal.sync()

    async def add_partitions(self, name: TopicName, partitions: int) -> None:
        """Add partitions, up to `partitions` in all, with the durable subscriptions of the first one."""
        old_partitions = self.catalogue.list_partitions(name)
        properties = self.namespaces.partitioned[name.full]["properties"]
        await self.catalogue.create_partitioned(name, partitions, properties)
        if not name.is_persistent:
            return
        first_topic = await self.load(old_partitions[0])
        assert isinstance(first_topic, PersistentTopic)
        names = [item.name for item in first_topic.subscriptions.values() if item.cursor.durable]
        for partition in self.catalogue.list_partitions(name)[len(old_partitions) :]:
            topic = await self.load(partition)
            assert isinstance(topic, PersistentTopic)
            for subscription in names:
                if subscription not in topic.subscriptions:
                    topic.create_subscription(subscription, topic.log.first)
        await self.journal.sync()

    async def load_persistent(self, topic: str) -> PersistentTopic | None:
        """Return a persistent topic, loaded by its owner; or None. Raises InvalidName, Refused."""
        name = parse_topic(topic)
        if name.full not in self.namespaces.topics:
            return None
        try:
            loaded = await self.load(name)
        except Refused:
            if name.full in self.namespaces.topics:
                raise
            return None  # deleted meanwhile
        return loaded if isinstance(loaded, PersistentTopic) else None
