"""The cache of compiled schemas: one compilation each, bounded by bytes, refusals included."""

from __future__ import annotations

import pytest
from view_samples import schema

from pulsarctl_wire.views.cache import MAX_CACHED, MAX_SCHEMA, SchemaCache
from pulsarctl_wire.wire.PulsarApi_pb2 import Schema


class Compile:
    """Counts compilations; refuses the schema named "bad"."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __call__(self, given: Schema) -> str:
        self.calls.append(given.name)
        if given.name == "bad":
            raise ValueError("it is bad")
        return given.name.upper()


def named(name: str, size: int = 0) -> Schema:
    made = schema("Avro", b"x" * size)
    made.name = name
    return made


def test_each_schema_is_compiled_once() -> None:
    compile_schema = Compile()
    cache = SchemaCache(compile_schema)
    assert [cache(named("a")), cache(named("b")), cache(named("a"))] == ["A", "B", "A"]
    assert compile_schema.calls == ["a", "b"]


def test_a_schema_that_comes_again_is_not_looked_at() -> None:
    """A batch has many messages and one schema, which may be large."""

    cache = SchemaCache(Compile())
    given = named("a", MAX_SCHEMA // 2)
    cache(given)
    given.schema_data = b"never looked at"
    assert cache(given) == "A"
    for number in range(10):  # until it is forgotten
        cache(named(str(number), MAX_SCHEMA // 2))
    given.name = "b"
    assert cache(given) == "B"


def test_a_refusal_is_kept_too() -> None:
    compile_schema = Compile()
    cache = SchemaCache(compile_schema)
    for _ in range(3):
        with pytest.raises(ValueError, match="it is bad"):
            cache(named("bad"))
    assert compile_schema.calls == ["bad"]


def test_the_schema_unused_for_longest_goes_first() -> None:
    compile_schema = Compile()
    cache = SchemaCache(compile_schema)
    half = MAX_CACHED // 2 - 2000
    cache(named("a", half))
    cache(named("b", half))
    cache(named("a", half))
    cache(named("c", half))
    assert len(cache) == 2
    cache(named("a", half))
    assert compile_schema.calls == ["a", "b", "c"]
    cache(named("b", half))
    assert compile_schema.calls == ["a", "b", "c", "b"]


def test_tiny_schemas_are_bounded_in_number() -> None:
    cache = SchemaCache(Compile())
    for number in range(10_000):
        cache(named(str(number)))
    assert len(cache) < MAX_CACHED // 512


def test_a_huge_schema_is_refused_uncompiled() -> None:
    compile_schema = Compile()
    cache = SchemaCache(compile_schema)
    with pytest.raises(ValueError, match=f"more than {MAX_SCHEMA}"):
        cache(named("huge", MAX_SCHEMA + 1))
    assert compile_schema.calls == []
    assert len(cache) == 0


def test_schemas_without_required_fields_have_a_key() -> None:
    assert SchemaCache(Compile())(Schema()) == ""
