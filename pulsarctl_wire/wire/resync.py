"""Is there a frame at this place? Strict judgements for streams that have lost their step, or begin.

In step a frame is believed by its length alone. Out of step it has to look like nothing else: a known
command with its sub-message and all required fields, nothing unknown, sent in the right direction,
no bytes behind a command without payload, and behind SEND and MESSAGE an entry whose CRC32-C is
right (or, without checksum, whose metadata is complete).
"""

import re
import struct
from typing import Final

from google.protobuf.message import DecodeError

from pulsarctl_wire.wire.commands import BODIES, PAYLOAD_TYPES, TO_BROKER
from pulsarctl_wire.wire.fields import has_unknown_fields
from pulsarctl_wire.wire.frame import Parts, locate
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, MessageMetadata

LARGEST_COMMAND: Final = 64 * 1024
"""Bytes of the largest command believed out of step (one with very many topics may be larger)."""

_PARSING: Final = 64  # how many times longer a byte takes to parse than to check
_SMALL_COMMAND: Final = 256
_SMALL_FRAME: Final = 4096

_header_at: Final = struct.Struct(">II").unpack_from

CANDIDATE: Final = re.compile(rb"(?s)(?=\x00\x00..\x08[\x02-\x7f])")
"""Matches four bytes behind each place where a frame might begin: COMMAND_SIZE and the field `type`."""

CANDIDATE_SPAN: Final = 10
"""Bytes from where a frame begins to the end of what `CANDIDATE` looks at."""


COMMAND_HEAD: Final = 4
"""Bytes of the longest head that `begins_command` looks at."""


def _head(number: int) -> bytes:
    base = BaseCommand(type=number)  # type: ignore[arg-type]
    getattr(base, BODIES[number]).SetInParent()
    return base.SerializePartialToString()[:-1]  # without the length of the empty sub-message


COMMAND_HEADS: Final = {_head(number): number for number in BODIES}
"""What a command begins with -> its type: the field `type`, then the tag of its sub-message."""


def begins_command(data: bytes, at: int, to_broker: bool | None) -> bool:
    """Whether the bytes at `data[at:]` are the head of a known command that may go this way."""
    number = COMMAND_HEADS.get(data[at : at + 3], COMMAND_HEADS.get(data[at : at + 4]))
    return number is not None and (to_broker is None or TO_BROKER.get(number, to_broker) is to_broker)


def judge_command(data: bytes, at: int, to_broker: bool | None, limit: int) -> int:
    """Whether a frame's header and command at `data[at:]` are sane.

    Gives the offset in `data` where that frame would end; 0 if there is surely none; -n if that
    cannot be told before `data` has n bytes. `limit` is the largest frame in bytes; a `to_broker` of
    None stands for either direction.
    """
    if len(data) - at < 8:
        return -(at + 8)
    total, size = _header_at(data, at)
    if size < 4 or size > LARGEST_COMMAND or size + 4 > total or total + 4 > limit:
        return 0
    if len(data) - at < 8 + size:
        # the field `type` comes first in what every client and broker writes
        return 0 if data[at + 8 : at + 9] not in (b"\x08", b"") else -(at + 8 + size)
    if data[at + 8] != 8:
        return 0
    number = sane_command(data[at + 8 : at + 8 + size], to_broker)
    return at + 4 + total if number and (total - size > 8) == (number in PAYLOAD_TYPES) else 0


def sane_command(command: bytes, to_broker: bool | None) -> int:
    """The type of `command`, if it is a complete known one that may go this way; otherwise 0."""
    try:
        base = BaseCommand.FromString(command)
    except DecodeError:
        return 0
    number = base.type
    if not base.HasField("type") or not base.IsInitialized():
        return 0
    if to_broker is not None and TO_BROKER.get(number, to_broker) is not to_broker:
        return 0
    body = BODIES[number]
    if not base.HasField(body) or has_unknown_fields(base):  # type: ignore[arg-type]
        return 0
    return 0 if has_unknown_fields(getattr(base, body)) else number


def judge(
    data: bytes,
    at: int,
    to_broker: bool | None,
    limit: int,
    *,
    any_checksum: bool = False,
    any_size: bool = True,
) -> tuple[int, int]:
    """Whether there is a whole, right frame at `data[at:]`: the answer as in `judge_command`, and its effort.

    That is about the bytes that were parsed. `any_checksum` is for places where a frame is likely: there its
    checksum may be wrong. Without `any_size` it is surely none unless it costs little to judge.
    """
    if not any_size and len(data) - at >= 8 and not _is_small(data, at):
        return 0, 0
    stop, effort = judge_command(data, at, to_broker, limit), _command_effort(data, at)
    if stop <= 0:
        return stop, effort
    if stop > len(data):
        return -stop, effort
    command_end = at + 8 + int(_header_at(data, at)[1])
    if command_end == stop:
        return stop, effort
    entry = data[command_end:stop]
    parts = locate(entry, 0)
    start, end = parts.metadata
    effort += end - start + len(entry) // _PARSING
    return stop if _is_right(entry, parts, any_checksum) else 0, effort


def judge_pair(
    data: bytes, at: int, to_broker: bool | None, limit: int, *, any_size: bool
) -> tuple[int, int]:
    """Whether a whole, right frame is at `data[at:]` and a sane one behind it; the answer as in `judge`."""
    verdict, effort = judge(data, at, to_broker, limit, any_size=any_size)
    if verdict <= 0:
        return verdict, effort
    if not any_size and len(data) - verdict >= 8 and _header_at(data, verdict)[1] > _SMALL_COMMAND:
        return 0, effort
    return judge_command(data, verdict, to_broker, limit), effort + _command_effort(data, verdict)


def _is_right(entry: bytes, parts: Parts, any_checksum: bool) -> bool:
    if parts.problem or (parts.stored != parts.computed and not any_checksum):
        return False
    start, stop = parts.metadata
    try:
        return MessageMetadata.FromString(entry[start:stop]).IsInitialized()
    except DecodeError:
        return False


def _command_effort(data: bytes, at: int) -> int:
    """What it takes to judge the header and the command at `data[at:]`."""
    size = int(_header_at(data, at)[1]) if len(data) - at >= 8 else 0
    return 8 + size if size <= min(LARGEST_COMMAND, len(data) - at - 8) else 8


def _is_small(data: bytes, at: int) -> bool:
    """Whether the candidate at `data[at:]` costs little to judge, whatever it holds."""
    total, size = _header_at(data, at)
    return bool(size <= _SMALL_COMMAND and total <= _SMALL_FRAME)


def parses(command: bytes) -> bool:
    """Whether `command` is a BaseCommand, whatever is in it."""
    try:
        BaseCommand.FromString(command)
    except DecodeError:
        return False
    return True
