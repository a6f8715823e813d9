"""Findings of one cause as one finding: a broker restarts, and many clients fail in the same way.

Findings have one cause if they have the same rule and certainty, if the parts of them that the rule names in
`Rule.cause` are equal, and if each begins at most `NEAR` after the ones before it ended.
"""

from collections.abc import Iterable
from typing import Final

from pulsarctl_wire.checks.finding import Finding

NEAR: Final = 60_000_000_000
"""In ns: clients that fail wait for up to a minute before they try again."""


def fold(findings: Iterable[Finding]) -> list[Finding]:
    """Return the first finding of each cause, with the later ones in `others`.

    The causes are in the order in which they appear in `findings`.
    """
    folder = Folder()
    groups: list[list[tuple[int, Finding]]] = []
    for entry in sorted(enumerate(findings), key=lambda entry: entry[1].first_ns):
        number = folder.find_group(entry[1])
        if number == len(groups):
            groups.append([])
        groups[number].append(entry)
    groups.sort(key=lambda group: min(index for index, _ in group))
    return [_merge([finding for _, finding in group]) for group in groups]


class Folder:
    """Numbers causes in the order in which their findings are passed."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, ...], tuple[int, int]] = {}  # number, and time of the last finding
        self._count = 0

    def find_group(self, finding: Finding) -> int:
        """Return the number of a finding's cause; a new cause gets the next number, counted from 0."""
        key = (finding.rule, finding.certainty, *finding.cause)
        number, last_ns = self._groups.get(key, (self._count, finding.first_ns))
        if finding.first_ns - last_ns > NEAR:
            number = self._count
        self._count = max(self._count, number + 1)
        self._groups[key] = number, max(last_ns, finding.last_ns)
        return number


def _merge(group: list[Finding]) -> Finding:
    """Return the first finding of a group, with the others."""
    first, *others = group
    if not others:
        return first
    merged = Finding(
        first.rule,
        first.severity,
        first.certainty,
        first.subject,
        first.connection,
        first.evidence,
        first.explanation,
        first.advice,
    )
    merged.cause, merged.others = first.cause, others
    merged.count = sum(finding.count for finding in group)
    merged.first_ns, merged.last_ns = first.first_ns, max(finding.last_ns for finding in group)
    return merged
