"""Encodes JSON in Avro's binary encoding, by the topic's schema; and checks JSON against such a schema.

It accepts what the Avro view shows: bytes and fixed in base64, dates and times in ISO 8601 (or the stored
integer), decimals as digits. A union accepts a branch's plain value if it fits only that branch,
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

from pulsarctl_wire.views import avro
from pulsarctl_wire.views.cache import SchemaCache, schema_json
from pulsarctl_wire.views.content import MAX_DEPTH, MAX_REASON, Room, quoted
from pulsarctl_wire.views.encoding import iso
from pulsarctl_wire.views.encoding.decimals import decimal_bytes, number, scale_of, unbase64
from pulsarctl_wire.views.encoding.texts import misfit, read_json
from pulsarctl_wire.wire import PulsarApi_pb2
from pulsarctl_wire.wire.varint import varint

_Type = dict[str, Any]
"""A type with all names resolved: see `_Resolver`."""

_PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_LOGICAL = "logicalType"

_BITS = {"int": 32, "long": 64}
_NO_NUMBERS = ("NaN", "Infinity", "-Infinity")
_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_RANKS = {"int": 0, "long": 1, "double": 2, "float": 3}
_LOGICAL_RANK = 4
_TRIED = 10_000  # values that may be tried for defaults and unions, in addition to some per byte of text


def _times() -> dict[tuple[str, str], tuple[Callable[[str], int | None], str]]:
    """Logical types of int and long: the function that parses their text, and an example."""
    times: dict[tuple[str, str], tuple[Callable[[str], int | None], str]] = {
        ("int", "date"): (iso.days, "2023-11-14"),
        ("int", "time-millis"): (partial(iso.time_of_day, unit=1_000_000), "22:13:20.125"),
        ("long", "time-micros"): (partial(iso.time_of_day, unit=1_000), "22:13:20.000125"),
    }
    for unit, nanos in (("millis", 1_000_000), ("micros", 1_000), ("nanos", 1)):
        years = ", from 1678 to 2261" if unit == "nanos" else ""  # the range of 64 bits
        example = f"2023-11-14T22:13:20.125, in whole {unit}{years}"
        times["long", f"timestamp-{unit}"] = (
            partial(iso.timestamp, unit=nanos),
            example.replace(",", "Z,", 1),
        )
        times["long", f"local-timestamp-{unit}"] = (partial(iso.timestamp, unit=nanos, zoned=False), example)
    return times


_TIMES = _times()


class _Resolver:
    """Resolves the names in a schema as the view's compiler does.

    Every type becomes an object: a primitive ``{"type": "int"}``, a union ``{"type": "union", "branches":
    [...]}``. A type's name becomes the object that defines the type, so an object may contain itself.
    """

    def __init__(self) -> None:
        self.named: dict[str, _Type] = {}

    def type(self, schema: Any, namespace: str) -> _Type:
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return {"type": schema}
            return self.named.get(_full(schema, namespace)) or self.named[schema]
        if isinstance(schema, list):
            branches = [self.type(branch, namespace) for branch in schema]
            if any(one["type"] == "union" for one in branches):
                raise _unfit("it has a union directly in a union")
            return {"type": "union", "branches": branches}
        kind = schema["type"]
        if kind in ("record", "error", "enum", "fixed"):
            return self.define(kind, schema, namespace)
        if kind == "array":
            return {"type": kind, "items": self.type(schema["items"], namespace)}
        if kind == "map":
            return {"type": kind, "values": self.type(schema["values"], namespace)}
        if isinstance(kind, str) and kind in _PRIMITIVES:
            return {"type": kind, **_logical(schema)}
        return self.type(kind, namespace)

    def define(self, kind: str, schema: dict[str, Any], namespace: str) -> _Type:
        own = schema.get("namespace")
        full = _full(schema["name"], namespace if own is None else own)
        made = self.named[full] = {"type": kind, "name": full}
        if kind == "enum":
            made["symbols"] = schema["symbols"]
        elif kind == "fixed":
            made |= {"size": schema["size"], **_logical(schema)}
        else:
            made["type"] = "record"
            inner = full.rpartition(".")[0]
            made["fields"] = [{**one, "type": self.type(one["type"], inner)} for one in schema["fields"]]
        return made


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _logical(schema: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(schema.get(_LOGICAL), str):
        return {}
    return {part: schema[part] for part in (_LOGICAL, "scale", "precision") if part in schema}


def _compile(schema: PulsarApi_pb2.Schema) -> _Type:
    avro.compile_schema(schema)  # raises if the schema is invalid; from here on it is well formed
    resolver = _Resolver()
    root = resolver.type(schema_json(schema.schema_data), "")
    if schema.type == PulsarApi_pb2.Schema.Avro:
        for name, one in resolver.named.items():
            _check_symbols(name, one.get("symbols", []))
    return root


def _check_symbols(name: str, symbols: list[str]) -> None:
    """Refuse enum symbols that only the view accepts."""
    for symbol in symbols:
        if not _SYMBOL.fullmatch(symbol):
            raise _unfit(f"{quoted(symbol)} is not a valid symbol")
    if len(set(symbols)) < len(symbols):
        raise _unfit(f"the symbols of {quoted(name)} are not unique")


def _unfit(why: str) -> ValueError:
    return ValueError(f"this Avro schema cannot be used to encode values: {why}; correct the schema")


_types = SchemaCache(_compile)


def encode_avro(text: bytes, schema: PulsarApi_pb2.Schema) -> bytes:
    """The JSON ``text`` in Avro's binary encoding; ValueError names the field that does not fit."""
    return _written(_Values, text, schema)


def check_json(text: bytes, schema: PulsarApi_pb2.Schema) -> None:
    """ValueError if ``text`` is not JSON or does not fit the schema's definition; it names the field.

    How bytes and logical types are written in JSON is the application's choice, and not checked.
    """
    _written(_JsonValues, text, schema)


def _written(values: type[_Values], text: bytes, schema: PulsarApi_pb2.Schema) -> bytes:
    try:
        room = Room(_TRIED + 16 * len(text))
        return values(room).value(_types(schema), read_json(text, number), "", 0)
    except _TooMany:
        raise ValueError(
            "too many values, because of the schema's defaults and unions: correct the schema"
        ) from None


class _TooMany(Exception):
    """A schema's defaults and unions require more values to be tried than in any sensible schema."""


def _long(number: int) -> bytes:
    """A 64-bit integer as a zigzag varint."""
    return varint(number << 1 ^ number >> 63)


def _sized(data: bytes) -> bytes:
    return _long(len(data)) + data


def _block(items: list[bytes]) -> bytes:
    """The encoded items of an array or a map as one block, with the end mark."""
    return b"".join((_long(len(items)), *items, b"\0")) if items else b"\0"


class _Values:
    """Encodes JSON values in Avro's binary encoding, and checks each against its type.

    In all methods ``where`` is the path of the field, for errors; ``depth`` counts nested objects and lists.
    ``room`` limits how many values may be tried: beyond that they raise _TooMany.
    """

    is_strict = True  # if a value fits several branches, the user has to name one

    def __init__(self, room: Room) -> None:
        self.room = room

    def value(self, schema: _Type, value: Any, where: str, depth: int) -> bytes:
        self.room.values -= 1
        if self.room.values < 0:
            raise _TooMany
        kind = schema["type"]
        if kind == "union":
            return self.union(schema["branches"], value, where, depth)
        if kind in _SCALARS:
            written: bytes = getattr(self, _SCALARS[kind])(schema, value, where)
            return written
        if depth >= MAX_DEPTH:
            raise ValueError(f"the value is nested deeper than {MAX_DEPTH} levels: nest it less")
        nested: bytes = getattr(self, _CONTAINERS[kind])(schema, value, where, depth + 1)
        return nested

    def null(self, schema: _Type, value: Any, where: str) -> bytes:
        if value is not None:
            raise misfit(where, value, "null")
        return b""

    def boolean(self, schema: _Type, value: Any, where: str) -> bytes:
        if not isinstance(value, bool):
            raise misfit(where, value, "true or false")
        return bytes([value])

    def integer(self, schema: _Type, value: Any, where: str) -> bytes:
        bits = _BITS[schema["type"]]
        wanted, stored = f"an integer of {bits} bits", value
        time = _TIMES.get((schema["type"], schema.get(_LOGICAL, "")))
        if time is not None:
            read, example = time
            wanted = f"{example}, or the stored integer"
            stored = read(value) if isinstance(value, str) else value
        if not _is_integer(stored) or not -(1 << bits - 1) <= stored < 1 << bits - 1:
            raise misfit(where, value, wanted)
        return _long(stored)

    def real(self, schema: _Type, value: Any, where: str) -> bytes:
        made = float(value) if isinstance(value, str) and value in _NO_NUMBERS else _finite(value)
        try:
            if made is not None:
                return struct.pack("<f" if schema["type"] == "float" else "<d", made)
        except OverflowError:
            pass
        raise misfit(where, value, f"a number within the range of {schema['type']}")

    def string(self, schema: _Type, value: Any, where: str) -> bytes:
        if not isinstance(value, str):
            raise misfit(where, value, "text in double quotes")
        try:
            return _sized(value.encode())
        except UnicodeEncodeError:
            raise misfit(where, value, "text without lone surrogates") from None

    def raw(self, schema: _Type, value: Any, where: str) -> bytes:
        is_decimal = schema.get(_LOGICAL) == "decimal"
        made = decimal_bytes(schema, value) if is_decimal else unbase64(value)
        if made is None:
            raise misfit(where, value, _decimal(schema) if is_decimal else "bytes in base64")
        return _sized(made)

    def fixed(self, schema: _Type, value: Any, where: str) -> bytes:
        size, logical = schema["size"], schema.get(_LOGICAL)
        made: bytes | None
        if (size, logical) == (12, "duration"):
            wanted, made = "a duration such as P1M2DT3.004S", _text(value, iso.duration)
        elif (size, logical) == (16, "uuid"):
            wanted, made = "a UUID", _text(value, _uuid)
        elif logical == "decimal":
            wanted, made = (
                f"{_decimal(schema)}, that fits into {size} bytes",
                decimal_bytes(schema, value, size),
            )
        else:
            wanted, made = f"{size} bytes in base64", unbase64(value)
        if made is None or len(made) != size:
            raise misfit(where, value, wanted)
        return made

    def symbol(self, schema: _Type, value: Any, where: str) -> bytes:
        if not isinstance(value, str) or value not in schema["symbols"]:
            raise misfit(where, value, f"one of {_some(schema['symbols'])}")
        return _long(schema["symbols"].index(value))

    def array(self, schema: _Type, value: Any, where: str, depth: int) -> bytes:
        if not isinstance(value, list):
            raise misfit(where, value, "a list")
        kind = schema["items"]
        return _block([self.value(kind, each, f"{where}[{at}]", depth) for at, each in enumerate(value)])

    def mapping(self, schema: _Type, value: Any, where: str, depth: int) -> bytes:
        if not isinstance(value, dict):
            raise misfit(where, value, "an object")
        kind = schema["values"]
        return _block(
            [
                self.string(schema, name, where) + self.value(kind, each, _path(where, name), depth)
                for name, each in value.items()
            ]
        )

    def record(self, schema: _Type, value: Any, where: str, depth: int) -> bytes:
        names = [field["name"] for field in schema["fields"]]
        if not isinstance(value, dict):
            raise misfit(where, value, f"an object with {_some(names)}")
        for name in value:
            if name not in names:
                place = f" in {quoted(where, MAX_REASON)}" if where else ""
                raise ValueError(f"the schema has no field {quoted(name)}{place}: it has {_some(names)}")
        made = []
        for field in schema["fields"]:
            path = _path(where, field["name"])
            if field["name"] in value:
                made.append(self.value(field["type"], value[field["name"]], path, depth))
            else:
                made.append(self.missing(field, path, depth))
        return b"".join(made)

    def missing(self, field: dict[str, Any], where: str, depth: int) -> bytes:
        kind: _Type = field["type"]
        if "default" in field:
            return _Defaults(self.room).value(kind, field["default"], where, depth)
        if any(one["type"] == "null" for one in kind.get("branches", [kind])):
            return self.value(kind, None, where, depth)
        raise ValueError(f"the field {quoted(where, MAX_REASON)} is missing and has no default: give it")

    def union(self, branches: list[_Type], value: Any, where: str, depth: int) -> bytes:
        kinds = [one["type"] for one in branches]
        if value is None and "null" in kinds:
            return _long(kinds.index("null"))
        fitting, errors = self.fitting(branches, value, where, depth)
        if not fitting:
            if len(errors) == 1:
                raise errors[0]
            raise misfit(where, value, f"one of {_some([_name(one) for one in branches])}")
        index, made = self.chosen(branches, fitting, value, where)
        return _long(index) + made

    def fitting(
        self, branches: list[_Type], value: Any, where: str, depth: int
    ) -> tuple[list[tuple[int, int, bytes]], list[ValueError]]:
        """Rank, index and bytes of the branches that ``value`` fits; and the errors of the others.

        If ``value`` names a branch, only that branch's error is returned: it is the most useful one.
        """
        found: list[tuple[int, int, bytes]] = []
        errors: list[ValueError] = []
        named: list[ValueError] = []
        only = next(iter(value)) if isinstance(value, dict) and len(value) == 1 else None
        for index, one in enumerate(branches):
            try:
                if one["type"] != "null":
                    found.append((_rank(one, value), index, self.value(one, value, where, depth)))
            except ValueError as error:
                errors.append(error)
            try:
                if only is not None and only in self.names(one):
                    found.append((0, index, self.value(one, value[only], where, depth)))
            except ValueError as error:
                named.append(error)
        return found, named or errors

    def names(self, one: _Type) -> tuple[str, ...]:
        """The names of a branch in Avro's JSON encoding: with and without its namespace."""
        return (_name(one), _name(one).rpartition(".")[2])

    def chosen(
        self, branches: list[_Type], fitting: list[tuple[int, int, bytes]], value: Any, where: str
    ) -> tuple[int, bytes]:
        """The index of the branch that is meant, and its bytes; ValueError if that is ambiguous."""
        if not self.is_strict:
            return fitting[0][1:]
        best = min(rank for rank, _, _ in fitting)
        (_, index, made), *others = [each for each in fitting if each[0] == best]
        if others:
            names = [_name(branches[each]) for each in (index, *(other for _, other, _ in others))]
            example = f'{{"{quoted(names[0])[1:-1]}": ...}}'
            raise misfit(where, value, f"its branch, as in {example}, one of {_some(names)}")
        return index, made


class _Defaults(_Values):
    """Encodes a schema's defaults: bytes are characters U+0000 to U+00FF, unions do not name the branch."""

    is_strict = False

    def raw(self, schema: _Type, value: Any, where: str) -> bytes:
        return _sized(self.characters(value, where))

    def fixed(self, schema: _Type, value: Any, where: str) -> bytes:
        made = self.characters(value, where)
        if len(made) != schema["size"]:
            raise misfit(where, value, "a value, as the schema's default has the wrong size")
        return made

    def characters(self, value: Any, where: str) -> bytes:
        try:
            return str.encode(value, "latin-1")
        except (TypeError, UnicodeEncodeError):
            raise misfit(where, value, "a value, as the schema's default has the wrong type") from None

    def real(self, schema: _Type, value: Any, where: str) -> bytes:
        # The schema's JSON was parsed with floats; only numbers that the user typed keep their digits.
        return super().real(schema, Decimal(value) if isinstance(value, float) else value, where)


class _JsonValues(_Values):
    """Only checks that the JSON's structure fits the schema; the JSON itself is the payload."""

    is_strict = False

    def integer(self, schema: _Type, value: Any, where: str) -> bytes:
        return b"" if _LOGICAL in schema and value is not None else super().integer(schema, value, where)

    def raw(self, schema: _Type, value: Any, where: str) -> bytes:
        if value is None or (_LOGICAL not in schema and not isinstance(value, str)):
            raise misfit(where, value, "bytes as text")
        return b""

    fixed = raw

    def missing(self, field: dict[str, Any], where: str, depth: int) -> bytes:
        return b"" if "default" in field else super().missing(field, where, depth)

    def names(self, one: _Type) -> tuple[str, ...]:
        return ()


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _finite(value: object) -> float | None:
    """A number as a float; None if it is not a number, or out of range."""
    if not _is_integer(value) and not isinstance(value, Decimal):
        return None
    try:
        made = float(value)  # type: ignore[arg-type]
    except OverflowError:
        return None
    return made if math.isfinite(made) else None


def _text(value: object, read: Callable[[str], bytes | None]) -> bytes | None:
    return read(value) if isinstance(value, str) else None


def _uuid(text: str) -> bytes | None:
    return bytes.fromhex(text.replace("-", "")) if _UUID.fullmatch(text) else None


def _decimal(schema: dict[str, Any]) -> str:
    scale, precision = scale_of(schema), schema.get("precision")
    if scale is None:
        return "bytes in base64"
    digits = f", {precision} digits in total" if isinstance(precision, int) else ""
    return f"a decimal with at most {scale} digits after the point{digits}"


def _rank(one: _Type, value: object) -> int:
    """A branch's rank for a value: for a number, the lowest rank wins. Equal ranks are ambiguous."""
    if _is_integer(value) or isinstance(value, Decimal):
        return _LOGICAL_RANK if _LOGICAL in one else _RANKS.get(one["type"], 0)
    return 1 if one["type"] == "float" else 0


def _name(one: _Type) -> str:
    """The name of a union's branch in Avro's JSON encoding, and in errors."""
    return str(one.get("name", one["type"]))


def _path(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _some(names: list[str]) -> str:
    """Names for an error, cut to one line."""
    return quoted(", ".join(names), MAX_REASON)[1:-1]


_CONTAINERS = {"record": "record", "array": "array", "map": "mapping"}
_SCALARS = {
    **{"null": "null", "boolean": "boolean", "int": "integer", "long": "integer", "float": "real"},
    **{"double": "real", "string": "string", "bytes": "raw", "fixed": "fixed", "enum": "symbol"},
}
