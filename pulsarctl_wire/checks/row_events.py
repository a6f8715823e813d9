"""Makes events from the rows of tables (docs/tables.md), as far as the doctor needs them.

A frame has its row's command and metadata. Nearly all rows are SEND, SEND_RECEIPT, MESSAGE and ACK, of which
the doctor needs a few numbers. These are read from the row; the command and the metadata are made when they
are first used. The `raw` of such a frame has only the sizes of the original; that of others also has the
command, encoded anew.
"""

import json
import re
import struct
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from google.protobuf.message import DecodeError, EncodeError
from mypy_extensions import mypyc_attr

from pulsarctl_wire.checks.rule import SECOND
from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.wire.commands import ACK, BODIES, MESSAGE, NUMBERS, SEND, SEND_RECEIPT
from pulsarctl_wire.wire.credentials import WITH_SECRETS, WITH_TOKENS
from pulsarctl_wire.wire.fast_fields import Head, Ids
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

Columns = dict[str, list[Any]]
"""Some rows: the values of each column."""

COLUMNS: Final = (
    *("command", "total_size", "command_size", "partial", "request_id", "producer_id", "consumer_id"),
    *("sequence_id", "highest_sequence_id", "ledger_id", "entry_id", "error", "permits"),
    *("redelivery_count", "consumer_epoch", "ack_type", "acked", "ack_count", "ack_set", "validation_error"),
    *("checksum", "payload_size", "payload_crc", "unpacked_size", "batch_messages", "head_crc"),
    *("metadata_sequence_id", "num_messages", "command_json", "token_expires_ns"),
)
"""The columns of frames that are read, besides those that say where a frame is."""

METADATA: Final = (
    *("producer_name", "publish_time", "deliver_at_time", "compression", "uncompressed_size"),
    *("num_messages_in_batch", "uuid", "num_chunks_from_msg", "chunk_id", "encrypted", "marker_type"),
    *("txnid_most_bits", "total_chunk_msg_size", "replicated_from"),
)
"""The columns of `metadata` that are read. Rows have them at the top level, beside `has_metadata`."""

_RARE: Final = (
    *("consumer_epoch", "ack_set", "validation_error", "deliver_at_time", "uuid", "num_chunks_from_msg"),
    *("chunk_id", "encrypted", "marker_type", "txnid_most_bits"),
)
"""Columns that are null for most SEND, SEND_RECEIPT, MESSAGE and ACK."""

_MAX_ROWS: Final = (
    1_024  # read at once; with many more, garbage collection and memory cost as much as all else
)
_WITH_IDS: Final = {SEND, SEND_RECEIPT, MESSAGE, ACK}
_MASK_64: Final = 2**64 - 1
_UNKNOWN: Final = re.compile(r"UNKNOWN\((\d{1,10})\)")
_REDACTED: Final = re.compile(r"\[redacted(: \d+ bytes)?\]")
_PLACEHOLDER: Final = "AAAA"  # for a credential or a text that tables do not have; valid as base64, too
_UNKNOWN_FIELD: Final = "unknown_field_"
_TYPE_SIZE: Final = 2  # bytes of a command that has only its type
_DOUBTFUL_FIELD: Final = {"unknown_field_1000": 0}  # makes `credentials.is_doubtful` true
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
_ACK_TYPES: Final = dict(CommandAck.AckType.items())
_CODECS: Final = dict(CompressionType.items())


@mypyc_attr(allow_interpreted_subclasses=True)
class RowFrame(Frame):
    """The frame of a row, without its payload. It may make its command and metadata when they are used."""

    __slots__ = ("_row", "_rows")

    _rows: Columns
    _row: int

    def read(self, name: str) -> Any:
        """Return the value of a column."""
        return self._rows[name][self._row]

    @property
    def base(self) -> BaseCommand | None:
        """The command; CaptureError for impossible values. Overrides the parent's property."""
        if self._base is None and self._ids is not None:
            try:
                self._base = _make_command(self.type, self._rows, self._row)
            except _VALUE_ERRORS as error:
                raise _make_error(self.command, error) from None
        return self._base

    @base.setter
    def base(self, base: BaseCommand) -> None:
        self._base = base

    @property
    def metadata(self) -> MessageMetadata | None:
        """The metadata; CaptureError for impossible values. Overrides the parent's property."""
        if self._metadata is None and self._head is not None:
            try:
                self._metadata = _make_metadata(self._rows, self._row)
            except _VALUE_ERRORS as error:
                raise _make_error(self.command, error) from None
        return self._metadata

    @metadata.setter
    def metadata(self, metadata: MessageMetadata | None) -> None:
        self._metadata = metadata

    def encode_head(self) -> bytes:
        """Return bytes in place of those before the payload of a SEND: the same ones if it was sent twice."""
        head, ids = self._head, self._ids
        if head is not None and head.is_plain and ids is not None:
            sizes = f"{head.unpacked} {head.codec} {head.batch} {self.checksum == 'absent'}"
            numbers = f"{ids.owner} {ids.sequence} {ids.highest} {head.publish_time}"
            return f"{numbers} {sizes} {head.producer}".encode()
        base, metadata = self.base, self.metadata
        command = b"" if base is None else base.SerializePartialToString()
        tail = _UNREADABLE if metadata is None else metadata.SerializePartialToString()
        tail = _u32(len(tail)) + tail
        if self.checksum != "absent":
            tail = MAGIC_CHECKSUM + _u32(self.read("head_crc") or 0) + tail
        return _u32(len(command)) + command + tail


def read_rows(batches: Iterable[Any]) -> Iterator[Columns]:
    """Yield the rows of Arrow batches, with one more column: `is_rare`, whether `_RARE` has a value."""
    for batch in batches:
        for start in range(0, len(batch), _MAX_ROWS):
            part = batch.slice(start, _MAX_ROWS)
            nulls = [None] * len(part)
            rows: Columns = {
                name: nulls if column.null_count == len(part) else column.to_pylist()
                for name, column in zip(part.schema.names, part.columns, strict=True)
            }
            rare = [rows[name] for name in _RARE if rows[name] is not nulls]
            rows["is_rare"] = [values.count(None) < len(values) for values in zip(nulls, *rare, strict=True)]
            yield rows


class RowReader:
    """Makes events from rows. `files` are the names of their files, in order of appearance."""

    def __init__(self) -> None:
        self.files: list[str | None] = []
        self._numbers: dict[str | None, int] = {}

    def make_event(self, rows: Columns, row: int, connection: Connection) -> Event:
        """Return the frame, gap or malformed stretch of a row. Raises CaptureError for impossible values."""
        file, kind = rows["file"][row], rows["event"][row]
        number = self._numbers.get(file)
        if number is None:
            number = self._numbers[file] = len(self.files)
            self.files.append(file)
        packet = number << PACKET_OFFSET_BITS | (rows["packet_offset"][row] or 0) & PACKET_OFFSET_MASK
        if kind not in ("gap", "malformed"):
            try:
                return _make_frame(rows, row, connection, packet)
            except _VALUE_ERRORS as error:
                raise _make_error(rows["command"][row], error) from None
        size, to_broker = rows["size"][row] or 0, bool(rows["to_broker"][row])
        location = connection, to_broker, rows["stream_offset"][row] or 0, rows["time_ns"][row]
        if kind == "gap":
            return Gap(size, *location, packet)
        event = Malformed(rows["reason"][row] or "", rows["head"][row] or b"", size, *location, packet)
        event.protocol = rows["protocol"][row] or ""
        return event


def _make_error(command: str | None, error: Exception) -> CaptureError:
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return CaptureError(f"the table has an impossible {command}: {reason}")


def _make_frame(rows: Columns, row: int, connection: Connection, packet: int) -> Frame:
    command, size = rows["command"][row], rows["command_size"][row] or 0
    total, number = rows["total_size"][row] or 0, NUMBERS.get(command, -1)
    ids: Ids | None = None
    base: BaseCommand | None = None
    data = b""
    # an ACK with several ids (`acked`) gets its command at once
    if number in _WITH_IDS and size > _TYPE_SIZE and (number != ACK or rows["acked"][row] is None):
        ids = _make_ids(number, rows, row)
    else:
        if number >= 0:
            base = _make_command(number, rows, row) if size > _TYPE_SIZE else BaseCommand(type=number)  # type: ignore[arg-type]
        elif unknown := _UNKNOWN.fullmatch(command or ""):
            number, base = int(unknown[1]), BaseCommand()
        data = base.SerializePartialToString() if base is not None else b""
        size = max(len(data), min(size, _TYPE_SIZE + 1))  # states ignore a command of just `_TYPE_SIZE`
    to_broker, offset = bool(rows["to_broker"][row]), rows["stream_offset"][row] or 0
    raw, time_ns = _header(total, size) + data, rows["time_ns"][row]
    frame = RowFrame(raw, base, number, connection, to_broker, offset, time_ns, packet)
    if ids is not None:
        frame.ids = ids
    frame._rows, frame._row = rows, row
    frame.partial = bool(rows["partial"][row])
    if number in (SEND, MESSAGE):
        frame.checksum = rows["checksum"][row]
        if rows["has_metadata"][row]:
            frame.head = _make_head(rows, row)
        payload_size = rows["payload_size"][row]
        frame.payload_at = total + 4 - payload_size if payload_size is not None else 0
    return frame


def _make_ids(number: int, rows: Columns, row: int) -> Ids:
    """Return the numbers of a row: those of its command, as `fast_fields.ids_of` does."""
    if number in (SEND, SEND_RECEIPT):
        ids = Ids(_read_id(rows, "producer_id", row) or 0)
        ids.sequence = _read_id(rows, "sequence_id", row) or 0
        ids.highest = _read_id(rows, "highest_sequence_id", row)
        if number == SEND:
            ids.count = rows["num_messages"][row] or 1
    else:
        ids = Ids(_read_id(rows, "consumer_id", row) or 0)
        if number == ACK:
            ids.count = 1 if rows["ack_count"][row] else 0
            ids.kind = _ACK_TYPES.get(rows["ack_type"][row], 0)
            ids.request = _read_id(rows, "request_id", row)
        else:
            ids.count = rows["redelivery_count"][row] or 0
    ids.is_plain = not rows["is_rare"][row]
    if number != SEND:
        ledger = _read_id(rows, "ledger_id", row)
        ids.identified = number == MESSAGE or (ids.count > 0 if number == ACK else ledger is not None)
        if ids.identified:
            ids.ledger, ids.entry = ledger or 0, _read_id(rows, "entry_id", row) or 0
    return ids


def _make_head(rows: Columns, row: int) -> Head:
    """Return the usual part of a row's metadata, as `fast_fields.head_of` does."""
    own_sequence = _read_id(rows, "metadata_sequence_id", row)
    sequence = _read_id(rows, "sequence_id", row) or 0 if own_sequence is None else own_sequence
    head = Head(rows["producer_name"][row] or "", _read_id(rows, "publish_time", row) or 0, sequence)
    head.unpacked = rows["uncompressed_size"][row] or 0
    head.codec = _CODECS.get(rows["compression"][row], 0)
    batch = rows["num_messages_in_batch"][row]
    if batch is not None:
        head.batch = batch
    head.is_plain = not rows["is_rare"][row]
    if not head.is_plain:
        head.chunks, head.chunk = rows["num_chunks_from_msg"][row] or 0, rows["chunk_id"][row] or 0
        head.marker = rows["marker_type"][row] or 0
    return head


def _make_command(number: int, rows: Columns, row: int) -> BaseCommand:
    """Return the command of a row, with its fields."""
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
    value: int | None = rows[name][row]
    return value if value is None or value >= 0 else value & _MASK_64


def _set_fields(body: Any, rows: Columns, row: int, *names: str) -> None:
    """Set fields of 64 bits without a sign to the columns of the same name."""
    for name in names:
        value = rows[name][row]
        if value is not None:
            setattr(body, name, value & _MASK_64)


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
    body.ack_type = _ACK_TYPES.get(rows["ack_type"][row], 0)
    error = rows["validation_error"][row]
    if error in _VALIDATION_ERRORS:
        body.validation_error = _VALIDATION_ERRORS[error]
    acked = rows["acked"][row]
    if acked is not None:
        for entry in acked:
            ledger_id, entry_id = entry["ledger_id"] & _MASK_64, entry["entry_id"] & _MASK_64
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


def _make_metadata(rows: Columns, row: int) -> MessageMetadata:
    """Return the metadata of a row that has some."""
    metadata = MessageMetadata(producer_name=rows["producer_name"][row] or "", sequence_id=0)
    _set_fields(metadata, rows, row, "publish_time", "txnid_most_bits")
    for name in _NUMBER_COLUMNS:
        value = rows[name][row]
        if value is not None:
            setattr(metadata, name, value)
    codec: Any = _CODECS.get(rows["compression"][row])
    if codec:
        metadata.compression = codec
    if rows["uuid"][row] is not None:
        metadata.uuid = rows["uuid"][row]
    if rows["replicated_from"][row] is not None:
        metadata.replicated_from = rows["replicated_from"][row]
    if rows["encrypted"][row]:
        metadata.encryption_keys.add(key="", value=b"")
    return metadata


_NUMBER_COLUMNS: Final = (
    *("deliver_at_time", "uncompressed_size", "num_messages_in_batch", "num_chunks_from_msg", "chunk_id"),
    *("marker_type", "total_chunk_msg_size"),
)


# -- commands that may have credentials


def _replace_credentials(fields: dict[str, Any], expiry_ns: int | None) -> dict[str, Any]:
    """Return the fields of a command with placeholders for credentials; tokens expire at `expiry_ns`.

    If anything else was redacted, or a field is unknown, the original command was doubtful
    (`credentials.is_doubtful`). Then `_DOUBTFUL_FIELD` is added, so that the new one is doubtful, too.
    """
    token = _PLACEHOLDER if expiry_ns is None else as_base64(_make_token(expiry_ns))
    doubtful_names: list[str] = []

    def replace(name: str, value: Any) -> Any:
        if isinstance(value, dict):
            doubtful_names.extend(key for key in value if key.startswith(_UNKNOWN_FIELD))
            return {
                key: replace(key, part) for key, part in value.items() if not key.startswith(_UNKNOWN_FIELD)
            }
        if isinstance(value, list):
            return [replace(name, part) for part in value]
        if isinstance(value, str) and _REDACTED.fullmatch(value):
            if name in METHODS:
                return token if name == "auth_data" else _PLACEHOLDER
            doubtful_names.append(name)
            return _PLACEHOLDER
        return value

    result: dict[str, Any] = replace("", fields)
    return result | _DOUBTFUL_FIELD if doubtful_names else result


def _make_token(expiry_ns: int) -> bytes:
    """Return a JSON Web Token with nothing but this time of expiry."""
    seconds, fraction_ns = divmod(expiry_ns, SECOND)
    claims = json.dumps({"exp": seconds + fraction_ns / SECOND if fraction_ns else seconds})
    return b"." + urlsafe_b64encode(claims.encode()) + b"."
