"""Brokers over one storage: their topics and connections, and which of them owns which topic."""

from collections.abc import Iterable, Mapping
from typing import Any

from pulsarctl_wire.broker.basics.names import TopicName, bundle_of, bundle_range, parse_topic
from pulsarctl_wire.broker.basics.refusal import Refused, thrown
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
from pulsarctl_wire.broker.topics.environment import Environment
from pulsarctl_wire.broker.topics.persistent import PersistentTopic
from pulsarctl_wire.broker.topics.volatile import VolatileTopic

NO_KEYS = Keys()
NOTHING: Mapping[str, str] = {}

AnyTopic = PersistentTopic | VolatileTopic


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
        """Name of a listener -> its service URLs without and with TLS (advertisedListeners)."""
        self.topics: dict[str, AnyTopic] = {}
        self.connections: dict[int, Connection] = {}
        self._opening: dict[str, Completion[AnyTopic]] = {}
        self._names = 0
        self._run = self.journal.next_number("run")
        self.rates = Rates(self.scheduler, self.topics)
        self.alive = True
        self._lookups = (0, 0)  # when, and how many
        self._most_buffered = self.settings.maxMessagePublishBufferSizeInMB << 20
        self._buffered = 0
        self.is_full = False
        """Whether so much waits to be stored that connections must not be read from for now."""

    # -- connections

    def accept(self, connection: Connection) -> None:
        """A client has connected. It is told, and the connection closed, if there are too many."""
        others = self.connections.values()
        most, per_ip = self.settings.brokerMaxConnections, self.settings.brokerMaxConnectionsPerIp
        if most and len(others) >= most:
            connection.reject(Refused("NotAllowedError", "Reached the maximum number of connections"))
        elif per_ip and sum(each.host == connection.host for each in others) >= per_ip:
            text = f"Reached the maximum number of connections on address{connection.address}"
            connection.reject(Refused("NotAllowedError", text))
        self.connections[connection.number] = connection

    def touch(self, connection: Connection) -> None:
        """The owner must look at a connection."""
        self.cluster.touched[connection] = None

    def left(self, connection: Connection) -> None:
        """A client has left."""
        self.cluster.watchers.remove_all(connection)

    def admit_lookup(self) -> None:
        """Raises Refused if more lookups have come together than may be under way at once."""
        at, number = self._lookups
        now = self.scheduler.ticks
        self._lookups = now, number + 1 if at == now else 1
        if self._lookups[1] > self.settings.maxConcurrentLookupRequest:
            raise Refused("TooManyRequests", "Failed due to too many pending lookup requests")

    def buffer(self, size: int) -> None:
        """So many bytes wait to be stored, or if negative, do not any more."""
        self._buffered += size
        most = self._most_buffered
        full = self._buffered > (most // 2 if self.is_full else most)
        if full != self.is_full:
            self.is_full = full
            for connection in self.connections.values():
                connection.throttle()

    def producer_name(self) -> str:
        """A name that no producer has had, once what the journal has now is durable."""
        self._names += 1
        return f"{self.settings.clusterName}-{self._run}-{self._names - 1}"

    # -- topics

    async def topic(self, name: TopicName, *, create: bool) -> AnyTopic:
        """The loaded topic; it is loaded, or made if there is none and `create` allows it. Raises Refused."""
        self._check_owner(name)
        while True:
            found = self.topics.get(name.full)
            if found is not None and not found.closed:
                return found
            opening = self._opening.get(name.full)
            if opening is not None:
                await opening
            elif found is not None:  # it is being closed
                await self.journal.synced()
            else:
                opening = self.scheduler.spawn(self._open(name, create))
                if not opening.done:
                    self._opening[name.full] = opening
                return await opening

    def _check_owner(self, name: TopicName) -> None:
        """Raises Refused unless this broker owns the topic."""
        if not self.cluster.is_owner(self, name):
            bundle = f"{name.namespace}/{self.cluster.bundle_of(name)}"
            here = self.http_url.partition("://")[2]
            text = f"Namespace bundle ({bundle}) for topic ({name.full}) not served by this instance:{here}"
            text = f"{text}. Please redo the lookup."
            if name.is_persistent:
                raise Refused("ServiceNotReady", text)
            raise thrown("ServiceNotReady", text, "ServiceUnitNotReadyException")

    async def _open(self, name: TopicName, create: bool) -> AnyTopic:
        try:
            return await self._load(name, create)
        finally:
            self._opening.pop(name.full, None)  # at once: before callbacks run, the topic may be closed again

    async def _load(self, name: TopicName, create: bool) -> AnyTopic:
        enabled = self.settings.enablePersistentTopics, self.settings.enableNonPersistentTopics
        if not enabled[not name.is_persistent]:  # the text is the same for both
            raise Refused("NotAllowedError", "Broker is unable to load persistent topic")
        if name.is_of_transactions:
            raise Refused("NotAllowedError", f"Can not create transaction system topic {name.full}")
        stored = name.full in self.cluster.namespaces.topics
        if not stored and not (create and self.cluster.catalogue.may_create(name)):
            raise Refused("TopicNotFound", f"Topic not found {name.full}")
        topic: AnyTopic
        if not name.is_persistent:
            topic = VolatileTopic(self.environment, name)
        else:
            if not stored:
                self.cluster.catalogue.check_room(name)
                await self.cluster.catalogue.create_topic(name)
            await self.journal.synced()  # what another broker may have had to store last
            self._check_owner(name)
            if name.full not in self.cluster.namespaces.topics:
                raise Refused("ServiceNotReady", f"Topic {name.full} is being deleted")
            topic = PersistentTopic(self.environment, name)
        self.topics[name.full] = topic
        self.rates.start()
        return topic

    def kill(self) -> None:
        """The broker is gone at once: its connections are cut, its topics have no owner."""
        self.alive = False
        for connection in list(self.connections.values()):
            connection.close()
        for topic in list(self.topics.values()):
            topic.closed = True
            topic.stop()
        self.topics.clear()

    async def unload(self, topic: AnyTopic, **told: Any) -> None:
        """Close a topic; it is loaded again when a client asks for it."""
        await topic.close(**told)
        if self.topics.get(topic.name.full) is topic:
            del self.topics[topic.name.full]

    async def delete(self, topic: AnyTopic) -> None:
        """Delete a topic, with everything in it."""
        await topic.close()
        self.topics.pop(topic.name.full, None)
        if isinstance(topic, PersistentTopic):
            topic.forget()
            if not self.cluster.namespaces.partitions(topic.name.parent):
                self.cluster.schemas.delete(topic.name)
            self.cluster.watchers.changed(topic.name, created=False)
        await self.journal.synced()


class Cluster:
    """Brokers that share namespaces and storage.

    `rows` are those of storage: (table, key, value); `ends` has the index behind the last entry of each log;
    `now` is as in `set_time`.
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
        self.transactions = Coordinators(settings, self.scheduler, self.journal, self.namespaces, self.loaded)
        self.touched: dict[Connection, None] = {}
        """Connections that the owner must look at."""
        self.brokers = [Broker(self, number) for number in range(brokers)]
        self._owners: dict[tuple[str, int], Broker] = {}
        self._moving: dict[tuple[str, int], Completion[None]] = {}
        """Bundles whose topics are being closed: no broker loads them meanwhile."""

    # -- who owns what

    def _bundle(self, name: TopicName) -> tuple[str, int]:
        return name.namespace, bundle_of(name, self.bundles(name.namespace))

    def is_owner(self, broker: Broker, name: TopicName) -> bool:
        """Whether a broker owns the bundle of a topic, and keeps it."""
        return self._owners.get(self._bundle(name)) is broker and not self.is_moving(name)

    def is_moving(self, name: TopicName) -> bool:
        """Whether the bundle of a topic is being unloaded."""
        return self._bundle(name) in self._moving

    def owner(self, name: TopicName) -> Broker | None:
        """The broker that owns the bundle of a topic, if any does."""
        return self._owners.get(self._bundle(name))

    def acquire(self, broker: Broker, name: TopicName) -> Broker:
        """The owner of a topic's bundle; that is `broker` if nobody was."""
        return self._owners.setdefault(self._bundle(name), broker)

    @property
    def leader(self) -> Broker:
        """The broker that gives bundles away."""
        return next(broker for broker in self.brokers if broker.alive)

    def candidate(self, name: TopicName) -> Broker:
        """The broker that is to own a bundle that nobody owns: the living one with the fewest."""
        owned = {broker: 0 for broker in self.brokers if broker.alive}
        for owner in self._owners.values():
            if owner in owned:
                owned[owner] += 1
        return min(owned, key=lambda broker: owned[broker])

    async def unload_bundle(self, name: TopicName, to: Broker | None = None, *, tell: bool = False) -> None:
        """Take the bundle of a topic from its owner; `to` owns it next, and clients are told so if `tell`."""
        told: dict[str, str] = {}
        if to is not None and tell:
            told["assignedBrokerServiceUrl"] = to.service_url
            if to.service_url_tls:
                told["assignedBrokerServiceUrlTls"] = to.service_url_tls
        await self._unload(self._bundle(name), to, told)

    async def _unload(
        self, bundle: tuple[str, int], to: Broker | None = None, told: Mapping[str, str] = NOTHING
    ) -> None:
        """Close the topics of a bundle, and only then let `to` own it, or nobody."""
        while (moving := self._moving.get(bundle)) is not None:
            await moving
        done = self._moving[bundle] = self.scheduler.completion()
        for broker in self.brokers:
            for topic in [each for each in broker.topics.values() if self._bundle(each.name) == bundle]:
                await broker.unload(topic, **told)
        del self._moving[bundle]
        self._owners.pop(bundle, None)
        if to is not None and to.alive:
            self._owners[bundle] = to
        done.resolve(None)

    def kill(self, broker: Broker) -> None:
        """A broker dies: nobody owns its bundles. The last one alive cannot."""
        if sum(each.alive for each in self.brokers) > 1:
            self._end(broker)

    def _end(self, broker: Broker) -> None:
        broker.kill()
        self._owners = {bundle: owner for bundle, owner in self._owners.items() if owner is not broker}
        self.scheduler.run()

    def start(self, broker: Broker) -> None:
        """A broker that died is back; it owns nothing yet."""
        broker.alive = True

    def restart(self, broker: Broker) -> None:
        """A broker dies and is back at once; it may be the only one."""
        self._end(broker)
        self.start(broker)

    async def unload(self, namespace: str, bundle: str = "") -> None:
        """Close the topics of a namespace, or of one of its bundles; nobody owns them then."""
        for owned in [each for each in self._owners if each[0] == namespace]:
            if bundle in ("", self.bundle_name(*owned)):
                await self._unload(owned)

    def bundles(self, namespace: str) -> int:
        """The number of bundles of a namespace; 1 if it was not created."""
        number: int = self.namespaces.policies(namespace).get("bundles", 1)
        return number

    def bundle_name(self, namespace: str, number: int) -> str:
        """The name of a bundle: 0x40000000_0x80000000."""
        return bundle_range(number, self.bundles(namespace))

    def bundle_of(self, name: TopicName) -> str:
        """The name of the bundle that a topic is in."""
        return self.bundle_name(*self._bundle(name))

    def owned(self, broker: Broker) -> list[str]:
        """The bundles that a broker owns: tenant/namespace/range."""
        mine = [each for each, owner in self._owners.items() if owner is broker]
        return [f"{each[0]}/{self.bundle_name(*each)}" for each in mine]

    # -- topics

    def exists(self, name: TopicName) -> bool:
        """Whether there is such a topic, not counting partitioned ones."""
        if name.full in self.namespaces.topics:
            return True
        if 0 <= name.partition < self.namespaces.partitions(name.parent):
            return True
        return any(name.full in broker.topics for broker in self.brokers)

    async def load(self, name: TopicName, near: Broker | None = None) -> AnyTopic:
        """A topic that exists, loaded by its owner: `near` if nobody owns it. Raises Refused."""
        while True:
            while (moving := self._moving.get(self._bundle(name))) is not None:
                await moving
            owner = self.acquire(near or self.candidate(name), name)
            try:
                stored = name.full in self.namespaces.topics  # if it is deleted meanwhile, it stays so
                return await owner.topic(name, create=not stored and self.exists(name))
            except Refused:
                if self.is_owner(owner, name):
                    raise

    def broker_of(self, topic: AnyTopic) -> Broker:
        """The broker that has loaded a topic."""
        return self.brokers[topic.environment.number]

    async def delete_topic(self, name: TopicName) -> None:
        """Delete a topic with everything in it, though it may have clients."""
        topic = await self.load(name)
        await self.broker_of(topic).delete(topic)

    async def delete_partitioned(self, name: TopicName) -> None:
        """Delete a partitioned topic with its partitions."""
        for partition in self.catalogue.parts(name):
            if self.exists(partition):
                await self.delete_topic(partition)
        self.namespaces.delete_partitioned(name)
        self.schemas.delete(name)
        await self.journal.synced()

    async def add_partitions(self, name: TopicName, partitions: int) -> None:
        """Give a partitioned topic more partitions, with the subscriptions that the others have."""
        old = self.catalogue.parts(name)
        properties = self.namespaces.partitioned[name.full]["properties"]
        await self.catalogue.create_partitioned(name, partitions, properties)
        if not name.is_persistent:
            return
        first = await self.load(old[0])
        assert isinstance(first, PersistentTopic)
        durable = [each.name for each in first.subscriptions.values() if each.cursor.durable]
        for partition in self.catalogue.parts(name)[len(old) :]:
            topic = await self.load(partition)
            assert isinstance(topic, PersistentTopic)
            for subscription in durable:
                if subscription not in topic.subscriptions:
                    topic.create_subscription(subscription, topic.log.first)
        await self.journal.synced()

    async def loaded(self, topic: str) -> PersistentTopic | None:
        """A persistent topic, loaded by its owner; None if there is none."""
        name = parse_topic(topic)
        if name.full not in self.namespaces.topics:
            return None
        try:
            found = await self.load(name)
        except Refused:
            if name.full in self.namespaces.topics:
                raise
            return None  # it was deleted meanwhile
        return found if isinstance(found, PersistentTopic) else None
