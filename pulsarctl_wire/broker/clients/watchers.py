"""Lists of topics, and clients that watch them for changes (PIP-145)."""

import re
from collections.abc import Iterable
from itertools import compress
from typing import NamedTuple

from crc32c import crc32c

from pulsarctl_wire.broker.basics.names import TopicName
from pulsarctl_wire.broker.basics.patterns import Pattern, TooComplex
from pulsarctl_wire.broker.basics.refusal import Refused
from pulsarctl_wire.broker.clients.connection import Connection
from pulsarctl_wire.broker.tenancy.namespaces import Namespaces


def hash_topics(names: list[str]) -> str:
    """Return the hash of a list of topics, as clients compare it."""
    return crc32c(",".join(sorted(names)).encode()).to_bytes(4, "little").hex() if names else "00000000"


def without_domain(pattern: str) -> str:
    """Return a pattern without its domain, for names without theirs. Raises Refused."""
    prefix, separator, rest = pattern.partition("://")
    if not separator:
        return pattern
    rest = rest.partition("://")[0]  # Pulsar splits at "://", and takes the second part
    if not rest:
        text = "java.lang.ArrayIndexOutOfBoundsException: Index 1 out of bounds for length 1"
        raise Refused("MetadataError", text)
    for domain in ("non-persistent", "persistent"):
        if prefix.endswith(domain):
            return prefix.removesuffix(domain) + rest
    text = f"java.lang.IllegalArgumentException: Does not support topic domain: {prefix}"
    raise Refused("MetadataError", text)


def compile_pattern(pattern: str) -> Pattern:
    """Compile a pattern for names without their domain. Raises Refused."""
    try:
        return Pattern(pattern)
    except (re.error, TooComplex) as error:
        raise Refused("MetadataError", f"java.util.regex.PatternSyntaxException: {error}") from None


def select_matching(pattern: Pattern, names: Iterable[TopicName]) -> list[TopicName]:
    """Return the topics whose names, without domain and partition number, match."""
    names = list(names)
    matches = pattern.select(f"{name.namespace}/{name.parent.local}" for name in names)
    return list(compress(names, matches))


class Watcher(NamedTuple):
    """A list of topics that a client watches; `number` is the client's id for it."""

    connection: Connection
    number: int
    namespace: str
    pattern: Pattern


class Watchers:
    """All watchers of a cluster."""

    def __init__(self, namespaces: Namespaces) -> None:
        self._namespaces = namespaces
        self._watchers: dict[tuple[int, int], Watcher] = {}

    def add(self, watcher: Watcher) -> Watcher:
        """Add and return a watcher; if the connection has one with this number, keep and return that one."""
        return self._watchers.setdefault((watcher.connection.number, watcher.number), watcher)

    def remove(self, connection: Connection, number: int) -> None:
        """Remove a watcher, if there is one."""
        self._watchers.pop((connection.number, number), None)

    def remove_all(self, connection: Connection) -> None:
        """Remove the watchers of a connection."""
        self._watchers = {
            key: watcher for key, watcher in self._watchers.items() if watcher.connection is not connection
        }

    def list_topics(self, watcher: Watcher) -> list[str]:
        """Return the full names of the persistent topics that match a watcher's pattern."""
        stored = self._namespaces.list_stored(watcher.namespace)
        return [name.full for name in select_matching(watcher.pattern, stored)]

    def on_change(self, name: TopicName, *, is_created: bool) -> None:
        """Send the creation or deletion of a topic to those who watch it."""
        for watcher in self._watchers.values():
            if watcher.namespace == name.namespace and select_matching(watcher.pattern, [name]):
                watcher.connection.send(
                    "WATCH_TOPIC_UPDATE",
                    watcher_id=watcher.number,
                    new_topics=[name.full] if is_created else [],
                    deleted_topics=[] if is_created else [name.full],
                    topics_hash=hash_topics(self.list_topics(watcher)),
                )
