"""Which schemas are compatible. Source: schema/SchemaRegistryServiceImpl, …CompatibilityCheck (4.0).

A change of type is compatible only under ALWAYS_COMPATIBLE, where everything is that is valid. Else:

    AVRO             Avro's Resolver, see avro_rules; a root that is a union is refused
    JSON             as AVRO; not if one is of the form before 2.2, unless the strategy is transitive
    KEY_VALUE        both schemas; their types may not change
    PROTOBUF_NATIVE  the root message's name
    all others       always compatible (PROTOBUF has no checker in the default settings), but under
                     ALWAYS_INCOMPATIBLE

    producers        every strategy as it says; but a schema that equals a version is accepted as that. To
                     find that out, it and the versions must be valid Avro, with valid defaults
    consumers        BACKWARD, FORWARD, FULL, FORWARD_TRANSITIVE: reads what the latest wrote; the others as
                     for producers, with all versions. The schema is not validated
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

from pulsarctl_wire.broker.schemas.avro import (
    Failed,
    Node,
    Parsed,
    Steps,
    TooMuch,
    Unparsable,
    parse,
    read_json,
    same,
)
from pulsarctl_wire.broker.schemas.avro_rules import can_read
from pulsarctl_wire.broker.schemas.kinds import (
    CLIENTS,
    STORED,
    Part,
    key_and_value,
    old_id,
    old_json,
    root_message,
)

_MAX_NODES: Final = 100_000  # of a schema
_MAX_STEPS: Final = 400_000  # of a check, with one version
_MORE_STEPS: Final = 20_000  # for each version
_AVRO: Final = ("AVRO", "JSON", "PROTOBUF")  # that are parsed as Avro
_TRANSITIVE: Final = ("BACKWARD_TRANSITIVE", "FORWARD_TRANSITIVE", "FULL_TRANSITIVE")
_MAX_TEXT: Final = 8192
_CACHED: Final = 16 * 1024  # bytes: longer schemas are parsed every time


class Schema(NamedTuple):
    """A schema: `type` is Schema.Type's number."""

    type: int
    data: bytes
    properties: dict[str, str]


Kind = Literal["incompatible", "invalid", "failed", "thrown"]


class Refusal(NamedTuple):
    """Why a schema is refused.

    "incompatible" and "invalid" are the error IncompatibleSchema, "failed" and "thrown" are UnknownError.
    But the broker lets SUBSCRIBE succeed if the schema that it would register is "invalid", without any; and
    it never answers a PRODUCER with one that is "thrown".
    """

    kind: Kind
    text: str


class _Refused(Exception):
    """The text says why two schemas are incompatible."""


class _Invalid(Exception):
    """The text says why a schema is invalid."""


def incompatible(versions: Sequence[Schema], schema: Schema, strategy: str, *, consumer: bool = False) -> str:
    """Why a new schema is not compatible with the versions before it, the oldest first; "" if it is."""
    found = refusal(versions, schema, strategy, consumer=consumer)
    return found.text if found else ""


def refusal(
    versions: Sequence[Schema], schema: Schema, strategy: str, *, consumer: bool = False
) -> Refusal | None:
    """Why the broker refuses a schema, after the versions before it, the oldest first; None if it does not.

    A consumer of a topic that is in use without a schema is refused. If it is idle, its schema is registered:
    that is to be asked for as for a producer.
    """
    strategy = "FULL" if strategy == "UNDEFINED" else strategy
    try:
        check = _Check(strategy, len(versions))
        new, old = _part(schema), [_part(each) for each in versions]
        found = check.consumer(old, new) if consumer else check.producer(old, new)
    except (TooMuch, RecursionError):
        found = Refusal("incompatible", "The schema is too complex to be checked")
    if not found:
        return None
    text = found.text[:_MAX_TEXT].encode(errors="replace").decode()
    return Refusal(found.kind, text or found.kind)


def version_of(versions: Sequence[Schema], schema: Schema) -> int | None:
    """Return the index of the version with this schema; AVRO, JSON, PROTOBUF are compared as Avro."""
    try:
        return _Check("FULL", len(versions)).find([_part(each) for each in versions], _part(schema))
    except (Unparsable, Failed, TooMuch, RecursionError):
        return None


def _part(schema: Schema) -> Part:
    known = 0 <= schema.type < len(STORED)
    return Part(STORED[schema.type] if known else "AUTO_CONSUME", schema.data, schema.properties)


@lru_cache(128)
def _cached(data: bytes) -> Parsed:
    return parse(data, Steps(_MAX_NODES))


class _Check:
    """A check, by one strategy."""

    def __init__(self, strategy: str, versions: int) -> None:
        self._strategy = strategy
        self._steps = Steps(_MAX_STEPS + versions * _MORE_STEPS)
        self._known: dict[bytes, Parsed] = {}

    def producer(self, old: list[Part], new: Part) -> Refusal | None:
        try:
            self._validate(new)
        except _Invalid as error:
            return Refusal("invalid", str(error))
        except Failed as error:
            return Refusal("thrown", str(error))
        try:
            if not old or self.find(old, new) is not None:
                return None
        except (Unparsable, Failed) as error:
            return Refusal("failed", str(error))
        return self._with_all(old, new) if self._strategy in _TRANSITIVE else self._with_latest(old[-1], new)

    def consumer(self, old: list[Part], new: Part) -> Refusal | None:
        if self._strategy == "ALWAYS_COMPATIBLE":
            return None
        if not old:
            text = "Failed to add schema to an active topic with empty(BYTES) schema: new schema type "
            return Refusal("incompatible", text + new.kind)
        if self._strategy in ("BACKWARD", "FORWARD", "FORWARD_TRANSITIVE", "FULL"):
            self._strategy = "BACKWARD"
            return self._with_latest(old[-1], new)
        return self._with_all(old, new)

    def find(self, old: list[Part], new: Part) -> int | None:
        """Raise Unparsable, Failed."""
        if new.kind not in _AVRO:
            return next((at for at, it in enumerate(old) if (it.kind, it.data) == (new.kind, new.data)), None)
        node = self._with_good_defaults(new)
        for at, each in enumerate(old):
            if each.kind in _AVRO:
                other = self._with_good_defaults(each)
                if each.kind == new.kind and same(node, other, self._steps):
                    return at
        return None

    def _parsed(self, part: Part) -> Parsed:
        if part.is_null:
            raise Failed("java.lang.NullPointerException")
        if part.data not in self._known:
            short = len(part.data) <= _CACHED
            self._known[part.data] = _cached(part.data) if short else parse(part.data, Steps(_MAX_NODES))
        return self._known[part.data]

    def _with_good_defaults(self, part: Part) -> Node:
        found = self._parsed(part)
        if found.bad_default:
            raise Failed(found.bad_default)
        return found.node

    def _with_latest(self, old: Part, new: Part) -> Refusal | None:
        if self._strategy == "ALWAYS_COMPATIBLE":
            return None
        if old.kind != new.kind:
            return _changed(old, new)
        if old.data == new.data:
            return None
        try:
            if new.kind == "JSON":
                self._json(old, new)
            else:
                self._parts([old], new)
        except _Refused as error:
            return Refusal("incompatible", str(error))
        except Failed as error:
            return Refusal("failed", str(error))
        return None

    def _with_all(self, old: list[Part], new: Part) -> Refusal | None:
        for each in old:
            if each.kind != new.kind:
                return _changed(each, new)
        try:
            self._parts(old, new)
        except (_Refused, Failed) as error:
            return Refusal("incompatible", str(error))
        return None

    def _parts(self, old: list[Part], new: Part) -> None:
        if new.kind in ("AVRO", "JSON"):
            self._avro(old, new)
        elif new.kind == "KEY_VALUE":
            self._key_value(old, new)
        elif new.kind == "PROTOBUF_NATIVE":
            for each in old:
                self._protobuf(each, new)
        elif self._strategy == "ALWAYS_INCOMPATIBLE":
            raise _Refused("Schema compatibility strategy is ALWAYS_INCOMPATIBLE")

    def _avro(self, old: list[Part], new: Part) -> None:
        try:
            nodes = [self._parsed(each).node for each in old]
            node = self._parsed(new).node
        except Unparsable as error:
            raise _Refused(f"org.apache.avro.SchemaParseException: {error}") from None
        forward, backward = (self._strategy.startswith((way, "FULL")) for way in ("FORWARD", "BACKWARD"))
        for each, other in zip(reversed(nodes), reversed(old), strict=True):
            if forward and not can_read(node, each, self._steps):
                raise _Refused(self._unreadable(new, other))
            if backward and not can_read(each, node, self._steps):
                raise _Refused(self._unreadable(other, new))
            if not forward and not backward:
                raise _Refused(self._unreadable(new, new))

    def _unreadable(self, writer: Part, reader: Part) -> str:
        texts = [_shown(read_json(part.data)[0])[:2000] for part in (writer, reader)]
        return (
            f"Error during schema compatibility check with strategy {self._strategy}: "
            f"org.apache.avro.SchemaValidationException: Unable to read schema: \n{texts[0]}\n"
            f"using schema:\n{texts[1]}"
        )

    def _json(self, old: Part, new: Part) -> None:
        if self._is_avro(old) and self._is_avro(new):
            self._avro([old], new)
            return
        if not self._is_avro(old) and not _is_old_json(old):
            return  # whatever it is, it may be replaced
        if not self._is_avro(new) and not _is_old_json(new):
            raise _Refused("Unknown schema format")
        if self._is_avro(old) or self._is_avro(new):
            return
        first, second = old_id(old_json(old.data)), old_id(old_json(new.data))
        if first is None:
            raise Failed("JsonSchema.getId() is null")
        if first != second:
            texts = [part.data.decode(errors="replace")[:2000] for part in (old, new)]
            raise _Refused(f"Incompatible Schema from {texts[0]} + to {texts[1]}")

    def _key_value(self, old: list[Part], new: Part) -> None:
        key, value = key_and_value(new)
        pairs = [key_and_value(each) for each in old]
        for before in pairs:
            if (before[0].kind, before[1].kind) != (key.kind, value.kind):
                raise _Refused(
                    "Key schemas or Value schemas are different schema type, "
                    f"from key schema type is {before[0].kind} and to key schema is {key.kind}, "
                    f"from value schema is {before[1].kind} and to value schema is {value.kind}"
                )
        self._parts([before[0] for before in pairs], key)
        self._parts([before[1] for before in pairs], value)

    def _protobuf(self, old: Part, new: Part) -> None:
        names = root_message(old.data), root_message(new.data)
        if self._strategy == "ALWAYS_INCOMPATIBLE":
            raise _Refused("Unknown SchemaCompatibilityStrategy.")
        if names[0] != names[1]:
            raise _Refused("Protobuf root message isn't allow change!")

    def _is_avro(self, part: Part) -> bool:
        try:
            self._parsed(part)
        except Unparsable:
            return False
        return True

    def _validate(self, part: Part) -> None:
        """Raise _Invalid if a schema is not well-formed, and Failed where the broker does not expect it."""
        kind, data = part.kind, part.data
        if kind in CLIENTS:
            raise _Invalid(f"Schema {kind} is a client-side schema type")
        if kind in _AVRO:
            self._validate_avro(part)
        elif kind == "PROTOBUF_NATIVE":
            try:
                root_message(data)
            except Failed:
                raise _Invalid("deserialize ProtobufNative Schema failed") from None
        elif kind == "KEY_VALUE":
            for each in key_and_value(part):
                self._validate(each)
        elif kind == "STRING" and data not in (b"", b"null"):
            text = data.decode(errors="replace")[:2000]
            raise _Invalid(f"Invalid schema definition data for string schema : '{text}'")
        elif kind not in ("NONE", "BYTES", "STRING") and data:
            raise _Invalid(
                "Invalid schema definition data for primitive schemas :"
                f"length of schema data should be zero, but {len(data)} bytes is found"
            )

    def _validate_avro(self, part: Part) -> None:
        invalid = f"Invalid schema definition data for {part.kind} schema caused by "
        try:
            node = self._parsed(part).node
        except Unparsable as error:
            if part.kind != "JSON":
                raise _Invalid(f"{invalid}org.apache.avro.SchemaParseException: {error}") from None
            try:
                old_json(part.data)
            except ValueError as other:
                raise _Invalid(f"{invalid}{other}") from None
            return
        except Failed as error:
            raise _Invalid(f"{invalid}{error}") from None
        if part.kind == "AVRO" and node.kind == "union":
            raise _Invalid("Avro schema typed [UNION] is not supported")


def _changed(old: Part, new: Part) -> Refusal:
    text = f"Incompatible schema: exists schema type {old.kind}, new schema type {new.kind}"
    return Refusal("incompatible", text)


def _shown(value: Any, margin: str = "\n") -> str:
    """Return a schema in JSON, as Avro shows it."""
    inner = f"{margin}  "
    if isinstance(value, dict) and value:
        members = (f"{inner}{json.dumps(key)} : {_shown(each, inner)}" for key, each in value.items())
        return f"{{{','.join(members)}{margin}}}"
    if isinstance(value, list) and value:
        return f"[ {', '.join(_shown(each, margin) for each in value)} ]"
    return json.dumps(value, ensure_ascii=False)


def _is_old_json(part: Part) -> bool:
    try:
        old_json(part.data)
    except ValueError:
        return False
    return True
