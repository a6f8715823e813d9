"""`Requirement`: something that the protocol, or real brokers and clients, demand of one side."""

from typing import Final, NamedTuple

MUST: Final = "must"
"""The protocol's description demands it, or the other side breaks otherwise."""
SHOULD: Final = "should"
"""A documented feature, or something that the other side relies on."""
OBSERVED: Final = "observed"
"""What real brokers and clients do."""


class Requirement(NamedTuple):
    """What is demanded, how strictly (`level`), why, by which source, and since which Pulsar version."""

    id: str
    level: str
    what: str
    why: str
    source: str
    since: str
