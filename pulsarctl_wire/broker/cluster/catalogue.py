"""Which topics there are, and which may be made."""

from typing import Any

from pulsarctl_wire.broker.basics.names import TopicName
from pulsarctl_wire.broker.basics.refusal import Refused
from pulsarctl_wire.broker.basics.settings import Settings
from pulsarctl_wire.broker.clients.watchers import Watchers
from pulsarctl_wire.broker.storage.journal import Journal
from pulsarctl_wire.broker.tenancy.namespaces import Namespaces
from pulsarctl_wire.broker.topics.stored import new_row


class Catalogue:
    """The stored topics of a cluster, loaded or not."""

    def __init__(
        self, settings: Settings, journal: Journal, namespaces: Namespaces, watchers: Watchers
    ) -> None:
        self._settings = settings
        self._journal = journal
        self._namespaces = namespaces
        self._watchers = watchers

    def parts(self, name: TopicName) -> list[TopicName]:
        """The partitions of a topic; only itself if it is not partitioned."""
        number = self._namespaces.partitions(name)
        return [name._replace(local=f"{name.local}-partition-{each}") for each in range(number)] or [name]

    def may_create(self, name: TopicName) -> bool:
        """Whether a topic may be made because a client uses it."""
        if name.is_system:
            return True
        if name.partition >= 0 and (partitions := self._namespaces.partitions(name.parent)):
            return name.partition < partitions
        override = self._namespaces.policies(name.namespace).get("autoTopicCreationOverride")
        if override is not None:
            return bool(override["allowAutoTopicCreation"])
        return self._settings.allowAutoTopicCreation

    def check_room(self, name: TopicName, number: int = 1) -> None:
        """Raises Refused if a namespace may not have so many persistent topics more."""
        most = self._namespaces.policies(name.namespace).get("max_topics_per_namespace")
        most = self._settings.maxTopicsPerNamespace if most is None else most
        if most > 0 and not name.is_system:
            there = [each for each in self._namespaces.stored_topics(name.namespace) if not each.is_system]
            if len(there) + number > most:
                raise Refused("NotAllowedError", "Exceed maximum number of topics in namespace.")

    async def create_topic(self, name: TopicName, properties: dict[str, Any] | None = None) -> None:
        """Make a persistent topic."""
        row = new_row(self._journal.next_number("log") + 1)
        self._journal.put("topics", name.full, {**row, "properties": properties or {}})
        await self._journal.synced()
        self._watchers.changed(name, created=True)

    def default_partitions(self, name: TopicName) -> int:
        """The number of partitions of topics made because a client uses them; 0: not partitioned."""
        override = self._namespaces.policies(name.namespace).get("autoTopicCreationOverride") or {}
        kind = override.get("topicType") or self._settings.allowAutoTopicCreationType
        partitions: int = override.get("defaultNumPartitions") or self._settings.defaultNumPartitions
        return partitions if kind == "partitioned" else 0

    async def create_partitioned(self, name: TopicName, partitions: int, properties: Any = None) -> None:
        """Make a partitioned topic with its partitions, or the partitions it lacks."""
        self._namespaces.create_partitioned(name, partitions, properties or {})
        for number in range(partitions):
            partition = name._replace(local=f"{name.local}-partition-{number}")
            if name.is_persistent and partition.full not in self._namespaces.topics:
                await self.create_topic(partition)
