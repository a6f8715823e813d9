"""Names of topics, namespaces and bundles, as Pulsar reads them.

    t                                   persistent://public/default/t
    a/b/t                               persistent://a/b/t
    persistent://a/cluster/b/t          the old form with a cluster; its namespace is a/cluster/b

Source: pulsar-common/…/naming/TopicName.java, NamespaceName.java, NamedEntity.java (4.0).
"""

import re
import zlib
from typing import Final, NamedTuple
from urllib.parse import quote_plus

from pulsarctl_wire.errors import WireError

_ENTITY: Final = re.compile(r"[-=:.\w]+", re.ASCII)
_PARTITION: Final = re.compile(r"(.+)-partition-(0|[1-9][0-9]{0,8})", re.DOTALL)
DOMAINS: Final = ("persistent", "non-persistent")
_TRANSACTION_PREFIXES: Final = tuple(
    f"persistent://pulsar/system/{prefix}"
    for prefix in ("transaction_coordinator_assign", "__transaction_log_")
)
_EVENT_TOPICS: Final = (
    "__change_events",
    *(f"__transaction_buffer_snapshot{suffix}" for suffix in ("", "_segments", "_indexes")),
)


class InvalidName(WireError):
    """A name of a topic or namespace that Pulsar does not accept."""


class TopicName(NamedTuple):
    """A topic's name; `namespace` is "tenant/namespace", or with a cluster in between in old names."""

    domain: str
    namespace: str
    local: str

    @property
    def full(self) -> str:
        """persistent://tenant/namespace/local."""
        return f"{self.domain}://{self.namespace}/{self.local}"

    @property
    def is_persistent(self) -> bool:
        """Whether its messages are stored."""
        return self.domain == "persistent"

    @property
    def partition(self) -> int:
        """The number among the partitions of `parent`; -1 if the topic is not a partition."""
        match = _PARTITION.fullmatch(self.local)
        return int(match[2]) if match else -1

    @property
    def parent(self) -> "TopicName":
        """The partitioned topic of a partition; the name itself if it is not a partition."""
        match = _PARTITION.fullmatch(self.local)
        return self._replace(local=match[1]) if match else self

    @property
    def schema_key(self) -> str:
        """The key by which its schema is stored, and the schema's name: tenant/namespace/local of the parent.

        The local name is URL-encoded; the cluster in old names is left out.
        """
        tenant, *_, namespace = self.namespace.split("/")
        return f"{tenant}/{namespace}/{quote_plus(self.parent.local, safe='*')}"

    @property
    def is_of_transactions(self) -> bool:
        """Whether it is one of Pulsar's own topics for transactions, which no client may open."""
        return self.full.startswith(_TRANSACTION_PREFIXES) or self.local.endswith("__transaction_pending_ack")

    @property
    def is_system(self) -> bool:
        """Whether it is one of Pulsar's own topics."""
        name = self.parent
        return name.is_of_transactions or name.local in _EVENT_TOPICS


def parse_topic(text: str) -> TopicName:
    """Return the topic that `text` names. Raises InvalidName."""
    if "://" not in text:
        parts = [part for part in text.split("/") if part]
        if len(parts) not in (1, 3):
            raise InvalidName(
                f"Invalid short topic name '{text}', it should be in the format of "
                "<tenant>/<namespace>/<topic> or <topic>"
            )
        text = f"persistent://{text if len(parts) == 3 else f'public/default/{parts[0]}'}"
    domain, _, path = text.partition("://")
    if domain.lower() not in DOMAINS:
        raise InvalidName(f"Invalid topic domain: '{domain}'")
    parts = path.split("/", 3)
    if len(parts) < 3:
        raise InvalidName(f"Invalid topic name: {text}")
    *namespace, local = parts
    name = TopicName(domain.lower(), check_namespace("/".join(namespace)), local)
    if not local.strip():
        raise InvalidName(f"Invalid topic name: {text}. Topic local name must not be blank.")
    return name


def check_namespace(text: str) -> str:
    """Return `text`, if it can be the name of a namespace. Raises InvalidName."""
    parts = text.split("/")
    if len(parts) not in (2, 3) or not all(parts):
        raise InvalidName(f"Invalid namespace format. namespace: {text}")
    for part in parts:
        if not is_entity(part):
            raise InvalidName(f"Invalid named entity: {part}")
    return text


def is_entity(text: str) -> bool:
    """Return whether `text` can be the name of a tenant, cluster or namespace."""
    return _ENTITY.fullmatch(text) is not None


def find_bundle_number(name: TopicName, bundles: int) -> int:
    """Return the number of a topic's bundle; its namespace is cut into `bundles` equal ones."""
    return zlib.crc32(name.full.encode("utf-8", "surrogateescape")) * bundles >> 32


def format_bundle_name(number: int, bundles: int) -> str:
    """Return the name of bundle `number` of `bundles`, such as 0x40000000_0x80000000."""
    # the last bound is 0xffffffff
    bounds = [(index << 32) // bundles - (index == bundles) for index in (number, number + 1)]
    return "_".join(f"0x{bound:08x}" for bound in bounds)
