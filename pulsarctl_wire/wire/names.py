"""Topic names, parsed and completed as Pulsar does: `t` is `persistent://public/default/t`."""

import re
from collections.abc import Sequence
from typing import Final

from pulsarctl_wire.wire.fields import as_text

MAX_NAME_LENGTH: Final = 2_048
"""Maximum number of characters of a topic name that are kept."""

_WITH_CLUSTERS: Final = ("persistent", "non-persistent")  # domains of topics whose names may have a cluster
_PARTITION: Final = re.compile(r"-partition-(?:0|[1-9][0-9]*)\Z")


def full_topic(name: str | bytes) -> str:
    """Complete the name of a topic, from any of the forms that Pulsar accepts; other texts are unchanged.

    `t` and `tenant/namespace/t` get the missing domain (and tenant and namespace). `name` is bytes if
    protobuf received a name that is not UTF-8.
    """
    name = as_text(name[:MAX_NAME_LENGTH])
    if "://" in name:
        return name
    slashes = name.count("/")
    if slashes == 0 and name:
        return f"persistent://public/default/{name}"
    return f"persistent://{name}" if slashes == 2 else name


def check_topic(name: str) -> str:
    """Return the full name of a topic that a user named. Raises ValueError if it is not a topic name."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name[:80]!r} is not a valid topic: it is not UTF-8") from None
    topic = full_topic(name)
    domain, separator, path = topic.partition("://")
    parts = path.split("/")
    # "topic" and "segment" are the domains of scalable topics and of their segments
    if separator and domain not in ("persistent", "non-persistent", "topic", "segment"):
        raise ValueError(f"{name[:80]!r} is not a valid topic: use persistent:// or non-persistent://")
    if len(parts) < 3 or not all(parts) or len(name) > MAX_NAME_LENGTH:
        raise ValueError(
            f"{name[:80]!r} is not a valid topic: "
            "use NAME, TENANT/NAMESPACE/NAME or persistent://TENANT/NAMESPACE/NAME"
        )
    return topic


def check_namespace(name: str) -> str:
    """Check a `tenant/namespace` (older: `tenant/cluster/namespace`) from a user. Raises ValueError."""
    if not all(name.split("/")) or not 1 <= name.count("/") <= 2 or "://" in name:
        raise ValueError(f"{name[:80]!r} is not a valid namespace: use TENANT/NAMESPACE")
    return name


def namespace_of(topic: str) -> str:
    """Return the `tenant/namespace` (older: `tenant/cluster/namespace`) of a full topic name."""
    domain, _, path = topic.partition("://")
    return "/".join(path.split("/", 3 if domain in _WITH_CLUSTERS else 2)[:-1])


def partition_name(topic: str, index: int) -> str:
    """Return the name of partition `index` of a partitioned topic."""
    return f"{topic}-partition-{index}"


def partition_index(topic: str) -> int:
    """Return the partition number in a topic's name; -1 if the topic is not a partition."""
    match = _PARTITION.search(topic)
    return int(match[0].rpartition("-")[2]) if match else -1


def without_partition(topic: str) -> str:
    """Remove `-partition-N` from a partition's name; other topics are unchanged."""
    return _PARTITION.sub("", topic)


def id_text(ids: Sequence[tuple[int, int]], partition: int = -1, index: int | None = None) -> str:
    """Format a message id: 12:0, 12:0:2 (of partition 2), 12:0[3] (of a batch), 12:0…12:4 (of chunks).

    `ids` are the (ledger, entry) pairs of its chunks, or of its single entry.
    """
    suffix = f":{partition}" if partition >= 0 else ""
    texts = [f"{ledger}:{entry}{suffix}" for ledger, entry in ids]
    if len(texts) > 1:
        return f"{texts[0]}…{texts[-1]}"
    return texts[0] if index is None else f"{texts[0]}[{index}]"
