"""Rules about producer names and subscriptions that another connection holds, dead or alive."""

from typing import Any, ClassVar, Final

from pulsarctl_wire.checks.finding import CERTAIN, SUSPECTED, Sighting, Subject
from pulsarctl_wire.checks.rule import CAPTURE, SECOND, Findings, Rule, about_owner, seconds
from pulsarctl_wire.checks.state import CheckState
from pulsarctl_wire.wire.commands import NUMBERS
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSubscribe, ServerError
from pulsarctl_wire.wire.session.counts import error_of
from pulsarctl_wire.wire.session.ending import EndedConnection
from pulsarctl_wire.wire.session.knowledge import bound
from pulsarctl_wire.wire.session.plain import Owner
from pulsarctl_wire.wire.session.state import PRODUCER

_ERROR: Final = NUMBERS["ERROR"]
_EXCLUSIVE: Final = CommandSubscribe.Exclusive
_PROBED_NS: Final = (4 * SECOND, 8 * SECOND)
"""How long a broker (4.0.8) keeps a request for a taken name, until it knows that the holder is dead."""

_MAX_REQUESTS: Final = 1_024  # requests that are followed at a time


def owner_of(frame: Frame) -> Owner:
    """What PRODUCER, SUBSCRIBE, CLOSE_PRODUCER or CLOSE_CONSUMER is about."""
    is_consumer = hasattr(frame.body, "consumer_id")
    return is_consumer, frame.body.consumer_id if is_consumer else frame.body.producer_id


class _Claim:
    """A PRODUCER or SUBSCRIBE for what another connection holds; `ending` is how that connection ended."""

    __slots__ = ("answer", "ending", "holder", "opened", "request", "state", "subject")

    def __init__(
        self, state: CheckState, request: Sighting, holder: CheckState, opened: Sighting, subject: Subject
    ) -> None:
        self.state = state
        self.request = request
        self.holder = holder
        self.opened = opened  # since when it holds it
        self.subject = subject
        self.answer: Sighting | None = None
        self.ending: EndedConnection | None = None

    @property
    def is_holder_alive(self) -> bool:
        """Whether the holder's client has sent anything since."""
        return self.holder.to_broker.heard_ns > self.request.time_ns


class _Claims(Rule):
    """Follows requests for a producer name or an exclusive subscription that another connection holds."""

    relies_on = CAPTURE
    busy: ClassVar[int]
    """The error that means that it is taken."""

    def __init__(self, doctor: Findings) -> None:
        super().__init__(doctor)
        self._claims: dict[int, _Claim] = {}  # by the request's number

    def asked(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """PRODUCER or SUBSCRIBE."""
        owners = self._owners(frame)
        if any(each.state is state and each.opened is not None for each in owners):
            return  # it holds it itself; others are the same connection before or behind a proxy
        for owner in reversed(owners):
            holder, opened = owner.state, owner.opened
            if holder is not state and opened is not None and holder.closed_ns is None:
                subject = about_owner(frame, owner_of(frame))
                self._claims[seen.number] = _Claim(state, seen, holder, opened, subject)
                bound(self._claims, _MAX_REQUESTS)
                break

    def _owners(self, frame: Frame) -> list[Any]:
        """Who holds what is asked for, or asks for it."""
        body: Any = frame.body
        if body is None or frame.topic is None:
            return []
        if frame.type == PRODUCER:
            publisher = self.facts.publishers.get((frame.topic, as_text(body.producer_name)))
            return publisher.owners() if publisher is not None and body.producer_name else []
        if body.subType != _EXCLUSIVE:
            return []
        owners = self.facts.subscription(frame.topic, frame.subscription or "").owners()
        return [each for each in owners if each.kind == _EXCLUSIVE]

    def answered(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """An answer to a request that may be a claim."""
        number = state.request.number if state.request is not None else 0
        claim = self._claims.get(number)
        if claim is None:
            return
        if not self._fits(claim, frame, seen):
            del self._claims[number]
            return
        claim.answer = seen
        self._judge(number, claim, seen.time_ns)

    def closed(self, state: CheckState, ending: EndedConnection) -> None:
        """A connection has ended: a holder's, or that of a request."""
        for number, claim in list(self._claims.items()):
            if claim.holder is state:
                claim.ending = ending
                self._judge(number, claim, ending.end_ns or 0)
            elif claim.state is state and claim.answer is None:
                del self._claims[number]

    def due(self, now_ns: int) -> None:
        """Claims wait for a sign from their holders."""
        for number, claim in list(self._claims.items()):
            if claim.holder.closed_ns is None:
                self._judge(number, claim, now_ns)

    def _fits(self, claim: _Claim, frame: Frame, seen: Sighting) -> bool:
        """Whether this is an answer that the rule is about: by default, that it is taken."""
        return frame.type == _ERROR and error_of(frame) == self.busy

    def _judge(self, number: int, claim: _Claim, now_ns: int) -> None:
        """Report a claim, or drop it, or let it wait."""
        raise NotImplementedError


class _HeldByDead(_Claims):
    """The holder's client says nothing more."""

    what: ClassVar[str]

    def ping(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """Note the first PING to the client since it has said something."""
        if not seen.to_broker and self._pinged(state) is None:
            state.marks[self.id] = seen

    def _pinged(self, state: CheckState) -> Sighting | None:
        ping: Sighting | None = state.marks.get(self.id)
        return ping if ping is not None and state.is_unanswered(ping) else None

    def _fits(self, claim: _Claim, frame: Frame, seen: Sighting) -> bool:
        least, most = _PROBED_NS
        is_late = least <= seen.time_ns - claim.request.time_ns <= most
        return super()._fits(claim, frame, seen) or (frame.type != _ERROR and is_late)

    def _judge(self, number: int, claim: _Claim, now_ns: int) -> None:
        state, ping, ending = claim.holder, self._pinged(claim.holder), claim.ending
        if claim.is_holder_alive or (ending is not None and not (ending.by_broker and ping)):
            del self._claims[number]
        elif claim.answer is None or ping is None or not self.can_count(state):
            return
        elif ending is not None:
            del self._claims[number]
            self._report(claim, claim.answer, ping, ending.end_ns or 0)
        elif now_ns - ping.time_ns >= self.thresholds.unanswered:
            self._report(claim, claim.answer, ping, now_ns)

    def _report(self, claim: _Claim, answer: Sighting, ping: Sighting, now_ns: int) -> None:
        holder = claim.holder
        why = (
            "refused" if answer.type == _ERROR else f"{seconds(answer.time_ns - claim.request.time_ns)} later"
        )
        rows = [(claim.request, "asked"), (answer, why), (claim.opened, "holder"), (ping, "never answered")]
        is_closed = claim.ending is not None
        text = f"The {self.what} {'was' if is_closed else 'is still'} held by {holder.connection}, an older"
        text += f" connection whose client has sent nothing for {seconds(now_ns - holder.to_broker.heard_ns)}"
        text += ", until the broker closed it." if is_closed else "."
        self.found(claim.state, claim.subject, rows, text, CERTAIN if is_closed else SUSPECTED)


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
    on: ClassVar = {
        "PRODUCER": "asked",
        **dict.fromkeys(("PRODUCER_SUCCESS", "ERROR"), "answered"),
        "PING": "ping",
    }
    busy = ServerError.ProducerBusy
    what = "producer name"


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
    on: ClassVar = {
        "SUBSCRIBE": "asked",
        **dict.fromkeys(("SUCCESS", "ERROR"), "answered"),
        "PING": "ping",
    }
    busy = ServerError.ConsumerBusy
    what = "exclusive subscription"


class _HeldByLive(_Claims):
    """The holder's client goes on sending."""

    def _judge(self, number: int, claim: _Claim, now_ns: int) -> None:
        holder, answer = claim.holder, claim.answer
        if answer is None or not (claim.is_holder_alive or claim.ending):
            return
        del self._claims[number]
        if claim.is_holder_alive and self.can_count(claim.state):
            rows = [(claim.request, "asked"), (answer, "refused"), (claim.opened, "holder")]
            alive = holder.to_broker.last
            if alive is not None and alive.time_ns <= answer.time_ns:
                rows.append((alive, "the holder is alive"))
            self.found(claim.state, claim.subject, rows)


class ProducerNameInUse(_HeldByLive):
    """The producer name is taken by another client that is alive.

    Wire: PRODUCER with the name of a producer that is open on another connection is answered ProducerBusy,
    and that connection's client sends anything after the request, such as the PONG to a broker's test.

    Advice: Give each instance its own producer name, or stop the other one.

    Source: ProducerBusy in PulsarApi.proto.
    """

    id = "producer_name_in_use"
    on: ClassVar = {"PRODUCER": "asked", **dict.fromkeys(("PRODUCER_SUCCESS", "ERROR"), "answered")}
    busy = ServerError.ProducerBusy


class SubscriptionInUse(_HeldByLive):
    """Another client that is alive holds the exclusive subscription.

    Wire: SUBSCRIBE Exclusive to a subscription that is open as Exclusive on another connection is answered
    ConsumerBusy, and that connection's client sends anything after the request, such as the PONG to a
    broker's test.

    Advice: Stop the other consumer, or use a Shared or Failover subscription.

    Source: ConsumerBusy in PulsarApi.proto.
    """

    id = "subscription_in_use"
    on: ClassVar = {"SUBSCRIBE": "asked", **dict.fromkeys(("SUCCESS", "ERROR"), "answered")}
    busy = ServerError.ConsumerBusy
