"""Decoded scalars as readable values that orjson can write.

Dates and times become ISO 8601 strings by integer arithmetic, as Python's datetime has no
nanoseconds. Outside the years 1 to 9999, or for a time of day outside of 24 hours, the functions return
None, and the caller shows the integer.
"""

from __future__ import annotations

import math
import struct
from datetime import date
from functools import lru_cache

from pulsarctl_wire.wire.fields import as_base64

DAY = 86_400  # seconds
NANOS = 1_000_000_000  # in a second
EPOCH_DAY = 719_163
"""Ordinal of 1970-01-01 in the proleptic Gregorian calendar, whose day 1 is 0001-01-01."""
LAST_DAY = date.max.toordinal()

MAX_DECIMAL_BYTES = 128
"""Longer unscaled values are shown in base64: Python formats integers in quadratic time."""
MAX_SCALE = 256
"""The largest scale shown as digits: a scale of N may add N zeros to the text."""

_FLOAT = struct.Struct("<f")
_CONTROLS = bytes(code for code in range(0x20) if code not in b"\t\n\r")


def plain_text(raw: bytes) -> str | None:
    """Return ``raw`` as text; None unless UTF-8 without C0 control characters other than TAB, LF and CR."""
    if len(raw.translate(None, _CONTROLS)) != len(raw):
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def to_double(number: float) -> float | str:
    """Return ``number``, or "NaN", "Infinity", "-Infinity", which JSON does not have as numbers."""
    if math.isfinite(number):
        return number
    if math.isnan(number):
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"


def to_single(number: float) -> float | str:
    """Return an IEEE 754 binary32 number with as few digits as needed: 0.1, not 0.10000000149011612."""
    if not math.isfinite(number):
        return to_double(number)
    packed = _FLOAT.pack(number)
    for digits in (6, 7, 8):
        short = float(f"{number:.{digits}g}")
        if _FLOAT.pack(short) == packed:
            return short
    return float(f"{number:.9g}")


@lru_cache(maxsize=1024)
def iso_date(days: int) -> str | None:
    """Format a day as ``2023-11-14``, from days since 1970-01-01."""
    ordinal = EPOCH_DAY + days
    if not 1 <= ordinal <= LAST_DAY:
        return None
    return date.fromordinal(ordinal).isoformat()


def iso_time(nanos: int) -> str | None:
    """Format a time of day as ``22:13:20.5``, from nanoseconds since midnight."""
    seconds, nanos = divmod(nanos, NANOS)
    if not 0 <= seconds < DAY:
        return None
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour:02}:{minute:02}:{second:02}{_format_fraction(nanos)}"


def iso_timestamp(nanos: int, zone: str = "Z") -> str | None:
    """Format ``2023-11-14T22:13:20Z`` from nanoseconds since the epoch; ``zone`` is "" for local times."""
    days, time = divmod(nanos, DAY * NANOS)
    day = iso_date(days)
    return None if day is None else f"{day}T{iso_time(time)}{zone}"


def _format_fraction(nanos: int) -> str:
    """Format ``nanos`` as a fraction of a second: 0, 3, 6 or 9 digits after a point, as few as possible."""
    if not nanos:
        return ""
    if nanos % 1_000:
        return f".{nanos:09}"
    return f".{nanos // 1_000:06}" if nanos % 1_000_000 else f".{nanos // 1_000_000:03}"


def iso_duration(raw: bytes) -> str:
    """Format Avro's duration, 12 bytes (little-endian months, days, milliseconds), as ``P1M2DT3.004S``."""
    months, days, millis = struct.unpack("<III", raw)
    return f"P{months}M{days}DT{millis // 1000}{_format_fraction(millis % 1000 * 1_000_000)}S"


def decimal_text(raw: bytes, scale: int) -> str:
    """Format Avro's decimal: big-endian two's complement of the unscaled value; 0 <= scale <= MAX_SCALE.

    A value of more than MAX_DECIMAL_BYTES bytes is shown in base64.
    """
    if len(raw) > MAX_DECIMAL_BYTES:
        return as_base64(raw)
    unscaled = int.from_bytes(raw, "big", signed=True)
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    sign = "-" if unscaled < 0 else ""
    point = len(digits) - scale
    return f"{sign}{digits[:point]}.{digits[point:]}" if scale else sign + digits


def uuid_text(raw: bytes) -> str:
    """Format 16 bytes as in RFC 4122: 8-4-4-4-12 hexadecimal digits."""
    digits = raw.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
