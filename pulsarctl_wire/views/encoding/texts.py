"""What encoders share: parsing text and JSON that users type, and errors for values that do not fit."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from pulsarctl_wire.views.content import MAX_REASON, quote

_SPACE = re.compile(r"[ \t\n\r]*")


def utf8(text: bytes) -> str:
    """Decode ``text``; ValueError if it is not UTF-8."""
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"the text is not UTF-8 at byte {error.start}: write it in UTF-8, or use the schema bytes"
        ) from None


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a JSON object. Refuses duplicate names, as only the last of them would be kept."""
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        duplicate = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {quote(duplicate)} appears twice in one object: remove one")
    return values


def _refuse_constant(name: str) -> Any:
    raise ValueError(f'JSON has no number {name}: write "{name}" in double quotes')


def read_json(text: bytes | str, parse_number: Callable[[str], Any]) -> Any:
    """Parse ``text``, a JSON document in UTF-8; ValueError says what is wrong with it.

    ``parse_number`` converts the digits of numbers with a point or an exponent.
    """
    decoded = text if isinstance(text, str) else utf8(text)
    try:
        return json.loads(
            decoded, parse_float=parse_number, parse_constant=_refuse_constant, object_pairs_hook=_make_object
        )
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"the text is not JSON: {error.msg} at {place}; put text in double quotes") from None
    except RecursionError:
        raise ValueError("the JSON is nested too deeply: nest it less") from None


def parse_members(text: str) -> dict[str, str]:
    """Return the members of a JSON object, with values as typed; ValueError if it is not an object."""
    if not isinstance(read_json(text, float), dict):
        raise ValueError('a KeyValue must be a JSON object: give {"key": ..., "value": ...}')
    decoder = json.JSONDecoder()
    values: dict[str, str] = {}
    index = _skip_blanks(text, text.index("{") + 1)
    while text[index] != "}":
        name, index = decoder.raw_decode(text, index)
        start = _skip_blanks(text, _skip_blanks(text, index) + 1)  # after the colon
        _, end = decoder.raw_decode(text, start)
        values[name] = text[start:end]
        index = _skip_blanks(text, end)
        if text[index] == ",":
            index = _skip_blanks(text, index + 1)
    return values


def _skip_blanks(text: str, index: int) -> int:
    """Return the index after any white space at ``index``."""
    space = _SPACE.match(text, index)
    return index if space is None else space.end()


def describe(value: object) -> str:
    """Describe a JSON value as part of an error: one short line."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    is_json = value is None or isinstance(value, str | int | float)
    return quote(json.dumps(value) if is_json else value)[1:-1]


def misfit(path: str, value: object, expected: str) -> ValueError:
    """Make the error for ``value`` in the field at ``path`` ("": itself); ``expected`` says what to give."""
    place = f"the field {quote(path, MAX_REASON)}" if path else "the value"
    return ValueError(f"{place} is {describe(value)}: give {expected}")
