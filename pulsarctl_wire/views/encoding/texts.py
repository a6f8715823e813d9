"""What encoders share: parsing text and JSON that users type, and errors for values that do not fit."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from pulsarctl_wire.views.content import MAX_REASON, quoted

_SPACE = re.compile(r"[ \t\n\r]*")


def utf8(text: bytes) -> str:
    """``text`` as a string; ValueError if it is not UTF-8."""
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"the text is not UTF-8 at byte {error.start}: write it in UTF-8, or use the schema bytes"
        ) from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. Refuses duplicate names: the last one would win, and the others silently be lost."""
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {quoted(twice)} appears twice in one object: remove one")
    return made


def _constant(name: str) -> Any:
    raise ValueError(f'JSON has no number {name}: write "{name}" in double quotes')


def read_json(text: bytes | str, number: Callable[[str], Any]) -> Any:
    """Parse ``text``, a JSON document in UTF-8; ValueError says what is wrong with it.

    ``number`` converts the digits of numbers with a point or an exponent.
    """
    typed = text if isinstance(text, str) else utf8(text)
    try:
        return json.loads(typed, parse_float=number, parse_constant=_constant, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"the text is not JSON: {error.msg} at {place}; put text in double quotes") from None
    except RecursionError:
        raise ValueError("the JSON is nested too deeply: nest it less") from None


def members(text: str) -> dict[str, str]:
    """The members of a JSON object, with their values as typed; ValueError if it is not an object."""
    if not isinstance(read_json(text, float), dict):
        raise ValueError('a KeyValue must be a JSON object: give {"key": ..., "value": ...}')
    decoder = json.JSONDecoder()
    found: dict[str, str] = {}
    at = _after_blanks(text, text.index("{") + 1)
    while text[at] != "}":
        name, at = decoder.raw_decode(text, at)
        start = _after_blanks(text, _after_blanks(text, at) + 1)  # after the colon
        _, end = decoder.raw_decode(text, start)
        found[name] = text[start:end]
        at = _after_blanks(text, end)
        if text[at] == ",":
            at = _after_blanks(text, at + 1)
    return found


def _after_blanks(text: str, at: int) -> int:
    """The index after any white space at ``at``."""
    space = _SPACE.match(text, at)
    return at if space is None else space.end()


def shown(value: object) -> str:
    """A JSON value as part of an error: one short line."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    is_json = value is None or isinstance(value, str | int | float)
    return quoted(json.dumps(value) if is_json else value)[1:-1]


def misfit(where: str, value: object, wanted: str) -> ValueError:
    """The error for ``value`` in the field ``where`` ("": the value itself). ``wanted`` says what to give."""
    place = f"the field {quoted(where, MAX_REASON)}" if where else "the value"
    return ValueError(f"{place} is {shown(value)}: give {wanted}")
