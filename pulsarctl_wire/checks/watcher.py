"""`Watcher`: what the states of connections tell; the doctor implements it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pulsarctl_wire.checks.facts import Facts
    from pulsarctl_wire.checks.finding import Sighting
    from pulsarctl_wire.checks.ledgers import Consumer, Producer
    from pulsarctl_wire.checks.state import CheckState
    from pulsarctl_wire.wire.frame import Frame, Gap, Malformed


class Watcher(Protocol):
    """What a state tells: the doctor implements this."""

    facts: Facts

    def advance(self, time_ns: int, number: int) -> None:
        """The frame with this number and time comes next."""

    def frame(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """A frame of a type that rules ask for was tracked."""

    def moment(self, name: str, state: CheckState, frame: Frame, *what: Any) -> None:
        """Something unusual has happened: call the rules with a method of that name."""

    def due(self, who: Consumer | Producer, now_ns: int) -> None:
        """Look at a consumer or producer that is closed, or whose connection ends."""

    def forget_held(self) -> None:
        """Consumers may hold more unacknowledged entries than are to be remembered."""

    def lost(self, state: CheckState, event: Malformed | Gap) -> None:
        """Bytes were missed, or are no frame."""
