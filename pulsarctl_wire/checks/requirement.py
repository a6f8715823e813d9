"""What Pulsar's protocol requires of its peers, and how binding that is."""

from typing import Final, NamedTuple

MUST: Final = "must"
"""The public description of the protocol demands it."""
SHOULD: Final = "should"
"""A documented feature, or something that clients rely on."""
OBSERVED: Final = "observed"
"""What Apache Pulsar's own broker or clients do; others may do otherwise."""

LEVELS: Final = (MUST, SHOULD, OBSERVED)
"""All levels, the most binding first."""


class Requirement(NamedTuple):
    """A requirement, checked by a rule of the doctor or by a case of `pwire conform`.

    `why` and `since` (the first release of Pulsar that fulfils it) may be "".
    """

    id: str
    level: str
    what: str
    why: str
    source: str
    since: str
