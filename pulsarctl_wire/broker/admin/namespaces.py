"""Namespaces in the admin API: which there are, who may use them, and their topics."""

from typing import Any, Final

from pulsarctl_wire.broker.admin.base import NAMESPACE, TOPIC, Answer, Problem, Request, Route
from pulsarctl_wire.broker.admin.initial_policies import read_policies
from pulsarctl_wire.broker.admin.policies import changed
from pulsarctl_wire.broker.basics.names import TopicName, is_entity
from pulsarctl_wire.broker.cluster.cluster import Cluster
from pulsarctl_wire.broker.topics.persistent import PersistentTopic
from pulsarctl_wire.broker.topics.subscription import Subscription

MAX_BUNDLES: Final = 10_000
"""Of a namespace: their names are listed in answers."""

_ACTIONS: Final = ("produce", "consume", "functions", "sources", "sinks", "packages")
_UNSET: Final[dict[str, Any]] = {
    "allowed_clusters": [],
    "backlog_quota_map": {},
    "clusterDispatchRate": {},
    "topicDispatchRate": {},
    "subscriptionDispatchRate": {},
    "replicatorDispatchRate": {},
    "clusterSubscribeRate": {},
    "publishMaxMessageRate": {},
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
"""What a namespace's policies say of those that are not set."""

_NO_GRANTS: Final[dict[str, Any]] = {
    "namespace_auth": {},
    "destination_auth": {},
    "subscription_auth_roles": {},
}


# -- what there is


def bundles_of(cluster: Cluster, namespace: str) -> dict[str, Any]:
    """Return the bundles of a namespace."""
    number = cluster.count_bundles(namespace)
    ranges = [cluster.bundle_name(namespace, each).split("_") for each in range(number)]
    return {"boundaries": [*(low for low, _ in ranges), ranges[-1][1]], "numBundles": number}


def topics_of(cluster: Cluster, namespace: str, domain: str = "") -> list[TopicName]:
    """Return the topics of a namespace: single topics and partitions."""
    found = set(cluster.namespaces.stored_topics(namespace)) if domain != "non-persistent" else set()
    if domain != "persistent":
        loaded = [topic.name for broker in cluster.brokers for topic in broker.topics.values()]
        found.update(name for name in loaded if name.namespace == namespace and not name.is_persistent)
    return sorted(found)


def listing(request: Request, names: list[TopicName]) -> Answer:
    """Return a list of topics, without Pulsar's own ones unless they are asked for."""
    bundle = request.query.get("bundle", "")
    kept = [name for name in names if request.flag("includeSystemTopic") or not name.is_system]
    return Answer(200, [name.full for name in kept if bundle in ("", request.cluster.bundle_of(name))])


async def of_tenant(request: Request) -> Answer:
    """Return the namespaces of a tenant."""
    if request.named["tenant"] not in request.namespaces.tenants:
        raise Problem(404, "Tenant not found")
    prefix = request.named["tenant"] + "/"
    return Answer(200, sorted(name for name in request.namespaces.namespaces if name.startswith(prefix)))


async def create(request: Request) -> Answer:
    """Create a namespace."""
    namespaces, tenant = request.namespaces, request.named["tenant"]
    name = f"{tenant}/{request.named['namespace']}"
    if not is_entity(request.named["namespace"]):
        raise Problem(412, "Namespace name is not valid")
    if tenant not in namespaces.tenants:
        raise Problem(404, "Tenant does not exist")
    told = read_policies(request.fields() if request.body is not None else {})
    bundles = told.pop("bundles", {}).get("numBundles", 0)
    if bundles > MAX_BUNDLES:
        raise Problem(400, f"A namespace may have {MAX_BUNDLES:,} bundles here")
    clusters = told.pop("replication_clusters", [])
    allowed = set(namespaces.tenants[tenant]["allowedClusters"]) | {request.cluster.settings.clusterName}
    for cluster in clusters:
        if cluster not in allowed:
            text = f"Cluster [{cluster}] is not in the list of allowed clusters list for tenant [{tenant}]"
            raise Problem(403, text)
    if not namespaces.can_create(name):
        raise Problem(409, "Namespace already exists")
    most = request.cluster.settings.maxNamespacesPerTenant
    if most > 0 and sum(each.startswith(f"{tenant}/") for each in namespaces.namespaces) >= most:
        raise Problem(412, f"Exceed the maximum number of namespace in tenant :{tenant}")
    policies = {key: value for key, value in told.items() if value != _UNSET.get(key)}
    namespaces.create(name, policies | ({"bundles": bundles} if bundles > 0 else {}))
    changed(request, name)  # a namespace from the start may have topics already
    return await request.done()


async def get(request: Request) -> Answer:
    """Return the policies of a namespace."""
    name = request.namespace_or("Namespace does not exist")
    policies = {**_UNSET, **request.namespaces.policies(name)}
    this = request.cluster.settings.clusterName
    policies["auth_policies"] = _NO_GRANTS | policies.get("auth_policies", {})
    policies["bundles"] = bundles_of(request.cluster, name)
    policies |= {"replication_clusters": [this], "clusterThatCanDeleteNamespace": this}
    return Answer(200, policies)


async def delete(request: Request) -> Answer:
    """Delete an empty namespace."""
    name = f"{request.named['tenant']}/{request.named['namespace']}"
    if not request.namespaces.exists(name):
        raise Problem(404, f"Namespace {name} does not exist.")
    forced = request.flag("force")
    if forced and not request.cluster.settings.forceDeleteNamespaceAllowed:
        raise Problem(405, "Broker doesn't allow forced deletion of namespaces")
    topics = topics_of(request.cluster, name)
    parents = request.namespaces.partitioned_topics(name)
    if not forced and any(not each.is_system for each in [*topics, *parents]):
        raise Problem(409, "Cannot delete non empty namespace")
    await remove(request, name)
    return await request.done()


async def remove(request: Request, name: str) -> None:
    """Delete a namespace with everything in it."""
    for each in request.namespaces.partitioned_topics(name):
        await request.cluster.delete_partitioned(each)
    for each in topics_of(request.cluster, name):
        if request.cluster.exists(each):
            await request.cluster.delete_topic(each)
    await request.cluster.unload(name)
    request.namespaces.delete(name)


async def delete_bundle(request: Request) -> Answer:
    """Delete one bundle of a namespace: it goes with the others."""
    _bundle(request)
    raise Problem(501, "This broker deletes no single bundles")


async def topics(request: Request) -> Answer:
    """Return the topics of a namespace, of both kinds or one."""
    name = request.namespace_or("Namespace does not exist")
    mode = request.query.get("mode", "PERSISTENT").upper()
    domain = {"ALL": "", "NON_PERSISTENT": "non-persistent"}.get(mode, "persistent")
    return listing(request, topics_of(request.cluster, name, domain))


async def topics_of_kind(request: Request) -> Answer:
    """Return the persistent or non-persistent topics of a namespace."""
    name = request.namespace_or("Namespace does not exist")
    return listing(request, topics_of(request.cluster, name, request.named["domain"]))


async def partitioned(request: Request) -> Answer:
    """Return the partitioned topics of a namespace."""
    name = request.namespace_or("Namespace does not exist")
    found = request.namespaces.partitioned_topics(name)
    return listing(request, [each for each in found if each.domain == request.named["domain"]])


async def bundles(request: Request) -> Answer:
    """Return the bundles of a namespace."""
    return Answer(200, bundles_of(request.cluster, request.namespace_or("Namespace does not exist")))


def _bundle(request: Request) -> str:
    name = request.namespace_or("Namespace does not exist")
    bundle, cluster = request.named["bundle"], request.cluster
    if bundle not in {cluster.bundle_name(name, each) for each in range(cluster.count_bundles(name))}:
        raise Problem(412, f"Invalid bundle range: {bundle}")
    return bundle


async def unload(request: Request) -> Answer:
    """Close all topics of a namespace; clients connect again."""
    await request.cluster.unload(request.namespace_or("Namespace does not exist"))
    return Answer()


async def unload_bundle(request: Request) -> Answer:
    """Close the topics of a bundle; clients connect again."""
    await request.cluster.unload(request.namespace_or("Namespace does not exist"), _bundle(request))
    return Answer()


async def replicated(request: Request) -> Answer:
    """Return the clusters that a namespace is replicated to: this one."""
    _ = request.namespace_or("Namespace does not exist")
    return Answer(200, [request.cluster.settings.clusterName])


async def allowed(request: Request) -> Answer:
    """Return the clusters that a namespace is allowed in: those of its tenant."""
    _ = request.namespace_or("Namespace does not exist")
    return Answer(200, [])


# -- who may use it


def _grants(request: Request) -> dict[str, Any]:
    """Return a copy of what was granted in the namespace of the path."""
    found = request.namespaces.policies(request.namespace_or("Namespace does not exist"))
    return {**_NO_GRANTS, **{key: dict(each) for key, each in found.get("auth_policies", {}).items()}}


async def _keep(request: Request, grants: dict[str, Any]) -> Answer:
    request.namespaces.set_policy(request.namespace, "auth_policies", grants)
    changed(request, request.namespace)
    return await request.done()


def _actions(request: Request) -> list[str]:
    if not isinstance(request.body, list) or any(each not in _ACTIONS for each in request.body):
        raise Problem(400, f"Actions are {', '.join(_ACTIONS)}")
    return sorted(set(request.body), key=_ACTIONS.index)


async def permissions(request: Request) -> Answer:
    """Return what roles may do in a namespace."""
    return Answer(200, _grants(request)["namespace_auth"])


async def grant(request: Request) -> Answer:
    """Let a role do some actions in a namespace."""
    grants = _grants(request)
    grants["namespace_auth"] = {**grants["namespace_auth"], request.named["role"]: _actions(request)}
    return await _keep(request, grants)


async def revoke(request: Request) -> Answer:
    """Take what a role may do in a namespace from it."""
    grants = _grants(request)
    kept = {role: each for role, each in grants["namespace_auth"].items() if role != request.named["role"]}
    return await _keep(request, {**grants, "namespace_auth": kept})


async def topic_permissions(request: Request) -> Answer:
    """Return what roles may do with a topic, by its namespace too."""
    grants = _grants(request)
    merged: dict[str, list[str]] = dict(grants["namespace_auth"])
    for role, actions in grants["destination_auth"].get(request.topic_name.full, {}).items():
        merged[role] = sorted({*merged.get(role, ()), *actions}, key=_ACTIONS.index)
    return Answer(200, merged)


async def grant_topic(request: Request) -> Answer:
    """Let a role do some actions with a topic."""
    name, grants = request.topic_name.full, _grants(request)
    of_topic = {**grants["destination_auth"].get(name, {}), request.named["role"]: _actions(request)}
    grants["destination_auth"] = {**grants["destination_auth"], name: of_topic}
    return await _keep(request, grants)


async def revoke_topic(request: Request) -> Answer:
    """Take what a role may do with a topic from it."""
    name, grants = request.topic_name.full, _grants(request)
    of_topic = dict(grants["destination_auth"].get(name, {}))
    of_topic.pop(request.named["role"], None)
    others = {key: each for key, each in grants["destination_auth"].items() if key != name}
    return await _keep(
        request, {**grants, "destination_auth": others | ({name: of_topic} if of_topic else {})}
    )


async def subscription_permissions(request: Request) -> Answer:
    """Return which roles may use subscriptions of a namespace."""
    return Answer(200, _grants(request)["subscription_auth_roles"])


async def grant_subscription(request: Request) -> Answer:
    """Let only some roles use the subscriptions of a name."""
    grants, name = _grants(request), request.named["subscription"]
    if not isinstance(request.body, list) or not all(isinstance(role, str) for role in request.body):
        raise Problem(400, "A list of roles is expected")
    roles = {*grants["subscription_auth_roles"].get(name, ()), *request.body}
    grants["subscription_auth_roles"] = {**grants["subscription_auth_roles"], name: sorted(roles)}
    return await _keep(request, grants)


async def revoke_subscription(request: Request) -> Answer:
    """Let a role not use the subscriptions of a name any more."""
    grants, name = _grants(request), request.named["subscription"]
    roles = [
        role for role in grants["subscription_auth_roles"].get(name, ()) if role != request.named["role"]
    ]
    grants["subscription_auth_roles"] = {**grants["subscription_auth_roles"], name: roles}
    return await _keep(request, grants)


# -- properties


def _properties(request: Request) -> dict[str, str]:
    found = request.namespaces.policies(request.namespace_or("Namespace does not exist"))
    properties: dict[str, str] = found.get("properties", {})
    return properties


async def properties(request: Request) -> Answer:
    """Return the properties of a namespace."""
    return Answer(200, _properties(request))


async def set_properties(request: Request) -> Answer:
    """Set some properties of a namespace."""
    merged = {**_properties(request), **request.strings()}
    request.namespaces.set_policy(request.namespace, "properties", merged)
    return await request.done()


async def clear_properties(request: Request) -> Answer:
    """Remove all properties of a namespace."""
    request.namespaces.set_policy(request.namespace_or("Namespace does not exist"), "properties", None)
    return await request.done()


async def get_property(request: Request) -> Answer:
    """Return a property of a namespace."""
    value = _properties(request).get(request.named["key"])
    return Answer(200, None if value is None else value.encode())


async def set_property(request: Request) -> Answer:
    """Set a property of a namespace."""
    merged = {**_properties(request), request.named["key"]: request.named["value"]}
    request.namespaces.set_policy(request.namespace, "properties", merged)
    return await request.done()


async def remove_property(request: Request) -> Answer:
    """Remove a property of a namespace; answers what it was."""
    value = _properties(request).get(request.named["key"])
    kept = {key: each for key, each in _properties(request).items() if key != request.named["key"]}
    request.namespaces.set_policy(request.namespace, "properties", kept or None)
    await request.done()
    return Answer(200, None if value is None else value.encode())


# -- subscriptions of all topics


async def _subscriptions(request: Request) -> list[Subscription]:
    """Return the durable subscriptions in the namespace, or bundle, of the path: all, or those of a name."""
    name, wanted = request.namespace_or("Namespace does not exist"), request.named.get("subscription")
    bundle = _bundle(request) if "bundle" in request.named else ""
    found: list[Subscription] = []
    for each in topics_of(request.cluster, name, "persistent"):
        if bundle in ("", request.cluster.bundle_of(each)):
            topic = await request.cluster.load(each, request.broker)
            found += topic.subscriptions.values() if isinstance(topic, PersistentTopic) else ()
    return [each for each in found if wanted in (None, each.name)]


async def clear_backlog(request: Request) -> Answer:
    """Skip all messages of subscriptions."""
    for subscription in await _subscriptions(request):
        subscription.skip_before(subscription.topic.log.stored_end)
    return await request.done()


async def unsubscribe(request: Request) -> Answer:
    """Delete all subscriptions of a name."""
    for subscription in await _subscriptions(request):
        await subscription.delete(requester=None, force=False)
    return await request.done()


_PROPERTY: Final = f"{NAMESPACE}/property/{{key}}"

ROUTES: Final[tuple[Route, ...]] = (
    ("GET", "/admin/v2/namespaces/{tenant}", of_tenant),
    ("PUT", NAMESPACE, create),
    ("GET", NAMESPACE, get),
    ("DELETE", NAMESPACE, delete),
    ("DELETE", f"{NAMESPACE}/{{bundle}}", delete_bundle),
    ("GET", f"{NAMESPACE}/topics", topics),
    ("GET", "/admin/v2/{domain}/{tenant}/{namespace}", topics_of_kind),
    ("GET", "/admin/v2/{domain}/{tenant}/{namespace}/partitioned", partitioned),
    ("GET", f"{NAMESPACE}/bundles", bundles),
    ("PUT", f"{NAMESPACE}/unload", unload),
    ("PUT", f"{NAMESPACE}/{{bundle}}/unload", unload_bundle),
    ("GET", f"{NAMESPACE}/replication", replicated),
    ("GET", f"{NAMESPACE}/allowedClusters", allowed),
    ("GET", f"{NAMESPACE}/permissions", permissions),
    ("POST", f"{NAMESPACE}/permissions/{{role}}", grant),
    ("DELETE", f"{NAMESPACE}/permissions/{{role}}", revoke),
    ("GET", f"{NAMESPACE}/permissions/subscription", subscription_permissions),
    ("POST", f"{NAMESPACE}/permissions/subscription/{{subscription}}", grant_subscription),
    ("DELETE", f"{NAMESPACE}/permissions/{{subscription}}/{{role}}", revoke_subscription),
    ("GET", f"{TOPIC}/permissions", topic_permissions),
    ("POST", f"{TOPIC}/permissions/{{role}}", grant_topic),
    ("DELETE", f"{TOPIC}/permissions/{{role}}", revoke_topic),
    ("GET", f"{NAMESPACE}/properties", properties),
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
