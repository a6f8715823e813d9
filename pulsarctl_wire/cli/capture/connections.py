"""`decode --connections`: prints connections in order, each once all earlier ones have ended."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final

from pulsarctl_wire.record import Record, connection_record
from pulsarctl_wire.wire.session.ending import EndedConnection

MAX_WAITING_LINES: Final = 65_536
"""Maximum number of lines that wait for earlier connections, which are still open."""


@dataclass
class ConnectionLines:
    """Writes the connections that pass all `tests`, in the order of their first packets.

    A line waits until all earlier connections have ended; if more than `waiting` lines wait, all are written.
    `count` more lines are to be written, -1: all. `seen` counts all connections, `chosen` those that pass.
    """

    render: Callable[[Record], bytes]
    tests: list[Callable[[Any], bool]]
    write: Callable[[bytes], object]
    _: KW_ONLY
    count: int
    waiting: int = MAX_WAITING_LINES
    seen: int = field(default=0, init=False)
    chosen: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._waiting: dict[int, bytes] = {}
        self._next = 0

    @property
    def is_done(self) -> bool:
        """Whether `count` lines were written."""
        return self.count == 0

    def add(self, ending: EndedConnection) -> None:
        """Add a connection that has ended."""
        index = ending.connection.index
        chosen = all(test(ending) for test in self.tests)
        self.seen += 1
        self.chosen += chosen
        line = self.render(connection_record(ending)) if chosen else b""
        if index < self._next:
            self._put(line)  # `flush` has already written later ones
            return
        self._waiting[index] = line
        while self._next in self._waiting:
            self._put(self._waiting.pop(self._next))
            self._next += 1
        if len(self._waiting) > self.waiting:
            self.flush()

    def flush(self) -> None:
        """Write all waiting lines."""
        for index in sorted(self._waiting):
            self._put(self._waiting[index])
            self._next = max(self._next, index + 1)
        self._waiting.clear()

    def _put(self, line: bytes) -> None:
        if line and self.count:
            self.count -= 1
            self.write(line)
