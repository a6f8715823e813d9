"""Authorization of requests of the admin API.

Superusers may do everything; a tenant's admins, everything in it. Others may look up and inspect topics that
they may produce to or consume from.
"""

from typing import Final

from pulsarctl_wire.broker.admin.base import Problem, Request

_FREE: Final = (
    "/metrics",
    "/metrics/",
    "/admin/v2/brokers/version",
    "/admin/v2/brokers/ready",
    "/admin/v2/clusters",
)
_TRANSACTIONS: Final = "/admin/v3/transactions"
_FREE_BELOW: Final = (f"{_TRANSACTIONS}/coordinators", f"{_TRANSACTIONS}/transactionMetadata/")
_ONLY_SUPERUSERS: Final = ("/admin/v2/tenants/", "/admin/v2/clusters/", "/admin/v2/brokers")


def is_allowed(request: Request, method: str, path: str, role: str) -> bool:
    """Return whether a role may make a request. Raises InvalidName, Problem."""
    access, parts = request.cluster.access, request.parts
    if access.is_super(role) or path in _FREE or path.startswith(_FREE_BELOW):
        return True
    if path.startswith(_ONLY_SUPERUSERS) or "tenant" not in parts:
        return False
    if parts["tenant"] not in request.namespaces.tenants:
        raise Problem(404, "Tenant does not exist")
    if role in request.namespaces.tenants[parts["tenant"]].get("adminRoles", ()):
        return True
    if method != "GET" or "namespace" not in parts:
        return False
    if "topic" in parts:
        return access.is_allowed(role, request.topic_name, "produce", "consume")
    return path.endswith("/topics") and access.can_list(role, f"{parts['tenant']}/{parts['namespace']}")
