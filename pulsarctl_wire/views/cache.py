"""A cache of compiled schemas, as a capture may have thousands of payloads with the same schema.

The cache is bounded by the bytes of its schemas, not by their number, as the memory for a compiled
schema grows with the schema's size. Invalid schemas are cached as well: otherwise they would be
compiled again for every payload.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from pulsarctl_wire.views.content import reason
from pulsarctl_wire.wire import PulsarApi_pb2

MAX_SCHEMA = 1 << 20
"""Bytes of the largest schema, including its properties."""
MAX_CACHED = 2 * MAX_SCHEMA
"""Bytes of all schemas in one cache."""
OVERHEAD = 512
"""Bytes counted for each entry in addition to its schema, to bound the number of tiny schemas, too."""

Compiled = TypeVar("Compiled")


class SchemaCache(Generic[Compiled]):
    """The compiled forms of the schemas used last, by the schemas' bytes. Not thread-safe.

    If the same schema object is used again, it is found by its id, as serializing a large schema for each
    message is slow. So a schema must not be changed once it was used. If ``compile_schema`` raises anything,
    the schema is invalid.
    """

    def __init__(self, compile_schema: Callable[[PulsarApi_pb2.Schema], Compiled]) -> None:
        self._compile = compile_schema
        self._cached: OrderedDict[bytes, Compiled | ValueError] = OrderedDict()
        self._size = 0
        self._objects: dict[int, tuple[PulsarApi_pb2.Schema, Compiled | ValueError]] = {}
        self._objects_size = 0

    def __len__(self) -> int:
        return len(self._cached)

    def __call__(self, schema: PulsarApi_pb2.Schema) -> Compiled:
        """Return the compiled form of ``schema``; ValueError with the reason if it is invalid."""
        entry = self._objects.get(id(schema))
        compiled = self._find(schema) if entry is None else entry[1]
        if isinstance(compiled, ValueError):
            raise ValueError(*compiled.args)
        return compiled

    def _find(self, schema: PulsarApi_pb2.Schema) -> Compiled | ValueError:
        # "Partial": a schema that did not come from the wire may lack required fields.
        key = schema.SerializePartialToString()
        compiled = self._cached.get(key)
        if compiled is None:
            compiled = self._add(key, schema)
        else:
            self._cached.move_to_end(key)
        size = len(key) + OVERHEAD
        if self._objects_size + size > MAX_CACHED:
            self._forget_objects()
        self._objects[id(schema)] = schema, compiled  # with the object, so that its id is not reused
        self._objects_size += size
        return compiled

    def _forget_objects(self) -> None:
        self._objects.clear()
        self._objects_size = 0

    def _add(self, key: bytes, schema: PulsarApi_pb2.Schema) -> Compiled | ValueError:
        if len(key) > MAX_SCHEMA:
            return ValueError(f"the schema has {len(key)} bytes, more than {MAX_SCHEMA}")
        compiled: Compiled | ValueError
        try:
            compiled = self._compile(schema)
        except Exception as error:  # hostile schemas may cause any kind of error
            compiled = ValueError(reason(error))
        self._cached[key] = compiled
        self._size += len(key) + OVERHEAD
        while self._size > MAX_CACHED:
            oldest, _ = self._cached.popitem(last=False)
            self._size -= len(oldest) + OVERHEAD
            self._forget_objects()
        return compiled


def schema_json(text: bytes | str, title: str = "the schema") -> Any:
    """Parse the JSON in a schema. ValueError if it is invalid; ``title`` is what the error calls it.

    orjson also refuses deep nesting, lone surrogates and integers with too many digits.
    """
    import orjson  # importing it takes longer than importing all views

    try:
        return orjson.loads(text)
    except ValueError as error:
        raise ValueError(f"{title} is no JSON: {error}") from None
