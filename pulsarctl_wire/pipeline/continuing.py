"""Decides whether a table can go on with the inputs that are there now, though earlier ones may be gone.

An input is the same one if its path, size and time are, or if it begins with the same bytes: it may have been
renamed or compressed. Those that are there must be some of the inputs that are done, in their order, and
then new ones.
"""

from collections.abc import Sequence

from pulsarctl_wire.capture.series import PACKED, series
from pulsarctl_wire.pipeline.progress import Progress
from pulsarctl_wire.pipeline.splits import Input


def begun(found: Progress) -> list[Input]:
    """The inputs that are done, and the one that is done in part."""
    return found.inputs[: found.file + (found.part > 0)]


def continued(found: Progress, inputs: list[Input]) -> list[Input] | None:
    """All inputs of a table that goes on from `found`: those begun, gone or not, then the new ones.

    None if `inputs` are no continuation of those.
    """
    before = begun(found)
    if len(before) < found.file + (found.part > 0):
        return None  # others made that up
    if inputs[: len(before)] == before:
        return inputs
    known = _Known(before)
    present: dict[int, Input] = {}
    for each in inputs:
        number = known.number(each)
        if number is None:
            break
        if number <= max(present, default=-1):
            return None
        present[number] = each
    new = inputs[len(present) :]
    if any(known.number(each) is not None or known.changed(each) is not None for each in new):
        return None
    numbers = {each.path: number for number, each in present.items()}
    numbers |= {each.path: number for number, each in enumerate(new, len(before))}
    if not _ended(before, present, numbers, new):
        return None
    if found.part and len(before) - 1 in present:
        before[-1] = before[-1]._replace(path=present[len(before) - 1].path)
    return before + [
        each._replace(sides=tuple(side._replace(file=numbers[side.path]) for side in each.sides))
        for each in new
    ]


def lost(found: Progress, kept: int, inputs: list[Input]) -> Input | None:
    """The first of what was read after the first `kept` inputs that `inputs` have no longer, or in part."""
    known = _Known(inputs)
    again = begun(found)[kept:]
    beside = {side.file for each in again for side in each.sides}
    read = [*again, *(found.inputs[file] for file in sorted(beside) if file < len(found.inputs))]
    return next((each for each in read if not known.holds(each)), None)


class _Known:
    """Inputs by what identifies them."""

    def __init__(self, inputs: Sequence[Input]) -> None:
        self._inputs = inputs
        self._numbers = {each.mark: number for number, each in enumerate(inputs) if each.mark}
        self._numbers |= {_exactly(each): number for number, each in enumerate(inputs)}
        self._paths = {each.path: each for each in inputs}
        self._begins = {_begin(each): each for each in inputs}

    def number(self, other: Input) -> int | None:
        """The number of the same input, or None."""
        number = self._numbers.get(_exactly(other), self._numbers.get(other.mark))
        if number is None:
            return None
        each = self._inputs[number]
        return number if each.size == other.size or _is_packed(each) != _is_packed(other) else None

    def changed(self, other: Input) -> Input | None:
        """The same file when there was more or less in it, or None."""
        found = self._paths.get(other.path)
        if found is not None and None in (found.first_ns, other.first_ns):
            return found  # it had no packets yet
        return self._begins.get(_begin(other)) if other.first_ns is not None else None

    def holds(self, other: Input) -> bool:
        """Whether one has all that another one had."""
        changed = self.changed(other)
        return self.number(other) is not None or (
            changed is not None and (changed.size >= other.size or _is_packed(changed) != _is_packed(other))
        )


def _exactly(each: Input) -> str:
    return f"{each.path} {each.size} {each.modified_ns}"


def _begin(each: Input) -> tuple[int | None, str]:
    """What a file keeps when it grows, even if it is renamed by its rotation."""
    return each.first_ns, series(each.path)


def _is_packed(each: Input) -> bool:
    return PACKED.search(each.path) is not None


def _ended(before: list[Input], present: dict[int, Input], numbers: dict[str, int], new: list[Input]) -> bool:
    """Whether the last turn of those `before` ended where the first new one begins.

    `present` are those that are still there. Where files overlap, a turn ends where the next file begins.
    """
    last = len(before) - 1
    now = present.get(last)
    if now is None:
        return not any(numbers[side.path] <= last for each in new for side in each.sides)
    then = [(side.file, side.since, side.until) for side in before[last].sides if side.file in present]
    if then == [(last, None, None)]:
        then = []
    is_same = then == [(numbers[side.path], side.since, side.until) for side in now.sides]
    return is_same and now.size == before[last].size  # one that was compressed may have grown before
