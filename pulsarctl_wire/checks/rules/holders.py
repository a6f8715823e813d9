"""Rules about producer names and subscriptions that another connection holds, dead or alive."""

from dataclasses import dataclass
from typing import Any, ClassVar, Final

from pulsarctl_wire.checks.finding import CERTAIN, SUSPECTED, Sighting, Subject
from pulsarctl_wire.checks.rule import CAPTURE, SECOND, Reporter, Rule, format_ns, make_owner_subject
from pulsarctl_wire.checks.state import CheckState
from pulsarctl_wire.wire.commands import NUMBERS
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSubscribe, ServerError
from pulsarctl_wire.wire.session.counts import error_of
from pulsarctl_wire.wire.session.ending import EndedConnection
from pulsarctl_wire.wire.session.knowledge import bound
from pulsarctl_wire.wire.session.state import PRODUCER
from pulsarctl_wire.wire.session.state_data import Owner

_ERROR: Final = NUMBERS["ERROR"]
_EXCLUSIVE: Final = CommandSubscribe.Exclusive
_PROBED_NS: Final = (4 * SECOND, 8 * SECOND)
"""How long a broker (4.0.8), at least and at most, keeps a request for a taken name to test its holder."""

_MAX_REQUESTS: Final = 1_024  # requests that are followed at a time


def find_owner(frame: Frame) -> Owner:
    """Return the kind and id of the producer or consumer that a frame is about.

    The frame is PRODUCER, SUBSCRIBE, CLOSE_PRODUCER or CLOSE_CONSUMER.
    """
    is_consumer = hasattr(frame.body, "consumer_id")
    return is_consumer, frame.body.consumer_id if is_consumer else frame.body.producer_id


@dataclass(slots=True)
class _Claim:
    """A PRODUCER or SUBSCRIBE for a name that another connection holds, and how that connection ended."""

    state: CheckState
    request: Sighting
    holder: CheckState
    success: Sighting  # the answer that gave the holder the name
    subject: Subject
    answer: Sighting | None = None
    ending: EndedConnection | None = None

    @property
    def is_holder_alive(self) -> bool:
        """Whether the holder's client has sent anything since the request."""
        return self.holder.to_broker.last_heard_ns > self.request.time_ns


class _Claims(Rule):
    """Follows requests for a producer name or an exclusive subscription that another connection holds."""

    relies_on = CAPTURE
    busy_error: ClassVar[int]
    """The error that says that the name is taken."""

    def __init__(self, doctor: Reporter) -> None:
        super().__init__(doctor)
        self._claims: dict[int, _Claim] = {}  # by the request's number

    def on_request(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Note a PRODUCER or SUBSCRIBE whose name another connection holds."""
        candidates = self._list_candidates(frame)
        if any(candidate.state is state and candidate.success is not None for candidate in candidates):
            return  # this connection holds it; others are its copies on the other side of a proxy
        for candidate in reversed(candidates):
            holder, success = candidate.state, candidate.success
            if holder is not state and success is not None and holder.closed_ns is None:
                subject = make_owner_subject(frame, find_owner(frame))
                self._claims[sighting.number] = _Claim(state, sighting, holder, success, subject)
                bound(self._claims, _MAX_REQUESTS)
                break

    def _list_candidates(self, frame: Frame) -> list[Any]:
        """Return the producers or consumers that hold the name in a request, or have asked for it."""
        body: Any = frame.body
        if body is None or frame.topic is None:
            return []
        if frame.type == PRODUCER:
            publisher = self.facts.publishers.get((frame.topic, as_text(body.producer_name)))
            return publisher.list_owners() if publisher is not None and body.producer_name else []
        if body.subType != _EXCLUSIVE:
            return []
        consumers = self.facts.get_subscription(frame.topic, frame.subscription or "").list_owners()
        return [consumer for consumer in consumers if consumer.kind == _EXCLUSIVE]

    def on_answer(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Note the answer to a claim, or drop the claim."""
        number = state.request_sighting.number if state.request_sighting is not None else 0
        claim = self._claims.get(number)
        if claim is None:
            return
        if not self._is_expected(claim, frame, sighting):
            del self._claims[number]
            return
        claim.answer = sighting
        self._judge(number, claim, sighting.time_ns)

    def on_closed(self, state: CheckState, ending: EndedConnection) -> None:
        """Note that the holder's connection has ended, or drop the claims of this connection."""
        for number, claim in list(self._claims.items()):
            if claim.holder is state:
                claim.ending = ending
                self._judge(number, claim, ending.end_ns or 0)
            elif claim.state is state and claim.answer is None:
                del self._claims[number]

    def on_due(self, now_ns: int) -> None:
        """Judge the claims that wait for a sign from their holders."""
        for number, claim in list(self._claims.items()):
            if claim.holder.closed_ns is None:
                self._judge(number, claim, now_ns)

    def _is_expected(self, claim: _Claim, frame: Frame, sighting: Sighting) -> bool:
        """Return whether the rule is about this answer: by default, the error that the name is taken."""
        return frame.type == _ERROR and error_of(frame) == self.busy_error

    def _judge(self, number: int, claim: _Claim, now_ns: int) -> None:
        """Report a claim, or drop it, or let it wait."""
        raise NotImplementedError


class _HeldByDead(_Claims):
    """The holder's client says nothing more."""

    kind: ClassVar[str]
    cause = ("last",)  # the connection of the last evidence, the PING: the dead one

    def on_ping(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Note the first PING to the client since its last frame."""
        if not sighting.to_broker and self._find_unanswered_ping(state) is None:
            state.notes[self.id] = sighting

    def _find_unanswered_ping(self, state: CheckState) -> Sighting | None:
        ping: Sighting | None = state.notes.get(self.id)
        return ping if ping is not None and state.is_unanswered(ping) else None

    def _is_expected(self, claim: _Claim, frame: Frame, sighting: Sighting) -> bool:
        low, high = _PROBED_NS
        is_late = low <= sighting.time_ns - claim.request.time_ns <= high
        return super()._is_expected(claim, frame, sighting) or (frame.type != _ERROR and is_late)

    def _judge(self, number: int, claim: _Claim, now_ns: int) -> None:
        state, ping, ending = claim.holder, self._find_unanswered_ping(claim.holder), claim.ending
        if claim.is_holder_alive or (ending is not None and not (ending.by_broker and ping)):
            del self._claims[number]
        elif claim.answer is None or ping is None or not self.can_judge(state):
            return
        elif ending is not None:
            del self._claims[number]
            self._report(claim, claim.answer, ping, ending.end_ns or 0)
        elif now_ns - ping.time_ns >= self.thresholds.unanswered:
            self._report(claim, claim.answer, ping, now_ns)

    def _report(self, claim: _Claim, answer: Sighting, ping: Sighting, now_ns: int) -> None:
        holder = claim.holder
        delay = format_ns(answer.time_ns - claim.request.time_ns)
        reason = "refused" if answer.type == _ERROR else f"{delay} later"
        rows = [(claim.request, "asked"), (answer, reason), (claim.success, "holder")]
        rows.append((ping, "never answered"))
        is_closed = claim.ending is not None
        text = f"The {self.kind} {'was' if is_closed else 'is still'} held by {holder.connection}, an older"
        text += " connection whose client has sent nothing for "
        text += format_ns(now_ns - holder.to_broker.last_heard_ns)
        text += ", until the broker closed it." if is_closed else "."
        self.report(claim.state, claim.subject, rows, text, CERTAIN if is_closed else SUSPECTED)


class ProducerNameHeldByDeadConnection(_HeldByDead):
    """The producer name is still held by an older connection whose client no longer answers.

    Wire: PRODUCER with the name of a producer that is open on another connection. The answer is ProducerBusy,
    or PRODUCER_SUCCESS 4 to 8 s late, as the broker first tests the other connection. That one's client sends
    nothing after the request and leaves a PING unanswered. Certain once the broker has closed it.

    Advice: Wait until keep-alive removes the dead connection, unload the topic, or let the restarted
    application use another name.

    Source: https://github.com/apache/pulsar-client-go/issues/676,
    https://github.com/apache/pulsar-client-python/issues/155
    """

    id = "producer_name_held_by_dead_connection"
    handlers: ClassVar = {
        "PRODUCER": "on_request",
        **dict.fromkeys(("PRODUCER_SUCCESS", "ERROR"), "on_answer"),
        "PING": "on_ping",
    }
    busy_error = ServerError.ProducerBusy
    kind = "producer name"


class SubscriptionHeldByDeadConnection(_HeldByDead):
    """The exclusive subscription is still held by an older connection whose client no longer answers.

    Wire: SUBSCRIBE Exclusive to a subscription that is open as Exclusive on another connection. The answer is
    ConsumerBusy, or SUCCESS 4 to 8 s late, as the broker first tests the other connection. That one's client
    sends nothing after the request and leaves a PING unanswered. Certain once the broker has closed it.

    Advice: Wait until keep-alive removes the dead connection, or unload the topic; use Failover if this must
    not block.

    Source: https://github.com/apache/pulsar/issues/13920, https://github.com/apache/pulsar/pull/21183
    """

    id = "subscription_held_by_dead_connection"
    handlers: ClassVar = {
        "SUBSCRIBE": "on_request",
        **dict.fromkeys(("SUCCESS", "ERROR"), "on_answer"),
        "PING": "on_ping",
    }
    busy_error = ServerError.ConsumerBusy
    kind = "exclusive subscription"


class _HeldByLive(_Claims):
    """The holder's client goes on sending."""

    def _judge(self, number: int, claim: _Claim, now_ns: int) -> None:
        holder, answer = claim.holder, claim.answer
        if answer is None or not (claim.is_holder_alive or claim.ending):
            return
        del self._claims[number]
        if claim.is_holder_alive and self.can_judge(claim.state):
            rows = [(claim.request, "asked"), (answer, "refused"), (claim.success, "holder")]
            last = holder.to_broker.last
            if last is not None and last.time_ns <= answer.time_ns:
                rows.append((last, "the holder is alive"))
            self.report(claim.state, claim.subject, rows)


class ProducerNameInUse(_HeldByLive):
    """The producer name is taken by another client that is alive.

    Wire: PRODUCER with the name of a producer that is open on another connection is answered ProducerBusy,
    and that connection's client sends anything after the request, such as the PONG to a broker's test.

    Advice: Give each instance its own producer name, or stop the other one.

    Source: ProducerBusy in PulsarApi.proto.
    """

    id = "producer_name_in_use"
    handlers: ClassVar = {
        "PRODUCER": "on_request",
        **dict.fromkeys(("PRODUCER_SUCCESS", "ERROR"), "on_answer"),
    }
    busy_error = ServerError.ProducerBusy


class SubscriptionInUse(_HeldByLive):
    """Another client that is alive holds the exclusive subscription.

    Wire: SUBSCRIBE Exclusive to a subscription that is open as Exclusive on another connection is answered
    ConsumerBusy, and that connection's client sends anything after the request, such as the PONG to a
    broker's test.

    Advice: Stop the other consumer, or use a Shared or Failover subscription.

    Source: ConsumerBusy in PulsarApi.proto.
    """

    id = "subscription_in_use"
    handlers: ClassVar = {"SUBSCRIBE": "on_request", **dict.fromkeys(("SUCCESS", "ERROR"), "on_answer")}
    busy_error = ServerError.ConsumerBusy
