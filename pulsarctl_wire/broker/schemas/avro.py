"""Avro schemas as the broker reads them, and which schema can read data written with which.

The parser is the one of the Avro view, with its limits, and refuses what Avro does not allow. It differs from
Java's, which allows comments, distinguishes two kinds of wrong schemas, and accepts more as defaults.

The broker does not use Avro's SchemaCompatibility, but looks for errors of Java's Resolver (1.11.4). That
differs from the specification: a record's name does not matter (outside of unions), nor do the symbols that
an enum loses. A record that always contains itself, so that no data of it can exist, is no error here.
Sources: Avro 1.11 specification; Java's parser, ValidateMutualRead, Resolver, Schema.applyAliases (1.11.4).
"""

from __future__ import annotations

import json
from itertools import chain
from typing import Any, Final, NamedTuple

from pulsarctl_wire.views.avro_schema import NAMED, PRIMITIVES, Resolver, Type
from pulsarctl_wire.views.cache import MAX_SCHEMA, schema_json

_MAX_DEFAULTS: Final = 100_000  # values in the defaults of a schema
_RESERVED: Final = frozenset(
    ("doc", "fields", "items", "name", "namespace", "size", "symbols", "values", "type", "aliases")
)
"""Attributes that are not properties in Java; equal schemas have equal properties."""

_ORDERS: Final = frozenset(("ascending", "descending", "ignore"))
_TEXTUAL: Final = frozenset(("string", "bytes", "enum", "fixed"))
_BITS: Final = {"int": 32, "long": 64}


class JavaError(Exception):
    """An exception that the real broker does not expect."""


class TooComplex(Exception):
    """The schema is too large, or takes too many steps to check."""


class Steps:
    """The number of steps that a check may still take."""

    def __init__(self, remaining: int) -> None:
        self.remaining = remaining

    def spend(self, number: int = 1) -> None:
        """Count steps. Raises TooComplex."""
        self.remaining -= number
        if self.remaining < 0:
            raise TooComplex


class Parsed(NamedTuple):
    """A parsed schema.

    `outline` is equal for equal schemas. `bad_default` describes the first default that is not a value of its
    type, if any.
    """

    type: Type
    outline: str
    bad_default: str


def parse(data: bytes) -> Parsed:
    """Parse a schema in JSON. Raises ValueError, TooComplex."""
    if len(data) > MAX_SCHEMA:
        raise TooComplex
    parser, steps = _Parser(), Steps(_MAX_DEFAULTS)
    kind = parser.resolve(schema_json(data))
    fields = chain.from_iterable(named.get("fields", ()) for named in parser.types.values())
    bad_field = next((field for field in fields if not has_valid_default(field, steps)), None)
    bad_default = "" if bad_field is None else f"Invalid default for field {bad_field['name']}"
    return Parsed(kind, json.dumps(_outline(kind, set()), sort_keys=True), bad_default)


class _Parser(Resolver):
    def resolve(self, schema: Any, namespace: str = "", depth: int = 0) -> Type:
        """Return the type of a schema's JSON. Raises ValueError also where only the view is lenient."""
        if isinstance(schema, dict) and not isinstance(schema.get("type"), str):
            raise ValueError(f"No type: {json.dumps(schema)[:200]}")
        kind = super().resolve(schema, namespace, depth)
        names = [branch.get("name", branch["type"]) for branch in kind.get("branches", ())]
        if "union" in names or len(set(names)) < len(names):
            raise ValueError(f"Nested or duplicate in union: {', '.join(names)[:200]}")
        if isinstance(schema, dict) and kind["type"] in NAMED:
            _check_names(kind)
        return kind

    def define(self, resolved: Type) -> None:
        """Remember a named type. Raises ValueError if its name is defined already."""
        if resolved["name"] in self.types or resolved["name"] in PRIMITIVES:
            raise ValueError(f"Can't redefine: {resolved['name']}")
        super().define(resolved)


def _check_names(kind: Type) -> None:
    """Raise ValueError if Avro does not allow a name, enum default, alias or order in a named type."""
    fields: list[dict[str, Any]] = kind.get("fields", [])
    names = kind.get("symbols", [field["name"] for field in fields])
    for name in (*names, kind["name"].rpartition(".")[2]):
        if not name.isidentifier():
            raise ValueError(f"Illegal name: {name}" if name else "Empty name")
    if len(set(names)) < len(names):
        raise ValueError(f"Duplicate field or symbol in {kind['name']}")
    default = kind["definition"].get("default") if kind["type"] == "enum" else None
    if isinstance(default, str) and default not in names:
        raise ValueError("The Enum Default is not in the enum symbol set")
    for item in (kind["definition"], *fields):
        aliases = item.get("aliases", [])
        if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
            raise ValueError("aliases not an array of strings")
    for field in fields:
        if str(field.get("order", "ignore")).lower() not in _ORDERS:
            raise ValueError(f"No enum constant Order.{field['order']}")


def aliases_of(kind: Type) -> list[str]:
    """Return the full names of the aliases of a named type."""
    namespace = kind["name"].rpartition(".")[0]
    aliases: list[str] = kind["definition"].get("aliases", [])
    return [f"{namespace}.{alias}" if namespace and "." not in alias else alias for alias in aliases]


def has_valid_default(field: dict[str, Any], steps: Steps) -> bool:
    """Return whether a field has no default, or one that is a value of its type."""
    return "default" not in field or _is_value(field["type"], field["default"], steps)


def _is_value(kind: Type, value: Any, steps: Steps) -> bool:
    steps.spend()
    name = kind["type"]
    if name in _TEXTUAL:
        return isinstance(value, str)
    if name in _BITS:
        limit: int = 1 << _BITS[name] - 1
        return type(value) is int and -limit <= value < limit
    if name in ("float", "double"):
        return type(value) in (int, float, str)  # "NaN"
    if name in ("boolean", "null"):
        return isinstance(value, bool) if name == "boolean" else value is None
    if name == "array":
        return isinstance(value, list) and all(_is_value(kind["items"], item, steps) for item in value)
    if name == "union":
        return bool(kind["branches"]) and _is_value(kind["branches"][0], value, steps)
    if not isinstance(value, dict):
        return False
    if name == "map":
        return all(_is_value(kind["items"], item, steps) for item in value.values())
    return all(
        ("default" in field or field["name"] in value)
        and _is_value(field["type"], value.get(field["name"], field.get("default")), steps)
        for field in kind["fields"]
    )


def _outline(kind: Type, names: set[str]) -> Any:
    """Return a schema's JSON without what may differ in equal schemas.

    A named type in `names` is given by its name; others are added to `names`.
    """
    definition = kind.get("definition", {})
    outline = {key: value for key, value in definition.items() if key not in _RESERVED}
    outline |= {key: kind[key] for key in ("name", "size", "symbols", "type") if key in kind}
    if (name := kind.get("name", "")) in names:
        return name
    if name:
        names.add(name)
    if name and kind["type"] == "enum":
        outline.pop("default", None)
    if "items" in kind:
        outline["items"] = _outline(kind["items"], names)
    if "branches" in kind:
        outline["branches"] = [_outline(branch, names) for branch in kind["branches"]]
    if "fields" in kind:
        outline["fields"] = [
            {"order": "ascending", **{key: field[key] for key in field if key not in ("doc", "aliases")}}
            | {"type": _outline(field["type"], names)}
            for field in kind["fields"]
        ]
    return outline


_PROMOTIONS: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


class Reading:
    """A check whether one schema can read the data of another, in a limited number of steps."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._records: dict[tuple[int, int], bool] = {}  # by id() of writer and reader, which outlive this

    def can_read(self, writer: Type, reader: Type) -> bool:
        """Return whether the reader can read the writer's data. Raises JavaError, TooComplex."""
        self._steps.spend()
        type_name = writer["type"]
        if type_name == "union":
            return all(self.can_read(branch, reader) for branch in writer["branches"])
        if reader["type"] == "union":
            return self._can_union_read(writer, reader["branches"])
        if type_name != reader["type"]:
            return reader["type"] in _PROMOTIONS.get(type_name, ())
        if type_name == "record":
            return self._can_record_read(writer, reader)
        if type_name in ("array", "map"):
            return self.can_read(writer["items"], reader["items"])
        is_alike = (
            type_name not in NAMED
            or _short_name(writer) == _short_name(reader)
            or self._is_alias(writer, reader)
        )
        return is_alike and writer.get("size") == reader.get("size")

    def _can_record_read(self, writer: Type, reader: Type) -> bool:
        key = id(writer), id(reader)
        if key not in self._records:
            self._records[key] = True  # for records that contain themselves
            self._records[key] = self._can_fields_read(writer, reader)
        return self._records[key]

    def _can_fields_read(self, writer: Type, reader: Type) -> bool:
        self._steps.spend(len(writer["fields"]) + len(reader["fields"]))
        can_use_aliases = writer["name"] == reader["name"] or self._is_alias(writer, reader)
        written = {field["name"]: field for field in writer["fields"]}
        is_readable = True
        for field in reader["fields"]:
            names = [field["name"], *(field.get("aliases", ()) if can_use_aliases else ())]
            match = next((written[name] for name in names if name in written), None)
            if match is not None:
                # if it is not readable, Java goes on, and a later field may raise JavaError
                is_readable &= self.can_read(match["type"], field["type"])
            elif "default" not in field:
                return False
            elif not has_valid_default(field, self._steps):
                raise JavaError(f"No default value for {field['name']}")
        return is_readable

    def _can_union_read(self, writer: Type, branches: list[Type]) -> bool:
        """Return whether a branch of a union can read the writer's data.

        A branch of the same name (or alias) or the same unnamed type decides alone. Else it can be any
        branch of the same type; if there is none, any of a type to which the writer's can be promoted.
        """
        self._steps.spend(len(branches))
        type_name = writer["type"]
        same_type = [branch for branch in branches if branch["type"] == type_name]
        for branch in same_type:
            if type_name not in NAMED or branch["name"] == writer["name"] or self._is_alias(writer, branch):
                return self.can_read(writer, branch)
        candidates = same_type or [
            branch for branch in branches if branch["type"] in _PROMOTIONS.get(type_name, ())
        ]
        return any(self.can_read(writer, branch) for branch in candidates)

    def _is_alias(self, writer: Type, reader: Type) -> bool:
        aliases = aliases_of(reader)
        self._steps.spend(len(aliases))
        return writer["name"] in aliases


def _short_name(kind: Type) -> str:
    return str(kind["name"]).rpartition(".")[2]
