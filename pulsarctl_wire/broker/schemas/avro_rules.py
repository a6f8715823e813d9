"""Whether data of one Avro schema can be read by another, as Pulsar's broker decides it.

It does not ask Avro's SchemaCompatibility, but whether Java's Resolver (1.11.4) finds an error. That differs
from the specification's rules: a record's name does not matter (outside of unions), nor do the symbols that
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
    Failed,
    Field,
    Node,
    Steps,
    check_default,
    record_fields,
    same,
    union_of,
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
    """What is to be done with the writer's data: it fails, or it is that of its `parts`.

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
"""It yields the works whose results it is sent. As no work calls another, no schema overflows the stack."""


def can_read(writer: Node, reader: Node, steps: Steps) -> bool:
    """Return whether the reader can read what the writer writes. Raises Failed, TooMuch."""
    writer = _renamed(writer, reader, steps)
    waiting: list[_Work] = [_Resolver(steps).resolve(writer, reader)]
    result: Any = None
    while waiting:
        try:
            waiting.append(waiting[-1].send(result))
            result = None
        except StopIteration as ended:  # noqa: PERF203 - its value is the result
            waiting.pop()
            result = ended.value
    actions = _within([result], lambda action: action.parts, lambda action: action.is_record, steps)
    plain = [node for action in actions for node in action.plain]
    _within(plain, _parts_of, lambda node: node.kind == "record", steps)
    if any(action.is_abandoned for action in actions):
        raise Failed("NullPointerException")
    return not any(action.is_error for action in actions)


def _parts_of(node: Node) -> list[Node]:
    if node.kind in ("array", "map"):
        return [node.items]
    return [field.type for field in node.fields.values()] if node.fields else node.types


def _within(
    roots: list[_Part],
    parts_of: Callable[[_Part], list[_Part]],
    is_record: Callable[[_Part], bool],
    steps: Steps,
) -> list[_Part]:
    """Return everything that the roots consist of. Raises Failed if a record always contains itself.

    For such a record, Java makes a grammar without end.
    """
    found = {id(root): root for root in roots}
    todo = list(found.values())
    inside: Counter[int] = Counter()  # in how many records a record is, directly
    while todo:
        whole = todo.pop()
        parts = parts_of(whole)
        steps.spend(1 + len(parts))
        if is_record(whole):
            inside.update(id(part) for part in parts if is_record(part))
        new = {id(part): part for part in parts if id(part) not in found}
        found |= new
        todo.extend(new.values())
    records = {key: each for key, each in found.items() if is_record(each)}
    outermost = [key for key in records if not inside[key]]
    left = len(records)
    while outermost:
        left -= 1
        for part in parts_of(records[outermost.pop()]):
            if is_record(part):
                inside[id(part)] -= 1
                if not inside[id(part)]:
                    outermost.append(id(part))
    if left:
        raise Failed("StackOverflowError")
    return list(found.values())


class _Resolver:
    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._records: dict[tuple[int, int], _Action] = {}  # the schemas live longer, so their ids are theirs

    def resolve(self, writer: Node, reader: Node) -> _Work:
        self._steps.spend()
        if writer.kind == "union":
            return (yield self._writer_union(writer, reader))
        if writer.kind == reader.kind:
            if writer.kind == "record":
                return (yield self._record(writer, reader))
            return (yield self._alike(writer, reader))
        if reader.kind == "union":
            return (yield self._reader_union(writer, reader))
        return _Action(is_error=reader.kind not in _PROMOTIONS.get(writer.kind, ()))

    def _alike(self, writer: Node, reader: Node) -> _Work:
        if writer.kind in ("array", "map"):
            action = _Action()
            action.parts.append((yield self.resolve(writer.items, reader.items)))
            return action
        if writer.kind in ("enum", "fixed"):
            self._steps.spend(0, writer.short)
            return _Action(is_error=(writer.short, writer.size) != (reader.short, reader.size))
        return _Action()

    def _record(self, writer: Node, reader: Node) -> _Work:
        key = id(writer), id(reader)
        if key in self._records:
            return self._records[key]
        action = self._records[key] = _Action(is_record=True)  # early, for records that contain themselves
        written, read = writer.known_fields(), reader.known_fields()
        self._steps.spend(len(written) + len(read))
        for name, field in written.items():
            if name in read:
                action.parts.append((yield self.resolve(field.type, read[name].type)))
            else:
                action.plain.append(field.type)
        for name, field in read.items():
            if name in written:
                continue
            if field.default is MISSING:
                action.is_abandoned = True  # though parts of it may refer to it
                self._records[key] = _Action(is_error=True)
                return self._records[key]
            _encode(field.type, field.default, self._steps, 0)
            action.plain.append(field.type)
        return action

    def _writer_union(self, writer: Node, reader: Node) -> _Work:
        alike = _alike_in_unions(writer, reader, self._steps)
        action = _Action()
        for number, branch in enumerate(writer.types):
            part = yield self.resolve(branch, reader.types[number] if alike else reader)
            if not alike:
                action.parts.append(part)
        if alike:
            action.plain.append(reader)
        return action

    def _reader_union(self, writer: Node, reader: Node) -> _Work:
        """Resolve to the first branch of this type and name; else the last record of its shape with its
        short name, or the first of its shape; else the first branch to which the type can be promoted.
        """
        shaped: Node | None = None
        self._steps.spend(len(reader.types))
        for branch in reader.types:
            if branch.kind != writer.kind:
                continue
            if branch.kind not in NAMED or branch.name == writer.name:
                shaped = branch
                break
            if branch.kind == "record" and (shaped is None or branch.short == writer.short):
                tried = yield self._record(writer, branch)
                if not (tried.is_error or any(part.is_error for part in tried.parts)):
                    shaped = branch
            elif branch.kind == "record":
                yield self._record(writer, branch)  # it may fail
        promotions = _PROMOTIONS.get(writer.kind, ())
        found = shaped or next((each for each in reader.types if each.kind in promotions), None)
        action = _Action(is_error=not found)
        if found:
            action.parts.append((yield self.resolve(writer, found)))
        return action


def _alike_in_unions(writer: Node, reader: Node, steps: Steps) -> bool:
    """Return whether two unions are the same but for namespaces, defaults and the like."""
    todo = [(writer, reader)]
    seen: set[tuple[int, int]] = set()
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
        if left.kind == "record" and (id(left), id(right)) not in seen:
            seen.add((id(left), id(right)))
            fields, others = left.known_fields(), right.known_fields()
            steps.spend(len(fields))
            if list(fields) != list(others):
                return False
            todo.extend((field.type, others[name].type) for name, field in fields.items())
    return True


# -- defaults


def _encode(node: Node, value: Any, steps: Steps, depth: int) -> None:
    """Raise Failed if Java cannot encode a default; it can encode more than are valid."""
    steps.spend(1 + len(node.symbols))
    if depth > MAX_DEPTH:
        raise Failed("StackOverflowError")
    kind = node.kind
    depth += 1
    if kind == "record":
        given = value if isinstance(value, dict) else {}
        for name, field in node.known_fields().items():
            found = given.get(name, field.default)
            if found is MISSING:
                raise Failed(f"No default value for: {name}")
            _encode(field.type, found, steps, depth)
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
        raise Failed(f"No default value for {kind}")


def _fits(node: Node, value: Any) -> bool:
    if node.kind in ("int", "long", "float", "double"):
        return type(value) in (int, float)
    if node.kind in ("string", "bytes", "fixed", "enum"):
        return isinstance(value, str) and (node.kind != "enum" or value in node.symbols)
    return isinstance(value, bool) if node.kind == "boolean" else node.kind == "null" and value is None


# -- aliases


class _Aliases:
    """What the aliases of a reader's schema call otherwise: names, and fields by their record's name."""

    def __init__(self, reader: Node, steps: Steps) -> None:
        self.names: dict[str, str] = {}
        self.fields: dict[str, dict[str, str]] = {}
        self._steps = steps
        self._seen: dict[int, Node] = {}
        self._collect(reader)
        self._seen = {}

    def _collect(self, node: Node) -> None:
        self._steps.spend()
        self.names |= dict.fromkeys(node.aliases, node.name)
        if node.kind in ("array", "map"):
            self._collect(node.items)
        for branch in node.types:
            self._collect(branch)
        if node.kind != "record" or id(node) in self._seen:
            return
        self._seen[id(node)] = node
        for field in node.known_fields().values():
            if field.aliases:
                self.fields.setdefault(node.name, {}).update(dict.fromkeys(field.aliases, field.name))
            self._collect(field.type)
        if node.name in self.fields:
            self.fields |= dict.fromkeys(node.aliases, self.fields[node.name])

    def apply(self, node: Node) -> Node:
        """Return a schema with these names. Raises Failed if they make it one that Avro does not know."""
        self._steps.spend()
        kind = node.kind
        if id(node) in self._seen:
            return self._seen[id(node)]
        if kind == "union":
            return union_of([self.apply(each) for each in node.types])
        if kind not in NAMED and kind not in ("array", "map"):
            return node
        new = Node(kind, self.names.get(node.name, node.name) if kind in NAMED else "")
        new.size, new.symbols, new.default, new.props = node.size, node.symbols, node.default, node.props
        if kind in ("array", "map"):
            new.items = self.apply(node.items)
        elif kind == "record":
            self._seen[id(node)] = new
            others = self.fields.get(new.name, {})
            old = node.known_fields().values()
            new.fields = record_fields([self._field(each, others) for each in old], new.name)
        return new

    def _field(self, field: Field, others: dict[str, str]) -> Field:
        new = Field(others.get(field.name, field.name), self.apply(field.type), field.default, field.order)
        check_default(new, self._steps)
        return new


def _renamed(writer: Node, reader: Node, steps: Steps) -> Node:
    """Return the writer's schema, with the reader's names for what the reader has aliases for."""
    if same(writer, reader, steps):
        return writer
    aliases = _Aliases(reader, steps)
    return aliases.apply(writer) if aliases.names or aliases.fields else writer
