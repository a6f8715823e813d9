"""Regular expressions of clients, matched in bounded time and memory.

Pulsar has RE2/J for these, and Java's own for what that does not know, such as lookarounds. Here it is
`regex`, which knows both and can be given a time limit; what makes it large is refused beforehand.
"""

import math
import re
from collections.abc import Iterable
from typing import Final

import regex

_LONGEST: Final = 5_000
_MAX_REPEATS: Final = 1_000
"""What all counts in braces may come to together: the parts that they repeat are compiled so often."""

_SECONDS: Final = 0.25
_LEAST_SECONDS: Final = 0.001
"""How long the names of a list may take to match together, and what each of them may take in any case."""

_COUNTS: Final = re.compile(r"\{(\d*),?(\d*)\}")
_UNKNOWN: Final = re.compile(
    r"\(\?(?![:=!>]|<[=!a-zA-Z]|[imsux]*(?:-[imsux]+)?[:)])|(?<!\\)(?<!\\[pP])\{(?!\d+(?:,\d*)?\})"
)
"""What `regex` knows and Java does not: recursion, conditions, approximate matches."""


class TooMuch(Exception):
    """An expression takes more than it is worth."""


def _error(what: str, text: str, at: int) -> re.error:
    """Return an error with the text that Java has for it, if that is known."""
    if what == "Missing )":
        what = "Unclosed group"
    elif what == "Unterminated character set":
        what, at = "Unclosed character class", len(text) - 1
    elif what in ("Nothing to repeat", "Multiple repeat"):
        what = f"Dangling meta character '{text[at : at + 1]}'"
    caret = f"\n{' ' * at}^" if at < len(text) else ""
    return re.error(f"{what} near index {at}\n{text}{caret}")


class Pattern:
    """A regular expression. Raises re.error, TooMuch."""

    def __init__(self, text: str) -> None:
        repeats = math.prod(max(int(least or 0), int(most or 0), 1) for least, most in _COUNTS.findall(text))
        if len(text) > _LONGEST or repeats > _MAX_REPEATS:
            raise TooMuch("it is too large")
        if found := _UNKNOWN.search(text):
            raise _error("Unknown construct", text, found.start())
        try:
            self._pattern = regex.compile(text)
        except regex.error as error:
            what, _, at = str(error).partition(" at position ")
            raise _error(what.capitalize(), text, int(at.split()[0]) if at else 0) from None
        except (RecursionError, OverflowError) as error:
            raise TooMuch(str(error)) from None

    def select(self, names: Iterable[str]) -> list[bool]:
        """Of each name, whether all of it matches. Those for which it takes too long do not."""
        names = list(names)
        limit = max(_SECONDS / max(len(names), 1), _LEAST_SECONDS)
        return [self._matches(name, limit) for name in names]

    def _matches(self, name: str, limit: float) -> bool:
        try:
            return self._pattern.fullmatch(name, timeout=limit) is not None
        except TimeoutError:
            return False
