r"""Parses hex dumps: text that a tool printed or someone pasted -> the bytes that it shows.

Lines belong to one of three families, and a text to the family of its lines.

- *rows*: an offset, the bytes in hex, perhaps their ASCII (xxd, hexdump -C, tcpdump, Wireshark):
  `hexrows.py`
- *literals*: quoted strings with escapes (Python, C, Wireshark's escaped string)
- *plain*: only hex digits and separators (hex streams, xxd -p, arrays of 0x09)

Rows and plain digits are parsed as they are read, so a dump of any length takes little memory. The family is
detected from the first `_HEAD` bytes.

Invariants: pure; untrusted text raises only CaptureError, in time linear in its length; `*`
lines stand for MAX_REPEATED bytes and MAX_ZEROS zeros at most. Lines of no family (prompts,
tcpdump's packet headers, prose) are skipped; an invalid line of the text's family is an error, because bytes
that were silently lost would look like a malformed frame later.
"""

import re
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Literal

from pulsarctl_wire.capture.hexrows import PIECE, Dumped, Row, parse_rows, read_row
from pulsarctl_wire.errors import CaptureError

MAX_LITERALS = 4 << 20
"""Maximum bytes of a text of literals, which is read into memory."""

_SNIFFED = 4096
_HEAD = 256 << 10
_LONGEST = 64 << 10
_BREAKS = " ,;\t\\"  # where a long line of digits is broken: at a separator, or before an escape
_Form = Literal["rows", "literals", "plain", "words", ""]


def looks_like_hexdump(head: bytes) -> bool:
    """Return whether a file that starts with `head` (at most 4096 bytes) is text for `parse_hexdump`."""
    if any(byte < 0x20 and byte not in b"\t\n\r\f" for byte in head):
        return False
    lines = _lines(head.decode("utf-8", "replace"))
    if len(head) >= _SNIFFED and len(lines) > 1:
        lines.pop()  # it may be cut
    form = _detect_form(lines)
    return _is_mostly_plain(lines) if form == "plain" else form != ""


def parse_hexdump(chunks: Iterable[bytes]) -> Iterator[Dumped]:
    """Parse a dump of any form: one item per packet (rows whose offset starts again at 0), else one item.

    `chunks` are the bytes of the text. More than `PIECE` bytes are yielded as several items, all but the last
    with `more`. Raises CaptureError, naming the line, if there is no hex or a line contradicts the offsets.
    """
    chunk_iterator = iter(chunks)
    head = b""
    while len(head) < _HEAD and (chunk := next(chunk_iterator, b"")):
        head += chunk
    form = _detect_form(_lines(head.decode("utf-8", "replace")))
    if form == "words":
        raise CaptureError("these are 16-bit words in the machine's byte order: use `hexdump -C` or `xxd`")
    if form == "literals":
        return iter([_parse_literals(_read_whole(head, chunk_iterator))])
    lines = _split_lines(chain([head], chunk_iterator))
    return parse_rows(lines) if form == "rows" else _parse_plain(lines)


def _read_whole(head: bytes, chunks: Iterable[bytes]) -> list[str]:
    text = bytearray(head)
    for chunk in chunks:
        text += chunk
        if len(text) > MAX_LITERALS:
            raise CaptureError(f"more than {MAX_LITERALS} bytes of literals; write their bytes to a file")
    return _lines(text.decode("utf-8", "replace"))


def _split_lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Yield the lines of a text as they are read; a very long one in pieces."""
    decoder = getincrementaldecoder("utf-8-sig")("replace")
    text = ""
    for chunk in chunks:
        *lines, text = (text + decoder.decode(chunk)).split("\n")
        for line in lines:
            if len(line) > _LONGEST:
                yield from _break_line(line.rstrip("\r"), 0)
            else:
                yield line.rstrip("\r")
        *pieces, text = _break_line(text, _LONGEST)
        yield from pieces
    yield from _break_line((text + decoder.decode(b"", True)).rstrip("\r"), 0)


def _break_line(line: str, keep: int) -> Iterator[str]:
    """Yield a line in pieces of at most `_LONGEST` characters; the last may have up to `keep` more."""
    start = 0
    while len(line) - start > _LONGEST + keep:
        end = start + _LONGEST
        position = max(line.rfind(sign, start + 1, end) for sign in _BREAKS)
        stop = position if position > 0 else end
        yield line[start:stop]
        start = stop
    yield line[start:]


# ---- Which form ----

# hexdump and od without options: octal or hex words, which their digits do not distinguish.
_WORDS = re.compile(r"[0-9A-Fa-f]{7}(?: +[0-9A-Fa-f]{4,6}){1,8}\s*$")
_PROMPTS = ("$", "#", "//", "%")


def _lines(text: str) -> list[str]:
    """Split only at line feeds: `str.splitlines` would also split inside a gutter."""
    return [line.rstrip("\r") for line in text.removeprefix("\ufeff").split("\n")]


def _detect_form(lines: Iterable[str]) -> _Form:
    """Return the family: rows if any row has a colon, otherwise that of the first line of any family."""
    first: _Form = ""
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith(_PROMPTS):
            continue
        row = read_row(number, line)
        if row is not None and row.has_colon and row.is_plausible:
            return "rows"
        first = first or _detect_line_form(line, row)
    return first


def _detect_line_form(line: str, row: "Row | None") -> _Form:
    if row is not None and row.is_plausible:
        return "rows"
    if _WORDS.match(line):
        return "words"
    if _LITERAL.match(line):
        return "literals"
    tokens = _tokens(line)
    # A word of prose may consist of the letters a to f: "added"
    return "plain" if tokens and any("0" <= digit <= "9" for token in tokens for digit in token) else ""


# ---- Literals ----

# Only a name, an equals sign and brackets may come before it
_LITERAL = re.compile(r"""(?:[^"'=]*=)?[\s(>]*(?:[bB]["']|["']\\x[0-9A-Fa-f]{2})""")
_QUOTE = re.compile(r"""(?<!\w)([bB]?)(["'])""")
_PIECES = {
    quote: re.compile(rf"\\(?:x([0-9A-Fa-f]{{2}})|([0-7]{{1,3}})|(.))|([^{quote}\\]+)") for quote in "\"'"
}
_ESCAPES = {
    "a": b"\a", "b": b"\b", "f": b"\f", "n": b"\n", "r": b"\r", "t": b"\t", "v": b"\v",
    "\\": b"\\", "'": b"'", '"': b'"',
}  # fmt: skip


def _parse_literals(lines: list[str]) -> Dumped:
    """Join the bytes literals, or all strings if there are no bytes literals."""
    literals: list[tuple[bool, bytes]] = []
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith(_PROMPTS):
            continue
        position = 0
        while match := _QUOTE.search(line, position):
            data, position = _read_literal(line, match.end(), match[2], number)
            literals.append((bool(match[1]), data))
    prefixed = any(is_bytes for is_bytes, _ in literals)
    data = b"".join(data for is_bytes, data in literals if is_bytes or not prefixed)
    if not data:
        raise CaptureError(f"no hex bytes in lines 1 to {len(lines)}")
    return Dumped(data, None, "")


def _read_literal(line: str, position: int, quote: str, number: int) -> tuple[bytes, int]:
    """Return the bytes of the string whose content starts at `position`, and the position after its end."""
    out = bytearray()
    while match := _PIECES[quote].match(line, position):
        pair, octal, escape, text = match.groups()
        if pair:
            out.append(int(pair, 16))
        elif octal:
            if int(octal, 8) > 255:
                raise CaptureError(f"line {number}: \\{octal} is more than a byte")
            out.append(int(octal, 8))
        elif text or escape in _ESCAPES:
            out += _ESCAPES[escape] if escape else _ascii(text, number)
        elif escape == "x":
            raise CaptureError(f"line {number}: \\x without two hex digits")
        else:
            out += b"\\" + _ascii(escape, number)  # as Python does
        position = match.end()
    if line[position : position + 1] != quote:
        raise CaptureError(f"line {number}: the string is not closed")
    return bytes(out), position + 1


def _ascii(text: str, number: int) -> bytes:
    if not text.isascii():
        raise CaptureError(f"line {number}: a string of bytes may only have ASCII and escapes")
    return text.encode("ascii")


# ---- Plain hex ----

_HEX = re.compile(r"[0-9A-Fa-f]+")
_SEPARATORS = str.maketrans(dict.fromkeys(",;:-()[]", " "))
_MIN_BYTES = 4
_LONG = 32  # more digits than a number has


def _parse_plain(lines: Iterable[str]) -> Iterator[Dumped]:
    """Parse plain hex digits; a line may end between the two digits of a byte, as in a wrapped hex stream."""
    data = bytearray()
    has_yielded = False
    edge, last, number = "", 0, 0
    for number, line in enumerate(lines, 1):
        tokens = _tokens(line)
        if tokens is None:
            _refuse_broken(number, line)
            continue
        for index, token in enumerate(tokens, 1):
            digits = edge + token
            edge, last = "", number
            if len(digits) % 2:
                if index < len(tokens):
                    raise CaptureError(f"line {number}: {_shorten(token)} has an odd number of hex digits")
                digits, edge = digits[:-1], digits[-1]
            data += bytes.fromhex(digits)
        if len(data) >= PIECE:
            yield Dumped(bytes(data), None, "", more=True)
            has_yielded = True
            data.clear()
    if edge:
        raise CaptureError(f"line {last}: an odd number of hex digits")
    if not data and not has_yielded:
        raise CaptureError(f"no hex bytes in lines 1 to {number}")
    yield Dumped(bytes(data), None, "")


def _tokens(line: str) -> list[str] | None:
    """Return the hex digits of a line, without prefixes and separators; None if it has anything else."""
    if _HEX.fullmatch(line):
        return [line]
    tokens: list[str] = []
    for word in _words(line):
        prefixed = word[:2] in ("0x", "0X")
        digits = word[2:] if prefixed else word
        if not _HEX.fullmatch(digits):
            return None
        tokens.append("0" + digits if prefixed and len(digits) == 1 else digits)
    return tokens


def _words(line: str) -> list[str]:
    """Split a line at separators, without comments and anything outside the braces of an array."""
    text = line.partition("#")[0].partition("//")[0]
    if text.lstrip().startswith("/*"):
        text = text.partition("*/")[2]
    text = text.partition("/*")[0].rpartition("{")[2].partition("}")[0]
    return text.replace("\\x", " ").translate(_SEPARATORS).split()


def _refuse_broken(number: int, line: str) -> None:
    """Raise CaptureError for a line of hex with a typo, which must not be taken for prose."""
    words = _words(line)
    wrong = [word for word in words if not _HEX.fullmatch(word.removeprefix("0x"))]
    good = len(words) - len(wrong)
    if words[0] != wrong[0] and good >= max(_MIN_BYTES, len(wrong)):
        raise CaptureError(f"line {number}: {_shorten(wrong[0])} is not hex")


def _shorten(word: str) -> str:
    return repr(word if len(word) <= 20 else word[:20] + "...")


def _is_mostly_plain(lines: list[str]) -> bool:
    """Return whether plain digits are hex, not numbers (CSV, JSON, dates) or prose with a line of hex."""
    digits: list[str] = []
    plain = total = 0
    for line in lines:
        tokens = _tokens(line)
        if line.lstrip().startswith(_PROMPTS):
            continue
        total += len(line.strip())
        if not tokens:
            continue
        if "0x" not in line.lower() and not _is_regular(line, tokens):
            return False
        plain += len(line.strip())
        digits += tokens
    joined = "".join(digits)
    if len(joined) < 2 * _MIN_BYTES or plain * 4 < total:
        return False
    # Only decimal digits: hex if they start with 00 or are very long, unlike JSON and CSV numbers.
    decimal = joined.isdecimal() and not joined.startswith("00") and max(map(len, digits)) < _LONG
    return not decimal or "0x" in "".join(lines).lower()


def _is_regular(line: str, tokens: list[str]) -> bool:
    """Return whether a line without prefixes is bytes: pairs between separators, or runs of even length."""
    if line.lstrip().startswith(("[", "{")):
        return False
    if any(sign in line for sign in ",:-"):
        return all(len(token) == 2 for token in tokens)
    return not any(len(token) % 2 for token in tokens[:-1])
