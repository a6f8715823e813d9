"""One broker of a cluster: the topics that it has loaded, and its connections."""

from typing import TYPE_CHECKING, Any

from pulsarctl_wire.broker.basics.names import TopicName
from pulsarctl_wire.broker.basics.refusal import Refused, thrown
from pulsarctl_wire.broker.basics.scheduler import Completion
from pulsarctl_wire.broker.clients.connection import Connection
from pulsarctl_wire.broker.cluster.counters import Rates
from pulsarctl_wire.broker.storage.log import Cache
from pulsarctl_wire.broker.tenancy.policies import Limiter
from pulsarctl_wire.broker.topics.persistent import PersistentTopic, new_row
from pulsarctl_wire.broker.topics.volatile import VolatileTopic

if TYPE_CHECKING:
    from pulsarctl_wire.broker.cluster.cluster import Cluster

_CACHE_BYTES = 16 * 1024 * 1024

AnyTopic = PersistentTopic | VolatileTopic


class Broker:
    """A broker. Its URLs are set once its ports are known; those of TLS ports may stay empty."""

    def __init__(self, cluster: "Cluster", number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.scheduler = cluster.scheduler
        self.settings = cluster.settings
        self.journal = cluster.journal
        self.cache = Cache(_CACHE_BYTES)
        self.service_url = self.service_url_tls = self.http_url = self.https_url = ""
        self.listeners: dict[str, tuple[str, str]] = {}
        """Name of a listener -> its service URLs without and with TLS (advertisedListeners)."""
        self.topics: dict[str, AnyTopic] = {}
        self.connections: dict[int, Connection] = {}
        self._opening: dict[str, Completion[AnyTopic]] = {}
        self._names = 0
        self._run = self.journal.next_number("run")
        self.rates = Rates(self)
        self.dispatch_limiter = Limiter(self.scheduler)
        self.alive = True
        interceptors = ",".join(self.settings.brokerEntryMetadataInterceptors)
        self.adds_timestamp = "AppendBrokerTimestamp" in interceptors
        self.adds_index = "AppendIndex" in interceptors
        self.adds_metadata = self.adds_timestamp or self.adds_index
        self.publish_limiter = Limiter(self.scheduler)
        self._lookups = (0, 0)  # when, and how many
        self._most_buffered = self.settings.maxMessagePublishBufferSizeInMB << 20
        self._buffered = 0
        self.is_full = False
        """Whether so much waits to be stored that connections must not be read from for now."""

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
        if not stored and not (create and self.cluster.may_create(name)):
            raise Refused("TopicNotFound", f"Topic not found {name.full}")
        topic: AnyTopic
        if not name.is_persistent:
            topic = VolatileTopic(self, name)
        else:
            if not stored:
                self.cluster.check_room(name)
                await self.cluster.create_topic(name)
            await self.journal.synced()  # what another broker may have had to store last
            self._check_owner(name)
            if name.full not in self.cluster.namespaces.topics:
                raise Refused("ServiceNotReady", f"Topic {name.full} is being deleted")
            topic = PersistentTopic(self, name)
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


__all__ = ["Broker", "new_row"]
