"""Turns the connections of a log into connections of a `Reassembler`, with their addresses and directions."""

import ipaddress
from collections.abc import Iterator
from typing import Final

from pulsarctl_wire.capture.halves import MASK, Half
from pulsarctl_wire.capture.packets import FIN, Segment
from pulsarctl_wire.capture.reassembly import MAX_CONNECTIONS, Reassembler
from pulsarctl_wire.capture.text.dump import Dump, LogConnection, hole_size
from pulsarctl_wire.wire.frame import Event

_PULSAR_PORTS: Final = {6650, 6651}
_PIECE: Final = 64 * 1024  # bytes that are decoded at a time


class LogConnections:
    """The open connections of a log."""

    def __init__(self, reassembler: Reassembler) -> None:
        self._reassembler = reassembler
        self._keys: dict[str, tuple[bytes, bytes]] = {}
        """Name of a connection -> the keys of the segments that its near end and its far end send."""
        self._number = 0

    def add(self, dump: Dump, packet: int) -> Iterator[list[Event]]:
        """Yield the events of the bytes that a log shows.

        `packet` stands for a packet number: it has the number of the line where the bytes begin.
        """
        assert dump.connection is not None
        name = dump.connection.name
        if dump.is_last and name not in self._keys:
            return
        keys = self._keys.pop(name, None) or self._open(dump, packet)
        self._keys[name] = keys
        key = keys[dump.is_inbound]
        for start in range(0, len(dump.data), _PIECE):
            yield from self._send(key, dump.data[start : start + _PIECE], 0, 0, dump.time_ns, packet)
        if dump.missing:
            hole = hole_size(dump, self._half(key).stream)
            yield from self._send(key, b"", min(hole, MASK >> 1), 0, dump.time_ns, packet)
        if dump.is_last:
            yield from self._send(key, b"", 0, FIN, dump.time_ns, packet)
        if len(self._keys) > MAX_CONNECTIONS:
            yield from self._close_oldest(dump.time_ns, packet)

    def _half(self, key: bytes) -> Half:
        tcp = self._reassembler.connection(key)
        assert tcp is not None
        return tcp.half if tcp.keys[0] == key else tcp.half.other

    def _send(
        self, key: bytes, data: bytes, missing: int, flags: int, time_ns: int | None, packet: int
    ) -> Iterator[list[Event]]:
        if self._reassembler.connection(key) is None:
            return  # it was ended, as too many bytes were held
        segment: Segment = (key, self._half(key).next & MASK, 0, flags, data, missing)
        events = self._reassembler.add(segment, time_ns, packet)
        while events:
            yield events
            events = self._reassembler.take_more()

    def _close_oldest(self, time_ns: int | None, packet: int) -> Iterator[list[Event]]:
        name = next(iter(self._keys))
        for key in self._keys.pop(name):
            yield from self._send(key, b"", 0, FIN, time_ns, packet)

    def _open(self, dump: Dump, packet: int) -> tuple[bytes, bytes]:
        """Begin a connection; return the keys of its segments, which have made-up addresses."""
        log_connection = dump.connection
        assert log_connection is not None
        self._number += 1
        near, far = ((self._number << 1 | side).to_bytes(16, "big") for side in (0, 1))
        keys = near + far + bytes(4), far + near + bytes(4)
        is_near_client = _is_near_client(log_connection)
        from_start = bool(log_connection.client)  # a log names it only if it has the beginning
        tcp = self._reassembler.new(
            keys[dump.is_inbound],
            is_near_client is not dump.is_inbound,
            from_start,
            dump.time_ns,
            packet,
        )
        tcp.life.syns = int(from_start)
        tcp.life.accepted = from_start
        ends = _describe(log_connection.near), _describe(log_connection.far)
        connection = tcp.state.connection
        connection.client, connection.server = ends if is_near_client else ends[::-1]
        return keys


def _is_near_client(log_connection: LogConnection) -> bool:
    """Return whether the near end is the client, by what the log says or by the ports."""
    if log_connection.client:
        return log_connection.client == "near"
    near, far = _port_of(log_connection.near), _port_of(log_connection.far)
    if (near in _PULSAR_PORTS) != (far in _PULSAR_PORTS):
        return far in _PULSAR_PORTS
    return near >= far or not near  # the lower port is the server's more often than not


def _port_of(end: str) -> int:
    port = end.rpartition(":")[2]
    return int(port) if port.isdecimal() and len(port) <= 5 else 0


def _describe(end: str) -> str:
    """Return an end as "address:port", without the name that Java puts in front: "pulsar/10.0.0.2:6650"."""
    name, slash, address = end.rpartition("/")
    if not slash:
        return end
    host, _, port = address.rpartition(":")
    try:
        ip = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return f"{name or host}:{port}"  # "pulsar/<unresolved>:6650"
    return f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}"
