"""Topic names as Pulsar reads them: `t` is `persistent://public/default/t`."""

import re
from typing import Final

from pulsarctl_wire.wire.fields import as_text

LONGEST_NAME: Final = 2_048
"""Characters of a topic name that are remembered."""

_PARTITION: Final = re.compile(r"-partition-(?:0|[1-9][0-9]*)\Z")


def full_topic(name: str | bytes) -> str:
    """The full name of a topic given in any of Pulsar's spellings; other texts as they are.

    `t` and `tenant/namespace/t` get the domain (and tenant and namespace) they leave out. Bytes are
    what protobuf gives for a name that is not UTF-8.
    """
    name = as_text(name[:LONGEST_NAME])
    if "://" in name:
        return name
    parts = name.count("/")
    if parts == 0 and name:
        return f"persistent://public/default/{name}"
    return f"persistent://{name}" if parts == 2 else name


def without_partition(topic: str) -> str:
    """The topic that a partition belongs to (its `-partition-N` taken off); others as they are."""
    return _PARTITION.sub("", topic)
