"""Avro, where the topic's schema is Avro: its data is the writer's schema, as JSON.

The payload is one value in binary encoding, without header or fingerprint (Avro 1.11
specification, "Schema Declaration" and "Logical Types"). fastavro is not used: nested payloads,
nested schemas and records that contain themselves overflow its C stack, and a block of 2^60 nulls
keeps it busy for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pulsarctl_wire.views.avro_reader import (
    Read,
    Record,
    array,
    converted,
    enumeration,
    mapping,
    raw_fixed,
    read_boolean,
    read_bytes,
    read_double,
    read_float,
    read_long,
    read_null,
    read_raw,
    read_string,
    union,
)
from pulsarctl_wire.views.cache import SchemaCache, schema_json
from pulsarctl_wire.views.content import MAX_DEPTH, MAX_NAME, Content, Json, Shown, cut, name_cost, quoted
from pulsarctl_wire.views.cursor import Cursor
from pulsarctl_wire.views.values import (
    MAX_SCALE,
    base64_text,
    decimal_text,
    iso_date,
    iso_duration,
    iso_time,
    iso_timestamp,
    uuid_text,
)
from pulsarctl_wire.wire import PulsarApi_pb2

_AVRO = PulsarApi_pb2.Schema.Avro

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


def _local(nanos: int) -> str | None:
    return iso_timestamp(nanos, zone="")


# Logical types of int and long: the unit in nanoseconds (days for dates) and how to show it.
_TIMES: dict[tuple[str, str], tuple[int, Callable[[int], str | None]]] = {
    ("int", "date"): (1, iso_date),
    ("int", "time-millis"): (1_000_000, iso_time),
    ("long", "time-micros"): (1_000, iso_time),
    ("long", "timestamp-millis"): (1_000_000, iso_timestamp),
    ("long", "timestamp-micros"): (1_000, iso_timestamp),
    ("long", "timestamp-nanos"): (1, iso_timestamp),
    ("long", "local-timestamp-millis"): (1_000_000, _local),
    ("long", "local-timestamp-micros"): (1_000, _local),
    ("long", "local-timestamp-nanos"): (1, _local),
}


def score(content: Content) -> float:
    """1 for the Avro schema, else 0."""
    return 1.0 if content.schema is not None and content.schema.type == _AVRO else 0.0


def show(content: Content) -> Shown:
    """The payload's value; ValueError when schema or payload is broken, or nested too deep.

    Bytes and fixed are base64, dates and times ISO 8601, decimals their digits; a union shows its
    branch's value alone. A note tells when values were cut, or bytes were left over.
    """
    assert content.schema is not None, "score() was 0"
    cursor = Cursor(content.payload, content.room)
    value = _readers(content.schema)(cursor)
    if cursor.left < 0:
        return Shown("avro", value, cut(cursor.left))
    if cursor.at < len(content.payload):
        rest = len(content.payload) - cursor.at
        return Shown("avro", value, f"Bytes left over behind the value: {rest}.")
    return Shown("avro", value)


def compile_schema(schema: PulsarApi_pb2.Schema) -> Read:
    """What reads payloads of an Avro schema; ValueError says what is wrong with ``schema_data``."""
    return _Compiler().read(schema_json(schema.schema_data), "", 0)


_readers = SchemaCache(compile_schema)


class _Compiler:
    """Turns a schema's JSON into Reads, remembering the named types on the way."""

    def __init__(self) -> None:
        self.named: dict[str, Read] = {}

    def read(self, schema: Any, namespace: str, depth: int) -> Read:
        if depth > MAX_DEPTH:
            raise ValueError(f"the schema is nested deeper than {MAX_DEPTH} levels")
        if isinstance(schema, str):
            return self.reference(schema, namespace)
        if isinstance(schema, list):
            return union([self.read(branch, namespace, depth + 1) for branch in schema])
        if not isinstance(schema, dict):
            raise ValueError(f"the schema has {quoted(schema)} where a type is due")
        return self.complex(schema, namespace, depth)

    def reference(self, name: str, namespace: str) -> Read:
        found = _PRIMITIVES.get(name) or self.named.get(_full_name(name, namespace)) or self.named.get(name)
        if found is None:
            raise ValueError(f"the schema does not define the type {quoted(name)}")
        return found

    def complex(self, schema: dict[str, Any], namespace: str, depth: int) -> Read:
        kind = schema.get("type")
        if kind in ("record", "error"):
            return self.record(schema, namespace, depth)
        if kind == "array":
            return array(self.read(schema.get("items"), namespace, depth + 1))
        if kind == "map":
            return mapping(self.read(schema.get("values"), namespace, depth + 1))
        if kind in ("enum", "fixed"):
            read = _enum(schema) if kind == "enum" else _fixed(schema)
            self.define(schema, namespace, read)
            return read
        return _logical(schema) or self.read(kind, namespace, depth + 1)

    def record(self, schema: dict[str, Any], namespace: str, depth: int) -> Read:
        record = Record()
        # Defined before its fields, which may refer to it, and which inherit its namespace.
        inner = self.define(schema, namespace, record).rpartition(".")[0]
        for field in _list(schema, "fields"):
            if not isinstance(field, dict):
                raise ValueError(f"the schema has {quoted(field)} where a field is due")
            read = self.read(field.get("type"), inner, depth + 1)
            name = _short(field.get("name"))
            record.fields.append((name, name_cost(name), read))
        return record

    def define(self, schema: dict[str, Any], namespace: str, read: Read) -> str:
        """Remember ``read`` under the full name in ``schema``, and answer that name."""
        own = schema.get("namespace")
        full = _full_name(_short(schema.get("name")), namespace if own is None else _short(own))
        self.named[full] = read
        return full


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _list(schema: dict[str, Any], part: str) -> list[Any]:
    found = schema.get(part)
    if not isinstance(found, list):
        raise ValueError(f"the schema lacks a list of {part}")
    return found


def _short(name: Any) -> str:
    """A name of limited length: what one long name costs, every user of it costs again."""
    if not isinstance(name, str) or len(name) > MAX_NAME:
        raise ValueError(f"the schema has {quoted(name)} where a name of up to {MAX_NAME} characters is due")
    return name


def _logical(schema: dict[str, Any]) -> Read | None:
    """Reads a logical type of a primitive; None when it is none, or not a known one."""
    kind, logical = schema.get("type"), schema.get("logicalType")
    if not isinstance(kind, str) or not isinstance(logical, str):
        return None
    if (kind, logical) in _TIMES:
        unit, readable = _TIMES[kind, logical]

        def read(cursor: Cursor) -> Json:
            cursor.work()
            number = read_long(cursor)
            return readable(number * unit) or number

        return read
    if kind == "bytes" and logical == "decimal":
        return _decimal(schema, read_raw)
    return None


def _enum(schema: dict[str, Any]) -> Read:
    return enumeration([_short(symbol) for symbol in _list(schema, "symbols")])


def _fixed(schema: dict[str, Any]) -> Read:
    size, logical = schema.get("size"), schema.get("logicalType")
    if not isinstance(size, int) or size < 0:
        raise ValueError(f"the schema has a fixed of size {quoted(size)}")
    if size == 12 and logical == "duration":
        return converted(raw_fixed(size), iso_duration)
    if size == 16 and logical == "uuid":
        return converted(raw_fixed(size), uuid_text)
    if logical == "decimal":
        return _decimal(schema, raw_fixed(size))
    return converted(raw_fixed(size), base64_text)


def _decimal(schema: dict[str, Any], read: Callable[[Cursor], bytes]) -> Read:
    scale: Json = schema.get("scale", 0)
    if not isinstance(scale, int) or not 0 <= scale <= MAX_SCALE:
        return converted(read, base64_text)
    return converted(read, partial(decimal_text, scale=scale))
