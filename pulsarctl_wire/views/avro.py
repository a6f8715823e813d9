"""The view of payloads with an Avro schema. Its schema data is the writer's schema, as JSON.

The payload is one value in binary encoding, without header or fingerprint (Avro 1.11
specification, "Schema Declaration" and "Logical Types"). fastavro is not used: deeply nested payloads
or schemas and records that contain themselves overflow its C stack, and a block of 2^60 nulls
keeps it busy forever.

A compiled schema is a `Read`: a callable that reads the next value from a cursor. The Reads of containers
hold the Reads of their parts. The Read of a recursive schema refers to itself.

    int, long       zigzag varint           record          its fields' values, in order
    float, double   little-endian           array, map      blocks: count, items ... count 0;
    bytes, string   long size, bytes                        -count is followed by the size in bytes
    fixed           bytes                   union, enum     index as long, then the branch's value

No payload or schema can make the view build more than MAX_VALUES values (then the values so far are kept),
or go deeper than MAX_DEPTH. This is needed, as items of size 0 and records that contain themselves may take
no bytes in the payload.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeAlias, TypeVar

from pulsarctl_wire.views.avro_schema import LOGICAL, Resolver, Type
from pulsarctl_wire.views.cache import SchemaCache, schema_json
from pulsarctl_wire.views.content import Content, Json, Shown, cut_note, name_cost
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


def read_boolean(cursor: Cursor) -> bool:
    """Read one byte; ValueError unless it is 0 or 1: another value is a clear sign of a wrong schema."""
    byte = cursor.take(1)[0]
    if byte > 1:
        raise ValueError(f"a boolean of {byte} at byte {cursor.position - 1}")
    return byte == 1


def read_float(cursor: Cursor) -> float | str:
    """Read four bytes."""
    cursor.charge_frame()
    return to_single(_FLOAT.unpack(cursor.take(4))[0])


def read_raw(cursor: Cursor) -> bytes:
    """Read a size and that many bytes."""
    return cursor.take(read_long(cursor))


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
        raise ValueError(f"choice {index} of {len(options)} before byte {cursor.position}")
    return options[index]


def enumeration(symbols: list[str]) -> Read:
    """Make a Read of an index into ``symbols``."""
    # without the 1 of the value itself, which its container counts
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


def record(fields: list[tuple[str, int, Read]]) -> Read:
    """Make a Read of a record's fields, in the schema's order, as an object.

    ``fields`` are their names, costs and Reads. They may be added later, and refer to this Read.
    """

    def read(cursor: Cursor) -> Json:
        cursor.enter()
        values: dict[str, Json] = {}
        for name, cost, read_value in fields:
            if not cursor.spend(cost):
                break
            values[name] = read_value(cursor)
        cursor.leave()
        return values

    return read


# -- schemas

_PRIMITIVES: dict[str, Read] = {
    "null": lambda cursor: None,
    "boolean": read_boolean,
    "int": read_long,
    "long": read_long,
    "float": read_float,
    "double": lambda cursor: to_double(_DOUBLE.unpack(cursor.take(8))[0]),
    "bytes": lambda cursor: as_base64(read_raw(cursor)),
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
    """Return whether ``schema`` is an Avro schema."""
    return schema.type == PulsarApi_pb2.Schema.Avro


def show(content: Content) -> Shown:
    """Read the payload's value; ValueError if the schema or the payload is broken or nested too deeply.

    Bytes and fixed are shown in base64, dates and times in ISO 8601, decimals as digits, a union as its
    branch's value. A note says if values were left out, or if bytes were left over.
    """
    assert content.schema is not None
    cursor = Cursor(content.payload, content.budget)
    value = _readers(content.schema)(cursor)
    if cursor.values_left < 0:
        return Shown("avro", value, cut_note(cursor.values_left))
    if cursor.position < len(content.payload):
        size = len(content.payload) - cursor.position
        return Shown("avro", value, f"Bytes left over after the value: {size}.")
    return Shown("avro", value)


def compile_schema(schema: PulsarApi_pb2.Schema) -> Read:
    """Make the Read for payloads of an Avro schema; ValueError says what is wrong with ``schema_data``."""
    return _compile(Resolver().resolve(schema_json(schema.schema_data)), {})


_readers = SchemaCache(compile_schema)


def _compile(avro_type: Type, reads: dict[int, Read]) -> Read:
    """Make the Read of a type; ``reads`` are those so far, by the id of their type."""
    if id(avro_type) not in reads:
        if avro_type["type"] == "record":
            fields: list[tuple[str, int, Read]] = []
            reads[id(avro_type)] = record(fields)  # before its fields, as they may contain it
            for field in avro_type["fields"]:
                name = field["name"]
                fields.append((name, name_cost(name), _compile(field["type"], reads)))
        else:
            reads[id(avro_type)] = _compile_other(avro_type, reads)
    return reads[id(avro_type)]


def _compile_other(avro_type: Type, reads: dict[int, Read]) -> Read:
    name = avro_type["type"]
    if name == "union":
        return union([_compile(branch, reads) for branch in avro_type["branches"]])
    if name in ("array", "map"):
        items = _compile(avro_type["items"], reads)
        return array(items) if name == "array" else mapping(items)
    if name == "enum":
        return enumeration(avro_type["symbols"])
    return _fixed(avro_type) if name == "fixed" else _logical(avro_type) or _PRIMITIVES[name]


def _logical(avro_type: Type) -> Read | None:
    """Make the Read for a primitive's logical type; None if it has none, or an unknown one."""
    kind, logical = avro_type["type"], avro_type.get(LOGICAL, "")
    if (kind, logical) in _TIMES:
        unit, convert = _TIMES[kind, logical]

        def read(cursor: Cursor) -> Json:
            cursor.charge_frame()
            number = read_long(cursor)
            return convert(number * unit) or number

        return read
    if kind == "bytes" and logical == "decimal":
        return _decimal(avro_type, read_raw)
    return None


def _fixed(avro_type: Type) -> Read:
    size, logical = avro_type["size"], avro_type.get(LOGICAL)
    if size == 12 and logical == "duration":
        return convert_values(fixed_reader(size), iso_duration)
    if size == 16 and logical == "uuid":
        return convert_values(fixed_reader(size), uuid_text)
    if logical == "decimal":
        return _decimal(avro_type, fixed_reader(size))
    return convert_values(fixed_reader(size), as_base64)


def _decimal(avro_type: Type, read: Callable[[Cursor], bytes]) -> Read:
    scale: Json = avro_type.get("scale", 0)
    if not isinstance(scale, int) or not 0 <= scale <= MAX_SCALE:
        return convert_values(read, as_base64)
    return convert_values(read, partial(decimal_text, scale=scale))
