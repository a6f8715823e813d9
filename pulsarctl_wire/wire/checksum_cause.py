"""Explains a wrong checksum: what the sender may have computed instead, or which bit was flipped.

Only what arithmetic can tell is claimed. A mistake of the sender must give exactly the 32 bits of the
checksum. A flipped bit shows by the linearity of a CRC: a bit with n bits after it changes the CRC by the
residue of x^(n + 32). So if the right and the wrong number differ by the residue of x^k, then k says which
bit it was; below 32 it is a bit of the checksum itself. Powers of x repeat after 2^31 - 1 bits (256 MiB), and
no frame is as large, so no other single bit explains the same difference.

The covered bytes are those from METADATA_SIZE to the end of the frame, whatever that size says: it may itself
be damaged. Only ranges that separate metadata from payload rely on the size.

Sources: RFC 3720, section 12.1 (CRC32-C); LevelDB's util/crc32c.h (the masked form).
"""

import zlib
from collections.abc import Iterable, Iterator
from math import isqrt
from typing import Any, Final

from crc32c import crc32c

from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.frame_layout import FrameLayout, locate

ChecksumCause = dict[str, Any]
"""A cause: its `kind`, and for some kinds more, as docs/json.md says."""

_RIGHT_RANGE: Final = ("metadata size", "metadata", "payload")
_ZEROS: Final = "zeros for the checksum"
_RANGES: Final = (
    ("metadata", "payload"),
    ("payload",),
    ("metadata size", "metadata"),
    ("metadata",),
    ("magic", *_RIGHT_RANGE),
    ("magic", _ZEROS, *_RIGHT_RANGE),
    ("command", *_RIGHT_RANGE),
    ("command", "magic", *_RIGHT_RANGE),
    ("command", "magic", _ZEROS, *_RIGHT_RANGE),
    ("total size", "command size", "command", "magic", _ZEROS, *_RIGHT_RANGE),
)
"""What a sender may take for the covered range. Of ranges with the same bytes the first one is named."""

_POLYNOMIAL: Final = 0x82F63B78  # of CRC32-C. In all numbers here the highest bit is that of x^0
_ONE: Final = 0x80000000  # x^0
_ALL_ONES: Final = 0xFFFFFFFF
_MASK_DELTA: Final = 0xA282EAD8  # of the masked form in files of LevelDB, framed Snappy and TensorFlow


def find_checksum_cause(frame: Frame) -> ChecksumCause | None:
    """Find out why the checksum of `frame` is wrong; None if it is not, or if bytes of the frame are missing.

    Mistakes of the sender come before flipped bits, which are more often a coincidence: a random number looks
    like a flipped bit with a probability of n / 2^32, where n is the number of bits in the checksum and what
    it covers. That is 1 in 100 for 5 MiB, and 1 in 500,000 for 1 kB.
    """
    if frame.checksum != "invalid" or len(frame.raw) < frame.size:
        return None
    raw, parts = frame.raw, frame.parts
    if parts.stored is None or parts.computed is None:
        return None
    for cause, number in compute_mistakes(raw, parts):
        if number == parts.stored:
            return cause
    return _find_flipped_bit(raw, parts.checksum, parts.stored ^ parts.computed) or {"kind": "unknown"}


def compute_mistakes(raw: bytes, parts: FrameLayout) -> Iterator[tuple[ChecksumCause, int]]:
    """Compute the numbers that known mistakes put in place of a frame's checksum, each with its cause."""
    start, stop = parts.checksum
    data = memoryview(raw)[stop:]
    crc = crc32c(data)
    yield {"kind": "zero"}, 0
    yield {"kind": "crc32"}, zlib.crc32(data)
    yield {"kind": "byte_order"}, int.from_bytes(crc.to_bytes(4, "little"), "big")
    crc_from_zero = crc32c(data, _ALL_ONES)  # the library inverts its start value
    for number in (crc ^ _ALL_ONES, crc_from_zero, crc_from_zero ^ _ALL_ONES):
        yield {"kind": "not_inverted"}, number
    yield {"kind": "masked"}, ((crc >> 15 | crc << 17) + _MASK_DELTA) & _ALL_ONES
    metadata_at, payload_at = parts.metadata if not parts.problem else (stop + 4, len(raw))
    command_end = 8 + int.from_bytes(raw[4:8], "big")
    pieces: dict[str, bytes | memoryview] = {
        "total size": raw[:4],
        "command size": raw[4:8],
        "command": raw[8:command_end],
        "magic": raw[start - 2 : start],
        _ZEROS: bytes(4),
        "metadata size": data[:4],
        "metadata": memoryview(raw)[metadata_at:payload_at],
        "payload": memoryview(raw)[payload_at:],
    }
    for names in _RANGES:
        yield {"kind": "range", "covers": _list(names)}, _crc32c_of(pieces[name] for name in names)


def _list(names: tuple[str, ...]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _crc32c_of(pieces: Iterable[bytes | memoryview]) -> int:
    crc = 0
    for piece in pieces:
        crc = crc32c(piece, crc)
    return crc


def _find_flipped_bit(raw: bytes, checksum: tuple[int, int], difference: int) -> ChecksumCause | None:
    """Find the one bit whose flip makes the checksum right; None if there is none.

    `checksum` is the span of the checksum, `difference` the XOR of the wrong and the right one.
    """
    start, stop = checksum
    exponent = _find_exponent(difference, 32 + 8 * (len(raw) - stop))
    if exponent is None:
        return None
    # bytes count from the checksum's first one, or from the last one that it covers; bits from the highest
    offset = start + exponent // 8 if exponent < 32 else len(raw) - 1 - (exponent - 32) // 8
    bit = 7 - exponent % 8
    copy = bytearray(raw)
    copy[offset] ^= 1 << bit
    proof = locate(bytes(copy), start - 2)
    return {"kind": "bit", "offset": offset, "bit": bit} if proof.stored == proof.computed else None


def _find_exponent(number: int, limit: int) -> int | None:
    """Return k below `limit` for which `number` is the residue of x^k; None if there is none.

    Baby steps, giant steps: multiply `number` by each small power of x, and then look for one of these
    products among powers that are a `stride` apart. Both take about sqrt(`limit`) steps.
    """
    stride = 8 * (isqrt(limit) // 8 + 1)
    small_exponents: dict[int, int] = {}  # product -> exponent of the small power in it
    for exponent in range(stride):
        small_exponents[number] = exponent
        number = number >> 1 ^ (_POLYNOMIAL if number & 1 else 0)  # times x
    power, zeros = _ONE, bytes(stride // 8)
    for exponent in range(0, limit + stride, stride):
        result = exponent - small_exponents.get(power, exponent + 1)
        if 0 <= result < limit:
            return result
        power = crc32c(zeros, power ^ _ALL_ONES) ^ _ALL_ONES  # times x^stride: that many zeros follow
    return None


def describe_checksum_cause(cause: ChecksumCause) -> str:
    """Return a cause in plain words, which go on after "the checksum is wrong: "."""
    kind = cause["kind"]
    if kind == "range":
        return f"it covers {cause['covers']}; right is {_list(_RIGHT_RANGE)}"
    if kind == "bit":
        offset = cause["offset"]
        return f"one flipped bit explains it: bit {cause['bit']} of byte {offset} (0x{offset:x})"
    return _WORDS[kind]


def explain_checksum(frame: Frame) -> str:
    """Describe why the checksum of `frame` is wrong; "" where `find_checksum_cause` gives None."""
    cause = find_checksum_cause(frame)
    return "" if cause is None else describe_checksum_cause(cause)


_WORDS: Final = {
    "zero": "0 stands in its place",
    "crc32": "it is zlib's CRC-32, not CRC32-C",
    "byte_order": "it is the right number with its bytes reversed",
    "not_inverted": "it lacks the inversion at the beginning or at the end of CRC32-C",
    "masked": "it is the right number, masked as in files of LevelDB and TensorFlow",
    "unknown": "no usual mistake and no single flipped bit explains it",
}
