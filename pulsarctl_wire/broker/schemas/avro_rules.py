"""Whether one Avro schema can read data of another, as Pulsar's broker decides.

The broker does not use Avro's SchemaCompatibility, but looks for errors of Java's Resolver (1.11.4). That
differs from the specification: a record's name does not matter (outside of unions), nor do the symbols that
an enum loses. Source: Avro's ValidateMutualRead, Resolver, ResolvingGrammarGenerator, Schema.applyAliases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from typing import Any, Final, TypeAlias, TypeVar

from pulsarctl_wire.broker.schemas.avro import (
    MAX_DEPTH,
    MISSING,
    NAMED,
    Field,
    JavaError,
    Node,
    Steps,
    are_equal,
    check_default,
    index_fields,
    make_union,
)

_PROMOTIONS: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


_Part = TypeVar("_Part")


class _Action:
    """The resolver's action for the writer's data: an error, or the actions of its `parts`.

    `plain` are schemas whose data is read without any resolution.
    """

    __slots__ = ("is_abandoned", "is_error", "is_record", "parts", "plain")

    def __init__(self, *, is_error: bool = False, is_record: bool = False) -> None:
        self.is_error = is_error
        self.is_record = is_record
        self.is_abandoned = False
        self.parts: list[_Action] = []
        self.plain: list[Node] = []


_Work: TypeAlias = Generator[Any, _Action, _Action]
"""A resolution; it yields others and is sent their results. As none calls another, no stack overflows."""


def can_read(writer: Node, reader: Node, steps: Steps) -> bool:
    """Return whether the reader can read the writer's data. Raises JavaError, TooComplex."""
    writer = _rename(writer, reader, steps)
    stack: list[_Work] = [_Resolver(steps).resolve(writer, reader)]
    result: Any = None
    while stack:
        try:
            stack.append(stack[-1].send(result))
            result = None
        except StopIteration as stop:  # noqa: PERF203 - its value is the result
            stack.pop()
            result = stop.value
    actions = _collect_parts([result], lambda action: action.parts, lambda action: action.is_record, steps)
    plain = [node for action in actions for node in action.plain]
    _collect_parts(plain, _parts_of, lambda node: node.kind == "record", steps)
    if any(action.is_abandoned for action in actions):
        raise JavaError("NullPointerException")
    return not any(action.is_error for action in actions)


def _parts_of(node: Node) -> list[Node]:
    if node.kind in ("array", "map"):
        return [node.items]
    return [field.type for field in node.fields.values()] if node.fields else node.types


def _collect_parts(
    roots: list[_Part],
    parts_of: Callable[[_Part], list[_Part]],
    is_record: Callable[[_Part], bool],
    steps: Steps,
) -> list[_Part]:
    """Return the roots and all their parts. Raises JavaError if a record always contains itself.

    For such a record, Java makes a grammar without end.
    """
    collected = {id(root): root for root in roots}
    todo = list(collected.values())
    containers: Counter[int] = Counter()  # in how many records a record is, directly
    while todo:
        item = todo.pop()
        parts = parts_of(item)
        steps.spend(1 + len(parts))
        if is_record(item):
            containers.update(id(part) for part in parts if is_record(part))
        added = {id(part): part for part in parts if id(part) not in collected}
        collected |= added
        todo.extend(added.values())
    records = {key: record for key, record in collected.items() if is_record(record)}
    outermost = [key for key in records if not containers[key]]
    remaining = len(records)
    while outermost:
        remaining -= 1
        for part in parts_of(records[outermost.pop()]):
            if is_record(part):
                containers[id(part)] -= 1
                if not containers[id(part)]:
                    outermost.append(id(part))
    if remaining:
        raise JavaError("StackOverflowError")
    return list(collected.values())


class _Resolver:
    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._records: dict[tuple[int, int], _Action] = {}  # by id: the schemas live longer

    def resolve(self, writer: Node, reader: Node) -> _Work:
        self._steps.spend()
        if writer.kind == "union":
            return (yield self._resolve_writer_union(writer, reader))
        if writer.kind == reader.kind:
            if writer.kind == "record":
                return (yield self._resolve_record(writer, reader))
            return (yield self._resolve_alike(writer, reader))
        if reader.kind == "union":
            return (yield self._resolve_reader_union(writer, reader))
        return _Action(is_error=reader.kind not in _PROMOTIONS.get(writer.kind, ()))

    def _resolve_alike(self, writer: Node, reader: Node) -> _Work:
        if writer.kind in ("array", "map"):
            action = _Action()
            action.parts.append((yield self.resolve(writer.items, reader.items)))
            return action
        if writer.kind in ("enum", "fixed"):
            self._steps.spend(0, writer.short)
            return _Action(is_error=(writer.short, writer.size) != (reader.short, reader.size))
        return _Action()

    def _resolve_record(self, writer: Node, reader: Node) -> _Work:
        key = id(writer), id(reader)
        if key in self._records:
            return self._records[key]
        action = self._records[key] = _Action(is_record=True)  # early, for recursive records
        writer_fields, reader_fields = writer.get_fields(), reader.get_fields()
        self._steps.spend(len(writer_fields) + len(reader_fields))
        for name, field in writer_fields.items():
            if name in reader_fields:
                action.parts.append((yield self.resolve(field.type, reader_fields[name].type)))
            else:
                action.plain.append(field.type)
        for name, field in reader_fields.items():
            if name in writer_fields:
                continue
            if field.default is MISSING:
                action.is_abandoned = True  # though its parts may refer to it
                self._records[key] = _Action(is_error=True)
                return self._records[key]
            _encode(field.type, field.default, self._steps, 0)
            action.plain.append(field.type)
        return action

    def _resolve_writer_union(self, writer: Node, reader: Node) -> _Work:
        is_alike = _are_alike(writer, reader, self._steps)
        action = _Action()
        for number, branch in enumerate(writer.types):
            part = yield self.resolve(branch, reader.types[number] if is_alike else reader)
            if not is_alike:
                action.parts.append(part)
        if is_alike:
            action.plain.append(reader)
        return action

    def _resolve_reader_union(self, writer: Node, reader: Node) -> _Work:
        """Resolve to the first branch of this type and name; else the last record of its shape with its
        short name, or the first of its shape; else the first branch to which the type can be promoted.
        """
        match: Node | None = None
        self._steps.spend(len(reader.types))
        for branch in reader.types:
            if branch.kind != writer.kind:
                continue
            if branch.kind not in NAMED or branch.name == writer.name:
                match = branch
                break
            if branch.kind == "record" and (match is None or branch.short == writer.short):
                attempt = yield self._resolve_record(writer, branch)
                if not (attempt.is_error or any(part.is_error for part in attempt.parts)):
                    match = branch
            elif branch.kind == "record":
                yield self._resolve_record(writer, branch)  # for its errors
        promotions = _PROMOTIONS.get(writer.kind, ())
        chosen_branch = match or next((item for item in reader.types if item.kind in promotions), None)
        action = _Action(is_error=not chosen_branch)
        if chosen_branch:
            action.parts.append((yield self.resolve(writer, chosen_branch)))
        return action


def _are_alike(writer: Node, reader: Node, steps: Steps) -> bool:
    """Return whether two unions are equal except for namespaces, defaults and the like."""
    todo = [(writer, reader)]
    visited: set[tuple[int, int]] = set()
    while todo:
        left, right = todo.pop()
        steps.spend(1 + len(left.symbols), left.short)
        if (left.kind, len(left.types)) != (right.kind, len(right.types)):
            return False
        if (left.size, left.symbols) != (right.size, right.symbols):
            return False
        if left.kind in NAMED and left.short != right.short:
            return False
        if left.kind in ("array", "map"):
            todo.append((left.items, right.items))
        todo.extend(zip(left.types, right.types, strict=True))
        if left.kind == "record" and (id(left), id(right)) not in visited:
            visited.add((id(left), id(right)))
            fields, right_fields = left.get_fields(), right.get_fields()
            steps.spend(len(fields))
            if list(fields) != list(right_fields):
                return False
            todo.extend((field.type, right_fields[name].type) for name, field in fields.items())
    return True


# -- defaults


def _encode(node: Node, value: Any, steps: Steps, depth: int) -> None:
    """Raise JavaError if Java cannot encode a default; it can encode more than the valid ones."""
    steps.spend(1 + len(node.symbols))
    if depth > MAX_DEPTH:
        raise JavaError("StackOverflowError")
    kind = node.kind
    depth += 1
    if kind == "record":
        values = value if isinstance(value, dict) else {}
        for name, field in node.get_fields().items():
            item_value = values.get(name, field.default)
            if item_value is MISSING:
                raise JavaError(f"No default value for: {name}")
            _encode(field.type, item_value, steps, depth)
    elif kind == "array":
        items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        for item in items:
            _encode(node.items, item, steps, depth)
    elif kind == "map" and not (isinstance(value, list) and value):
        for item in value.values() if isinstance(value, dict) else ():
            _encode(node.items, item, steps, depth)
    elif kind == "union" and node.types:
        _encode(node.types[0], value, steps, depth)
    elif not _fits(node, value):
        raise JavaError(f"No default value for {kind}")


def _fits(node: Node, value: Any) -> bool:
    if node.kind in ("int", "long", "float", "double"):
        return type(value) in (int, float)
    if node.kind in ("string", "bytes", "fixed", "enum"):
        return isinstance(value, str) and (node.kind != "enum" or value in node.symbols)
    return isinstance(value, bool) if node.kind == "boolean" else node.kind == "null" and value is None


# -- aliases


class _Aliases:
    """The aliases of a reader's schema: alias -> name, and those of fields by their record's name."""

    def __init__(self, reader: Node, steps: Steps) -> None:
        self.names: dict[str, str] = {}
        self.fields: dict[str, dict[str, str]] = {}
        self._steps = steps
        self._visited: dict[int, Node] = {}
        self._collect(reader)
        self._visited = {}

    def _collect(self, node: Node) -> None:
        self._steps.spend()
        self.names |= dict.fromkeys(node.aliases, node.name)
        if node.kind in ("array", "map"):
            self._collect(node.items)
        for branch in node.types:
            self._collect(branch)
        if node.kind != "record" or id(node) in self._visited:
            return
        self._visited[id(node)] = node
        for field in node.get_fields().values():
            if field.aliases:
                self.fields.setdefault(node.name, {}).update(dict.fromkeys(field.aliases, field.name))
            self._collect(field.type)
        if node.name in self.fields:
            self.fields |= dict.fromkeys(node.aliases, self.fields[node.name])

    def apply(self, node: Node) -> Node:
        """Return a schema with the reader's names. Raises JavaError if that makes it invalid."""
        self._steps.spend()
        kind = node.kind
        if id(node) in self._visited:
            return self._visited[id(node)]
        if kind == "union":
            return make_union([self.apply(branch) for branch in node.types])
        if kind not in NAMED and kind not in ("array", "map"):
            return node
        renamed = Node(kind, self.names.get(node.name, node.name) if kind in NAMED else "")
        renamed.size, renamed.symbols, renamed.default, renamed.props = (
            node.size,
            node.symbols,
            node.default,
            node.props,
        )
        if kind in ("array", "map"):
            renamed.items = self.apply(node.items)
        elif kind == "record":
            self._visited[id(node)] = renamed
            field_names = self.fields.get(renamed.name, {})
            fields = node.get_fields().values()
            renamed.fields = index_fields([self._field(field, field_names) for field in fields], renamed.name)
        return renamed

    def _field(self, field: Field, names: dict[str, str]) -> Field:
        renamed = Field(names.get(field.name, field.name), self.apply(field.type), field.default, field.order)
        check_default(renamed, self._steps)
        return renamed


def _rename(writer: Node, reader: Node, steps: Steps) -> Node:
    """Return the writer's schema, with the reader's names for the reader's aliases."""
    if are_equal(writer, reader, steps):
        return writer
    aliases = _Aliases(reader, steps)
    return aliases.apply(writer) if aliases.names or aliases.fields else writer
