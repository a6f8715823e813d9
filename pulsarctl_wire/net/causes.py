"""Which differences of a replay follow from others: a producer that was refused gets no receipts. Pure."""

from typing import Any, Final

from pulsarctl_wire.wire.commands import NUMBERS
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.session import FIELDS, MAX_PENDING, bound

CLOSES: Final = {NUMBERS["CLOSE_PRODUCER"]: "producer", NUMBERS["CLOSE_CONSUMER"]: "consumer"}
"""What a broker may close unasked: the command, and what it closes."""

_MAKERS: Final = {NUMBERS["PRODUCER"], NUMBERS["SUBSCRIBE"]}
_CONNECT: Final = NUMBERS["CONNECT"]

Key = tuple[Any, ...]
"""What a frame is about, or has in common with its counterpart; a connection's number comes first, if any."""


class Causes:
    """What is not as it was recorded, and the number of the difference by which that is so."""

    def __init__(self) -> None:
        self._failed: dict[Key, int] = {}

    def of(self, keys: list[Key]) -> int | None:
        """Why something about these differs; None if that follows from nothing."""
        return next((self._failed[key] for key in keys if key in self._failed), None)

    def fail(self, keys: list[Key], number: int) -> None:
        """What is about these from now on follows from difference `number`."""
        self._failed.update(dict.fromkeys(keys, number))
        bound(self._failed, MAX_PENDING)

    def mend(self, keys: list[Key]) -> None:
        """These are as they were recorded again."""
        for key in keys:
            self._failed.pop(key, None)


class Asked:
    """What the client of one connection has asked for, by the numbers of its recorded frames."""

    def __init__(self, connection: int) -> None:
        self._connection = connection
        self._requests: dict[int, tuple[int, Key | None]] = {}

    def ask(self, frame: Frame) -> None:
        """Take note of a frame that the client sent."""
        self._requests[frame.number] = frame.type, self._owner(frame)
        bound(self._requests, MAX_PENDING)

    def about(self, frame: Frame, request: int | None) -> list[Key]:
        """What a frame of the broker's is about; `request` is the recorded one that it answers."""
        keys: list[Key] = [(self._connection,)]
        owner = self._owner(frame) or self._requests.get(request or 0, (0, None))[1]
        if owner is not None:
            keys.append(owner)
        if frame.metadata is not None:
            keys.append(("messages of", frame.metadata.producer_name))
        return keys

    def needs(self, frame: Frame) -> list[Key]:
        """What cannot be as it was recorded where this recorded frame is missing, or another one comes."""
        kind, owner = self._requests.get(frame.request or 0, (0, None))
        if kind == _CONNECT:
            return [(self._connection,)]
        if kind in _MAKERS and owner is not None:
            name = getattr(frame.body, "producer_name", "")
            return [owner, ("messages of", name)] if name else [owner]
        owner = self._owner(frame)
        return [owner] if owner is not None and frame.type in CLOSES else []

    def _owner(self, frame: Frame) -> Key | None:
        """The producer or consumer that a frame names."""
        names = FIELDS.get(frame.type, frozenset())
        for name in ("producer_id", "consumer_id"):
            if name in names and frame.body is not None:
                return self._connection, name, getattr(frame.body, name)
        return None
