"""Columns of tables: their texts and widths, and which ones to drop when space is short."""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from rich.cells import cell_len
from rich.table import Table

from pulsarctl_wire.render.text import clean, narrow, noun_of

GAP: Final = 2
"""Cells between two columns."""
PERSISTENT: Final = "persistent://"
"""The prefix of topic names that is not shown."""

_MIN_NAME: Final = 24  # minimum cells of a name, if a row has one
_MIN_NAME_OF_SEVERAL: Final = 15  # the same if it has several


class Column(NamedTuple):
    """A column: title and text of a row. If space is short, the highest `rank` is dropped first, 0 never."""

    title: str
    text: Callable[[Any], str]
    rank: int = 0
    style: str = ""
    is_name: bool = False


def measure(columns: Sequence[Column], rows: Sequence[Any]) -> tuple[list[list[str]], list[int]]:
    """Return the texts of all rows, and the width of each column in cells."""
    texts = [[clean(column.text(row)) for column in columns] for row in rows]
    titles = [column.title for column in columns]
    return texts, [max(map(cell_len, column)) for column in zip(titles, *texts, strict=True)]


def drop(columns: Sequence[Column], indices: list[int]) -> bool:
    """Remove the least important column from `indices`; returns False if none may be dropped."""
    least = max(indices, key=lambda index: columns[index].rank)
    if columns[least].rank:
        indices.remove(least)
    return columns[least].rank > 0


def fit(columns: Sequence[Column], widths: list[int], width: int) -> list[int]:
    """Choose the columns that fit in `width`; names are narrowed in `widths`. Returns their indices."""
    indices = list(range(len(columns)))
    while (excess := sum(widths[index] + GAP for index in indices) - GAP - width) > 0:
        names = [index for index in indices if columns[index].is_name]
        least = _MIN_NAME if len(names) == 1 else _MIN_NAME_OF_SEVERAL
        slack = sum(max(0, widths[index] - least) for index in names)
        if excess <= slack or not drop(columns, indices):
            narrow(widths, names, excess, 1)
            break
    return indices


def grid() -> Table:
    """Make a table without lines."""
    return Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")


def count_text(number: int, name: str, names: str = "") -> str:
    """Format a number with its noun, as `count_of`, but with separators: 1 frame, 2,000 frames."""
    return f"{number:,} {noun_of(number, name, names)}"


def rate_text(rate: float | None) -> str:
    """Format a rate per second."""
    if rate is None:
        return "-"
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
