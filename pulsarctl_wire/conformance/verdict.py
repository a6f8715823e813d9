"""`Outcome`: what came of a case; and which cases can be judged at all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from pulsarctl_wire.conformance.basics.case import Case
from pulsarctl_wire.conformance.basics.settings import COMMANDS, MEANINGS
from pulsarctl_wire.conformance.basics.transcript import Transcript

PASSED: Final = "passed"
FAILED: Final = "failed"
NOT_APPLICABLE: Final = "not applicable"
ERROR: Final = "error"
"""The case could not be judged."""

VERDICTS: Final = (PASSED, FAILED, NOT_APPLICABLE, ERROR)
"""All verdicts."""

Release = tuple[int, int]
"""The first two numbers of a release of Pulsar."""

_RELEASE: Final = re.compile(r"(\d{1,4})\.(\d{1,4})")
_NOCREATE_CASES: Final = {"framing", "connect", "keepalive", "nocreate"}
"""The topics (`Case.topic`) of cases that can be judged on a broker that creates no Pulsar topics itself."""


class Outcome(NamedTuple):
    """The outcome of a case: its verdict, and the `reason` if it was not judged.

    If the case has failed, `expected` and `actual` are texts; `what` names their subject, or is "".
    `output` is what the client has written, a line each.
    """

    case: Case
    verdict: str
    seconds: float = 0.0
    reason: str = ""
    what: str = ""
    expected: str = ""
    actual: str = ""
    transcript: Transcript | None = None
    output: Sequence[str] = ()


def parse_release(text: str) -> Release | None:
    """Return the release in a text such as "4.0" or "Pulsar Server2.10.1"; None if there is none."""
    match = _RELEASE.search(text)
    return (int(match[1]), int(match[2])) if match else None


def find_obstacle(
    case: Case, settings: frozenset[str], is_named: bool, release: Release | None = None
) -> str:
    """Return why a case cannot be judged on a broker of a `release` with these settings; "" if it can.

    Of a client, `settings` are the modes that it has commands for. `is_named` says whether the user asked
    for the case by its id.
    """
    since = parse_release(case.since)
    if since is not None and release is not None and release < since and not is_named:
        return f"is so since Pulsar {case.since}"
    needs = [(MEANINGS | COMMANDS)[name] for name in case.needs if name not in settings]
    if needs:
        return f"needs {' and '.join(needs)}"
    conflicts = [MEANINGS[name] for name in case.without if name in settings]
    if conflicts:
        return f"the broker has {' and '.join(conflicts)}"
    if "nocreate" in settings and case.topic not in _NOCREATE_CASES:
        return f"the broker has {MEANINGS['nocreate']}"
    # cases that run at once would exceed this limit together
    if "lookups" in settings and "lookups" not in case.needs:
        return f"the broker has {MEANINGS['lookups']}"
    if case.spoils and not is_named:
        return "leaves something behind that later runs would find: runs only if named"
    return ""
