"""Compatibility of schemas. Sources: schema/SchemaRegistryServiceImpl, …CompatibilityCheck (4.0).

Under ALWAYS_COMPATIBLE, every valid schema is compatible, even one of another type. Under all other
strategies, the type must stay the same, and these are compared:

    AVRO             by Avro's Resolver, see avro.py; a root that is a union is refused
    JSON             as AVRO; but schemas in the form before 2.2 are not compared, and transitive
                     strategies refuse them
    KEY_VALUE        both schemas; their types may not change
    PROTOBUF_NATIVE  the root message's name
    all others       nothing (PROTOBUF has no checker in the default settings), but ALWAYS_INCOMPATIBLE
                     still refuses them

    producers        by the strategy; but a schema that equals a version is accepted as that version. AVRO,
                     JSON, PROTOBUF are compared as Avro: all must then be valid, with valid defaults
    consumers        BACKWARD, FORWARD, FULL, FORWARD_TRANSITIVE: must read data of the latest version; the
                     others as for producers, with all versions. The schema is not validated
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool

from pulsarctl_wire.broker.schemas.avro import JavaError, Parsed, Reading, Steps, TooComplex, parse
from pulsarctl_wire.broker.schemas.kinds import TOPIC_TYPES, Kind, Schema
from pulsarctl_wire.views.cache import schema_json
from pulsarctl_wire.views.encoding.protobuf import order_files

_MAX_STEPS: Final = 400_000  # of a check
_STEPS_PER_VERSION: Final = 20_000  # more for each version
_AVRO_TYPES: Final = ("AVRO", "JSON", "PROTOBUF")  # their schemas are parsed as Avro
_TRANSITIVE: Final = ("BACKWARD_TRANSITIVE", "FORWARD_TRANSITIVE", "FULL_TRANSITIVE")
_MAX_TEXT: Final = 8192  # characters of a reason
_MAX_CACHED_BYTES: Final = 16 * 1024  # longer schemas are parsed every time
_CLIENT_TYPES: Final = ("AUTO", "AUTO_CONSUME", "AUTO_PUBLISH")
"""Names of types that only clients use."""

_JSON_TYPES: Final = ("any", "array", "boolean", "integer", "null", "number", "object", "string")


class Incompatibility(NamedTuple):
    """The reason why a schema is refused."""

    kind: Kind
    text: str


class _Incompatible(Exception):
    """Two schemas are incompatible; the text says why."""


class _Invalid(Exception):
    """A schema is invalid; the text says why."""


def explain_incompatibility(
    versions: Sequence[Schema], schema: Schema, strategy: str, *, consumer: bool = False
) -> str:
    """Return why a schema is incompatible with the versions before it, oldest first; "" if it is not."""
    incompatibility = find_incompatibility(versions, schema, strategy, consumer=consumer)
    return incompatibility.text if incompatibility else ""


def find_incompatibility(
    versions: Sequence[Schema], schema: Schema, strategy: str, *, consumer: bool = False
) -> Incompatibility | None:
    """Return why the broker refuses a schema after the versions before it, oldest first; None if not.

    With `consumer`, the schema is a consumer's, on a topic in use: without `versions`, it is refused, except
    under ALWAYS_COMPATIBLE. On an idle topic it would be registered; check it as a producer's then.
    """
    strategy = "FULL" if strategy == "UNDEFINED" else strategy
    try:
        check = _Check(strategy, len(versions))
        candidate, parts = _make_part(schema), [_make_part(version) for version in versions]
        incompatibility = (
            check.check_consumer(parts, candidate) if consumer else check.check_producer(parts, candidate)
        )
    except (TooComplex, RecursionError):
        incompatibility = Incompatibility("incompatible", "The schema is too complex to be checked")
    if not incompatibility:
        return None
    text = incompatibility.text[:_MAX_TEXT].encode(errors="replace").decode()
    return Incompatibility(incompatibility.kind, text or incompatibility.kind)


def find_version(versions: Sequence[Schema], schema: Schema) -> int | None:
    """Return the index of the version with this schema; AVRO, JSON, PROTOBUF are compared as Avro.

    None: there is none, or the schemas cannot be compared.
    """
    try:
        return _find([_make_part(version) for version in versions], _make_part(schema))
    except (ValueError, JavaError, TooComplex, RecursionError):
        return None


def _make_part(schema: Schema) -> SchemaPart:
    """Return a schema with its type's name; types that topics cannot have become AUTO_CONSUME."""
    is_known = 0 <= schema.type < len(TOPIC_TYPES)
    return SchemaPart(
        TOPIC_TYPES[schema.type] if is_known else "AUTO_CONSUME", schema.data, schema.properties
    )


_parse_cached = lru_cache(128)(parse)


def _parse(part: SchemaPart) -> Parsed:
    is_short = len(part.data) <= _MAX_CACHED_BYTES
    return (_parse_cached if is_short else parse)(part.data)


def _find(versions: list[SchemaPart], candidate: SchemaPart) -> int | None:
    """Return the index of the version that equals a schema, if any. Raises ValueError, JavaError."""
    is_candidate_avro = candidate.kind in _AVRO_TYPES
    key = _identify(candidate, is_candidate_avro)
    keys = [_identify(version, is_candidate_avro) for version in versions]
    return keys.index(key) if key in keys else None


def _identify(part: SchemaPart, is_candidate_avro: bool) -> tuple[str, str | bytes]:
    if not is_candidate_avro or part.kind not in _AVRO_TYPES:
        return part.kind, part.data
    parsed = _parse(part)
    if parsed.bad_default:
        raise JavaError(parsed.bad_default)
    return part.kind, parsed.outline


def _is_avro(part: SchemaPart) -> bool:
    try:
        _parse(part)
    except ValueError:
        return False
    return True


class _Check:
    """A check of a schema by one strategy, against `version_count` versions."""

    def __init__(self, strategy: str, version_count: int) -> None:
        self._strategy = strategy
        self._steps = Steps(_MAX_STEPS + version_count * _STEPS_PER_VERSION)

    def check_producer(self, versions: list[SchemaPart], candidate: SchemaPart) -> Incompatibility | None:
        try:
            self._validate(candidate)
        except _Invalid as error:
            return Incompatibility("invalid", str(error))
        except JavaError as error:
            return Incompatibility("thrown", str(error))
        try:
            if not versions or _find(versions, candidate) is not None:
                return None
        except (ValueError, JavaError) as error:
            return Incompatibility("failed", str(error))
        return (
            self._check_all(versions, candidate)
            if self._strategy in _TRANSITIVE
            else self._check_latest(versions[-1], candidate)
        )

    def check_consumer(self, versions: list[SchemaPart], candidate: SchemaPart) -> Incompatibility | None:
        if self._strategy == "ALWAYS_COMPATIBLE":
            return None
        if not versions:
            text = "Failed to add schema to an active topic with empty(BYTES) schema: new schema type "
            return Incompatibility("incompatible", text + candidate.kind)
        if self._strategy in ("BACKWARD", "FORWARD", "FORWARD_TRANSITIVE", "FULL"):
            self._strategy = "BACKWARD"
            return self._check_latest(versions[-1], candidate)
        return self._check_all(versions, candidate)

    def _check_latest(self, latest: SchemaPart, candidate: SchemaPart) -> Incompatibility | None:
        if self._strategy == "ALWAYS_COMPATIBLE":
            return None
        if latest.kind != candidate.kind:
            return _refuse_type_change(latest, candidate)
        if latest.data == candidate.data:
            return None
        try:
            if candidate.kind == "JSON":
                self._check_json(latest, candidate)
            else:
                self._check_parts([latest], candidate)
        except _Incompatible as error:
            return Incompatibility("incompatible", str(error))
        except JavaError as error:
            return Incompatibility("failed", str(error))
        return None

    def _check_all(self, versions: list[SchemaPart], candidate: SchemaPart) -> Incompatibility | None:
        for version in versions:
            if version.kind != candidate.kind:
                return _refuse_type_change(version, candidate)
        try:
            self._check_parts(versions, candidate)
        except (_Incompatible, JavaError) as error:
            return Incompatibility("incompatible", str(error))
        return None

    def _check_parts(self, versions: list[SchemaPart], candidate: SchemaPart) -> None:
        if candidate.kind in ("AVRO", "JSON"):
            self._check_avro(versions, candidate)
        elif candidate.kind == "KEY_VALUE":
            self._check_key_value(versions, candidate)
        elif candidate.kind == "PROTOBUF_NATIVE":
            for version in versions:
                self._check_protobuf(version, candidate)
        elif self._strategy == "ALWAYS_INCOMPATIBLE":
            raise _Incompatible("Schema compatibility strategy is ALWAYS_INCOMPATIBLE")

    def _check_avro(self, versions: list[SchemaPart], candidate: SchemaPart) -> None:
        try:
            version_types = [_parse(version).type for version in versions]
            candidate_type = _parse(candidate).type
        except ValueError as error:
            raise _Incompatible(f"org.apache.avro.SchemaParseException: {error}") from None
        is_forward, is_backward = (
            self._strategy.startswith((direction, "FULL")) for direction in ("FORWARD", "BACKWARD")
        )
        reading = Reading(self._steps)
        for version_type, version in zip(reversed(version_types), reversed(versions), strict=True):
            if is_forward and not reading.can_read(candidate_type, version_type):
                raise _Incompatible(self._unreadable_text(candidate, version))
            if is_backward and not reading.can_read(version_type, candidate_type):
                raise _Incompatible(self._unreadable_text(version, candidate))
            if not is_forward and not is_backward:
                raise _Incompatible(self._unreadable_text(candidate, candidate))

    def _unreadable_text(self, writer: SchemaPart, reader: SchemaPart) -> str:
        texts = [_format(schema_json(part.data))[:2000] for part in (writer, reader)]
        return (
            f"Error during schema compatibility check with strategy {self._strategy}: "
            f"org.apache.avro.SchemaValidationException: Unable to read schema: \n{texts[0]}\n"
            f"using schema:\n{texts[1]}"
        )

    def _check_json(self, version: SchemaPart, candidate: SchemaPart) -> None:
        if _is_avro(version) and _is_avro(candidate):
            self._check_avro([version], candidate)
        elif (_is_avro(version) or is_old_json(version.data)) and not (
            _is_avro(candidate) or is_old_json(candidate.data)
        ):  # a version in neither form may be followed by anything
            raise _Incompatible("Unknown schema format")

    def _check_key_value(self, versions: list[SchemaPart], candidate: SchemaPart) -> None:
        key, value = split_key_value(candidate)
        pairs = [split_key_value(version) for version in versions]
        for pair in pairs:
            if (pair[0].kind, pair[1].kind) != (key.kind, value.kind):
                raise _Incompatible(
                    "Key schemas or Value schemas are different schema type, "
                    f"from key schema type is {pair[0].kind} and to key schema is {key.kind}, "
                    f"from value schema is {pair[1].kind} and to value schema is {value.kind}"
                )
        self._check_parts([pair[0] for pair in pairs], key)
        self._check_parts([pair[1] for pair in pairs], value)

    def _check_protobuf(self, version: SchemaPart, candidate: SchemaPart) -> None:
        names = find_root_message(version.data), find_root_message(candidate.data)
        if self._strategy == "ALWAYS_INCOMPATIBLE":
            raise _Incompatible("Unknown SchemaCompatibilityStrategy.")
        if names[0] != names[1]:
            raise _Incompatible("Protobuf root message isn't allow change!")

    def _validate(self, part: SchemaPart) -> None:
        """Raise _Invalid if a schema is malformed, JavaError if the real broker fails to check it."""
        kind, data = part.kind, part.data
        if kind in _CLIENT_TYPES:
            raise _Invalid(f"Schema {kind} is a client-side schema type")
        if kind in _AVRO_TYPES:
            self._validate_avro(part)
        elif kind == "PROTOBUF_NATIVE":
            try:
                find_root_message(data)
            except JavaError:
                raise _Invalid("deserialize ProtobufNative Schema failed") from None
        elif kind == "KEY_VALUE":
            for inner in split_key_value(part):
                self._validate(inner)
        elif kind == "STRING" and data not in (b"", b"null"):
            text = data.decode(errors="replace")[:2000]
            raise _Invalid(f"Invalid schema definition data for string schema : '{text}'")
        elif kind not in ("NONE", "BYTES", "STRING") and data:
            raise _Invalid(
                "Invalid schema definition data for primitive schemas :"
                f"length of schema data should be zero, but {len(data)} bytes is found"
            )

    def _validate_avro(self, part: SchemaPart) -> None:
        prefix = f"Invalid schema definition data for {part.kind} schema caused by "
        try:
            root_type = _parse(part).type
        except ValueError as error:
            if part.kind == "JSON" and is_old_json(part.data):
                return
            raise _Invalid(f"{prefix}org.apache.avro.SchemaParseException: {error}") from None
        if part.kind == "AVRO" and root_type["type"] == "union":
            raise _Invalid("Avro schema typed [UNION] is not supported")


def _refuse_type_change(version: SchemaPart, candidate: SchemaPart) -> Incompatibility:
    text = f"Incompatible schema: exists schema type {version.kind}, new schema type {candidate.kind}"
    return Incompatibility("incompatible", text)


def _format(value: Any, margin: str = "\n") -> str:
    """Format a schema as Avro shows it in JSON."""
    inner = f"{margin}  "
    if isinstance(value, dict) and value:
        members = (f"{inner}{json.dumps(key)} : {_format(item, inner)}" for key, item in value.items())
        return f"{{{','.join(members)}{margin}}}"
    if isinstance(value, list) and value:
        return f"[ {', '.join(_format(item, margin) for item in value)} ]"
    return json.dumps(value, ensure_ascii=False)


# -- the contents of schemas other than Avro's; JavaError is what the real broker does not expect


class SchemaPart(NamedTuple):
    """A schema, or the key or value part of a KEY_VALUE schema; `kind` is the broker's name of its type."""

    kind: str
    data: bytes
    properties: dict[str, str]


def split_key_value(part: SchemaPart) -> tuple[SchemaPart, SchemaPart]:
    """Return the key and value schemas of a KEY_VALUE schema. Raises JavaError.

    Its data has the size of the key schema (4 bytes), the key schema, and the value schema likewise.
    """
    parts: list[SchemaPart] = []
    rest = part.data
    for role in ("key", "value"):
        size = int.from_bytes(rest[:4], "big", signed=True)
        if not -1 <= size <= len(rest) - 4:
            raise JavaError("java.nio.BufferUnderflowException")
        kind = part.properties.get(f"{role}.schema.type", "BYTES")
        if kind not in TOPIC_TYPES and kind != "BYTES" and kind not in _CLIENT_TYPES:
            raise JavaError(f"No enum constant org.apache.pulsar.common.schema.SchemaType.{kind[:100]}")
        end = 4 + max(size, 0)  # -1: null
        parts.append(
            SchemaPart(kind, rest[4:end], _properties(part.properties.get(f"{role}.schema.properties")))
        )
        rest = rest[end:]
    return parts[0], parts[1]


def _properties(text: str | None) -> dict[str, str]:
    try:
        value = schema_json(text or "{}")
    except ValueError as error:
        raise JavaError(f"com.google.gson.JsonSyntaxException: {error}") from None
    if not isinstance(value, dict | None):
        raise JavaError("com.google.gson.JsonSyntaxException: Not a JSON Object")
    return {key: item if isinstance(item, str) else json.dumps(item) for key, item in (value or {}).items()}


def is_old_json(data: bytes) -> bool:
    """Return whether a schema has the form of JSON schemas before Pulsar 2.2."""
    try:
        value = schema_json(data)
    except ValueError:
        return False
    return value is None or (isinstance(value, dict) and value.get("type") in _JSON_TYPES)


def find_root_message(data: bytes) -> str:
    """Return the full name of the root message of a PROTOBUF_NATIVE schema. Raises JavaError."""
    try:
        definition = schema_json(data)
        files = FileDescriptorSet.FromString(b64decode(definition["fileDescriptorSet"], validate=True))
        pool = DescriptorPool()
        for file in order_files(files):
            pool.AddSerializedFile(file.SerializeToString())
        pool.FindFileByName(definition["rootFileDescriptorName"])
        return str(pool.FindMessageTypeByName(definition["rootMessageTypeName"]).full_name)
    except Exception as error:  # protobuf raises several kinds for a bad descriptor
        raise JavaError(f"deserialize ProtobufNative Schema failed: {type(error).__name__}") from None
