"""Dialogs in which users type: a new fault, a changed frame."""

import shlex
from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Static, TextArea

from pulsarctl_wire.tui.lines import LineList
from pulsarctl_wire.tui.text_screen import TextScreen

Parameter = tuple[str, str, str]
"""Name, default and help."""


class ChoiceScreen(TextScreen):
    """Lines, one of which is chosen; the result is its index."""

    def _break(self, text: str, width: int) -> list[str]:
        return [text]  # one line per choice: its index is the result

    def on_line_list_chosen(self, message: LineList.Chosen) -> None:
        """Return the line under the cursor."""
        message.stop()
        if self.is_current:  # a second Enter may come after it was closed
            self.dismiss(message.index)


class FaultForm(ModalScreen[None]):
    """The parameters of a fault.

    `add` takes its text, as `--fault` does, and returns what is wrong with it, or "".
    """

    DEFAULT_CSS = """
    FaultForm { align: center middle; }
    FaultForm > VerticalScroll {
        width: 90%; height: 90%; border: round $primary; padding: 0 1; background: $surface;
    }
    FaultForm Input { height: 1; border: none; background: $boost; }
    FaultForm Input:focus { border: none; background: $primary-darken-3; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", show=False),
        Binding("ctrl+s", "add", show=False, priority=True),
    ]

    def __init__(
        self, name: str, about: str, parameters: Sequence[Parameter], add: Callable[[str], str]
    ) -> None:
        super().__init__()
        self._add = add
        self._fault = name
        self._about = about
        self._parameters = parameters

    def compose(self) -> ComposeResult:
        """Yield a line per parameter. Overrides the parent's method."""
        with VerticalScroll() as form:
            form.border_title = f"{self._fault}: Enter or Ctrl-S adds it, Esc cancels"
            yield Label(self._about, markup=False)
            for name, default, about in self._parameters:
                yield Label(f"{name}: {about}", markup=False)
                yield Input(placeholder=default, id=f"parameter-{name}")

    def on_mount(self) -> None:
        """Focus the first parameter, and show what is above it."""
        self.set_focus(self.query(Input).first(), scroll_visible=False)

    def on_input_submitted(self) -> None:
        """Add the fault."""
        self.action_add()

    def action_add(self) -> None:
        """Add the fault once earlier keys are handled."""
        self.call_after_refresh(self._add_fault)

    def _add_fault(self) -> None:
        """Add the fault, and close the form if nothing is wrong."""
        if not self.is_current:
            return
        words = [self._fault]
        for name, _, _ in self._parameters:
            value = self.query_one(f"#parameter-{name}", Input).value.strip()
            if value:
                words.append(f"{name}={value}")
        problem = self._add(shlex.join(words))
        if problem:
            self.query_one(VerticalScroll).border_subtitle = problem.replace("[", "\\[")
        else:
            self.dismiss(None)


class FrameEditor(ModalScreen[str | None]):
    """A frame as JSON or hex digits, to be changed; the result is the text.

    `check` returns what is wrong with a text, or "".
    """

    DEFAULT_CSS = """
    FrameEditor { align: center middle; }
    FrameEditor > Vertical { width: 95%; height: 90%; border: round $primary; background: $surface; }
    FrameEditor TextArea { height: 1fr; border: none; }
    FrameEditor #problem { height: auto; max-height: 4; color: $error; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", show=False, priority=True),
        Binding("ctrl+s", "finish", show=False, priority=True),
    ]

    def __init__(self, title: str, text: str, check: Callable[[str], str]) -> None:
        super().__init__()
        self._title = title
        self._text = text
        self._check = check

    def compose(self) -> ComposeResult:
        """Yield the text and what is wrong with it. Overrides the parent's method."""
        with Vertical() as box:
            box.border_title = f"{self._title}: Ctrl-S sends it, Esc cancels"
            yield TextArea(self._text, id="text", soft_wrap=True, show_line_numbers=False)
            yield Static("", id="problem", markup=False)

    def on_mount(self) -> None:
        """Focus the text."""
        self.set_focus(self.query_one(TextArea))

    def action_finish(self) -> None:
        """Return the text once earlier keys are handled."""
        self.call_after_refresh(self._finish)

    def _finish(self) -> None:
        """Return the text, if nothing is wrong with it."""
        if not self.is_current:
            return
        text = self.query_one(TextArea).text
        problem = self._check(text)
        self.query_one("#problem", Static).update(problem)
        if not problem:
            self.dismiss(text)
