"""Clusters and tenants in the admin API. Other clusters can be noted, no more."""

from typing import Any, Final

from pulsarctl_wire.broker.admin.base import Answer, Problem, Request, Route
from pulsarctl_wire.broker.admin.namespaces import remove
from pulsarctl_wire.broker.basics.names import is_entity

# -- clusters


def _own(request: Request) -> dict[str, Any]:
    first = request.cluster.brokers[0]
    urls = {
        "serviceUrl": first.http_url,
        "serviceUrlTls": first.https_url,
        "brokerServiceUrl": first.service_url,
        "brokerServiceUrlTls": first.service_url_tls,
    }
    return {name: url for name, url in urls.items() if url}


def _clusters(request: Request) -> dict[str, Any]:
    return {request.cluster.settings.clusterName: _own(request), **request.broker.journal.table("clusters")}


def _cluster(request: Request) -> dict[str, Any]:
    found = _clusters(request).get(request.named["cluster"])
    if found is None:
        raise Problem(404, "Cluster does not exist")
    row: dict[str, Any] = found
    return row


async def clusters(request: Request) -> Answer:
    """Return the names of all clusters."""
    return Answer(200, sorted(_clusters(request)))


async def cluster(request: Request) -> Answer:
    """Return what is known of a cluster."""
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
    own = request.named["cluster"] == request.cluster.settings.clusterName
    return Answer(200, {**_cluster(request), **flags, **(defaults if own else {})})


async def create_cluster(request: Request) -> Answer:
    """Note a cluster."""
    noted = request.broker.journal.table("clusters")
    taken = noted if request.namespaces.can_recreate_initial else _clusters(request)
    if request.named["cluster"] in taken:
        raise Problem(409, "Cluster already exists")
    if not is_entity(request.named["cluster"]):
        raise Problem(412, "Cluster name is not valid")
    request.broker.journal.put("clusters", request.named["cluster"], request.fields())
    return await request.done(200)


async def update_cluster(request: Request) -> Answer:
    """Change what is known of a cluster."""
    _cluster(request)
    request.broker.journal.put("clusters", request.named["cluster"], request.fields())
    return await request.done(200)


async def delete_cluster(request: Request) -> Answer:
    """Forget a cluster."""
    _cluster(request)
    if request.named["cluster"] == request.cluster.settings.clusterName:
        raise Problem(412, "Cluster not empty")
    request.broker.journal.delete("clusters", request.named["cluster"])
    return await request.done()


async def nothing_of_cluster(request: Request) -> Answer:
    """Return the peers of a cluster: none."""
    _cluster(request)
    return Answer(200)


async def no_domains(request: Request) -> Answer:
    """Return the failure domains of a cluster: none."""
    _cluster(request)
    return Answer(200, {})


# -- tenants


def _tenant(request: Request, reason: str = "Tenant does not exist") -> dict[str, Any]:
    found = request.namespaces.tenants.get(request.named["tenant"])
    if found is None:
        raise Problem(404, reason)
    return found


def _told(request: Request) -> dict[str, Any]:
    """Return the tenant in the body. Raises Problem."""
    if request.body is None:
        raise Problem(412, "TenantInfo is null")
    roles, names = request.fields().get("adminRoles") or [], request.fields().get("allowedClusters") or []
    if not isinstance(roles, list) or not isinstance(names, list):
        raise Problem(400, "adminRoles and allowedClusters are lists")
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise Problem(412, "Clusters cannot be empty or blank")
    if not set(names) <= _clusters(request).keys():
        raise Problem(412, "Clusters do not exist")
    return {"adminRoles": roles, "allowedClusters": names}


async def tenants(request: Request) -> Answer:
    """Return the names of all tenants."""
    return Answer(200, sorted(request.namespaces.tenants))


async def tenant(request: Request) -> Answer:
    """Return the roles that rule a tenant, and the clusters it may use."""
    return Answer(200, _tenant(request))


async def create_tenant(request: Request) -> Answer:
    """Create a tenant."""
    told = _told(request)
    if not is_entity(request.named["tenant"]):
        raise Problem(412, "Tenant name is not valid")
    if not request.namespaces.can_create_tenant(request.named["tenant"]):
        raise Problem(409, "Tenant already exist")
    most = request.cluster.settings.maxTenants
    if most > 0 and len(request.namespaces.tenants) >= most:
        raise Problem(412, "Exceed the maximum number of tenants")
    request.namespaces.create_tenant(request.named["tenant"], told)
    return await request.done()


async def update_tenant(request: Request) -> Answer:
    """Change a tenant."""
    told = _told(request)
    _tenant(request, f"Tenant {request.named['tenant']} not found")
    request.namespaces.create_tenant(request.named["tenant"], told)
    return await request.done()


async def delete_tenant(request: Request) -> Answer:
    """Delete a tenant that has no namespaces, or by force with all of them."""
    _tenant(request, "Tenant doesn't exist")
    prefix = request.named["tenant"] + "/"
    there = [name for name in request.namespaces.namespaces if name.startswith(prefix)]
    if request.flag("force"):
        if not request.cluster.settings.forceDeleteTenantAllowed:
            raise Problem(405, "Broker doesn't allow forced deletion of tenants")
        for name in there:
            await remove(request, name)
    elif there:
        raise Problem(409, "The tenant still has active namespaces")
    request.broker.journal.delete("tenants", request.named["tenant"])
    return await request.done()


_CLUSTER: Final = "/admin/v2/clusters/{cluster}"
_TENANT: Final = "/admin/v2/tenants/{tenant}"

ROUTES: Final[tuple[Route, ...]] = (
    ("GET", "/admin/v2/clusters", clusters),
    ("GET", _CLUSTER, cluster),
    ("PUT", _CLUSTER, create_cluster),
    ("POST", _CLUSTER, update_cluster),
    ("DELETE", _CLUSTER, delete_cluster),
    ("GET", f"{_CLUSTER}/peers", nothing_of_cluster),
    ("GET", f"{_CLUSTER}/failureDomains", no_domains),
    ("GET", "/admin/v2/tenants", tenants),
    ("GET", _TENANT, tenant),
    ("PUT", _TENANT, create_tenant),
    ("POST", _TENANT, update_tenant),
    ("DELETE", _TENANT, delete_tenant),
)
