"""A list of lines that are made when they are shown, however many there are, with a cursor."""

from collections.abc import Callable
from typing import ClassVar, Final

from rich.segment import Segment
from textual.binding import Binding, BindingType
from textual.events import Click, Resize
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from pulsarctl_wire.tui.strips import to_strip

_MAX_STRIPS: Final = 1_000  # lines that are cached
_LONGEST: Final = 1 << 20  # cells: a width for which no line is cut

MakeLine = Callable[[int, int], str]
"""Makes the line at an index, for a width in cells. The line may have our colour codes, and no others."""


class LineList(ScrollView, can_focus=True):
    """Lines, one of which is under the cursor. `title` is shown instead if there are none."""

    DEFAULT_CSS = """
    LineList { height: 1fr; overflow: hidden scroll; scrollbar-size: 0 1; }
    LineList > .lines--selected { background: $secondary 40%; }
    LineList > .lines--cursor { background: $surface-lighten-2; }
    LineList:focus > .lines--cursor { background: $primary-darken-3; text-style: bold; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {"lines--cursor", "lines--selected"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("pagedown,space,ctrl+f", "page(1)", "Page down", show=False),
        Binding("pageup,b,ctrl+b", "page(-1)", "Page up", show=False),
        Binding("ctrl+d", "page(0.5)", "Half a page down", show=False),
        Binding("ctrl+u", "page(-0.5)", "Half a page up", show=False),
        Binding("home,g", "go(0)", "First", show=False),
        Binding("end,G", "go(-1)", "Last", show=False),
        Binding("enter", "choose", "Open", show=False),
        Binding("right", "shift(1)", "Right", show=False),
        Binding("left", "shift(-1)", "Left", show=False),
    ]

    class Moved(Message):
        """The cursor has moved to `index`."""

        def __init__(self, lines: "LineList", index: int) -> None:
            super().__init__()
            self.lines = lines
            self.index = index

        @property
        def control(self) -> "LineList":
            """The list, for `on`."""
            return self.lines

    class Chosen(Moved):
        """Enter or a second click on the line at `index`."""

    def __init__(self, make_line: MakeLine | None = None, *, id: str, title: str = "") -> None:
        super().__init__(id=id)
        self._make_line = make_line
        self._title = title
        self._rows = 0
        self._strips: dict[tuple[int, int], Strip] = {}  # by index and width
        self._left = 0  # cells that are hidden at the left
        self.cursor = 0
        self.selection_start: int | None = None
        """Where the selection begins; it ends at the cursor. None: there is no selection."""

    @property
    def selected(self) -> range:
        """The selected lines, or the one under the cursor."""
        if not self._rows:
            return range(0)
        first, last = sorted(
            (self.cursor, self.cursor if self.selection_start is None else self.selection_start)
        )
        return range(first, min(last + 1, self._rows))

    @property
    def row_count(self) -> int:
        """The number of lines."""
        return self._rows

    def show(self, rows: int, make_line: MakeLine | None = None, cursor: int | None = None) -> None:
        """Show `rows` lines: other ones, which `make_line` makes, or (None) more or fewer of the same.

        The cursor goes to line `cursor`. None: it stays, or goes to the last line if there are fewer lines.
        """
        is_same = make_line is None and rows >= self._rows
        self._make_line = make_line or self._make_line
        is_end_visible = self.scroll_offset.y + self.size.height >= self._rows
        self._resize(rows)
        if cursor is not None or self.cursor >= rows:
            self.cursor = max(min(self.cursor if cursor is None else cursor, rows - 1), 0)
            self._keep_in_view()
        if not is_same:
            self._left = 0
            self.renew()
        elif is_end_visible or cursor is not None:
            self.refresh()

    def set_title(self, title: str) -> None:
        """Show another text if there are no lines."""
        if title != self._title:
            self._title = title
            self.refresh()

    def clear_selection(self) -> None:
        """Select nothing but the line under the cursor."""
        self.selection_start = None
        self.refresh()

    def renew(self) -> None:
        """Make all lines again."""
        self._strips.clear()
        self.refresh()

    def _resize(self, rows: int) -> None:
        """Set the number of lines, without a new layout: there is always a scroll bar, so nothing moves."""
        self._rows = rows
        size = Size(max(self.size.width, 1), rows)
        if size != self.virtual_size:
            self.set_reactive(Widget.virtual_size, size)
            self._scroll_update(size)

    def on_resize(self, event: Resize) -> None:
        """Make the lines as wide as the list is now, and show the cursor."""
        self._resize(self._rows)
        self._keep_in_view()
        self.renew()

    def render_line(self, y: int) -> Strip:
        """Return a line of the screen. Overrides the parent's method."""
        width = self.scrollable_content_region.width
        index = self.scroll_offset.y + y
        if self._make_line is None or index >= self._rows:
            text = self._title if not self._rows and y == 0 else ""
            return to_strip(text).adjust_cell_length(width, self.rich_style)
        strip = self._strips.get((index, width))
        if strip is None:
            if len(self._strips) > _MAX_STRIPS:
                self._strips.clear()
            strip = self._strips[index, width] = self._visible_line(index, width)
        style = self.rich_style
        if self.selection_start is not None and index in self.selected:
            style += self.get_component_rich_style("lines--selected", partial=True)
        if index == self.cursor:
            style += self.get_component_rich_style("lines--cursor", partial=True)
        return strip.apply_style(style).adjust_cell_length(width, style)

    def _whole_line(self, index: int, width: int) -> Strip:
        """Return the line that is made for `width` cells; it may be longer."""
        return to_strip("" if self._make_line is None else self._make_line(index, width))

    def _visible_line(self, index: int, width: int) -> Strip:
        """Return the part of a line that is shown, with … where it is cut."""
        end = self._left + width
        strip = self._whole_line(index, end)
        if strip.cell_length <= end:
            return strip.crop(self._left)
        return Strip([*strip.crop(self._left, end - 1), Segment("…")])

    def move_to(self, index: int) -> None:
        """Move the cursor to a line, and scroll to it."""
        index = max(min(index, self._rows - 1), 0)
        if index != self.cursor:
            self.refresh_line(self.cursor)
            self.cursor = index
            self.refresh_line(index)
            if self.selection_start is not None:
                self.refresh()
        self._keep_in_view()
        self.post_message(self.Moved(self, index))

    def _keep_in_view(self) -> None:
        top, height = self.scroll_offset.y, self.size.height
        if not height:  # not laid out yet: `on_resize` will do this
            return
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False, force=True, immediate=True)
        elif self.cursor >= top + height:
            self.scroll_to(y=self.cursor - height + 1, animate=False, force=True, immediate=True)

    def action_move(self, count: int) -> None:
        """Move the cursor by some lines."""
        self.move_to(self.cursor + count)

    def action_page(self, pages: float) -> None:
        """Move the cursor by pages."""
        self.move_to(self.cursor + int(pages * max(self.size.height - 1, 1)))

    def action_go(self, index: int) -> None:
        """Move the cursor to the first line, or (-1) to the last one."""
        self.move_to(index if index >= 0 else self._rows - 1)

    def action_choose(self) -> None:
        """Choose the line under the cursor."""
        if self._rows:
            self.post_message(self.Chosen(self, self.cursor))

    def action_shift(self, steps: int) -> None:
        """Scroll sideways by half the width, to the right as long as a line goes on there."""
        width, top = self.scrollable_content_region.width, self.scroll_offset.y
        shown = range(top, min(top + self.size.height, self._rows))
        end = self._left + width
        if steps < 0 or any(self._whole_line(index, _LONGEST).cell_length > end for index in shown):
            self._left = max(self._left + steps * (width // 2), 0)
            self.renew()

    def on_click(self, event: Click) -> None:
        """Move the cursor to the line that was clicked; a double click on the cursor's line chooses it."""
        index = self.scroll_offset.y + event.y
        if index < self._rows:
            if index == self.cursor and event.chain > 1:
                self.action_choose()
            self.move_to(index)
