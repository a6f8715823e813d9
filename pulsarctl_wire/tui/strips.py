"""Lines of text with our colour codes, as strips of the screen.

Nothing that a line contains may move the cursor or change more than its own colours. Lines come with control
characters escaped; any that are left are replaced here.
"""

from functools import lru_cache
from typing import Final

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.color import Color
from textual.filter import LineFilter
from textual.strip import Strip

_REPLACED: Final = "\N{REPLACEMENT CHARACTER}"


@lru_cache(1_000)
def to_strip(line: str) -> Strip:
    """Return a line as a strip of the same width."""
    text = Text.from_ansi(line)
    plain, segments, pos = text.plain, [], 0
    spans = sorted(text.spans)
    for start, stop, style in spans:
        if start > pos:
            segments.append(Segment(_safe(plain[pos:start])))
        if stop > max(start, pos):
            segments.append(Segment(_safe(plain[max(start, pos) : stop]), _style(style)))
            pos = stop
    if pos < len(plain):
        segments.append(Segment(_safe(plain[pos:])))
    return Strip(segments)


def _style(style: str | Style) -> Style:
    return (Style.parse(style) if isinstance(style, str) else style).update_link(None)


def _safe(text: str) -> str:
    if text.isprintable():
        return text
    return "".join([character if character.isprintable() else _REPLACED for character in text])


class ColourRemover(LineFilter):
    """A filter that removes colours; bold, italic, underline and reverse stay."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return segments without colours. Overrides the parent's method."""
        return [
            Segment(text, style and _without_colours(style), control) for text, style, control in segments
        ]


@lru_cache(1_000)
def _without_colours(style: Style) -> Style:
    return Style(bold=style.bold, italic=style.italic, underline=style.underline, reverse=style.reverse)
