"""Reads lines from stdin or a file without blocking the event loop."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from typing import Any, Final

from pulsarctl_wire.cli import console

_BLOCK: Final = 1 << 18  # bytes to read at once
LONGEST: Final = 64 * 1024 * 1024
"""Maximum length of a line in bytes."""


async def read_lines(path: str, until: asyncio.Future[Any] | None = None) -> AsyncIterator[list[bytes]]:
    """Yield lines of the file `path` ("-" is stdin) without line feeds, as many at a time as are available.

    Stops early if `until` is done before more lines come. A file that cannot be read, or a line longer
    than `LONGEST`, ends the command.
    """
    try:
        descriptor = sys.stdin.fileno() if path == "-" else os.open(path, os.O_RDONLY)
    except OSError as error:
        console.fail(f"{path}: {error.strerror}", console.EXIT_SOURCE)
    pieces: list[bytes] = []  # of an incomplete line
    size = 0
    try:
        while block := await _read(descriptor, until):
            first, *lines = block.split(b"\n")
            pieces.append(first)
            size += len(first)
            if size > LONGEST:
                console.fail(f"{path}: a line of more than {LONGEST} bytes", console.EXIT_SOURCE)
            if lines:
                lines = [b"".join(pieces), *lines]
                pieces = [lines.pop()]
                size = len(pieces[0])
                yield lines
        if size:
            yield [b"".join(pieces)]
    except OSError as error:
        console.fail(f"{path}: {error.strerror}", console.EXIT_SOURCE)
    finally:
        if path != "-":
            os.close(descriptor)


async def _read(descriptor: int, until: asyncio.Future[Any] | None) -> bytes:
    """Return the next bytes of a file, as soon as some are available; b"" if `until` is done first."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def resume(*_: object) -> None:
        if not ready.done():
            ready.set_result(None)

    try:
        loop.add_reader(descriptor, resume)
    except PermissionError:  # a regular file, which does not block
        return os.read(descriptor, _BLOCK)
    if until is not None:
        until.add_done_callback(resume)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)
        if until is not None:
            until.remove_done_callback(resume)
    return os.read(descriptor, _BLOCK) if until is None or not until.done() else b""
