"""What the connections of a case carried."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pulsarctl_wire.net.frame_socket import Tap
from pulsarctl_wire.wire.frame import Connection


class _Opened(NamedTuple):
    connection: Connection
    time_ns: int


class _Carried(NamedTuple):
    connection: Connection
    to_broker: bool
    data: bytes
    time_ns: int


class _Closed(NamedTuple):
    connection: Connection
    time_ns: int
    by_broker: bool


class Transcript:
    """A tap that keeps all bytes, with their times, until they are wanted."""

    def __init__(self) -> None:
        self._events: list[_Opened | _Carried | _Closed] = []

    def __iter__(self) -> Iterator[object]:
        return iter(self._events)

    def opened(self, connection: Connection, time_ns: int) -> None:
        """Keep that a connection was made."""
        self._events.append(_Opened(connection, time_ns))

    def carried(self, connection: Connection, to_broker: bool, data: bytes, time_ns: int) -> None:
        """Keep what a connection carried."""
        self._events.append(_Carried(connection, to_broker, data, time_ns))

    def changed(self, connection: Connection, to_broker: bool, change: str) -> None:
        """Ignore what a fault did: only the bytes that it left are kept."""

    def closed(self, connection: Connection, time_ns: int, by_broker: bool) -> None:
        """Keep that a connection has ended."""
        self._events.append(_Closed(connection, time_ns, by_broker))

    def replay(self, tap: Tap) -> None:
        """Pass all events on to another tap."""
        for event in self._events:
            if isinstance(event, _Opened):
                tap.opened(*event)
            elif isinstance(event, _Carried):
                tap.carried(*event)
            else:
                tap.closed(*event)
