"""All cases, by id. Importing this module imports the cases for brokers."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from typing import Final

from pulsarctl_wire.checks.registry import RULES
from pulsarctl_wire.checks.requirement import Requirement
from pulsarctl_wire.checks.rule import read_requirement
from pulsarctl_wire.conformance.basics.case import Case, find_cases

_MODULES: Final = {
    "connecting": ("framing", "connect", "keepalive", "version", "auth", "auth_roles", "haproxy"),
    "discovering": ("lookup", "partitions", "topics", "watch", "schema", "nocreate"),
    "producing": (
        *("producer", "access", "send", "send_topics", "dedup", "encryption", "delayed", "quota", "bem"),
        *("txn", "txn_acks"),
    ),
    "consuming": (
        *(
            "subscribe",
            "subscribe_shared",
            "subscribe_durability",
            "subscribe_metadata",
            "subscribing",
            "unsubscribe",
            "flow",
            "ack",
        ),
        *(
            "redeliver",
            "seek",
            "lastid",
            "failover",
            "keyshared",
            "endoftopic",
            "nonpersistent",
            "compaction",
        ),
        "limits",
    ),
}
"""Rooms -> their modules with cases for brokers."""

_CLIENT_MODULES: Final[dict[str, tuple[str, ...]]] = {
    "clients": ("producing", "consuming", "damage", "connecting", "lookup", "framing", "real")
}

Cases = dict[str, Case]
"""Cases by id."""


def _load(modules: dict[str, tuple[str, ...]]) -> Cases:
    cases = (
        case
        for room, names in modules.items()
        for name in names
        for case in find_cases(import_module(f"pulsarctl_wire.conformance.{room}.{name}"))
    )
    return {case.id: case for case in cases}


CASES: Final = _load(_MODULES)
"""All cases for brokers."""


@cache
def load_client_cases() -> Cases:
    """Import the cases for clients, and return them: only they need the embedded broker."""
    return _load(_CLIENT_MODULES)


def select(patterns: list[str], cases: Cases = CASES) -> list[Case]:
    """Return the cases whose ids match a pattern, which may have wildcards; without patterns, all."""
    if not patterns:
        return list(cases.values())
    return [case for case in cases.values() if any(fnmatchcase(case.id, pattern) for pattern in patterns)]


def list_requirements() -> Iterator[Requirement]:
    """Yield the requirements of the doctor's rules, then those of all cases."""
    for rule in RULES:
        requirement = read_requirement(rule)
        if requirement is not None:
            yield requirement
    for case in (*CASES.values(), *load_client_cases().values()):
        yield case.requirement
