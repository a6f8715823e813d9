"""JSON to Avro's binary encoding, by the topic's schema; and the check of JSON by such a schema.

What the Avro view shows is what is taken: bytes and fixed in base64, dates and times in ISO 8601 (or the
stored integer), decimals as digits. A union takes its branch's plain value where only one branch fits,
and Avro's own JSON encoding, ``{"string": "x"}``, wherever that is not itself a plain value of another
branch. A field that is left out takes its default, or null where its type allows that.

Among the number types of a union an integer prefers int, long, double, float, in this order; another
number prefers double. Nothing is rounded but to the precision of float and double.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any

from pulsarctl_wire.views.content import MAX_DEPTH, MAX_REASON, quoted
from pulsarctl_wire.views.encoding import iso
from pulsarctl_wire.views.encoding.avro_schema import DEFAULT, LOGICAL, Definition, branch, definitions, tag
from pulsarctl_wire.views.encoding.decimals import decimal_bytes, number, scale_of, unbase64
from pulsarctl_wire.views.encoding.texts import misfit, read_json
from pulsarctl_wire.wire import PulsarApi_pb2

_BITS = {"int": 32, "long": 64}
_NO_NUMBERS = ("NaN", "Infinity", "-Infinity")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_RANKS = {"int": 0, "long": 1, "double": 2, "float": 3}
_LOGICAL_RANK = 4


def _times() -> dict[tuple[str, str], tuple[Callable[[str], int | None], str]]:
    """Logical types of int and long: what reads their texts, and an example."""
    times: dict[tuple[str, str], tuple[Callable[[str], int | None], str]] = {
        ("int", "date"): (iso.days, "2023-11-14"),
        ("int", "time-millis"): (partial(iso.time_of_day, unit=1_000_000), "22:13:20.125"),
        ("long", "time-micros"): (partial(iso.time_of_day, unit=1_000), "22:13:20.000125"),
    }
    for unit, nanos in (("millis", 1_000_000), ("micros", 1_000), ("nanos", 1)):
        years = ", from 1678 to 2261" if unit == "nanos" else ""  # what 64 bits hold
        example = f"2023-11-14T22:13:20.125, in whole {unit}{years}"
        times["long", f"timestamp-{unit}"] = (
            partial(iso.timestamp, unit=nanos),
            example.replace(",", "Z,", 1),
        )
        times["long", f"local-timestamp-{unit}"] = (partial(iso.local_timestamp, unit=nanos), example)
    return times


_TIMES = _times()


class _Sink:
    """Keeps what the library writes."""

    def __init__(self) -> None:
        self.written = bytearray()

    def write(self, data: bytes) -> None:
        self.written += data


def encode_avro(text: bytes, schema: PulsarApi_pb2.Schema) -> bytes:
    """The JSON ``text`` in Avro's binary encoding; ValueError names the field that does not fit."""
    import fastavro

    definition = definitions(schema)
    datum = _Values(definition).value(definition.root, read_json(text, number), "", 0)
    sink: Any = _Sink()
    try:
        fastavro.schemaless_writer(sink, definition.root, datum)
    except Exception as error:  # some of its own, for what Avro forbids: odd symbols, unions in unions
        why = quoted(error, MAX_REASON)
        raise ValueError(f"nothing can be written by this Avro schema: {why}; correct the schema") from None
    return bytes(sink.written)


def check_json(text: bytes, schema: PulsarApi_pb2.Schema) -> None:
    """ValueError when ``text`` is no JSON or does not fit the schema's definition; it names the field.

    How JSON writes bytes and logical types is the application's choice, and not judged.
    """
    definition = definitions(schema)
    _JsonValues(definition).value(definition.root, read_json(text, number), "", 0)


class _Values:
    """Turns JSON values into what fastavro writes, each checked by its type.

    In all methods ``where`` is the path of the field, for errors; ``depth`` counts objects and lists.
    """

    def __init__(self, definition: Definition) -> None:
        self.definition = definition

    def value(self, schema: Any, value: Any, where: str, depth: int) -> Any:
        schema = self.definition.resolved(schema)
        if isinstance(schema, list):
            return self.union(schema, value, where, depth)
        described: dict[str, Any] = {"type": schema} if isinstance(schema, str) else schema
        kind = described["type"]
        if kind in _SCALARS:
            return getattr(self, _SCALARS[kind])(described, value, where)
        if depth >= MAX_DEPTH:
            raise ValueError(f"the value is nested deeper than {MAX_DEPTH} levels: nest it less")
        return getattr(self, _CONTAINERS[kind])(described, value, where, depth + 1)

    def null(self, schema: dict[str, Any], value: Any, where: str) -> None:
        if value is not None:
            raise misfit(where, value, "null")

    def boolean(self, schema: dict[str, Any], value: Any, where: str) -> bool:
        if not isinstance(value, bool):
            raise misfit(where, value, "true or false")
        return value

    def integer(self, schema: dict[str, Any], value: Any, where: str) -> Any:
        bits = _BITS[schema["type"]]
        wanted, stored = f"an integer of {bits} bits", value
        time = _TIMES.get((schema["type"], schema.get(LOGICAL, "")))
        if time is not None:
            read, example = time
            wanted = f"{example}, or the stored integer"
            stored = read(value) if isinstance(value, str) else value
        if not _is_integer(stored) or not -(1 << bits - 1) <= stored < 1 << bits - 1:
            raise misfit(where, value, wanted)
        return stored

    def real(self, schema: dict[str, Any], value: Any, where: str) -> float:
        if isinstance(value, str) and value in _NO_NUMBERS:
            return float(value)
        made = _finite(value, schema["type"])
        if made is None:
            raise misfit(where, value, f"a number within the range of {schema['type']}")
        return made

    def string(self, schema: dict[str, Any], value: Any, where: str) -> str:
        if not isinstance(value, str):
            raise misfit(where, value, "text in double quotes")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise misfit(where, value, "text without lone halves of surrogate pairs") from None
        return value

    def raw(self, schema: dict[str, Any], value: Any, where: str) -> bytes:
        is_decimal = schema.get(LOGICAL) == "decimal"
        made = decimal_bytes(schema, value) if is_decimal else unbase64(value)
        if made is None:
            raise misfit(where, value, _decimal(schema) if is_decimal else "bytes in base64")
        return made

    def fixed(self, schema: dict[str, Any], value: Any, where: str) -> bytes:
        size, logical = schema["size"], schema.get(LOGICAL)
        made: bytes | None
        if (size, logical) == (12, "duration"):
            wanted, made = "a duration such as P1M2DT3.004S", _text(value, iso.duration)
        elif (size, logical) == (16, "uuid"):
            wanted, made = "a UUID", _text(value, _uuid)
        elif logical == "decimal":
            wanted, made = (
                f"{_decimal(schema)}, that fits into {size} bytes",
                decimal_bytes(schema, value, size),
            )
        else:
            wanted, made = f"{size} bytes in base64", unbase64(value)
        if made is None or len(made) != size:
            raise misfit(where, value, wanted)
        return made

    def symbol(self, schema: dict[str, Any], value: Any, where: str) -> str:
        if not isinstance(value, str) or value not in schema["symbols"]:
            raise misfit(where, value, f"one of {_some(schema['symbols'])}")
        return value

    def array(self, schema: dict[str, Any], value: Any, where: str, depth: int) -> list[Any]:
        if not isinstance(value, list):
            raise misfit(where, value, "a list")
        return [
            self.value(schema["items"], item, f"{where}[{index}]", depth) for index, item in enumerate(value)
        ]

    def mapping(self, schema: dict[str, Any], value: Any, where: str, depth: int) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise misfit(where, value, "an object")
        return {
            self.string(schema, name, where): self.value(schema["values"], item, _path(where, name), depth)
            for name, item in value.items()
        }

    def record(self, schema: dict[str, Any], value: Any, where: str, depth: int) -> dict[str, Any]:
        names = [field["name"] for field in schema["fields"]]
        if not isinstance(value, dict):
            raise misfit(where, value, f"an object with {_some(names)}")
        for name in value:
            if name not in names:
                place = f" in {quoted(where, MAX_REASON)}" if where else ""
                raise ValueError(f"the schema has no field {quoted(name)}{place}: it has {_some(names)}")
        made = {}
        for field in schema["fields"]:
            name = field["name"]
            path = _path(where, name)
            if name in value:
                made[name] = self.value(field["type"], value[name], path, depth)
            else:
                made[name] = self.missing(field, path, depth)
        return made

    def missing(self, field: dict[str, Any], where: str, depth: int) -> Any:
        if DEFAULT in field:
            return _Defaults(self.definition).value(field["type"], field[DEFAULT], where, depth)
        if field["type"] == "null" or (isinstance(field["type"], list) and "null" in field["type"]):
            return self.value(field["type"], None, where, depth)
        raise ValueError(f"the field {quoted(where, MAX_REASON)} is missing and has no default: give it")

    def union(self, branches: list[Any], value: Any, where: str, depth: int) -> Any:
        if value is None and "null" in branches:
            return ("null", None)
        fitting, errors = self.fitting(branches, value, where, depth)
        if not fitting:
            raise errors[0] if len(errors) == 1 else self.no_branch(branches, value, where)
        best = min(rank for rank, _, _ in fitting)
        chosen = [(one, made) for rank, one, made in fitting if rank == best]
        if len(chosen) > 1:
            self.several([branch(one, self.definition) for one, _ in chosen], value, where)
        one, made = chosen[0]
        return (tag(one), made)

    def fitting(
        self, branches: list[Any], value: Any, where: str, depth: int
    ) -> tuple[list[tuple[int, Any, Any]], list[ValueError]]:
        """The branches that ``value`` fits, with rank and datum; and what is wrong with the others.

        If ``value`` names a branch, that one's error tells more than all others.
        """
        found: list[tuple[int, Any, Any]] = []
        errors: list[ValueError] = []
        named: list[ValueError] = []
        only = next(iter(value)) if isinstance(value, dict) and len(value) == 1 else None
        for one in branches:
            try:
                if one != "null":
                    found.append((_rank(one, value), one, self.value(one, value, where, depth)))
            except ValueError as error:
                errors.append(error)
            try:
                if only is not None and only in self.names(one):
                    found.append((0, one, self.value(one, value[only], where, depth)))
            except ValueError as error:
                named.append(error)
        return found, named or errors

    def names(self, one: Any) -> tuple[str, ...]:
        """What Avro's JSON encoding calls a branch; a name without its namespace will do."""
        full = branch(one, self.definition)
        return (full, full.rpartition(".")[2])

    def several(self, names: list[str], value: Any, where: str) -> None:
        raise misfit(
            where, value, f'its branch, as in {{"{quoted(names[0])[1:-1]}": ...}}, out of {_some(names)}'
        )

    def no_branch(self, branches: list[Any], value: Any, where: str) -> ValueError:
        return misfit(where, value, f"one of {_some([branch(one, self.definition) for one in branches])}")


class _Defaults(_Values):
    """Defaults are written in the schema: bytes as characters U+0000 to U+00FF, unions without a name."""

    def raw(self, schema: dict[str, Any], value: Any, where: str) -> bytes:
        try:
            return str.encode(value, "latin-1")
        except (TypeError, UnicodeEncodeError):
            raise misfit(where, value, "it, for the schema's default is not of its type") from None

    def fixed(self, schema: dict[str, Any], value: Any, where: str) -> bytes:
        made = self.raw(schema, value, where)
        if len(made) != schema["size"]:
            raise misfit(where, value, "it, for the schema's default is not of its size")
        return made

    def real(self, schema: dict[str, Any], value: Any, where: str) -> float:
        # The schema's JSON was read with floats: only the text's own numbers need their digits.
        return super().real(schema, Decimal(value) if isinstance(value, float) else value, where)

    def union(self, branches: list[Any], value: Any, where: str, depth: int) -> Any:
        if value is None and "null" in branches:
            return ("null", None)
        fitting, _ = self.fitting(branches, value, where, depth)
        if not fitting:
            raise self.no_branch(branches, value, where)
        _, one, made = fitting[0]
        return (tag(one), made)


class _JsonValues(_Values):
    """JSON stays what it is; only its structure has to be the schema's."""

    def integer(self, schema: dict[str, Any], value: Any, where: str) -> Any:
        return value if LOGICAL in schema and value is not None else super().integer(schema, value, where)

    def raw(self, schema: dict[str, Any], value: Any, where: str) -> bytes:
        if value is None or (LOGICAL not in schema and not isinstance(value, str)):
            raise misfit(where, value, "bytes as text")
        return b""

    fixed = raw

    def missing(self, field: dict[str, Any], where: str, depth: int) -> Any:
        return None if DEFAULT in field else super().missing(field, where, depth)

    def names(self, one: Any) -> tuple[str, ...]:
        return ()

    def several(self, names: list[str], value: Any, where: str) -> None:
        """Any branch will do."""


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _finite(value: object, kind: str) -> float | None:
    """``value`` as a float or double; None when it is no number, or out of range."""
    if not _is_integer(value) and not isinstance(value, Decimal):
        return None
    try:
        made = float(value)  # type: ignore[arg-type]
        struct.pack("<f" if kind == "float" else "<d", made)
    except OverflowError:
        return None
    return made if math.isfinite(made) else None


def _text(value: object, read: Callable[[str], bytes | None]) -> bytes | None:
    return read(value) if isinstance(value, str) else None


def _uuid(text: str) -> bytes | None:
    return bytes.fromhex(text.replace("-", "")) if _UUID.fullmatch(text) else None


def _decimal(schema: dict[str, Any]) -> str:
    scale, precision = scale_of(schema), schema.get("precision")
    if scale is None:
        return "bytes in base64"
    digits = f", {precision} digits in all" if isinstance(precision, int) else ""
    return f"a decimal with at most {scale} digits behind the point{digits}"


def _rank(one: Any, value: object) -> int:
    """How far a branch is from what a JSON number is meant as; 0 for all else, where branches compete."""
    kind = one if isinstance(one, str) else one["type"]
    if _is_integer(value) or isinstance(value, Decimal):
        return _LOGICAL_RANK if isinstance(one, dict) and LOGICAL in one else _RANKS.get(kind, 0)
    return 1 if kind == "float" else 0


def _path(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _some(names: list[str]) -> str:
    """Names for an error, as many as a line holds."""
    return quoted(", ".join(names), MAX_REASON)[1:-1]


_CONTAINERS = {"record": "record", "array": "array", "map": "mapping"}
_SCALARS = {
    **{"null": "null", "boolean": "boolean", "int": "integer", "long": "integer", "float": "real"},
    **{"double": "real", "string": "string", "bytes": "raw", "fixed": "fixed", "enum": "symbol"},
}
