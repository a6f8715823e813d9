"""Namespaces and their policies in the admin API."""

from typing import Final

from pulsarctl_wire.broker.admin.base import Answer, Problem, Request, Route


async def create(request: Request) -> Answer:
    """Create a namespace."""
    namespaces = request.broker.cluster.namespaces
    name = f"{request.named['tenant']}/{request.named['namespace']}"
    if request.named["tenant"] not in namespaces.tenants:
        raise Problem(404, "Tenant does not exist")
    if name in namespaces.namespaces:
        raise Problem(409, "Namespace already exists")
    namespaces.create(name, request.body or {})
    await request.broker.journal.synced()
    return Answer()


_NAMESPACE: Final = "/admin/v2/namespaces/{tenant}/{namespace}"


async def grant(request: Request) -> Answer:
    """Let a role do some actions in a namespace."""
    namespaces = request.broker.cluster.namespaces
    policies = namespaces.policies(request.namespace).get("auth_policies", {})
    granted = {**policies.get("namespaceAuth", {}), request.named["role"]: request.body}
    namespaces.set_policy(request.namespace, "auth_policies", {**policies, "namespaceAuth": granted})
    await request.broker.journal.synced()
    return Answer()


def _setter(policy: str) -> Route:
    path, name = policy.split()

    async def put(request: Request) -> Answer:
        """Set a policy."""
        request.broker.cluster.namespaces.set_policy(request.namespace, name, request.body)
        await request.broker.journal.synced()
        return Answer()

    return "POST", f"{_NAMESPACE}/{path}", put


ROUTES: Final[tuple[Route, ...]] = (
    ("PUT", _NAMESPACE, create),
    ("POST", f"{_NAMESPACE}/permissions/{{role}}", grant),
    _setter("encryptionRequired encryption_required"),
)
