"""Dates and times in ISO 8601, parsed to integers: the inverse of the ``iso_`` functions in values.py.

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


def parse_date(text: str) -> int | None:
    """Parse a date such as ``2023-11-14`` to days since 1970-01-01."""
    match = _ONE_DATE.fullmatch(text)
    if match is None:
        return None
    try:
        return date(*map(int, match.groups())).toordinal() - EPOCH_DAY
    except ValueError:  # no such day
        return None


def parse_time(text: str, unit: int = 1) -> int | None:
    """Parse a time such as ``22:13`` or ``22:13:20.5`` to units of ``unit`` nanoseconds since midnight."""
    match = _ONE_TIME.fullmatch(text)
    if match is None:
        return None
    hour, minute, second = (int(part or 0) for part in match.groups()[:3])
    nanos = int((match[4] or "").ljust(9, "0"))
    return _to_units((hour * 3600 + minute * 60 + second) * NANOS + nanos, unit)


def parse_timestamp(text: str, unit: int = 1, *, zoned: bool = True) -> int | None:
    """Parse ``2023-11-14T22:13:20.5Z``, or one with an offset, to units of ``unit`` ns since the epoch.

    If not ``zoned``, it is a local time, and must have neither Z nor an offset.
    """
    match = _TIMESTAMP.fullmatch(text)
    if match is None or (match["zone"] is not None) != zoned:
        return None
    day, time, offset = (
        parse_date(match["date"]),
        parse_time(match["time"]),
        parse_time(match["offset"] or "00:00"),
    )
    if day is None or time is None or offset is None:
        return None
    return _to_units(day * DAY * NANOS + time + (offset if match["sign"] == "-" else -offset), unit)


def _to_units(nanos: int, unit: int) -> int | None:
    count, remainder = divmod(nanos, unit)
    return None if remainder else count


def parse_duration(text: str) -> bytes | None:
    """Encode ``P1M2DT3.004S`` as Avro's 12 bytes: months, days, milliseconds; zero parts may be omitted."""
    match = _DURATION.fullmatch(text)
    if match is None:
        return None
    months, day_count, seconds = (int(part or 0) for part in match.groups()[:3])
    numbers = (months, day_count, seconds * 1000 + int((match[4] or "").ljust(3, "0")))
    return struct.pack("<III", *numbers) if max(numbers) < 1 << 32 else None
