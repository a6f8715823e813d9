"""Whether one Avro schema can read data of another, as Pulsar's broker decides.

The broker does not use Avro's SchemaCompatibility, but looks for errors of Java's Resolver (1.11.4). That
differs from the specification: a record's name does not matter (outside of unions), nor do the symbols that
an enum loses. Source: Avro's ValidateMutualRead, Resolver, Schema.applyAliases. Schemas that contain
themselves always, of which no data exists, are no error here.
"""

from __future__ import annotations

from typing import Final

from pulsarctl_wire.broker.schemas.avro import JavaError, Steps, aliases_of, has_valid_default
from pulsarctl_wire.views.avro_schema import NAMED, Type

_PROMOTIONS: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


class Reading:
    """A check whether schemas can read others' data, in a limited number of steps."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._records: dict[tuple[int, int], bool] = {}  # by id: the schemas live longer

    def can_read(self, writer: Type, reader: Type) -> bool:
        """Return whether the reader can read the writer's data. Raises JavaError, TooComplex."""
        self._steps.spend()
        kind = writer["type"]
        if kind == "union":
            return all(self.can_read(branch, reader) for branch in writer["branches"])
        if reader["type"] == "union":
            return self._can_union_read(writer, reader["branches"])
        if kind != reader["type"]:
            return reader["type"] in _PROMOTIONS.get(kind, ())
        if kind == "record":
            return self._can_record_read(writer, reader)
        if kind in ("array", "map"):
            return self.can_read(writer["items"], reader["items"])
        is_alike = kind not in NAMED or _short(writer) == _short(reader) or self._is_alias(writer, reader)
        return is_alike and writer.get("size") == reader.get("size")

    def _can_record_read(self, writer: Type, reader: Type) -> bool:
        key = id(writer), id(reader)
        if key not in self._records:
            self._records[key] = True  # for records that contain themselves
            self._records[key] = self._can_fields_read(writer, reader)
        return self._records[key]

    def _can_fields_read(self, writer: Type, reader: Type) -> bool:
        self._steps.spend(len(writer["fields"]) + len(reader["fields"]))
        has_aliases = writer["name"] == reader["name"] or self._is_alias(writer, reader)
        written = {field["name"]: field for field in writer["fields"]}
        is_readable = True
        for field in reader["fields"]:
            names = [field["name"], *(field.get("aliases", ()) if has_aliases else ())]
            match = next((written[name] for name in names if name in written), None)
            if match is not None:
                is_readable &= self.can_read(match["type"], field["type"])
            elif "default" not in field:
                return False
            elif not has_valid_default(field, self._steps):
                raise JavaError(f"No default value for {field['name']}")
        return is_readable

    def _can_union_read(self, writer: Type, branches: list[Type]) -> bool:
        """Return whether a branch of this name can read, else any record, else one of a promoted type."""
        self._steps.spend(len(branches))
        kind = writer["type"]
        alike = [branch for branch in branches if branch["type"] == kind]
        for branch in alike:
            if kind not in NAMED or branch["name"] == writer["name"] or self._is_alias(writer, branch):
                return self.can_read(writer, branch)
        candidates = alike or [branch for branch in branches if branch["type"] in _PROMOTIONS.get(kind, ())]
        return any(self.can_read(writer, branch) for branch in candidates)

    def _is_alias(self, writer: Type, reader: Type) -> bool:
        aliases = aliases_of(reader)
        self._steps.spend(len(aliases))
        return writer["name"] in aliases


def _short(kind: Type) -> str:
    return str(kind["name"]).rpartition(".")[2]
