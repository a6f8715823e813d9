"""The input and output of views, and the limits that all views keep.

Payloads and schemas are untrusted. A few bytes can demand very much (a block of 2^60 nulls, or a
schema with one long name that every item repeats). So the number of values that a view builds is
limited here, whatever the size of the payload.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

from pulsarctl_wire.wire import PulsarApi_pb2

MAX_VALUES = 100_000
"""Maximum number of values (scalars, items, fields) built from one payload."""
MAX_FRAME_VALUES = 500_000
"""Maximum number of values built from all payloads of one frame, which are in memory at the same time."""
MAX_DEPTH = 64
"""The deepest nesting of lists and objects; orjson writes at most 254."""
MAX_NAME = 256
"""Characters of the longest name that items repeat: field names and enum symbols of a schema."""
MAX_REASON = 160
"""Maximum number of characters of an error's text in a note."""

ESCAPED_STEP = 8
"""How many bytes of a text that is not UTF-8 count as one more value."""
FAILED_COST = 8
"""How many values a payload that does not match its schema counts as."""

NAME_STEP = 16
"""How many characters of a schema's name count as one more value, each time the name is repeated."""

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"


class ValueBudget:
    """A limit shared by the payloads of one frame: `values` may still be built, of `limit` at first."""

    __slots__ = ("limit", "values")

    def __init__(self, values: int = MAX_FRAME_VALUES) -> None:
        self.limit = self.values = values


@dataclass(slots=True)
class Content:
    """One message's payload: the application's bytes, decompressed, not encrypted, taken from its batch.

    ``schema`` was seen for the topic, or given by the user. ``key`` is the message's key, not in base64, for
    KeyValue in SEPARATED encoding. ``budget`` limits what is built from it.
    """

    payload: bytes
    schema: PulsarApi_pb2.Schema | None = None
    key: bytes | None = None
    budget: ValueBudget = field(default_factory=ValueBudget)


class Shown(NamedTuple):
    """A payload in readable form.

    ``view`` is "text", "hex", "json", "avro", "protobuf", "keyvalue" or the schema's primitive type in lower
    case ("int64", "localdate"); inside a keyvalue also "null". ``value`` is something that orjson can write:
    integers from -2^63 to 2^64-1; NaN, infinities and bytes (base64) as strings. ``note`` is a short sentence
    if the schema could not be used, something was cut, bytes were left over, or a value is out of range.
    """

    view: str
    value: Json
    note: str | None = None


class View(Protocol):
    """The interface of each module or object in the VIEWS tuple."""

    def fits(self, schema: PulsarApi_pb2.Schema) -> bool:
        """Return whether this view is for payloads with this schema. Must not raise."""

    def show(self, content: Content) -> Shown:
        """Show ``content``, whose schema fits. May raise ValueError (or anything else) if it cannot."""


CUT = "Cut after"
"""The beginning of the note for a payload that was not read to its end."""


def cut_note(values_left: int) -> str | None:
    """Return the note for a payload, if a negative ``values_left`` says that it was cut; otherwise None."""
    return f"{CUT} {MAX_VALUES} values, or {MAX_FRAME_VALUES} of its frame." if values_left < 0 else None


def name_cost(name: str) -> int:
    """Return how many values a value called ``name`` counts as; every item may repeat a long name."""
    return 1 + len(name) // NAME_STEP


def reason(error: Exception) -> str:
    """Format an error as part of a note: one line, printable, cut at MAX_REASON characters."""
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    text = str(error) if isinstance(error, ValueError) else type(error).__name__
    return quote(text, MAX_REASON)[1:-1]


def quote(name: object, limit: int = MAX_NAME // 4) -> str:
    """Format a name from untrusted bytes: quoted, cut at ``limit`` characters, and safe on a terminal."""
    return ascii(str(name)[:limit])
