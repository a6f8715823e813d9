"""Tenants, namespaces and partitioned topics: what exists, as rows of the journal.

tenants       name             -> {adminRoles, allowedClusters}
namespaces    tenant/namespace -> its policies, by their names in the admin API
partitioned   full topic name  -> {partitions, properties}
topics        full topic name  -> see persistent.py
"""

from collections.abc import Iterable

from pulsarctl_wire.broker.journal import Journal, Row
from pulsarctl_wire.broker.names import TopicName, check_namespace, parse_topic
from pulsarctl_wire.broker.refusal import Refused
from pulsarctl_wire.broker.settings import Settings


class Namespaces:
    """The rows about tenants, namespaces and topics."""

    def __init__(self, journal: Journal, settings: Settings) -> None:
        self._journal = journal
        self._settings = settings
        self.tenants = journal.table("tenants")
        self.namespaces = journal.table("namespaces")
        self.partitioned = journal.table("partitioned")
        self.topics = journal.table("topics")
        if not self.tenants:
            for tenant, namespace in (("public", "default"), ("pulsar", "system")):
                self.create_tenant(tenant, {"adminRoles": [], "allowedClusters": [settings.clusterName]})
                self.create(f"{tenant}/{namespace}", {})

    # -- tenants and namespaces

    def create_tenant(self, name: str, row: Row) -> None:
        """Create a tenant, or change it."""
        self._journal.put("tenants", name, row)

    def exists(self, namespace: str) -> bool:
        """Whether there is such a namespace. Old names with this cluster in them need not be created."""
        parts = namespace.split("/")
        old = len(parts) == 3 and parts[1] == self._settings.clusterName and parts[0] in self.tenants
        return namespace in self.namespaces or old

    def create(self, namespace: str, policies: Row) -> None:
        """Create a namespace. Raises InvalidName."""
        bundles = self._settings.defaultNumberOfNamespaceBundles
        self._journal.put("namespaces", check_namespace(namespace), {"bundles": bundles, **policies})

    def policies(self, namespace: str) -> Row:
        """The policies of a namespace; empty if there is none."""
        return self.namespaces.get(namespace, {})

    def set_policy(self, namespace: str, name: str, value: object) -> None:
        """Set a policy of a namespace; None removes it."""
        row = self.namespaces[namespace]
        if value is None:
            row.pop(name, None)
        else:
            row[name] = value
        self._journal.put("namespaces", namespace, row)

    # -- topics

    def partitions(self, name: TopicName) -> int:
        """The number of partitions of a topic; 0 if it is not partitioned."""
        row = self.partitioned.get(name.full)
        return 0 if row is None else row["partitions"]

    def check_partition(self, name: TopicName) -> None:
        """Raises Refused if the topic would be a partition beyond those of its partitioned topic."""
        partitions = self.partitions(name.parent) if name.partition >= 0 else 0
        if partitions and name.partition >= partitions:
            raise Refused("TopicNotFound", f"Topic not found {name.full}")

    def create_partitioned(self, name: TopicName, partitions: int, properties: Row) -> None:
        """Create a partitioned topic, or give it more partitions."""
        self._journal.put("partitioned", name.full, {"partitions": partitions, "properties": properties})

    def stored_topics(self, namespace: str) -> Iterable[TopicName]:
        """The persistent topics of a namespace, in the order of their names."""
        prefix = f"persistent://{namespace}/"
        return (parse_topic(each) for each in sorted(self.topics) if each.startswith(prefix))
