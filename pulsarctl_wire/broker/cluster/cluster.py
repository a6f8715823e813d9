"""The core of the embedded broker: one or more brokers over one storage. Pure.

    connect, receive, disconnect, set_writable     what clients do
    stored, was_read                               what storage did
    wake                                           time has passed

Each call makes the core do everything that it can do now. Then the owner carries out what the core wants:

    touched            connections with bytes to send (`out`), to be closed (`closed`), or to be read no
                       further for a while (`throttled`)
    journal            `take_commit` and `take_reads`
    wake_at            when `wake` must be called
"""

from collections.abc import Iterable, Mapping
from typing import Any

from pulsarctl_wire.broker.basics.names import TopicName, bundle_of, bundle_range, parse_topic
from pulsarctl_wire.broker.basics.refusal import Refused
from pulsarctl_wire.broker.basics.scheduler import Completion, Scheduler
from pulsarctl_wire.broker.basics.settings import Settings
from pulsarctl_wire.broker.clients.connection import Connection
from pulsarctl_wire.broker.clients.watchers import Watchers
from pulsarctl_wire.broker.cluster import housekeeping
from pulsarctl_wire.broker.cluster.broker import AnyTopic, Broker
from pulsarctl_wire.broker.handlers import HANDLERS
from pulsarctl_wire.broker.schemas.registry import Schemas
from pulsarctl_wire.broker.storage.journal import Journal
from pulsarctl_wire.broker.storage.transactions import Coordinators
from pulsarctl_wire.broker.tenancy.access import Access, Keys
from pulsarctl_wire.broker.tenancy.namespaces import Namespaces
from pulsarctl_wire.broker.topics.persistent import PersistentTopic, new_row
from pulsarctl_wire.wire.frame import Frame

NO_KEYS = Keys()
NOTHING: Mapping[str, str] = {}


class Cluster:
    """Brokers that share namespaces and storage.

    `rows` are those of storage: (table, key, value); `ends` has the index behind the last entry of each log;
    `now` is as in `set_time`.
    """

    def __init__(
        self,
        settings: Settings,
        rows: Iterable[tuple[str, str, str]] = (),
        ends: Mapping[int, int] | None = None,
        brokers: int = 1,
        keys: Keys = NO_KEYS,
        now: tuple[int, int] = (0, 0),
    ) -> None:
        self.settings = settings
        self.handlers = HANDLERS
        self.scheduler = Scheduler()
        self.scheduler.set_time(*now)
        self.journal = Journal(self.scheduler, rows)
        self.ends = dict(ends or {})
        self.namespaces = Namespaces(self.journal, settings)
        self.schemas = Schemas(self.journal)
        self.access = Access(settings, keys, self.namespaces)
        self.watchers = Watchers(self)
        self.transactions = Coordinators(self)
        self.touched: dict[Connection, None] = {}
        self.brokers = [Broker(self, number) for number in range(brokers)]
        for broker in self.brokers:
            housekeeping.start(broker)
        self._owners: dict[tuple[str, int], Broker] = {}
        self._moving: dict[tuple[str, int], Completion[None]] = {}
        """Bundles whose topics are being closed: no broker loads them meanwhile."""
        self._connections = 0

    # -- what clients and storage do

    def set_time(self, ticks: int, time_ns: int) -> None:
        """The time is now this: ns of a clock that never goes back, and ns since the epoch."""
        self.scheduler.set_time(ticks, time_ns)

    def connect(self, broker: Broker, client: str, *, certificate: str = "") -> Connection:
        """A client at the address `client` has connected; its certificate, if any, has this common name."""
        self._connections += 1
        connection = Connection(broker, self._connections, client, certificate)
        broker.connections[connection.number] = connection
        self.scheduler.run()
        return connection

    def receive(self, connection: Connection, frame: Frame) -> None:
        """A client has sent a frame; call `wake` after the last of those that came together."""
        connection.receive(frame)

    def disconnect(self, connection: Connection) -> None:
        """The connection has ended."""
        connection.lost()
        connection.broker.connections.pop(connection.number, None)
        self.scheduler.run()

    def set_writable(self, connection: Connection, writable: bool) -> None:
        """Whether the connection takes more bytes now; call `wake` afterwards."""
        connection.set_writable(writable)

    def stored(self) -> None:
        """The oldest commit that was taken is durable."""
        self.journal.stored()
        self.scheduler.run()

    def was_read(self, number: int, entries: list[tuple[int, bytes]]) -> None:
        """A read is done."""
        self.journal.was_read(number, entries)
        self.scheduler.run()

    def wake(self) -> None:
        """Do what is due."""
        self.scheduler.run()

    @property
    def wake_at(self) -> int | None:
        """When `wake` must be called, and a commit taken (ticks)."""
        times = [at for at in (self.scheduler.wake_at, self.journal.wake_at) if at is not None]
        return min(times, default=None)

    def take_touched(self) -> list[Connection]:
        """The connections that the owner must look at."""
        touched, self.touched = list(self.touched), {}
        return touched

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

    def parts(self, name: TopicName) -> list[TopicName]:
        """The partitions of a topic; only itself if it is not partitioned."""
        number = self.namespaces.partitions(name)
        return [name._replace(local=f"{name.local}-partition-{each}") for each in range(number)] or [name]

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

    async def delete_topic(self, name: TopicName) -> None:
        """Delete a topic with everything in it, though it may have clients."""
        topic = await self.load(name)
        await topic.broker.delete(topic)

    async def delete_partitioned(self, name: TopicName) -> None:
        """Delete a partitioned topic with its partitions."""
        for partition in self.parts(name):
            if self.exists(partition):
                await self.delete_topic(partition)
        self.namespaces.delete_partitioned(name)
        self.schemas.delete(name)
        await self.journal.synced()

    async def add_partitions(self, name: TopicName, partitions: int) -> None:
        """Give a partitioned topic more partitions, with the subscriptions that the others have."""
        old = self.parts(name)
        properties = self.namespaces.partitioned[name.full]["properties"]
        await self.create_partitioned(name, partitions, properties)
        if not name.is_persistent:
            return
        first = await self.load(old[0])
        durable = [each.name for each in first.subscriptions.values() if each.cursor.durable]
        for partition in self.parts(name)[len(old) :]:
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

    def may_create(self, name: TopicName) -> bool:
        """Whether a topic may be made because a client uses it."""
        if name.is_system:
            return True
        if name.partition >= 0 and (partitions := self.namespaces.partitions(name.parent)):
            return name.partition < partitions
        override = self.namespaces.policies(name.namespace).get("autoTopicCreationOverride")
        if override is not None:
            return bool(override["allowAutoTopicCreation"])
        return self.settings.allowAutoTopicCreation

    def check_room(self, name: TopicName, number: int = 1) -> None:
        """Raises Refused if a namespace may not have so many persistent topics more."""
        most = self.namespaces.policies(name.namespace).get("max_topics_per_namespace")
        most = self.settings.maxTopicsPerNamespace if most is None else most
        if most > 0 and not name.is_system:
            there = [each for each in self.namespaces.stored_topics(name.namespace) if not each.is_system]
            if len(there) + number > most:
                raise Refused("NotAllowedError", "Exceed maximum number of topics in namespace.")

    async def create_topic(self, name: TopicName, properties: dict[str, Any] | None = None) -> None:
        """Make a persistent topic."""
        row = new_row(self.journal.next_number("log") + 1)
        self.journal.put("topics", name.full, {**row, "properties": properties or {}})
        await self.journal.synced()
        self.watchers.changed(name, created=True)

    def default_partitions(self, name: TopicName) -> int:
        """The number of partitions of topics made because a client uses them; 0: not partitioned."""
        override = self.namespaces.policies(name.namespace).get("autoTopicCreationOverride") or {}
        kind = override.get("topicType") or self.settings.allowAutoTopicCreationType
        partitions: int = override.get("defaultNumPartitions") or self.settings.defaultNumPartitions
        return partitions if kind == "partitioned" else 0

    async def create_partitioned(self, name: TopicName, partitions: int, properties: Any = None) -> None:
        """Make a partitioned topic with its partitions, or the partitions it lacks."""
        self.namespaces.create_partitioned(name, partitions, properties or {})
        for number in range(partitions):
            partition = name._replace(local=f"{name.local}-partition-{number}")
            if name.is_persistent and partition.full not in self.namespaces.topics:
                await self.create_topic(partition)
