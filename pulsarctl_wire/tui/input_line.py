"""The input line. In a filter, names are completed and mistakes are underlined."""

import re
from collections.abc import Callable, Iterable
from typing import Final

from rich.highlighter import Highlighter
from rich.text import Text
from textual.suggester import Suggester
from textual.widgets import Input

from pulsarctl_wire.errors import FilterError

_WORD: Final = re.compile(r"\w+$")
_VALUE: Final = re.compile(r"""(\w+)\s*(?:==|!=|in\s*[\[(][^\])]*)\s*(["'])([^"']*)$""")
"""A comparison with a value that is not complete: the field, the quote, and the value so far."""

_FIELD: Final = re.compile(r"there is no field (\w+)")
"""A field in the text of a FilterError."""


class Words(Suggester):
    """A suggester that completes the last word: a field, or a value of the field before it.

    `values` returns the known values of a field.
    """

    is_filter = True
    """Whether the line is a filter. Nothing else is completed."""

    def __init__(self, names: Iterable[str], values: Callable[[str], Iterable[str]]) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._names = sorted(names)
        self._values = values

    async def get_suggestion(self, value: str) -> str | None:
        """Return the whole line with its last word completed. Overrides the parent's method."""
        if not self.is_filter:
            return None
        comparison = _VALUE.search(value)
        if comparison is not None:
            word, quote = comparison[3], comparison[2]
            candidates: Iterable[str] = (f"{text}{quote}" for text in self._values(comparison[1]))
        elif value.count('"') % 2 or value.count("'") % 2:
            return None
        else:
            match = _WORD.search(value)
            word, candidates = match[0] if match else "", self._names
        if not word:
            return None
        completion = next((text for text in candidates if text.startswith(word) and text != word), None)
        return None if completion is None else value[: len(value) - len(word)] + completion


class _Underline(Highlighter):
    """Underlines what is wrong with an expression."""

    def __init__(self) -> None:
        self.problem = ""

    def highlight(self, text: Text) -> None:
        if not self.problem:
            return
        field = _FIELD.search(self.problem)
        spans = [match.span() for match in re.finditer(rf"\b{field[1]}\b", text.plain)] if field else []
        for start, stop in spans or [(0, len(text.plain))]:
            text.stylize("underline red", start, stop)


class InputLine(Input):
    """The line for a filter, a search, a number or a file. A filter is checked while it is typed."""

    DEFAULT_CSS = """
    InputLine { height: 1; border: none; padding: 0 1; background: $surface; display: none; }
    InputLine:focus { border: none; }
    InputLine.open { display: block; }
    """

    def __init__(
        self, check: Callable[[str], object], names: Iterable[str], values: Callable[[str], Iterable[str]]
    ) -> None:
        self._underline = _Underline()
        self._check = check
        self._words = Words(names, values)
        super().__init__(
            id="filter",
            suggester=self._words,
            highlighter=self._underline,
            select_on_focus=False,
        )

    @property
    def is_filter(self) -> bool:
        """Whether the line is a filter."""
        return self._words.is_filter

    @is_filter.setter
    def is_filter(self, is_filter: bool) -> None:
        self._words.is_filter = is_filter

    def find_problem(self, text: str) -> str:
        """Return what is wrong with an expression; "" if nothing is."""
        if not text.strip():
            return ""
        try:
            self._check(text)
        except FilterError as error:
            return str(error)
        return ""

    def on_input_changed(self) -> None:
        """Check a filter."""
        self._underline.problem = self.find_problem(self.value) if self.is_filter else ""
        self.refresh()
