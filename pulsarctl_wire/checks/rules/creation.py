"""Rules about opening producers and consumers: requests that are given up, or go to the wrong broker."""

from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

from pulsarctl_wire.checks.facts import find_client_host
from pulsarctl_wire.checks.finding import CERTAIN, SUSPECTED, Sighting, Subject
from pulsarctl_wire.checks.rule import (
    CAPTURE,
    CONNECTION,
    Reporter,
    Rule,
    format_ns,
    make_owner_subject,
)
from pulsarctl_wire.checks.rules.holders import find_owner
from pulsarctl_wire.checks.state import CheckState
from pulsarctl_wire.wire.commands import NUMBERS
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.frame import Frame, HttpMessage
from pulsarctl_wire.wire.PulsarApi_pb2 import ServerError
from pulsarctl_wire.wire.session.counts import error_of
from pulsarctl_wire.wire.session.knowledge import bound
from pulsarctl_wire.wire.session.state import PRODUCER

_ERROR: Final = NUMBERS["ERROR"]
_OPENING: Final = {PRODUCER, NUMBERS["SUBSCRIBE"]}
_MAX_REQUESTS: Final = 1_024  # requests that are followed at a time


@dataclass(slots=True)
class _Attempt:
    """A PRODUCER or SUBSCRIBE without an answer; `retry` is the next one for the same name."""

    sighting: Sighting
    name: str
    subject: Subject
    retry: Sighting | None = None


class CreateTimedOutNotClosed(Rule):
    """The client gave up waiting and asked again without closing the first request, which may still succeed.

    Must: close a producer or consumer whose request was not answered in time before asking for it again.

    Wire: PRODUCER or SUBSCRIBE has no answer for R, then the client asks again for the topic (with the same
    producer name or subscription) on this connection, with no CLOSE_PRODUCER or CLOSE_CONSUMER of the first
    id between. Certain when the first one succeeds later: then there are two owners.

    Advice: Update the client (newer ones send a close after the timeout), and look at why the broker takes so
    long.

    Source: https://github.com/apache/pulsar/issues/9613, https://github.com/apache/pulsar/pull/13161
    """

    id = "create_timed_out_not_closed"
    cause = ("client", "server")
    relies_on = CONNECTION
    handlers: ClassVar = {
        **dict.fromkeys(("PRODUCER", "SUBSCRIBE"), "on_request"),
        **dict.fromkeys(("PRODUCER_SUCCESS", "SUCCESS", "ERROR"), "on_answer"),
        **dict.fromkeys(("CLOSE_PRODUCER", "CLOSE_CONSUMER"), "on_close"),
    }

    def on_request(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Note a request, or report that it is the second one."""
        body: Any = frame.body
        if body is None:
            return
        owner = find_owner(frame)
        attempts: dict[Any, _Attempt] = state.notes.setdefault(self.id, {})
        key = owner[0], frame.topic, frame.subscription
        name = "" if owner[0] else as_text(body.producer_name)
        first = attempts.get(key)
        if first is None:
            attempts[key] = _Attempt(sighting, name, make_owner_subject(frame, owner))
            bound(attempts, _MAX_REQUESTS)
        elif first.retry is None and first.name == name and self._is_late(first, sighting):
            first.retry = sighting
            self._report(state, first, sighting)

    def _is_late(self, first: _Attempt, sighting: Sighting) -> bool:
        return sighting.time_ns - first.sighting.time_ns >= self.thresholds.unanswered

    def on_answer(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Forget a request that is answered, or report its late success."""
        request, attempts = state.answered_request, state.notes.get(self.id)
        if not attempts or request is None or request.owner is None:
            return
        key = request.owner[0], request.topic, request.subscription
        attempt: _Attempt | None = attempts.get(key)
        if attempt is not None and attempt.sighting is state.request_sighting:
            del attempts[key]
            if attempt.retry is not None and frame.type != _ERROR:
                self._report(state, attempt, attempt.retry, sighting)

    def on_close(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Forget a request whose producer or consumer is closed, by either side."""
        attempts = state.notes.get(self.id)
        if attempts and frame.body is not None:
            owner = find_owner(frame)
            key = owner[0], frame.topic, frame.subscription
            attempt: _Attempt | None = attempts.get(key)
            if attempt is not None and owner[1] in (attempt.subject.producer_id, attempt.subject.consumer_id):
                del attempts[key]

    def _report(
        self, state: CheckState, first: _Attempt, retry: Sighting, answer: Sighting | None = None
    ) -> None:
        if not self.can_judge(state):
            return
        kind = "producer" if first.sighting.type == PRODUCER else "consumer"
        delay = format_ns((answer or retry).time_ns - first.sighting.time_ns)
        rows = [
            (first.sighting, f"not answered for {delay}"),
            (retry, f"asked again, no CLOSE_{kind.upper()}"),
            (answer, "late answer"),
        ]
        text = f"The client gave up waiting for its {kind} and asked again without closing the first one,"
        text += f" which the broker {f'has opened after {delay}' if answer else 'may still open'}."
        self.report(state, first.subject, rows, text, CERTAIN if answer else SUSPECTED)


class _Refusal(NamedTuple):
    """A PRODUCER or SUBSCRIBE that was answered ServiceNotReady."""

    state: CheckState
    request: Sighting
    answer: Sighting


class StaleOwnership(Rule):
    """The client keeps asking a broker that does not serve the topic, and does not look the topic up again.

    Must: look the topic up again before opening a producer or consumer anew.

    Wire: PRODUCER or SUBSCRIBE is answered ServiceNotReady, and comes again at the same server address, on
    the same connection or after that one has ended, with no lookup of the topic by that client host between,
    by LOOKUP or over HTTP, on any connection. Tables lack lookups over HTTP.

    Advice: Update or fix the client: after ServiceNotReady it must send LOOKUP again.

    Source: https://github.com/apache/pulsar/issues/19150, https://github.com/ikilobyte/pulsar-client-php/issues/35
    """

    id = "stale_ownership"
    cause = ("server",)
    relies_on = CAPTURE
    handlers: ClassVar = {
        "LOOKUP": "on_lookup",
        **dict.fromkeys(("PRODUCER", "SUBSCRIBE"), "on_request"),
        "ERROR": "on_answer",
    }

    def __init__(self, doctor: Reporter) -> None:
        super().__init__(doctor)
        self._refusals: dict[Any, _Refusal] = {}
        self._lookups: dict[tuple[str, str | None], int] = {}  # number of the last LOOKUP

    def on_lookup(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Note the number of a LOOKUP."""
        self._note_lookup(state, frame.topic, sighting.number)

    def on_http(self, state: CheckState, message: HttpMessage, number: int) -> None:
        """Note when a lookup over HTTP came."""
        if message.kind == "lookup" and not message.status:
            self._note_lookup(state, message.topic, number)

    def _note_lookup(self, state: CheckState, topic: str | None, number: int) -> None:
        self._lookups[find_client_host(state.connection), topic] = number
        bound(self._lookups, _MAX_REQUESTS)

    def on_request(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Report a request that was refused before, and comes again without a lookup between."""
        if frame.body is None or not self._refusals:
            return
        owner, connection = find_owner(frame), state.connection
        client = find_client_host(connection)
        refusal = self._refusals.pop((client, connection.server, frame.topic, owner), None)
        if refusal is None or not self.can_judge(state):
            return
        if self._lookups.get((client, frame.topic), 0) > refusal.request.number or not (
            refusal.state is state or self._has_ended(refusal.state)
        ):
            return  # looked up since, or another connection asks while the refused one is open
        rows = [(refusal.request, "asked"), (refusal.answer, "refused")]
        rows.append((sighting, "the same broker again, no LOOKUP between"))
        self.report(state, make_owner_subject(frame, owner), rows)

    def _has_ended(self, state: CheckState) -> bool:
        return state.closed_ns is not None or state.connection.index not in self.doctor.states

    def on_answer(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Note a request that is answered ServiceNotReady."""
        request, opening, connection = state.answered_request, state.request_sighting, state.connection
        if error_of(frame) != ServerError.ServiceNotReady or request is None or opening is None:
            return
        if request.type in _OPENING and request.owner is not None:
            key = find_client_host(connection), connection.server, request.topic, request.owner
            self._refusals[key] = _Refusal(state, opening, sighting)
            bound(self._refusals, _MAX_REQUESTS)
