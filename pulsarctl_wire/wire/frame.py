"""One frame: its parts, parsing it and building it.

Layout (sizes are big-endian and do not count their own four bytes):

    [TOTAL_SIZE 4][COMMAND_SIZE 4][BaseCommand]                      every command
    [0e02][size 4][BrokerEntryMetadata]                              MESSAGE, if the broker adds it
    [0e01][CRC32-C 4]                                                optional in both directions
    [METADATA_SIZE 4][MessageMetadata][payload up to the frame end]  SEND and MESSAGE

The CRC32-C covers METADATA_SIZE, metadata and payload, and nothing before them. Both magics are recognised
by their two bytes alone: without 0e01 those two bytes are the high half of METADATA_SIZE.
Source: Pulsar binary protocol specification, "Framing" and "Payload commands"; PIP-70 for 0e02.

A frame's bytes may be wrong in any way. What cannot be read is left out and noted in `Frame.notes`; nothing
here raises for bytes that were received. Only building a frame raises, if the frame would be invalid.
"""

import struct
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from crc32c import crc32c
from google.protobuf.message import DecodeError, EncodeError
from mypy_extensions import mypyc_attr

from pulsarctl_wire.errors import LocalProtocolError
from pulsarctl_wire.wire.commands import BODIES, command_name
from pulsarctl_wire.wire.encryption import Seal
from pulsarctl_wire.wire.fast_fields import Head, Ids, head_of, ids_of
from pulsarctl_wire.wire.fields import unknown_fields
from pulsarctl_wire.wire.fixed import u32_at
from pulsarctl_wire.wire.frame_layout import MAGIC_BROKER_ENTRY, MAGIC_CHECKSUM, FrameLayout, locate
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, BrokerEntryMetadata, MessageMetadata, Schema

MAX_MESSAGE_SIZE: Final = 5 * 1024 * 1024
"""Bytes a broker accepts in a message unless CONNECTED.max_message_size says otherwise."""

FRAME_PADDING: Final = 10 * 1024
"""Bytes by which a frame, including its length prefix, may be larger than the largest message."""

MAX_FRAME_SIZE: Final = MAX_MESSAGE_SIZE + FRAME_PADDING
"""Bytes of the largest legal frame, length prefix included, unless the broker announces another limit."""

PACKET_OFFSET_BITS: Final = 44
"""A packet's place is `source << PACKET_OFFSET_BITS | offset`: sources count from 0, offsets in bytes."""

PACKET_OFFSET_MASK: Final = (1 << PACKET_OFFSET_BITS) - 1
"""The bits of a place that are the offset."""

MAX_PARSED: Final = MAX_FRAME_SIZE
"""Bytes of the largest command or metadata that is parsed. Parsed, it may take 30 times as much memory."""

MAX_KEPT_FRAME: Final = 64 * 1024 * 1024
"""Bytes of the largest frame that is kept whole, whatever limit the broker announces."""

header_at: Final = struct.Struct(">II").unpack_from
"""TOTAL_SIZE and COMMAND_SIZE of the frame at an offset: `header_at(data, offset)`."""

_U32: Final = struct.Struct(">I")
_parse_command: Final = BaseCommand.FromString
_parse_metadata: Final = MessageMetadata.FromString


@mypyc_attr(allow_interpreted_subclasses=True)
class Connection:
    """A TCP connection, or what stands in for one (a log, a hex dump, a file of raw frames).

    `index` counts from 0 in order of appearance, as Wireshark's tcp.stream does. `client`, `server`, `broker`
    (whom the first frame asks a proxy for) and `listener` (of `pwire proxy`, to which the client connected)
    are "address:port", empty if unknown. `since`: time of the first packet (ns), or its place. `flipped`:
    the ends had been mistaken for each other. `tls`: the `TlsFacts` (capture/tls/facts.py); None: it is not
    TLS, or nobody looked. `calls`: requests over HTTP that wait for their answers.
    """

    __slots__ = ("broker", "calls", "client", "flipped", "index", "listener", "server", "since", "tls")

    def __init__(self, index: int, client: str = "", server: str = "", since: int | None = None) -> None:
        self.index = index
        self.client, self.server, self.broker, self.listener = client, server, "", ""
        self.flipped, self.since = False, since
        self.tls: Any = None
        self.calls: deque[HttpMessage] | None = None

    def __str__(self) -> str:
        return f"{self.client}-{self.server}" if self.client else str(self.index)


@mypyc_attr(allow_interpreted_subclasses=True)
class Frame:
    """A frame of the protocol, complete or cut, with what its connection's state knows about it.

    number        counts frames from 1 in order of capture; 0 until the state assigns it
    time_ns       when its last captured byte was captured, ns since the epoch; None if unknown
    start_ns      when its first captured byte was captured
    packet        number (from 1) of the packet that completed it; 0 where there are no packets
    packets       numbers of all packets that hold a part of it; empty if `packet` holds it all
    reported      if it waited for other bytes: when it was reported (ns since the epoch), and its place among
                  what was reported together, from 1; otherwise None
    connection    the `Connection` it was sent on
    to_broker     True from client to broker
    offset        offset of its first byte in its direction of the connection
    raw           its bytes, length prefix included; fewer than `size` when `partial`
    partial       its end was not captured, or is not kept as the frame is too large
    type, base    the command's type number and the parsed BaseCommand (-1 and None: the command is cut)
    ids           for a SEND, SEND_RECEIPT, MESSAGE or ACK: the numbers in its command
    checksum      "valid", "invalid", "absent"; None for commands without payload, or if cut
    metadata      MessageMetadata of SEND and MESSAGE; None if there is none or it does not parse
    head          the usual fields of the metadata; None if `metadata` is
    payload_at    where in `raw` the payload begins; 0 if there is none
    metadata_at   where in `raw` the metadata begins, if there is a payload
    broker_entry  whether the broker put its own metadata (PIP-70) in front of the entry
    topic, subscription   full topic name and subscription, if ids could be resolved; else None
    producer      name of the producer: for SEND from its metadata, for its answer that of the SEND
    sent          for an answer to a SEND: bytes of that SEND's frame, and messages in it
    request, request_offset   for an answer: number of the request's frame, and its `offset` (-1: unknown)
    latency_ns    for an answer: ns since its request or since `resend_of`
    resend_of     for a resent SEND, and for its answer: number of the first frame it was sent in
    request_type  for an answer: type number of that request's command; None if not known
    answer        for a request: number of the answer's frame, if already known
    joined        for the last chunk of a message: the payload of all its chunks, if they were seen
    seals         if `joined` is encrypted: for each chunk its seal, and its size in `joined` (bytes)
    schema        the topic's schema for the version that this message carries, if one was seen
    notes         what is odd about it, as texts
    findings      ids of the rules of the doctor whose findings this frame proves, if they were applied

    If `ids` or `head` can be read without parsing, the command and the metadata are parsed only when `base`
    or `metadata` is read.
    """

    __slots__ = (
        *("_base", "_head", "_ids", "_metadata", "answer", "broker_entry", "checksum", "connection"),
        *("findings", "joined", "latency_ns", "metadata_at", "notes", "number", "offset", "packet"),
        *("packets", "partial", "payload_at", "producer", "raw", "reported", "request", "request_offset"),
        *("request_type", "resend_of", "schema", "seals", "sent", "start_ns", "subscription", "time_ns"),
        *("to_broker", "topic", "type"),
    )

    def __init__(
        self,
        raw: bytes,
        base: BaseCommand | None,
        type_number: int,
        connection: Connection,
        to_broker: bool,
        offset: int = 0,
        time_ns: int | None = None,
        packet: int = 0,
    ) -> None:
        self.raw = raw
        self._base = base
        self._ids: Ids | None = None
        self.type = type_number
        self.connection = connection
        self.to_broker = to_broker
        self.offset = offset
        self.time_ns = self.start_ns = time_ns
        self.packet = packet
        self.packets: Sequence[int] = ()
        self.reported: tuple[int, int] | None = None
        self.number = self.metadata_at = self.payload_at = 0
        self.partial = self.broker_entry = False
        self.checksum: str | None = None
        self._metadata: MessageMetadata | None = None
        self._head: Head | None = None
        self.topic: str | None = None
        self.subscription: str | None = None
        self.producer: str | None = None
        self.sent: tuple[int, int] | None = None
        self.resend_of: int | None = None
        self.request: int | None = None
        self.request_offset = -1
        self.request_type: int | None = None
        self.answer: int | None = None
        self.latency_ns: int | None = None
        self.notes: Sequence[str] = ()
        self.findings: Sequence[str] = ()
        self.joined: bytes | None = None
        self.seals: Sequence[tuple[Seal | None, int]] = ()
        self.schema: Schema | None = None

    @property
    def has_command(self) -> bool:
        """Whether the command was captured as a whole."""
        return self._base is not None or self._ids is not None

    @property
    def base(self) -> BaseCommand | None:
        """The parsed command; None if it is cut."""
        if self._base is None and self._ids is not None:
            self._base = _parse_command(self.raw[8 : 8 + self.command_size])
        return self._base

    @base.setter
    def base(self, base: BaseCommand) -> None:
        self._base = base

    @property
    def ids(self) -> Ids:
        """The numbers of a SEND, SEND_RECEIPT, MESSAGE or ACK, whose command must not be cut."""
        if self._ids is None:
            assert self._base is not None
            self._ids = ids_of(self.type, self._base)
        return self._ids

    @ids.setter
    def ids(self, ids: Ids) -> None:
        self._ids = ids

    @property
    def metadata(self) -> MessageMetadata | None:
        """The parsed metadata."""
        if self._metadata is None and self._head is not None:
            self._metadata = _parse_metadata(self.raw[self.metadata_at : self.payload_at])
        return self._metadata

    @metadata.setter
    def metadata(self, metadata: MessageMetadata | None) -> None:
        self._metadata = metadata
        self._head = None

    @property
    def head(self) -> Head | None:
        """The usual part of the metadata."""
        if self._head is None and self._metadata is not None:
            self._head = head_of(self._metadata)
        return self._head

    @head.setter
    def head(self, head: Head | None) -> None:
        self._head = head

    @property
    def command(self) -> str:
        """The command's name: SEND, LOOKUP_RESPONSE, UNKNOWN(99); "?" if the command is cut."""
        return command_name(self.type) if self.has_command else "?"

    @property
    def body(self) -> Any:
        """The command's own sub-message (a protobuf message); None if it is missing."""
        name, base = BODIES.get(self.type), self.base
        if name is None or base is None or not base.HasField(name):  # type: ignore[arg-type]
            return None
        return getattr(base, name)

    @property
    def total_size(self) -> int:
        """TOTAL_SIZE: bytes of the frame without its length prefix."""
        return u32_at(self.raw, 0)

    @property
    def size(self) -> int:
        """Bytes of the frame on the wire, length prefix included."""
        return self.total_size + 4

    @property
    def command_size(self) -> int:
        """COMMAND_SIZE: bytes of the BaseCommand; 0 if the size was not captured."""
        return u32_at(self.raw, 4) if len(self.raw) >= 8 else 0

    @property
    def payload(self) -> bytes:
        """The entry's payload as sent; it may be a batch, compressed, encrypted or a chunk."""
        return self.raw[self.payload_at :] if self.payload_at else b""

    @property
    def parts(self) -> FrameLayout:
        """Where the parts of a payload frame are."""
        return locate(self.raw, 8 + self.command_size)

    @property
    def broker_entry_metadata(self) -> BrokerEntryMetadata | None:
        """What the broker put in front of the entry (PIP-70); None if nothing, or if it does not parse."""
        if not self.broker_entry:
            return None
        start, stop = self.parts.broker_entry
        try:
            return BrokerEntryMetadata.FromString(self.raw[start:stop])
        except DecodeError:
            return None

    @property
    def stored_checksum(self) -> bytes:
        """The magic and CRC32-C with which the entry of a SEND or MESSAGE begins; other bytes if absent."""
        pos = self.entry_at
        return self.raw[pos : pos + 6]

    @property
    def entry_at(self) -> int:
        """Where in `raw` the entry of a SEND or MESSAGE begins, without what a broker put in front of it."""
        pos = 8 + self.command_size
        if self.broker_entry:
            pos += 6 + int.from_bytes(self.raw[pos + 2 : pos + 6], "big")
        return pos

    def note(self, text: str) -> None:
        """Add a note about what is wrong."""
        self.notes = [*self.notes, text]

    def __repr__(self) -> str:
        arrow = "->" if self.to_broker else "<-"
        return f"<Frame {self.number} {arrow} {self.command} {len(self.raw)} bytes>"


@mypyc_attr(allow_interpreted_subclasses=True)
class Malformed:
    """A stretch of captured bytes that are not a frame.

    `size` is its length in bytes, `raw` its first bytes (`KEPT` at most), `reason` says what is wrong,
    `protocol` names another protocol ("TLS", "HTTP", …) if one was recognised.
    The other attributes are those of `Frame`.
    """

    __slots__ = (
        *("connection", "offset", "packet", "packets", "protocol"),
        *("raw", "reason", "reported", "size", "time_ns", "to_broker"),
    )

    KEPT: Final = 4096

    def __init__(
        self,
        reason: str,
        raw: bytes,
        size: int,
        connection: Connection,
        to_broker: bool,
        offset: int = 0,
        time_ns: int | None = None,
        packet: int = 0,
    ) -> None:
        self.reason = reason
        self.raw = raw[: self.KEPT]
        self.size = size
        self.connection = connection
        self.to_broker = to_broker
        self.offset = offset
        self.time_ns = time_ns
        self.packet = packet
        self.packets: Sequence[int] = ()
        self.reported: tuple[int, int] | None = None
        self.protocol = ""

    def __repr__(self) -> str:
        return f"<Malformed {self.size} bytes at {self.offset}: {self.reason}>"


@mypyc_attr(allow_interpreted_subclasses=True)
class Gap:
    """A hole in one direction of a connection: `size` bytes at `offset` were never captured."""

    __slots__ = ("connection", "offset", "packet", "packets", "reported", "size", "time_ns", "to_broker")

    def __init__(
        self,
        size: int,
        connection: Connection,
        to_broker: bool,
        offset: int = 0,
        time_ns: int | None = None,
        packet: int = 0,
    ) -> None:
        self.size = size
        self.connection = connection
        self.to_broker = to_broker
        self.offset = offset
        self.time_ns = time_ns
        self.packet = packet
        self.packets: Sequence[int] = ()
        self.reported: tuple[int, int] | None = None

    def __repr__(self) -> str:
        return f"<Gap {self.size} bytes at {self.offset}>"


@mypyc_attr(allow_interpreted_subclasses=True)
class HttpMessage:
    """A request or an answer of a lookup over HTTP, or of another call that clients make instead of commands.

    method, target   of the request, also for its answer; without what may be credentials
    kind             what is asked: a key of `rest.COMMANDS`; "" for a request that is none of these
    topic, namespace the topic's full name, or the namespace
    status, fields   of an answer: its status, and what it says; 0 and {} for a request
    request          of an answer: its request
    latency_ns       of an answer: ns since its request
    partial          its end was not captured
    size             bytes

    The other attributes are those of `Frame`.
    """

    __slots__ = (
        *("connection", "fields", "kind", "latency_ns", "method", "namespace", "offset", "packet", "packets"),
        *("partial", "reported", "request", "size", "status", "target", "time_ns", "to_broker", "topic"),
    )

    def __init__(
        self,
        connection: Connection,
        to_broker: bool,
        offset: int = 0,
        time_ns: int | None = None,
        packet: int = 0,
    ) -> None:
        self.connection = connection
        self.to_broker = to_broker
        self.offset = offset
        self.time_ns = time_ns
        self.packet = packet
        self.packets: Sequence[int] = ()
        self.reported: tuple[int, int] | None = None
        self.size = self.status = 0
        self.method = self.target = self.kind = ""
        self.topic: str | None = None
        self.namespace: str | None = None
        self.fields: dict[str, Any] = {}
        self.request: HttpMessage | None = None
        self.latency_ns: int | None = None
        self.partial = False

    def __repr__(self) -> str:
        return f"<HttpMessage {self.method} {self.target} {self.status}>"


Event = Frame | Malformed | Gap | HttpMessage
"""An event: what a stream decodes to."""


def build_frame(
    base: BaseCommand,
    metadata: MessageMetadata | None = None,
    payload: bytes = b"",
    *,
    checksum: bool = True,
    broker_entry: BrokerEntryMetadata | None = None,
) -> bytes:
    """Build the bytes of a frame.

    With `metadata` it is a payload frame (SEND, MESSAGE), with a CRC32-C unless `checksum` is False. If
    given, `broker_entry` comes in front of the entry. Raises LocalProtocolError if a required field is
    missing or the frame would exceed 4 GiB.
    """
    try:
        command = base.SerializeToString()
        entry = b""
        if metadata is not None:
            head = metadata.SerializeToString()
            entry = b"".join((_U32.pack(len(head)), head, payload))
            if checksum:
                entry = b"".join((MAGIC_CHECKSUM, _U32.pack(crc32c(entry)), entry))
        if broker_entry is not None:
            prefix = broker_entry.SerializeToString()
            entry = b"".join((MAGIC_BROKER_ENTRY, _U32.pack(len(prefix)), prefix, entry))
        return b"".join((struct.pack(">II", 4 + len(command) + len(entry), len(command)), command, entry))
    except EncodeError as error:
        raise LocalProtocolError(f"the frame cannot be built: {error}") from error
    except struct.error as error:
        raise LocalProtocolError("the frame cannot be built: larger than 4 GiB") from error


def replace_command(raw: bytes, base: BaseCommand) -> bytes:
    """Replace the command of the frame `raw` by `base`; everything after the command is unchanged."""
    command, entry = base.SerializePartialToString(), raw[8 + int.from_bytes(raw[4:8], "big") :]
    return struct.pack(">II", 4 + len(command) + len(entry), len(command)) + command + entry


def type_of(base: BaseCommand) -> int | None:
    """Return the command's type number, even if the schema does not have it; None if it has no type."""
    if base.HasField("type"):
        return base.type
    types = [data for number, data in unknown_fields(base) if number == 1]
    return types[-1] if types and isinstance(types[-1], int) else None
