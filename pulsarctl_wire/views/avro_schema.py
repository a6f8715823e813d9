"""Avro schemas with their names resolved: the view, the encoder and the broker's rules start from these.

Every type becomes an object, a `Type`; a name becomes the object that defines it, so an object may contain
itself. A type that a JSON object defines also has that object, as its member `definition`.

    null ... string  {"type": "int", "logicalType": "date", "scale": 2, "precision": 4}, as far as present
    array, map       {"type": "map", "items": Type}
    union            {"type": "union", "branches": [Type]}
    enum             {"type": "enum", "name": full name, "symbols": [...]}
    fixed            {"type": "fixed", "name": full name, "size": 2}, and a logical type as above
    record, error    {"type": "record", "name": full name, "fields": [{"name": ..., "type": Type, ...}]}
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from pulsarctl_wire.views.content import MAX_DEPTH, MAX_NAME, quote

Type: TypeAlias = dict[str, Any]

PRIMITIVES: Final = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
NAMED: Final = ("record", "enum", "fixed")
LOGICAL: Final = "logicalType"


class Resolver:
    """A resolver of the names in one schema; `types` are its named types, by their full names."""

    def __init__(self) -> None:
        self.types: dict[str, Type] = {}

    def resolve(self, schema: Any, namespace: str = "", depth: int = 0) -> Type:
        """Return the type of a schema's JSON; ValueError if the schema is wrong, or nested too deeply."""
        if depth > MAX_DEPTH:
            raise ValueError(f"the schema is nested deeper than {MAX_DEPTH} levels")
        if isinstance(schema, str):
            return self._find(schema, namespace)
        if isinstance(schema, list):
            branches = [self.resolve(branch, namespace, depth + 1) for branch in schema]
            return {"type": "union", "branches": branches}
        if not isinstance(schema, dict):
            raise ValueError(f"the schema has {quote(schema)} where a type is due")
        kind = schema.get("type")
        if kind in (*NAMED, "error"):
            return self._resolve_named(schema, namespace, depth)
        if kind in ("array", "map"):
            items = schema.get("items" if kind == "array" else "values")
            return {"type": kind, "items": self.resolve(items, namespace, depth + 1), "definition": schema}
        if isinstance(kind, str) and kind in PRIMITIVES:
            return {"type": kind, **_logical(schema), "definition": schema}
        return self.resolve(kind, namespace, depth + 1)

    def define(self, resolved: Type) -> None:
        """Remember a named type, before its fields are resolved, as they may refer to it."""
        self.types[resolved["name"]] = resolved

    def _find(self, name: str, namespace: str) -> Type:
        if name in PRIMITIVES:
            return {"type": name}
        resolved = self.types.get(_qualify(name, namespace)) or self.types.get(name)
        if resolved is None:
            raise ValueError(f"the schema does not define the type {quote(name)}")
        return resolved

    def _resolve_named(self, schema: dict[str, Any], namespace: str, depth: int) -> Type:
        own = schema.get("namespace")
        name = _qualify(_check_name(schema.get("name")), namespace if own is None else _check_name(own))
        kind = schema["type"]
        resolved = {"type": "record" if kind == "error" else kind, "name": name, "definition": schema}
        if kind == "enum":
            resolved["symbols"] = [_check_name(symbol) for symbol in _get_list(schema, "symbols")]
        elif kind == "fixed":
            size = schema.get("size")
            if not isinstance(size, int) or size < 0:
                raise ValueError(f"the schema has a fixed of size {quote(size)}")
            resolved |= {"size": size, **_logical(schema)}
        self.define(resolved)
        if resolved["type"] == "record":
            inner_namespace = name.rpartition(".")[0]
            fields = _get_list(schema, "fields")
            resolved["fields"] = [self._resolve_field(field, inner_namespace, depth) for field in fields]
        return resolved

    def _resolve_field(self, field: Any, namespace: str, depth: int) -> dict[str, Any]:
        if not isinstance(field, dict):
            raise ValueError(f"the schema has {quote(field)} where a field is due")
        kind = self.resolve(field.get("type"), namespace, depth + 1)
        return {**field, "type": kind, "name": _check_name(field.get("name"))}


def _qualify(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _get_list(schema: dict[str, Any], name: str) -> list[Any]:
    items = schema.get(name)
    if not isinstance(items, list):
        raise ValueError(f"the schema lacks a list of {name}")
    return items


def _check_name(name: Any) -> str:
    """Return a name if it is a short text, as every use of a long one costs memory again."""
    if not isinstance(name, str) or len(name) > MAX_NAME:
        raise ValueError(f"the schema has {quote(name)} where a name of up to {MAX_NAME} characters is due")
    return name


def _logical(schema: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(schema.get(LOGICAL), str):
        return {}
    return {key: schema[key] for key in (LOGICAL, "scale", "precision") if key in schema}
