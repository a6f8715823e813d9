"""`Case`, and the decorator that makes a case of a function."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeVar

from pulsarctl_wire.checks.requirement import LEVELS, Requirement
from pulsarctl_wire.checks.rule import split_paragraphs

Run = Callable[[Any], Awaitable[None]]
"""A case as a function: of a `Target`, or for clients of a `Stage`."""
F = TypeVar("F", bound=Run)
_ATTRIBUTE: Final = "conformance_case"
_LABELS: Final = ("Expected", "Source", "Why")


class Case(NamedTuple):
    """A case: its id, how binding it is, and under which conditions it can be judged.

    `needs` are settings that the broker must have (of cases for clients: commands, see `COMMANDS`), and
    `without` settings that it must not have. `since` is the first release of Pulsar that fulfils it, or "".
    `waits` is how long the case waits: the name of a time in `seconds` of its target or stage, and how many
    times that. A case that runs `alone` would be disturbed by others, or disturbs them. A case that `spoils`
    the broker for later ones runs only if it is asked for by its id.
    """

    id: str
    level: str
    run: Run
    needs: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    since: str = ""
    waits: tuple[str, float] | None = None
    alone: bool = False
    spoils: bool = False

    @property
    def topic(self) -> str:
        """The part of its id before the slash."""
        return self.id.partition("/")[0]

    @property
    def paragraphs(self) -> dict[str, str]:
        """The paragraphs of its docstring by label: "" (what is sent), Expected, Source, Why."""
        return split_paragraphs(self.run.__doc__ or "", _LABELS)

    @property
    def requirement(self) -> Requirement:
        """What it checks."""
        texts = self.paragraphs
        what = f"{texts.get('', '')} Expected: {texts.get('Expected', '')}"
        return Requirement(
            self.id, self.level, what, texts.get("Why", ""), texts.get("Source", ""), self.since
        )


def case(
    level: str,
    *,
    needs: tuple[str, ...] = (),
    without: tuple[str, ...] = (),
    since: str = "",
    waits: tuple[str, float] | None = None,
    alone: bool = False,
    spoils: bool = False,
    topic: str = "",
) -> Callable[[F], F]:
    """Make a case of an async function; the keywords are fields of `Case`.

    `topic` is the first part of its id: by default its module's name, up to the first underscore.
    """
    assert level in LEVELS

    def mark(function: F) -> F:
        prefix = topic or function.__module__.rpartition(".")[2].partition("_")[0]
        name = f"{prefix}/{function.__name__.rstrip('_')}"
        new_case = Case(name, level, function, needs, without, since, waits, alone, spoils)
        setattr(function, _ATTRIBUTE, new_case)
        return function

    return mark


def find_cases(module: object) -> list[Case]:
    """Return the cases of a module, in order."""
    values = (getattr(value, _ATTRIBUTE, None) for value in vars(module).values())
    return [value for value in values if isinstance(value, Case)]
