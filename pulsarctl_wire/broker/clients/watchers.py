"""Lists of topics, and clients that want to be told when one changes (PIP-145)."""

import re
from collections.abc import Iterable
from itertools import compress
from typing import NamedTuple

from crc32c import crc32c

from pulsarctl_wire.broker.basics.names import TopicName
from pulsarctl_wire.broker.basics.patterns import Pattern, TooMuch
from pulsarctl_wire.broker.basics.refusal import Refused
from pulsarctl_wire.broker.clients.connection import Connection
from pulsarctl_wire.broker.tenancy.namespaces import Namespaces


def topics_hash(names: list[str]) -> str:
    """The hash of a list of topics, as clients compare it."""
    return crc32c(",".join(sorted(names)).encode()).to_bytes(4, "little").hex() if names else "00000000"


def without_domain(pattern: str) -> str:
    """A pattern for names without their domain. Raises Refused."""
    prefix, found, rest = pattern.partition("://")
    if not found:
        return pattern
    rest = rest.partition("://")[0]
    if not rest:
        text = "java.lang.ArrayIndexOutOfBoundsException: Index 1 out of bounds for length 1"
        raise Refused("MetadataError", text)
    for domain in ("non-persistent", "persistent"):
        if prefix.endswith(domain):
            return prefix.removesuffix(domain) + rest
    text = f"java.lang.IllegalArgumentException: Does not support topic domain: {prefix}"
    raise Refused("MetadataError", text)


def compiled(pattern: str) -> Pattern:
    """A pattern for names without their domain. Raises Refused."""
    try:
        return Pattern(pattern)
    except (re.error, TooMuch) as error:
        raise Refused("MetadataError", f"java.util.regex.PatternSyntaxException: {error}") from None


def matching(pattern: Pattern, names: Iterable[TopicName]) -> list[TopicName]:
    """The topics that match: without their domain, and without the number of their partition."""
    names = list(names)
    found = pattern.select(f"{name.namespace}/{name.parent.local}" for name in names)
    return list(compress(names, found))


class Watcher(NamedTuple):
    """A list of topics that a client watches."""

    connection: Connection
    number: int
    namespace: str
    pattern: Pattern


class Watchers:
    """All watchers of a cluster."""

    def __init__(self, namespaces: Namespaces) -> None:
        self._namespaces = namespaces
        self._all: dict[tuple[int, int], Watcher] = {}

    def add(self, watcher: Watcher) -> Watcher:
        """Add a watcher; if the client has one with this number, that one stays, and is returned."""
        return self._all.setdefault((watcher.connection.number, watcher.number), watcher)

    def remove(self, connection: Connection, number: int) -> None:
        """Remove a watcher, if there is one."""
        self._all.pop((connection.number, number), None)

    def remove_all(self, connection: Connection) -> None:
        """Remove the watchers of a connection."""
        self._all = {key: it for key, it in self._all.items() if it.connection is not connection}

    def topics(self, watcher: Watcher) -> list[str]:
        """The topics that a watcher's list has."""
        stored = self._namespaces.stored_topics(watcher.namespace)
        return [name.full for name in matching(watcher.pattern, stored)]

    def changed(self, name: TopicName, *, created: bool) -> None:
        """A topic was made or deleted."""
        for watcher in self._all.values():
            if watcher.namespace == name.namespace and matching(watcher.pattern, [name]):
                watcher.connection.send(
                    "WATCH_TOPIC_UPDATE",
                    watcher_id=watcher.number,
                    new_topics=[name.full] if created else [],
                    deleted_topics=[] if created else [name.full],
                    topics_hash=topics_hash(self.topics(watcher)),
                )
