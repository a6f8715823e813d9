"""The view of payloads with an Avro schema. Its schema data is the writer's schema, as JSON.

The payload is one value in binary encoding, without header or fingerprint (Avro 1.11
specification, "Schema Declaration" and "Logical Types"). fastavro is not used: deeply nested payloads
or schemas and records that contain themselves overflow its C stack, and a block of 2^60 nulls
keeps it busy forever.

A compiled schema is a `Read`: a callable that reads the next value from a cursor. The Reads of containers
hold the Reads of their parts. The Read of a recursive schema is a RecordReader that refers to itself.

    int, long       zigzag varint           record          its fields' values, in order
    float, double   little-endian           array, map      blocks: count, items ... count 0;
    bytes, string   long size, bytes                        -count is followed by the size in bytes
    fixed           bytes                   union, enum     index as long, then the branch's value

No payload or schema can make it build more than MAX_VALUES values (then the values so far are kept),
or go deeper than MAX_DEPTH. This is needed, as items of size 0 and records that contain themselves may take
no bytes in the payload.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias, TypeVar

from pulsarctl_wire.views.cache import SchemaCache, schema_json
from pulsarctl_wire.views.content import MAX_DEPTH, MAX_NAME, Content, Json, Shown, cut_note, name_cost, quote
from pulsarctl_wire.views.cursor import Cursor
from pulsarctl_wire.views.values import (
    MAX_SCALE,
    decimal_text,
    iso_date,
    iso_duration,
    iso_time,
    iso_timestamp,
    to_double,
    to_single,
    uuid_text,
)
from pulsarctl_wire.wire import PulsarApi_pb2
from pulsarctl_wire.wire.fields import as_base64

Part = TypeVar("Part")

_FLOAT = struct.Struct("<f")
_DOUBLE = struct.Struct("<d")


Read: TypeAlias = Callable[[Cursor], Json]


def read_long(cursor: Cursor) -> int:
    """Read a zigzag varint of at most ten bytes; ValueError if it does not end."""
    number = cursor.varint()
    return (number >> 1) ^ -(number & 1)


def read_null(cursor: Cursor) -> None:
    """Read no bytes."""


def read_boolean(cursor: Cursor) -> bool:
    """Read one byte; ValueError unless it is 0 or 1: another value is a clear sign of a wrong schema."""
    byte = cursor.take(1)[0]
    if byte > 1:
        raise ValueError(f"a boolean of {byte} at byte {cursor.at - 1}")
    return byte == 1


def read_float(cursor: Cursor) -> float | str:
    """Read four bytes."""
    cursor.work()
    return to_single(_FLOAT.unpack(cursor.take(4))[0])


def read_double(cursor: Cursor) -> float | str:
    """Read eight bytes."""
    return to_double(_DOUBLE.unpack(cursor.take(8))[0])


def read_raw(cursor: Cursor) -> bytes:
    """Read a size and that many bytes."""
    return cursor.take(read_long(cursor))


def read_bytes(cursor: Cursor) -> str:
    """Read a size and that many bytes, in base64."""
    return as_base64(read_raw(cursor))


def read_string(cursor: Cursor) -> str:
    """Read a size and that many bytes of UTF-8."""
    return cursor.text(read_raw(cursor))


def fixed_reader(size: int) -> Callable[[Cursor], bytes]:
    """Make a reader of ``size`` bytes."""
    return lambda cursor: cursor.take(size)


def convert_values(read: Callable[[Cursor], Part], convert: Callable[[Part], Json]) -> Read:
    """Make a Read that applies ``convert`` to each value, for logical types."""
    return lambda cursor: convert(read(cursor))


def _choose(cursor: Cursor, options: list[Part]) -> Part:
    index = read_long(cursor)
    if not 0 <= index < len(options):
        raise ValueError(f"choice {index} of {len(options)} before byte {cursor.at}")
    return options[index]


def enumeration(symbols: list[str]) -> Read:
    """Make a Read of an index into ``symbols``."""
    costs = [(symbol, name_cost(symbol) - 1) for symbol in symbols]

    def read(cursor: Cursor) -> str:
        symbol, cost = _choose(cursor, costs)
        cursor.spend(cost)
        return symbol

    return read


def union(branches: list[Read]) -> Read:
    """Make a Read of an index and that branch's value. It does not show which branch it was."""
    return lambda cursor: _choose(cursor, branches)(cursor)


def _items(cursor: Cursor) -> Iterator[None]:
    """Yield before each item of an array or a map, until the budget is used up."""
    cursor.enter()
    while count := read_long(cursor):
        if count < 0:
            read_long(cursor)  # the block's size in bytes, meant for readers that skip blocks
        for _ in range(abs(count)):
            if not cursor.spend():
                return
            yield
    cursor.leave()


def array(items: Read) -> Read:
    """Make a Read of blocks of items, as a list; it stops when the budget is used up."""
    return lambda cursor: [items(cursor) for _ in _items(cursor)]


def mapping(values: Read) -> Read:
    """Make a Read of blocks of keys and values, as an object; it stops when the budget is used up."""
    return lambda cursor: {read_string(cursor): values(cursor) for _ in _items(cursor)}


class RecordReader:
    """A Read of a record's fields, in the schema's order, as an object.

    ``fields`` are their names, costs and Reads. A Read may refer to this RecordReader.
    """

    __slots__ = ("fields",)

    def __init__(self) -> None:
        self.fields: list[tuple[str, int, Read]] = []

    def __call__(self, cursor: Cursor) -> Json:
        """Read all fields, or as many as the budget allows."""
        cursor.enter()
        values: dict[str, Json] = {}
        for name, cost, read in self.fields:
            if not cursor.spend(cost):
                break
            values[name] = read(cursor)
        cursor.leave()
        return values


# -- schemas

_PRIMITIVES: dict[str, Read] = {
    "null": read_null,
    "boolean": read_boolean,
    "int": read_long,
    "long": read_long,
    "float": read_float,
    "double": read_double,
    "bytes": read_bytes,
    "string": read_string,
}


def _format_local(nanos: int) -> str | None:
    return iso_timestamp(nanos, zone="")


# Logical types of int and long: the unit in nanoseconds (1 for dates, in days), and how to show it.
_TIMES: dict[tuple[str, str], tuple[int, Callable[[int], str | None]]] = {
    ("int", "date"): (1, iso_date),
    ("int", "time-millis"): (1_000_000, iso_time),
    ("long", "time-micros"): (1_000, iso_time),
    ("long", "timestamp-millis"): (1_000_000, iso_timestamp),
    ("long", "timestamp-micros"): (1_000, iso_timestamp),
    ("long", "timestamp-nanos"): (1, iso_timestamp),
    ("long", "local-timestamp-millis"): (1_000_000, _format_local),
    ("long", "local-timestamp-micros"): (1_000, _format_local),
    ("long", "local-timestamp-nanos"): (1, _format_local),
}


def fits(schema: PulsarApi_pb2.Schema) -> bool:
    """Return whether it is an Avro schema."""
    return schema.type == PulsarApi_pb2.Schema.Avro


def show(content: Content) -> Shown:
    """Read the payload's value; ValueError if the schema or the payload is broken or nested too deeply.

    Bytes and fixed are shown in base64, dates and times in ISO 8601, decimals as digits, a union as its
    branch's value. A note says if values were left out, or if bytes were left over.
    """
    assert content.schema is not None
    cursor = Cursor(content.payload, content.budget)
    value = _readers(content.schema)(cursor)
    if cursor.left < 0:
        return Shown("avro", value, cut_note(cursor.left))
    if cursor.at < len(content.payload):
        size = len(content.payload) - cursor.at
        return Shown("avro", value, f"Bytes left over after the value: {size}.")
    return Shown("avro", value)


def compile_schema(schema: PulsarApi_pb2.Schema) -> Read:
    """Make the Read for payloads of an Avro schema; ValueError says what is wrong with ``schema_data``."""
    return _Compiler().compile(schema_json(schema.schema_data), "", 0)


_readers = SchemaCache(compile_schema)


class _Compiler:
    """A compiler of a schema's JSON to Reads; `types` are the named types."""

    def __init__(self) -> None:
        self.types: dict[str, Read] = {}

    def compile(self, schema: Any, namespace: str, depth: int) -> Read:
        if depth > MAX_DEPTH:
            raise ValueError(f"the schema is nested deeper than {MAX_DEPTH} levels")
        if isinstance(schema, str):
            return self.resolve(schema, namespace)
        if isinstance(schema, list):
            return union([self.compile(branch, namespace, depth + 1) for branch in schema])
        if not isinstance(schema, dict):
            raise ValueError(f"the schema has {quote(schema)} where a type is due")
        return self.compile_complex(schema, namespace, depth)

    def resolve(self, name: str, namespace: str) -> Read:
        read = _PRIMITIVES.get(name) or self.types.get(_full_name(name, namespace)) or self.types.get(name)
        if read is None:
            raise ValueError(f"the schema does not define the type {quote(name)}")
        return read

    def compile_complex(self, schema: dict[str, Any], namespace: str, depth: int) -> Read:
        kind = schema.get("type")
        if kind in ("record", "error"):
            return self.compile_record(schema, namespace, depth)
        if kind == "array":
            return array(self.compile(schema.get("items"), namespace, depth + 1))
        if kind == "map":
            return mapping(self.compile(schema.get("values"), namespace, depth + 1))
        if kind in ("enum", "fixed"):
            is_enum = kind == "enum"
            read = enumeration(list(map(_short, _list(schema, "symbols")))) if is_enum else _fixed(schema)
            self.define(schema, namespace, read)
            return read
        return _logical(schema) or self.compile(kind, namespace, depth + 1)

    def compile_record(self, schema: dict[str, Any], namespace: str, depth: int) -> Read:
        record = RecordReader()
        # Defined before its fields, as they may refer to it, and inherit its namespace.
        inner = self.define(schema, namespace, record).rpartition(".")[0]
        for field in _list(schema, "fields"):
            if not isinstance(field, dict):
                raise ValueError(f"the schema has {quote(field)} where a field is due")
            read = self.compile(field.get("type"), inner, depth + 1)
            name = _short(field.get("name"))
            record.fields.append((name, name_cost(name), read))
        return record

    def define(self, schema: dict[str, Any], namespace: str, read: Read) -> str:
        """Remember ``read`` under the full_name name in ``schema``, and return that name."""
        own = schema.get("namespace")
        full_name = _full_name(_short(schema.get("name")), namespace if own is None else _short(own))
        self.types[full_name] = read
        return full_name


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _list(schema: dict[str, Any], name: str) -> list[Any]:
    items = schema.get(name)
    if not isinstance(items, list):
        raise ValueError(f"the schema lacks a list of {name}")
    return items


def _short(name: Any) -> str:
    """Check a name. Its length is limited, as every use of a long name costs memory again."""
    if not isinstance(name, str) or len(name) > MAX_NAME:
        raise ValueError(f"the schema has {quote(name)} where a name of up to {MAX_NAME} characters is due")
    return name


def _logical(schema: dict[str, Any]) -> Read | None:
    """Make the Read for a primitive's logical type; None if it has none, or an unknown one."""
    kind, logical = schema.get("type"), schema.get("logicalType")
    if not isinstance(kind, str) or not isinstance(logical, str):
        return None
    if (kind, logical) in _TIMES:
        unit, convert = _TIMES[kind, logical]

        def read(cursor: Cursor) -> Json:
            cursor.work()
            number = read_long(cursor)
            return convert(number * unit) or number

        return read
    if kind == "bytes" and logical == "decimal":
        return _decimal(schema, read_raw)
    return None


def _fixed(schema: dict[str, Any]) -> Read:
    size, logical = schema.get("size"), schema.get("logicalType")
    if not isinstance(size, int) or size < 0:
        raise ValueError(f"the schema has a fixed of size {quote(size)}")
    if size == 12 and logical == "duration":
        return convert_values(fixed_reader(size), iso_duration)
    if size == 16 and logical == "uuid":
        return convert_values(fixed_reader(size), uuid_text)
    if logical == "decimal":
        return _decimal(schema, fixed_reader(size))
    return convert_values(fixed_reader(size), as_base64)


def _decimal(schema: dict[str, Any], read: Callable[[Cursor], bytes]) -> Read:
    scale: Json = schema.get("scale", 0)
    if not isinstance(scale, int) or not 0 <= scale <= MAX_SCALE:
        return convert_values(read, as_base64)
    return convert_values(read, partial(decimal_text, scale=scale))
