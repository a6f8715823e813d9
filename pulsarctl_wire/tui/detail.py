"""The fields and the bytes of a frame. What is under the cursor in one is marked in the other."""

from collections.abc import Iterator
from textwrap import wrap
from typing import ClassVar, Final

from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical

from pulsarctl_wire.render.text import Paint, clean
from pulsarctl_wire.render.tree import Lines
from pulsarctl_wire.tui.lines import LineList
from pulsarctl_wire.tui.model import Model
from pulsarctl_wire.tui.strips import to_strip
from pulsarctl_wire.tui.text_screen import TextScreen
from pulsarctl_wire.wire.frame import Event, Gap, HttpMessage
from pulsarctl_wire.wire.framing.annotate import LabelledSpan, Path, annotate, find_spans
from pulsarctl_wire.wire.framing.redaction import event_spans, hex_digits, mask_spans

_WIDTH: Final = 16  # bytes in a line
_VISIBLE: Final = bytes(byte if 32 <= byte < 127 else ord(".") for byte in range(256))
_MARKED: Final = "\x1b[7m"
_PLAIN: Final = "\x1b[0m"

Span = tuple[int, int]


def flatten(lines: Lines, folded: set[Path], indent: str = "") -> Iterator[tuple[str, Path, bool]]:
    """Yield the visible lines of a tree: text, path, and whether the line has children.

    Children of lines whose paths are in `folded` are not visible. `indent` precedes each text.
    """
    for text, children, path in lines:
        is_folded = path in folded
        sign = ("▸ " if is_folded else "▾ ") if children else "  "
        yield f"{indent}{sign}{text}", path, bool(children)
        if children and not is_folded:
            yield from flatten(children, folded, f"{indent}  ")


class BytesPane(LineList):
    """The bytes of a frame. `byte_offset` is that of the byte under the cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "step(-1)", "Byte before", show=False),
        Binding("right,l", "step(1)", "Byte after", show=False),
    ]

    def __init__(self, paint: Paint, *, id: str) -> None:
        super().__init__(self._line, id=id, title="no bytes")
        self._paint = paint
        self._raw = b""
        self._digits = self._text = ""
        self._highlights: list[Span] = []
        self.byte_offset = 0

    def load(self, raw: bytes, hidden: list[Span]) -> None:
        """Show other bytes, those in `hidden` masked."""
        self._raw = raw
        self._digits = hex_digits(raw, hidden)
        self._text = mask_spans(raw, hidden, b".").translate(_VISIBLE).decode("ascii")
        self._highlights = []
        self.byte_offset = 0
        self.show(-(-len(raw) // _WIDTH), self._line, 0)

    def mark_spans(self, spans: list[Span]) -> None:
        """Mark bytes. Also put the cursor on the first one, unless this list has the focus."""
        self._highlights = spans
        self._strips.clear()
        if spans and not self.has_focus:
            self.byte_offset = spans[0][0]
            self.cursor = self.byte_offset // _WIDTH
            self._keep_in_view()
        self.refresh()

    def move_to(self, index: int) -> None:
        """Move the cursor to a line. Overrides the parent's method."""
        if self._raw:
            self.renew()
            self.byte_offset = min(max(index, 0) * _WIDTH + self.byte_offset % _WIDTH, len(self._raw) - 1)
        super().move_to(index)

    def action_step(self, count: int) -> None:
        """Move to another byte."""
        if self._raw:
            self.byte_offset = max(min(self.byte_offset + count, len(self._raw) - 1), 0)
            self.renew()
            super().move_to(self.byte_offset // _WIDTH)

    def _line(self, index: int, width: int) -> str:
        start = index * _WIDTH
        stop = min(start + _WIDTH, len(self._raw))
        offsets = range(start, stop)
        marks = [any(first <= offset < end for first, end in self._highlights) for offset in offsets]
        if self.has_focus and start <= self.byte_offset < stop:  # so it is seen among marked bytes, too
            marks[self.byte_offset - start] = not marks[self.byte_offset - start]
        digits = [self._digits[3 * offset : 3 * offset + 2] for offset in offsets]
        blanks = " " * (3 * (_WIDTH - len(digits)))
        hexes = _join(digits, marks, " ")
        text = _join(list(self._text[start:stop]), marks, "")
        return f"{self._paint('dim', f'{start:06x}')}  {hexes}{blanks}  {text}"


def _join(cells: list[str], marks: list[bool], blank: str) -> str:
    """Join cells with blanks; a marked cell and the blank to a marked neighbour are in reverse video."""
    parts: list[str] = []
    for index, (cell, is_marked) in enumerate(zip(cells, marks, strict=True)):
        is_blank_marked = is_marked and index + 1 < len(marks) and marks[index + 1]
        parts.append(f"{_MARKED}{cell}{blank if is_blank_marked else ''}{_PLAIN}" if is_marked else cell)
        parts.append("" if is_blank_marked else blank)
    return "".join(parts).removesuffix(blank) if blank else "".join(parts)


class Detail(Horizontal):
    """Fields and bytes, side by side or, on a narrow screen, one below the other."""

    DEFAULT_CSS = """
    Detail { height: 1fr; border-top: solid $primary-darken-2; }
    Detail #fields { width: 1fr; }
    Detail #bytes { width: 76; border-left: solid $primary-darken-3; }
    Detail.narrow { layout: vertical; }
    Detail.narrow #fields { height: 2fr; }
    Detail.narrow #bytes { width: 1fr; border-left: none; border-top: solid $primary-darken-3; height: 1fr; }
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._fields = LineList(id="fields", title="no frame")
        self._bytes = BytesPane(model.paint, id="bytes")
        super().__init__(self._fields, self._bytes, id="detail")
        self._event: Event | None = None
        self._lines: Lines = []
        self._rows: list[tuple[str, Path, bool]] = []
        self._parts: list[LabelledSpan] = []
        self._folded: set[Path] = set()

    def load(self, event: Event | None) -> None:
        """Show another event."""
        self._event = event
        self._lines, self._parts = [], []
        if event is None:
            self._rows = []
            self._fields.show(0, cursor=0)
            self._bytes.load(b"", [])
            return
        self._lines, _ = self._model.tree.lines(event)
        hidden: list[Span] = []
        raw = b""
        if not isinstance(event, Gap | HttpMessage):
            hidden = [] if self._model.session.recorder.show_secrets else event_spans(event)
            self._parts = annotate(event, hidden)
            raw = event.raw
        self._flatten(0)
        self._bytes.load(raw, hidden)
        self._mark_bytes(0)

    def _flatten(self, cursor: int) -> None:
        self._rows = list(flatten(self._lines, self._folded))
        self._fields.show(len(self._rows), lambda index, width: self._rows[index][0], cursor)
        self._fields.renew()

    def on_line_list_moved(self, message: LineList.Moved) -> None:
        """Mark in the other list what the cursor is on now."""
        message.stop()
        if message.lines is self._bytes:
            self._mark_field(self._bytes.byte_offset)
        else:
            self._mark_bytes(message.index)

    def on_line_list_chosen(self, message: LineList.Chosen) -> None:
        """Fold or unfold a field, or show all of a value."""
        message.stop()
        if message.lines is not self._fields:
            return
        text, path, has_children = self._rows[message.index]
        if has_children:
            self._folded ^= {path}
            self._flatten(message.index)
        else:
            name = ".".join(map(str, path)) or "frame"
            plain = to_strip(text.strip()).text
            self.app.push_screen(TextScreen(name, wrap(plain, max(self.app.size.width - 16, 20))))

    def _mark_bytes(self, row: int) -> None:
        path = self._rows[row][1] if row < len(self._rows) else ()
        self._bytes.mark_spans(find_spans(self._parts, path))
        self._show_label(next((part for part in self._parts if path and part.path == path), None))

    def _mark_field(self, offset: int) -> None:
        part = next((part for part in self._parts if part.start <= offset < part.stop), None)
        if part is None:
            return
        self._bytes.mark_spans([part[:2]])
        self._show_label(part)
        path = part.path
        while path:  # until there is a row: a folded field has none, but what contains it has
            row = next((row for row, line in enumerate(self._rows) if line[1] == path), None)
            if row is not None:
                self._fields.show(len(self._rows), cursor=row)
                self._fields.renew()
                return
            path = path[:-1]

    def _show_label(self, part: LabelledSpan | None) -> None:
        label = "" if part is None else f"{part.start:06x}  {clean(part.label)}"
        self.border_title = label.replace("[", "\\[")


class FramesPane(Vertical):
    """The list of frames, and the one under the cursor."""

    DEFAULT_CSS = """
    FramesPane { height: 1fr; }
    FramesPane > #list { height: 3fr; }
    FramesPane > Detail { height: 2fr; }
    FramesPane > Detail.narrow { height: 3fr; }
    """

    def __init__(self, model: Model) -> None:
        self.lines = LineList(model.row_line, id="list", title="reading…")
        self.detail = Detail(model)
        super().__init__(self.lines, self.detail, id="frames")
