"""Rules about what brokers must not do, and about refusals that no other rule explains."""

from typing import ClassVar, Final

from pulsarctl_wire.checks.conduct import REPLICATOR
from pulsarctl_wire.checks.facts import Entry, find_client_host
from pulsarctl_wire.checks.finding import CERTAIN, WARNING, Sighting, Subject
from pulsarctl_wire.checks.ledgers import Consumer, Producer
from pulsarctl_wire.checks.rule import (
    CAPTURE,
    ConductRule,
    Reporter,
    Rule,
    format_ns,
    make_answer_subject,
    make_owner_subject,
)
from pulsarctl_wire.checks.state import CheckState
from pulsarctl_wire.wire.commands import NUMBERS, command_name
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import ServerError
from pulsarctl_wire.wire.session.counts import error_of
from pulsarctl_wire.wire.session.knowledge import bound
from pulsarctl_wire.wire.session.state_data import Owner

_MESSAGE: Final = NUMBERS["MESSAGE"]
_ERROR: Final = NUMBERS["ERROR"]
_SEND: Final = NUMBERS["SEND"]
_CONNECT_LIKE: Final = {NUMBERS["CONNECT"], NUMBERS["AUTH_RESPONSE"]}
_NON_PERSISTENT: Final = "non-persistent://"  # whose messages all have the id 0:0
_MAX_GROUPS: Final = 1_024  # kinds of refusals that are followed at a time
_MAX_REPORTED: Final = 10_000  # reported refusals that may still be withdrawn at the end
_MAX_SIGHTINGS: Final = 12  # refusals of a group that are kept
_MAX_TEXT: Final = 200  # characters of a broker's text that are shown

_EXPLAINED: Final = {
    ServerError.AuthenticationError,
    ServerError.AuthorizationError,
    ServerError.TooManyRequests,
    ServerError.ChecksumError,
}
"""Refusals that other rules are about."""

_CAUSES: Final[dict[int, tuple[str, ...]]] = {ServerError.ProducerFenced: ("producer_fenced",)}
"""ServerError -> rules that explain it if they have a finding on the topic."""


class ReceiptForNothing(ConductRule):
    """A broker confirms a message that was not sent.

    Must: send SEND_RECEIPT only for a message that the producer has sent.

    Wire: SEND_RECEIPT with a sequence id above all that its producer has sent. Receipts that come twice are
    ignored by all clients.

    Advice: Look at what stands between the client and the broker.

    Source: Pulsar binary protocol, "Command SendReceipt".
    """

    id = "receipt_for_nothing"

    def on_receipt_out_of_order(
        self, state: CheckState, frame: Frame, producer: Producer, sequence: int
    ) -> None:
        """Report a receipt above all that was sent."""
        if frame.request is not None or sequence <= producer.highest_used or not state.is_whole:
            return
        if not producer.name.startswith(REPLICATOR) and self.can_judge(state):
            text = f"A receipt names sequence id {sequence}; the highest one sent is {producer.highest_used}."
            rows = [(producer.last_send, "the last SEND"), (state.sighting, f"receipt of {sequence}")]
            self.report_mistake(state, producer.subject(), rows, text)


class MessageWithoutConsumer(ConductRule):
    """A broker delivers a message to a consumer that is not open.

    Must: deliver messages only to consumers that are open on the connection.

    Wire: MESSAGE with a consumer id that no SUBSCRIBE has named.

    Advice: Look at what stands between the client and the broker; clients throw the message away.

    Source: Pulsar binary protocol, "Command Message".
    """

    id = "message_without_consumer"

    def on_not_open(self, state: CheckState, frame: Frame, owner: Owner) -> None:
        """Report a MESSAGE to nobody."""
        is_to_client = frame.type == _MESSAGE and not frame.to_broker
        if is_to_client and owner not in state.lives and self.can_judge(state):
            rows = [(state.sighting, f"consumer {owner[1]} was never opened")]
            self.report_mistake(state, make_owner_subject(frame, owner), rows)


class MessageWithoutPermits(ConductRule):
    """A broker delivers a message to a consumer that has not asked for any.

    Must: deliver no more messages than the client has granted permits for.

    Wire: MESSAGE after SUBSCRIBE's SUCCESS, and before any FLOW. (Later, more than granted is normal: a batch
    counts as its messages and is delivered as a whole.)

    Advice: Look at the broker, or what stands before it: the client may have no room for the message.

    Source: Pulsar binary protocol, "Flow control".
    """

    id = "message_without_permits"

    def on_ungranted(self, state: CheckState, frame: Frame, consumer: Consumer) -> None:
        """Report a MESSAGE before any FLOW."""
        if self.can_judge(state):
            rows = [(consumer.success, "no FLOW since"), (state.sighting, "delivered")]
            self.report_mistake(state, consumer.subject(), rows)


class AnswerToNothing(ConductRule):
    """A broker answers a request that the client has not made.

    Must: answer each request once, with its request id.

    Wire: an answer such as SUCCESS or LOOKUP_RESPONSE with a request id that no unanswered request of the
    connection has.

    Advice: Look at what stands between the client and the broker; clients ignore such an answer, and may wait
    for the right one until they time out.

    Source: Pulsar binary protocol, "Command Producer", "Topic lookup".
    """

    id = "answer_to_nothing"
    cause = ("client", "server")

    def on_unasked(self, state: CheckState, frame: Frame) -> None:
        """Report an answer without a request."""
        if self.can_judge(state):
            text = f"{frame.command} answers no request of this connection."
            self.report_mistake(state, Subject(), [(state.sighting, "no request has this id")], text)


class DeliveredTwice(ConductRule):
    """A broker delivers an entry again that nobody asked for again, to an Exclusive or Failover consumer.

    Must: deliver the entries of an Exclusive or Failover subscription in order, each once, until it is asked
    for again.

    Wire: MESSAGE with an id that is not above those that this consumer got since SUBSCRIBE, without
    REDELIVER_UNACKNOWLEDGED_MESSAGES.

    Advice: Look at what stands between the client and the broker; the application gets duplicates.

    Source: Pulsar binary protocol, "Consumer".
    """

    id = "delivered_twice"

    def on_came_back(self, state: CheckState, frame: Frame, consumer: Consumer, entry: Entry) -> None:
        """Report the entry."""
        is_numbered = not consumer.topic.startswith(_NON_PERSISTENT)
        if is_numbered and self.can_judge(state):
            rows = [(consumer.last_message, "the one before it"), (state.sighting, "not above all before")]
            self.report_mistake(state, consumer.subject(entry), rows)


_Kind = tuple[str, str | None, int | None]
"""Client host, topic, and type of the request."""


class _Refusals:
    """Refusals of one kind and code. `sightings` are the first ones, `requests` what they answer."""

    __slots__ = ("count", "first_ns", "last_ns", "requests", "sightings", "state", "subject", "text")

    def __init__(self, state: CheckState, subject: Subject, sighting: Sighting, text: str) -> None:
        self.state = state
        self.subject = subject
        self.text = text
        self.count = 0
        self.first_ns = self.last_ns = sighting.time_ns
        self.sightings: list[Sighting] = []
        self.requests: list[Sighting] = []


class RequestRefused(Rule):
    """The broker refused what a client asked for, and no other rule says why.

    Wire: ERROR or SEND_ERROR, and no later request of that kind by that client host for that topic has
    succeeded. Refusals with one code are one finding.

    Advice: `pwire explain` has a page for each code; the text is the broker's own.

    Source: PulsarApi.proto, ServerError.
    """

    id = "request_refused"
    severity = WARNING
    cause = ("client", "server", "topic")
    relies_on = CAPTURE
    handlers: ClassVar = {
        **dict.fromkeys(("ERROR", "SEND_ERROR"), "on_error"),
        **dict.fromkeys(("SUCCESS", "PRODUCER_SUCCESS"), "on_success"),
    }

    def __init__(self, doctor: Reporter) -> None:
        super().__init__(doctor)
        self._groups: dict[_Kind, dict[int, _Refusals]] = {}  # by kind, then by code
        self._requested_at: dict[_Kind, int] = {}  # when the latest successful request was made
        self._reported: list[tuple[_Kind, int, _Refusals]] = []

    def on_error(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Add a refusal to its group."""
        code, request_type = error_of(frame), frame.request_type
        if code is None or code in _EXPLAINED or request_type in _CONNECT_LIKE or frame.to_broker:
            return
        kind = find_client_host(state.connection), frame.topic, request_type
        if sighting.time_ns and sighting.time_ns <= self._requested_at.get(kind, -1):
            return  # a later request has succeeded: live events may come out of order
        group = self._groups.setdefault(kind, {})
        bound(self._groups, _MAX_GROUPS)
        refusals = group.get(code)
        if refusals is None:
            text = as_text(frame.body.message[:_MAX_TEXT]).partition("\n")[0]
            subject = make_answer_subject(state, frame)._replace(consumer_id=None, producer_id=None)
            refusals = group[code] = _Refusals(state, subject, sighting, text)
        refusals.count += 1
        refusals.last_ns = sighting.time_ns
        if len(refusals.sightings) < _MAX_SIGHTINGS:
            refusals.sightings.append(sighting)
            if state.request_sighting is not None:
                refusals.requests.append(state.request_sighting)

    def on_success(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Forget the refusals of what was asked for again, and has succeeded."""
        request = state.request_sighting
        if frame.request_type is None or request is None:
            return
        kind = find_client_host(state.connection), frame.topic, frame.request_type
        self._requested_at[kind] = max(self._requested_at.get(kind, 0), request.time_ns)
        bound(self._requested_at, _MAX_GROUPS)
        group = self._groups.get(kind, {})
        for code, refusals in list(group.items()):
            if refusals.last_ns <= request.time_ns:
                del group[code]

    def on_possible_duplicate(
        self, state: CheckState, frame: Frame, producer: Producer, send: object
    ) -> None:
        """Forget a client host's refused SENDs for a topic: a SEND that may repeat one has its receipt."""
        self._groups.pop((find_client_host(state.connection), frame.topic, _SEND), None)

    def on_due(self, now_ns: int) -> None:
        """Report groups that have been quiet for long enough."""
        for kind, group in list(self._groups.items()):
            if all(now_ns - refusals.last_ns >= self.thresholds.unanswered for refusals in group.values()):
                self._report(kind)

    def on_finished(self) -> None:
        """Report the groups that are left, and withdraw findings that are, or may be, explained by now."""
        for kind in list(self._groups):
            self._report(kind)
        for kind, code, refusals in self._reported:
            if self._is_explained(kind, code, refusals) or not self.can_judge(refusals.state):
                self.doctor.withdraw(self, refusals.state, refusals.subject)

    def _is_explained(self, kind: _Kind, code: int, refusals: _Refusals) -> bool:
        sightings = (*refusals.sightings, *refusals.requests)
        return self.doctor.is_explained(self, sightings, kind[1], _CAUSES.get(code, ()))

    def _report(self, kind: _Kind) -> None:
        for code, refusals in self._groups.pop(kind).items():
            if not self._is_explained(kind, code, refusals) and self.can_judge(refusals.state):
                self._report_refusals(kind, code, refusals)

    def _report_refusals(self, kind: _Kind, code: int, refusals: _Refusals) -> None:
        if len(self._reported) < _MAX_REPORTED:
            self._reported.append((kind, code, refusals))
        name = ServerError.Name(code) if code in ServerError.values() else str(code)  # type: ignore[arg-type]
        command = command_name(kind[2]) if kind[2] is not None else "a request"
        times = "" if refusals.count == 1 else f" {refusals.count} times"
        if refusals.last_ns > refusals.first_ns:
            times += f" in {format_ns(refusals.last_ns - refusals.first_ns)}"
        text = f"The broker answered {command} by {name}{times}: {refusals.text}".rstrip(": ")
        rows = [(sighting, f"refused: {name}") for sighting in refusals.sightings]
        self.report(refusals.state, refusals.subject, rows, f"{text.rstrip('.')}.", CERTAIN)
