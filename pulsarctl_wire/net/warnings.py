"""What a session warns of: a few times whatever happens again and again, and in the end how often it was."""

from collections import Counter
from collections.abc import Callable
from typing import Final

SAID: Final = 10
"""Warnings of one kind that are said."""

LONGEST: Final = 2000
"""Characters of a warning: what a peer sent may be in it."""


class Warnings:
    """Passes warnings on to `say`, each one line."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._counts: Counter[str] = Counter()

    def __call__(self, text: str, kind: str = "") -> None:
        """Warn of `text`. What a peer can bring about at will has a `kind`, a phrase that names it."""
        if kind:
            self._counts[kind] += 1
        if self._counts[kind] <= SAID:
            self._say(text if len(text) <= LONGEST else f"{text[:LONGEST]}…")

    def close(self) -> None:
        """Say how often it was that nothing was said."""
        for kind, count in self._counts.items():
            if count > SAID:
                self._say(f"{kind}: {count - SAID:,} more times")
        self._counts.clear()
