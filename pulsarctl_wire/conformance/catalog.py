"""All cases, by id; importing this imports them."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
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
"""Rooms -> their modules with cases."""


def _load() -> Iterator[Case]:
    for room, names in _MODULES.items():
        for name in names:
            yield from find_cases(import_module(f"pulsarctl_wire.conformance.{room}.{name}"))


CASES: Final[dict[str, Case]] = {case.id: case for case in _load()}
"""All cases by id."""


def select(patterns: list[str]) -> list[Case]:
    """Return the cases whose ids match one of the patterns, which may have wildcards; without any, all."""
    if not patterns:
        return list(CASES.values())
    return [case for case in CASES.values() if any(fnmatchcase(case.id, pattern) for pattern in patterns)]


def list_requirements() -> Iterator[Requirement]:
    """Yield what rules of the doctor and cases require."""
    for rule in RULES:
        requirement = read_requirement(rule)
        if requirement is not None:
            yield requirement
    for case in CASES.values():
        yield case.requirement
