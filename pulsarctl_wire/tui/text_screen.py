"""A text over the screen, which Esc, q, ? or F1 closes: the list of keys, the explanation of a rule."""

import re
from collections.abc import Sequence
from textwrap import wrap
from typing import ClassVar, Final

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from pulsarctl_wire.tui.lines import LineList
from pulsarctl_wire.tui.strips import to_strip

_COLUMN: Final = re.compile(r" *\S.*?  +")
"""What is before the second column of a line."""


class TextScreen(ModalScreen[int | None]):
    """Lines with a title; they may have our colour codes."""

    DEFAULT_CSS = """
    TextScreen { align: center middle; }
    TextScreen > LineList {
        width: 90%; height: 90%; border: round $primary; padding: 0 1; background: $surface;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,f1", "dismiss", "Close", show=False)
    ]

    def __init__(self, title: str, lines: Sequence[str]) -> None:
        super().__init__()
        self._text = lines
        self._name = title

    def compose(self) -> ComposeResult:
        """Yield the lines. Overrides the parent's method."""
        lines = LineList(id="text")
        lines.border_title = self._name
        yield lines

    def on_mount(self) -> None:
        """Focus the lines."""
        self.set_focus(self.query_one(LineList))

    def on_resize(self) -> None:
        """Break lines that are too long."""
        lines = self.query_one(LineList)
        width = lines.scrollable_content_region.width
        shown = [part for text in self._text for part in self._break(text, width)]
        lines.show(len(shown), lambda index, width: shown[index], 0)

    def _break(self, text: str, width: int) -> list[str]:
        return wrap_line(text, width)


def wrap_line(text: str, width: int) -> list[str]:
    """Return a line as it is, or broken into several if it has more than `width` cells.

    Then these have no colours, and all but the first are indented to the second column.
    """
    plain = to_strip(text).text
    if cell_len(plain) <= width:
        return [text]
    column = _COLUMN.match(plain)
    indent = len(column[0]) if column and len(column[0]) < width // 2 else 2
    return wrap(plain, max(width, 10), subsequent_indent=" " * indent, drop_whitespace=True) or [""]
