"""Endpoints of Pulsar's admin API that this broker does not implement; they answer 501."""

import re
from typing import Final

_V: Final = r"/admin/v[23]"
_ROWS: Final = (
    (rf"{_V}/functions(/.*)?", "functions"),
    (rf"{_V}/sinks?(/.*)?", "sinks"),
    (rf"{_V}/sources?(/.*)?", "sources"),
    (rf"{_V}/packages(/.*)?", "packages"),
    (rf"{_V}/worker(-stats)?(/.*)?", "function workers"),
    (rf"{_V}/bookies(/.*)?", "bookies"),
    (rf"{_V}/resource-quotas(/.*)?", "resource quotas"),
    (rf"{_V}/resourcegroups(/.*)?", "resource groups"),
    (rf"{_V}/proxy-stats(/.*)?", "proxy statistics"),
    (rf"{_V}/broker-stats/.*", "such broker statistics"),
    (rf"{_V}/clusters/[^/]+/namespaceIsolationPolicies(/.*)?", "isolation policies"),
    (rf"{_V}/clusters/[^/]+/failureDomains(/.*)?", "failure domains"),
    (rf"{_V}/clusters/[^/]+/migrate(/.*)?", "migration of clusters"),
    (rf"{_V}/brokers/(shutdown|log4j|dump).*", "such operations on brokers"),
    (rf"{_V}/transactions/.*", "such statistics of transactions"),
    (
        rf"{_V}/namespaces/[^/]+/[^/]+/(.*/)?(offload\w*|removeOffloadPolicies|scanOffloadedLedgers)",
        "offloading",
    ),
    (rf"{_V}/namespaces/[^/]+/[^/]+/(antiAffinity|resourcegroup(/.*)?)", "placement of namespaces"),
    (rf"{_V}/namespaces/[^/]+/[^/]+/persistence/bookieAffinity", "bookies"),
    (rf"{_V}/namespaces/[^/]+/[^/]+/(entryFilters|migration)", "entry filters and migration"),
    (rf"{_V}/namespaces/[^/]+/[^/]+/[^/]+/(split|topicHashPositions)", "splitting of bundles"),
    (rf"{_V}/(non-)?persistent/[^/]+/[^/]+/[^/]+/offload(Policies)?", "offloading"),
    (
        rf"{_V}/(non-)?persistent/[^/]+/[^/]+/[^/]+/(entryFilters|shadowTopics)",
        "entry filters and shadow topics",
    ),
    (rf"{_V}/(non-)?persistent/.*/replicatedSubscriptionStatus", "replicated subscriptions"),
    (rf"{_V}/(non-)?persistent/[^/]+/[^/]+/[^/]+/backlog", "estimates of unloaded topics"),
    (rf"{_V}/namespaces/[^/]+/antiAffinity/[^/]+", "placement of namespaces"),
    (rf"{_V}/namespaces/(grant|revoke)PermissionsOnTopics", "permissions of several topics at once"),
    (r"/ws(/.*)?", "websocket service"),
    (r"/topics(/.*)?", "REST producers and consumers"),
)
_PATTERNS: Final = [(re.compile(pattern), name) for pattern, name in _ROWS]


def find_feature(path: str) -> str:
    """Return the name of the Pulsar feature that a path belongs to; "" if there is none."""
    return next((name for pattern, name in _PATTERNS if pattern.fullmatch(path)), "")
