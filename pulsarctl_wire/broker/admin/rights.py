"""Who may do what with the admin API, if the broker asks for rights.

Superusers may do everything; those who rule a tenant, everything in it. Others may look up and look at topics
that they may produce to or consume from.
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
    access, named = request.cluster.access, request.named
    if access.is_super(role) or path in _FREE or path.startswith(_FREE_BELOW):
        return True
    if path.startswith(_ONLY_SUPERUSERS) or "tenant" not in named:
        return False
    if named["tenant"] not in request.namespaces.tenants:
        raise Problem(404, "Tenant does not exist")
    if role in request.namespaces.tenants[named["tenant"]].get("adminRoles", ()):
        return True
    if method != "GET" or "namespace" not in named:
        return False
    if "topic" in named:
        return access.is_allowed(role, request.topic_name, "produce", "consume")
    return path.endswith("/topics") and access.can_list(role, f"{named['tenant']}/{named['namespace']}")
