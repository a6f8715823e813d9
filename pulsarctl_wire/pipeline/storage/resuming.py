"""Decides where a run goes on, and whether the table has to be made again for it."""

import json
from contextlib import suppress
from dataclasses import fields
from typing import Any, NamedTuple

from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline.decoding.edges import Options, Settings
from pulsarctl_wire.pipeline.decoding.progress import Progress
from pulsarctl_wire.pipeline.files.splits import Input
from pulsarctl_wire.pipeline.storage.continuing import begun, continued, late, lost, partly_read
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
