"""Checks for cases: one that fails raises `Mismatch`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from google.protobuf.message import Message

from pulsarctl_wire.errors import WireError
from pulsarctl_wire.wire.fields import Walker

if TYPE_CHECKING:
    from pulsarctl_wire.wire.frame import Frame

_MAX_CHARACTERS: Final = 400  # characters of a value in a text
T = TypeVar("T")


class Mismatch(WireError):
    """A broker or a client did not do what was expected; `expected` and `actual` are texts about `what`."""

    def __init__(self, expected: str, actual: str, what: str = "") -> None:
        self.expected = expected
        self.actual = actual
        self.what = what
        super().__init__(f"{what}: " * bool(what) + f"expected {expected}, but {actual}")


class Inapplicable(WireError):
    """A case cannot be judged on this broker or client; the text says why."""


def equal(actual: object, expected: object, what: str) -> None:
    """Require that a value, which the text `what` names, is the expected one."""
    if actual != expected:
        raise Mismatch(show(expected), show(actual), what)


def require(condition: object, expected: str, actual: object) -> None:
    """Require a condition, which the text `expected` describes; `actual` is shown if it does not hold."""
    if not condition:
        raise Mismatch(expected, show(actual))


def present(body: Any, *names: str) -> None:
    """Require that a command has these fields, explicitly."""
    for name in names:
        if not body.HasField(name):
            raise Mismatch("to be there", show(body), name)


def absent(body: Any, *names: str) -> None:
    """Require that a command does not have these fields."""
    for name in names:
        if body.HasField(name):
            raise Mismatch("to be absent", show(body), name)


def single(items: Iterable[T], what: str) -> T:
    """Return the only one of some items, which the text `what` names; require exactly one item."""
    values = list(items)
    if len(values) != 1:
        raise Mismatch(f"one {what}", f"{len(values)} of them")
    return values[0]


def show(value: object) -> str:
    """Return a value as a text that is not too long."""
    if isinstance(value, Message):
        text = ", ".join(f"{name}={field}" for name, field in Walker()(value).items()) or "no fields"
    else:
        text = repr(value)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}…"


def describe(frame: Frame) -> str:
    """Return a frame as a short text: its command, and its fields."""
    return f"{frame.command} {{{show(frame.body)}}}" if frame.body is not None else frame.command


def describe_all(frames: Sequence[Frame]) -> str:
    """Return frames as a short text."""
    texts = [describe(frame) for frame in frames[:5]]
    return "; ".join([*texts, f"{len(frames) - 5} more"] if len(frames) > 5 else texts)
