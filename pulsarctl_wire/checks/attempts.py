"""`ClientRule`: the base class of rules about clients that fail, and mostly try again and again."""

from typing import Final

from pulsarctl_wire.checks.facts import client_of
from pulsarctl_wire.checks.finding import CERTAIN, Sighting, Subject
from pulsarctl_wire.checks.rule import Findings, Rule
from pulsarctl_wire.checks.state import CheckState
from pulsarctl_wire.wire.session.knowledge import bound

_MAX_CLIENTS: Final = 1_024


class ClientRule(Rule):
    """All attempts of a client host at the same server are one finding, at the connection of the first."""

    def __init__(self, doctor: Findings) -> None:
        super().__init__(doctor)
        self.first: dict[tuple[str, str], CheckState] = {}
        """The first attempt by client host and server."""

    def failed(
        self,
        state: CheckState,
        evidence: list[tuple[Sighting, str]],
        explanation: str = "",
        certainty: str = CERTAIN,
    ) -> None:
        """An attempt has failed."""
        connection = state.connection
        first = self.first.setdefault((client_of(connection), connection.server), state)
        bound(self.first, _MAX_CLIENTS)
        self.found(first, Subject(), evidence, explanation, certainty)
