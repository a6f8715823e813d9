"""Decides where a run goes on, and whether the table has to be made again for it.

An input is the same one if its path, size and time are. It may also have been renamed, or compressed: then it
begins with the same bytes, and has the same size, or only one of the two is compressed. New inputs are read
after those that are done, even if they are earlier: only within a series does the order matter.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from itertools import zip_longest
from typing import Any, NamedTuple

from pulsarctl_wire.capture.series import PACKED, series_of
from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline.decoding.edges import Options, Settings
from pulsarctl_wire.pipeline.decoding.progress import Progress
from pulsarctl_wire.pipeline.files.splits import Input, Side
from pulsarctl_wire.table.schema import VERSION


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


def get_split_name(progress: Progress) -> str:
    """Return the name of the split that is next: the place of a progress among others."""
    return progress.next


def get_furthest_saved(states: dict[str, Progress]) -> Progress:
    """Return the furthest of what is saved."""
    return max(states.values(), key=get_split_name)


def find_furthest(
    states: dict[str, Progress], inputs: list[Input], options: Options, mirror: bool
) -> Progress | None:
    """Return the furthest progress that goes on with `inputs` and `options`, with all its inputs, or None.

    With `mirror`, none of its inputs may be gone. A file that belongs before others of its series is read
    after them only if making the table again would lose rows, since inputs are gone.
    """
    progress = _find_furthest(states, inputs, options, mirror, any_order=False)
    done_count = len(list_begun(progress)) if progress else 0
    if states and not mirror and find_lost(get_furthest_saved(states), done_count, inputs) is not None:
        return _find_furthest(states, inputs, options, mirror, any_order=True) or progress
    return progress


def _find_furthest(
    states: dict[str, Progress], inputs: list[Input], options: Options, mirror: bool, *, any_order: bool
) -> Progress | None:
    for progress in sorted(states.values(), key=get_split_name, reverse=True):
        if progress.version == VERSION and progress.options == options:
            all_inputs = join_inputs(progress, inputs, any_order=any_order)
            if options.keylog is not None and all_inputs and len(all_inputs) > progress.file:
                continue  # TLS is opened in one go
            if all_inputs is not None and (len(all_inputs) == len(inputs) or not mirror):
                progress.inputs = all_inputs
                return progress
    return None


def describe_difference(prior: Progress | None, options: Options, is_asked: bool) -> str:
    """Say why a table does not go on from `prior`, its progress before. `is_asked`: --rebuild was given."""
    if prior is None:
        return "it cannot be told what the table was made of"
    if prior.version != VERSION:
        return "the table was made by another version of pwire"
    changes = [
        f"--{option.name.replace('_', '-')} {_describe_old(getattr(prior.options, option.name))}"
        for option in fields(options)
        if getattr(prior.options, option.name) != getattr(options, option.name)
    ]
    if prior.options.partition_by != options.partition_by:
        changes.append("which pwire table optimize --partition-by changes without decoding")
    if is_asked and not changes:
        return "--rebuild was given"
    if not changes and options.keylog is not None:
        return "the inputs are not the same as before, and TLS is opened in all of them in one go"
    return ", ".join(changes) or "the inputs do not continue those before"


def read_recorded(manifest: bytes | None, options: Options) -> Progress | None:
    """Return a progress with the inputs that the manifest of a complete table has, or None."""
    with suppress(ValueError, TypeError, LookupError, RecursionError):
        field_names = ("name", "size", "modified_ns", "path", "first_ns", "mark")
        content = json.loads(manifest or b"{}")
        inputs = [Input(**{name: input_[name] for name in field_names}) for input_ in content["inputs"]]
        return Progress(inputs, options, file=len(inputs)) if inputs else None
    return None


def _describe_old(value: Any) -> str:
    """Say what an option was in earlier runs."""
    if value is None or value is False or value == ():
        return "was not given before"
    if value is True:
        return "was given before"
    if isinstance(value, str | int):
        return f"was {value} before"
    if isinstance(value, tuple) and all(isinstance(part, str) for part in value):
        return f"was {','.join(value)} before"
    return "was another one before"


def refuse_losses(prior: Progress, count: int, inputs: list[Input], reason: str) -> None:
    """Raise CaptureError if rows of what came after the first `count` inputs cannot be made of `inputs`."""
    missing = find_lost(prior, count, inputs)
    if missing is not None:
        raise CaptureError(
            f"{missing.name} is gone or has changed, and {reason}; --rebuild makes the table without its rows"
        )


def list_notes(progress: Progress | None, damage: list[str], *, has_deleted_rebuild: bool) -> list[str]:
    """Return what to tell the user about going on from a progress, in spite of damage."""
    effect = "the run goes on from what was saved before; what came after is read again if it is still there"
    notes = [f"{text}: {effect}" for text in damage]
    if has_deleted_rebuild:
        notes.append("a rebuild of the table that was broken off is deleted")
    return notes + (note_late_inputs(progress) if progress else [])


def report_losses(progress: Progress, prior: Progress | None, inputs: list[Input]) -> None:
    """Report an input of `prior` that is gone, and that a run had begun to read again when it was killed."""
    missing = prior and find_lost(prior, len(list_begun(progress)), inputs)
    if missing:
        problem = "is gone: its rows were deleted by a run that was broken off before it had read it again"
        progress.totals.problems.append((missing.name, problem, True))


def skip_gone_inputs(progress: Progress, inputs: list[Input]) -> None:
    """Go on without the rest of inputs that were done in part and are gone; add that to the problems."""
    paths, earlier = {input_.path for input_ in inputs}, list_begun(progress)
    missing = [earlier[number].name for number in find_partial(earlier) if earlier[number].path not in paths]
    progress.totals.add_problems([(name, "is gone, and was not read to its end", True) for name in missing])
    if progress.part and (last := earlier[-1]).path not in paths:
        if not progress.unreadable:
            stop = progress.end[0] if progress.end else 0
            progress.totals.problems.append(
                (last.name, f"is gone, and was not read from byte {stop} on", True)
            )
        progress.file, progress.part, progress.end, progress.unreadable = progress.file + 1, 0, None, False


# -- inputs of before, and those that are there now


def list_begun(progress: Progress) -> list[Input]:
    """Return the inputs that are done, and the one that is done in part."""
    return progress.inputs[: progress.file + (progress.part > 0)]


def join_inputs(progress: Progress, inputs: list[Input], *, any_order: bool = False) -> list[Input] | None:
    """Return all inputs of a table that goes on from `progress`: those begun, gone or not, then the new ones.

    None if `inputs` do not continue `progress`. A new file that begins before a file of its series that is
    done continues it only with `any_order`.
    """
    earlier = list_begun(progress)
    if len(earlier) < progress.file + (progress.part > 0):
        return None  # pwire saves no such progress: others made it up
    if inputs[: len(earlier)] == earlier:
        return inputs
    lookup, ends, spans = _InputLookup(earlier), find_partial(earlier), _spans(earlier)
    numbers: dict[str, int] = {}
    present_numbers: set[int] = set()
    new_inputs: list[Input] = []
    for input_ in inputs:
        number = lookup.find_number(input_)
        has_changed = number is None
        if number is None:
            number = lookup.find_changed(input_)
            if number is not None and earlier[number].first_ns is None and number < len(earlier) - 1:
                number = None  # it had no packets then
        if number is None:
            if not any_order and _is_before(input_, spans[series_of(input_.path)]):
                return None
            new_inputs.append(input_)
            continue
        if number in present_numbers or (
            has_changed and not (number in ends and _holds(input_, earlier[number]))
        ):
            return None
        present_numbers.add(number)
        if number in ends:
            numbers[input_.path] = number
            earlier[number] = earlier[number]._replace(
                path=input_.path, size=input_.size, modified_ns=input_.modified_ns, mark=input_.mark
            )
        elif progress.part and number == len(earlier) - 1:
            earlier[number] = earlier[number]._replace(path=input_.path)
    new_inputs.sort(key=_has_times)  # files without packets first, so none is between two that overlap
    numbers |= {input_.path: number for number, input_ in enumerate(new_inputs, len(earlier))}
    starts = {number: end for number, end in ends.items() if number in present_numbers}
    all_inputs = earlier + list(_turns(new_inputs, numbers, starts))
    return None if starts else all_inputs  # those left would not be read to their ends


def note_late_inputs(progress: Progress) -> list[str]:
    """Return a note for the user if inputs that are next begin before some that are done."""
    earlier = list_begun(progress)
    last = max(filter(_has_times, earlier), key=_first_ns, default=None)
    if last is None:
        return []
    later = filter(_has_times, progress.inputs[len(earlier) :])
    names = [input_.name for input_ in later if _first_ns(input_) < _first_ns(last)]
    if not names:
        return []
    note = f" ({len(names)} such files in all)" if len(names) > 1 else ""
    return [f"{names[0]} came late: it begins before {last.name}, which is done, and is read after it{note}"]


def find_partial(inputs: list[Input]) -> dict[int, int]:
    """Return how far (ns) each file that is not read to its end is read, by its number."""
    ends = {side.file: side.until for input_ in inputs for side in input_.sides}
    return {file: end for file, end in ends.items() if end is not None and file < len(inputs)}


def find_lost(progress: Progress, count: int, inputs: list[Input]) -> Input | None:
    """Find an input read after the first `count` that is gone from `inputs`, or there only in part."""
    lookup = _InputLookup(inputs)
    later_inputs = list_begun(progress)[count:]
    side_files = {side.file for input_ in later_inputs for side in input_.sides}
    read_inputs = [
        *later_inputs,
        *(progress.inputs[file] for file in sorted(side_files) if file < len(progress.inputs)),
    ]
    return next((input_ for input_ in read_inputs if not lookup.holds(input_)), None)


class _InputLookup:
    """Inputs by what identifies them."""

    def __init__(self, inputs: Sequence[Input]) -> None:
        self._inputs = inputs
        self._numbers = {input_.mark: number for number, input_ in enumerate(inputs) if input_.mark}
        self._numbers |= {_identify(input_): number for number, input_ in enumerate(inputs)}
        self._paths = {input_.path: number for number, input_ in enumerate(inputs)}
        self._begins = {_begin(input_): number for number, input_ in enumerate(inputs)}

    def find_number(self, target: Input) -> int | None:
        """Return the number of the same input, or None."""
        number = self._numbers.get(_identify(target), self._numbers.get(target.mark))
        if number is None:
            return None
        input_ = self._inputs[number]
        return number if input_.size == target.size or _is_packed(input_) != _is_packed(target) else None

    def find_changed(self, target: Input) -> int | None:
        """Return the number of the same file with more or less in it, or None."""
        number = self._paths.get(target.path)
        if number is not None and None in (self._inputs[number].first_ns, target.first_ns):
            return number  # it had no packets yet
        return self._begins.get(_begin(target)) if target.first_ns is not None else None

    def holds(self, target: Input) -> bool:
        """Return whether an input has all that another one had."""
        number = self.find_changed(target)
        return self.find_number(target) is not None or (
            number is not None and _holds(self._inputs[number], target)
        )


def _identify(input_: Input) -> str:
    return f"{input_.path} {input_.size} {input_.modified_ns}"


def _begin(input_: Input) -> tuple[int | None, str]:
    """Return what a file keeps when it grows, even if rotation renames it."""
    return input_.first_ns, series_of(input_.path)


def _has_times(input_: Input) -> bool:
    return input_.first_ns is not None


def _first_ns(input_: Input) -> int:
    assert input_.first_ns is not None
    return input_.first_ns


def _is_packed(input_: Input) -> bool:
    return PACKED.search(input_.path) is not None


def _holds(current: Input, earlier: Input) -> bool:
    """Return whether a file that begins as before has no less in it."""
    return current.size >= earlier.size or _is_packed(current) != _is_packed(earlier)


def _spans(inputs: list[Input]) -> dict[str, list[tuple[int, int]]]:
    """Return when the files of each series begin and end (ns)."""
    spans = defaultdict(list)
    for input_ in filter(_has_times, inputs):
        first = _first_ns(input_)
        spans[series_of(input_.path)].append((first, first if input_.last_ns is None else input_.last_ns))
    return spans


def _is_before(input_: Input, spans: list[tuple[int, int]]) -> bool:
    """Return whether a file belongs before one of its series, whose spans are given.

    If one of them is of the same time, they are of several hosts, whose names may differ in numbers alone.
    """
    if input_.first_ns is None:
        return False
    middle = input_.first_ns if input_.last_ns is None else (input_.first_ns + input_.last_ns) // 2
    has_twin = any(first <= middle <= last for first, last in spans)
    return not has_twin and any(first > input_.first_ns for first, _ in spans)


def _turns(new_inputs: list[Input], numbers: dict[str, int], starts: dict[int, int]) -> Iterator[Input]:
    """Yield the `new_inputs`, each with what is read beside it: parts of these, and the rest of others.

    `numbers` are those of all these files, by path. `starts` says from which time on the others are read, in
    ns by number; a file is removed from it when a turn has it.
    """
    for input_, following in zip_longest(new_inputs, new_inputs[1:]):
        next_paths = {side.path for side in following.sides} if following else set()
        own_side = Side(0, input_.name, input_.path, input_.size, input_.modified_ns, None, None)
        sides = []
        for side in input_.sides or (own_side,):
            number = numbers.get(side.path)
            until = following.first_ns if side.path in next_paths else None
            if number is None or (until is not None and until <= starts.get(number, 0)):
                continue  # it is done
            since = None if side.path == input_.path else starts.pop(number, input_.first_ns)
            sides.append(side._replace(file=number, since=since, until=until))
        is_alone = len(sides) == 1 and sides[0].until is None
        yield input_._replace(sides=() if is_alone else tuple(sides))
