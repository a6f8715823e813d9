"""The screen: panes, the input line, the status line, and the keys."""

from collections.abc import Callable, Sequence
from typing import ClassVar, Final

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.filter import LineFilter
from textual.widgets import ContentSwitcher, Input

from pulsarctl_wire.errors import FilterError
from pulsarctl_wire.record.related import follow
from pulsarctl_wire.render.text import clean
from pulsarctl_wire.stats.overview import KINDS
from pulsarctl_wire.tui.bars import FIRST_LIVE_PANE, NARROW_WIDTH, PANES, Bar, status_text, tabs_text
from pulsarctl_wire.tui.detail import FramesPane
from pulsarctl_wire.tui.input_line import InputLine
from pulsarctl_wire.tui.intercept import BREAKPOINT, FaultsPane, HeldPane
from pulsarctl_wire.tui.jumps import Jumps
from pulsarctl_wire.tui.keys import keys_text
from pulsarctl_wire.tui.lines import LineList
from pulsarctl_wire.tui.model import Model, Session
from pulsarctl_wire.tui.panes import FindingsPane, GoTo, OverviewPane, SequencePane, ShowOnly, StatusNote
from pulsarctl_wire.tui.selection import Selection
from pulsarctl_wire.tui.strips import ColourRemover
from pulsarctl_wire.tui.text_screen import TextScreen
from pulsarctl_wire.wire.commands import NUMBERS
from pulsarctl_wire.wire.frame import Event, Frame

_TICK: Final = 0.1  # seconds between two polls


class PwireApp(App[None]):
    """`pwire tui`."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layers: base; }
    #tabs, #status { height: 1; background: $panel; color: $text; padding: 0 1; }
    #tabs { text-style: bold; }
    ContentSwitcher { height: 1fr; }
    .plain LineList > .lines--selected { text-style: underline; }
    .plain LineList > .lines--cursor { text-style: reverse; }
    .plain LineList:focus > .lines--cursor { text-style: bold reverse; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *[Binding(str((number + 1) % 10), f"pane({number})", show=False) for number in range(len(PANES))],
        Binding("f", "edit('filter')", show=False),
        Binding("slash", "edit('search')", show=False),
        Binding("colon", "edit('go')", show=False),
        Binding("n", "jump('search_again', 1)", show=False),
        Binding("N", "jump('search_again', -1)", show=False),
        Binding("e", "jump('next_error', 1)", show=False),
        Binding("E", "jump('next_error', -1)", show=False),
        Binding("w", "jump('next_finding', 1)", show=False),
        Binding("W", "jump('next_finding', -1)", show=False),
        Binding("a", "jump('go_to_answer')", show=False),
        Binding("m", "jump('follow_message')", show=False),
        Binding("c", "show_only('connection')", show=False),
        Binding("t", "show_only('topic')", show=False),
        Binding("p", "show_only('producer')", show=False),
        Binding("u", "show_only('consumer')", show=False),
        Binding("s", "show_only('subscription')", show=False),
        Binding("M", "show_only('message')", show=False),
        Binding("B", "break", show=False),
        Binding("backspace", "undo_filter", show=False),
        Binding("tab", "focus_next", show=False),
        Binding("shift+tab", "focus_previous", show=False),
        Binding("d", "toggle_detail", show=False),
        Binding("F", "follow_end", show=False),
        Binding("v", "select", show=False),
        Binding("x", "edit('save')", show=False),
        Binding("y", "copy('json')", show=False),
        Binding("Y", "copy('hex')", show=False),
        Binding("K", "copy('link')", show=False),
        Binding("L", "toggle_light", show=False),
        Binding("question_mark,f1", "keys", show=False),
        Binding("escape", "leave", show=False),
        Binding("q", "quit", show=False),
        Binding("ctrl+c", "quit", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False),
    ]

    def __init__(self, session: Session) -> None:
        super().__init__()
        if not session.colour:
            self.add_class("plain")
        self.model = Model(session)
        self._session = session
        self._frames = FramesPane(self.model)
        self._sequence = SequencePane(self.model)
        self._switcher = ContentSwitcher(initial="frames")
        intercept = session.intercept
        self._faults = None if intercept is None else FaultsPane(self.model, intercept)
        self._held = None if intercept is None else HeldPane(self.model, intercept)
        self._log_lines = LineList(self._log_line, id="log", title="nothing was said yet")
        self._panes = PANES if session.intercept is not None else PANES[:FIRST_LIVE_PANE]
        self._input = InputLine(session.check, session.names, self._known_values)
        self._status = Bar(id="status")
        self._tabs = Bar(id="tabs")
        self._mode = "filter"  # what the input line is for; see `action_edit`
        self._is_following = session.live
        self._target = session.first  # number of the frame to go to once it is read
        self._note = "? lists the keys, q quits"
        self._history: list[tuple[str, int]] = []
        """Earlier filters, with the positions under the cursor."""
        self._jumps = Jumps(self.model, self._frames.lines, self)
        self._selection = Selection(self.model, self._frames.lines, self, self.say)
        self._position = 0
        """The position of the event under the cursor."""

    def compose(self) -> ComposeResult:
        """Yield the parts of the screen. Overrides the parent's method."""
        yield self._tabs
        with self._switcher:
            yield self._frames
            for kind in KINDS:
                yield OverviewPane(self.model, kind)
            yield FindingsPane(self.model)
            yield self._sequence
            yield self._log_lines
            if self._faults is not None and self._held is not None:
                yield self._faults
                yield self._held
        yield self._input
        yield self._status

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return what changes lines before they are written. Overrides the parent's method."""
        return super().get_line_filters() if self._session.colour else [ColourRemover()]

    def on_mount(self) -> None:
        """Focus the list, apply the first filter, and begin to poll."""
        self._frames.lines.focus()
        self.set_interval(_TICK, self._poll)
        if self._session.expression:
            self._apply(self._session.expression)
        self._poll()

    def on_resize(self, event: Resize) -> None:
        """Put bytes below fields where there is little room."""
        self._frames.detail.set_class(event.size.width < NARROW_WIDTH, "narrow")

    # -- what is new

    def _poll(self) -> None:
        model, lines = self.model, self._frames.lines
        row_count, findings, counts = model.row_count, model.findings, model.counts
        model.refresh()
        if self._target is not None:
            self._go_to_number(self._target)
        if not model.row_count:
            lines.set_title(self._why_empty())
        if model.row_count != row_count or not lines.row_count:
            is_first = not lines.row_count and model.row_count
            lines.show(model.row_count)
            if self._is_following and self._target is None:
                lines.move_to(model.row_count - 1)
            elif is_first:
                self._load_detail(lines.cursor)
        if model.findings is not findings:
            lines.renew()
        if model.findings is not findings or model.counts is not counts:
            self._load_pane()
        if len(model.messages) != self._log_lines.row_count:
            self._log_lines.show(len(model.messages), self._log_line, len(model.messages) - 1)
            self._note = model.messages[-1]
        if self._held is not None and model.messages:  # the server is there
            self._held.load()
        if self._faults is not None and self._switcher.current == "faults":
            self._faults.load()
        if model.ended is not None:
            self.exit(return_code=model.ended)
        self._show_status()

    def _why_empty(self) -> str:
        """Say why there are no frames."""
        matches = self.model.matches
        if matches is not None:
            return "no frame matches" if matches.is_done else "searching…"
        if self._session.live:
            return "no frames yet"
        return "reading…" if self.model.is_reading else "no frames"

    def _log_line(self, index: int, width: int) -> str:
        return clean(self.model.messages[index])

    def _go_to_number(self, number: int) -> None:
        """Go to a frame; if it has not been read yet, as soon as it is."""
        if self._jumps.go_to_number(number):
            self._target = None
        elif not self.model.is_reading:
            self._target = None
            self.say(f"there is no frame {number}")
        else:
            self._target = number

    def _show_status(self) -> None:
        lines = self._frames.lines
        states = {
            "following": self._is_following,
            "searching, Esc stops": self._jumps.is_searching,
            f"{len(lines.selected)} selected": lines.selection_start is not None,
        }
        if self._held is not None and self._held.rows:
            states[f"{len(self._held.rows)} held: 0 shows them"] = True
        shown = [text for text, is_true in states.items() if is_true]
        has_whole_line = self._note and self._input.has_class("open")  # mostly what is wrong with a filter
        text = self._note if has_whole_line else status_text(self.model, lines.cursor, shown, self._note)
        self._status.change(text)
        current = self._switcher.current or ""
        is_narrow = self.size.width < NARROW_WIDTH
        self._tabs.change(tabs_text(self._panes, current, self._session.title, is_narrow=is_narrow))

    def _load_pane(self) -> None:
        current = self._switcher.current
        if current in KINDS:
            self.query_one(f"#{current}", OverviewPane).load()
        elif current == "findings":
            self.query_one(FindingsPane).load()
        elif current == "sequence":
            self._sequence.load(self._frames.lines.cursor)
        elif current == "faults" and self._faults is not None:
            self._faults.load()

    def _load_detail(self, row: int) -> None:
        event = self.model.event(row)
        self._position = self.model.position(row) if event is not None else 0
        if self._frames.detail.display:
            self._frames.detail.load(event)

    @property
    def event(self) -> Event | None:
        """The event under the cursor."""
        return self.model.event(self._frames.lines.cursor)

    # -- messages

    def on_line_list_moved(self, message: LineList.Moved) -> None:
        """Show the details of another frame."""
        if message.lines is self._frames.lines:
            if message.index < self.model.row_count - 1:
                self._is_following = False
            self._load_detail(message.index)
            self._show_status()

    def on_line_list_chosen(self, message: LineList.Chosen) -> None:
        """Go from the list to the details."""
        if message.lines is self._frames.lines:
            self._frames.detail.display = True
            self._load_detail(message.index)
            self.set_focus(self.query_one("#fields", LineList))

    def on_show_only(self, message: ShowOnly) -> None:
        """Show only the frames for which an expression holds."""
        self.action_pane(0)
        self._apply(message.expression)

    def on_status_note(self, message: StatusNote) -> None:
        """Show a text in the status line."""
        self.say(message.text)

    def on_go_to(self, message: GoTo) -> None:
        """Show a frame."""
        self.action_pane(0)
        self._go_to_number(message.number)

    def on_input_changed(self) -> None:
        """Clear the error while the text is corrected."""
        self._note = ""

    def on_input_submitted(self, message: Input.Submitted) -> None:
        """Apply what was written."""
        text = message.value.strip()
        if self._mode == "filter":
            problem = self._input.find_problem(text)
            if problem:
                self._note = problem
                self._show_status()
                return
            self._close_line()
            self._apply(text)
            return
        self._close_line()
        if self._mode == "search" and (text or self._jumps.text):
            self._jumps.text = text or self._jumps.text
            self._jumps.search_again(1)
        elif self._mode == "save" and text:
            self._selection.save(text)
        elif self._mode == "go" and text:
            digits = text.lstrip("#")
            if digits.isdecimal():
                self._go_to_number(int(digits))
            else:
                self.say(f"{text}: not the number of a frame")

    # -- the line at the bottom

    def action_edit(self, mode: str) -> None:
        """Open the input line for a filter, a search, the number of a frame (go), or a file (save)."""
        self._mode = mode
        self._note = ""
        self._input.is_filter = mode == "filter"
        self._input.value = self.model.expression if mode == "filter" else ""
        self._input.border_title = mode
        self._input.placeholder = {
            "filter": 'command == "SEND" and total_size > 1000',
            "search": f"text in lines; Enter: {self._jumps.text}" if self._jumps.text else "text in lines",
            "go": "the number of a frame",
            "save": f"save {len(self._frames.lines.selected)} to FILE.pcapng, .jsonl, .send or .py, or to pulsar://HOST:6650",
        }[mode]
        self._input.add_class("open")
        self.set_focus(self._input)  # at once: keys that follow are for it
        self._input.cursor_position = len(self._input.value)

    def _close_line(self) -> None:
        self._input.remove_class("open")
        self._focus_pane()

    def _focus_pane(self) -> None:
        current = self._switcher.current
        if current == "frames":
            self.set_focus(self._frames.lines)
        elif current in ("sequence", "log"):
            self.set_focus(self.query_one(f"#{current}", LineList))
        else:
            self.set_focus(self.query_one(f"#{current}-lines", LineList))

    def action_leave(self) -> None:
        """Close the line, stop a search, end the selection, return to the list, or remove the filter."""
        self._note = ""
        if self._input.has_class("open"):
            self._close_line()
        elif self._jumps.is_searching:
            self._jumps.stop()
        elif self._frames.lines.selection_start is not None:
            self.action_select()
        elif self._switcher.current != "frames":
            self.action_pane(0)
        elif not self._frames.lines.has_focus:
            self._frames.lines.focus()
        elif self.model.expression:
            self._apply("")
        self._show_status()

    def _known_values(self, field: str) -> list[str]:
        """Return the values of a field that are known."""
        if field == "command":
            return list(NUMBERS)
        kind = {"topic": "topics", "subscription": "subscriptions"}.get(field, "")
        return [row["name"] for row in self.model.counts.get(kind, [])]

    # -- filters

    def _apply(self, expression: str, *, remember: bool = True) -> None:
        """Show only events for which `expression` holds; "": all.

        `remember`: keep the filter before it for `action_undo_filter`.
        """
        model, lines = self.model, self._frames.lines
        if expression == model.expression:
            return
        before = model.expression, self._position
        try:
            model.filter(expression)
        except FilterError as error:
            self.say(str(error))
            return
        if remember:
            self._history.append(before)
        self._note = ""
        self._jumps.stop()
        if expression:
            lines.show(0, model.row_line, 0)
            self._frames.detail.load(None)
        else:
            lines.show(model.row_count, model.row_line, self._position)
            self._load_detail(lines.cursor)
        self._poll()

    def action_show_only(self, kind: str) -> None:
        """Show only frames that have the same connection, topic, … (`kind`) as the one under the cursor."""
        event = self.event
        expression = "" if event is None else follow(event, kind)
        if event is None:
            self.say("there is no frame here")
        elif expression:
            self._apply(expression)
        else:
            self.say(f"this frame has no {kind}")

    def action_undo_filter(self) -> None:
        """Return to the filter before; if there was none, also to the frame that was under the cursor."""
        if not self._history:
            return
        expression, position = self._history.pop()
        self._apply(expression, remember=False)
        if not expression:
            self._frames.lines.move_to(position)

    def action_jump(self, where: str, *arguments: int) -> None:
        """Go to another frame: call the method `where` of `Jumps`."""
        self._note = ""
        getattr(self._jumps, where)(*arguments)

    def show_all(self, note: str) -> None:
        """Remove the filter, and show `note`."""
        self._apply("")
        self._note = note

    def call_soon(self, call: Callable[[], object]) -> None:
        """Call a function once pending keys are handled."""
        self.set_timer(0.001, call)

    # -- other keys

    def action_pane(self, number: int) -> None:
        """Show another pane."""
        if number >= len(self._panes):
            self.say("only pwire proxy --tui and pwire broker --tui have faults and held frames")
            return
        self._input.remove_class("open")
        self._switcher.current = PANES[number]
        self._load_pane()
        self._focus_pane()
        self._show_status()

    def action_break(self) -> None:
        """Make a breakpoint for frames like the one under the cursor."""
        event = self.event
        if self._faults is None or not isinstance(event, Frame):
            self.say("only pwire proxy --tui and pwire broker --tui stop frames")
            return
        topic = f" topic={event.topic}" if event.topic else ""
        direction = "to-broker" if event.to_broker else "to-client"
        text = f"{BREAKPOINT} command={event.command}{topic} direction={direction}"
        is_duplicate = any(row["fault"] == text for row in self._faults.rows)
        self.say("there is one already" if is_duplicate else self._faults.add(text) or f"breakpoint: {text}")

    def action_toggle_detail(self) -> None:
        """Show or hide the details."""
        detail = self._frames.detail
        detail.display = not detail.display
        if detail.display:
            self._load_detail(self._frames.lines.cursor)
        self._frames.lines.focus()

    def action_follow_end(self) -> None:
        """Keep the cursor at the end while frames come, or stop doing so."""
        self._is_following = not self._is_following
        if self._is_following:
            self._frames.lines.action_go(-1)
            self._is_following = True
        self._show_status()

    def action_copy(self, form: str) -> None:
        """Copy the frame under the cursor to the clipboard."""
        event = self.event
        if event is not None:
            self._selection.copy(event, form)

    def action_select(self) -> None:
        """Begin a selection at the cursor, or end it."""
        lines = self._frames.lines
        lines.selection_start = lines.cursor if lines.selection_start is None else None
        lines.renew()

    def action_toggle_light(self) -> None:
        """Change between dark and light."""
        self.theme = "textual-light" if self.theme != "textual-light" else "textual-dark"

    def action_keys(self) -> None:
        """List the keys."""
        self.push_screen(TextScreen("keys", keys_text(self.model.paint)))

    def say(self, text: str) -> None:
        """Show a text in the status line, and keep it in the log."""
        self.model.messages.append(text)
        self._note = text
        self._show_status()
