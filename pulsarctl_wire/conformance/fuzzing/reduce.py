"""Makes a session that shows a problem as short as possible."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from pulsarctl_wire.conformance.fuzzing.session import Session, Step

T = TypeVar("T")
Shows = Callable[[Session], Awaitable[bool]]
"""Whether a session shows the problem; always False once the time is up."""


async def reduce(session: Session, shows: Shows) -> Session:
    """Return a session with as few steps, changes and fields as possible that still shows the problem.

    Of a session that is valid, only whole groups are left out, so that it stays valid.
    """
    if not session.mutations:
        groups = sorted({step.group for step in session.steps} - {0})

        async def is_enough(items: Sequence[int]) -> bool:
            return await shows(_keep_groups(session, items))

        return _keep_groups(session, await minimise(groups, is_enough))

    async def are_enough(items: Sequence[Step]) -> bool:
        return bool(items) and await shows(session._replace(steps=tuple(items)))

    steps = await minimise(session.steps, are_enough)
    session = session._replace(steps=tuple(steps))
    for index in range(len(session.steps)):
        session = await _simplify(session, index, shows)
    return session


def _keep_groups(session: Session, groups: Sequence[int]) -> Session:
    """Return a session with these groups, and group 0, which has CONNECT."""
    return session._replace(steps=tuple(step for step in session.steps if step.group in (0, *groups)))


async def minimise(items: Sequence[T], are_enough: Callable[[Sequence[T]], Awaitable[bool]]) -> Sequence[T]:
    """Return as few items as `are_enough` accepts, in order: delta debugging. It must accept all of them."""
    parts = 2
    while items:
        size = -(-len(items) // parts)
        for start in range(0, len(items), size):
            rest = [*items[:start], *items[start + size :]]
            if await are_enough(rest):
                items, parts = rest, max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(parts * 2, len(items))
    return items


async def _simplify(session: Session, index: int, shows: Shows) -> Session:
    """Leave out changes, fields and the payload of a step where the session still shows the problem."""
    for simplify in _list_simplifiers(session.steps[index]):
        step = simplify(session.steps[index])
        steps = (*session.steps[:index], step, *session.steps[index + 1 :])
        if step != session.steps[index] and await shows(session._replace(steps=steps)):
            session = session._replace(steps=steps)
    return session


def _list_simplifiers(step: Step) -> list[Callable[[Step], Step]]:
    """Return functions that each make a step simpler."""

    def without_change(number: int) -> Callable[[Step], Step]:
        omitted_change = step.changes[number]
        return lambda step: step._replace(
            changes=tuple(change for change in step.changes if change is not omitted_change)
        )

    def without_field(name: str) -> Callable[[Step], Step]:
        return lambda step: step._replace(
            fields={key: step.fields[key] for key in step.fields if key != name}
        )

    def without_metadata(name: str) -> Callable[[Step], Step]:
        return lambda step: step._replace(
            metadata={key: value for key, value in (step.metadata or {}).items() if key != name}
        )

    return [
        *map(without_change, range(len(step.changes))),
        *map(without_field, step.fields),
        *map(without_metadata, step.metadata or {}),
        lambda step: step._replace(payload=b""),
    ]
