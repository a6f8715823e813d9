"""Policies that are sets: backlog quotas by type, dispatch rates by subscription, replication clusters."""

from typing import Any, Final

from pulsarctl_wire.broker.admin.base import NAMESPACE, TOPIC, Answer, Problem, Request, Route
from pulsarctl_wire.broker.admin.policies import (
    DEFAULT_QUOTA,
    apply_changes,
    get_own_policies,
    get_policy_topic,
    is_within,
    set_namespace_policy,
    set_topic_policy,
)
from pulsarctl_wire.broker.admin.shapes import NO_RATE, QUOTA, RATE
from pulsarctl_wire.broker.tenancy.policy_names import read_topic_policy

QUOTA_TYPES: Final = ("destination_storage", "message_age")
_POLICIES: Final = ("producer_request_hold", "producer_exception", "consumer_backlog_eviction")


def read_quota(body: Any) -> dict[str, Any]:
    """Read a backlog quota; its policy may be missing. Raises Problem."""
    fields = QUOTA.read(body)
    size = fields.get("limitSize", fields.get("limit", 0))
    return {
        "limit": size,
        "limitSize": size,
        "limitTime": fields["limitTime"],
        "policy": fields.get("policy"),
    }


def _read_typed_quota(request: Request) -> tuple[str, dict[str, Any]]:
    """Return the type in the query, and the quota in the body, empty without one. Raises Problem."""
    kind = request.query.get("backlogQuotaType", QUOTA_TYPES[0])
    if kind not in QUOTA_TYPES:
        raise Problem(404, "HTTP 404 Not Found")
    if request.body is None:
        return kind, {}
    quota = read_quota(request.body)
    if quota["policy"] not in _POLICIES:
        scope = f"namespace[{request.parts['tenant']}/{request.parts['namespace']}]"
        text = "backlog quota failed because the data validation failed. the attribute policy cannot be null"
        raise Problem(400, f"Set {scope} {text}")
    return kind, quota


def _merge(quotas: dict[str, Any] | None, kind: str, quota: dict[str, Any] | None) -> dict[str, Any] | None:
    merged = {**(quotas or {}), kind: quota}
    return {key: item for key, item in merged.items() if item} or None


def _check_quota(quota: dict[str, Any], retention: Any, level: str) -> None:
    if retention and quota:
        size, minutes = retention["retentionSizeInMB"], retention["retentionTimeInMinutes"]
        if not is_within(quota, size << 20 if size > 0 else size, minutes * 60):
            raise Problem(
                412,
                f"Backlog Quota exceeds configured retention quota for {level}. "
                "Please increase retention quota and retry",
            )


async def get_namespace_quotas(request: Request) -> Answer:
    """Return the backlog quotas of a namespace."""
    namespace = request.require_namespace("Namespace does not exist")
    return Answer(200, request.namespaces.get_policies(namespace).get("backlog_quota_map", {}))


async def change_namespace_quota(request: Request) -> Answer:
    """Set a backlog quota of a namespace, or (without a body) remove it."""
    row = request.namespaces.get_policies(request.require_namespace("Namespace does not exist"))
    kind, quota = _read_typed_quota(request)
    _check_quota(quota, row.get("retention_policies"), "namespace")
    set_namespace_policy(request, "backlog_quota_map", _merge(row.get("backlog_quota_map"), kind, quota))
    return await request.finish()


async def get_topic_quotas(request: Request) -> Answer:
    """Return the backlog quotas of a topic."""
    name = get_policy_topic(request)
    if not request.get_flag("applied"):
        return Answer(200, read_topic_policy(get_own_policies(request, name), "backlog_quota_map") or {})
    quotas = request.namespaces.get_policy(name, "backlog_quota_map") or {}
    return Answer(200, {kind: quotas.get(kind, DEFAULT_QUOTA) for kind in QUOTA_TYPES})


async def change_topic_quota(request: Request) -> Answer:
    """Set a backlog quota of a topic, or (without a body) remove it."""
    name = get_policy_topic(request)
    kind, quota = _read_typed_quota(request)
    _check_quota(quota, request.namespaces.get_policy(name, "retention_policies"), "topic")
    quotas = read_topic_policy(get_own_policies(request, name), "backlog_quota_map")
    set_topic_policy(request, name, "backlog_quota_map", _merge(quotas, kind, quota))
    return await request.finish()


# -- dispatch rates of subscriptions


async def get_subscription_rate(request: Request) -> Answer:
    """Return the dispatch rate of one subscription."""
    name = get_policy_topic(request)
    policy = (
        get_own_policies(request, name).get("subscriptionPolicies", {}).get(request.parts["subscription"])
    )
    value = policy["dispatchRate"] if policy else None
    if value is None and request.get_flag("applied"):
        value = request.namespaces.get_policy(name, "subscriptionDispatchRate") or NO_RATE
    return Answer(200, value)


async def change_subscription_rate(request: Request) -> Answer:
    """Set the dispatch rate of one subscription, or (without a body) remove it."""
    name = get_policy_topic(request)
    policies = dict(get_own_policies(request, name).get("subscriptionPolicies", {}))
    policies.pop(request.parts["subscription"], None)
    if request.body is not None:
        policies[request.parts["subscription"]] = {"dispatchRate": RATE.read(request.body)}
    set_topic_policy(request, name, "subscriptionPolicies", policies or None)
    return await request.finish()


# -- replication clusters: only this one


def _read_clusters(request: Request) -> list[str]:
    cluster = request.cluster.settings.clusterName
    other_clusters = (
        [name for name in request.body or () if name != cluster] if isinstance(request.body, list) else []
    )
    if not isinstance(request.body, list) or not request.body:
        raise Problem(412, "ClusterIds should not be null or empty")
    if other_clusters:
        raise Problem(403, f"Invalid cluster id: {other_clusters[0]}")
    return [cluster]


async def get_replication(request: Request) -> Answer:
    """Return the clusters that a topic is replicated to."""
    name = get_policy_topic(request)
    value = get_own_policies(request, name).get("replicationClusters")
    if value is None and request.get_flag("applied"):
        value = [request.cluster.settings.clusterName]
    return Answer(200, value)


async def set_replication(request: Request) -> Answer:
    """Set the clusters that a topic is replicated to."""
    set_topic_policy(request, get_policy_topic(request), "replication_clusters", _read_clusters(request))
    return await request.finish()


async def remove_replication(request: Request) -> Answer:
    """Remove a topic's own replication clusters."""
    set_topic_policy(request, get_policy_topic(request), "replication_clusters", None)
    return await request.finish()


async def set_namespace_clusters(request: Request) -> Answer:
    """Accept only this cluster as one that a namespace is replicated to or allowed in; change nothing."""
    request.require_namespace("Namespace does not exist")
    _read_clusters(request)
    return Answer(200)


async def remove_all(request: Request) -> Answer:
    """Remove all policies of a topic."""
    name = get_policy_topic(request)
    for is_global in (False, True):
        for policy in list(request.namespaces.get_topic_policies(name, is_global=is_global)):
            request.namespaces.set_topic_policy(name, policy, None, is_global=is_global)
    apply_changes(request, name.namespace, name)
    return await request.finish()


ROUTES: Final[tuple[Route, ...]] = (
    ("GET", f"{NAMESPACE}/backlogQuotaMap", get_namespace_quotas),
    ("POST", f"{NAMESPACE}/backlogQuota", change_namespace_quota),
    ("DELETE", f"{NAMESPACE}/backlogQuota", change_namespace_quota),
    ("POST", f"{NAMESPACE}/replication", set_namespace_clusters),
    ("POST", f"{NAMESPACE}/allowedClusters", set_namespace_clusters),
    ("GET", f"{TOPIC}/backlogQuotaMap", get_topic_quotas),
    ("POST", f"{TOPIC}/backlogQuota", change_topic_quota),
    ("DELETE", f"{TOPIC}/backlogQuota", change_topic_quota),
    ("GET", f"{TOPIC}/{{subscription}}/dispatchRate", get_subscription_rate),
    ("POST", f"{TOPIC}/{{subscription}}/dispatchRate", change_subscription_rate),
    ("DELETE", f"{TOPIC}/{{subscription}}/dispatchRate", change_subscription_rate),
    ("GET", f"{TOPIC}/replication", get_replication),
    ("POST", f"{TOPIC}/replication", set_replication),
    ("DELETE", f"{TOPIC}/replication", remove_replication),
    ("DELETE", f"{TOPIC}/policies", remove_all),
)
