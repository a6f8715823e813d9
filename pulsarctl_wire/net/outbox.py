"""The common base of a session's pure parts: points in time, and an outbox for bytes and events."""

from typing import Generic, NamedTuple, TypeVar

EventT = TypeVar("EventT")


class Now(NamedTuple):
    """A point in time: `ticks` in ns of a clock that never goes back, `time_ns` in ns since the epoch."""

    ticks: int
    time_ns: int


class Warned(NamedTuple):
    """A problem that did not end the connection. Only a few of the same `kind` are shown."""

    text: str
    kind: str = ""


class Outbox(Generic[EventT]):
    """Base of the pure parts: bytes to be sent and events, until the owner of the socket takes them.

    The owner must also call `wake` at the time `wake_at` (ticks in ns), unless that is None.
    """

    def __init__(self) -> None:
        self._out: list[bytes] = []
        self._events: list[EventT] = []

    def __bool__(self) -> bool:
        return bool(self._out or self._events)

    def take_bytes(self) -> list[bytes]:
        """Remove and return the bytes to be sent, in order, each item as it was added."""
        out, self._out = self._out, []
        return out

    def take_events(self) -> list[EventT]:
        """Remove and return the events since the last call, in order."""
        events, self._events = self._events, []
        return events

    @property
    def wake_at(self) -> int | None:
        """When `wake` must be called, or None."""
        return None

    def wake(self, now: Now) -> None:
        """Do everything that is due at `now`."""
