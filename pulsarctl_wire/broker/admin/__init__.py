"""The admin API (REST v2 and v3), without HTTP: a request in, an answer out.

A handler is a coroutine of the core; its route is a row of the `ROUTES` of its family. Requests that
only Pulsar supports are answered with 501 (unsupported.py).

Superusers may do everything; a tenant's admins, everything in it. Others may look up and inspect topics that
they may produce to or consume from, and list the topics of a namespace that grants them one of these.
"""

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote, urlencode

from pulsarctl_wire.broker.admin import (
    brokers,
    messages,
    namespaces,
    policies,
    quotas,
    schemas,
    statistics,
    subscriptions,
    tenants,
    topics,
    transactions,
    unsupported,
)
from pulsarctl_wire.broker.admin.base import Answer, Handler, Moved, Problem, Request
from pulsarctl_wire.broker.basics.names import InvalidName
from pulsarctl_wire.broker.basics.refusal import Refused
from pulsarctl_wire.broker.cluster.cluster import Broker

__all__ = ["Answer", "answer"]

_STATUS: Final = {
    **dict.fromkeys(("TopicNotFound", "SubscriptionNotFound"), 404),
    **dict.fromkeys(("InvalidTopicName", "ConsumerBusy", "MetadataError"), 412),
    **dict.fromkeys(("IncompatibleSchema", "TransactionConflict"), 409),
    "ServiceNotReady": 503,
}
_FAMILIES: Final = (
    brokers,
    tenants,
    namespaces,
    policies,
    quotas,
    topics,
    subscriptions,
    messages,
    statistics,
    schemas,
    transactions,
)

_DOMAIN: Final = "(?P<domain>persistent|non-persistent)"


def _compile(template: str) -> re.Pattern[str]:
    parts = template.replace("{domain}", _DOMAIN)
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", parts))


def _rank(template: str) -> tuple[bool, ...]:
    """Return the sort key that puts fixed words before names, from the left."""
    return tuple(part.startswith("{") for part in template.split("/"))


def _build_table() -> dict[int, list[tuple[str, re.Pattern[str], Handler]]]:
    """Return the routes by the number of slashes in their paths."""
    table: dict[int, list[tuple[str, re.Pattern[str], Handler]]] = {}
    routes = [route for family in _FAMILIES for route in family.ROUTES]
    for method, template, handler in sorted(routes, key=lambda route: _rank(route[1])):
        table.setdefault(template.count("/"), []).append((method, _compile(template), handler))
    return table


_ROUTES: Final = _build_table()


async def answer(
    broker: Broker, method: str, path: str, query: Mapping[str, str], body: Any, role: str | None = None
) -> Answer:
    """Answer a request; `path` may be percent-encoded, `body` is parsed JSON or None.

    `role` is the client's; None may do everything.
    """
    has_other_method = False
    for route_method, pattern, handler in _ROUTES.get(path.count("/"), ()):
        match = pattern.fullmatch(path)
        if match is None:
            continue
        if route_method != method:
            has_other_method = True
            continue
        parts = {name: unquote(value) for name, value in match.groupdict().items()}
        request = Request(broker, parts, query, body)
        try:
            if role is not None and not _is_allowed(request, method, path, role):
                return Answer(401, {"reason": f"{role or 'An anonymous client'} may not {method} {path}"})
            return await handler(request)
        except Moved as moved:
            return _redirect(moved, path, query)
        except Problem as problem:
            return Answer(problem.status, {"reason": str(problem)})
        except Refused as refused:
            return Answer(_STATUS.get(refused.code, 500), {"reason": str(refused)})
        except InvalidName as error:
            return Answer(412, {"reason": str(error)})
    missing = unsupported.find_feature(path)
    if missing:
        return Answer(501, {"reason": f"This broker has no {missing}"})
    if has_other_method:
        return Answer(405, {"reason": "HTTP 405 Method Not Allowed"})
    return Answer(404, {"reason": "HTTP 404 Not Found"})


def _redirect(moved: Moved, path: str, query: Mapping[str, str]) -> Answer:
    parameters = urlencode({**query, "authoritative": str(moved.authoritative).lower()})
    return Answer(307, None, {"Location": f"{moved.owner.http_url}{path}?{parameters}"}, moved.owner)


# -- who may do what

_FREE: Final = (
    "/metrics",
    "/metrics/",
    "/admin/v2/brokers/version",
    "/admin/v2/brokers/ready",
    "/admin/v2/clusters",
)
_TRANSACTIONS: Final = "/admin/v3/transactions"
_FREE_BELOW: Final = (f"{_TRANSACTIONS}/coordinators", f"{_TRANSACTIONS}/transactionMetadata/")
"""Every role may request the paths in `_FREE`, and those that begin with one of `_FREE_BELOW`."""

_ONLY_SUPERUSERS: Final = ("/admin/v2/tenants/", "/admin/v2/clusters/", "/admin/v2/brokers")


def _is_allowed(request: Request, method: str, path: str, role: str) -> bool:
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
