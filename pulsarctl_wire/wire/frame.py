"""One frame: its parts, parsing it and building it.

Layout (sizes are big-endian and leave out their own four bytes):

    [TOTAL_SIZE 4][COMMAND_SIZE 4][BaseCommand]                      every command
    [0e02][size 4][BrokerEntryMetadata]                              MESSAGE, if the broker adds it
    [0e01][CRC32-C 4]                                                optional in both directions
    [METADATA_SIZE 4][MessageMetadata][payload up to the frame end]  SEND and MESSAGE

The CRC32-C covers METADATA_SIZE, metadata and payload, nothing before them. Both magics are told by
two bytes alone: without 0e01 those two bytes are the high half of METADATA_SIZE.
Source: Pulsar binary protocol specification, "Framing" and "Payload commands"; PIP-70 for 0e02.

A frame's bytes may be wrong in any way. What cannot be read is left out and said in `Frame.notes`;
nothing here raises for what was received. Only building raises, for what cannot exist.
"""

import struct
from collections.abc import Sequence
from typing import Any, Final

from crc32c import crc32c
from google.protobuf.message import DecodeError, EncodeError
from mypy_extensions import mypyc_attr

from pulsarctl_wire.errors import LocalProtocolError
from pulsarctl_wire.wire.commands import BODIES, command_name
from pulsarctl_wire.wire.fields import unknown_fields
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, BrokerEntryMetadata, MessageMetadata, Schema
from pulsarctl_wire.wire.varint import breaks

MAX_MESSAGE_SIZE: Final = 5 * 1024 * 1024
"""Bytes a broker accepts in a message unless CONNECTED.max_message_size says otherwise."""

FRAME_PADDING: Final = 10 * 1024
"""Bytes a frame may be larger than the largest message; the limit counts the length prefix too."""

MAX_FRAME_SIZE: Final = MAX_MESSAGE_SIZE + FRAME_PADDING
"""Bytes of the largest legal frame, length prefix included, unless announced otherwise."""

MAX_PARSED: Final = MAX_FRAME_SIZE
"""Bytes of the largest command or metadata that is parsed: parsed it may take 30 times as much memory."""

KEPT_FRAME: Final = 64 * 1024 * 1024
"""Bytes of the largest frame kept whole, however large frames are said to be."""

MAGIC_CHECKSUM: Final = b"\x0e\x01"
MAGIC_BROKER_ENTRY: Final = b"\x0e\x02"

_MOST_GUESSED: Final = 65_536  # bytes of metadata whose size may be little-endian

_U32: Final = struct.Struct(">I")
_u32_at: Final = _U32.unpack_from
_entry_at: Final = struct.Struct(">HII").unpack_from  # magic 0e01, CRC32-C, METADATA_SIZE
_parse_metadata: Final = MessageMetadata.FromString


@mypyc_attr(allow_interpreted_subclasses=True)
class Connection:
    """A TCP connection, or what stands in for one (a hex dump, a file of raw frames).

    `index` counts connections from 0 in order of appearance, as Wireshark's tcp.stream does; `client`
    and `server` are "address:port" texts, empty where the source does not say. `flipped` tells that they
    were taken for one another until a command showed which is which.
    """

    __slots__ = ("client", "flipped", "index", "server")

    def __init__(self, index: int, client: str = "", server: str = "") -> None:
        self.index = index
        self.client = client
        self.server = server
        self.flipped = False

    def __str__(self) -> str:
        return f"{self.client}-{self.server}" if self.client else str(self.index)


@mypyc_attr(allow_interpreted_subclasses=True)
class Frame:
    """A frame of the protocol, whole or cut short, with what its session knows of it.

    number        counts frames from 1 in order of capture (0 until it is given one)
    time_ns       when its last captured byte was captured, ns since the epoch; None if unknown
    start_ns      when its first captured byte was captured
    packet        number (from 1) of the packet that completed it; 0 where there are no packets
    packets       numbers of all packets that hold a part of it
    connection    the `Connection` it travelled on
    to_broker     True from client to broker
    offset        of its first byte in its direction of the connection
    raw           its bytes, length prefix included; fewer than `size` when `partial`
    partial       its end was not captured
    type, base    the command's number and the parsed BaseCommand (None: the command itself is cut)
    checksum      "valid", "invalid", "absent"; None for commands without payload, or when cut
    metadata      MessageMetadata of SEND and MESSAGE; None if there is none or it does not parse
    payload_at    where in `raw` the payload begins; 0 if there is none
    broker_entry  whether the broker put its own metadata in front of the entry
    topic, subscription   full topic name and subscription, where ids could be resolved; else None
    request, latency_ns   for an answer: number of the request's frame, ns since it
    request_type  for an answer: type number of that request's command; None where it is not known
    answer        for a request: number of the answer's frame, where already known
    joined        on the last chunk of a message: the payload of all its chunks, if they were seen
    schema        of the topic's messages, where one was seen for the version that this one carries
    notes         texts on anything odd
    """

    __slots__ = (
        "answer",
        "base",
        "broker_entry",
        "checksum",
        "connection",
        "joined",
        "latency_ns",
        "metadata",
        "notes",
        "number",
        "offset",
        "packet",
        "packets",
        "partial",
        "payload_at",
        "raw",
        "request",
        "request_type",
        "schema",
        "start_ns",
        "subscription",
        "time_ns",
        "to_broker",
        "topic",
        "type",
    )

    def __init__(
        self,
        raw: bytes,
        base: BaseCommand | None,
        number_of_type: int,
        connection: Connection,
        to_broker: bool,
        offset: int = 0,
        time_ns: int | None = None,
        packet: int = 0,
    ) -> None:
        self.raw = raw
        self.base = base
        self.type = number_of_type
        self.connection = connection
        self.to_broker = to_broker
        self.offset = offset
        self.time_ns = self.start_ns = time_ns
        self.packet = packet
        self.packets: Sequence[int] = ()
        self.number = 0
        self.partial = False
        self.checksum: str | None = None
        self.metadata: MessageMetadata | None = None
        self.payload_at = 0
        self.broker_entry = False
        self.topic: str | None = None
        self.subscription: str | None = None
        self.request: int | None = None
        self.request_type: int | None = None
        self.answer: int | None = None
        self.latency_ns: int | None = None
        self.notes: Sequence[str] = ()
        self.joined: bytes | None = None
        self.schema: Schema | None = None

    @property
    def command(self) -> str:
        """The command's name: SEND, LOOKUP_RESPONSE, UNKNOWN(99); "?" where the command is cut."""
        return command_name(self.type) if self.base is not None else "?"

    @property
    def body(self) -> Any:
        """The command's own sub-message (a protobuf message); None where it is missing."""
        name = BODIES.get(self.type)
        if name is None or self.base is None or not self.base.HasField(name):  # type: ignore[arg-type]
            return None
        return getattr(self.base, name)

    @property
    def total_size(self) -> int:
        """TOTAL_SIZE: bytes of the frame without its length prefix."""
        size: int = _u32_at(self.raw)[0]
        return size

    @property
    def size(self) -> int:
        """Bytes of the frame on the wire, length prefix included."""
        return self.total_size + 4

    @property
    def command_size(self) -> int:
        """COMMAND_SIZE: bytes of the BaseCommand; 0 where that is not captured."""
        return _u32_at(self.raw, 4)[0] if len(self.raw) >= 8 else 0

    @property
    def payload(self) -> bytes:
        """The entry's payload as on the wire: maybe a batch, compressed, encrypted, a chunk."""
        return self.raw[self.payload_at :] if self.payload_at else b""

    @property
    def parts(self) -> "Parts":
        """Where the parts of a payload frame lie."""
        return locate(self.raw, 8 + self.command_size)

    @property
    def broker_entry_metadata(self) -> BrokerEntryMetadata | None:
        """What the broker prefixed to the entry (PIP-70); None if nothing, or not parseable."""
        if not self.broker_entry:
            return None
        start, stop = self.parts.broker_entry
        try:
            return BrokerEntryMetadata.FromString(self.raw[start:stop])
        except DecodeError:
            return None

    def note(self, text: str) -> None:
        """Add a remark on something odd."""
        self.notes = [*self.notes, text]

    def __repr__(self) -> str:
        arrow = "->" if self.to_broker else "<-"
        return f"<Frame {self.number} {arrow} {self.command} {len(self.raw)} bytes>"


@mypyc_attr(allow_interpreted_subclasses=True)
class Malformed:
    """A stretch of captured bytes that is no frame.

    `size` is its length in bytes, `raw` its first bytes (`KEPT` at most), `reason` what was expected
    and not found, `protocol` the other protocol it speaks ("TLS", "HTTP", …) if it was recognised.
    The rest as in `Frame`.
    """

    __slots__ = (
        *("connection", "offset", "packet", "packets", "protocol"),
        *("raw", "reason", "size", "time_ns", "to_broker"),
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
        protocol: str = "",
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
        self.protocol = protocol

    def __repr__(self) -> str:
        return f"<Malformed {self.size} bytes at {self.offset}: {self.reason}>"


@mypyc_attr(allow_interpreted_subclasses=True)
class Gap:
    """A hole in one direction of a connection: `size` bytes at `offset` were never captured."""

    __slots__ = ("connection", "offset", "packet", "packets", "size", "time_ns", "to_broker")

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

    def __repr__(self) -> str:
        return f"<Gap {self.size} bytes at {self.offset}>"


Event = Frame | Malformed | Gap
"""What a stream is made of."""


class Parts:
    """Where the parts behind the command lie in a frame's bytes, as (start, stop) offsets.

    A part that is not there is (0, 0). `stored` and `computed` are the checksum as carried and as
    calculated (both None without 0e01, `computed` None too where the frame is cut). `problem` says
    why the walk ended early, "" when it did not.
    """

    __slots__ = ("broker_entry", "checksum", "computed", "metadata", "payload", "problem", "stored")

    def __init__(self) -> None:
        self.broker_entry = self.checksum = self.metadata = self.payload = (0, 0)
        self.stored: int | None = None
        self.computed: int | None = None
        self.problem = ""


def locate(raw: bytes, at: int) -> Parts:
    """The parts of a payload frame `raw` whose command ends at `at`. Never raises."""
    parts = Parts()
    end = len(raw)
    if raw[at : at + 2] == MAGIC_BROKER_ENTRY and end - at >= 6:
        stop = at + 6 + _u32_at(raw, at + 2)[0]
        if stop > end:
            parts.problem = f"broker entry metadata of {stop - at - 6} bytes runs beyond the frame"
            return parts
        parts.broker_entry = (at + 6, stop)
        at = stop
    if raw[at : at + 2] == MAGIC_CHECKSUM and end - at >= 6:
        parts.checksum = (at + 2, at + 6)
        parts.stored = _u32_at(raw, at + 2)[0]
        at += 6
        parts.computed = crc32c(memoryview(raw)[at:])
    if end - at < 4:
        parts.problem = "no metadata behind the command"
        return parts
    start = at + 4
    stop = start + _u32_at(raw, at)[0]
    if stop > end:
        parts.problem = f"metadata of {stop - start} bytes runs beyond the frame"
        return parts
    parts.metadata = (start, stop)
    parts.payload = (stop, end)
    return parts


def read_entry(frame: Frame, at: int) -> None:
    """Fill in checksum, metadata and payload of a SEND or MESSAGE whose command ends at `at`.

    The common layout (0e01, then metadata) is walked here; all others go through `locate`.
    """
    raw = frame.raw
    end = len(raw)
    magic, stored, size = _entry_at(raw, at) if end - at >= 10 else (0, 0, 0)
    if magic == 0x0E01:
        start = at + 10
        payload_at = start + size
        # copying what is small is faster than a view on it
        covered = raw[at + 6 :] if end < 65_536 else memoryview(raw)[at + 6 :]
        frame.checksum = "valid" if crc32c(covered) == stored else "invalid"
        problem = "" if payload_at <= end else f"metadata of {size} bytes runs beyond the frame"
    else:
        parts = locate(raw, at)
        problem = parts.problem
        frame.broker_entry = parts.broker_entry != (0, 0)
        start, payload_at = parts.metadata
        if parts.stored is None:
            frame.checksum = "absent"
        else:
            frame.checksum = "valid" if parts.stored == parts.computed else "invalid"
    if frame.partial:
        frame.checksum = None
        if problem:
            return
    if problem:
        frame.note(problem + entry_hint(raw, at))
        return
    frame.payload_at = payload_at
    if payload_at - start > MAX_PARSED:
        frame.note(f"metadata of {payload_at - start} bytes: more than {MAX_PARSED} are not parsed")
        return
    try:
        frame.metadata = _parse_metadata(raw[start:payload_at])
    except DecodeError:
        why = breaks(raw, start, payload_at, MessageMetadata.DESCRIPTOR)
        frame.note(f"the metadata does not parse as MessageMetadata: {why}".rstrip(": "))


def entry_hint(raw: bytes, at: int) -> str:
    """What is likely wrong with an entry at `raw[at:]` whose parts cannot be located; "" if unknown."""
    if raw[at : at + 2] == MAGIC_CHECKSUM:
        at += 6
    if len(raw) - at < 8:
        return ""
    little = int.from_bytes(raw[at : at + 4], "little")
    if crc32c(memoryview(raw)[at + 4 :]) == _u32_at(raw, at)[0]:
        return "; a CRC32-C is there, the magic 0e01 before it is missing"
    start, stop = at + 4, at + 4 + little
    fits = stop <= len(raw) and little <= _MOST_GUESSED
    if fits and not breaks(raw, start, stop, MessageMetadata.DESCRIPTOR):
        return f"; METADATA_SIZE is little-endian ({little}), Pulsar's sizes are big-endian"
    return ""


def build_frame(
    base: BaseCommand,
    metadata: MessageMetadata | None = None,
    payload: bytes = b"",
    *,
    checksum: bool = True,
    broker_entry: BrokerEntryMetadata | None = None,
) -> bytes:
    """The bytes of a frame.

    `metadata` makes it a payload frame (SEND, MESSAGE), with the CRC32-C unless `checksum` is False
    and with `broker_entry` in front if given. Raises LocalProtocolError if a required field is
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


def with_command(raw: bytes, base: BaseCommand) -> bytes:
    """The frame `raw` with the command `base` in place of its own; all behind the command stays as it is."""
    command, behind = base.SerializePartialToString(), raw[8 + int.from_bytes(raw[4:8], "big") :]
    return struct.pack(">II", 4 + len(command) + len(behind), len(command)) + command + behind


def type_of(base: BaseCommand) -> int | None:
    """The command's type number, also one that the schema does not have; None if it has none."""
    if base.HasField("type"):
        return base.type
    types = [data for number, data in unknown_fields(base) if number == 1]
    return types[-1] if types and isinstance(types[-1], int) else None
