"""Counts TLS connections by why they were not opened."""

from collections import Counter
from typing import Final

from pulsarctl_wire.wire.session.ending import EndedConnection

_IN_SPLITS: Final = "read in splits, where none is opened; --keylog FILE opens it"


class TlsCounts:
    """Counts by reason. Those of several captures, or of parts of one, can be merged."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()  # by kind of reason; "": opened
        self._reasons: dict[str, str] = {}  # the first one of each kind

    def add(self, ending: EndedConnection) -> None:
        """Count a connection that has ended, if it is one of TLS."""
        tls = ending.connection.tls
        if tls is not None or ending.protocol == "TLS":
            reason = _IN_SPLITS if tls is None else "" if tls.is_opened else tls.reason or "no data in it"
            kind = reason.partition(" for client random ")[0]
            self._counts[kind] += 1
            self._reasons.setdefault(kind, reason)

    def merge(self, other: "TlsCounts") -> None:
        """Add the counts of `other`."""
        self._counts.update(other._counts)
        self._reasons = {**other._reasons, **self._reasons}

    def describe(self, secrets: int = 0) -> str:
        """Say how many connections were opened, and why others were not; "" if there were none.

        `secrets` is the number of secrets that are known.
        """
        if not self._counts:
            return ""
        total = self._counts.total()
        texts = [f"{self._counts['']} of {total} connection{'s' * (total != 1)} opened"]
        for kind, count in self._counts.most_common():
            others = "" if count == 1 else f" (and {count - 1} more)"
            if kind:
                texts.append(f"{self._reasons[kind]}{others}")
        if "no secret" in self._counts:
            text = f"{secrets:,} secret{'s' * (secrets != 1)} of other connections known"
            texts.append(text if secrets else "--keylog FILE names a key log")
        return "; ".join(texts)
