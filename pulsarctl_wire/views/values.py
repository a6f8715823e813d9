"""Decoded scalars as values that orjson can write, in the form a person reads them.

Dates and times become ISO 8601 strings by integer arithmetic: Python's datetime knows no
nanoseconds. Beyond the years 1 to 9999 the functions answer None and the caller shows the integer.
"""

from __future__ import annotations

import math
import struct
from binascii import b2a_base64
from datetime import date
from functools import lru_cache

DAY = 86_400
NANOS = 1_000_000_000
EPOCH_DAY = 719_163
"""Ordinal of 1970-01-01 in the proleptic Gregorian calendar, whose day 1 is 0001-01-01."""
LAST_DAY = date.max.toordinal()

MAX_DECIMAL_BYTES = 128
"""Longer unscaled values stay base64: Python writes an integer in quadratic time."""
MAX_SCALE = 256
"""Each digit of the scale may cost a character of zeros."""

_FLOAT = struct.Struct("<f")
_CONTROLS = bytes(code for code in range(0x20) if code not in b"\t\n\r")


def plain_text(raw: bytes) -> str | None:
    """``raw`` as text when it is UTF-8 without C0 control characters other than TAB, LF and CR."""
    if len(raw.translate(None, _CONTROLS)) != len(raw):
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def base64_text(raw: bytes) -> str:
    """``raw`` in base64 (RFC 4648, section 4)."""
    return b2a_base64(raw, newline=False).decode("ascii")


def double(number: float) -> float | str:
    """``number``, or "NaN", "Infinity", "-Infinity": JSON has no such numbers."""
    if math.isfinite(number):
        return number
    if math.isnan(number):
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"


def single(number: float) -> float | str:
    """An IEEE 754 binary32 number with no more digits than name it: 0.1, not 0.10000000149011612."""
    if not math.isfinite(number):
        return double(number)
    stored = _FLOAT.pack(number)
    for digits in (6, 7, 8):
        short = float(f"{number:.{digits}g}")
        if _FLOAT.pack(short) == stored:
            return short
    return float(f"{number:.9g}")


@lru_cache(maxsize=1024)
def iso_date(days: int) -> str | None:
    """A day as ``2023-11-14``, from days since 1970-01-01."""
    ordinal = EPOCH_DAY + days
    if not 1 <= ordinal <= LAST_DAY:
        return None
    return date.fromordinal(ordinal).isoformat()


def iso_time(nanos: int) -> str | None:
    """A time of day as ``22:13:20.5``, from nanoseconds since midnight."""
    seconds, nanos = divmod(nanos, NANOS)
    if not 0 <= seconds < DAY:
        return None
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour:02}:{minute:02}:{second:02}{_fraction(nanos)}"


def iso_timestamp(nanos: int, zone: str = "Z") -> str | None:
    """``2023-11-14T22:13:20Z`` from nanoseconds since the epoch; ``zone`` is "" for local times."""
    days, rest = divmod(nanos, DAY * NANOS)
    day = iso_date(days)
    return None if day is None else f"{day}T{iso_time(rest)}{zone}"


def _fraction(nanos: int) -> str:
    """0, 3, 6 or 9 digits behind a point, as few as hold ``nanos``."""
    if not nanos:
        return ""
    if nanos % 1_000:
        return f".{nanos:09}"
    return f".{nanos // 1_000:06}" if nanos % 1_000_000 else f".{nanos // 1_000_000:03}"


def iso_duration(raw: bytes) -> str:
    """Avro's duration, 12 bytes (little-endian months, days, milliseconds), as ``P1M2DT3.004S``."""
    months, days, millis = struct.unpack("<III", raw)
    return f"P{months}M{days}DT{millis // 1000}{_fraction(millis % 1000 * 1_000_000)}S"


def decimal_text(raw: bytes, scale: int) -> str:
    """Avro's decimal: big-endian two's complement of the unscaled value; 0 <= scale <= MAX_SCALE.

    Bytes beyond MAX_DECIMAL_BYTES are shown in base64.
    """
    if len(raw) > MAX_DECIMAL_BYTES:
        return base64_text(raw)
    unscaled = int.from_bytes(raw, "big", signed=True)
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    sign = "-" if unscaled < 0 else ""
    whole = len(digits) - scale
    return f"{sign}{digits[:whole]}.{digits[whole:]}" if scale else sign + digits


def uuid_text(raw: bytes) -> str:
    """16 bytes in the form of RFC 4122: 8-4-4-4-12 hexadecimal digits."""
    digits = raw.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
