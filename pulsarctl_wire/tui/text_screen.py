"""A text over the screen, which any key closes: the list of keys, the explanation of a rule."""

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from pulsarctl_wire.tui.lines import LineList


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
        lines = LineList(lambda index, width: self._text[index], id="text")
        lines.border_title = self._name
        lines.show(len(self._text))
        yield lines

    def on_mount(self) -> None:
        """Let the lines have the keys from the start."""
        self.set_focus(self.query_one(LineList))
