"""Regular expressions of clients, matched in bounded time and memory.

Pulsar uses RE2/J for these, and Java's own engine for what RE2/J lacks, such as lookarounds. This broker uses
the package `regex`, which knows the syntax of both and has a time limit; expressions that would take too much
memory when compiled are refused.
"""

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

_PIECE: Final = re.compile(
    r"""
    \\Q (?P<quoted>.*?) (?: \\E | \Z )
    | \\[pP]\{[^}]*\} | \\.
    | \[\^?\]? (?: \[:\^?\w+:\] | \\. | [^]\\] )* \]
    | (?P<count> \{\d+(?:,\d*)?\} )
    | (?P<brace>\{)
    | (?P<unknown> \(\? (?! [:=!>] | P?<[a-zA-Z] | <[=!] | [imsux]*(?:-[imsux]+)?[:)] ) )
    """,
    re.DOTALL | re.VERBOSE,
)
"""The parts of a pattern that `regex` reads differently from RE2/J, and those that may contain such text.

`unknown` is syntax that neither RE2/J nor Java knows, such as recursion. To RE2/J, a `brace` that begins no
count is a literal; to `regex` it begins an approximate match.
"""


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


def _translate(text: str) -> str:
    """Return a pattern of RE2/J in the syntax of `regex`. Raises re.error, TooComplex."""
    if len(text) > _MAX_LENGTH:
        raise TooComplex("it is too large")
    repeats = 1

    def translate_piece(piece: re.Match[str]) -> str:
        nonlocal repeats
        if piece["unknown"]:
            raise _make_error("Unknown construct", text, piece.start())
        if piece["count"]:
            # nine digits are too many in any case; `int` refuses thousands of them
            repeats *= max([1, *(int(number[:9]) for number in re.findall(r"[1-9]\d*", piece["count"]))])
        if piece["quoted"] is not None:
            return re.escape(piece["quoted"])
        return r"\{" if piece["brace"] else piece[0]

    translation = _PIECE.sub(translate_piece, text)
    if repeats > _MAX_REPEATS:
        raise TooComplex("it is too large")
    return translation


class Pattern:
    """A regular expression. Raises re.error, TooComplex."""

    def __init__(self, text: str) -> None:
        translation = _translate(text)
        try:
            self._pattern = regex.compile(translation)
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
