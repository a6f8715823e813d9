"""Parses dates and times in ISO 8601 to integers: the inverse of the ``iso_`` functions in values.py.

It uses integer arithmetic, as Python's datetime has no nanoseconds. All functions return None for text that
they cannot parse, and for values finer than the requested unit: nothing is rounded.
"""

from __future__ import annotations

import re
import struct
from datetime import date

from pulsarctl_wire.views.values import DAY, EPOCH_DAY, NANOS

_DATE = r"(\d{4})-(\d\d)-(\d\d)"
_TIME = r"([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d)(?:\.(\d{1,9}))?)?"
_ONE_DATE = re.compile(_DATE, re.ASCII)
_ONE_TIME = re.compile(_TIME, re.ASCII)
_ZONE = r"Z|(?P<sign>[+-])(?P<offset>\d\d:\d\d)"
_TIMESTAMP = re.compile(f"(?P<date>{_DATE})[T ](?P<time>{_TIME})(?P<zone>{_ZONE})?", re.ASCII)
_DURATION = re.compile(
    r"P(?=.)(?:(\d{1,10})M)?(?:(\d{1,10})D)?(?:T(?=.)(?:(\d{1,7})(?:\.(\d{1,3}))?S)?)?", re.ASCII
)


def days(text: str) -> int | None:
    """Days since 1970-01-01 of a date such as ``2023-11-14``."""
    found = _ONE_DATE.fullmatch(text)
    if found is None:
        return None
    try:
        return date(*map(int, found.groups())).toordinal() - EPOCH_DAY
    except ValueError:  # no such day
        return None


def time_of_day(text: str, unit: int = 1) -> int | None:
    """A time such as ``22:13``, ``22:13:20.5``, in units of ``unit`` nanoseconds since midnight."""
    found = _ONE_TIME.fullmatch(text)
    if found is None:
        return None
    hour, minute, second = (int(part or 0) for part in found.groups()[:3])
    nanos = int((found[4] or "").ljust(9, "0"))
    return _units((hour * 3600 + minute * 60 + second) * NANOS + nanos, unit)


def timestamp(text: str, unit: int = 1, *, zoned: bool = True) -> int | None:
    """``2023-11-14T22:13:20.5Z``, or one with an offset, in units of ``unit`` nanoseconds since the epoch.

    If not ``zoned``, it is a local time, and must have neither Z nor an offset.
    """
    found = _TIMESTAMP.fullmatch(text)
    if found is None or (found["zone"] is not None) != zoned:
        return None
    day, time, offset = (
        days(found["date"]),
        time_of_day(found["time"]),
        time_of_day(found["offset"] or "00:00"),
    )
    if day is None or time is None or offset is None:
        return None
    return _units(day * DAY * NANOS + time + (offset if found["sign"] == "-" else -offset), unit)


def _units(nanos: int, unit: int) -> int | None:
    count, rest = divmod(nanos, unit)
    return None if rest else count


def duration(text: str) -> bytes | None:
    """Avro's 12 bytes for ``P1M2DT3.004S``: months, days, milliseconds; parts that are 0 may be omitted."""
    found = _DURATION.fullmatch(text)
    if found is None:
        return None
    months, some_days, seconds = (int(part or 0) for part in found.groups()[:3])
    numbers = (months, some_days, seconds * 1000 + int((found[4] or "").ljust(3, "0")))
    return struct.pack("<III", *numbers) if max(numbers) < 1 << 32 else None
