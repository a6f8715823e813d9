"""JSON in Avro's binary encoding, by the topic's schema; and checks of JSON against such a schema.

The encoder accepts what the Avro view shows: bytes and fixed in base64, dates and times in ISO 8601 (or
the stored integer), decimals as digits. A union accepts a branch's plain value if it fits only that branch,
and Avro's own JSON encoding, ``{"string": "x"}``, unless that is also a plain value of another
branch. A missing field gets its default, or null if its type allows that.

Of the number types in a union, an integer prefers int, long, double, float, in this order; any other
number prefers double. Values are rounded only to the precision of float and double. Defaults are not
checked until they are used, as brokers do not check them either.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any

from pulsarctl_wire.views.avro_schema import LOGICAL, Resolver, Type
from pulsarctl_wire.views.cache import SchemaCache, schema_json
from pulsarctl_wire.views.content import MAX_DEPTH, MAX_REASON, ValueBudget, quote
from pulsarctl_wire.views.encoding import iso
from pulsarctl_wire.views.encoding.decimals import decimal_bytes, decode_base64, parse_number, scale_of
from pulsarctl_wire.views.encoding.texts import misfit, read_json
from pulsarctl_wire.wire import PulsarApi_pb2
from pulsarctl_wire.wire.varint import varint

_BITS = {"int": 32, "long": 64}
_NON_FINITE = ("NaN", "Infinity", "-Infinity")
_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_RANKS = {"int": 0, "long": 1, "double": 2, "float": 3}
_LOGICAL_RANK = 4  # of logical types: a number prefers a branch that is just a number
_MAX_TRIES = 10_000  # values that may be tried for defaults and unions, besides some per byte of text


def _times() -> dict[tuple[str, str], tuple[Callable[[str], int | None], str]]:
    """Map logical types of int and long to the function that parses their text, and an example."""
    times: dict[tuple[str, str], tuple[Callable[[str], int | None], str]] = {
        ("int", "date"): (iso.parse_date, "2023-11-14"),
        ("int", "time-millis"): (partial(iso.parse_time, unit=1_000_000), "22:13:20.125"),
        ("long", "time-micros"): (partial(iso.parse_time, unit=1_000), "22:13:20.000125"),
    }
    for unit, nanos in (("millis", 1_000_000), ("micros", 1_000), ("nanos", 1)):
        years = ", from 1678 to 2261" if unit == "nanos" else ""  # the range of 64 bits
        example = f"2023-11-14T22:13:20.125, in whole {unit}{years}"
        times["long", f"timestamp-{unit}"] = (
            partial(iso.parse_timestamp, unit=nanos),
            example.replace(",", "Z,", 1),
        )
        local = partial(iso.parse_timestamp, unit=nanos, zoned=False)
        times["long", f"local-timestamp-{unit}"] = local, example
    return times


_TIMES = _times()


def _compile(schema: PulsarApi_pb2.Schema) -> Type:
    resolver = _Resolver()
    root = resolver.resolve(schema_json(schema.schema_data))
    if schema.type == PulsarApi_pb2.Schema.Avro:
        for name, resolved in resolver.types.items():
            _check_symbols(name, resolved.get("symbols", []))
    return root


class _Resolver(Resolver):
    def resolve(self, schema: Any, namespace: str = "", depth: int = 0) -> Type:
        """Return the type as the parent does, but refuse a union directly in a union, unlike the view."""
        resolved = super().resolve(schema, namespace, depth)
        if any(branch["type"] == "union" for branch in resolved.get("branches", ())):
            raise _unusable("it has a union directly in a union")
        return resolved


def _check_symbols(name: str, symbols: list[str]) -> None:
    """Refuse enum symbols that only the view accepts."""
    for symbol in symbols:
        if not _SYMBOL.fullmatch(symbol):
            raise _unusable(f"{quote(symbol)} is not a valid symbol")
    if len(set(symbols)) < len(symbols):
        raise _unusable(f"the symbols of {quote(name)} are not unique")


def _unusable(reason: str) -> ValueError:
    return ValueError(f"this Avro schema cannot be used to encode values: {reason}; correct the schema")


_types = SchemaCache(_compile)


def encode_avro(text: bytes, schema: PulsarApi_pb2.Schema) -> bytes:
    """Encode the JSON ``text`` in Avro's binary encoding; ValueError names the field that does not fit."""
    return _encode(_Values, text, schema)


def check_json(text: bytes, schema: PulsarApi_pb2.Schema) -> None:
    """Raise ValueError if ``text`` is not JSON or does not fit the schema's definition; it names the field.

    How bytes and logical types are written in JSON is the application's choice, and not checked.
    """
    _encode(_JsonValues, text, schema)


def _encode(values: type[_Values], text: bytes, schema: PulsarApi_pb2.Schema) -> bytes:
    try:
        budget = ValueBudget(_MAX_TRIES + 16 * len(text))
        return values(budget).value(_types(schema), read_json(text, parse_number), "", 0)
    except _TooMany:
        raise ValueError(
            "too many values, because of the schema's defaults and unions: correct the schema"
        ) from None


class _TooMany(Exception):
    """A schema's defaults and unions require more values to be tried than in any sensible schema."""


def _encode_long(number: int) -> bytes:
    """Encode a 64-bit integer as a zigzag varint."""
    return varint(number << 1 ^ number >> 63)


def _encode_sized(data: bytes) -> bytes:
    return _encode_long(len(data)) + data


def _encode_block(items: list[bytes]) -> bytes:
    """Encode the items of an array or a map as one block, with the end mark."""
    return b"".join((_encode_long(len(items)), *items, b"\0")) if items else b"\0"


class _Values:
    """An encoder of JSON values in Avro's binary encoding. It checks each against its type.

    In all methods ``path`` is the path of the field, for errors; ``depth`` counts nested objects and lists.
    ``budget`` limits how many values may be tried: beyond that they raise _TooMany.
    """

    is_strict = True  # if a value fits several branches, the user has to name one

    def __init__(self, budget: ValueBudget) -> None:
        self.budget = budget

    def value(self, schema: Type, value: Any, path: str, depth: int) -> bytes:
        self.budget.values -= 1
        if self.budget.values < 0:
            raise _TooMany
        kind = schema["type"]
        if kind == "union":
            return self.union(schema["branches"], value, path, depth)
        if kind in _SCALARS:
            encoded: bytes = getattr(self, _SCALARS[kind])(schema, value, path)
            return encoded
        if depth >= MAX_DEPTH:
            raise ValueError(f"the value is nested deeper than {MAX_DEPTH} levels: nest it less")
        nested: bytes = getattr(self, _CONTAINERS[kind])(schema, value, path, depth + 1)
        return nested

    def null(self, schema: Type, value: Any, path: str) -> bytes:
        if value is not None:
            raise misfit(path, value, "null")
        return b""

    def boolean(self, schema: Type, value: Any, path: str) -> bytes:
        if not isinstance(value, bool):
            raise misfit(path, value, "true or false")
        return bytes([value])

    def integer(self, schema: Type, value: Any, path: str) -> bytes:
        bits = _BITS[schema["type"]]
        expected, integer = f"an integer of {bits} bits", value
        time = _TIMES.get((schema["type"], schema.get(LOGICAL, "")))
        if time is not None:
            read, example = time
            expected = f"{example}, or the stored integer"
            integer = read(value) if isinstance(value, str) else value
        if not _is_integer(integer) or not -(1 << bits - 1) <= integer < 1 << bits - 1:
            raise misfit(path, value, expected)
        return _encode_long(integer)

    def real(self, schema: Type, value: Any, path: str) -> bytes:
        number = float(value) if isinstance(value, str) and value in _NON_FINITE else _finite(value)
        try:
            if number is not None:
                return struct.pack("<f" if schema["type"] == "float" else "<d", number)
        except OverflowError:
            pass
        raise misfit(path, value, f"a number within the range of {schema['type']}")

    def string(self, schema: Type, value: Any, path: str) -> bytes:
        if not isinstance(value, str):
            raise misfit(path, value, "text in double quotes")
        try:
            return _encode_sized(value.encode())
        except UnicodeEncodeError:
            raise misfit(path, value, "text without lone surrogates") from None

    def raw(self, schema: Type, value: Any, path: str) -> bytes:
        is_decimal = schema.get(LOGICAL) == "decimal"
        data = decimal_bytes(schema, value) if is_decimal else decode_base64(value)
        if data is None:
            raise misfit(path, value, _describe_decimal(schema) if is_decimal else "bytes in base64")
        return _encode_sized(data)

    def fixed(self, schema: Type, value: Any, path: str) -> bytes:
        size, logical = schema["size"], schema.get(LOGICAL)
        data: bytes | None
        if (size, logical) == (12, "duration"):
            expected, data = "a duration such as P1M2DT3.004S", _parse_text(value, iso.parse_duration)
        elif (size, logical) == (16, "uuid"):
            expected, data = "a UUID", _parse_text(value, _parse_uuid)
        elif logical == "decimal":
            expected, data = (
                f"{_describe_decimal(schema)}, that fits into {size} bytes",
                decimal_bytes(schema, value, size),
            )
        else:
            expected, data = f"{size} bytes in base64", decode_base64(value)
        if data is None or len(data) != size:
            raise misfit(path, value, expected)
        return data

    def symbol(self, schema: Type, value: Any, path: str) -> bytes:
        if not isinstance(value, str) or value not in schema["symbols"]:
            raise misfit(path, value, f"one of {_join(schema['symbols'])}")
        return _encode_long(schema["symbols"].index(value))

    def array(self, schema: Type, value: Any, path: str, depth: int) -> bytes:
        if not isinstance(value, list):
            raise misfit(path, value, "a list")
        item_type = schema["items"]
        return _encode_block(
            [self.value(item_type, item, f"{path}[{index}]", depth) for index, item in enumerate(value)]
        )

    def mapping(self, schema: Type, value: Any, path: str, depth: int) -> bytes:
        if not isinstance(value, dict):
            raise misfit(path, value, "an object")
        item_type = schema["items"]
        return _encode_block(
            [
                self.string(schema, name, path) + self.value(item_type, item, _join_path(path, name), depth)
                for name, item in value.items()
            ]
        )

    def record(self, schema: Type, value: Any, path: str, depth: int) -> bytes:
        names = [field["name"] for field in schema["fields"]]
        if not isinstance(value, dict):
            raise misfit(path, value, f"an object with {_join(names)}")
        for name in value:
            if name not in names:
                in_path = f" in {quote(path, MAX_REASON)}" if path else ""
                raise ValueError(f"the schema has no field {quote(name)}{in_path}: it has {_join(names)}")
        pieces = []
        for field in schema["fields"]:
            field_path = _join_path(path, field["name"])
            if field["name"] in value:
                pieces.append(self.value(field["type"], value[field["name"]], field_path, depth))
            else:
                pieces.append(self.encode_missing(field, field_path, depth))
        return b"".join(pieces)

    def encode_missing(self, field: dict[str, Any], path: str, depth: int) -> bytes:
        field_type: Type = field["type"]
        if "default" in field:
            return _Defaults(self.budget).value(field_type, field["default"], path, depth)
        if any(branch["type"] == "null" for branch in field_type.get("branches", [field_type])):
            return self.value(field_type, None, path, depth)
        raise ValueError(f"the field {quote(path, MAX_REASON)} is missing and has no default: give it")

    def union(self, branches: list[Type], value: Any, path: str, depth: int) -> bytes:
        kinds = [branch["type"] for branch in branches]
        if value is None and "null" in kinds:
            return _encode_long(kinds.index("null"))
        matches, errors = self.find_fitting(branches, value, path, depth)
        if not matches:
            if len(errors) == 1:
                raise errors[0]
            raise misfit(path, value, f"one of {_join([_name(branch) for branch in branches])}")
        index, encoded = self.choose(branches, matches, value, path)
        return _encode_long(index) + encoded

    def find_fitting(
        self, branches: list[Type], value: Any, path: str, depth: int
    ) -> tuple[list[tuple[int, int, bytes]], list[ValueError]]:
        """Find rank, index and bytes of the branches that ``value`` fits; and the errors of the others.

        If ``value`` names a branch, only that branch's error is returned: it is the most useful one.
        """
        matches: list[tuple[int, int, bytes]] = []
        errors: list[ValueError] = []
        named_errors: list[ValueError] = []
        name = next(iter(value)) if isinstance(value, dict) and len(value) == 1 else None
        for index, branch in enumerate(branches):
            try:
                if branch["type"] != "null":
                    matches.append((_rank(branch, value), index, self.value(branch, value, path, depth)))
            except ValueError as error:
                errors.append(error)
            try:
                if name is not None and name in self.branch_names(branch):
                    matches.append((0, index, self.value(branch, value[name], path, depth)))
            except ValueError as error:
                named_errors.append(error)
        return matches, named_errors or errors

    def branch_names(self, branch: Type) -> tuple[str, ...]:
        """Return the names of a branch in Avro's JSON encoding: with and without its namespace."""
        return (_name(branch), _name(branch).rpartition(".")[2])

    def choose(
        self, branches: list[Type], matches: list[tuple[int, int, bytes]], value: Any, path: str
    ) -> tuple[int, bytes]:
        """Choose the branch of ``value``; return its index and bytes. ValueError if that is ambiguous."""
        if not self.is_strict:
            return matches[0][1:]
        best_rank = min(rank for rank, _, _ in matches)
        (_, index, encoded), *rivals = [match for match in matches if match[0] == best_rank]
        if rivals:
            names = [_name(branches[choice]) for choice in (index, *(rival for _, rival, _ in rivals))]
            example = f'{{"{quote(names[0])[1:-1]}": ...}}'
            raise misfit(path, value, f"its branch, as in {example}, one of {_join(names)}")
        return index, encoded


class _Defaults(_Values):
    """An encoder of a schema's defaults: bytes are U+0000 to U+00FF, unions do not name the branch."""

    is_strict = False

    def raw(self, schema: Type, value: Any, path: str) -> bytes:
        return _encode_sized(self.characters(value, path))

    def fixed(self, schema: Type, value: Any, path: str) -> bytes:
        data = self.characters(value, path)
        if len(data) != schema["size"]:
            raise misfit(path, value, "a value, as the schema's default has the wrong size")
        return data

    def characters(self, value: Any, path: str) -> bytes:
        try:
            return str.encode(value, "latin-1")
        except (TypeError, UnicodeEncodeError):
            raise misfit(path, value, "a value, as the schema's default has the wrong type") from None

    def real(self, schema: Type, value: Any, path: str) -> bytes:
        # The schema's JSON was parsed with floats; only numbers that the user typed keep their digits.
        return super().real(schema, Decimal(value) if isinstance(value, float) else value, path)


class _JsonValues(_Values):
    """A check that the JSON's structure fits the schema; the JSON itself is the payload."""

    is_strict = False

    def integer(self, schema: Type, value: Any, path: str) -> bytes:
        return b"" if LOGICAL in schema and value is not None else super().integer(schema, value, path)

    def raw(self, schema: Type, value: Any, path: str) -> bytes:
        if value is None or (LOGICAL not in schema and not isinstance(value, str)):
            raise misfit(path, value, "bytes as text")
        return b""

    fixed = raw

    def encode_missing(self, field: dict[str, Any], path: str, depth: int) -> bytes:
        return b"" if "default" in field else super().encode_missing(field, path, depth)

    def branch_names(self, branch: Type) -> tuple[str, ...]:
        return ()


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _finite(value: object) -> float | None:
    """Convert a number to a float; None if it is not a number, or out of range."""
    if not _is_integer(value) and not isinstance(value, Decimal):
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _parse_text(value: object, read: Callable[[str], bytes | None]) -> bytes | None:
    return read(value) if isinstance(value, str) else None


def _parse_uuid(text: str) -> bytes | None:
    return bytes.fromhex(text.replace("-", "")) if _UUID.fullmatch(text) else None


def _describe_decimal(schema: dict[str, Any]) -> str:
    scale, precision = scale_of(schema), schema.get("precision")
    if scale is None:
        return "bytes in base64"
    digits = f", {precision} digits in total" if isinstance(precision, int) else ""
    return f"a decimal with at most {scale} digits after the point{digits}"


def _rank(branch: Type, value: object) -> int:
    """Return a branch's rank for a value: the lowest rank wins. Equal ranks are ambiguous."""
    if _is_integer(value) or isinstance(value, Decimal):
        return _LOGICAL_RANK if LOGICAL in branch else _RANKS.get(branch["type"], 0)
    return 1 if branch["type"] == "float" else 0  # "NaN" and the infinities prefer double


def _name(branch: Type) -> str:
    """Return the name of a union's branch in Avro's JSON encoding, and in errors."""
    return str(branch.get("name", branch["type"]))


def _join_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _join(names: list[str]) -> str:
    """Join names for an error, cut to one line."""
    return quote(", ".join(names), MAX_REASON)[1:-1]


_CONTAINERS = {"record": "record", "array": "array", "map": "mapping"}
_SCALARS = {
    **{"null": "null", "boolean": "boolean", "int": "integer", "long": "integer", "float": "real"},
    **{"double": "real", "string": "string", "bytes": "raw", "fixed": "fixed", "enum": "symbol"},
}
