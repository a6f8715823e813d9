"""Decompresses sources while they are read.

This module is not compiled (hatch_build.py), so that Ctrl-C takes effect between reads.
"""

import gzip
import io
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO, Final, cast

import zstandard

from pulsarctl_wire.errors import CaptureError, DamagedCapture

CHUNK: Final = 256 * 1024
_GZIP_MAGIC: Final = b"\x1f\x8b"
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
COMPRESSED: Final = (_GZIP_MAGIC, _ZSTD_MAGIC)

MAX_RATIO: Final = 1000
"""Bytes that one byte of a source may expand to, after the first `FREE_BYTES`; captures compress less."""

FREE_BYTES: Final = 16 * 1024 * 1024

Read = Callable[[], bytes]
"""Returns the next bytes as soon as there are some; empty at the end."""


_BROKEN: Final = (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError)


class Counted:
    """A stream that counts the bytes read from it."""

    def __init__(self, stream: Any) -> None:
        self.count = 0
        self._read: Callable[[int], bytes] = getattr(stream, "read1", stream.read)

    def read1(self, size: int = -1) -> bytes:
        """Return the next bytes; b"" at the end."""
        data = self._read(size)
        self.count += len(data)
        return data

    read = read1


class _Bounded(Counted):
    """The decompressed bytes of `source`, as long as they do not expand beyond `MAX_RATIO`."""

    def __init__(self, stream: Any, source: Counted) -> None:
        super().__init__(stream)
        self._source = source
        self._error: Exception | None = None  # raised again, as a failed stream returns no bytes afterwards

    def read1(self, size: int = -1) -> bytes:
        """Return the next bytes. Raises DamagedCapture if they are too many for the source's bytes."""
        if self._error is not None:
            raise self._error
        try:
            data = super().read1(size)
        except _BROKEN as error:
            self._error = error
            raise
        if self.count > FREE_BYTES + MAX_RATIO * self._source.count:
            raise DamagedCapture(f"it expands more than {MAX_RATIO} times; if that is intended, unpack it")
        return data

    read = read1


def decompress(stream: BinaryIO, head: bytes, source: Counted) -> BinaryIO:
    """Return the decompressed contents of `stream` (gzip or zstd); its first bytes, not consumed, are `head`.

    Reading raises DamagedCapture if the contents are far larger than what was read from `source`, the file.
    """
    unpacked = gzip.GzipFile(fileobj=stream) if head.startswith(_GZIP_MAGIC) else _Zstandard(stream)
    return cast(BinaryIO, _Bounded(unpacked, source))


class _Zstandard:
    """Reads zstd frames one after the other, and detects when the last one is incomplete."""

    _STEP: Final = 2048  # compressed bytes at a time; four bytes may expand to 128 KiB, so all to 64 MiB

    def __init__(self, stream: BinaryIO) -> None:
        self._read = getattr(stream, "read1", stream.read)
        self._rest = b""
        self._frame: Any = None

    def read1(self, size: int = -1) -> bytes:
        """Return the next bytes; b"" at the end. Raises EOFError if a frame is cut."""
        while True:
            if not self._rest:
                self._rest = self._read(CHUNK)
            if not self._rest:
                if self._frame is not None:
                    raise EOFError("the last frame is not complete")
                return b""
            if self._frame is None:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            step, self._rest = self._rest[: self._STEP], self._rest[self._STEP :]
            data: bytes = self._frame.decompress(step)
            if self._frame.eof:
                self._rest = self._frame.unused_data + self._rest
                self._frame = None
            if data:
                return data

    read = read1


def reader(stream: BinaryIO) -> Read:
    """Return a function that reads the next bytes of `stream`.

    It raises DamagedCapture if the compressed data breaks off, CaptureError if reading fails.
    """
    read1 = getattr(stream, "read1", stream.read)

    def read() -> bytes:
        try:
            chunk: bytes = read1(CHUNK)
        except _BROKEN as error:
            raise DamagedCapture(f"the compressed data breaks off: {error}") from error
        except OSError as error:
            raise CaptureError(error.strerror or str(error)) from error
        return chunk

    return read


class Unread(io.RawIOBase):
    """A stream with bytes put back in front."""

    def __init__(self, head: bytes, stream: BinaryIO) -> None:
        self._head = head
        self._stream = stream

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` with the available bytes; return how many."""
        view = memoryview(buffer)
        if not self._head:  # a reader may return more than was requested
            self._head = getattr(self._stream, "read1", self._stream.read)(len(view))
        data, self._head = self._head[: len(view)], self._head[len(view) :]
        view[: len(data)] = data
        return len(data)
