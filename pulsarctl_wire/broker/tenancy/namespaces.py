"""Tenants, namespaces and partitioned topics: what exists, as rows of the journal.

tenants       name             -> {adminRoles, allowedClusters}
namespaces    tenant/namespace -> its policies, by their names in the admin API
partitioned   full topic name  -> {partitions, properties, policies, globalPolicies}
topics        full topic name  -> see persistent.py
"""

from collections.abc import Iterable
from typing import Any, Final

from pulsarctl_wire.broker.basics.names import TopicName, check_namespace, parse_topic
from pulsarctl_wire.broker.basics.refusal import Refused
from pulsarctl_wire.broker.basics.settings import Settings
from pulsarctl_wire.broker.storage.journal import Journal, Row
from pulsarctl_wire.broker.tenancy.policy_names import effective, set_of_topic

_FIRST: Final = {"public": "public/default", "pulsar": "pulsar/system"}
"""The tenants that exist from the start, with the namespace of each."""


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
            for tenant, namespace in _FIRST.items():
                self.create_tenant(tenant, self._first_tenant)
                self.create(namespace, {})

    # -- tenants and namespaces

    @property
    def _first_tenant(self) -> Row:
        """A tenant that the broker itself creates."""
        roles = list(self._settings.superUserRoles)
        return {"adminRoles": roles, "allowedClusters": [self._settings.clusterName]}

    @property
    def first_can_be_created(self) -> bool:
        """Whether clients can create the cluster, tenants and namespaces that are here from the start.

        With authorization, and without credentials for its own client, Pulsar fails to create them at its
        start, and scripts do, with the rights they want.
        """
        settings = self._settings
        authorizes = settings.authenticationEnabled and settings.authorizationEnabled
        return authorizes and not settings.brokerClientAuthenticationPlugin

    def can_create_tenant(self, name: str) -> bool:
        """Whether there is no such tenant, or only that from the start, if clients can create it."""
        row = self.tenants.get(name)
        first = name in _FIRST and self.first_can_be_created
        return row is None or (first and row == self._first_tenant)

    def create_tenant(self, name: str, row: Row) -> None:
        """Create a tenant, or change it."""
        self._journal.put("tenants", name, row)

    def exists(self, namespace: str) -> bool:
        """Whether there is such a namespace. Those with a cluster in their names need not be created."""
        return namespace in self.namespaces or namespace.count("/") == 2

    def can_create(self, namespace: str) -> bool:
        """Whether there is no such namespace, or only that from the start, if clients can create it."""
        row = self.namespaces.get(namespace)
        first = namespace in _FIRST.values() and self.first_can_be_created
        return row is None or (first and row == self._first_policies)

    @property
    def _first_policies(self) -> Row:
        return {"bundles": self._settings.defaultNumberOfNamespaceBundles}

    def create(self, namespace: str, policies: Row) -> None:
        """Create a namespace. Raises InvalidName."""
        self._journal.put("namespaces", check_namespace(namespace), {**self._first_policies, **policies})

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

    def delete(self, namespace: str) -> None:
        """Delete a namespace that has no topics."""
        self._journal.delete("namespaces", namespace)

    def policy(self, name: TopicName, policy: str) -> Any:
        """The policy that counts for a topic, by its name in namespaces; None if it is not set."""
        own = self.topic_policies(name)
        return effective(self.policies(name.namespace), own, policy, self._settings.clusterName)

    # -- policies of topics

    def _row_of(self, name: TopicName) -> tuple[str, str, Row] | None:
        """The table, key and row with the policies of a topic."""
        for table, key in (("partitioned", name.parent.full), ("topics", name.full)):
            row = self._journal.table(table).get(key)
            if row is not None:
                return table, key, row
        return None

    def topic_policies(self, name: TopicName, *, everywhere: bool | None = None) -> Row:
        """The policies of a topic; `everywhere` are those of all clusters, if False only the others."""
        found = self._row_of(name)
        if found is None:
            return {}
        row = found[2]
        own: Row = row.get("policies", {})
        of_all: Row = row.get("globalPolicies", {})
        if everywhere is None:
            return {**of_all, **own} if of_all else own
        return of_all if everywhere else own

    def set_topic_policy(
        self, name: TopicName, policy: str, value: object, *, everywhere: bool = False
    ) -> None:
        """Set a policy of a topic, by its name in namespaces; None removes it."""
        found = self._row_of(name)
        if found is not None:
            table, key, row = found
            set_of_topic(row.setdefault("globalPolicies" if everywhere else "policies", {}), policy, value)
            self._journal.put(table, key, row)

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
        old = self.partitioned.get(name.full, {})
        self._journal.put(
            "partitioned", name.full, {**old, "partitions": partitions, "properties": properties}
        )

    def delete_partitioned(self, name: TopicName) -> None:
        """A topic is partitioned no more."""
        self._journal.delete("partitioned", name.full)

    def partitioned_topics(self, namespace: str) -> list[TopicName]:
        """The partitioned topics of a namespace, in the order of their names."""
        names = (parse_topic(each) for each in self.partitioned)
        return sorted(name for name in names if name.namespace == namespace)

    def stored_topics(self, namespace: str) -> Iterable[TopicName]:
        """The persistent topics of a namespace, in the order of their names."""
        prefix = f"persistent://{namespace}/"
        return (parse_topic(each) for each in sorted(self.topics) if each.startswith(prefix))
