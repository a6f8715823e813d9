"""The first and the last line of the screen: the panes, and where the cursor is."""

from collections.abc import Sequence
from typing import Final

from textual.widgets import Static

from pulsarctl_wire.render.text import clean, count_of
from pulsarctl_wire.stats.overview import KINDS
from pulsarctl_wire.tui.model import Model

PANES: Final = ("frames", *KINDS, "findings", "sequence", "log", "faults", "held")
"""All panes, in the order of their keys."""
FIRST_LIVE_PANE: Final = 8
"""The index of the first pane that only live traffic has."""
NARROW_WIDTH: Final = 120
"""Width in cells below which titles are short, and bytes stand below fields."""

_TITLES: Final = (
    *("Frames", "Connections", "Topics", "Producers", "Subscriptions", "Findings", "Sequence", "Log"),
    *("Faults", "Held"),
)
_SHORT: Final = ("Frames", "Conns", "Topics", "Prods", "Subs", "Finds", "Seq", "Log", "Faults", "Held")


class Bar(Static):
    """A line of text."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id, markup=False)

    def change(self, text: str) -> None:
        """Change the text. Nothing is sent to the terminal if the text is the same."""
        if self.content != text:
            self.update(text, layout=False)


def tabs_text(panes: Sequence[str], current: str, title: str, *, is_narrow: bool) -> str:
    """Return the names of the panes with their keys, the current one in brackets, and the title."""
    tabs = [
        f"[{number % 10}]{name}" if pane == current else f"{' ' * (not is_narrow)}{number % 10} {name}"
        for number, (pane, name) in enumerate(zip(panes, _SHORT if is_narrow else _TITLES, strict=False), 1)
    ]
    return f"{' '.join(tabs)}   {clean(title)}"


def status_text(model: Model, row: int, states: Sequence[str], note: str) -> str:
    """Return the cursor's place among all rows, `states` (what is going on), `note`, and the filter."""
    counts = [f"{min(row + 1, model.row_count):,}/{model.row_count:,}"]
    matches = model.matches
    if matches is not None:
        is_behind = not matches.is_done and matches.scanned < model.reader.count
        state = f", {matches.scanned:,} looked at" if is_behind else ""
        counts.append(f"of {model.reader.count:,}{state}")
        note = matches.error or note
    if model.is_reading:
        counts.append(f"live {model.rates.text}".rstrip() if model.session.live else "reading")
    findings = len(model.findings.get("findings", []))
    counts += [*states, *([count_of(findings, "finding")] if findings else [])]
    parts = ["  ".join(counts)]
    if model.problem or note:
        parts.append(clean(model.problem or note))
    if model.expression:
        parts.append(f"filter: {clean(model.expression)}")
    return "  │  ".join(parts)
