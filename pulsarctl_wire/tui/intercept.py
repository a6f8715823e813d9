"""The panes of live traffic: faults in force, and frames that are held at breakpoints."""

from typing import Any, ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical

from pulsarctl_wire.errors import WireError
from pulsarctl_wire.render.text import clean, human_bytes
from pulsarctl_wire.tui.forms import ChoiceScreen, FaultForm, FrameEditor
from pulsarctl_wire.tui.lines import LineList
from pulsarctl_wire.tui.model import Intercept, Model
from pulsarctl_wire.wire.frame import Connection, Event
from pulsarctl_wire.wire.framing.redaction import event_spans
from pulsarctl_wire.wire.framing.refit import refit
from pulsarctl_wire.wire.framing.stream import FrameStream

BREAKPOINT: Final = "hold"
"""The fault that is a breakpoint."""


class ServerPane(Vertical):
    """A pane of rows that the server lists."""

    DEFAULT_CSS = "ServerPane { height: 1fr; }"

    def __init__(self, model: Model, intercept: Intercept, *, id: str) -> None:
        super().__init__(id=id)
        self._model = model
        self._intercept = intercept
        self.rows: list[dict[str, Any]] = []
        self.lines = LineList(self.row_line, id=f"{id}-lines")

    def compose(self) -> ComposeResult:
        """Yield the lines. Overrides the parent's method."""
        yield self.lines

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request to the server, and return its answer. If it refuses, show why, and return {}."""
        try:
            return self._intercept.ask(request)
        except WireError as error:
            self.app.say(str(error))  # type: ignore[attr-defined]
            return {}

    @property
    def row(self) -> dict[str, Any] | None:
        """What is under the cursor."""
        return self.rows[self.lines.cursor] if self.lines.cursor < len(self.rows) else None

    def show(self, rows: list[dict[str, Any]]) -> None:
        """Show other rows."""
        if rows != self.rows:
            self.rows = rows
            self.lines.show(len(rows))
            self.lines.renew()

    def row_line(self, index: int, width: int) -> str:
        """Return the line of a row."""
        raise NotImplementedError


class FaultsPane(ServerPane):
    """The faults in force."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("plus,insert,A", "add", show=False),
        Binding("delete,D", "remove", show=False),
    ]

    def __init__(self, model: Model, intercept: Intercept) -> None:
        super().__init__(model, intercept, id="faults")
        self.lines._title = "no faults: + adds one, D removes it"

    def load(self) -> None:
        """Show the faults as they are now."""
        self.show(self.ask(do="fault-list").get("faults", []))

    def row_line(self, index: int, width: int) -> str:
        """Return the line of a fault."""
        row, paint = self.rows[index], self._model.paint
        hits = f"{row['hits']:,} of {row['matched']:,} matches hit"
        number = paint("cyan", f"#{row['number']}")
        return f"{number} {clean(row['fault'])}  {paint('dim', hits)}"

    def action_add(self) -> None:
        """Choose a fault, and fill in its parameters."""
        catalogue = self._intercept.catalogue
        paint = self._model.paint
        lines = [f"{paint('bold', name.ljust(14))} {about}" for name, about, _ in catalogue]

        def fill_in(index: int | None) -> None:
            if index is not None:
                self.app.push_screen(FaultForm(*catalogue[index], self.add))

        self.app.push_screen(ChoiceScreen("add a fault", lines), fill_in)

    def add(self, text: str) -> str:
        """Put a fault into force; return what is wrong with it, or ""."""
        try:
            self._intercept.ask({"do": "fault-add", "fault": text})
        except WireError as error:
            return str(error)
        self.load()
        return ""

    def action_remove(self) -> None:
        """Remove the fault under the cursor."""
        if self.row is not None:
            self.ask(do="fault-remove", number=self.row["number"])
            self.load()


class HeldPane(ServerPane):
    """The frames that are held at breakpoints."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "release", show=False),
        Binding("R", "release_all", show=False),
        Binding("i", "edit('json')", show=False),
        Binding("h", "edit('hex')", show=False),
        Binding("delete,D", "drop", show=False),
        Binding("plus", "repeat", show=False),
        Binding("A", "answer", show=False),
    ]

    def __init__(self, model: Model, intercept: Intercept) -> None:
        super().__init__(model, intercept, id="held")
        self.lines._title = "nothing is held: B on a frame, or a fault 'hold', makes a breakpoint"

    def load(self) -> None:
        """Show what is held now."""
        self.show(self.ask(do="held-list").get("held", []))

    def row_line(self, index: int, width: int) -> str:
        """Return the line of a held frame."""
        row = self.rows[index]
        event = self.event_of(row)
        if event is None:
            direction = "to the broker" if row["to_broker"] else "to the client"
            return f"{row['number']:>6} {human_bytes(row['size'])} {direction}: too large to be shown"
        return self._model.line(event, width)

    def event_of(self, row: dict[str, Any]) -> Event | None:
        """Return a held frame as an event; None if it is too large to be shown."""
        if row["data"] is None:
            return None
        data = bytes.fromhex(row["data"])
        connection = Connection(row["connection"], row["client"], row["server"])
        event: Any = FrameStream(connection, row["to_broker"], limit=len(data)).feed(data, row["time_ns"])[0]
        event.number, event.topic, event.subscription = row["number"], row["topic"], row["subscription"]
        return event  # type: ignore[no-any-return]

    def on_line_list_chosen(self, message: LineList.Chosen) -> None:
        """Edit the frame under the cursor."""
        message.stop()
        self.action_edit("json")

    def _decide(self, **decision: Any) -> None:
        """Decide about the frame under the cursor.

        `frames` go on in its place, `answers` go to its sender: lists of hex digits. With neither, the frame
        goes on as it came.
        """
        if self.row is not None:
            self.ask(do="held-decide", number=self.row["number"], **decision)
            self.load()

    def action_release(self) -> None:
        """Let the frame go on as it came."""
        self._decide()

    def action_release_all(self) -> None:
        """Let all held frames go on as they came."""
        for row in list(self.rows):
            self.ask(do="held-decide", number=row["number"])
        self.load()

    def action_drop(self) -> None:
        """Drop the frame."""
        self._decide(frames=[])

    def action_repeat(self) -> None:
        """Send the frame twice."""
        if self.row is not None and self.row["data"] is not None:
            self._decide(frames=[self.row["data"]] * 2)

    def action_edit(self, form: str) -> None:
        """Change the frame, as JSON or as hex digits, and let it go on."""
        row = self.row
        event = None if row is None else self.event_of(row)
        if row is None or event is None:
            return
        if event_spans(event) and not self._model.session.recorder.show_secrets:
            text = "this frame has credentials; with --show-secrets it can be changed"
            self.app.say(text)  # type: ignore[attr-defined]
            return
        data = bytes.fromhex(row["data"])
        text = self._intercept.describe(data) if form == "json" else data.hex(" ")
        self._open_editor(f"frame {row['number']}", text, row, "frames", data if form == "hex" else b"")

    def action_answer(self) -> None:
        """Answer the frame in its receiver's place; the frame itself does not go on."""
        row = self.row
        event: Any = None if row is None else self.event_of(row)
        if row is None or event is None:
            return
        text = self._intercept.describe(self._intercept.refuse(event))
        self._open_editor(f"answer to frame {row['number']}", text, row, "answers")

    def _open_editor(
        self, title: str, text: str, row: dict[str, Any], key: str, original: bytes = b""
    ) -> None:
        """Let the user edit `text`; the frame made of it goes on (`key`: frames) or back (answers).

        Sizes and checksum are corrected if `original`, the frame before the change, is given.
        """

        def check(changed: str) -> str:
            try:
                self._intercept.parse(changed)
            except WireError as error:
                return str(error)
            return ""

        def finish(changed: str | None) -> None:
            if changed is None:
                return
            decision: dict[str, Any] = {"frames": []}
            decision[key] = [refit(original, self._intercept.parse(changed)).hex()]
            self.ask(do="held-decide", number=row["number"], **decision)
            self.load()

        self.app.push_screen(FrameEditor(title, text, check), finish)
