"""Namespaces in the admin API: existence, permissions, properties, topics."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, Final

from pulsarctl_wire.broker.admin.base import NAMESPACE, TOPIC, Answer, Problem, Request, Route
from pulsarctl_wire.broker.admin.policies import OF_NAMESPACE, apply_changes
from pulsarctl_wire.broker.admin.quotas import QUOTA_TYPES, read_quota
from pulsarctl_wire.broker.admin.shapes import RATE, read_scalar
from pulsarctl_wire.broker.basics.names import TopicName, is_entity
from pulsarctl_wire.broker.cluster.cluster import Cluster
from pulsarctl_wire.broker.tenancy.policy_names import PER_CLUSTER
from pulsarctl_wire.broker.topics.persistent import PersistentTopic
from pulsarctl_wire.broker.topics.subscription import Subscription

# -- the policies in the body that creates a namespace, in the shapes of policies that are set later

Reader = Callable[[Any], Any]
"""Takes a JSON value, and returns its meaning. Raises Problem."""


def _object(body: Any) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise Problem(400, "An object is expected")
    return body


def _texts(body: Any) -> list[str]:
    if not isinstance(body, list) or not all(isinstance(text, str) for text in body):
        raise Problem(400, "A list of strings is expected")
    return body


def _map_of(read: Reader) -> Reader:
    """Return a reader of an object with any names."""
    return lambda body: {name: read(value) for name, value in _object(body).items()}


def _fields_of(readers: Mapping[str, Reader]) -> Reader:
    """Return a reader of an object with these names; others are ignored."""
    return lambda body: {
        name: read(body[name]) for name, read in readers.items() if _object(body).get(name) is not None
    }


_RIGHTS: Final[dict[str, Reader]] = {
    "namespace_auth": _map_of(_texts),
    "destination_auth": _map_of(_map_of(_texts)),
    "subscription_auth_roles": _map_of(_texts),
}

_read_policies: Final = _fields_of(
    {
        **{policy.name: policy.body.read for policy in OF_NAMESPACE if policy.name not in PER_CLUSTER},
        **{policy.name: _map_of(policy.body.read) for policy in OF_NAMESPACE if policy.name in PER_CLUSTER},
        "bundles": _fields_of({"numBundles": lambda number: read_scalar(number, int)}),
        "replication_clusters": _texts,
        "clusterDispatchRate": _map_of(RATE.read),
        "backlog_quota_map": _fields_of(dict.fromkeys(QUOTA_TYPES, read_quota)),
        "auth_policies": _fields_of(_RIGHTS),
        "properties": _map_of(str),
    }
)
"""Reads the policies of a namespace, by their names; other names are ignored. Raises Problem."""

# -- defaults

MAX_BUNDLES: Final = 10_000
"""Maximum bundles of a namespace: answers list the names of all."""

_ACTIONS: Final = ("produce", "consume", "functions", "sources", "sinks", "packages")
_UNSET: Final[dict[str, Any]] = {
    "allowed_clusters": [],
    "backlog_quota_map": {},
    **{name: {} for name in PER_CLUSTER},
    "latency_stats_sample_rate": {},
    "deleted": False,
    "encryption_required": False,
    "subscription_auth_mode": "None",
    "offload_threshold": -1,
    "offload_threshold_in_seconds": -1,
    "schema_compatibility_strategy": "UNDEFINED",
    "is_allow_auto_update_schema": True,
    "schema_validation_enforced": False,
    "subscription_types_enabled": [],
    "properties": {},
    "migrated": False,
}
"""The values of unset policies in a namespace's policies."""

_NO_GRANTS: Final[dict[str, Any]] = {
    "namespace_auth": {},
    "destination_auth": {},
    "subscription_auth_roles": {},
}


# -- namespaces and their topics


def describe_bundles(cluster: Cluster, namespace: str) -> dict[str, Any]:
    """Return the bundles of a namespace."""
    number = cluster.count_bundles(namespace)
    ranges = [cluster.bundle_name(namespace, index).split("_") for index in range(number)]
    return {"boundaries": [*(low for low, _ in ranges), ranges[-1][1]], "numBundles": number}


def find_topics(cluster: Cluster, namespace: str, domain: str = "") -> list[TopicName]:
    """Return the topics of a namespace (in `domain`, if given): single topics and partitions.

    Non-persistent ones are those that are loaded.
    """
    names = set(cluster.namespaces.list_stored(namespace)) if domain != "non-persistent" else set()
    if domain != "persistent":
        loaded = [topic.name for broker in cluster.brokers for topic in broker.topics.values()]
        names.update(name for name in loaded if name.namespace == namespace and not name.is_persistent)
    return sorted(names)


def list_names(request: Request, names: list[TopicName]) -> Answer:
    """Answer with the names of topics, in the query's bundle, if any.

    System topics are left out unless includeSystemTopic=true.
    """
    bundle = request.query.get("bundle", "")
    visible = [name for name in names if request.get_flag("includeSystemTopic") or not name.is_system]
    return Answer(200, [name.full for name in visible if bundle in ("", request.cluster.bundle_of(name))])


async def list_namespaces(request: Request) -> Answer:
    """Return the namespaces of a tenant."""
    if request.parts["tenant"] not in request.namespaces.tenants:
        raise Problem(404, "Tenant not found")
    prefix = request.parts["tenant"] + "/"
    return Answer(200, sorted(name for name in request.namespaces.namespaces if name.startswith(prefix)))


async def create(request: Request) -> Answer:
    """Create a namespace."""
    namespaces, tenant = request.namespaces, request.parts["tenant"]
    name = f"{tenant}/{request.parts['namespace']}"
    if not is_entity(request.parts["namespace"]):
        raise Problem(412, "Namespace name is not valid")
    if tenant not in namespaces.tenants:
        raise Problem(404, "Tenant does not exist")
    values = _read_policies(request.read_fields() if request.body is not None else {})
    bundles = values.pop("bundles", {}).get("numBundles", 0)
    if bundles > MAX_BUNDLES:
        raise Problem(400, f"A namespace may have at most {MAX_BUNDLES:,} bundles here")
    clusters = values.pop("replication_clusters", [])
    clusters_of_tenant = set(namespaces.tenants[tenant]["allowedClusters"]) | {
        request.cluster.settings.clusterName
    }
    for cluster in clusters:
        if cluster not in clusters_of_tenant:
            text = f"Cluster [{cluster}] is not in the list of allowed clusters list for tenant [{tenant}]"
            raise Problem(403, text)
    if not namespaces.can_create(name):
        raise Problem(409, "Namespace already exists")
    limit = request.cluster.settings.maxNamespacesPerTenant
    if limit > 0 and sum(key.startswith(f"{tenant}/") for key in namespaces.namespaces) >= limit:
        raise Problem(412, f"Exceed the maximum number of namespace in tenant :{tenant}")
    policies = {key: value for key, value in values.items() if value != _UNSET.get(key)}
    namespaces.create(name, policies | ({"bundles": bundles} if bundles > 0 else {}))
    apply_changes(request, name)  # an initial namespace may have topics already
    return await request.finish()


async def get(request: Request) -> Answer:
    """Return the policies of a namespace."""
    name = request.require_namespace("Namespace does not exist")
    policies = {**_UNSET, **request.namespaces.get_policies(name)}
    cluster = request.cluster.settings.clusterName
    policies["auth_policies"] = _NO_GRANTS | policies.get("auth_policies", {})
    policies["bundles"] = describe_bundles(request.cluster, name)
    policies |= {"replication_clusters": [cluster], "clusterThatCanDeleteNamespace": cluster}
    return Answer(200, policies)


async def delete(request: Request) -> Answer:
    """Delete an empty namespace; with force=true, with all its topics."""
    name = f"{request.parts['tenant']}/{request.parts['namespace']}"
    if not request.namespaces.exists(name):
        raise Problem(404, f"Namespace {name} does not exist.")
    is_forced = request.get_flag("force")
    if is_forced and not request.cluster.settings.forceDeleteNamespaceAllowed:
        raise Problem(405, "Broker doesn't allow forced deletion of namespaces")
    topics = find_topics(request.cluster, name)
    parents = request.namespaces.list_partitioned(name)
    if not is_forced and any(not topic.is_system for topic in [*topics, *parents]):
        raise Problem(409, "Cannot delete non empty namespace")
    await remove(request, name)
    return await request.finish()


async def remove(request: Request, name: str) -> None:
    """Delete a namespace with all its topics."""
    for topic in request.namespaces.list_partitioned(name):
        await request.cluster.delete_partitioned(topic)
    for topic in find_topics(request.cluster, name):
        if request.cluster.exists(topic):
            await request.cluster.delete_topic(topic)
    await request.cluster.unload(name)
    request.namespaces.delete(name)


async def delete_bundle(request: Request) -> Answer:
    """Raise Problem: a bundle is deleted only with its namespace."""
    _bundle(request)
    raise Problem(501, "This broker deletes no single bundles")


async def list_topics(request: Request) -> Answer:
    """Return the topics of a namespace, of both kinds or one."""
    name = request.require_namespace("Namespace does not exist")
    mode = request.query.get("mode", "PERSISTENT").upper()
    domain = {"ALL": "", "NON_PERSISTENT": "non-persistent"}.get(mode, "persistent")
    return list_names(request, find_topics(request.cluster, name, domain))


async def list_topics_of_domain(request: Request) -> Answer:
    """Return the persistent or non-persistent topics of a namespace."""
    name = request.require_namespace("Namespace does not exist")
    return list_names(request, find_topics(request.cluster, name, request.parts["domain"]))


async def list_partitioned(request: Request) -> Answer:
    """Return the partitioned topics of a namespace."""
    name = request.require_namespace("Namespace does not exist")
    names = request.namespaces.list_partitioned(name)
    return list_names(request, [name for name in names if name.domain == request.parts["domain"]])


async def get_bundles(request: Request) -> Answer:
    """Return the bundles of a namespace."""
    return Answer(
        200, describe_bundles(request.cluster, request.require_namespace("Namespace does not exist"))
    )


def _bundle(request: Request) -> str:
    name = request.require_namespace("Namespace does not exist")
    bundle, cluster = request.parts["bundle"], request.cluster
    if bundle not in {cluster.bundle_name(name, index) for index in range(cluster.count_bundles(name))}:
        raise Problem(412, f"Invalid bundle range: {bundle}")
    return bundle


async def unload(request: Request) -> Answer:
    """Close all topics of a namespace; clients connect again."""
    await request.cluster.unload(request.require_namespace("Namespace does not exist"))
    return Answer()


async def unload_bundle(request: Request) -> Answer:
    """Close the topics of a bundle; clients connect again."""
    await request.cluster.unload(request.require_namespace("Namespace does not exist"), _bundle(request))
    return Answer()


async def get_replication_clusters(request: Request) -> Answer:
    """Return the clusters that a namespace is replicated to: this one."""
    request.require_namespace("Namespace does not exist")
    return Answer(200, [request.cluster.settings.clusterName])


async def get_allowed_clusters(request: Request) -> Answer:
    """Return the allowed clusters of a namespace: none of its own, those of its tenant apply."""
    request.require_namespace("Namespace does not exist")
    return Answer(200, [])


# -- permissions


def _grants(request: Request) -> dict[str, Any]:
    """Return a copy of the grants in the namespace of the path."""
    policies = request.namespaces.get_policies(request.require_namespace("Namespace does not exist"))
    return deepcopy({**_NO_GRANTS, **policies.get("auth_policies", {})})


async def _save_grants(request: Request, grants: dict[str, Any]) -> Answer:
    request.namespaces.set_policy(request.require_namespace(), "auth_policies", grants)
    apply_changes(request, request.require_namespace())
    return await request.finish()


def _actions(request: Request) -> list[str]:
    if not isinstance(request.body, list) or any(action not in _ACTIONS for action in request.body):
        raise Problem(400, f"Actions are {', '.join(_ACTIONS)}")
    return sorted(set(request.body), key=_ACTIONS.index)


async def get_permissions(request: Request) -> Answer:
    """Return the actions that roles may do in a namespace."""
    return Answer(200, _grants(request)["namespace_auth"])


async def grant(request: Request) -> Answer:
    """Grant a role some actions in a namespace."""
    grants = _grants(request)
    grants["namespace_auth"][request.parts["role"]] = _actions(request)
    return await _save_grants(request, grants)


async def revoke(request: Request) -> Answer:
    """Revoke all actions of a role in a namespace."""
    grants = _grants(request)
    grants["namespace_auth"].pop(request.parts["role"], None)
    return await _save_grants(request, grants)


async def get_topic_permissions(request: Request) -> Answer:
    """Return the actions that roles may do with a topic, including those by its namespace."""
    grants = _grants(request)
    merged: dict[str, list[str]] = dict(grants["namespace_auth"])
    for role, actions in grants["destination_auth"].get(request.topic_name.full, {}).items():
        merged[role] = sorted({*merged.get(role, ()), *actions}, key=_ACTIONS.index)
    return Answer(200, merged)


async def grant_topic(request: Request) -> Answer:
    """Grant a role some actions with a topic."""
    name, grants = request.topic_name.full, _grants(request)
    grants["destination_auth"].setdefault(name, {})[request.parts["role"]] = _actions(request)
    return await _save_grants(request, grants)


async def revoke_topic(request: Request) -> Answer:
    """Revoke all actions of a role with a topic."""
    name, grants = request.topic_name.full, _grants(request)
    of_topic = grants["destination_auth"].pop(name, {})
    of_topic.pop(request.parts["role"], None)
    if of_topic:
        grants["destination_auth"][name] = of_topic
    return await _save_grants(request, grants)


async def get_subscription_permissions(request: Request) -> Answer:
    """Return the roles that may use subscriptions of a namespace."""
    return Answer(200, _grants(request)["subscription_auth_roles"])


async def grant_subscription(request: Request) -> Answer:
    """Limit the subscriptions with this name to these roles, and to those granted before."""
    grants, name = _grants(request), request.parts["subscription"]
    if not isinstance(request.body, list) or not all(isinstance(role, str) for role in request.body):
        raise Problem(400, "A list of roles is expected")
    roles = {*grants["subscription_auth_roles"].get(name, ()), *request.body}
    grants["subscription_auth_roles"][name] = sorted(roles)
    return await _save_grants(request, grants)


async def revoke_subscription(request: Request) -> Answer:
    """Remove a role from those that may use the subscriptions with this name."""
    grants, name = _grants(request), request.parts["subscription"]
    roles = grants["subscription_auth_roles"].get(name, ())
    grants["subscription_auth_roles"][name] = [role for role in roles if role != request.parts["role"]]
    return await _save_grants(request, grants)


# -- properties


def _properties(request: Request) -> dict[str, str]:
    policies = request.namespaces.get_policies(request.require_namespace("Namespace does not exist"))
    properties: dict[str, str] = policies.get("properties", {})
    return properties


async def get_properties(request: Request) -> Answer:
    """Return the properties of a namespace."""
    return Answer(200, _properties(request))


async def set_properties(request: Request) -> Answer:
    """Set some properties of a namespace."""
    merged = {**_properties(request), **request.read_strings()}
    request.namespaces.set_policy(request.require_namespace(), "properties", merged)
    return await request.finish()


async def clear_properties(request: Request) -> Answer:
    """Remove all properties of a namespace."""
    request.namespaces.set_policy(request.require_namespace("Namespace does not exist"), "properties", None)
    return await request.finish()


async def get_property(request: Request) -> Answer:
    """Return a property of a namespace."""
    value = _properties(request).get(request.parts["key"])
    return Answer(200, None if value is None else value.encode())


async def set_property(request: Request) -> Answer:
    """Set a property of a namespace."""
    merged = {**_properties(request), request.parts["key"]: request.parts["value"]}
    request.namespaces.set_policy(request.require_namespace(), "properties", merged)
    return await request.finish()


async def remove_property(request: Request) -> Answer:
    """Remove a property of a namespace; answers with its value."""
    value = _properties(request).get(request.parts["key"])
    remaining = {key: item for key, item in _properties(request).items() if key != request.parts["key"]}
    request.namespaces.set_policy(request.require_namespace(), "properties", remaining or None)
    await request.finish()
    return Answer(200, None if value is None else value.encode())


# -- subscriptions of all topics


async def _subscriptions(request: Request) -> list[Subscription]:
    """Return the subscriptions of persistent topics in the namespace or bundle of the path.

    If the path has the name of a subscription, only those with this name.
    """
    namespace = request.require_namespace("Namespace does not exist")
    bundle = _bundle(request) if "bundle" in request.parts else ""
    subscriptions: list[Subscription] = []
    for name in find_topics(request.cluster, namespace, "persistent"):
        if bundle in ("", request.cluster.bundle_of(name)):
            topic = await request.cluster.load(name, request.broker)
            subscriptions += topic.subscriptions.values() if isinstance(topic, PersistentTopic) else ()
    name_in_path = request.parts.get("subscription")
    return [subscription for subscription in subscriptions if name_in_path in (None, subscription.name)]


async def clear_backlog(request: Request) -> Answer:
    """Skip all messages of subscriptions."""
    for subscription in await _subscriptions(request):
        subscription.skip_before(subscription.topic.log.stored_end)
    return await request.finish()


async def unsubscribe(request: Request) -> Answer:
    """Delete all subscriptions with this name."""
    for subscription in await _subscriptions(request):
        await subscription.delete(requester=None, force=False)
    return await request.finish()


_PROPERTY: Final = f"{NAMESPACE}/property/{{key}}"

ROUTES: Final[tuple[Route, ...]] = (
    ("GET", "/admin/v2/namespaces/{tenant}", list_namespaces),
    ("PUT", NAMESPACE, create),
    ("GET", NAMESPACE, get),
    ("DELETE", NAMESPACE, delete),
    ("DELETE", f"{NAMESPACE}/{{bundle}}", delete_bundle),
    ("GET", f"{NAMESPACE}/topics", list_topics),
    ("GET", "/admin/v2/{domain}/{tenant}/{namespace}", list_topics_of_domain),
    ("GET", "/admin/v2/{domain}/{tenant}/{namespace}/partitioned", list_partitioned),
    ("GET", f"{NAMESPACE}/bundles", get_bundles),
    ("PUT", f"{NAMESPACE}/unload", unload),
    ("PUT", f"{NAMESPACE}/{{bundle}}/unload", unload_bundle),
    ("GET", f"{NAMESPACE}/replication", get_replication_clusters),
    ("GET", f"{NAMESPACE}/allowedClusters", get_allowed_clusters),
    ("GET", f"{NAMESPACE}/permissions", get_permissions),
    ("POST", f"{NAMESPACE}/permissions/{{role}}", grant),
    ("DELETE", f"{NAMESPACE}/permissions/{{role}}", revoke),
    ("GET", f"{NAMESPACE}/permissions/subscription", get_subscription_permissions),
    ("POST", f"{NAMESPACE}/permissions/subscription/{{subscription}}", grant_subscription),
    ("DELETE", f"{NAMESPACE}/permissions/{{subscription}}/{{role}}", revoke_subscription),
    ("GET", f"{TOPIC}/permissions", get_topic_permissions),
    ("POST", f"{TOPIC}/permissions/{{role}}", grant_topic),
    ("DELETE", f"{TOPIC}/permissions/{{role}}", revoke_topic),
    ("GET", f"{NAMESPACE}/properties", get_properties),
    ("PUT", f"{NAMESPACE}/properties", set_properties),
    ("DELETE", f"{NAMESPACE}/properties", clear_properties),
    ("GET", _PROPERTY, get_property),
    ("PUT", f"{_PROPERTY}/{{value}}", set_property),
    ("DELETE", _PROPERTY, remove_property),
    ("POST", f"{NAMESPACE}/clearBacklog", clear_backlog),
    ("POST", f"{NAMESPACE}/clearBacklog/{{subscription}}", clear_backlog),
    ("POST", f"{NAMESPACE}/{{bundle}}/clearBacklog", clear_backlog),
    ("POST", f"{NAMESPACE}/{{bundle}}/clearBacklog/{{subscription}}", clear_backlog),
    ("POST", f"{NAMESPACE}/unsubscribe/{{subscription}}", unsubscribe),
    ("POST", f"{NAMESPACE}/{{bundle}}/unsubscribe/{{subscription}}", unsubscribe),
)
