"""Clusters and tenants in the admin API. Other clusters can only be recorded."""

from typing import Any, Final

from pulsarctl_wire.broker.admin.base import Answer, Problem, Request, Route
from pulsarctl_wire.broker.admin.namespaces import remove
from pulsarctl_wire.broker.basics.names import is_entity

# -- clusters


def _describe_own(request: Request) -> dict[str, Any]:
    first = request.cluster.brokers[0]
    urls = {
        "serviceUrl": first.http_url,
        "serviceUrlTls": first.https_url,
        "brokerServiceUrl": first.service_url,
        "brokerServiceUrlTls": first.service_url_tls,
    }
    return {name: url for name, url in urls.items() if url}


def _clusters(request: Request) -> dict[str, Any]:
    return {
        request.cluster.settings.clusterName: _describe_own(request),
        **request.broker.journal.table("clusters"),
    }


def _cluster(request: Request) -> dict[str, Any]:
    row: dict[str, Any] | None = _clusters(request).get(request.parts["cluster"])
    if row is None:
        raise Problem(404, "Cluster does not exist")
    return row


async def list_clusters(request: Request) -> Answer:
    """Return the names of all clusters."""
    return Answer(200, sorted(_clusters(request)))


async def get_cluster(request: Request) -> Answer:
    """Return the recorded URLs of a cluster, and defaults."""
    flags = {
        "brokerClientTlsEnabled": False,
        "tlsAllowInsecureConnection": False,
        "brokerClientTlsEnabledWithKeyStore": False,
    }
    defaults = {
        "brokerClientTlsTrustStoreType": "JKS",
        "brokerClientTlsKeyStoreType": "JKS",
        "brokerClientSslFactoryPlugin": "org.apache.pulsar.common.util.DefaultPulsarSslFactory",
    }
    is_own = request.parts["cluster"] == request.cluster.settings.clusterName
    return Answer(200, {**_cluster(request), **flags, **(defaults if is_own else {})})


async def create_cluster(request: Request) -> Answer:
    """Record a cluster."""
    recorded = request.broker.journal.table("clusters")
    existing = recorded if request.namespaces.can_recreate_initial else _clusters(request)
    if request.parts["cluster"] in existing:
        raise Problem(409, "Cluster already exists")
    if not is_entity(request.parts["cluster"]):
        raise Problem(412, "Cluster name is not valid")
    request.broker.journal.put("clusters", request.parts["cluster"], request.read_fields())
    return await request.finish(200)


async def update_cluster(request: Request) -> Answer:
    """Change the record of a cluster."""
    _cluster(request)
    request.broker.journal.put("clusters", request.parts["cluster"], request.read_fields())
    return await request.finish(200)


async def delete_cluster(request: Request) -> Answer:
    """Forget a cluster."""
    _cluster(request)
    if request.parts["cluster"] == request.cluster.settings.clusterName:
        raise Problem(412, "Cluster not empty")
    request.broker.journal.delete("clusters", request.parts["cluster"])
    return await request.finish()


async def list_peers(request: Request) -> Answer:
    """Return the peers of a cluster: none."""
    _cluster(request)
    return Answer(200)


async def list_domains(request: Request) -> Answer:
    """Return the failure domains of a cluster: none."""
    _cluster(request)
    return Answer(200, {})


# -- tenants


def _tenant(request: Request, reason: str = "Tenant does not exist") -> dict[str, Any]:
    row = request.namespaces.tenants.get(request.parts["tenant"])
    if row is None:
        raise Problem(404, reason)
    return row


def _read_tenant(request: Request) -> dict[str, Any]:
    """Return the tenant in the body. Raises Problem."""
    if request.body is None:
        raise Problem(412, "TenantInfo is null")
    roles, names = (
        request.read_fields().get("adminRoles") or [],
        request.read_fields().get("allowedClusters") or [],
    )
    if not isinstance(roles, list) or not isinstance(names, list):
        raise Problem(400, "adminRoles and allowedClusters must be lists")
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise Problem(412, "Clusters cannot be empty or blank")
    if not set(names) <= _clusters(request).keys():
        raise Problem(412, "Clusters do not exist")
    return {"adminRoles": roles, "allowedClusters": names}


async def list_tenants(request: Request) -> Answer:
    """Return the names of all tenants."""
    return Answer(200, sorted(request.namespaces.tenants))


async def get_tenant(request: Request) -> Answer:
    """Return a tenant's admin roles and allowed clusters."""
    return Answer(200, _tenant(request))


async def create_tenant(request: Request) -> Answer:
    """Create a tenant."""
    row = _read_tenant(request)
    if not is_entity(request.parts["tenant"]):
        raise Problem(412, "Tenant name is not valid")
    if not request.namespaces.can_create_tenant(request.parts["tenant"]):
        raise Problem(409, "Tenant already exist")
    limit = request.cluster.settings.maxTenants
    if limit > 0 and len(request.namespaces.tenants) >= limit:
        raise Problem(412, "Exceed the maximum number of tenants")
    request.namespaces.create_tenant(request.parts["tenant"], row)
    return await request.finish()


async def update_tenant(request: Request) -> Answer:
    """Change a tenant."""
    row = _read_tenant(request)
    _tenant(request, f"Tenant {request.parts['tenant']} not found")
    request.namespaces.create_tenant(request.parts["tenant"], row)
    return await request.finish()


async def delete_tenant(request: Request) -> Answer:
    """Delete a tenant without namespaces; with force=true, with all of them."""
    _tenant(request, "Tenant doesn't exist")
    prefix = request.parts["tenant"] + "/"
    namespaces = [name for name in request.namespaces.namespaces if name.startswith(prefix)]
    if request.get_flag("force"):
        if not request.cluster.settings.forceDeleteTenantAllowed:
            raise Problem(405, "Broker doesn't allow forced deletion of tenants")
        for name in namespaces:
            await remove(request, name)
    elif namespaces:
        raise Problem(409, "The tenant still has active namespaces")
    request.broker.journal.delete("tenants", request.parts["tenant"])
    return await request.finish()


_CLUSTER: Final = "/admin/v2/clusters/{cluster}"
_TENANT: Final = "/admin/v2/tenants/{tenant}"

ROUTES: Final[tuple[Route, ...]] = (
    ("GET", "/admin/v2/clusters", list_clusters),
    ("GET", _CLUSTER, get_cluster),
    ("PUT", _CLUSTER, create_cluster),
    ("POST", _CLUSTER, update_cluster),
    ("DELETE", _CLUSTER, delete_cluster),
    ("GET", f"{_CLUSTER}/peers", list_peers),
    ("GET", f"{_CLUSTER}/failureDomains", list_domains),
    ("GET", "/admin/v2/tenants", list_tenants),
    ("GET", _TENANT, get_tenant),
    ("PUT", _TENANT, create_tenant),
    ("POST", _TENANT, update_tenant),
    ("DELETE", _TENANT, delete_tenant),
)
