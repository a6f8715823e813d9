"""A network interface of our own: what is written to it arrives there as packets, and nothing else does."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

TUN, TAP = 1, 2  # IFF_TUN: IP packets, IFF_TAP: Ethernet
_NO_HEADER = 0x1000
_SET_INTERFACE, _GET_FLAGS, _SET_FLAGS = 0x400454CA, 0x8913, 0x8914
_UP = 1


class Tap:
    """Needs the right to administer the network; it is gone once it is closed."""

    def __init__(self, kind: int = TAP) -> None:
        self._file = os.open("/dev/net/tun", os.O_RDWR)
        try:
            wanted = struct.pack("16sH22x", b"pwire%d", kind | _NO_HEADER)
            self.name = fcntl.ioctl(self._file, _SET_INTERFACE, wanted)[:16].rstrip(b"\0").decode()
            with suppress(FileNotFoundError):  # else the system says hello by IPv6
                Path(f"/proc/sys/net/ipv6/conf/{self.name}/disable_ipv6").write_text("1")
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
                name = struct.pack("40s", self.name.encode())
                flags = struct.unpack_from("=H", fcntl.ioctl(asked, _GET_FLAGS, name), 16)[0]
                fcntl.ioctl(asked, _SET_FLAGS, struct.pack("16sH22x", self.name.encode(), flags | _UP))
        except OSError:
            self.close()
            raise

    def arrive(self, packet: bytes) -> None:
        """Have a packet arrive."""
        os.write(self._file, packet)

    def close(self) -> None:
        """Remove the interface."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


@contextmanager
def own_interface(kind: int = TAP) -> Iterator[Tap]:
    """An interface; skips the test where none can be made."""
    try:
        made = Tap(kind)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EACCES, errno.ENOENT, errno.ENODEV):
            raise
        pytest.skip(f"no interface can be made here: {error}")
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def tap() -> Iterator[Tap]:
    with own_interface() as made:
        yield made
