"""The view of payloads with a Json schema: the parsed JSON.

The schema's data (an Avro record) is not needed for that. Numbers keep their value: integers
beyond 64 bits, and floats beyond a double's range, are shown as the digits that were sent.
"""

from __future__ import annotations

import json
import math

from pulsarctl_wire.views.content import MAX_DEPTH, MAX_VALUES, Content, Json, Shown
from pulsarctl_wire.wire import PulsarApi_pb2

_MAX_DIGITS = 20  # of 2^64-1, or of -2^63 and its sign; Python needs quadratic time for a million


def _integer(digits: str) -> int | str:
    if len(digits) > _MAX_DIGITS:
        return digits
    number = int(digits)
    return number if -(1 << 63) <= number < 1 << 64 else digits


def _float(digits: str) -> float | str:
    number = float(digits)
    return number if math.isfinite(number) else digits


# Python clients write NaN and Infinity without quotes: they become the strings "NaN", "Infinity".
_decode = json.JSONDecoder(parse_int=_integer, parse_float=_float, parse_constant=str).decode


def fits(schema: PulsarApi_pb2.Schema) -> bool:
    """Return whether ``schema`` is a Json schema. Without such a schema no payload is treated as JSON."""
    return schema.type == PulsarApi_pb2.Schema.Json


def show(content: Content) -> Shown:
    """Parse the payload; ValueError if it is not JSON, too deep, or may hold too many values."""
    payload, budget = content.payload, content.budget
    openings = payload.count(b"[") + payload.count(b"{")
    # Counted before parsing, so commas inside strings count too: this errs on the safe side.
    cost = openings + payload.count(b",")
    if cost >= min(MAX_VALUES, budget.values):
        raise ValueError(f"it may hold more than {min(MAX_VALUES, budget.values)} values")
    budget.values -= cost
    value: Json = _decode(payload.decode())
    # Only deep nesting and lone surrogates cannot be written as JSON again.
    if openings > MAX_DEPTH or b"\\ud" in payload or b"\\uD" in payload:
        value = _escape_surrogates(value, MAX_DEPTH)
    return Shown("json", value)


def _escape_surrogates(value: Json, depth: int) -> Json:
    """Escape lone surrogates in ``value``; ValueError if it is nested deeper than ``depth``."""
    if isinstance(value, str):
        return _escape_text(value)
    if not isinstance(value, list | dict):
        return value
    if not depth:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, list):
        return [_escape_surrogates(item, depth - 1) for item in value]
    return {_escape_text(name): _escape_surrogates(item, depth - 1) for name, item in value.items()}


def _escape_text(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
