"""Regular expressions of clients, which may be made to take for ever: matched in bounded time.

Python's `re` tries all ways to match one after the other, so a short expression can keep it busy for years.
It is used where it cannot; other expressions go through an automaton that tries all ways at once, made of
what `re` parses. Pulsar has RE2/J for these, and Java's own for lookarounds, which are supported here, too.
"""

import re
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

if sys.version_info >= (3, 11):
    from re import _constants as ops  # type: ignore[attr-defined]
    from re import _parser as parser  # type: ignore[attr-defined]
else:
    import sre_constants as ops
    import sre_parse as parser

_MOST_NODES: Final = 5_000
_MOST_STEPS: Final = 2_000_000
"""Of the automaton, for all names of a list; about a second."""

_SHORT: Final = 250
"""Characters of a name that `re` may be asked about."""

_IS: Final[dict[Any, Callable[[str], bool]]] = {
    ops.CATEGORY_DIGIT: str.isdecimal,
    ops.CATEGORY_SPACE: str.isspace,
    ops.CATEGORY_WORD: lambda each: each.isalnum() or each == "_",
}
_IS_NOT: Final[dict[Any, Callable[[str], bool]]] = {
    ops.CATEGORY_NOT_DIGIT: lambda each: not each.isdecimal(),
    ops.CATEGORY_NOT_SPACE: lambda each: not each.isspace(),
    ops.CATEGORY_NOT_WORD: lambda each: not _is_word(each),
}
_REPEATS: Final = (ops.MAX_REPEAT, ops.MIN_REPEAT)


class TooMuch(Exception):
    """An expression, or matching it, takes more than it is worth."""


class _Node(NamedTuple):
    """A state: it goes on to `after` behind a character for which `takes` holds, or at once if `holds` does;
    without either, at once to all of `after`.
    """

    after: tuple[int, ...]
    takes: Callable[[str], bool] | None = None
    holds: Callable[["_Run", int], bool] | None = None


class Pattern:
    """A regular expression. Raises re.error, TooMuch."""

    def __init__(self, text: str) -> None:
        try:
            self._quick = re.compile(text)
            tree = parser.parse(text)
        except (RecursionError, OverflowError) as error:
            raise TooMuch(str(error)) from None
        self._is_harmless = _repeats(tree) <= 2
        builder = _Builder(tree.state.flags)
        self._start = builder.sequence(tree, 0)
        self._nodes = builder.nodes

    def select(self, names: Iterable[str]) -> list[bool]:
        """Of each name, whether all of it matches. Those for which it takes too long do not."""
        run = _Run(self._nodes)
        return [self._matches(run, name) for name in names]

    def _matches(self, run: "_Run", name: str) -> bool:
        if self._is_harmless and len(name) <= _SHORT:
            return self._quick.fullmatch(name) is not None
        run.begin(name)
        try:
            return len(name) in run.ends(self._start, 0, len(name))
        except TooMuch:
            return False


def _repeats(tree: Any) -> int:
    """How many repeats and choices there are; those in repeats count much."""
    found = 0
    for op, value in tree:
        if op in _REPEATS:
            found += 1 + 10 * _repeats(value[2])
        elif op is ops.SUBPATTERN:
            found += _repeats(value[-1])
        elif op is ops.BRANCH:
            found += 1 + sum(map(_repeats, value[1]))
        elif op in (ops.ASSERT, ops.ASSERT_NOT):
            found += 10
    return found


def _is_word(each: str) -> bool:
    return each.isalnum() or each == "_"


class _Builder:
    """Makes the nodes; node 0 is the end."""

    def __init__(self, flags: int) -> None:
        self.nodes: list[_Node] = [_Node(())]
        self._flags = flags
        self._steps = 0

    def _add(self, *node: Any) -> int:
        self.nodes.append(_Node(*node))
        return len(self.nodes) - 1

    def sequence(self, tree: Any, after: int) -> int:
        """The node that begins a sequence, with what follows it."""
        self._steps += 1
        if len(self.nodes) + self._steps > _MOST_NODES:
            raise TooMuch("it is too large")
        for op, value in reversed(list(tree)):
            after = self._one(op, value, after)
        return after

    def _one(self, op: Any, value: Any, after: int) -> int:
        if op in (ops.LITERAL, ops.NOT_LITERAL, ops.ANY, ops.IN):
            return self._add((after,), self._taker(op, value))
        if op is ops.SUBPATTERN:
            before, self._flags = self._flags, (self._flags | value[1]) & ~value[2]
            start = self.sequence(value[3], after)
            self._flags = before
            return start
        if op is ops.BRANCH:
            return self._add(tuple(self.sequence(each, after) for each in value[1]))
        if op in _REPEATS:
            least, most, repeated = value
            return self._repeat(least, most, repeated, after)
        if op is ops.AT:
            return self._add((after,), None, _place(value))
        if op in (ops.ASSERT, ops.ASSERT_NOT):
            return self._look(value[0], value[1], op is ops.ASSERT, after)
        raise TooMuch("back references and the like are not supported")

    def _repeat(self, least: int, most: Any, tree: Any, after: int) -> int:
        start = after
        if most is ops.MAXREPEAT:
            start = self._add(())
            self.nodes[start] = _Node((self.sequence(tree, start), after))
        else:
            for _ in range(int(most) - least):
                start = self._add((self.sequence(tree, start), after))
        for _ in range(least):
            start = self.sequence(tree, start)
        return start

    def _look(self, direction: int, tree: Any, wanted: bool, after: int) -> int:
        start = self.sequence(tree, 0)
        if direction > 0:
            return self._add((after,), None, lambda run, at: bool(run.ends(start, at)) is wanted)
        width = int(tree.getwidth()[0])

        def behind(run: "_Run", at: int) -> bool:
            return (at >= width and at in run.ends(start, at - width, at)) is wanted

        return self._add((after,), None, behind)

    def _taker(self, op: Any, value: Any) -> Callable[[str], bool]:
        if op is ops.ANY:
            return (lambda each: True) if self._flags & re.DOTALL else (lambda each: each != "\n")
        items = [(ops.LITERAL, value)] if op is not ops.IN else list(value)
        negated = op is ops.NOT_LITERAL or items[0][0] is ops.NEGATE
        tests = [_test(*item) for item in items if item[0] is not ops.NEGATE]
        if not self._flags & re.IGNORECASE:
            return lambda each: any(test(each) for test in tests) is not negated
        return lambda each: any(test(it) for test in tests for it in _cases(each)) is not negated


def _cases(each: str) -> set[str]:
    return {it for it in (each, each.lower(), each.upper()) if len(it) == 1}


def _test(op: Any, value: Any) -> Callable[[str], bool]:
    if op is ops.LITERAL:
        wanted = chr(value)
        return lambda each: each == wanted
    if op is ops.RANGE:
        low, high = value
        return lambda each: low <= ord(each) <= high
    found = _IS.get(value) or _IS_NOT.get(value)
    if found is None:
        raise TooMuch("it has a set that is not supported")
    return found


def _place(value: Any) -> Callable[["_Run", int], bool]:
    """Whether a place in a name is where an assertion without width holds."""
    if value in (ops.AT_BEGINNING, ops.AT_BEGINNING_STRING):
        return lambda run, at: at == 0
    if value in (ops.AT_END, ops.AT_END_STRING):
        return lambda run, at: at == len(run.name)
    wanted = value is ops.AT_BOUNDARY

    def boundary(run: "_Run", at: int) -> bool:
        sides = [0 <= it < len(run.name) and _is_word(run.name[it]) for it in (at - 1, at)]
        return (sides[0] != sides[1]) is wanted

    return boundary


class _Run:
    """Matches names, with steps for all of them together."""

    def __init__(self, nodes: list[_Node]) -> None:
        self._nodes = nodes
        self._left = _MOST_STEPS
        self._known: dict[tuple[int, int, int | None], set[int]] = {}
        self.name = ""

    def begin(self, name: str) -> None:
        """Go on to another name."""
        self.name = name
        self._known.clear()

    def ends(self, start: int, at: int, stop: int | None = None) -> set[int]:
        """Where what matches from `at` on may end; only `stop`, if that is given."""
        key = start, at, stop
        if key not in self._known:
            self._known[key] = self._ends(start, at, stop)
        return self._known[key]

    def _ends(self, start: int, at: int, stop: int | None) -> set[int]:
        found: set[int] = set()
        states = self._closure([start], at)
        while states:
            if 0 in states and (stop is None or at == stop):
                found.add(at)
            if found or at == len(self.name) or at == stop:
                break
            each = self.name[at]
            at += 1
            taking = [self._nodes[state] for state in states]
            states = self._closure([node.after[0] for node in taking if node.takes and node.takes(each)], at)
        return found

    def _closure(self, todo: list[int], at: int) -> set[int]:
        """These states, and all that are reached from them without a character."""
        found: set[int] = set()
        while todo:
            state = todo.pop()
            if state in found:
                continue
            self._left -= 1
            if self._left < 0:
                raise TooMuch("it takes too long")
            found.add(state)
            node = self._nodes[state]
            if node.takes is None and (node.holds is None or node.holds(self, at)):
                todo.extend(node.after)
        return found
