"""Captures packets of a live interface. It needs the right to open packet sockets (root, CAP_NET_RAW).

Linux shares a ring buffer with us (ring.py); elsewhere scapy reads, and cannot count lost packets.
"""

import errno
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from pulsarctl_wire.capture.files import RawPacket
from pulsarctl_wire.capture.links import ETHERNET
from pulsarctl_wire.errors import CaptureError, DamagedCapture

if TYPE_CHECKING:
    from pulsarctl_wire.capture.ring import Ring

BUFFER: Final = 64 * 1024 * 1024
"""Bytes of packets that may wait to be read."""

_LARGEST: Final = 256 * 1024  # bytes; segments are captured before the interface splits them
_INSTRUCTION: Final = struct.Struct("=HBBI")  # of BPF
_RETURN, _ALL = 6, 0xFFFFFFFF
_TICK: Final = 0.2  # seconds between two calls of `is_over`; longer than the ring holds a block back
_REPORT_EVERY: Final = 1.0  # seconds between two reports of dropped packets


def interface_names() -> list[str]:
    """Return the interfaces of this machine."""
    return [name for _, name in socket.if_nameindex()]


class Live:
    """Iterates over the packets of `interface` from now on, once.

    `capture_filter` is a BPF expression such as "tcp port 6650". `buffer` bytes of packets may wait to be
    read. `is_over` is called at least every 0.2 s; once it returns True, iteration ends after the packets
    received so far. `before_wait` is called whenever no packet is available, `on_drop` with the number of
    packets dropped since its last call, at most once a second.

    Construction raises CaptureError if the interface cannot be opened. Iteration raises DamagedCapture if it
    goes down.
    """

    def __init__(
        self,
        interface: str,
        capture_filter: str | None = None,
        *,
        buffer: int = BUFFER,
        is_over: Callable[[], bool] = lambda: False,
        before_wait: Callable[[], object] = lambda: None,
        on_drop: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._name = interface
        self._is_over, self._before_wait, self._on_drop = is_over, before_wait, on_drop
        self._unreported = 0
        self._reported_at = -_REPORT_EVERY
        self._source = _open(interface, capture_filter, buffer)
        self.link = self._source.link
        """The link type of all packets."""
        self.received = 0
        """Packets that have passed the filter, including dropped ones."""
        self.dropped: int | None = self._source.dropped
        """Packets that the kernel dropped because the buffer was full; None if unknown."""

    def __iter__(self) -> Iterator[RawPacket]:
        source = self._source
        is_stopping = False
        failure: OSError | None = None
        while True:
            if not is_stopping and (failure is not None or self._is_over()):
                is_stopping = True
                source.stop()
            packets = source.take()
            self._count()
            yield from packets
            if packets:
                continue
            self._before_wait()
            try:
                if not source.wait(_TICK) and is_stopping:
                    break
            except OSError as error:
                failure = failure or error
        if failure is not None:
            raise DamagedCapture(f"interface {self._name}: {failure.strerror}") from failure

    def close(self) -> None:
        """Close the interface."""
        self._source.close()

    def _count(self) -> None:
        self._unreported += self._source.count()
        self.received, self.dropped = self._source.received, self._source.dropped
        if self._unreported and time.monotonic() >= self._reported_at + _REPORT_EVERY:
            self._on_drop(self._unreported)
            self._unreported, self._reported_at = 0, time.monotonic()


def _open(interface: str, capture_filter: str | None, buffer: int) -> "Ring | _Scapy":
    if interface not in interface_names():
        names = ", ".join(interface_names())
        raise CaptureError(f"interface {interface}: there is no such interface; there are {names}")
    try:
        if sys.platform != "linux":
            return _Scapy(interface, capture_filter)
        from pulsarctl_wire.capture import ring

        program = _compile(capture_filter, ring.link_type(interface)) if capture_filter else b""
        return ring.Ring(interface, program, buffer)
    except (OSError, ImportError, ValueError) as error:
        reason = str(getattr(error, "strerror", None) or error).splitlines()[0]
        if isinstance(error, PermissionError):
            reason = "needs the right to capture; run as root, or give python CAP_NET_RAW"
        elif getattr(error, "errno", None) == errno.ENOMEM:
            reason = f"not enough memory for a buffer of {buffer} bytes"
        raise CaptureError(f"interface {interface}: {reason}") from error


def _compile(capture_filter: str, link: int) -> bytes:
    """Compile a BPF program. Raises ValueError if the filter is invalid, ImportError without libpcap."""
    from ctypes import string_at

    from scapy.arch.common import compile_filter, free_filter
    from scapy.error import Scapy_Exception

    try:
        compiled = compile_filter(capture_filter, linktype=link)
    except Scapy_Exception as error:
        raise ValueError(error) from error
    program = string_at(compiled.bf_insns, _INSTRUCTION.size * compiled.bf_len)
    free_filter(compiled)
    # scapy's program cuts packets at 64 KiB; change it to take whole packets
    return b"".join(
        _INSTRUCTION.pack(code, yes, no, _ALL if code == _RETURN and value else value)
        for code, yes, no, value in _INSTRUCTION.iter_unpack(program)
    )


class _Scapy:
    """Does with scapy what `Ring` does, on systems other than Linux."""

    def __init__(self, interface: str, capture_filter: str | None) -> None:
        import scapy.layers.inet
        import scapy.layers.l2  # noqa: F401  (conf.L2listen needs the layers)
        from scapy.config import conf
        from scapy.error import Scapy_Exception

        self.received = 0
        self.dropped = None
        self._stopped = False
        try:
            listener: Any = conf.L2listen(iface=interface, filter=capture_filter)
        except Scapy_Exception as error:
            raise ValueError(error) from error
        self._socket = listener
        self.link = int(conf.l2types.layer2num.get(listener.LL, ETHERNET))

    def take(self) -> list[RawPacket]:
        """Return the next packet, if there is one."""
        if not self.wait(0):
            return []
        _, data, stamp = self._socket.recv_raw(_LARGEST)
        if data is None:
            return []
        self.received += 1
        return [(round((stamp or 0) * 1_000_000) * 1000, self.link, bytes(data), len(data))]

    def wait(self, seconds: float) -> bool:
        """Wait for a packet, but no longer than this; return whether there is one."""
        return not self._stopped and bool(self._socket.select([self._socket], seconds))

    def count(self) -> int:
        """Return 0: the number of dropped packets is unknown."""
        return 0

    def stop(self) -> None:
        """Take no more packets."""
        self._stopped = True

    def close(self) -> None:
        """Close the interface."""
        self._socket.close()
