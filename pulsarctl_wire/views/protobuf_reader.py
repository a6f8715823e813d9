"""Reading Protobuf's wire format, within limits (protobuf.dev, "Encoding").

    field     varint tag = number << 3 | wire type, then by wire type:
    0 varint  1 eight bytes  2 varint size, bytes  3 fields up to a tag 4 of the same number  5 four bytes

Messages are not parsed by google.protobuf, because their classes would come from the same
untrusted hands: upb sets aside room for every declared field of every message, so that 200 kB of
empty messages of a type with 7,000 fields take 5 GB. Here a message costs what it holds, and no
more than MAX_VALUES fields are read.

Fields that the schema does not know, or knows with another wire type, are kept: by number, as
integers, as text, as {"base64": ...} or as an object, whatever the wire type and bytes allow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from pulsarctl_wire.views.content import Json, name_cost
from pulsarctl_wire.views.cursor import Cursor
from pulsarctl_wire.views.values import base64_text, plain_text

VARINT, EIGHT, SIZED, START_GROUP, END_GROUP, FOUR = range(6)


class Reader(Cursor):
    """Reads messages off a payload."""

    __slots__ = ()

    def sized(self, end: int) -> bytes:
        """A varint size and that many bytes."""
        return self.take(self.varint(end), end)

    def message(self, message: Message, end: int, into: dict[str, Json], group: int = 0) -> None:
        """Add the fields up to ``end``, or to the end of group number ``group``, to ``into``.

        A field that is there already is merged as Protobuf does: repeated ones grow, messages
        gain fields, others are replaced.
        """
        while self.at < end:
            if not self.spend():
                return
            start = self.at
            number, wire = divmod(self.varint(end), 8)
            if not number:
                raise ValueError(f"field number 0 at byte {start}")
            if wire == END_GROUP and number == group:
                return
            known = message.fields.get(number)
            if known is None or not known.add(self, wire, number, end, into):
                _gather(into, str(number), self.unknown(wire, number, end))
        if group:
            raise ValueError(f"group {group} does not end")

    def nested(self, message: Message, wire: int, number: int, end: int, into: dict[str, Json]) -> None:
        """Add a message's fields, sized or in a group, to ``into``; ValueError beyond MAX_DEPTH."""
        self.enter()
        if wire == START_GROUP:
            self.message(message, end, into, number)
        else:
            size = self.varint(end)
            if size > end - self.at:
                raise ValueError(f"{size} bytes wanted at byte {self.at}, {end - self.at} are left")
            self.message(message, self.at + size, into)
        self.leave()

    def unknown(self, wire: int, number: int, end: int) -> Json:
        """A value of which only the wire type is known."""
        if wire == VARINT:
            return self.varint(end)
        if wire in (EIGHT, FOUR):
            return int.from_bytes(self.take(8 if wire == EIGHT else 4, end), "little")
        if wire == SIZED:
            raw = self.sized(end)
            text = plain_text(raw)
            return {"base64": base64_text(raw)} if text is None else text
        if wire == START_GROUP:
            fields: dict[str, Json] = {}
            self.nested(NOTHING_KNOWN, wire, number, end, fields)
            return fields
        raise ValueError(f"wire type {wire} before byte {self.at}")


def _gather(into: dict[str, Json], name: str, value: Json) -> None:
    """Unknown fields may be repeated or not: the second value makes a list."""
    if name not in into:
        into[name] = value
        return
    there = into[name]
    if isinstance(there, list):
        there.append(value)
    else:
        into[name] = [there, value]


Read: TypeAlias = Callable[[Reader, int], Json]


@dataclass(slots=True)
class Message:
    """A message type.

    Attributes:
        fields: by number; filled in after the Message exists, since types refer to one another.
        is_map_entry: one pair of a map field: key is field 1, value is field 2.
    """

    fields: dict[int, Field] = field(default_factory=dict)
    is_map_entry: bool = False


@dataclass(frozen=True, slots=True)
class Field:
    """A known field.

    Attributes:
        name: as in the schema.
        repeated: whether its values make a list (or a map's pairs an object).
        message: its type when it is a message or a group.
        wire: a scalar's wire type.
        read: reads a scalar that ends before an index.
        default: what an absent scalar means in a map's pair.
    """

    name: str
    repeated: bool
    message: Message | None = None
    wire: int = VARINT
    read: Read = Reader.varint
    default: Json = 0

    def add(self, reader: Reader, wire: int, number: int, end: int, into: dict[str, Json]) -> bool:
        """Read the field into ``into``; False when its wire type is not this field's."""
        reader.spend(name_cost(self.name) - 1)
        if self.message is not None:
            if wire not in (SIZED, START_GROUP):
                return False
            self._add_message(self.message, reader, wire, number, end, into)
        elif wire == self.wire:
            value = self.read(reader, end)
            if self.repeated:
                self._list(into).append(value)
            else:
                into[self.name] = value
        elif wire == SIZED and self.repeated:
            self._add_packed(reader, end, into)
        else:
            return False
        return True

    def _add_message(
        self, message: Message, reader: Reader, wire: int, number: int, end: int, into: dict[str, Json]
    ) -> None:
        if message.is_map_entry:
            pair: dict[str, Json] = {}
            reader.nested(message, wire, number, end, pair)
            key, value = (_half(message, half, pair) for half in (1, 2))
            self._object(into)[str(key).lower() if isinstance(key, bool) else str(key)] = value
        elif self.repeated:
            fields: dict[str, Json] = {}
            self._list(into).append(fields)
            reader.nested(message, wire, number, end, fields)
        else:
            reader.nested(message, wire, number, end, self._object(into))

    def _add_packed(self, reader: Reader, end: int, into: dict[str, Json]) -> None:
        values = self._list(into)
        size = reader.varint(end)
        stop = reader.at + size
        if stop > end:
            raise ValueError(f"{size} bytes wanted at byte {reader.at}, {end - reader.at} are left")
        while reader.at < stop and reader.spend():
            values.append(self.read(reader, stop))

    def _list(self, into: dict[str, Json]) -> list[Json]:
        there = into.get(self.name)
        if not isinstance(there, list):
            there = into[self.name] = []
        return there

    def _object(self, into: dict[str, Json]) -> dict[str, Json]:
        there = into.get(self.name)
        if not isinstance(there, dict):
            there = into[self.name] = {}
        return there


def _half(entry: Message, number: int, pair: dict[str, Json]) -> Json:
    """A map entry's key or value; what was not sent has its type's default."""
    known = entry.fields[number]
    return pair.get(known.name, {} if known.message is not None else known.default)


NOTHING_KNOWN = Message()
"""The type of messages whose fields no schema names."""
