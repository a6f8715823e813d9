"""Text, encoded as Pulsar's primitive values with the layouts of views/primitives.py.

The encoder accepts everything that the view shows: dates and times in ISO 8601, stored integers for dates
out of range, ``NaN`` and ``Infinity``. Whatever is shown as text may be in double quotes.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from pulsarctl_wire.views import primitives
from pulsarctl_wire.views.content import quote
from pulsarctl_wire.views.encoding import iso
from pulsarctl_wire.views.values import DAY, NANOS
from pulsarctl_wire.wire import PulsarApi_pb2

_MILLI = 1_000_000  # nanoseconds
_INTEGER = re.compile(r"-?\d{1,20}", re.ASCII)
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_PAIR = re.compile(r"\[\s*(-?\d{1,20})\s*,\s*(-?\d{1,20})\s*\]", re.ASCII)
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

Stored: TypeAlias = "tuple[int | float, ...] | None"
"""The values to pack; None for a text that is not a value of the type."""


def _parser(*parsers: Callable[[str], int | None]) -> Callable[[str], Stored]:
    """Make a parser that tries each of ``parsers``, and then the stored integer."""

    def read(text: str) -> Stored:
        for parse in parsers:
            number = parse(text)
            if number is not None:
                return (number,)
        return (int(text),) if _INTEGER.fullmatch(text) else None

    return read


def _parse_day(text: str) -> int | None:
    """Parse a day to milliseconds since the epoch: its midnight, UTC."""
    day = iso.parse_date(text)
    return None if day is None else day * DAY * 1000


def _parse_float(text: str) -> Stored:
    if text in _NON_FINITE:
        return (_NON_FINITE[text],)
    if not _NUMBER.fullmatch(text):
        return None
    number = float(text)
    return (number,) if math.isfinite(number) else None


def _parse_pair(text: str, read: Callable[[str], int | None], unit: int) -> Stored:
    """Parse a time to (count of ``unit`` ns, ns left over), or parse a pair of the stored integers."""
    nanos = read(text)
    if nanos is not None:
        return divmod(nanos, unit)
    match = _PAIR.fullmatch(text)
    return None if match is None else (int(match[1]), int(match[2]))


_parse_integer = _parser()
_parse_millis = partial(iso.parse_timestamp, unit=_MILLI)
_parse_instant = partial(_parse_pair, read=iso.parse_timestamp, unit=NANOS)
_parse_local_date_time = partial(
    _parse_pair, read=partial(iso.parse_timestamp, zoned=False), unit=DAY * NANOS
)

_FLOAT_HINT = "a number such as 1.5, NaN or -Infinity, that fits into"
_STORED_HINT = "or the stored integer"
_Schema = PulsarApi_pb2.Schema
FORMS: dict[int, tuple[Callable[[str], Stored], str]] = {
    _Schema.Bool: ({"true": (True,), "false": (False,)}.get, "true or false"),
    _Schema.Int8: (_parse_integer, "an integer from -128 to 127"),
    _Schema.Int16: (_parse_integer, "an integer from -32768 to 32767"),
    _Schema.Int32: (_parse_integer, "an integer of 32 bits, from -2147483648 to 2147483647"),
    _Schema.Int64: (_parse_integer, "an integer of 64 bits"),
    _Schema.Float: (_parse_float, f"{_FLOAT_HINT} 32 bits"),
    _Schema.Double: (_parse_float, f"{_FLOAT_HINT} 64 bits"),
    _Schema.Date: (
        _parser(_parse_day, _parse_millis),
        f"2023-11-14 or 2023-11-14T22:13:20.125Z, whole milliseconds, {_STORED_HINT}",
    ),
    _Schema.Time: (
        _parser(partial(iso.parse_time, unit=_MILLI), _parse_millis),
        f"22:13:20.125, whole milliseconds, {_STORED_HINT}",
    ),
    _Schema.Timestamp: (
        _parser(_parse_millis),
        f"2023-11-14T22:13:20.125Z, whole milliseconds, {_STORED_HINT}",
    ),
    _Schema.Instant: (_parse_instant, "2023-11-14T22:13:20.5Z, or [seconds, nanoseconds]"),
    _Schema.LocalDate: (_parser(iso.parse_date), f"2023-11-14, {_STORED_HINT}"),
    _Schema.LocalTime: (_parser(iso.parse_time), f"22:13:20.5, {_STORED_HINT}"),
    _Schema.LocalDateTime: (_parse_local_date_time, "2023-11-14T22:13:20.5, or [days, nanoseconds]"),
}
"""The parser for each type's text, and an example of it."""


def encode_primitive(text: str, kind: int) -> bytes:
    """Encode ``text`` by the schema type ``kind``; ValueError if it is not a value of that type."""
    parse, expected = FORMS[kind]
    stored = parse(_unquote(text.strip()))
    if stored is not None:
        try:
            return primitives.FORMS[kind][0].pack(*stored)
        except (struct.error, OverflowError):  # too large for the type
            pass
    name = PulsarApi_pb2.Schema.Type.Name(kind)  # type: ignore[arg-type, unused-ignore]
    raise ValueError(f"{quote(text)} is not a value of type {name}: give {expected}")


def _unquote(text: str) -> str:
    if not text.startswith('"'):
        return text
    try:
        return str(json.loads(text))
    except ValueError:
        return text
