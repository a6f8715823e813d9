"""Rules about PING: a client or broker that no longer answers."""

from typing import ClassVar, Final

from pulsarctl_wire.checks.finding import CERTAIN, SUSPECTED, Sighting, Subject
from pulsarctl_wire.checks.rule import CAPTURE, SECOND, Reporter, Rule, format_ns
from pulsarctl_wire.checks.state import CheckState
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.session.ending import EndedConnection

_MAX_PINGS: Final = 8  # of a connection that are kept


class _Silent(Rule):
    """A PING whose receiver has sent nothing since: clients and brokers take any frame for an answer."""

    relies_on = CAPTURE  # where some packets were missed, the last ones of any connection may be missing
    handlers: ClassVar = {"PING": "on_ping"}
    to_broker: ClassVar[bool]
    """The direction of the PINGs."""
    names: ClassVar[tuple[str, str]]
    """Who is silent, and who sends the PINGs."""

    def __init__(self, doctor: Reporter) -> None:
        super().__init__(doctor)
        self._waiting: dict[int, CheckState] = {}  # by connection

    def on_ping(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Note a PING; of those that were answered only the last one is kept, which shows the interval."""
        if sighting.to_broker is self.to_broker:
            pings, unanswered = state.notes.get(self.id, []), self._find_unanswered(state)
            answered = pings[: len(pings) - len(unanswered)]
            state.notes[self.id] = [*answered[-1:], *unanswered, sighting][:_MAX_PINGS]
            self._waiting[state.connection.index] = state

    def _find_unanswered(self, state: CheckState) -> list[Sighting]:
        """Return the PINGs after the last frame from their receiver; none if it never sent any."""
        if not state.direction(not self.to_broker).last_heard:
            return []
        return [ping for ping in state.notes.get(self.id, []) if state.is_unanswered(ping)]

    def on_due(self, now_ns: int) -> None:
        """Report connections that stay open although a PING is unanswered."""
        limit = 2 * self.thresholds.unanswered
        for index, state in list(self._waiting.items()):
            pings = self._find_unanswered(state)
            if not pings:
                del self._waiting[index]
            elif state.closed_ns is None and now_ns - pings[0].time_ns >= limit and self.can_judge(state):
                self._report(state, pings, now_ns, SUSPECTED)

    def on_closed(self, state: CheckState, ending: EndedConnection) -> None:
        """Report a connection that the sender of the PINGs closes."""
        self._waiting.pop(state.connection.index, None)
        if ending.by_broker is None or ending.by_broker is self.to_broker or not state.has_all_bytes:
            return
        pings, end_ns = self._find_unanswered(state), ending.end_ns or 0
        if pings and end_ns - pings[0].time_ns >= SECOND:
            self._report(state, pings, end_ns, CERTAIN)

    def _report(self, state: CheckState, pings: list[Sighting], now_ns: int, certainty: str) -> None:
        receiver, sender = self.names
        closing = f", and the {sender} has closed the connection" if certainty == CERTAIN else ""
        first, *later = state.notes[self.id]
        interval = f" (it sends one every {format_ns(later[0].time_ns - first.time_ns)})" if later else ""
        text = (
            f"The {receiver} has sent nothing for {format_ns(now_ns - pings[0].time_ns)} "
            f"since the {sender}'s PING{interval}{closing}: "
            f"the {receiver} hangs, its host is gone, or the network drops its packets."
        )
        self.report(state, Subject(), [(ping, "never answered") for ping in pings], text, certainty)


class ClientSilent(_Silent):
    """The client does not answer the broker's PING: the process hangs, or its host or the network is gone.

    Must: answer each PING at once.

    Wire: PING to the client, and no byte from it until the broker closes the connection, at least 1 s later;
    or none for twice R. Any frame counts as an answer.

    Advice: Look at the client's process (garbage collection, stopped, host asleep) and at the network to it.

    Source: https://github.com/apache/pulsar/issues/13363; keepAliveIntervalSeconds in broker.conf.
    """

    id = "client_silent"
    cause = ("client", "server")
    to_broker = False
    names = "client", "broker"


class BrokerSilent(_Silent):
    """The broker does not answer the client's PING: it hangs, or a firewall drops the packets.

    Must: answer each PING at once.

    Wire: PING to the broker, and no byte from it until the client closes the connection, at least 1 s later;
    or none for twice R. A PONG after the client's FIN comes too late.

    Advice: Look at the broker's process (garbage collection, overload) and at the network to it.

    Source: https://github.com/apache/pulsar-client-cpp/pull/480
    """

    id = "broker_silent"
    cause = ("server",)
    to_broker = True
    names = "broker", "client"
