"""Compiled schemas, each made once: a capture shows thousands of payloads of one schema.

The cache is bounded by the bytes of the schemas it holds, not by their number, because what a
compiled schema occupies grows with its bytes. A refused schema is kept as well: it would
otherwise cost its full compilation again with every payload.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from pulsarctl_wire.views.content import reason
from pulsarctl_wire.wire import PulsarApi_pb2

MAX_SCHEMA = 1 << 20
"""Bytes of one schema, its properties included."""
MAX_KEPT = 2 * MAX_SCHEMA
"""Bytes of all schemas kept by one cache."""
OVERHEAD = 512
"""Bytes counted for an entry beyond its schema's, so that tiny schemas are bounded too."""

Compiled = TypeVar("Compiled")


class _Refused:
    """Stands in the cache for a schema that could not be compiled."""

    __slots__ = ("why",)

    def __init__(self, why: str) -> None:
        self.why = why


class SchemaCache(Generic[Compiled]):
    """The compiled forms of the schemas used last, found by the schemas' bytes; for one thread.

    A schema that comes again as the same object is known by that, for its bytes may be many and its messages
    small: nobody changes a schema once it is used.

    Args:
        compile_schema: makes the compiled form; whatever it raises refuses the schema.
    """

    def __init__(self, compile_schema: Callable[[PulsarApi_pb2.Schema], Compiled]) -> None:
        self._compile = compile_schema
        self._kept: OrderedDict[bytes, Compiled | _Refused] = OrderedDict()
        self._size = 0
        self._objects: dict[int, tuple[PulsarApi_pb2.Schema, Compiled | _Refused]] = {}
        self._objects_size = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __call__(self, schema: PulsarApi_pb2.Schema) -> Compiled:
        """The compiled form of ``schema``; ValueError says why there is none."""
        known = self._objects.get(id(schema))
        found = self._find(schema) if known is None else known[1]
        if isinstance(found, _Refused):
            raise ValueError(found.why)
        return found

    def _find(self, schema: PulsarApi_pb2.Schema) -> Compiled | _Refused:
        # "Partial": a schema made by hand may lack the fields that the wire requires.
        key = schema.SerializePartialToString()
        found = self._kept.get(key)
        if found is None:
            found = self._add(key, schema)
        else:
            self._kept.move_to_end(key)
        size = len(key) + OVERHEAD
        if self._objects_size + size > MAX_KEPT:
            self._forget_objects()
        self._objects[id(schema)] = schema, found  # kept, so that no other object has its id
        self._objects_size += size
        return found

    def _forget_objects(self) -> None:
        self._objects.clear()
        self._objects_size = 0

    def _add(self, key: bytes, schema: PulsarApi_pb2.Schema) -> Compiled | _Refused:
        if len(key) > MAX_SCHEMA:
            return _Refused(f"the schema has {len(key)} bytes, more than {MAX_SCHEMA}")
        made: Compiled | _Refused
        try:
            made = self._compile(schema)
        except Exception as error:  # hostile schemas find ways to fail that no list foresees
            made = _Refused(reason(error))
        self._kept[key] = made
        self._size += len(key) + OVERHEAD
        while self._size > MAX_KEPT:
            oldest, _ = self._kept.popitem(last=False)
            self._size -= len(oldest) + OVERHEAD
            self._forget_objects()
        return made


def schema_json(text: bytes | str, what: str = "the schema") -> Any:
    """The JSON in a schema; ValueError, with ``what`` it should have been, when it is none.

    orjson also refuses deep nesting, lone surrogates and integers of many digits.
    """
    import orjson  # takes longer to import than all views together

    try:
        return orjson.loads(text)
    except ValueError as error:
        raise ValueError(f"{what} is no JSON: {error}") from None
