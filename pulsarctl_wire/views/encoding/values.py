"""Values as the views show them, parsed: the inverse of views/values.py.

Dates and times in ISO 8601 become integers, by integer arithmetic, as Python's datetime has no nanoseconds.
These functions return None for text that they cannot parse, and for values finer than the requested unit:
nothing is rounded.
"""

from __future__ import annotations

import re
import struct
from binascii import a2b_base64
from datetime import date
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any

from pulsarctl_wire.views.values import DAY, EPOCH_DAY, MAX_DECIMAL_BYTES, MAX_SCALE, NANOS

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


_DIGITS = re.compile(r"-?\d+(\.\d+)?", re.ASCII)
_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")
_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
_MAX_DIGITS = 4_000  # Python converts at most 4,300 between text and integer


def parse_number(digits: str) -> Decimal:
    """Return the exact value of a JSON number with a point or an exponent; ValueError if out of range."""
    try:
        return Decimal(digits)
    except ArithmeticError:
        raise ValueError(f"the number {digits[:40]} is out of range: give a smaller one") from None


def decode_base64(text: object) -> bytes | None:
    """Decode ``text`` from base64; None if it is not base64."""
    if not isinstance(text, str) or len(text) % 4 or not _BASE64.fullmatch(text):
        return None
    return a2b_base64(text)


def scale_of(schema: dict[str, Any]) -> int | None:
    """Return the scale of a decimal type; None if the view does not show that type as digits."""
    scale = schema.get("scale", 0)
    return scale if isinstance(scale, int) and 0 <= scale <= MAX_SCALE else None


def decimal_bytes(schema: dict[str, Any], value: object, size: int | None = None) -> bytes | None:
    """Encode the unscaled ``value`` in two's complement; None if it is not a decimal of this type.

    ``value`` is digits as text, an integer or a Decimal; or base64 if the view shows that, as scale or size
    exceed its limits. ``size`` is the size of a fixed; with None the result is as short as possible.
    """
    scale = scale_of(schema)
    decimal = _to_decimal(value)
    if scale is None or decimal is None:
        raw = decode_base64(value)
        if raw is None or size not in (None, len(raw)):
            return None
        return raw if scale is None or len(raw) > MAX_DECIMAL_BYTES else None
    unscaled = _unscale(decimal, scale)
    precision = schema.get("precision")
    max_digits = precision if isinstance(precision, int) and precision > 0 else _MAX_DIGITS
    if unscaled is None or len(str(abs(unscaled))) > max_digits:
        return None
    min_size = (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
    if size is not None and min_size > size:
        return None
    return unscaled.to_bytes(min_size if size is None else size, "big", signed=True)


def _to_decimal(value: object) -> Decimal | None:
    if isinstance(value, str) and _DIGITS.fullmatch(value) and len(value) <= _MAX_DIGITS:
        return Decimal(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return Decimal(value)
    return value if isinstance(value, Decimal) else None


def _unscale(decimal: Decimal, scale: int) -> int | None:
    """Return ``decimal`` times 10 to the scale; None if that is not an integer, or has too many digits."""
    if not decimal:
        return 0
    if not decimal.is_finite() or not 0 <= decimal.adjusted() + scale < _MAX_DIGITS:
        return None
    scaled = decimal.scaleb(scale, _EXACT)
    return int(scaled) if scaled == scaled.to_integral_value() else None
