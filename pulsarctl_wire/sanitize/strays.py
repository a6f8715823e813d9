"""Bytes that are no frames, replaced so that pwire still says the same about them.

other protocols        the structure of TLS records, HTTP and PROXY headers stays, names in them are replaced
meant to be a frame    sizes, tags and numbers stay, as far as they can be read
anything else          noise, which begins no frame
"""

import struct
from typing import Final

from pulsarctl_wire.sanitize import vocabulary
from pulsarctl_wire.sanitize.fields import FieldRewriter
from pulsarctl_wire.sanitize.names import Pseudonyms
from pulsarctl_wire.sanitize.noise import Noise, is_text
from pulsarctl_wire.sanitize.tls import TlsRewriter
from pulsarctl_wire.wire.commands import PAYLOAD_TYPES
from pulsarctl_wire.wire.frame import MAX_FRAME_SIZE, MAX_PARSED, header_at
from pulsarctl_wire.wire.frame_layout import locate
from pulsarctl_wire.wire.framing.foreign import PROXY_V2, proxy_header, recognise
from pulsarctl_wire.wire.framing.malformed import GuessedFrame, guess_frame
from pulsarctl_wire.wire.framing.resync import begins_command, is_parseable
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, MessageMetadata
from pulsarctl_wire.wire.varint import fields

_SIZES_END: Final = 8  # TOTAL_SIZE and COMMAND_SIZE end there
_ATTEMPTS: Final = 256
_PROXY_ADDRESSES: Final = {1: 4, 2: 16}  # family (IPv4, IPv6) -> bytes of an address
_TEXTS: Final = ("HTTP", "SSH")
_HTTP_END: Final = b"\r\n\r\n"


class StrayRewriter:
    """Replaces the stray bytes of one direction of a connection, a stretch at a time."""

    def __init__(self, pseudonyms: Pseudonyms, noise: Noise, fields: FieldRewriter) -> None:
        self._pseudonyms = pseudonyms
        self._noise = noise
        self._fields = fields
        self.begin()

    def begin(self) -> None:
        """Begin another stretch."""
        self._protocol: str | None = None  # not known yet
        self._tls = TlsRewriter(self._pseudonyms, self._noise)

    def rewrite(self, data: bytes, *, in_step: bool) -> bytes:
        """Return what replaces the next bytes of the stretch. `in_step`: a frame should have begun there."""
        if self._protocol is None:
            size, _ = proxy_header(data)
            if size:
                return self._rewrite_proxy_header(data[:size]) + self._noise.like(data[size:])
            self._protocol = recognise(data)[0]
            if not self._protocol:
                return self._rewrite_frame(data) if in_step else self._noise.like(data)
            if self._protocol in _TEXTS:
                head, end, body = data.partition(_HTTP_END)
                head = self._pseudonyms.replace_words(head, vocabulary.HTTP)
                return b"".join((head, end, self._rewrite_text(body)))
        if self._protocol == "TLS":
            return self._tls.rewrite(data)
        return self._rewrite_text(data) if self._protocol in _TEXTS else self._noise.like(data)

    def _rewrite_text(self, data: bytes) -> bytes:
        if not is_text(data):
            return self._noise.like(data)
        return self._pseudonyms.replace_words(data, vocabulary.HTTP)

    def _rewrite_proxy_header(self, data: bytes) -> bytes:
        if not data.startswith(PROXY_V2):
            return self._pseudonyms.replace_words(data, vocabulary.HTTP)
        size = _PROXY_ADDRESSES.get(data[13] >> 4)
        if size is None or len(data) < 16 + 2 * size:
            return data[:16] + self._noise.like(data[16:])
        addresses = [self._pseudonyms.addresses.replace(data[pos : pos + size]) for pos in (16, 16 + size)]
        ports = 16 + 2 * size
        return b"".join((data[:16], *addresses, data[ports : ports + 4], self._noise.like(data[ports + 4 :])))

    def _rewrite_frame(self, data: bytes) -> bytes:
        """Return what replaces bytes that begin where a frame should have begun."""
        guess = guess_frame(data)
        if guess is None and begins_command(data, _SIZES_END, None):  # with sizes that cannot be right
            number = next(fields(data, _SIZES_END, len(data))).value
            guess = GuessedFrame(number, _SIZES_END, min(_SIZES_END + header_at(data, 0)[1], len(data)), 0)
        if guess is None:
            return self._rewrite_sizes(data[:_SIZES_END]) + self._rewrite_unknown(data)
        out = bytearray(data)
        stop = guess.end
        if guess.command_at == _SIZES_END and guess.order == "big":
            # TOTAL_SIZE may be too small for the command
            stop = max(stop, min(_SIZES_END + header_at(data, 0)[1], len(data)))
        self._fields.rewrite(data, guess.command_at, stop, BaseCommand.DESCRIPTOR, out)
        if guess.type in PAYLOAD_TYPES and guess.stop > guess.end:
            parts = locate(data[: guess.stop], guess.end)
            if not parts.problem:
                start, stop = parts.metadata
                self._fields.rewrite(data, start, stop, MessageMetadata.DESCRIPTOR, out)
        out[stop:] = self._noise.like(data[stop:])
        return bytes(out)

    def _rewrite_unknown(self, data: bytes) -> bytes:
        """Return what replaces the bytes after the sizes; its command parses only if the old one did."""
        rest = data[_SIZES_END:]
        size = header_at(data, 0)[1] if len(data) >= _SIZES_END else 0
        if not 0 < size <= len(rest):
            return self._noise.like(rest)
        if is_parseable(rest[:size]):
            out = bytearray(rest)
            self._fields.rewrite(rest, 0, size, BaseCommand.DESCRIPTOR, out)
            out[size:] = self._noise.like(rest[size:])
            return bytes(out)
        for number in range(_ATTEMPTS):
            key = self._pseudonyms.key_of(rest + struct.pack(">I", number))
            noise = Noise.draw(key, len(rest), is_text(rest))
            if not is_parseable(noise[:size]):
                break
        return noise

    def _rewrite_sizes(self, sizes: bytes) -> bytes:
        """Return what replaces bytes where sizes should be: numbers stay, text gets equally wrong text."""
        if len(sizes) < _SIZES_END or not is_text(sizes):
            return sizes
        for number in range(_ATTEMPTS):
            key = self._pseudonyms.key_of(sizes + struct.pack(">I", number))
            candidate = Noise.draw(key, _SIZES_END, is_printable=True)
            if _judge(candidate) == _judge(sizes) and not any(recognise(candidate)):
                return candidate
        return sizes


def _judge(sizes: bytes) -> tuple[bool, ...]:
    """Return in which ways these bytes are wrong as TOTAL_SIZE and COMMAND_SIZE."""
    total, size = header_at(sizes, 0)
    return size + 4 > total or size < 2, size > MAX_PARSED, total + 4 > MAX_FRAME_SIZE
