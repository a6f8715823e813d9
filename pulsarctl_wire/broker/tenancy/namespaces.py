"""Tenants, namespaces and partitioned topics, as rows of the journal.

tenants       name             -> {adminRoles, allowedClusters}
namespaces    tenant/namespace -> its policies, by their names in the admin API
partitioned   full topic name  -> {partitions, properties, policies, globalPolicies}
topics        full topic name  -> see topics/stored_topic.py
"""

from collections.abc import Iterable
from typing import Any, Final

from pulsarctl_wire.broker.basics.names import TopicName, check_namespace, parse_topic
from pulsarctl_wire.broker.basics.refusal import Refused
from pulsarctl_wire.broker.basics.settings import Settings
from pulsarctl_wire.broker.storage.journal import Journal, Row
from pulsarctl_wire.broker.tenancy.policy_names import resolve_policy, write_topic_policy

_INITIAL_TENANTS: Final = {"public": "public/default", "pulsar": "pulsar/system"}
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
            for tenant, namespace in _INITIAL_TENANTS.items():
                self.create_tenant(tenant, self._initial_tenant)
                self.create(namespace, {})

    # -- tenants and namespaces

    @property
    def _initial_tenant(self) -> Row:
        """The row of a tenant that the broker itself creates."""
        roles = list(self._settings.superUserRoles)
        return {"adminRoles": roles, "allowedClusters": [self._settings.clusterName]}

    @property
    def can_recreate_initial(self) -> bool:
        """Whether clients can create the cluster, tenants and namespaces that exist from the start.

        With authorization, and without credentials for its own client, Pulsar fails to create them at its
        start, so scripts create them later, and grant the rights that are needed.
        """
        settings = self._settings
        authorizes = settings.authenticationEnabled and settings.authorizationEnabled
        return authorizes and not settings.brokerClientAuthenticationPlugin

    def can_create_tenant(self, name: str) -> bool:
        """Return whether clients can create a tenant: it is missing, or as it was created at the start."""
        row = self.tenants.get(name)
        is_initial = name in _INITIAL_TENANTS and self.can_recreate_initial
        return row is None or (is_initial and row == self._initial_tenant)

    def create_tenant(self, name: str, row: Row) -> None:
        """Create a tenant, or change it."""
        self._journal.put("tenants", name, row)

    def exists(self, namespace: str) -> bool:
        """Return whether a namespace exists. Those with a cluster in their names need not be created."""
        return namespace in self.namespaces or namespace.count("/") == 2

    def can_create(self, namespace: str) -> bool:
        """Return whether clients can create a namespace: it is missing, or as created at the start."""
        row = self.namespaces.get(namespace)
        is_initial = namespace in _INITIAL_TENANTS.values() and self.can_recreate_initial
        return row is None or (is_initial and row == self._initial_policies)

    @property
    def _initial_policies(self) -> Row:
        return {"bundles": self._settings.defaultNumberOfNamespaceBundles}

    def create(self, namespace: str, policies: Row) -> None:
        """Create a namespace. Raises InvalidName."""
        self._journal.put("namespaces", check_namespace(namespace), {**self._initial_policies, **policies})

    def get_policies(self, namespace: str) -> Row:
        """Return the policies of a namespace; empty if there is none."""
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

    def get_policy(self, name: TopicName, policy: str) -> Any:
        """Return the policy that counts for a topic, by its name in namespaces; None if it is not set."""
        own = self.get_topic_policies(name)
        return resolve_policy(self.get_policies(name.namespace), own, policy, self._settings.clusterName)

    # -- policies of topics

    def _find_row(self, name: TopicName) -> tuple[str, str, Row] | None:
        """Return the table, key and row with the policies of a topic; None if there is none."""
        for table, key in (("partitioned", name.parent.full), ("topics", name.full)):
            row = self._journal.table(table).get(key)
            if row is not None:
                return table, key, row
        return None

    def get_topic_policies(self, name: TopicName, *, is_global: bool | None = None) -> Row:
        """Return a topic's global policies (`is_global`), its local ones (False), or both (None).

        Global policies are for all clusters; a local policy overrides the global one.
        """
        location = self._find_row(name)
        if location is None:
            return {}
        row = location[2]
        local: Row = row.get("policies", {})
        global_policies: Row = row.get("globalPolicies", {})
        if is_global is None:
            return {**global_policies, **local} if global_policies else local
        return global_policies if is_global else local

    def set_topic_policy(
        self, name: TopicName, policy: str, value: object, *, is_global: bool = False
    ) -> None:
        """Set a policy of a topic, by its name in namespaces; None removes it."""
        location = self._find_row(name)
        if location is not None:
            table, key, row = location
            write_topic_policy(
                row.setdefault("globalPolicies" if is_global else "policies", {}), policy, value
            )
            self._journal.put(table, key, row)

    # -- topics

    def count_partitions(self, name: TopicName) -> int:
        """Return the number of partitions of a topic; 0 if it is not partitioned."""
        row = self.partitioned.get(name.full)
        return 0 if row is None else row["partitions"]

    def check_partition(self, name: TopicName) -> None:
        """Raise Refused if a topic would be a partition beyond those of its partitioned topic."""
        partitions = self.count_partitions(name.parent) if name.partition >= 0 else 0
        if partitions and name.partition >= partitions:
            raise Refused("TopicNotFound", f"Topic not found {name.full}")

    def create_partitioned(self, name: TopicName, partitions: int, properties: Row) -> None:
        """Create a partitioned topic, or add partitions."""
        former = self.partitioned.get(name.full, {})
        self._journal.put(
            "partitioned", name.full, {**former, "partitions": partitions, "properties": properties}
        )

    def delete_partitioned(self, name: TopicName) -> None:
        """Delete the row of a partitioned topic."""
        self._journal.delete("partitioned", name.full)

    def list_partitioned(self, namespace: str) -> list[TopicName]:
        """Return the partitioned topics of a namespace, in the order of their names."""
        names = (parse_topic(text) for text in self.partitioned)
        return sorted(name for name in names if name.namespace == namespace)

    def list_stored(self, namespace: str) -> Iterable[TopicName]:
        """Return the persistent topics of a namespace, in the order of their names."""
        prefix = f"persistent://{namespace}/"
        return (parse_topic(text) for text in sorted(self.topics) if text.startswith(prefix))
