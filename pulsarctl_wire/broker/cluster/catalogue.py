"""The topics of a cluster: which exist, and which may be created."""

from typing import Any

from pulsarctl_wire.broker.basics.names import TopicName
from pulsarctl_wire.broker.basics.refusal import Refused
from pulsarctl_wire.broker.basics.settings import Settings
from pulsarctl_wire.broker.clients.watchers import Watchers
from pulsarctl_wire.broker.storage.journal import Journal
from pulsarctl_wire.broker.tenancy.namespaces import Namespaces
from pulsarctl_wire.broker.topics.stored_topic import make_row


class Catalogue:
    """The stored topics of a cluster, loaded or not."""

    def __init__(
        self, settings: Settings, journal: Journal, namespaces: Namespaces, watchers: Watchers
    ) -> None:
        self._settings = settings
        self._journal = journal
        self._namespaces = namespaces
        self._watchers = watchers

    def list_partitions(self, name: TopicName) -> list[TopicName]:
        """Return the partitions of a topic; only the topic itself if it is not partitioned."""
        number = self._namespaces.count_partitions(name)
        return [
            name._replace(local=f"{name.local}-partition-{partition}") for partition in range(number)
        ] or [name]

    def can_create(self, name: TopicName) -> bool:
        """Return whether a topic may be created because a client uses it."""
        if name.is_system:
            return True
        if name.partition >= 0 and (partitions := self._namespaces.count_partitions(name.parent)):
            return name.partition < partitions
        override = self._namespaces.get_policies(name.namespace).get("autoTopicCreationOverride")
        if override is not None:
            return bool(override["allowAutoTopicCreation"])
        return self._settings.allowAutoTopicCreation

    def check_topic_limit(self, name: TopicName, number: int = 1) -> None:
        """Raise Refused if the namespace of a topic cannot have `number` more persistent topics."""
        limit = self._namespaces.get_policies(name.namespace).get("max_topics_per_namespace")
        limit = self._settings.maxTopicsPerNamespace if limit is None else limit
        if limit > 0 and not name.is_system:
            topics = [topic for topic in self._namespaces.list_stored(name.namespace) if not topic.is_system]
            if len(topics) + number > limit:
                raise Refused("NotAllowedError", "Exceed maximum number of topics in namespace.")

    async def create_topic(self, name: TopicName, properties: dict[str, Any] | None = None) -> None:
        """Create a persistent topic."""
        # counters begin at 0, numbers of logs at 1
        row = make_row(self._journal.next_number("log") + 1)
        self._journal.put("topics", name.full, {**row, "properties": properties or {}})
        await self._journal.sync()
        self._watchers.on_change(name, is_created=True)

    def default_partitions(self, name: TopicName) -> int:
        """Return how many partitions a topic gets when a client's use creates it; 0: not partitioned."""
        override = self._namespaces.get_policies(name.namespace).get("autoTopicCreationOverride") or {}
        kind = override.get("topicType") or self._settings.allowAutoTopicCreationType
        partitions: int = override.get("defaultNumPartitions") or self._settings.defaultNumPartitions
        return partitions if kind == "partitioned" else 0

    async def create_partitioned(self, name: TopicName, partitions: int, properties: Any = None) -> None:
        """Create a partitioned topic, or change its number of partitions, which is `partitions` afterwards.

        Creates the partitions that are missing, but not those of a non-persistent topic: they are not stored.
        """
        self._namespaces.create_partitioned(name, partitions, properties or {})
        for number in range(partitions):
            partition = name._replace(local=f"{name.local}-partition-{number}")
            if name.is_persistent and partition.full not in self._namespaces.topics:
                await self.create_topic(partition)
