"""The policies in the body that creates a namespace; their shapes are those of policies set later."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from pulsarctl_wire.broker.admin.base import Problem
from pulsarctl_wire.broker.admin.policies import OF_NAMESPACE
from pulsarctl_wire.broker.admin.quotas import QUOTAS, read_quota
from pulsarctl_wire.broker.admin.shapes import RATE, read_scalar
from pulsarctl_wire.broker.tenancy.policy_names import PER_CLUSTER

Reader = Callable[[Any], Any]
"""Takes a JSON value, and returns its meaning. Raises Problem."""


def _object(body: Any) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise Problem(400, "An object is expected")
    return body


def _texts(body: Any) -> list[str]:
    if not isinstance(body, list) or not all(isinstance(text, str) for text in body):
        raise Problem(400, "A list of strings is expected")
    return body


def _map_of(read: Reader) -> Reader:
    """Return a reader of an object with any names."""
    return lambda body: {name: read(value) for name, value in _object(body).items()}


def _fields_of(readers: Mapping[str, Reader]) -> Reader:
    """Return a reader of an object with these names; others are ignored."""
    return lambda body: {
        name: read(body[name]) for name, read in readers.items() if _object(body).get(name) is not None
    }


_RIGHTS: Final[dict[str, Reader]] = {
    "namespace_auth": _map_of(_texts),
    "destination_auth": _map_of(_map_of(_texts)),
    "subscription_auth_roles": _map_of(_texts),
}

read_policies: Final = _fields_of(
    {
        **{policy.name: policy.body.read for policy in OF_NAMESPACE if policy.name not in PER_CLUSTER},
        **{policy.name: _map_of(policy.body.read) for policy in OF_NAMESPACE if policy.name in PER_CLUSTER},
        "bundles": _fields_of({"numBundles": lambda number: read_scalar(number, int)}),
        "replication_clusters": _texts,
        "clusterDispatchRate": _map_of(RATE.read),
        "backlog_quota_map": _fields_of(dict.fromkeys(QUOTAS, read_quota)),
        "auth_policies": _fields_of(_RIGHTS),
        "properties": _map_of(str),
    }
)
"""Reads the policies of a namespace, by their names; other names are ignored. Raises Problem."""
