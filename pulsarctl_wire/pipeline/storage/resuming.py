"""Decides where a run goes on, and whether the table has to be made again for it.

An input is the same one if its path, size and time are, or if it begins with the same bytes: it may have been
renamed or compressed. New inputs are read after those that are done, even if they are earlier: only within a
series does the order matter.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from itertools import zip_longest
from typing import Any, NamedTuple

from pulsarctl_wire.capture.series import PACKED, series
from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline.decoding.edges import Options, Settings
from pulsarctl_wire.pipeline.decoding.progress import Progress
from pulsarctl_wire.pipeline.files.splits import Input, Side
from pulsarctl_wire.table import VERSION


class Rebuild(NamedTuple):
    """Why a table is made again beside itself, and what that takes: so many files and bytes are decoded."""

    reason: str
    files: int
    size: int


class Resumed(NamedTuple):
    """How a run goes on: from which progress (None: from the beginning), with which settings of drafts.

    With a `rebuild` it makes the table's next generation. `notes` are for the user.
    """

    progress: Progress | None
    settings: Settings
    rebuild: Rebuild | None = None
    notes: tuple[str, ...] = ()


def place(progress: Progress) -> str:
    """Return the place of a progress among others."""
    return progress.next


def last(states: dict[str, Progress]) -> Progress:
    """Return the furthest of what is saved."""
    return max(states.values(), key=place)


def furthest(
    states: dict[str, Progress], inputs: list[Input], options: Options, mirror: bool
) -> Progress | None:
    """Return the furthest progress that goes on with `inputs` and `options`, with all its inputs, or None.

    Files that belong before others of their series are read after them only if these are gone: otherwise the
    table is better made again.
    """
    progress = _furthest(states, inputs, options, mirror, any_order=False)
    kept = len(begun(progress)) if progress else 0
    if states and not mirror and lost(last(states), kept, inputs) is not None:
        return _furthest(states, inputs, options, mirror, any_order=True) or progress
    return progress


def _furthest(
    states: dict[str, Progress], inputs: list[Input], options: Options, mirror: bool, *, any_order: bool
) -> Progress | None:
    for each in sorted(states.values(), key=place, reverse=True):
        if each.version == VERSION and each.options == options:
            together = continued(each, inputs, any_order=any_order)
            if together is not None and (len(together) == len(inputs) or not mirror):
                each.inputs = together
                return each
    return None


def difference(before: Progress | None, options: Options) -> str:
    """Say why a table cannot go on from what it was before."""
    if before is None:
        return "it cannot be told what the table was made of"
    if before.version != VERSION:
        return "the table was made by another version of pwire"
    changed = [
        f"--{each.name.replace('_', '-')} {_was(getattr(before.options, each.name))}"
        for each in fields(options)
        if getattr(before.options, each.name) != getattr(options, each.name)
    ]
    if before.options.partition_by != options.partition_by:
        changed.append("which pwire table optimize --partition-by changes without decoding")
    return ", ".join(changed) or "the inputs are no continuation of those before"


def recorded(manifest: bytes | None, options: Options) -> Progress | None:
    """Return a progress with the inputs that the manifest of a complete table has, or None."""
    with suppress(ValueError, TypeError, LookupError, RecursionError):
        known = ("name", "size", "modified_ns", "path", "first_ns", "mark")
        about = json.loads(manifest or b"{}")
        inputs = [Input(**{name: each[name] for name in known}) for each in about["inputs"]]
        return Progress(inputs, options, file=len(inputs)) if inputs else None
    return None


def _was(value: Any) -> str:
    """Say what an option was in earlier runs."""
    if value is None or value is False or value == ():
        return "was not given before"
    if value is True:
        return "was given before"
    if isinstance(value, str | int):
        return f"was {value} before"
    if isinstance(value, tuple) and all(isinstance(each, str) for each in value):
        return f"was {','.join(value)} before"
    return "was another one before"


def refuse_losses(before: Progress, kept: int, inputs: list[Input], reason: str) -> None:
    """Raise CaptureError if rows of what came after the first `kept` inputs cannot be made of `inputs`."""
    gone = lost(before, kept, inputs)
    if gone is not None:
        raise CaptureError(
            f"{gone.name} is gone or has changed, and {reason}; --rebuild makes the table without its rows"
        )


def notes_on(progress: Progress | None, damage: list[str], *, has_deleted_rebuild: bool) -> list[str]:
    """Return what to tell the user about going on from a progress, in spite of damage."""
    how = "the run goes on from what was saved before; what came after is read again if it is still there"
    notes = [f"{text}: {how}" for text in damage]
    if has_deleted_rebuild:
        notes.append("a rebuild of the table that was broken off is deleted")
    return notes + (late(progress) if progress else [])


def report_losses(progress: Progress, before: Progress | None, inputs: list[Input]) -> None:
    """Report an input of `before` that is gone, and that a run had begun to read again when it was killed."""
    gone = before and lost(before, len(begun(progress)), inputs)
    if gone:
        what = "is gone: its rows were deleted by a run that was broken off before it had read it again"
        progress.totals.problems.append((gone.name, what, True))


def leave_gone(progress: Progress, inputs: list[Input]) -> None:
    """Go on without the rest of inputs that are done in part, and gone; the problems say so."""
    paths, before = {each.path for each in inputs}, begun(progress)
    gone = [before[number].name for number in partly_read(before) if before[number].path not in paths]
    progress.totals.add_problems([(name, "is gone, and was not read to its end", True) for name in gone])
    if progress.part and (left := before[-1]).path not in paths:
        if not progress.unreadable:
            at = progress.end[0] if progress.end else 0
            progress.totals.problems.append((left.name, f"is gone, and was not read from byte {at} on", True))
        progress.file, progress.part, progress.end, progress.unreadable = progress.file + 1, 0, None, False


# -- inputs of before, and those that are there now


def begun(found: Progress) -> list[Input]:
    """Return the inputs that are done, and the one that is done in part."""
    return found.inputs[: found.file + (found.part > 0)]


def continued(found: Progress, inputs: list[Input], *, any_order: bool = False) -> list[Input] | None:
    """Return all inputs of a table that goes on from `found`: those begun, gone or not, then the new ones.

    None if `inputs` are no continuation of those. A new file that begins before one of its series that is
    done is none, but with `any_order`.
    """
    before = begun(found)
    if len(before) < found.file + (found.part > 0):
        return None  # others made that up
    if inputs[: len(before)] == before:
        return inputs
    known, ends, spans = _Known(before), partly_read(before), _spans(before)
    numbers: dict[str, int] = {}
    present: set[int] = set()
    new: list[Input] = []
    for each in inputs:
        number = known.number(each)
        has_changed = number is None
        if number is None:
            number = known.changed(each)
            if number is not None and before[number].first_ns is None and number < len(before) - 1:
                number = None  # it had no packets then
        if number is None:
            if not any_order and _is_before(each, spans[series(each.path)]):
                return None
            new.append(each)
            continue
        if number in present or (has_changed and not (number in ends and _holds(each, before[number]))):
            return None
        present.add(number)
        if number in ends:
            numbers[each.path] = number
            before[number] = before[number]._replace(
                path=each.path, size=each.size, modified_ns=each.modified_ns, mark=each.mark
            )
        elif found.part and number == len(before) - 1:
            before[number] = before[number]._replace(path=each.path)
    new.sort(key=_has_times)  # the others have no packets
    numbers |= {each.path: number for number, each in enumerate(new, len(before))}
    left = {number: end for number, end in ends.items() if number in present}
    together = before + list(_turns(new, numbers, left))
    return None if left else together


def late(found: Progress) -> list[str]:
    """Return a note for the user if inputs that are next begin before some that are done."""
    before = begun(found)
    last = max(filter(_has_times, before), key=_first, default=None)
    if last is None:
        return []
    after = filter(_has_times, found.inputs[len(before) :])
    names = [each.name for each in after if _first(each) < _first(last)]
    if not names:
        return []
    more = f" ({len(names)} such files in all)" if len(names) > 1 else ""
    return [f"{names[0]} came late: it begins before {last.name}, which is done, and is read after it{more}"]


def partly_read(before: list[Input]) -> dict[int, int]:
    """Return up to when the files are read that are not read to their ends (ns), by number."""
    ends = {side.file: side.until for each in before for side in each.sides}
    return {file: end for file, end in ends.items() if end is not None and file < len(before)}


def lost(found: Progress, kept: int, inputs: list[Input]) -> Input | None:
    """Find what was read after the first `kept` inputs, and is no longer in `inputs`, or only in part."""
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
        self._paths = {each.path: number for number, each in enumerate(inputs)}
        self._begins = {_begin(each): number for number, each in enumerate(inputs)}

    def number(self, other: Input) -> int | None:
        """Return the number of the same input, or None."""
        number = self._numbers.get(_exactly(other), self._numbers.get(other.mark))
        if number is None:
            return None
        each = self._inputs[number]
        return number if each.size == other.size or _is_packed(each) != _is_packed(other) else None

    def changed(self, other: Input) -> int | None:
        """Return the number of the same file when there was more or less in it, or None."""
        number = self._paths.get(other.path)
        if number is not None and None in (self._inputs[number].first_ns, other.first_ns):
            return number  # it had no packets yet
        return self._begins.get(_begin(other)) if other.first_ns is not None else None

    def holds(self, other: Input) -> bool:
        """Return whether an input has all that another one had."""
        changed = self.changed(other)
        return self.number(other) is not None or (
            changed is not None and _holds(self._inputs[changed], other)
        )


def _exactly(each: Input) -> str:
    return f"{each.path} {each.size} {each.modified_ns}"


def _begin(each: Input) -> tuple[int | None, str]:
    """Return what a file keeps when it grows, even if it is renamed by its rotation."""
    return each.first_ns, series(each.path)


def _has_times(each: Input) -> bool:
    return each.first_ns is not None


def _first(each: Input) -> int:
    assert each.first_ns is not None
    return each.first_ns


def _is_packed(each: Input) -> bool:
    return PACKED.search(each.path) is not None


def _holds(now: Input, then: Input) -> bool:
    """Return whether a file that begins as before has no less in it."""
    return now.size >= then.size or _is_packed(now) != _is_packed(then)


def _spans(before: list[Input]) -> dict[str, list[tuple[int, int]]]:
    """Return when the files of each series begin and end (ns)."""
    spans = defaultdict(list)
    for each in filter(_has_times, before):
        first = _first(each)
        spans[series(each.path)].append((first, first if each.last_ns is None else each.last_ns))
    return spans


def _is_before(new: Input, spans: list[tuple[int, int]]) -> bool:
    """Return whether a file belongs before one of its series, whose spans are given.

    If there is one of the same time, it is another host's: the names of hosts may differ in numbers alone.
    """
    if new.first_ns is None:
        return False
    middle = new.first_ns if new.last_ns is None else (new.first_ns + new.last_ns) // 2
    has_twin = any(first <= middle <= last for first, last in spans)
    return not has_twin and any(first > new.first_ns for first, _ in spans)


def _turns(new: list[Input], numbers: dict[str, int], left: dict[int, int]) -> Iterator[Input]:
    """Yield the `new` inputs, each with what is read beside it: parts of these, and what is `left` of others.

    `numbers` are those of all these files, by path. `left` says from which time on a file is to be read (ns),
    by number; a file is removed from it when a turn has it.
    """
    for each, following in zip_longest(new, new[1:]):
        going_on = {side.path for side in following.sides} if following else set()
        own = Side(0, each.name, each.path, each.size, each.modified_ns, None, None)
        sides = []
        for side in each.sides or (own,):
            number = numbers.get(side.path)
            until = following.first_ns if side.path in going_on else None
            if number is None or (until is not None and until <= left.get(number, 0)):
                continue  # it is done
            since = None if side.path == each.path else left.pop(number, each.first_ns)
            sides.append(side._replace(file=number, since=since, until=until))
        is_alone = len(sides) == 1 and sides[0].until is None
        yield each._replace(sides=() if is_alone else tuple(sides))
