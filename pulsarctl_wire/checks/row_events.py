"""Makes events from the rows of tables (docs/tables.md), as far as the doctor needs them.

A frame has its row's command and metadata, and the row's columns that stand for bytes which tables do not
have. Its `raw` has the sizes of the original frame, then the command and the head of the entry as they would
be written today, and no payload.
"""

import json
import re
import struct
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from google.protobuf.message import DecodeError, EncodeError
from mypy_extensions import mypyc_attr

from pulsarctl_wire.checks.rule import SECOND
from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.wire.commands import BODIES, NUMBERS
from pulsarctl_wire.wire.credentials import WITH_SECRETS, WITH_TOKENS
from pulsarctl_wire.wire.fields import METHODS, as_base64
from pulsarctl_wire.wire.frame import (
    PACKET_OFFSET_BITS,
    PACKET_OFFSET_MASK,
    Connection,
    Event,
    Frame,
    Gap,
    Malformed,
)
from pulsarctl_wire.wire.frame_layout import MAGIC_CHECKSUM
from pulsarctl_wire.wire.json_command import encode
from pulsarctl_wire.wire.PulsarApi_pb2 import (
    BaseCommand,
    CommandAck,
    CompressionType,
    MessageIdData,
    MessageMetadata,
    ServerError,
)

Columns = Mapping[str, Sequence[Any]]
"""Some rows: the values of each column."""

COLUMNS: Final = (
    *("command", "total_size", "command_size", "partial", "request_id", "producer_id", "consumer_id"),
    *("sequence_id", "highest_sequence_id", "ledger_id", "entry_id", "error", "permits"),
    *("redelivery_count", "consumer_epoch", "ack_type", "acked", "ack_count", "ack_set", "validation_error"),
    *("checksum", "payload_size", "payload_crc", "unpacked_size", "head_crc", "command_json"),
    "token_expires_ns",
)
"""The columns of frames that are read, besides those that say where a frame is."""

METADATA: Final = (
    *("producer_name", "publish_time", "deliver_at_time", "compression", "uncompressed_size"),
    *("num_messages_in_batch", "uuid", "num_chunks_from_msg", "chunk_id", "encrypted", "marker_type"),
    "txnid_most_bits",
)
"""The columns of `metadata` that are read; rows have them under these names, and `has_metadata`."""

_WORD: Final = 2**64 - 1
_UNKNOWN: Final = re.compile(r"UNKNOWN\((\d{1,10})\)")
_REDACTED: Final = re.compile(r"\[redacted(: \d+ bytes)?\]")
_MADE_UP: Final = "AAAA"  # in place of a credential or a text that tables do not have; valid as base64, too
_UNKNOWN_FIELD: Final = "unknown_field_"
_ODD: Final = {"unknown_field_1000": 0}  # makes a command count as odd, see `is_doubtful`
_UNREADABLE: Final = b"\xff"  # no protobuf message
_VALUE_ERRORS: Final = (
    *(ValueError, TypeError, OverflowError, RecursionError, struct.error),
    *(DecodeError, EncodeError),
)
"""Exceptions raised by values that no frame has."""
_header: Final = struct.Struct(">II").pack
_u32: Final = struct.Struct(">I").pack
_ERRORS: Final = dict(ServerError.items())
_VALIDATION_ERRORS: Final = dict(CommandAck.ValidationError.items())
ACK_TYPES: Final = dict(CommandAck.AckType.items())
"""Name of an ack_type -> number."""
CODECS: Final = dict(CompressionType.items())
"""Name of a compression -> number."""


@mypyc_attr(allow_interpreted_subclasses=True)
class RowFrame(Frame):
    """A frame made from a row: without its payload, but with the row's columns about the payload."""

    __slots__ = ("head_crc", "payload_crc", "payload_size", "unpacked_size")

    head_crc: int | None
    payload_crc: int | None
    payload_size: int | None
    unpacked_size: int | None


class RowReader:
    """Makes events from rows. `files` are the names of their files, in order of appearance."""

    def __init__(self) -> None:
        self.files: list[str | None] = []
        self._numbers: dict[str | None, int] = {}

    def locate_packet(self, file: str | None, offset: int) -> int:
        """Return the position of a packet in its file, with the files numbered as they appear."""
        number = self._numbers.get(file)
        if number is None:
            number = self._numbers[file] = len(self.files)
            self.files.append(file)
        return number << PACKET_OFFSET_BITS | offset & PACKET_OFFSET_MASK

    def event(self, rows: Columns, row: int, connection: Connection) -> Event:
        """Return the frame, gap or malformed stretch of a row. Raises CaptureError for impossible values."""
        to_broker = bool(rows["to_broker"][row])
        location = connection, to_broker, rows["stream_offset"][row] or 0, rows["time_ns"][row]
        packet = self.locate_packet(rows["file"][row], rows["packet_offset"][row] or 0)
        kind = rows["event"][row]
        if kind == "gap":
            return Gap(rows["size"][row] or 0, *location, packet)
        if kind == "malformed":
            reason, head = rows["reason"][row] or "", rows["head"][row] or b""
            event = Malformed(reason, head, rows["size"][row] or 0, *location, packet)
            event.protocol = rows["protocol"][row] or ""
            return event
        try:
            return _make_frame(rows, row, location, packet)
        except _VALUE_ERRORS as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise CaptureError(f"a {rows['command'][row]} of the table cannot be: {reason}") from None


def _make_frame(
    rows: Columns, row: int, location: tuple[Connection, bool, int, int | None], packet: int
) -> Frame:
    command, size = rows["command"][row], rows["command_size"][row] or 0
    number = NUMBERS.get(command, -1)
    base: BaseCommand | None = None
    if number >= 0:
        base = make_command(number, rows, row) if size > 2 else BaseCommand(type=number)  # type: ignore[arg-type]
    elif unknown := _UNKNOWN.fullmatch(command or ""):
        number, base = int(unknown[1]), BaseCommand()
    data = base.SerializePartialToString() if base is not None else b""
    metadata = make_metadata(rows, row) if rows["has_metadata"][row] else None
    checksum, crc = rows["checksum"][row], rows["head_crc"][row]
    entry = b""
    if number in _ENTRIES:
        head = _UNREADABLE if metadata is None else metadata.SerializePartialToString()
        entry = _u32(len(head)) + head
        if checksum != "absent":
            entry = MAGIC_CHECKSUM + _u32(crc or 0) + entry
    total = rows["total_size"][row] or 0
    sizes = _header(total, max(len(data), min(size, 3)))  # 2 means: without ids
    frame = RowFrame(sizes + data + entry, base, number, *location, packet)
    frame.partial = bool(rows["partial"][row])
    frame.checksum, frame.metadata = checksum, metadata
    frame.head_crc, frame.payload_crc = crc, rows["payload_crc"][row]
    frame.unpacked_size, payload_size = rows["unpacked_size"][row], rows["payload_size"][row]
    frame.payload_size = payload_size
    frame.payload_at = total + 4 - payload_size if payload_size is not None else 0
    return frame


def make_command(number: int, rows: Columns, row: int) -> BaseCommand:
    """Return the command of a row that has ids."""
    base = BaseCommand(type=number)  # type: ignore[arg-type]
    fill = _FILLERS.get(number)
    if fill is not None:
        body = getattr(base, BODIES[number])
        body.SetInParent()
        fill(body, rows, row)
        return base
    text = rows["command_json"][row]
    if text is None or number not in BODIES:
        return base
    fields = json.loads(text)
    if number in WITH_SECRETS:
        fields = _replace_credentials(
            fields, rows["token_expires_ns"][row] if number in WITH_TOKENS else None
        )
    return BaseCommand.FromString(encode(BaseCommand.DESCRIPTOR, {"type": number, BODIES[number]: fields}))


# -- the commands of message traffic: their fields from columns


def _read_id(rows: Columns, name: str, row: int) -> int | None:
    value = rows[name][row]
    return None if value is None else value & _WORD


def _set_fields(body: Any, rows: Columns, row: int, *names: str) -> None:
    """Set fields of 64 bits without a sign to the columns of the same name."""
    for name in names:
        value = rows[name][row]
        if value is not None:
            setattr(body, name, value & _WORD)


def _make_message_id(rows: Columns, row: int) -> MessageIdData:
    return MessageIdData(ledgerId=_read_id(rows, "ledger_id", row), entryId=_read_id(rows, "entry_id", row))


def _fill_send(body: Any, rows: Columns, row: int) -> None:
    _set_fields(body, rows, row, "producer_id", "sequence_id", "highest_sequence_id")


def _fill_receipt(body: Any, rows: Columns, row: int) -> None:
    _set_fields(body, rows, row, "producer_id", "sequence_id", "highest_sequence_id")
    if rows["ledger_id"][row] is not None:
        body.message_id.CopyFrom(_make_message_id(rows, row))


def _fill_message(body: Any, rows: Columns, row: int) -> None:
    _set_fields(body, rows, row, "consumer_id", "consumer_epoch")
    body.message_id.CopyFrom(_make_message_id(rows, row))
    body.redelivery_count = rows["redelivery_count"][row] or 0
    body.ack_set.extend(rows["ack_set"][row] or ())


def _fill_ack(body: Any, rows: Columns, row: int) -> None:
    _set_fields(body, rows, row, "consumer_id", "request_id")
    body.ack_type = ACK_TYPES.get(rows["ack_type"][row], 0)
    error = rows["validation_error"][row]
    if error in _VALIDATION_ERRORS:
        body.validation_error = _VALIDATION_ERRORS[error]
    acked = rows["acked"][row]
    if acked is not None:
        for entry in acked:
            ledger_id, entry_id = entry["ledger_id"] & _WORD, entry["entry_id"] & _WORD
            body.message_id.add(ledgerId=ledger_id, entryId=entry_id, ack_set=entry["ack_set"] or ())
    elif rows["ack_count"][row]:
        message_id = body.message_id.add()
        message_id.CopyFrom(_make_message_id(rows, row))
        message_id.ack_set.extend(rows["ack_set"][row] or ())


def _fill_flow(body: Any, rows: Columns, row: int) -> None:
    _set_fields(body, rows, row, "consumer_id")
    body.messagePermits = rows["permits"][row] or 0


def _fill_ack_response(body: Any, rows: Columns, row: int) -> None:
    _set_fields(body, rows, row, "consumer_id", "request_id")
    error = rows["error"][row]
    if error in _ERRORS:
        body.error = _ERRORS[error]


def _fill_nothing(body: Any, rows: Columns, row: int) -> None:
    pass


_FILLERS: Final[dict[int, Callable[[Any, Columns, int], None]]] = {
    NUMBERS["SEND"]: _fill_send,
    NUMBERS["SEND_RECEIPT"]: _fill_receipt,
    NUMBERS["MESSAGE"]: _fill_message,
    NUMBERS["ACK"]: _fill_ack,
    NUMBERS["FLOW"]: _fill_flow,
    NUMBERS["ACK_RESPONSE"]: _fill_ack_response,
    NUMBERS["PING"]: _fill_nothing,
    NUMBERS["PONG"]: _fill_nothing,
}
"""Type number of a command without JSON -> the function that sets its fields."""

_ENTRIES: Final = {NUMBERS["SEND"], NUMBERS["MESSAGE"]}


def make_metadata(rows: Columns, row: int) -> MessageMetadata:
    """Return the metadata of a row that has some."""
    metadata = MessageMetadata(producer_name=rows["producer_name"][row] or "", sequence_id=0)
    _set_fields(metadata, rows, row, "publish_time", "txnid_most_bits")
    for name in _NUMBERS:
        value = rows[name][row]
        if value is not None:
            setattr(metadata, name, value)
    codec: Any = CODECS.get(rows["compression"][row])
    if codec:
        metadata.compression = codec
    if rows["uuid"][row] is not None:
        metadata.uuid = rows["uuid"][row]
    if rows["encrypted"][row]:
        metadata.encryption_keys.add(key="", value=b"")
    return metadata


_NUMBERS: Final = (
    *("deliver_at_time", "uncompressed_size", "num_messages_in_batch", "num_chunks_from_msg", "chunk_id"),
    "marker_type",
)


# -- commands that may have credentials


def _replace_credentials(fields: dict[str, Any], expiry_ns: int | None) -> dict[str, Any]:
    """Return the fields of a command with placeholders for its credentials: a token that expires then.

    If anything else was redacted, the command was doubtful; an unknown field makes it doubtful again.
    """
    token = _MADE_UP if expiry_ns is None else as_base64(_make_token(expiry_ns))
    hidden: list[str] = []

    def reveal(name: str, value: Any) -> Any:
        if isinstance(value, dict):
            hidden.extend(key for key in value if key.startswith(_UNKNOWN_FIELD))
            return {
                key: reveal(key, part) for key, part in value.items() if not key.startswith(_UNKNOWN_FIELD)
            }
        if isinstance(value, list):
            return [reveal(name, part) for part in value]
        if isinstance(value, str) and _REDACTED.fullmatch(value):
            if name in METHODS:
                return token if name == "auth_data" else _MADE_UP
            hidden.append(name)
            return _MADE_UP
        return value

    revealed: dict[str, Any] = reveal("", fields)
    return revealed | _ODD if hidden else revealed


def _make_token(expiry_ns: int) -> bytes:
    """Return a JSON Web Token with nothing but this time of expiry."""
    seconds, fraction_ns = divmod(expiry_ns, SECOND)
    claims = json.dumps({"exp": seconds + fraction_ns / SECOND if fraction_ns else seconds})
    return b"." + urlsafe_b64encode(claims.encode()) + b"."
