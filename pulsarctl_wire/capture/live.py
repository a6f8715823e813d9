"""Packets of a live interface, by scapy: needs the right to open packet sockets (root, CAP_NET_RAW)."""

import errno
from collections.abc import Callable, Iterator
from typing import Any

from pulsarctl_wire.capture.files import RawPacket
from pulsarctl_wire.errors import CaptureError

_ETHERNET = 1
_LARGEST = 256 * 1024  # bytes; segments that the interface is to cut arrive whole


def interface_names() -> list[str]:
    """The interfaces of this machine."""
    import scapy.arch  # noqa: F401  (it finds the interfaces)
    from scapy.interfaces import get_if_list

    return list(get_if_list())


def live_packets(
    interface: str, capture_filter: str | None = None, before_wait: Callable[[], object] = lambda: None
) -> Iterator[RawPacket]:
    """The packets that pass `interface` from now on, until the iterator is closed.

    `capture_filter` is a BPF expression such as "tcp port 6650". `before_wait` is called whenever there
    is no packet to take. Raises CaptureError if the interface cannot be opened.
    """
    socket = _open(interface, capture_filter)
    try:
        link = _link_type(socket)
        while True:
            if not socket.select([socket], 0):
                before_wait()
                socket.select([socket], None)
            _, data, stamp = socket.recv_raw(_LARGEST)
            if data is not None:
                yield round((stamp or 0) * 1_000_000) * 1000, link, bytes(data), len(data)
    finally:
        socket.close()


def _open(interface: str, capture_filter: str | None) -> Any:
    import scapy.layers.inet
    import scapy.layers.l2  # noqa: F401  (conf.L2listen needs the layers)
    from scapy.config import conf
    from scapy.error import Scapy_Exception

    if interface not in interface_names():
        known = ", ".join(interface_names())
        raise CaptureError(f"interface {interface}: there is no such interface; there are {known}")
    # the loopback interface shows each packet going out and coming in; this socket skips the first
    kind = conf.L2socket if interface == conf.loopback_name else conf.L2listen
    try:
        return kind(iface=interface, filter=capture_filter)
    except (PermissionError, Scapy_Exception, OSError) as error:
        if getattr(error, "errno", None) in (errno.EPERM, errno.EACCES):
            reason = "needs the right to capture; run as root, or give python CAP_NET_RAW"
        else:
            reason = str(error).splitlines()[0]
        raise CaptureError(f"interface {interface}: {reason}") from error


def _link_type(socket: Any) -> int:
    from scapy.config import conf

    return int(conf.l2types.layer2num.get(socket.LL, _ETHERNET))
