"""The view of payloads with a KeyValue schema: a key and a value, each with its own schema.

The schema's data holds the data of both schemas, its properties have the rest (as written by the Java
client's KeyValueSchemaInfo; a length of -1 means null):

    schema data   i32 length, key schema's data, i32 length, value schema's data
    properties    {key,value}.schema.type     SchemaType names such as STRING, AVRO, KEY_VALUE
                  {key,value}.schema.properties   a JSON object of strings
                  kv.encoding.type            INLINE (also when absent) or SEPARATED

    INLINE        payload = i32 length, key, i32 length, value
    SEPARATED     payload = value; the key is the message's key
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pulsarctl_wire.views.cache import SchemaCache, schema_json
from pulsarctl_wire.views.content import Content, Json, Shown, ValueBudget, quote
from pulsarctl_wire.wire import PulsarApi_pb2


@dataclass(frozen=True, slots=True)
class _Pair:
    """A compiled KeyValue schema."""

    is_separate: bool
    key: PulsarApi_pb2.Schema
    value: PulsarApi_pb2.Schema


class KeyValueView:
    """The view; `show_part` shows a key or a value by its own schema: by any view, even this one."""

    def __init__(self, show_part: Callable[[Content], Shown]) -> None:
        self._show_part = show_part

    def fits(self, schema: PulsarApi_pb2.Schema) -> bool:
        """Return whether ``schema`` is a KeyValue schema."""
        return schema.type == PulsarApi_pb2.Schema.KeyValue

    def show(self, content: Content) -> Shown:
        """Show ``{"key": {"view", "value"}, "value": {"view", "value"}}``, each by its own schema.

        A null key or value has the view "null", and so has a separated key that the message lacks.
        ValueError if the schema, or a length in an inline payload, is wrong.
        """
        assert content.schema is not None
        pair = _compiled_pairs(content.schema)
        from_message = (content.key, content.payload)
        key, value = from_message if pair.is_separate else _split(content.payload, "the payload")
        notes: list[str] = []
        parts: dict[str, Json] = {
            "key": self._part("Key", key, pair.key, content.budget, notes),
            "value": self._part("Value", value, pair.value, content.budget, notes),
        }
        return Shown("keyvalue", parts, " ".join(notes) or None)

    def _part(
        self,
        name: str,
        raw: bytes | None,
        schema: PulsarApi_pb2.Schema,
        budget: ValueBudget,
        notes: list[str],
    ) -> Json:
        if raw is None:
            return {"view": "null", "value": None}
        shown = self._show_part(Content(raw, schema, budget=budget))
        if shown.note:
            notes.append(f"{name}: {shown.note}")
        return {"view": shown.view, "value": shown.value}


def _split(raw: bytes, title: str) -> tuple[bytes | None, bytes | None]:
    """Split ``raw`` into key and value, each after its length; None for a length of -1."""
    halves: list[bytes | None] = []
    offset = 0
    for _ in range(2):
        size = int.from_bytes(raw[offset : offset + 4], "big", signed=True)
        offset += 4
        if size < -1 or offset + max(size, 0) > len(raw):
            raise ValueError(f"{title} has {max(len(raw) - offset, 0)} bytes for a key or value of {size}")
        halves.append(None if size == -1 else raw[offset : offset + size])
        offset += max(size, 0)
    if offset < len(raw):
        raise ValueError(f"{title} has {len(raw) - offset} bytes left over after key and value")
    return halves[0], halves[1]


def _compile(schema: PulsarApi_pb2.Schema) -> _Pair:
    properties = {entry.key: entry.value for entry in schema.properties}
    key, value = _split(schema.schema_data, "the schema")
    encoding = properties.get("kv.encoding.type") or "INLINE"
    if encoding not in ("INLINE", "SEPARATED"):
        raise ValueError(f"the schema has the unknown encoding {quote(encoding)}")
    return _Pair(
        encoding == "SEPARATED",
        _half_schema("key", key, properties),
        _half_schema("value", value, properties),
    )


_compiled_pairs = SchemaCache(_compile)


def _half_schema(half: str, schema_data: bytes | None, properties: dict[str, str]) -> PulsarApi_pb2.Schema:
    """Make the schema of a key or a value.

    Nested KeyValue schemas need no depth limit: each level escapes the properties of the levels
    below as a JSON string again, which doubles their length.
    """
    title = f"the schema's property {half}.schema.properties"
    own_properties = schema_json(properties.get(f"{half}.schema.properties") or "{}", title)
    if not isinstance(own_properties, dict):
        raise ValueError(f"{title} is not a JSON object")
    return PulsarApi_pb2.Schema(
        name=half,
        schema_data=schema_data or b"",
        type=_type(properties.get(f"{half}.schema.type", "BYTES")),
        properties=[
            PulsarApi_pb2.KeyValue(key=name, value=text)
            for name, text in own_properties.items()
            if isinstance(text, str)
        ],
    )


def _type(name: str) -> Any:
    """Return the type for a Java name such as KEY_VALUE or BOOLEAN; unknown names mean bytes."""
    lower_name = name.replace("_", "").lower()
    return _TYPES.get("bool" if lower_name == "boolean" else lower_name, _TYPES["none"])


_TYPES = {name.lower(): number for name, number in PulsarApi_pb2.Schema.Type.items()}
