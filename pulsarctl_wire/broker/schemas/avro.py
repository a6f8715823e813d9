"""Avro schemas as the broker parses them. Source: Avro 1.11 specification, and Java's Schema.Parser (1.11.4).

Brokers distinguish two failures of that parser, so both are exceptions here: what it calls a mistake of the
schema (Unparsable), and any other exception (JavaError). Input is not trusted: what takes too many steps
raises TooComplex, where Java would go on.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

MAX_DEPTH: Final = 100
"""Levels that a default may have."""

_MAX_LEVELS: Final = 150  # of JSON; Java's parser allows 1000

_MAX_NUMBER: Final = 1000  # characters: Jackson's limit

PRIMITIVES: Final = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
NAMED: Final = frozenset(("record", "enum", "fixed"))
MISSING: Final = object()
"""The default of a field that has none."""

_RESERVED: Final = frozenset(
    ("doc", "fields", "items", "name", "namespace", "size", "symbols", "values", "type", "aliases")
)
_FIELD_RESERVED: Final = frozenset(("default", "doc", "name", "order", "type", "aliases"))
_ORDERS: Final = frozenset(("ASCENDING", "DESCENDING", "IGNORE"))
_DOUBLE = re.compile(
    r"[\0- ]*[+-]?(?:NaN|Infinity|(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?[fFdD]?)[\0- ]*", re.ASCII
)


class Unparsable(Exception):
    """The schema is wrong (SchemaParseException)."""


class JavaError(Exception):
    """Anything else that Java throws for a schema."""


class TooComplex(Exception):
    """The schema takes too many steps to check."""


class Steps:
    """The number of steps that a check may still take."""

    def __init__(self, remaining: int) -> None:
        self.remaining = remaining

    def spend(self, number: int = 1, *texts: str) -> None:
        """Count steps, and those for comparing texts. Raises TooComplex."""
        self.remaining -= number + sum(len(text) // 1000 for text in texts)
        if self.remaining < 0:
            raise TooComplex


# -- JSON


def _number(text: str) -> Any:
    if len(text) > _MAX_NUMBER:
        raise ValueError("a number is too long")
    return float(text) if any(char in text for char in ".eE") else int(text)


def _constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


_DECODER = json.JSONDecoder(parse_float=_number, parse_int=_number, parse_constant=_constant)
_TOKEN = re.compile(r'"(?:[^"\\]+|\\.)*"?|/\*(?:.*?\*/|.*)|//[^\r\n]*|[\[\]{}]', re.DOTALL)
_SPACE = re.compile(r"[ \t\r\n]*")


def _blank_comment(token: re.Match[str]) -> str:
    return " " * len(token[0]) if token[0][0] == "/" else token[0]


def read_json(data: bytes, *, comments: bool = False) -> tuple[Any, str]:
    """Return the first value in a text, and the rest of the text. Raises ValueError."""
    original = text = data.decode(errors="replace")
    if comments and "/" in text:
        text = _TOKEN.sub(_blank_comment, text)
    depth = 0
    for token in _TOKEN.finditer(text):
        if token[0] in "[{":
            depth += 1
            if depth > _MAX_LEVELS:
                raise ValueError("it is nested too deeply")
        elif token[0] in "]}":
            depth -= 1
    start = _SPACE.match(text)
    try:
        value, end = _DECODER.raw_decode(text, start.end() if start else 0)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value, original[end:]  # comments are not allowed there


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def canonicalize(value: Any) -> str:
    """Return a text that is equal for JSON values that Jackson takes for equal: 1 is not 1.0."""
    return json.dumps(value, sort_keys=True)


# -- schemas


class Field:
    """A field of a record."""

    __slots__ = ("aliases", "default", "name", "order", "props", "type")

    def __init__(self, name: str, type_: Node, default: Any = MISSING, order: str = "ASCENDING") -> None:
        self.name = name
        self.type = type_
        self.default = default
        self.order = order
        self.aliases: list[str] = []
        self.props = ""


class Node:
    """A schema. Its contents depend on its `kind`, which is Avro's word for it ("error" is "record").

    `fields` is None while the record is being defined. Only arrays and maps have `items`. `short` is
    the name without the namespace.
    """

    __slots__ = (
        "aliases",
        "default",
        "fields",
        "items",
        "kind",
        "name",
        "props",
        "short",
        "size",
        "symbols",
        "types",
    )
    items: Node

    def __init__(self, kind: str, name: str = "") -> None:
        self.kind = kind
        self.name = name or kind
        self.short = self.name.rpartition(".")[2]
        self.fields: dict[str, Field] | None = None
        self.types: list[Node] = []
        self.symbols: list[str] = []
        self.default = ""
        self.size = 0
        self.aliases: list[str] = []
        self.props = ""

    def get_fields(self) -> dict[str, Field]:
        """Return the fields by name. Raises JavaError if they are not defined yet."""
        if self.fields is None:
            raise JavaError("Schema fields not set yet")
        return self.fields


def index_fields(fields: list[Field], name: str) -> dict[str, Field]:
    """Return the fields of a record by name. Raises JavaError if two have the same name."""
    index = {field.name: field for field in fields}
    if len(index) < len(fields):
        raise JavaError(f"Duplicate field in record {name}")
    return index


def make_union(types: list[Node]) -> Node:
    """Make a union. Raises JavaError if Avro does not allow it."""
    node = Node("union")
    node.types = types
    names: set[str] = set()
    for branch in types:
        if branch.kind == "union":
            raise JavaError("Nested union")
        if branch.name in names:
            raise JavaError(f"Duplicate in union:{branch.name}")
        names.add(branch.name)
    return node


class Parsed(NamedTuple):
    """A parsed schema; `bad_default` describes the first default that is not a value of its type, if any."""

    node: Node
    bad_default: str


def parse(data: bytes, steps: Steps) -> Parsed:
    """Parse a schema in JSON. Raises Unparsable, JavaError, TooComplex."""
    try:
        value, rest = read_json(data, comments=True)
    except ValueError as error:
        is_empty = not data.decode(errors="replace").strip(" \t\r\n")
        raise Unparsable("Cannot parse <null> schema" if is_empty else f"{error}") from None
    parser = _Parser(steps)
    node = parser.parse_node(value)
    if rest.strip("".join(map(chr, range(33)))):
        raise Unparsable(f"dangling content after end of schema: {rest.strip()[:100]}")
    return Parsed(node, parser.bad_default)


def _text(value: Any, key: str) -> str | None:
    text = value.get(key) if isinstance(value, dict) else None
    return text if isinstance(text, str) else None


def _require_text(value: Any, key: str, complaint: str) -> str:
    text = _text(value, key)
    if text is None:
        raise Unparsable(f"{complaint}: {canonicalize(value)[:200]}")
    return text


def _props(value: dict[str, Any], reserved: frozenset[str]) -> str:
    props = {key: item for key, item in value.items() if key not in reserved}
    return canonicalize(props) if props else ""


def _aliases(value: Any) -> list[str]:
    aliases = value.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        raise Unparsable(f"aliases not an array of strings: {canonicalize(aliases)[:200]}")
    return aliases


def _check_name(name: str) -> str:
    """Return a name if it is valid: Java goes by UTF-16, in which other planes have no letters."""
    has_letters = all(
        (char.isalpha() and char < "\U00010000") or char.isdecimal() or char == "_" for char in name
    )
    if not name or not has_letters or name[0].isdecimal():
        raise Unparsable(f"Illegal name: {name[:100]}" if name else "Empty name")
    return name


def qualify_name(name: str, space: str) -> str:
    """Return the name with its namespace. Raises Unparsable."""
    prefix, dot, short = name.rpartition(".")
    _check_name(short)
    space = prefix if dot else space
    return f"{space}.{short}" if space else short


class _Parser:
    def __init__(self, steps: Steps) -> None:
        self.bad_default = ""
        self._steps = steps
        self._names: dict[str, Node] = {}
        self._space = ""

    def parse_node(self, value: Any) -> Node:
        self._steps.spend()
        if isinstance(value, str):
            definition = self._find_named(value)
            if definition is None:
                raise Unparsable(f'Undefined name: "{value[:100]}"')
            return definition
        if isinstance(value, list):
            return make_union([self.parse_node(branch) for branch in value])
        if not isinstance(value, dict):
            raise Unparsable(f"Schema not yet supported: {canonicalize(value)[:100]}")
        kind = _require_text(value, "type", "No type")
        if kind in ("record", "error", "enum", "fixed"):
            return self._definition(value, "record" if kind == "error" else kind)
        if kind in PRIMITIVES:
            node = Node(kind)
        elif kind in ("array", "map"):
            key = "items" if kind == "array" else "values"
            if key not in value:
                raise Unparsable(f"{kind} has no {key} type")
            node = Node(kind)
            node.items = self.parse_node(value[key])
        else:
            self._steps.spend(0, kind, self._space)
            name = qualify_name(kind, self._space)
            if name not in self._names:
                raise Unparsable(f"Type not supported: {kind[:100]}")
            return self._names[name]
        node.props = _props(value, _RESERVED)
        return node

    def _find_named(self, name: str) -> Node | None:
        if name in PRIMITIVES:
            return Node(name)
        self._steps.spend(0, name, self._space)
        return self._names.get(qualify_name(name, self._space)) or self._names.get(qualify_name(name, ""))

    def _definition(self, value: dict[str, Any], kind: str) -> Node:
        outer = self._space
        space = _text(value, "namespace")
        self._steps.spend(0, outer)
        name = qualify_name(
            _require_text(value, "name", "No name in schema"), outer if space is None else space
        )
        self._space = name.rpartition(".")[0]
        node = Node(kind, name)
        if kind == "enum":
            self._enum(value, node)
        elif kind == "fixed":
            node.size = _size(value)
        if name in PRIMITIVES:
            raise JavaError(f"Schemas may not be named after primitives: {name}")
        if name in self._names:
            raise Unparsable(f"Can't redefine: {name}")
        self._names[name] = node
        if kind == "record":
            fields = value.get("fields")
            if not isinstance(fields, list):
                raise Unparsable(f"Record has no fields: {_compact(value)}")
            node.fields = index_fields([self._field(field) for field in fields], name)
        node.props = _props(value, _RESERVED | {"default"} if kind == "enum" else _RESERVED)
        for alias in _aliases(value):
            self._steps.spend(1, alias, self._space)
            node.aliases.append(qualify_name(alias, self._space))
        self._space = outer
        return node

    def _enum(self, value: dict[str, Any], node: Node) -> None:
        symbols = value.get("symbols")
        if not isinstance(symbols, list):
            raise Unparsable(f"Enum has no symbols: {_compact(value)}")
        for symbol in symbols:
            if not isinstance(symbol, str):
                raise Unparsable("Null name")
            _check_name(symbol)
        if len(set(symbols)) < len(symbols):
            raise Unparsable("Duplicate enum symbol")
        self._steps.spend(len(symbols))
        node.symbols = symbols
        default = _text(value, "default")
        if default is not None and default not in symbols:
            raise Unparsable(f"The Enum Default: {default[:100]} is not in the enum symbol set")
        node.default = default or ""

    def _field(self, value: Any) -> Field:
        name = _require_text(value, "name", "No field name")
        if "type" not in value:
            raise Unparsable(f"No field type: {name[:100]}")
        kind = value["type"]
        if isinstance(kind, str) and self._find_named(kind) is None:
            raise Unparsable(
                f'"{kind[:100]}" is not a defined name. The type of the "{name[:100]}" field must be'
            )
        node = self.parse_node(kind)
        order = value.get("order", "ASCENDING")
        if not isinstance(order, str) or order.upper() not in _ORDERS:
            raise JavaError(f"No enum constant org.apache.avro.Schema.Field.Order.{str(order)[:100].upper()}")
        default = value.get("default", MISSING)
        if node.kind in ("float", "double") and isinstance(default, str):
            default = _as_double(default)
        field = Field(_check_name(name), node, default, order.upper())
        try:  # here, while the enclosing records are not defined yet
            check_default(field, self._steps)
        except JavaError as error:
            self.bad_default = self.bad_default or str(error)
        field.props = _props(value, _FIELD_RESERVED)
        field.aliases = _aliases(value)
        return field


def _size(value: dict[str, Any]) -> int:
    size = value.get("size")
    if type(size) is not int or not -(2**31) <= size < 2**31:
        raise Unparsable("Invalid or no size")
    if not 0 <= size <= 2**31 - 9:
        raise JavaError(
            f"Malformed data. Length is negative: {size}" if size < 0 else "the fixed is too large"
        )
    return size


def _as_double(text: str) -> float:
    if not _DOUBLE.fullmatch(text):
        raise JavaError(f'For input string: "{text[:100]}"')
    return float(
        text.strip("".join(map(chr, range(33)))).rstrip("fFdD" if text.strip()[-1:] not in "Ny" else "")
    )


# -- defaults


def check_default(field: Field, steps: Steps) -> None:
    """Raise JavaError if the field has a default that is not a value of its type."""
    if field.default is not MISSING and not _is_valid(field.type, field.default, steps, 0):
        raise JavaError(f"Invalid default for field {field.name}: {canonicalize(field.default)[:200]}")


def _is_valid(node: Node, value: Any, steps: Steps, depth: int) -> bool:
    steps.spend()
    if depth > MAX_DEPTH:
        raise JavaError("StackOverflowError")
    kind = node.kind
    if value is MISSING:
        return False
    if kind in ("string", "bytes", "enum", "fixed"):
        return isinstance(value, str)
    if kind in ("int", "long"):
        limit: int = 2**31 if kind == "int" else 2**63
        return type(value) is int and -limit <= value < limit
    if kind in ("float", "double"):
        return type(value) in (int, float)
    if kind in ("boolean", "null"):
        return isinstance(value, bool) if kind == "boolean" else value is None
    if kind == "array":
        return isinstance(value, list) and all(
            _is_valid(node.items, item, steps, depth + 1) for item in value
        )
    if kind == "union":
        if not node.types:
            raise JavaError("Index 0 out of bounds for length 0")
        return _is_valid(node.types[0], value, steps, depth + 1)
    if not isinstance(value, dict):
        return False
    if kind == "map":
        return all(_is_valid(node.items, item, steps, depth + 1) for item in value.values())
    return all(
        _is_valid(field.type, value.get(name, field.default), steps, depth + 1)
        for name, field in node.get_fields().items()
    )


# -- equality


def are_equal(first: Node, second: Node, steps: Steps) -> bool:
    """Return whether two schemas are equal (Schema.equals), ignoring doc, aliases, enum defaults."""
    todo = [(first, second)]
    visited: set[tuple[int, int]] = set()
    while todo:
        steps.spend()
        left, right = todo.pop()
        if left is right:
            continue
        steps.spend(len(left.symbols), left.name, left.props)
        parts = [
            (node.kind, node.name, node.props, node.size, node.symbols, len(node.types))
            for node in (left, right)
        ]
        if parts[0] != parts[1]:
            return False
        if left.kind in ("array", "map"):
            todo.append((left.items, right.items))
        todo.extend(zip(left.types, right.types, strict=True))
        if left.kind == "record" and (id(left), id(right)) not in visited:
            visited.add((id(left), id(right)))
            left_fields, right_fields = list(left.get_fields().values()), list(right.get_fields().values())
            steps.spend(len(left_fields))
            if len(left_fields) != len(right_fields) or not all(map(_same_field, left_fields, right_fields)):
                return False
            todo.extend(
                (mine.type, other.type) for mine, other in zip(left_fields, right_fields, strict=True)
            )
    return True


def _same_field(left: Field, right: Field) -> bool:
    if (left.name, left.order, left.props) != (right.name, right.order, right.props):
        return False
    if left.default is MISSING or right.default is MISSING:
        return left.default is right.default
    return canonicalize(left.default) == canonicalize(right.default)
