"""Schemas as they are stored, and the kinds of reasons for which they are refused."""

from typing import Final, Literal, NamedTuple

TOPIC_TYPES: Final = (
    *("NONE", "STRING", "JSON", "PROTOBUF", "AVRO", "BOOLEAN", "INT8", "INT16", "INT32", "INT64", "FLOAT"),
    *("DOUBLE", "DATE", "TIME", "TIMESTAMP", "KEY_VALUE", "INSTANT", "LOCAL_DATE", "LOCAL_TIME"),
    *("LOCAL_DATE_TIME", "PROTOBUF_NATIVE"),
)
"""The broker's names of schema types; the index of each is its number in Schema.Type."""


class Schema(NamedTuple):
    """A schema: `type` is Schema.Type's number."""

    type: int
    data: bytes
    properties: dict[str, str]


Kind = Literal["incompatible", "invalid", "failed", "thrown"]
"""How a schema is refused.

"incompatible" and "invalid" are answered by IncompatibleSchema, "failed" and "thrown" by UnknownError. But a
SUBSCRIBE that would register an "invalid" schema succeeds, and registers none; and a PRODUCER with a "thrown"
one is never answered.
"""
