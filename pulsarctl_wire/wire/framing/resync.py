"""Finds where a frame begins in a stream that is out of step, with strict checks of each candidate.

In step, a frame is accepted by its sizes and its command. Out of step it must be unmistakable: a known
command with its sub-message and all required fields, without unknown fields, sent in the right direction;
no bytes after a command without payload; and after SEND and MESSAGE an entry whose CRC32-C is
valid (or, without checksum, whose metadata is complete).

One valid frame ends the search where the bytes resume, or where the damaged frame should have ended; that
place is checked first. Anywhere else two frames in a row are needed, as a payload may contain anything, even
Pulsar frames. Candidates are checked in order, so a later one never wins while an earlier one is still
arriving. The effort is bounded: if searches have spent much more than the stream's bytes pay for, only small
candidates are checked until more bytes have passed.
"""

import re
from typing import Final

from google.protobuf.message import DecodeError
from mypy_extensions import mypyc_attr

from pulsarctl_wire.wire.commands import BODIES, PAYLOAD_TYPES, TO_BROKER
from pulsarctl_wire.wire.fields import has_unknown_fields
from pulsarctl_wire.wire.frame import header_at
from pulsarctl_wire.wire.parts import Parts, locate
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, MessageMetadata

LARGEST_COMMAND: Final = 64 * 1024
"""Bytes of the largest command accepted out of step (one with very many topics may be larger)."""

_FREE_EFFORT: Final = 1024 * 1024
_EFFORT_PER_BYTE: Final = 8
_PARSING: Final = 64  # how many times longer it takes to parse a byte than to checksum it
_SMALL_COMMAND: Final = 256
_SMALL_FRAME: Final = 4096

CANDIDATE: Final = re.compile(rb"(?s)(?=\x00\x00..\x08[\x02-\x7f])")
"""Matches COMMAND_SIZE and the field `type`: four bytes after each place where a frame may begin."""

CANDIDATE_SPAN: Final = 10
"""Bytes from the beginning of a frame to the end of what `CANDIDATE` matches."""


COMMAND_HEAD: Final = 4
"""Maximum bytes that `begins_command` looks at."""


def _head(number: int) -> bytes:
    base = BaseCommand(type=number)  # type: ignore[arg-type]
    getattr(base, BODIES[number]).SetInParent()
    return base.SerializePartialToString()[:-1]  # without the length of the empty sub-message


COMMAND_HEADS: Final = {_head(number): number for number in BODIES}
"""First bytes of a command (the field `type`, and the tag of its sub-message) -> its type number."""


def begins_command(data: bytes, at: int, to_broker: bool | None) -> bool:
    """Whether a known command that may be sent in this direction begins at `data[at:]`."""
    number = COMMAND_HEADS.get(data[at : at + 3], COMMAND_HEADS.get(data[at : at + 4]))
    return number is not None and (to_broker is None or TO_BROKER.get(number, to_broker) is to_broker)


def judge_command(data: bytes, at: int, to_broker: bool | None, limit: int) -> int:
    """Whether a frame with a valid header and command begins at `data[at:]`.

    Returns the offset in `data` where that frame ends, 0 if there is certainly none, or -n if `data` must
    have n bytes to decide. `limit` is the largest frame in bytes; a `to_broker` of None means either
    direction.
    """
    if len(data) - at < 8:
        return -(at + 8)
    total, size = header_at(data, at)
    if size < 4 or size > LARGEST_COMMAND or size + 4 > total or total + 4 > limit:
        return 0
    if len(data) - at < 8 + size:
        # every client and broker writes the field `type` first
        return 0 if data[at + 8 : at + 9] not in (b"\x08", b"") else -(at + 8 + size)
    if data[at + 8] != 8:
        return 0
    number = sane_command(data[at + 8 : at + 8 + size], to_broker)
    return at + 4 + total if number and (total - size > 8) == (number in PAYLOAD_TYPES) else 0


def sane_command(command: bytes, to_broker: bool | None) -> int:
    """The type of `command` if it is known, complete, and may be sent in this direction; otherwise 0."""
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
    """Whether a complete, valid frame is at `data[at:]`: the result of `judge_command`, and the effort.

    The effort is roughly the number of bytes parsed. `any_checksum` is for places where a frame is likely:
    there the checksum may be wrong. Without `any_size` only small frames are accepted, to save effort.
    """
    if not any_size and len(data) - at >= 8:
        total, size = header_at(data, at)
        if size > _SMALL_COMMAND or total > _SMALL_FRAME:
            return 0, 0
    stop, effort = judge_command(data, at, to_broker, limit), _command_effort(data, at)
    if stop <= 0:
        return stop, effort
    if stop > len(data):
        return -stop, effort
    command_end = at + 8 + int(header_at(data, at)[1])
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
    """Whether a valid frame is at `data[at:]`, followed by a valid header and command. Returns as `judge`."""
    verdict, effort = judge(data, at, to_broker, limit, any_size=any_size)
    if verdict <= 0:
        return verdict, effort
    if not any_size and len(data) - verdict >= 8 and header_at(data, verdict)[1] > _SMALL_COMMAND:
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
    """The effort of judging the header and the command at `data[at:]`."""
    size = int(header_at(data, at)[1]) if len(data) - at >= 8 else 0
    return 8 + size if size <= min(LARGEST_COMMAND, len(data) - at - 8) else 8


def parses(command: bytes) -> bool:
    """Whether `command` parses as a BaseCommand, whatever is in it."""
    try:
        BaseCommand.FromString(command)
    except DecodeError:
        return False
    return True


@mypyc_attr(allow_interpreted_subclasses=True)
class Search:
    """The searches in one stream, one at a time. All offsets are offsets in the stream.

    At `likely` one frame suffices (-1: nowhere). Before `searched` all candidates were refused. `need` is
    how many bytes `find` needs to decide.
    """

    __slots__ = ("_effort", "likely", "need", "searched")

    def __init__(self) -> None:
        self.likely = -1
        self.searched = 0
        self.need = 0
        self._effort = 0  # `_EFFORT_PER_BYTE` times the offset at which the effort so far is paid for

    def begin(self, offset: int, likely: int) -> None:
        """Begin a search at `offset`."""
        self.searched, self.likely = offset, likely

    def find(self, data: bytes, start: int, to_broker: bool | None, limit: int, ended: bool) -> int:
        """The index in `data` where a frame certainly begins; -1 if there is none yet.

        `start` is the offset of `data`. After -1, `need` is how many bytes `data` must have next time.
        `ended`: no more bytes will come. The other parameters are those of `judge`.
        """
        if self.likely >= start:
            at = self.likely - start
            worth = self._is_worth(self.searched)
            judged = judge(data, at, to_broker, limit, any_checksum=True, any_size=worth)
            verdict = self._paid(judged, self.searched, ended)
            if verdict > 0:
                return at
            if verdict < 0 and not ended:
                self.need = -verdict
                return -1
            self.likely = -1
        for match in CANDIDATE.finditer(data, self.searched - start + 4):
            at = match.start() - 4
            judged = judge_pair(data, at, to_broker, limit, any_size=self._is_worth(start + at))
            verdict = self._paid(judged, start + at, ended)
            if verdict > 0:
                return at
            if verdict < 0 and not ended:
                self.searched = start + at
                self.need = -verdict
                return -1
        self.searched = max(self.searched, start + len(data) - CANDIDATE_SPAN + 1)
        self.need = 0
        return -1

    def kept_from(self, start: int, at: int) -> int:
        """The index of the first byte to keep, as a frame may begin there: `at` while one is likely."""
        return at if self.likely >= start else self.searched - start

    def skip(self, size: int) -> None:
        """Note that the stream has `size` bytes, such as a gap, that do not pay for effort."""
        self._effort += _EFFORT_PER_BYTE * size

    def in_debt(self, offset: int) -> bool:
        """Whether more effort was spent than the bytes up to `offset` pay for."""
        return self._effort > _EFFORT_PER_BYTE * offset

    def _is_worth(self, offset: int) -> bool:
        """Whether large candidates may be judged at `offset`, too."""
        return self._effort - _EFFORT_PER_BYTE * offset <= _FREE_EFFORT

    def _paid(self, judged: tuple[int, int], offset: int, ended: bool) -> int:
        """The verdict in `judged`, for `offset`. Its effort is counted only if the verdict is final."""
        verdict, effort = judged
        if verdict >= 0 or ended:
            self._effort = max(self._effort, _EFFORT_PER_BYTE * offset) + effort
        return verdict

    def state(self) -> tuple[int, int, int]:
        """The state as plain data, for `resume`."""
        return self.likely, self.searched, self._effort

    def resume(self, state: tuple[int, int, int], shift: int) -> None:
        """Continue from a `state` whose offsets are `shift` bytes too small."""
        self.likely, self.searched, self._effort = state
        self.searched += shift
        self.skip(shift)
        if self.likely >= 0:
            self.likely += shift
