"""A guess at the frame that malformed bytes were meant to be: its sizes and command, as far as readable.

Most frames that do not parse begin with the right header, or with a mistake that clients often make:

    TOTAL_SIZE COMMAND_SIZE command    right header; the sizes may not match, or the command is broken
    the same with little-endian sizes
    SIZE command                       one of the sizes is missing
    command                            both sizes are missing
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from typing import Final, Literal, NamedTuple

from pulsarctl_wire.wire.commands import NAMES, PAYLOAD_TYPES, command_name
from pulsarctl_wire.wire.credentials import (
    MAX_FIELDS,
    Span,
    find_type,
    is_type,
    lacks_body,
    names_credentials,
)
from pulsarctl_wire.wire.frame import MAX_FRAME_SIZE, MAX_KEPT_FRAME, Malformed, header_at
from pulsarctl_wire.wire.framing.resync import MAX_FOUND_COMMAND, begins_command, check_command
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand
from pulsarctl_wire.wire.varint import SIZED, Field, describe_break, fields


class GuessedFrame(NamedTuple):
    """A guess at the frame that some bytes were meant to be, as offsets into them.

    type         type number of its command
    command_at   where the command begins
    end          where the command ends, by its size, or where the bytes end
    stop         where the entry after the command ends, likewise; `end` if there is none
    order        byte order of its sizes, "big" or "little"
    problem      what is wrong with its header; "" if nothing
    """

    type: int
    command_at: int
    end: int
    stop: int
    order: Literal["big", "little"] = "big"
    problem: str = ""


def guess_frame(raw: bytes) -> GuessedFrame | None:
    """Guess the frame that `raw` was meant to be. Returns None if no known command can be recognised."""
    return _guess(raw) if len(raw) <= Malformed.KEPT else _guess.__wrapped__(raw)


@lru_cache(maxsize=2)  # several callers ask about the same stretch
def _guess(raw: bytes) -> GuessedFrame | None:
    return _guess_big_endian(raw) or _guess_little_endian(raw) or _guess_without_sizes(raw)


def is_clearly_a_frame(raw: bytes) -> bool:
    """Return whether `raw` alone, without any context, shows that it was meant to be a frame.

    The command must begin with a known type and the tag that belongs to it. If one or both sizes are
    missing, the whole command must be valid.
    """
    guess = guess_frame(raw)
    return (
        guess is not None
        and begins_command(raw, guess.command_at, None)
        and (guess.command_at == 8 or check_command(raw[guess.command_at : guess.end], None) > 0)
    )


def _fields(raw: bytes, start: int, stop: int) -> Sequence[Field]:
    """Return all fields of the message at `raw[start:stop]`, up to the first broken one."""
    return _cached_fields(raw, start, stop) if len(raw) <= Malformed.KEPT else list(fields(raw, start, stop))


@lru_cache(maxsize=2)
def _cached_fields(raw: bytes, start: int, stop: int) -> tuple[Field, ...]:
    return tuple(fields(raw, start, stop))


def _guess_big_endian(raw: bytes) -> GuessedFrame | None:
    total, size = _sizes(raw, "big")
    if len(raw) < 10 or not 2 <= size <= MAX_KEPT_FRAME or total > MAX_KEPT_FRAME:
        return None
    number = find_type(_fields(raw, 8, min(8 + size, len(raw))))
    if number not in NAMES:
        return None
    problem = ""
    if total < size + 4:
        hint = "; it leaves out the 4 bytes of COMMAND_SIZE" if total == size else ""
        problem = f"COMMAND_SIZE {size} needs a TOTAL_SIZE of {size + 4} at least, and that is {total}{hint}"
    end = min(8 + size, len(raw))
    if total < size + 4 and not _is_complete(raw, end, number):
        end = min(end, max(4 + total, 8))
    stop = min(4 + total, len(raw)) if number in PAYLOAD_TYPES else end
    return GuessedFrame(number, 8, end, max(stop, end), "big", problem)


def _is_complete(raw: bytes, end: int, number: int) -> bool:
    """Return whether the command at `raw[8:end]` is just its type and a whole sub-message."""
    numbers = [0 if field.problem else field.number for field in _fields(raw, 8, end)]
    return sorted(numbers) == [1, number]


def is_little_endian(raw: bytes, pos: int) -> bool:
    """Return whether the sizes at `raw[pos:]` are too large in big-endian order, but not in the other."""
    total, size = _sizes(raw[pos : pos + 8], "little")
    return (
        _sizes(raw[pos : pos + 8], "big")[1] > MAX_FOUND_COMMAND and 2 <= size <= total - 4 < MAX_FRAME_SIZE
    )


def _guess_little_endian(raw: bytes) -> GuessedFrame | None:
    total, size = _sizes(raw, "little")
    if not 2 <= size <= total - 4 < MAX_KEPT_FRAME or not begins_command(raw, 8, None):
        return None
    end, stop = min(8 + size, len(raw)), min(4 + total, len(raw))
    number = next(fields(raw, 8, len(raw))).value
    return GuessedFrame(number, 8, end, stop if number in PAYLOAD_TYPES else end, "little", _LITTLE_ENDIAN)


def _guess_without_sizes(raw: bytes) -> GuessedFrame | None:
    for start, problem in _MISSING_SIZES:
        if begins_command(raw, start, None):
            parts = list(fields(raw, start, len(raw)))
            if len(parts) > 1 and parts[1].wire == SIZED and parts[1].number == parts[0].value:
                return GuessedFrame(parts[0].value, start, parts[1].stop, parts[1].stop, "big", problem)
    return None


_LITTLE_ENDIAN: Final = "the sizes are little-endian; Pulsar's are big-endian"
_MISSING_SIZES: Final = (
    (4, "one size before the command; TOTAL_SIZE and COMMAND_SIZE are expected there"),
    (0, "TOTAL_SIZE and COMMAND_SIZE are missing before the command"),
)


def _sizes(raw: bytes, order: Literal["big", "little"]) -> tuple[int, int]:
    return int.from_bytes(raw[:4], order), int.from_bytes(raw[4:8], order)


def describe_problem(raw: bytes) -> str:
    """Return what is wrong with the frame that `raw` was meant to be, to end a sentence; "" if unknown.

    For a command that may carry credentials, the text does not depend on the command's bytes.
    """
    guess = guess_frame(raw)
    if guess is None:
        return ""
    reason = guess.problem
    can_have_secrets = any(names_credentials(field) for field in _fields(raw, guess.command_at, guess.end))
    is_complete = guess.end < len(raw) or len(raw) < Malformed.KEPT  # otherwise its end may be missing
    if not reason and not can_have_secrets and is_complete:
        reason = describe_break(raw, guess.command_at, guess.end, BaseCommand.DESCRIPTOR)
    if reason or can_have_secrets:
        return f": {command_name(guess.type)}{', ' if reason else ''}{reason}"
    return ""


def find_doubtful_spans(raw: bytes) -> list[Span]:
    """Find the spans of malformed bytes that do not certainly belong to a command without credentials."""
    return list(_cached_spans(raw) if len(raw) <= Malformed.KEPT else _cached_spans.__wrapped__(raw))


@lru_cache(maxsize=2)
def _cached_spans(raw: bytes) -> list[Span]:
    guess = guess_frame(raw)
    if guess is None:
        return [(0, len(raw))]
    top = _fields(raw, guess.command_at, guess.end)
    if any(names_credentials(field) for field in top):
        visible_end = top[0].stop if is_type(top[0]) else guess.command_at
    else:
        visible_end = _find_harmless_end(top, guess)
        visible_end = find_credentials(raw, min(guess.end, visible_end), visible_end)
    return [(visible_end, len(raw))] if visible_end < len(raw) else []


def _find_harmless_end(top: Sequence[Field], guess: GuessedFrame) -> int:
    """Return the end of the bytes that are certainly a harmless command's type, sub-message and entry."""
    has_body = False
    for field in top:
        is_body = field.number == guess.type and field.wire == SIZED and not field.depth
        if is_body and field.at > field.start and field.problem:
            return guess.stop
        if field.problem or not (is_body or is_type(field)):
            return field.start
        has_body |= is_body
    return guess.stop if has_body else guess.end


_SIZES: Final = re.compile(
    rb"(?s)\x00(?=(..).\x00\1|...\x00..[\xfc-\xff])(?!\x00\x00\x00)(?=...\x00(?!\x00\x00[\x00\x01])...)"
)
"""Matches where TOTAL_SIZE = COMMAND_SIZE + 4 is possible: without a carry, only their last bytes differ."""

_MAX_WALKED: Final = 65_536  # fields that `find_credentials` looks at


def find_credentials(raw: bytes, start: int, stop: int) -> int:
    """Return where in `raw[start:stop]` the first frame that may carry credentials begins; `stop` if none.

    For bytes that no checksum covers: a frame whose size is too large swallows the frames after it. These are
    found by two matching sizes, followed by a command that names credentials, cannot be read, or is not what
    its type says.
    If the search takes too long, the bytes from there on count as credentials.
    """
    steps = 0
    for match in _SIZES.finditer(raw, start, stop):
        start = match.start()
        total, size = header_at(raw, start)
        if total != size + 4:
            continue
        top: list[Field] = []
        for field in islice(fields(raw, start + 8, min(start + 8 + size, stop)), MAX_FIELDS):
            steps += 1
            if field.problem or names_credentials(field) or steps > _MAX_WALKED:
                return start
            top.append(field)
        if lacks_body(top):
            return start
    return stop
