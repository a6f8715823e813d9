"""Pulsar's primitive values from text; the layouts are those of views/primitives.py.

Every text that view shows is accepted: dates and times in ISO 8601 and the stored integers it shows
when there is no date for them, ``NaN`` and ``Infinity``. What is shown as text may stand in double quotes.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from pulsarctl_wire.views.content import quoted
from pulsarctl_wire.views.encoding import iso
from pulsarctl_wire.views.values import DAY, NANOS
from pulsarctl_wire.wire import PulsarApi_pb2

_MILLI = 1_000_000  # nanoseconds
_INTEGER = re.compile(r"-?\d{1,20}", re.ASCII)
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_TWO = re.compile(r"\[\s*(-?\d{1,20})\s*,\s*(-?\d{1,20})\s*\]", re.ASCII)
_NO_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

Stored: TypeAlias = "tuple[int | float, ...] | None"
"""What is packed; None for a text that means no value of the type."""


def _bool(text: str) -> Stored:
    return (text == "true",) if text in ("true", "false") else None


def _integer(text: str) -> Stored:
    return (int(text),) if _INTEGER.fullmatch(text) else None


def _float(text: str) -> Stored:
    if text in _NO_NUMBERS:
        return (_NO_NUMBERS[text],)
    if not _NUMBER.fullmatch(text):
        return None
    number = float(text)
    return (number,) if math.isfinite(number) else None


def _date(text: str) -> Stored:
    """Milliseconds since the epoch; a day alone means its midnight, UTC."""
    day = iso.days(text)
    return _one(iso.timestamp(text, _MILLI) if day is None else day * DAY * 1000, text)


def _timestamp(text: str) -> Stored:
    return _one(iso.timestamp(text, _MILLI), text)


def _time(text: str) -> Stored:
    time = iso.time_of_day(text, _MILLI)
    return _one(iso.timestamp(text, _MILLI) if time is None else time, text)


def _local_date(text: str) -> Stored:
    return _one(iso.days(text), text)


def _local_time(text: str) -> Stored:
    return _one(iso.time_of_day(text), text)


def _one(number: int | None, text: str) -> Stored:
    return _integer(text) if number is None else (number,)


def _two(text: str, read: Callable[[str], int | None], unit: int) -> Stored:
    """An instant in nanoseconds as units and nanoseconds; or both as they are stored."""
    nanos = read(text)
    if nanos is not None:
        return divmod(nanos, unit)
    found = _TWO.fullmatch(text)
    return None if found is None else (int(found[1]), int(found[2]))


_instant = partial(_two, read=iso.timestamp, unit=NANOS)
_local_date_time = partial(_two, read=iso.local_timestamp, unit=DAY * NANOS)

_NUMBERS = "a number such as 1.5, NaN or -Infinity, that fits into"
_STORED = "or the stored integer"
_Schema = PulsarApi_pb2.Schema
FORMS: dict[int, tuple[str, Callable[[str], Stored], str]] = {
    _Schema.Bool: (">?", _bool, "true or false"),
    _Schema.Int8: (">b", _integer, "an integer from -128 to 127"),
    _Schema.Int16: (">h", _integer, "an integer from -32768 to 32767"),
    _Schema.Int32: (">i", _integer, "an integer of 32 bits, from -2147483648 to 2147483647"),
    _Schema.Int64: (">q", _integer, "an integer of 64 bits"),
    _Schema.Float: (">f", _float, f"{_NUMBERS} 32 bits"),
    _Schema.Double: (">d", _float, f"{_NUMBERS} 64 bits"),
    _Schema.Date: (">q", _date, f"2023-11-14 or 2023-11-14T22:13:20.125Z, whole milliseconds, {_STORED}"),
    _Schema.Time: (">q", _time, f"22:13:20.125, whole milliseconds, {_STORED}"),
    _Schema.Timestamp: (">q", _timestamp, f"2023-11-14T22:13:20.125Z, whole milliseconds, {_STORED}"),
    _Schema.Instant: (">qi", _instant, "2023-11-14T22:13:20.5Z, or [seconds, nanoseconds]"),
    _Schema.LocalDate: (">q", _local_date, f"2023-11-14, {_STORED}"),
    _Schema.LocalTime: (">q", _local_time, f"22:13:20.5, {_STORED}"),
    _Schema.LocalDateTime: (">qq", _local_date_time, "2023-11-14T22:13:20.5, or [days, nanoseconds]"),
}
"""Layout, reader and an example of the texts of each type."""


def encode_primitive(text: str, kind: int) -> bytes:
    """The payload for ``text`` by the schema type ``kind``; ValueError when it is no such value."""
    form, read, wanted = FORMS[kind]
    stored = read(_unquoted(text.strip()))
    if stored is not None:
        try:
            return struct.pack(form, *stored)
        except (struct.error, OverflowError):  # too large for the type
            pass
    name = PulsarApi_pb2.Schema.Type.Name(kind)  # type: ignore[arg-type, unused-ignore]
    raise ValueError(f"{quoted(text)} is no value of type {name}: give {wanted}")


def _unquoted(text: str) -> str:
    if not text.startswith('"'):
        return text
    try:
        return str(json.loads(text))
    except ValueError:
        return text
