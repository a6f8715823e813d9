"""Decimals and base64 as Avro's values: the inverses of ``decimal_text`` and ``base64_text`` in values.py."""

from __future__ import annotations

import re
from binascii import a2b_base64
from decimal import Decimal
from typing import Any

from pulsarctl_wire.views.values import MAX_DECIMAL_BYTES, MAX_SCALE

_DIGITS = re.compile(r"-?\d+(\.\d+)?", re.ASCII)
_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")
_MOST_DIGITS = 4_000  # Python converts no more than 4,300 between text and integer


def number(digits: str) -> Decimal:
    """A JSON number with a point or an exponent, exactly; ValueError when its exponent is absurd."""
    try:
        return Decimal(digits)
    except ArithmeticError:
        raise ValueError(f"the number {digits[:40]} is out of all range: give a smaller one") from None


def unbase64(text: object) -> bytes | None:
    """The bytes that ``text`` is the base64 of; None when it is none."""
    if not isinstance(text, str) or len(text) % 4 or not _BASE64.fullmatch(text):
        return None
    return a2b_base64(text)


def scale_of(schema: dict[str, Any]) -> int | None:
    """The scale of a decimal type; None when it is none that the view shows as digits."""
    scale = schema.get("scale", 0)
    return scale if isinstance(scale, int) and 0 <= scale <= MAX_SCALE else None


def decimal_bytes(schema: dict[str, Any], value: object, size: int | None = None) -> bytes | None:
    """Two's complement of ``value``, unscaled; None when it is no decimal of this type.

    Args:
        schema: the decimal type, with ``scale`` and ``precision``.
        value: digits as text, an integer or a Decimal; or base64, where the view shows that because
            scale or size are beyond its limits.
        size: bytes of a fixed; None for as few as hold the value.
    """
    scale = scale_of(schema)
    plain = _plain(value)
    if scale is None or plain is None:
        raw = unbase64(value)
        fits = raw is not None and (scale is None or len(raw) > MAX_DECIMAL_BYTES)
        return raw if fits and raw is not None and size in (None, len(raw)) else None
    unscaled = _unscaled(plain, scale)
    if unscaled is None or _digits(unscaled) > _precision(schema):
        return None
    needed = (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
    if size is not None and needed > size:
        return None
    return unscaled.to_bytes(needed if size is None else size, "big", signed=True)


def _plain(value: object) -> Decimal | None:
    if isinstance(value, str) and _DIGITS.fullmatch(value) and len(value) <= _MOST_DIGITS:
        return Decimal(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return Decimal(value)
    return value if isinstance(value, Decimal) else None


def _unscaled(plain: Decimal, scale: int) -> int | None:
    """``plain`` times 10 to the scale; None when that is no integer, or one of very many digits."""
    sign, digits, exponent = plain.as_tuple()
    if not isinstance(exponent, int):
        return None
    shift = exponent + scale
    if not any(digits):
        return 0
    if not -len(digits) < shift <= _MOST_DIGITS - len(digits) or any(digits[len(digits) + min(shift, 0) :]):
        return None
    kept = digits[: len(digits) + min(shift, 0)]
    unscaled: int = int("".join(map(str, kept))) * 10 ** max(shift, 0)
    return -unscaled if sign else unscaled


def _digits(unscaled: int) -> int:
    return len(str(abs(unscaled)))


def _precision(schema: dict[str, Any]) -> int:
    precision = schema.get("precision")
    return precision if isinstance(precision, int) and precision > 0 else _MOST_DIGITS
