"""Which schemas are compatible. Source: schema/SchemaRegistryServiceImpl, AvroSchemaBasedCompatibilityCheck (4.0)."""

from typing import NamedTuple


class Schema(NamedTuple):
    """A schema: `type` is Schema.Type's number."""

    type: int
    data: bytes
    properties: dict[str, str]


def incompatible(versions: list[Schema], schema: Schema, strategy: str, *, consumer: bool = False) -> str:
    """Why a new schema is not compatible with the versions before it, the oldest first; "" if it is."""
    if strategy in ("ALWAYS_COMPATIBLE",) or not versions or consumer:
        return ""
    return "" if versions[-1].data == schema.data else f"Incompatible schema used with strategy {strategy}"
