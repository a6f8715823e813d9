"""Clusters, tenants and namespaces."""

from __future__ import annotations

from typing import Any

from broker.admin.calls import NAMESPACES, at, call, refused

from pulsarctl_wire.conformance.basics.target import Target

TENANTS = "/admin/v2/tenants"
HERE = {"allowedClusters": ["standalone"]}


@call("clusters")
async def clusters(broker: Target) -> None:
    assert await broker.rest("GET", "/admin/v2/clusters") == ["standalone"]
    found = await broker.rest("GET", "/admin/v2/clusters/standalone")
    assert found["brokerServiceUrl"].startswith("pulsar://")
    assert found["brokerClientSslFactoryPlugin"].endswith(".DefaultPulsarSslFactory")
    await refused(broker, 404, "Cluster does not exist", "GET", "/admin/v2/clusters/nope")
    await refused(broker, 409, "Cluster already exists", "PUT", "/admin/v2/clusters/standalone", {})


@call("tenants")
async def tenants(broker: Target) -> None:
    name = broker.name()
    path = f"{TENANTS}/{name}"
    await broker.rest("PUT", path, {**HERE, "adminRoles": ["r"]})
    assert name in await broker.rest("GET", TENANTS)
    assert await broker.rest("GET", path) == {**HERE, "adminRoles": ["r"]}
    await broker.rest("POST", path, {**HERE, "adminRoles": ["x"]})
    assert (await broker.rest("GET", path))["adminRoles"] == ["x"]
    assert await broker.rest("GET", f"{NAMESPACES}/{name}") == []
    await broker.rest("PUT", f"{NAMESPACES}/{name}/n")
    assert await broker.rest("GET", f"{NAMESPACES}/{name}") == [f"{name}/n"]
    await refused(broker, 409, "The tenant still has active namespaces", "DELETE", path)
    await broker.rest("DELETE", f"{NAMESPACES}/{name}/n")
    await broker.rest("DELETE", path)
    await refused(broker, 404, "Tenant does not exist", "GET", path)


REFUSED: list[tuple[str, str, Any, int, str]] = [
    ("GET", f"{TENANTS}/nope", None, 404, "Tenant does not exist"),
    ("POST", f"{TENANTS}/nope", HERE, 404, "Tenant nope not found"),
    ("DELETE", f"{TENANTS}/nope", None, 404, "Tenant doesn't exist"),
    ("PUT", f"{TENANTS}/public", HERE, 409, "Tenant already exist"),
    ("PUT", f"{TENANTS}/x", {"allowedClusters": ["nope"]}, 412, "Clusters do not exist"),
    ("PUT", f"{TENANTS}/x", {"allowedClusters": []}, 412, "Clusters cannot be empty or blank"),
    ("PUT", f"{TENANTS}/x", None, 412, "TenantInfo is null"),
    ("PUT", f"{TENANTS}/a%20b", HERE, 412, "Tenant name is not valid"),
    ("GET", f"{NAMESPACES}/nope", None, 404, "Tenant not found"),
    ("PUT", f"{NAMESPACES}/nope/n", None, 404, "Tenant does not exist"),
    ("PUT", f"{NAMESPACES}/public/a%20b", None, 412, "Namespace name is not valid"),
    ("PUT", f"{NAMESPACES}/public/default", {}, 409, "Namespace already exists"),
    ("GET", f"{NAMESPACES}/public/nope", None, 404, "Namespace does not exist"),
    ("GET", f"{NAMESPACES}/public/nope/topics", None, 404, "Namespace does not exist"),
    ("DELETE", f"{NAMESPACES}/public/nope", None, 404, "Namespace public/nope does not exist."),
    ("GET", "/admin/v2/persistent/public/nope", None, 404, "Namespace does not exist"),
    ("PUT", "/admin/v2/persistent/public/nope/t", None, 404, "Namespace not found"),
    (
        "PUT",
        f"{NAMESPACES}/public/x",
        {"replication_clusters": ["nope"]},
        403,
        "Cluster [nope] is not in the list",
    ),
]


@call("namespaces/refused")
async def refusals(broker: Target) -> None:
    for method, path, body, status, reason in REFUSED:
        await refused(broker, status, reason, method, path, body)


@call("namespaces/create")
async def create(broker: Target) -> None:
    retention = {"retentionTimeInMinutes": 1, "retentionSizeInMB": 2}
    grants = {"namespace_auth": {"a": ["produce"]}}
    name = await broker.create_namespace(
        {"bundles": {"numBundles": 8}, "retention_policies": retention, "auth_policies": grants}
    )
    found = await broker.rest("GET", f"{NAMESPACES}/{name}")
    assert found["bundles"]["numBundles"] == 8
    assert found["retention_policies"] == retention
    assert found["auth_policies"] == {**grants, "destination_auth": {}, "subscription_auth_roles": {}}
    assert found["schema_compatibility_strategy"] == "UNDEFINED"
    bundles = await broker.rest("GET", f"{NAMESPACES}/{name}/bundles")
    assert bundles["boundaries"][:3] == ["0x00000000", "0x20000000", "0x40000000"]
    assert bundles["boundaries"][-1] == "0xffffffff"


@call("namespaces/delete")
async def delete(broker: Target) -> None:
    name = await broker.create_namespace()
    topic = f"persistent://{name}/t"
    await broker.rest("PUT", at(topic))
    await refused(broker, 409, "Cannot delete non empty namespace", "DELETE", f"{NAMESPACES}/{name}")
    forced = f"{NAMESPACES}/{name}?force=true"
    await refused(broker, 405, "Broker doesn't allow forced deletion of namespaces", "DELETE", forced)
    await broker.rest("DELETE", at(topic))
    await broker.rest("DELETE", f"{NAMESPACES}/{name}")
    await refused(broker, 404, "Namespace does not exist", "GET", f"{NAMESPACES}/{name}")


@call("namespaces/topics")
async def topics(broker: Target) -> None:
    name = await broker.create_namespace()
    await broker.rest("PUT", at(f"persistent://{name}/b"))
    await broker.rest("PUT", at(f"persistent://{name}/a", "partitions"), 2)
    parts = [f"persistent://{name}/a-partition-{number}" for number in range(2)]
    assert sorted(await broker.rest("GET", f"{NAMESPACES}/{name}/topics")) == [
        *parts,
        f"persistent://{name}/b",
    ]
    assert sorted(await broker.rest("GET", f"/admin/v2/persistent/{name}")) == [
        *parts,
        f"persistent://{name}/b",
    ]
    assert await broker.rest("GET", f"/admin/v2/persistent/{name}/partitioned") == [f"persistent://{name}/a"]
    assert await broker.rest("GET", f"/admin/v2/non-persistent/{name}") == []


@call("namespaces/permissions")
async def permissions(broker: Target) -> None:
    name = await broker.create_namespace()
    path = f"{NAMESPACES}/{name}/permissions"
    assert await broker.rest("GET", path) == {}
    await broker.rest("POST", f"{path}/joe", ["produce"])
    assert await broker.rest("GET", path) == {"joe": ["produce"]}
    topic = f"persistent://{name}/t"
    await broker.rest("PUT", at(topic))
    await broker.rest("POST", at(topic, "permissions/jim"), ["consume"])
    assert await broker.rest("GET", at(topic, "permissions")) == {"joe": ["produce"], "jim": ["consume"]}
    granted = (await broker.rest("GET", f"{NAMESPACES}/{name}"))["auth_policies"]
    assert granted["destination_auth"] == {topic: {"jim": ["consume"]}}
    await broker.rest("DELETE", at(topic, "permissions/jim"))
    await broker.rest("DELETE", f"{path}/joe")
    assert await broker.rest("GET", path) == {}
    await broker.rest("DELETE", at(topic, "permissions/jim"))


@call("namespaces/properties")
async def properties(broker: Target) -> None:
    path = f"{NAMESPACES}/{await broker.create_namespace()}"
    assert await broker.rest("GET", f"{path}/properties") == {}
    await broker.rest("PUT", f"{path}/properties", {"a": "b"})
    await broker.rest("PUT", f"{path}/property/c/d")
    assert await broker.rest("GET", f"{path}/properties") == {"a": "b", "c": "d"}
    assert await broker.rest("GET", f"{path}/property/c") == "d"
    await broker.rest("DELETE", f"{path}/property/a")
    await broker.rest("DELETE", f"{path}/properties")
    assert await broker.rest("GET", f"{path}/properties") == {}


@call("namespaces/unload")
async def unload(broker: Target) -> None:
    name = await broker.create_namespace()
    topic = f"persistent://{name}/t"
    producer = await broker.produce(topic)
    await broker.rest("PUT", f"{NAMESPACES}/{name}/unload")
    await producer.expect("CLOSE_PRODUCER", producer_id=1)
    await producer.create_producer(topic)
    bundle = await broker.rest("GET", f"/lookup/v2/topic/persistent/{name}/t/bundle")
    await broker.rest("PUT", f"{NAMESPACES}/{name}/{bundle}/unload")
    await producer.expect("CLOSE_PRODUCER", producer_id=1)


@call("namespaces/clear backlog and unsubscribe")
async def clear_backlog(broker: Target) -> None:
    name = await broker.create_namespace()
    topic = await broker.fill(3, f"persistent://{name}/t")
    await broker.rest("PUT", at(topic, "subscription/s"), "earliest")
    await broker.rest("POST", f"{NAMESPACES}/{name}/clearBacklog")
    stats = await broker.rest("GET", at(topic, "stats"))
    assert stats["subscriptions"]["s"]["msgBacklog"] == 0
    await broker.rest("POST", f"{NAMESPACES}/{name}/unsubscribe/s")
    assert await broker.rest("GET", at(topic, "subscriptions")) == []


@call("namespaces/created with policies")
async def created_with(broker: Target) -> None:
    texts = {"destination_storage": {"limit": "5", "policy": "producer_exception"}}
    rate = {"standalone": {"publishThrottlingRateInMsg": 5}}
    rights = {"namespace_auth": {"a": ["produce"]}}
    given: dict[str, Any] = {
        "backlog_quota_map": texts,
        "publishMaxMessageRate": rate,
        "auth_policies": rights,
        "foo": 1,
    }
    given["bundles"] = {"numBundles": 0}  # as many as by default
    name = await broker.create_namespace({**given, "message_ttl_in_seconds": "9"})
    found = await broker.rest("GET", f"{NAMESPACES}/{name}")
    quota = {"limit": 5, "limitSize": 5, "limitTime": 0, "policy": "producer_exception"}
    assert found["backlog_quota_map"] == {"destination_storage": quota}
    assert found["publishMaxMessageRate"]["standalone"]["publishThrottlingRateInByte"] == -1
    assert found["auth_policies"]["namespace_auth"] == {"a": ["produce"]}
    assert (found["message_ttl_in_seconds"], found["bundles"]["numBundles"]) == (9, 4)
    assert "foo" not in found
    for wrong in (
        *({"backlog_quota_map": 5}, {"auth_policies": 5}, {"publishMaxMessageRate": {"standalone": 5}}),
        *({"retention_policies": 5}, {"deduplicationEnabled": "yes"}, {"message_ttl_in_seconds": "x"}),
        *({"bundles": 5}, {"bundles": {"numBundles": "x"}}, {"replication_clusters": 5}),
        {"persistence": {"bookkeeperEnsemble": 0}},
    ):
        await refused(broker, 400, "", "PUT", f"{NAMESPACES}/public/{broker.name('n')}", wrong)
