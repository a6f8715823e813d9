"""An Avro schema made ready for writing: names resolved, nothing left that the library would judge.

fastavro writes the bytes, and is given no more to interpret than it must: logical types and defaults
move to members it does not know (`LOGICAL`, `DEFAULT`), for it would refuse schemas that brokers
accept (they check no defaults), knows no nanoseconds, and reads the machine's time zone. Named types
are called T0, T1 and so on, without namespace: it takes no reference out of a namespace to a name
without one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pulsarctl_wire.views import avro
from pulsarctl_wire.views.cache import SchemaCache, schema_json
from pulsarctl_wire.wire import PulsarApi_pb2

LOGICAL = "logical"
DEFAULT = "otherwise"
NAME = "full name"

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")


@dataclass(frozen=True, slots=True)
class Definition:
    """A schema ready for writing.

    Attributes:
        root: as fastavro takes it: a primitive's or a named type's name, an object, or a union's list.
        named: the objects that define named types, by their name there. Each has the name in the
            user's schema as `NAME`.
    """

    root: Any
    named: dict[str, dict[str, Any]] = field(default_factory=dict)

    def resolved(self, schema: Any) -> Any:
        """``schema``, or what defines it when it is the name of a named type."""
        return self.named.get(schema, schema) if isinstance(schema, str) else schema


def _compile(schema: PulsarApi_pb2.Schema) -> Definition:
    avro.compile_schema(schema)  # says what is wrong with it; from here on it is well formed
    names = _Names()
    return Definition(names.type(schema_json(schema.schema_data), ""), names.named)


definitions = SchemaCache(_compile)
"""The `Definition` of an Avro schema, or of a JSON schema with one; ValueError when it is broken."""


class _Names:
    """Resolves names as the view's compiler does."""

    def __init__(self) -> None:
        self.ids: dict[str, str] = {}
        self.named: dict[str, dict[str, Any]] = {}

    def type(self, schema: Any, namespace: str) -> Any:
        if isinstance(schema, str):
            if schema in PRIMITIVES:
                return schema
            return self.ids.get(_full(schema, namespace)) or self.ids[schema]
        if isinstance(schema, list):
            return [self.type(branch, namespace) for branch in schema]
        kind = schema["type"]
        if kind in ("record", "error", "enum", "fixed"):
            return self.define(kind, schema, namespace)
        if kind == "array":
            return {"type": kind, "items": self.type(schema["items"], namespace)}
        if kind == "map":
            return {"type": kind, "values": self.type(schema["values"], namespace)}
        if isinstance(kind, str) and kind in PRIMITIVES:
            return {"type": kind, **_logical(schema)}
        return self.type(kind, namespace)

    def define(self, kind: str, schema: dict[str, Any], namespace: str) -> dict[str, Any]:
        own = schema.get("namespace")
        full = _full(schema["name"], namespace if own is None else own)
        known = f"T{len(self.named)}"
        made: dict[str, Any] = {"type": kind, "name": known, NAME: full}
        self.ids[full] = known
        self.named[known] = made
        if kind == "enum":
            made["symbols"] = schema["symbols"]
        elif kind == "fixed":
            made |= {"size": schema["size"], **_logical(schema)}
        else:
            made["type"] = "record"
            inner = full.rpartition(".")[0]
            made["fields"] = [self.field(one, inner) for one in schema["fields"]]
        return made

    def field(self, described: dict[str, Any], namespace: str) -> dict[str, Any]:
        made = {"name": described["name"], "type": self.type(described["type"], namespace)}
        if "default" in described:
            made[DEFAULT] = described["default"]
        return made


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _logical(schema: dict[str, Any]) -> dict[str, Any]:
    logical = schema.get("logicalType")
    if not isinstance(logical, str):
        return {}
    return {LOGICAL: logical, **{part: schema[part] for part in ("scale", "precision") if part in schema}}


def branch(schema: Any, definition: Definition) -> str:
    """What a union's branch is called in Avro's JSON encoding, and in errors."""
    resolved = definition.resolved(schema)
    if isinstance(resolved, list):
        return "union"
    return str(resolved if isinstance(resolved, str) else resolved.get(NAME, resolved["type"]))


def tag(schema: Any) -> str:
    """What a union's branch is called in the tuples that tell fastavro the branch."""
    if isinstance(schema, list):
        return "union"
    return str(schema if isinstance(schema, str) else schema.get("name", schema["type"]))
