"""Rules about opening producers and consumers: requests that are given up, or go to the wrong broker."""

from typing import Any, ClassVar, Final

from pulsarctl_wire.checks.facts import client_of
from pulsarctl_wire.checks.finding import SUSPECTED, Sighting, Subject
from pulsarctl_wire.checks.rule import CAPTURE, CONNECTION, Findings, Rule, about_owner, seconds
from pulsarctl_wire.checks.rules.holders import owner_of
from pulsarctl_wire.checks.state import CheckState
from pulsarctl_wire.wire.commands import NUMBERS
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import ServerError
from pulsarctl_wire.wire.session.counts import error_of
from pulsarctl_wire.wire.session.knowledge import bound
from pulsarctl_wire.wire.session.state import PRODUCER

_ERROR: Final = NUMBERS["ERROR"]
_OPENING: Final = {PRODUCER, NUMBERS["SUBSCRIBE"]}
_MAX_REQUESTS: Final = 1_024  # requests that are followed at a time


class _Create:
    """A PRODUCER or SUBSCRIBE without an answer; `again` is the later one for the same."""

    __slots__ = ("again", "name", "seen", "subject")

    def __init__(self, seen: Sighting, name: str, subject: Subject) -> None:
        self.seen = seen
        self.name = name
        self.subject = subject
        self.again: Sighting | None = None


class CreateTimedOutNotClosed(Rule):
    """The client gave up waiting and asked again without closing the first request, which may still succeed.

    Wire: PRODUCER or SUBSCRIBE has no answer for R, then the client asks again for the topic (with the same
    producer name or subscription) on this connection, with no CLOSE_PRODUCER or CLOSE_CONSUMER of the first
    id between. Certain when the first one succeeds later: then there are two owners.

    Advice: Update the client (newer ones send a close after the timeout), and look at why the broker takes so
    long.

    Source: https://github.com/apache/pulsar/issues/9613, https://github.com/apache/pulsar/pull/13161
    """

    id = "create_timed_out_not_closed"
    relies_on = CONNECTION
    on: ClassVar = {
        **dict.fromkeys(("PRODUCER", "SUBSCRIBE"), "asked"),
        **dict.fromkeys(("PRODUCER_SUCCESS", "SUCCESS", "ERROR"), "answered"),
        **dict.fromkeys(("CLOSE_PRODUCER", "CLOSE_CONSUMER"), "closes"),
    }

    def asked(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """PRODUCER or SUBSCRIBE."""
        body: Any = frame.body
        if body is None:
            return
        owner = owner_of(frame)
        creates: dict[Any, _Create] = state.marks.setdefault(self.id, {})
        key = owner[0], frame.topic, frame.subscription
        name = "" if owner[0] else as_text(body.producer_name)
        first = creates.get(key)
        if first is None:
            creates[key] = _Create(seen, name, about_owner(frame, owner))
            bound(creates, _MAX_REQUESTS)
        elif first.again is None and first.name == name and self._is_late(first, seen):
            first.again = seen
            self._report(state, first, seen)

    def _is_late(self, first: _Create, seen: Sighting) -> bool:
        return seen.time_ns - first.seen.time_ns >= self.thresholds.unanswered

    def answered(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """An answer that may be that of a PRODUCER or SUBSCRIBE."""
        asked, creates = state.answered, state.marks.get(self.id)
        if not creates or asked is None or asked.owner is None:
            return
        key = asked.owner[0], asked.topic, asked.subscription
        create: _Create | None = creates.get(key)
        if create is not None and create.seen is state.request:
            del creates[key]
            if create.again is not None and frame.type != _ERROR:
                self._report(state, create, create.again, seen)

    def closes(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """CLOSE_PRODUCER or CLOSE_CONSUMER, of either side."""
        creates = state.marks.get(self.id)
        if creates and frame.body is not None:
            owner = owner_of(frame)
            key = owner[0], frame.topic, frame.subscription
            create: _Create | None = creates.get(key)
            if create is not None and owner[1] in (create.subject.producer_id, create.subject.consumer_id):
                del creates[key]

    def _report(
        self, state: CheckState, first: _Create, again: Sighting, late: Sighting | None = None
    ) -> None:
        if not self.can_count(state):
            return
        what = "producer" if first.seen.type == PRODUCER else "consumer"
        waited = seconds((late or again).time_ns - first.seen.time_ns)
        rows = [(first.seen, f"not answered for {waited}"), (again, f"asked again, no CLOSE_{what.upper()}")]
        text = (
            f"The client gave up waiting for its {what} and asked again without closing the first one, which"
        )
        if late is not None:
            rows.append((late, "late answer"))
            self.found(state, first.subject, rows, f"{text} the broker has opened after {waited}.")
        else:
            self.found(state, first.subject, rows, f"{text} the broker may still open.", SUSPECTED)


class _Refused:
    """A PRODUCER or SUBSCRIBE that was answered ServiceNotReady."""

    def __init__(self, state: CheckState, request: Sighting, answer: Sighting) -> None:
        self.state = state
        self.request = request
        self.answer = answer


class StaleOwnership(Rule):
    """The client keeps asking a broker that does not serve the topic, and does not look the topic up again.

    Wire: PRODUCER or SUBSCRIBE is answered ServiceNotReady, and comes again at the same server address, with
    no LOOKUP of the topic by that client host between, on any connection. Lookups over HTTP are not seen.

    Advice: Update or fix the client: after ServiceNotReady it must send LOOKUP again.

    Source: https://github.com/apache/pulsar/issues/19150, https://github.com/ikilobyte/pulsar-client-php/issues/35
    """

    id = "stale_ownership"
    relies_on = CAPTURE
    on: ClassVar = {
        "LOOKUP": "looked_up",
        **dict.fromkeys(("PRODUCER", "SUBSCRIBE"), "asked"),
        "ERROR": "answered",
    }

    def __init__(self, doctor: Findings) -> None:
        super().__init__(doctor)
        self._refused: dict[Any, _Refused] = {}
        self._lookups: dict[tuple[str, str | None], int] = {}  # number of the last LOOKUP

    def looked_up(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """LOOKUP."""
        self._lookups[client_of(state.connection), frame.topic] = seen.number
        bound(self._lookups, _MAX_REQUESTS)

    def asked(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """PRODUCER or SUBSCRIBE, maybe again."""
        if frame.body is None or not self._refused:
            return
        owner, connection = owner_of(frame), state.connection
        refused = self._refused.pop((client_of(connection), connection.server, frame.topic, owner), None)
        if refused is None or not self.can_count(state):
            return
        looked_up = self._lookups.get((client_of(connection), frame.topic), 0)
        if looked_up > refused.request.number or not (
            refused.state is state or self._has_ended(refused.state)
        ):
            return
        rows = [(refused.request, "asked"), (refused.answer, "refused")]
        rows.append((seen, "the same broker again, no LOOKUP between"))
        self.found(state, about_owner(frame, owner), rows)

    def _has_ended(self, state: CheckState) -> bool:
        return state.closed_ns is not None or state.connection.index not in self.doctor.states

    def answered(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """ERROR."""
        asked, request, connection = state.answered, state.request, state.connection
        if error_of(frame) != ServerError.ServiceNotReady or asked is None or request is None:
            return
        if asked.type in _OPENING and asked.owner is not None:
            key = client_of(connection), connection.server, asked.topic, asked.owner
            self._refused[key] = _Refused(state, request, seen)
            bound(self._refused, _MAX_REQUESTS)
