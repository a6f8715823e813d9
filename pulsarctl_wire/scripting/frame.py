"""`Frame`: a frame as scripts see, change and make it, and `Link`: its connection."""

from __future__ import annotations

import struct
from typing import Any, Final

from crc32c import crc32c
from google.protobuf.message import EncodeError

from pulsarctl_wire.errors import LocalProtocolError
from pulsarctl_wire.wire.commands import BODIES, NUMBERS, TO_BROKER, build_command
from pulsarctl_wire.wire.frame import Connection, build_frame
from pulsarctl_wire.wire.frame import Frame as DecodedFrame
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, MessageMetadata

_U32: Final = struct.Struct(">I").pack
_IDS: Final = ("request_id", "producer_id", "consumer_id", "sequence_id")
"""Fields that an answer copies from its request, if both have them."""


class Link:
    """A client's connection. `number` counts from 0; `data` is for whatever the script wants to keep.

    `client` and `server` are "address:port". The server is empty until its address is known.
    """

    __slots__ = ("client", "data", "number", "server")

    def __init__(self, number: int) -> None:
        self.number = number
        self.client = self.server = ""
        self.data: dict[Any, Any] = {}

    def __repr__(self) -> str:
        return f"Link({self.number}, {self.client!r}, {self.server!r})"


class Drop:
    """The type of `DROP`, the result for a frame that does not go on."""

    def __repr__(self) -> str:
        return "DROP"


DROP: Final = Drop()


class Frame:
    """A frame on its way. Its sizes and its checksum are corrected when it goes on.

    link           its connection; None if it was made by `make`
    to_broker      which way it goes; if `on_frame` returns a frame that goes the other way, that is an answer
    command        name of its command: "SEND"
    topic, subscription    full name and name, if known from earlier frames; else None
    raw            its bytes as they came, or as it was made
    data           bytes to send in place of what the fields say: nothing in them is corrected
    delay          seconds until it goes on. Other frames of its connection overtake it. Answers go at once
    keeps_checksum whether the stored CRC32-C stays as it is, right or wrong

    `body` and `metadata` can be changed in place; `metadata` and `payload` can be set.
    """

    __slots__ = (
        *(
            "_base",
            "_decoded",
            "_metadata",
            "_notes",
            "_payload",
            "data",
            "delay",
            "keeps_checksum",
        ),
        *("link", "raw", "to_broker"),
    )

    def __init__(self, decoded: DecodedFrame, link: Link | None) -> None:
        self.link = link
        self.raw: bytes = decoded.raw
        self.to_broker = decoded.to_broker
        self.data: bytes | None = None
        self.delay = 0.0
        self.keeps_checksum = False
        self._decoded = decoded
        self._base: BaseCommand | None = None
        self._metadata: MessageMetadata | None = None
        self._payload: bytes | None = None
        self._notes: list[str] = []

    @classmethod
    def make(
        cls,
        command: str,
        /,
        *,
        to_broker: bool | None = None,
        metadata: MessageMetadata | None = None,
        payload: bytes = b"",
        **fields: Any,
    ) -> Frame:
        """Return a new frame: a command with these fields, and an entry if there is `metadata`.

        Enums may be given by name, sub-messages as dicts. `to_broker` is needed only for commands that both
        sides send, as PING. Raises LocalProtocolError if there is no such command or field, or if a required
        field is missing.
        """
        number = NUMBERS.get(command)
        if number is None:
            raise LocalProtocolError(f"{command}: no such command")
        way = TO_BROKER.get(number) if to_broker is None else to_broker
        if way is None:
            raise LocalProtocolError(f"{command}: both sides send it; give to_broker=True or False")
        base = build_command(command, **fields)
        raw = build_frame(base, metadata, payload)
        (decoded,) = FrameStream(Connection(-1), way, limit=len(raw)).feed(raw)
        assert isinstance(decoded, DecodedFrame)
        return cls(decoded, None)

    def answer(self, command: str, /, **fields: Any) -> Frame:
        """Return a frame that goes back in place of this one, with the ids of this one (see `_IDS`).

        Raises LocalProtocolError, as `make` does.
        """
        number = NUMBERS.get(command)
        if number is not None and self.body is not None:
            answer_fields = getattr(BaseCommand(), BODIES[number]).DESCRIPTOR.fields_by_name
            request_fields = self.body.DESCRIPTOR.fields_by_name
            names = [name for name in _IDS if name in answer_fields and name in request_fields]
            fields = {name: getattr(self.body, name) for name in names} | fields
        return Frame.make(command, to_broker=not self.to_broker, **fields)

    def copy(self) -> Frame:
        """Return a frame with the same content, which can be changed on its own."""
        other = Frame(self._decoded, self.link)
        other.to_broker, other.data, other.delay = self.to_broker, self.data, self.delay
        other.raw, other.keeps_checksum, other._payload = self.raw, self.keeps_checksum, self._payload
        for name in ("_base", "_metadata"):
            message = getattr(self, name)
            if message is not None:
                setattr(other, name, type(message).FromString(message.SerializePartialToString()))
        return other

    def note(self, text: str) -> None:
        """Show the user a line about this frame."""
        self._notes.append(text)

    def take_notes(self) -> list[str]:
        """Return the notes, and forget them."""
        notes, self._notes = self._notes, []
        return notes

    @property
    def command(self) -> str:
        """The name of its command, or UNKNOWN(99)."""
        return self._decoded.command

    @property
    def topic(self) -> str | None:
        """The full name of its topic, if known."""
        return self._decoded.topic

    @property
    def subscription(self) -> str | None:
        """The name of its subscription, if known."""
        return self._decoded.subscription

    @property
    def base(self) -> BaseCommand:
        """Its command as a protobuf message, with the fields that pwire does not know; it can be changed."""
        if self._base is None:
            self._base = BaseCommand()
            if self._decoded.base is not None:
                self._base.CopyFrom(self._decoded.base)
        return self._base

    @property
    def body(self) -> Any:
        """The sub-message of its command, as a protobuf message: CommandSend of a SEND; None without one."""
        name = BODIES.get(self._decoded.type)
        return getattr(self.base, name) if name is not None and self.base.HasField(name) else None  # type: ignore[arg-type]

    @property
    def metadata(self) -> MessageMetadata | None:
        """The metadata of a SEND or MESSAGE, as a protobuf message; None without one, or if it is damaged."""
        if self._metadata is None and self._decoded.metadata is not None:
            self._metadata = MessageMetadata()
            self._metadata.CopyFrom(self._decoded.metadata)
        return self._metadata

    @metadata.setter
    def metadata(self, metadata: MessageMetadata) -> None:
        self._metadata = metadata

    @property
    def payload(self) -> bytes:
        """The payload of a SEND or MESSAGE as on the wire: maybe a batch, compressed, encrypted, a chunk."""
        return self._decoded.payload if self._payload is None else self._payload

    @payload.setter
    def payload(self, payload: bytes) -> None:
        self._payload = bytes(payload)

    def encode(self) -> bytes:
        """Return the bytes that go on. Those of a frame that was not changed are the ones that came.

        Raises LocalProtocolError if a field that is required is missing, or if metadata or payload was set
        where there is no entry, or a damaged one.
        """
        if self.data is not None:
            return bytes(memoryview(self.data))
        decoded = self._decoded
        entry_start = 8 + decoded.command_size
        command, entry = self.raw[8:entry_start], self.raw[entry_start:]
        if self._base is not None and self._base != decoded.base:
            command = _serialize(self._base)
        is_same = self._metadata is None or self._metadata == decoded.metadata
        if not is_same or (self._payload is not None and self._payload != decoded.payload):
            entry = self._encode_entry()
        return b"".join((_U32(4 + len(command) + len(entry)), _U32(len(command)), command, entry))

    def _encode_entry(self) -> bytes:
        """Return all that follows the command: broker entry metadata, checksum, metadata, payload."""
        decoded, raw = self._decoded, self.raw
        parts = decoded.parts
        if parts.metadata == (0, 0):
            raise LocalProtocolError(f"{decoded.command} has no entry that can be changed; set `data`")
        start, stop = parts.metadata
        metadata = self._metadata
        head = raw[start:stop] if metadata is None or metadata == decoded.metadata else _serialize(metadata)
        entry = b"".join((_U32(len(head)), head, self.payload))
        prefix = raw[8 + decoded.command_size : start - 4]  # broker entry metadata, and the checksum
        if parts.checksum != (0, 0) and not self.keeps_checksum:
            prefix = prefix[:-4] + _U32(crc32c(entry))
        return prefix + entry


def _serialize(message: BaseCommand | MessageMetadata) -> bytes:
    try:
        return message.SerializeToString()
    except EncodeError as error:
        raise LocalProtocolError(f"the frame cannot be built: {error}") from None


Result = Frame | list[Frame] | Drop | None
"""The result of `on_frame`: a frame or several, which go on; `DROP`; None for the frame as it is now."""
