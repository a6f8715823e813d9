"""What goes into a view, what comes out, and the limits that every view keeps.

Payloads and schemas are untrusted. A few bytes can ask for very much (a block of 2^60 nulls, a
schema whose one long name is repeated by every item), so what a view builds is limited here by
counts, and not by how long the payload is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

from pulsarctl_wire.wire import PulsarApi_pb2

MAX_VALUES = 100_000
"""Values (scalars, items, fields) built from one payload."""
MAX_FRAME_VALUES = 500_000
"""Values built from all payloads of one frame: they are in memory together."""
MAX_DEPTH = 64
"""Lists and objects inside one another; orjson writes no more than 254."""
MAX_NAME = 256
"""Characters of a name that a schema makes every item repeat: field names and enum symbols."""
MAX_REASON = 160
"""Characters of an error's text in a note."""

ESCAPED_STEP = 8
"""Bytes of a text that is not UTF-8 that count as one value more."""
FAILED_COST = 8
"""Values that a payload counts as that its schema does not fit."""

NAME_STEP = 16
"""Characters of a schema's name that count as one value more, wherever it is repeated."""

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"


class Room:
    """How many values may still be built from payloads that share it: those of one frame; `most` at first."""

    __slots__ = ("most", "values")

    def __init__(self, values: int = MAX_FRAME_VALUES) -> None:
        self.most = self.values = values


@dataclass(slots=True)
class Content:
    """One message's payload and what is known about it.

    Attributes:
        payload: the application's bytes: decompressed, decrypted, out of its batch.
        schema: the schema seen for the topic, or given by the user; None when there is none.
        key: the message key's bytes with base64 undone, for KeyValue in SEPARATED encoding;
            None when the message has no key.
        room: what may be built from it.
    """

    payload: bytes
    schema: PulsarApi_pb2.Schema | None = None
    key: bytes | None = None
    room: Room = field(default_factory=Room)


class Shown(NamedTuple):
    """A payload made readable.

    Attributes:
        view: "text", "hex", "json", "avro", "protobuf", "keyvalue" or the schema's primitive type
            in lower case ("int64", "localdate"); inside a keyvalue also "null".
        value: what orjson can write: integers lie between -2^63 and 2^64-1, NaN and infinities
            are strings, bytes are base64 strings.
        note: one short sentence when something better was wanted or something was cut.
    """

    view: str
    value: Json
    note: str | None = None


class View(Protocol):
    """What each module in the VIEWS tuple offers."""

    def score(self, content: Content) -> float:
        """How well this view fits: 1 its schema asks for it, 0 not at all. Raises nothing."""

    def show(self, content: Content) -> Shown:
        """Show ``content``; raises ValueError (or what a hostile payload provokes) if it cannot."""


CUT = "Cut after"
"""What the note of a payload begins with that was not read to its end."""


def cut(left: int) -> str | None:
    """The note of a payload that had ``left`` values to go; None if it was read to its end."""
    return f"{CUT} {MAX_VALUES} values, or {MAX_FRAME_VALUES} of its frame." if left < 0 else None


def name_cost(name: str) -> int:
    """What a value under ``name`` counts as: one name of a schema may be repeated by every item."""
    return 1 + len(name) // NAME_STEP


def reason(error: Exception) -> str:
    """An error as a part of a note: one line, printable, at most MAX_REASON characters."""
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    text = str(error) if isinstance(error, ValueError) else type(error).__name__
    return quoted(text, MAX_REASON)[1:-1]


def quoted(name: object, limit: int = MAX_NAME // 4) -> str:
    """A name out of untrusted bytes, in quotes, cut at ``limit`` and safe on a terminal."""
    return ascii(str(name)[:limit])
