"""TLS that was not decrypted: records and handshakes keep their structure, names in them are replaced.

Alerts stay, what is encrypted becomes noise. In certificates, texts become pseudonyms and keys noise; times
stay. Sources: RFC 8446, 5246; X.690 (DER).
"""

import re
from typing import Final

from pulsarctl_wire.sanitize.names import Kind, Pseudonyms
from pulsarctl_wire.sanitize.noise import Noise

_HEADER: Final = 5
_CHANGE, _ALERT, _HANDSHAKE = 20, 21, 22
_PLAIN_ALERT: Final = 2  # bytes
_HELLOS: Final = {1, 2, 6, 8}  # and HelloRetryRequest, EncryptedExtensions
_HELLO_HEADS: Final = tuple(bytes([number]) for number in _HELLOS)
_MESSAGE_HEADER: Final = 4
_CERTIFICATE: Final = 11
_KEY_EXCHANGE: Final = 12
_NAMED_CURVE: Final = b"\3"
_SIZES: Final = {4: 6, 15: 4, 16: 1}
"""Message (ticket, signature, client's share) -> bytes before what is random: sizes and algorithms."""
_TYPES: Final = {0, 1, 2, 4, 8, 11, 12, 13, 14, 15, 16, 20}
_TEXT: Final = re.compile(rb"[A-Za-z0-9.*_-]{4,}")
_PUBLIC: Final = re.compile(rb"http/1\.[01]|h2|spdy/3")  # ALPN
_STRINGS: Final = {0x0C, 0x13, 0x14, 0x16, 0x1A, 0x1E, 0x81, 0x82, 0x86}
"""Tags of texts in DER: strings, and alternative names."""
_OPAQUE: Final = {0x02, 0x03, 0x04, 0x80}
"""Tags of numbers, strings of bits and bytes, and identifiers of keys in DER."""
_BITS: Final = 0x03
_BIT_AND_BYTE_STRINGS: Final = (_BITS, 0x04)
_SEQUENCE: Final = b"\x30"
_IP_ADDRESS: Final = 0x87
_SMALL: Final = 8  # bytes of a number that may stay
_MAX_DEPTH: Final = 32


class TlsRewriter:
    """Replaces the bytes of one direction of TLS, in pieces of any size."""

    def __init__(self, pseudonyms: Pseudonyms, noise: Noise) -> None:
        self._pseudonyms = pseudonyms
        self._noise = noise
        self._left = 0  # bytes of a record that come with the next piece
        self._head = b""  # the beginning of a record's header that came with the last piece

    def rewrite(self, data: bytes) -> bytes:
        """Return what replaces the next bytes."""
        pos = min(self._left, len(data))
        out = [self._noise.like(data[:pos])]
        self._left -= pos
        if self._head:
            pos = min(_HEADER - len(self._head), len(data))
            self._head += data[:pos]
            out.append(data[:pos])
            if len(self._head) == _HEADER:
                self._left, self._head = int.from_bytes(self._head[3:], "big"), b""
                return b"".join((*out, self.rewrite(data[pos:])))
        while len(data) - pos >= _HEADER:
            size = int.from_bytes(data[pos + 3 : pos + _HEADER], "big")
            start = pos + _HEADER
            content = data[start : start + size]
            out += [data[pos:start], self._rewrite_record(data[pos], content, len(content) == size)]
            self._left = size - len(content)
            pos = start + len(content)
        if pos < len(data):
            self._head = data[pos:]
            out.append(self._head)
        return b"".join(out)

    def _rewrite_record(self, kind: int, content: bytes, is_complete: bool) -> bytes:
        if kind == _CHANGE or (kind == _ALERT and len(content) <= _PLAIN_ALERT):
            return content
        if kind != _HANDSHAKE:
            return self._noise.like(content)
        if len(content) < _MESSAGE_HEADER and not is_complete and content[:1] in _HELLO_HEADS:
            return content  # it is cut there
        out, pos = b"", 0
        while len(content) - pos >= _MESSAGE_HEADER:
            number, stop = (
                content[pos],
                pos + _MESSAGE_HEADER + int.from_bytes(content[pos + 1 : pos + 4], "big"),
            )
            if stop > len(content) and not is_complete:
                stop = len(content)  # it is cut
            if number not in _TYPES or stop > len(content):
                break
            body = content[pos + 4 : stop]
            out += content[pos : pos + 4] + self._rewrite_message(number, body)
            pos = stop
        return out + self._noise.like(content[pos:])

    def _rewrite_message(self, number: int, body: bytes) -> bytes:
        if number in _HELLOS:
            return _TEXT.sub(self._replace_name, body)
        if number == _KEY_EXCHANGE and body[:1] == _NAMED_CURVE and len(body) > 4:
            share_end = 4 + body[3]  # then the signature's algorithm and size, and the signature
            share, signature = self._noise.like(body[4:share_end]), self._noise.like(body[share_end + 4 :])
            return b"".join((body[:4], share, body[share_end : share_end + 4], signature))
        if number != _CERTIFICATE:
            size = _SIZES.get(number, 0)
            return body[:size] + self._noise.like(body[size:])
        out = bytearray(body)
        # the first certificate; in TLS 1.3 a context is before it
        pos = 3 if body[:1] == b"\0" else 4 + body[0] if body else 0
        while len(body) - pos >= 3:
            size = int.from_bytes(body[pos : pos + 3], "big")
            self._rewrite_der(body, pos + 3, min(pos + 3 + size, len(body)), out)
            pos += 3 + size
        return bytes(out)

    def _replace_name(self, match: re.Match[bytes]) -> bytes:
        name = match[0]
        return name if _PUBLIC.fullmatch(name) else self._pseudonyms.replace(Kind.ADDRESSES, name)

    def _rewrite_der(self, data: bytes, pos: int, stop: int, out: bytearray, depth: int = 0) -> None:
        """Replace what is in the DER values at `data[pos:stop]`."""
        while stop - pos >= 2 and depth < _MAX_DEPTH:
            tag, size, start = data[pos], data[pos + 1], pos + 2
            if size & 0x80:
                count = size & 0x7F
                size = int.from_bytes(data[start : start + count], "big")
                start += count
            end = start + size
            if end > stop:
                break
            value = data[start:end]
            if tag in _STRINGS:
                out[start:end] = self._pseudonyms.replace(Kind.ADDRESSES, value)
            elif tag == _IP_ADDRESS and size in (4, 16):
                out[start:end] = self._pseudonyms.addresses.replace(value)
            elif tag in _BIT_AND_BYTE_STRINGS and value[tag == _BITS :][:1] == _SEQUENCE:
                # an extension, a key
                self._rewrite_der(data, start + (tag == _BITS), end, out, depth + 1)
            elif tag in _OPAQUE and size > _SMALL:
                out[start + 1 : end] = self._noise.like(value[1:])  # the sign, or unused bits, stay
            elif tag & 0x20:
                self._rewrite_der(data, start, end, out, depth + 1)
            pos = end
        out[pos:stop] = self._noise.like(data[pos:stop])
