"""Regular expressions of clients, matched in bounded time and memory.

Pulsar uses RE2/J for these, and Java's own engine for what RE2/J lacks, such as lookarounds. This broker uses
the package `regex`, which knows the syntax of both and has a time limit; expressions that would take too much
memory when compiled are refused.
"""

import math
import re
from collections.abc import Iterable
from typing import Final

import regex

_MAX_LENGTH: Final = 5_000
_MAX_REPEATS: Final = 1_000
"""The largest product of all counts in braces: repeated parts are compiled once per repetition."""

_LIST_SECONDS: Final = 0.25
_MIN_SECONDS: Final = 0.001
"""The time limit for a list of names together, and what each name may take in any case."""

_COUNTS: Final = re.compile(r"\{(\d*),?(\d*)\}")
_UNKNOWN_SYNTAX: Final = re.compile(
    r"\(\?(?![:=!>]|<[=!a-zA-Z]|[imsux]*(?:-[imsux]+)?[:)])|(?<!\\)(?<!\\[pP])\{(?!\d+(?:,\d*)?\})"
)
"""Syntax of `regex` that Java does not know: recursion, conditions, approximate matches."""


class TooComplex(Exception):
    """An expression is too expensive."""


def _make_error(problem: str, text: str, index: int) -> re.error:
    """Return an error with Java's text, if that is known."""
    if problem == "Missing )":
        problem = "Unclosed group"
    elif problem == "Unterminated character set":
        problem, index = "Unclosed character class", len(text) - 1
    elif problem in ("Nothing to repeat", "Multiple repeat"):
        problem = f"Dangling meta character '{text[index : index + 1]}'"
    caret = f"\n{' ' * index}^" if index < len(text) else ""
    return re.error(f"{problem} near index {index}\n{text}{caret}")


class Pattern:
    """A regular expression. Raises re.error, TooComplex."""

    def __init__(self, text: str) -> None:
        repeats = math.prod(max(int(low or 0), int(high or 0), 1) for low, high in _COUNTS.findall(text))
        if len(text) > _MAX_LENGTH or repeats > _MAX_REPEATS:
            raise TooComplex("it is too large")
        if match := _UNKNOWN_SYNTAX.search(text):
            raise _make_error("Unknown construct", text, match.start())
        try:
            self._pattern = regex.compile(text)
        except regex.error as error:
            problem, _, position = str(error).partition(" at position ")
            raise _make_error(
                problem.capitalize(), text, int(position.split()[0]) if position else 0
            ) from None
        except (RecursionError, OverflowError) as error:
            raise TooComplex(str(error)) from None

    def select(self, names: Iterable[str]) -> list[bool]:
        """Return, for each name, whether all of it matches; names that take too long do not."""
        names = list(names)
        limit = max(_LIST_SECONDS / max(len(names), 1), _MIN_SECONDS)
        return [self._matches(name, limit) for name in names]

    def _matches(self, name: str, limit: float) -> bool:
        try:
            return self._pattern.fullmatch(name, timeout=limit) is not None
        except TimeoutError:
            return False
