"""Decimals and base64 as Avro values: the inverses of ``decimal_text`` and ``as_base64``."""

from __future__ import annotations

import re
from binascii import a2b_base64
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any

from pulsarctl_wire.views.values import MAX_DECIMAL_BYTES, MAX_SCALE

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
    """Encode the unscaled form of ``value`` in two's complement; None if it is no decimal of this type.

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
