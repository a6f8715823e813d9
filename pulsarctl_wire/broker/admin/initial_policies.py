"""The policies that a namespace is created with: of the same shapes as those that are set later."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from pulsarctl_wire.broker.admin.base import Problem
from pulsarctl_wire.broker.admin.policies import OF_NAMESPACE
from pulsarctl_wire.broker.admin.quotas import QUOTAS, read_quota
from pulsarctl_wire.broker.admin.shapes import RATE, scalar
from pulsarctl_wire.broker.tenancy.policy_names import PER_CLUSTER

Reader = Callable[[Any], Any]
"""Takes a JSON value, and returns what it means. Raises Problem."""


def _object(body: Any) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise Problem(400, "An object is expected")
    return body


def _texts(body: Any) -> list[str]:
    if not isinstance(body, list) or not all(isinstance(each, str) for each in body):
        raise Problem(400, "A list of strings is expected")
    return body


def _each(read: Reader) -> Reader:
    """Reads an object whose names may be any."""
    return lambda body: {name: read(each) for name, each in _object(body).items()}


def _known(readers: Mapping[str, Reader]) -> Reader:
    """Reads an object with these names; others are ignored."""
    return lambda body: {
        name: read(body[name]) for name, read in readers.items() if _object(body).get(name) is not None
    }


_RIGHTS: Final[dict[str, Reader]] = {
    "namespace_auth": _each(_texts),
    "destination_auth": _each(_each(_texts)),
    "subscription_auth_roles": _each(_texts),
}

read_policies: Final = _known(
    {
        **{each.name: each.body.read for each in OF_NAMESPACE if each.name not in PER_CLUSTER},
        **{each.name: _each(each.body.read) for each in OF_NAMESPACE if each.name in PER_CLUSTER},
        "bundles": _known({"numBundles": lambda number: scalar(number, int)}),
        "replication_clusters": _texts,
        "clusterDispatchRate": _each(RATE.read),
        "backlog_quota_map": _known(dict.fromkeys(QUOTAS, read_quota)),
        "auth_policies": _known(_RIGHTS),
        "properties": _each(str),
    }
)
"""Reads the policies of a namespace, by their names; what is no policy is ignored. Raises Problem."""
