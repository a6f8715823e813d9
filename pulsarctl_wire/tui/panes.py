"""The panes of connections, topics, producers, subscriptions, findings, and the sequence diagram."""

import json
from itertools import islice
from typing import Any, ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Static

from pulsarctl_wire.render import sequence_text
from pulsarctl_wire.render.overview import OverviewTable
from pulsarctl_wire.render.sequence import Diagram
from pulsarctl_wire.render.text import clean
from pulsarctl_wire.tui.lines import LineList
from pulsarctl_wire.tui.model import Model
from pulsarctl_wire.tui.text_screen import TextScreen, wrap_line
from pulsarctl_wire.wire.frame import Frame

_DRAWN: Final = 300  # frames of a sequence diagram
_MIN_WIDTH: Final = 40  # cells of a sequence diagram

SORTS: Final = ("", "size", "unacked", "pending", "errors")
"""Keys by which rows are sorted, the largest first; "": as they came."""


class ShowOnly(Message):
    """A request to show only frames for which an expression holds."""

    def __init__(self, expression: str) -> None:
        super().__init__()
        self.expression = expression


class GoTo(Message):
    """A request to show the frame with this number."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class StatusNote(Message):
    """A request to show a text in the status line."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


class TableLines(LineList):
    """The lines of a table, which is as wide as the screen."""

    def action_shift(self, steps: int) -> None:
        """Do nothing: the table fits the screen. Overrides the parent's method."""


class OverviewPane(Vertical):
    """A table of rows of one kind; Enter shows only the frames of one."""

    DEFAULT_CSS = """
    OverviewPane { height: 1fr; }
    OverviewPane > .heading { height: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("o", "sort", "Sort", show=False)]

    def __init__(self, model: Model, kind: str) -> None:
        super().__init__(id=kind)
        self._model = model
        self._kind = kind
        self._rows: list[dict[str, Any]] = []
        self._sort = ""
        self._table: tuple[int, OverviewTable] | None = None  # with its width
        self._heading = LineList(self._title, id=f"{kind}-heading")
        self._heading.can_focus = False
        self._lines = TableLines(self._line, id=f"{kind}-lines", title=f"no {kind} yet")

    def compose(self) -> ComposeResult:
        """Yield the heading and the lines. Overrides the parent's method."""
        self._heading.styles.height = 1
        yield self._heading
        yield self._lines

    def load(self) -> None:
        """Show the counts as they are now."""
        rows: list[dict[str, Any]] = self._model.counts.get(self._kind, [])
        if self._sort:
            rows = sorted(rows, key=lambda row: -row[self._sort])
        self._rows = rows
        self._table = None
        self._heading.show(1)
        self._heading.renew()
        self._lines.show(len(rows))
        self._lines.renew()

    def action_sort(self) -> None:
        """Sort by the next column."""
        self._sort = SORTS[(SORTS.index(self._sort) + 1) % len(SORTS)]
        self.load()
        name = "bytes" if self._sort == "size" else self._sort
        self.post_message(StatusNote(f"sorted by {name}" if name else "in the order of appearance"))

    def _get_table(self, width: int) -> OverviewTable:
        if self._table is None or self._table[0] != width:
            self._table = width, OverviewTable(self._kind, self._rows, width, self._model.paint)
        return self._table[1]

    def _title(self, index: int, width: int) -> str:
        return self._get_table(width).heading

    def _line(self, index: int, width: int) -> str:
        return self._get_table(width).line(index)

    def on_line_list_chosen(self, message: LineList.Chosen) -> None:
        """Show only the frames of the row under the cursor."""
        message.stop()
        row = self._rows[message.index]
        if self._kind == "connections":
            expression = f"connection == {row['connection']}"
        elif self._kind == "topics":
            expression = f"topic == {json.dumps(row['name'])}"
        elif self._kind == "producers":
            expression = f"connection == {row['connection']} and fields.producer_id == {row['id']}"
        else:
            topic, subscription = json.dumps(row["topic"]), json.dumps(row["name"])
            expression = f"topic == {topic} and subscription == {subscription}"
        self.post_message(ShowOnly(expression))


class FindingsPane(Vertical):
    """Findings, and the evidence of the one under the cursor; Enter there shows the frame."""

    DEFAULT_CSS = """
    FindingsPane { height: 1fr; }
    FindingsPane #evidence { border-top: solid $primary-darken-2; height: 60%; }
    FindingsPane .summary { height: auto; max-height: 4; color: $text-muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("question_mark", "explain", "Explain", show=False)]

    def __init__(self, model: Model) -> None:
        super().__init__(id="findings")
        self._model = model
        self._findings: list[dict[str, Any]] = []
        self._evidence: list[tuple[str, int | None]] = []
        """Lines about the finding under the cursor; with a frame's number, if a line is about one."""
        self._finding_lines = LineList(self._line, id="findings-lines", title="no findings")
        self._evidence_lines = LineList(self._evidence_line, id="evidence")
        self._summary = Static(markup=False, classes="summary")

    def compose(self) -> ComposeResult:
        """Yield both lists. Overrides the parent's method."""
        yield self._finding_lines
        yield self._evidence_lines
        yield self._summary

    def load(self) -> None:
        """Show the findings so far."""
        report = self._model.findings
        self._summary.update(clean(report.get("summary", "")))
        self._findings = report.get("findings", [])
        self._finding_lines._title = "nothing found" if report.get("is_done") else "looking…"
        self._finding_lines.show(len(self._findings))
        self._finding_lines.renew()
        self.call_after_refresh(self._show_evidence, self._finding_lines.cursor)  # then its width is known

    def _line(self, index: int, width: int) -> str:
        finding, paint = self._findings[index], self._model.paint
        subject = finding["subject"]
        about = " ".join(
            f"{name}={value}" if name != "topic" else str(value)
            for name, value in subject.items()
            if value is not None
        )
        style = "red" if finding["severity"] == "error" else "yellow"
        count = f" {finding['count']} times" if finding["count"] > 1 else ""
        return f"{paint(style, finding['id'])}{count}  {finding['certainty']}  {clean(about)}"

    def _show_evidence(self, index: int) -> None:
        self._evidence = []
        if index < len(self._findings):
            paint, finding = self._model.paint, self._findings[index]
            self._evidence += [(clean(finding["explanation"]), None)]
            self._evidence += [(paint("dim", clean(finding["connection"])), None)]
            for row in finding["evidence"]:
                number, command = row["number"], row["command"] or ""
                place = f"#{number}" if number else "-"
                text = f"  {paint('cyan', place.ljust(8))} {command:<14} {clean(row['why'])}"
                self._evidence.append((text, number))
            self._evidence.append((f"→ {clean(finding['advice'])}", None))
        width = max(self._evidence_lines.size.width, 40)
        self._evidence = [
            (line, number) for text, number in self._evidence for line in wrap_line(text, width - 1)
        ]
        self._evidence_lines.show(len(self._evidence), cursor=0)
        self._evidence_lines.renew()

    def _evidence_line(self, index: int, width: int) -> str:
        return self._evidence[index][0]

    def on_line_list_moved(self, message: LineList.Moved) -> None:
        """Show the evidence of another finding."""
        message.stop()
        if message.lines is self._finding_lines:
            self._show_evidence(message.index)

    def on_line_list_chosen(self, message: LineList.Chosen) -> None:
        """Go to the first frame that proves the finding, or to that of the chosen line."""
        message.stop()
        if message.lines is self._finding_lines:
            numbers = [number for _, number in self._evidence if number]
        else:
            numbers = [number for _, number in self._evidence[message.index : message.index + 1] if number]
        if numbers:
            self.post_message(GoTo(numbers[0]))

    def action_explain(self) -> None:
        """Explain the rule of the finding under the cursor."""
        if self._finding_lines.cursor < len(self._findings):
            rule = self._findings[self._finding_lines.cursor]["id"]
            self.app.push_screen(TextScreen(rule, self._model.session.explain(rule)))


class SequencePane(LineList):
    """A sequence diagram of the frames around one of them."""

    def __init__(self, model: Model) -> None:
        super().__init__(id="sequence", title="no frames")
        self._model = model

    def load(self, row: int) -> None:
        """Draw what is around a row."""
        model = self._model
        diagram = Diagram(model.plain_line, limit=_DRAWN)
        for _, neighbour in islice(model.walk(max(row - _DRAWN // 2, 0) - 1, 1), _DRAWN):
            diagram.add(neighbour)
        diagram.finish()
        event = model.event(row)
        for diagram_row in diagram.rows:
            diagram_row.is_focus = isinstance(event, Frame) and diagram_row.number == event.number
        width = max(self.app.size.width - 2, _MIN_WIDTH)
        lines = list(sequence_text.text(diagram.rows, model.paint, model.clock, width, diagram.note))
        # ▶ is the sign of the row with `is_focus`
        focus = next((index for index, text in enumerate(lines) if "▶" in text), 0)
        self.show(len(lines), lambda index, width: lines[index], focus)
