"""`ClientRule`: the base class of rules about clients that fail, and mostly try again and again."""

from typing import Final

from pulsarctl_wire.checks.facts import find_client_host
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

    def report_failure(
        self,
        state: CheckState,
        evidence: list[tuple[Sighting, str]],
        explanation: str = "",
        certainty: str = CERTAIN,
    ) -> None:
        """Report a failed attempt."""
        connection = state.connection
        first = self.first.setdefault((find_client_host(connection), connection.server), state)
        bound(self.first, _MAX_CLIENTS)
        self.report(first, Subject(), evidence, explanation, certainty)
