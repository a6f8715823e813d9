"""Finds where a frame begins in a stream that is out of step, with strict checks of each candidate.

In step, a frame is accepted by its sizes and its command. Out of step it must be unmistakable: a known
command with its sub-message and all required fields, without unknown fields, sent in the right direction;
no bytes after a command without payload; and after SEND and MESSAGE an entry whose metadata is complete
and whose CRC32-C, if it has one, is valid.

One valid frame ends the search where the bytes resume, or where the damaged frame should have ended; that
place is checked first, and there the CRC32-C may be wrong. Anywhere else two frames in a row are needed, as a
payload may contain anything, even Pulsar frames. Candidates are checked in order, so a later one never wins
while an earlier one is still arriving. The effort is bounded: if searches have spent much more than the
stream's bytes pay for, only small candidates are checked until more bytes have passed.
"""

import re
from typing import Final

from google.protobuf.message import DecodeError
from mypy_extensions import mypyc_attr

from pulsarctl_wire.wire.commands import BODIES, PAYLOAD_TYPES, TO_BROKER
from pulsarctl_wire.wire.fields import has_unknown_fields
from pulsarctl_wire.wire.frame import header_at
from pulsarctl_wire.wire.frame_layout import FrameLayout, locate
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, MessageMetadata

MAX_FOUND_COMMAND: Final = 64 * 1024
"""Bytes of the largest command accepted out of step (one with very many topics may be larger)."""

# effort is counted as `judge` says
_FREE_EFFORT: Final = 1024 * 1024  # effort beyond what the stream's bytes pay for
_EFFORT_PER_BYTE: Final = 8  # effort that each byte of the stream pays for
_PARSING_COST: Final = 64  # how many times longer it takes to parse a byte than to checksum it
_SMALL_COMMAND: Final = 256  # bytes of the largest small command
_SMALL_FRAME: Final = 4096  # the largest TOTAL_SIZE of a small frame

CANDIDATE: Final = re.compile(rb"(?s)(?=\x00\x00..\x08[\x02-\x7f])")
"""Matches COMMAND_SIZE and the field `type`: four bytes after each place where a frame may begin."""

CANDIDATE_SPAN: Final = 10
"""Bytes from the beginning of a frame to the end of what `CANDIDATE` matches."""


COMMAND_HEAD: Final = 4
"""Maximum bytes that `begins_command` looks at."""


def _command_head(number: int) -> bytes:
    base = BaseCommand(type=number)  # type: ignore[arg-type]
    getattr(base, BODIES[number]).SetInParent()
    return base.SerializePartialToString()[:-1]  # without the length of the empty sub-message


COMMAND_HEADS: Final = {_command_head(number): number for number in BODIES}
"""First bytes of a command (the field `type`, and the tag of its sub-message) -> its type number."""


def begins_command(data: bytes, offset: int, to_broker: bool | None) -> bool:
    """Return whether a known command that may be sent in this direction begins at `data[offset:]`."""
    number = COMMAND_HEADS.get(data[offset : offset + 3], COMMAND_HEADS.get(data[offset : offset + 4]))
    return number is not None and (to_broker is None or TO_BROKER.get(number, to_broker) is to_broker)


def judge_command(data: bytes, offset: int, to_broker: bool | None, limit: int) -> int:
    """Judge whether a frame with a valid header and command begins at `data[offset:]`.

    Returns the offset in `data` where that frame ends, 0 if there is certainly none, or -n if `data` must
    have n bytes to decide. `limit` is the largest frame in bytes; a `to_broker` of None means either
    direction.
    """
    if len(data) - offset < 8:
        return -(offset + 8)
    total, size = header_at(data, offset)
    if size < 4 or size > MAX_FOUND_COMMAND or size + 4 > total or total + 4 > limit:
        return 0
    if len(data) - offset < 8 + size:
        # every client and broker writes the field `type` first
        return 0 if data[offset + 8 : offset + 9] not in (b"\x08", b"") else -(offset + 8 + size)
    if data[offset + 8] != 8:
        return 0
    number = check_command(data[offset + 8 : offset + 8 + size], to_broker)
    return offset + 4 + total if number and (total - size > 8) == (number in PAYLOAD_TYPES) else 0


def check_command(command: bytes, to_broker: bool | None) -> int:
    """Return the type of `command` if it is known, complete, and sent in the right direction; otherwise 0."""
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
    offset: int,
    to_broker: bool | None,
    limit: int,
    *,
    any_checksum: bool = False,
    any_size: bool = True,
) -> tuple[int, int]:
    """Judge whether a complete, valid frame is at `data[offset:]`: `judge_command`'s result, and the effort.

    The effort is roughly the number of bytes parsed. `any_checksum` is for places where a frame is likely:
    there the checksum may be wrong. Without `any_size` only small frames are accepted, to save effort.
    """
    if not any_size and len(data) - offset >= 8:
        total, size = header_at(data, offset)
        if size > _SMALL_COMMAND or total > _SMALL_FRAME:
            return 0, 0
    stop, effort = judge_command(data, offset, to_broker, limit), _command_effort(data, offset)
    if stop <= 0:
        return stop, effort
    if stop > len(data):
        return -stop, effort
    command_end = offset + 8 + int(header_at(data, offset)[1])
    if command_end == stop:
        return stop, effort
    entry = data[command_end:stop]
    parts = locate(entry, 0)
    start, end = parts.metadata
    effort += end - start + len(entry) // _PARSING_COST
    return stop if _is_valid(entry, parts, any_checksum) else 0, effort


def judge_pair(
    data: bytes, offset: int, to_broker: bool | None, limit: int, *, any_size: bool
) -> tuple[int, int]:
    """Do the same as `judge`, but a valid header and command must follow the frame at `data[offset:]`."""
    verdict, effort = judge(data, offset, to_broker, limit, any_size=any_size)
    if verdict <= 0:
        return verdict, effort
    if not any_size and len(data) - verdict >= 8 and header_at(data, verdict)[1] > _SMALL_COMMAND:
        return 0, effort
    return judge_command(data, verdict, to_broker, limit), effort + _command_effort(data, verdict)


def _is_valid(entry: bytes, parts: FrameLayout, any_checksum: bool) -> bool:
    if parts.problem or (parts.stored != parts.computed and not any_checksum):
        return False
    start, stop = parts.metadata
    try:
        return MessageMetadata.FromString(entry[start:stop]).IsInitialized()
    except DecodeError:
        return False


def _command_effort(data: bytes, offset: int) -> int:
    """Estimate the effort of judging the header and the command at `data[offset:]`."""
    size = int(header_at(data, offset)[1]) if len(data) - offset >= 8 else 0
    return 8 + size if size <= min(MAX_FOUND_COMMAND, len(data) - offset - 8) else 8


def is_parseable(command: bytes) -> bool:
    """Return whether `command` parses as a BaseCommand, whatever is in it."""
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

    def find(self, data: bytes, start: int, to_broker: bool | None, limit: int, is_last: bool) -> int:
        """Find the index in `data` where a frame certainly begins; -1 if there is none yet.

        `start` is the offset of `data`. After -1, `need` is how many bytes `data` must have next time.
        `is_last`: no more bytes will come. The other parameters are those of `judge`.
        """
        if self.likely >= start:
            index = self.likely - start
            can_afford = self._can_afford(self.searched)
            verdict_and_effort = judge(data, index, to_broker, limit, any_checksum=True, any_size=can_afford)
            verdict = self._charge(verdict_and_effort, self.searched, is_last)
            if verdict > 0:
                return index
            if verdict < 0 and not is_last:
                self.need = -verdict
                return -1
            self.likely = -1
        for match in CANDIDATE.finditer(data, self.searched - start + 4):
            index = match.start() - 4
            verdict_and_effort = judge_pair(
                data, index, to_broker, limit, any_size=self._can_afford(start + index)
            )
            verdict = self._charge(verdict_and_effort, start + index, is_last)
            if verdict > 0:
                return index
            if verdict < 0 and not is_last:
                self.searched = start + index
                self.need = -verdict
                return -1
        self.searched = max(self.searched, start + len(data) - CANDIDATE_SPAN + 1)
        self.need = 0
        return -1

    def first_index_to_keep(self, start: int, index: int) -> int:
        """Return the index of the first byte to keep, as a frame may begin there.

        `start` is the offset of the bytes, `index` that of the first one that is not passed over yet.
        """
        return index if self.likely >= start else self.searched - start

    def skip(self, size: int) -> None:
        """Note that the stream has `size` bytes, such as a gap, that do not pay for effort."""
        self._effort += _EFFORT_PER_BYTE * size

    def is_in_debt(self, offset: int) -> bool:
        """Return whether more effort was spent than the bytes up to `offset` pay for."""
        return self._effort > _EFFORT_PER_BYTE * offset

    def _can_afford(self, offset: int) -> bool:
        """Return whether large candidates may be judged at `offset`, too."""
        return self._effort - _EFFORT_PER_BYTE * offset <= _FREE_EFFORT

    def _charge(self, verdict_and_effort: tuple[int, int], offset: int, is_last: bool) -> int:
        """Return the verdict of a judgement at `offset`. Counts its effort only if the verdict is final."""
        verdict, effort = verdict_and_effort
        if verdict >= 0 or is_last:
            self._effort = max(self._effort, _EFFORT_PER_BYTE * offset) + effort
        return verdict

    def state(self) -> tuple[int, int, int]:
        """Return the state as plain data, for `resume`."""
        return self.likely, self.searched, self._effort

    def resume(self, state: tuple[int, int, int], shift: int) -> None:
        """Continue from a `state` whose offsets are `shift` bytes too small."""
        self.likely, self.searched, self._effort = state
        self.searched += shift
        self.skip(shift)
        if self.likely >= 0:
            self.likely += shift
