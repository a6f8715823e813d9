"""What encoders share: text and JSON as users type them, and what is said when they do not fit."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from pulsarctl_wire.views.content import MAX_REASON, quoted

_SPACE = re.compile(r"[ \t\n\r]*")


def utf8(text: bytes) -> str:
    """``text`` as a string; ValueError when it is not UTF-8."""
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"the text is not UTF-8 at byte {error.start}: write it in UTF-8, or use the schema bytes"
        ) from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The last of two equal names would win, and what was typed for the first be lost in silence."""
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {quoted(twice)} stands twice in one object: leave one")
    return made


def _constant(name: str) -> Any:
    raise ValueError(f'JSON has no number {name}: write "{name}" in double quotes')


def read_json(text: bytes | str, number: Callable[[str], Any]) -> Any:
    """The value of ``text``, a JSON document; ValueError says what is wrong with it.

    Args:
        text: UTF-8.
        number: makes numbers with a point or an exponent from their digits.
    """
    typed = text if isinstance(text, str) else utf8(text)
    try:
        return json.loads(typed, parse_float=number, parse_constant=_constant, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"the text is no JSON: {error.msg} at {place}; text goes in double quotes") from None
    except RecursionError:
        raise ValueError("the JSON is nested too deep: nest it less") from None


def members(text: str) -> dict[str, str]:
    """The members of a JSON object, each with its value as it was typed; ValueError if it is none."""
    if not isinstance(read_json(text, float), dict):
        raise ValueError('a KeyValue is a JSON object: give {"key": ..., "value": ...}')
    decoder = json.JSONDecoder()
    found: dict[str, str] = {}
    at = _behind(text, text.index("{") + 1)
    while text[at] != "}":
        name, at = decoder.raw_decode(text, at)
        start = _behind(text, _behind(text, at) + 1)  # behind the colon
        _, end = decoder.raw_decode(text, start)
        found[name] = text[start:end]
        at = _behind(text, end)
        if text[at] == ",":
            at = _behind(text, at + 1)
    return found


def _behind(text: str, at: int) -> int:
    """The index of what comes behind the white space at ``at``."""
    space = _SPACE.match(text, at)
    return at if space is None else space.end()


def shown(value: object) -> str:
    """A JSON value as part of an error: short, one line."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    is_json = value is None or isinstance(value, str | int | float)
    return quoted(json.dumps(value) if is_json else value)[1:-1]


def misfit(where: str, value: object, wanted: str) -> ValueError:
    """The error for ``value`` in the field ``where`` ("" is the whole value): ``wanted`` is the way out."""
    place = f"the field {quoted(where, MAX_REASON)}" if where else "the value"
    return ValueError(f"{place} is {shown(value)}: give {wanted}")
