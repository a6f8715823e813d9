"""Rules about producers and consumers that are used while they are not open, or opened twice."""

from typing import Any, ClassVar, Final, NamedTuple

from pulsarctl_wire.checks.facts import find_client_host
from pulsarctl_wire.checks.finding import CERTAIN, Sighting, Subject
from pulsarctl_wire.checks.ledgers import OwnerLife
from pulsarctl_wire.checks.rule import (
    CAPTURE,
    SECOND,
    ConductRule,
    Reporter,
    Rule,
    format_ns,
    make_owner_subject,
)
from pulsarctl_wire.checks.state import CheckState
from pulsarctl_wire.wire.commands import NUMBERS
from pulsarctl_wire.wire.frame import Frame, HttpMessage
from pulsarctl_wire.wire.names import without_partition
from pulsarctl_wire.wire.PulsarApi_pb2 import ServerError
from pulsarctl_wire.wire.session.counts import error_of
from pulsarctl_wire.wire.session.ending import EndedConnection
from pulsarctl_wire.wire.session.knowledge import bound
from pulsarctl_wire.wire.session.state import PRODUCER
from pulsarctl_wire.wire.session.state_data import Owner

_IN_FLIGHT: Final = 5 * SECOND  # a command may come this long after a broker's CLOSE_* that it crossed
_MAX_CLOSED: Final = 4_096  # producers and consumers that brokers have closed; also lookups
_ERROR: Final = NUMBERS["ERROR"]
_UNSUBSCRIBE: Final = NUMBERS["UNSUBSCRIBE"]


class _NotOpen(ConductRule):
    """A command names a producer or consumer that is not open."""

    command: ClassVar[int]
    grace_ns: ClassVar[int | None]
    """How long the command may still come after the broker has closed its owner; None: for ever."""

    def on_not_open(self, state: CheckState, frame: Frame, owner: Owner) -> None:
        """Report the command, unless it may have been sent before the client knew."""
        if frame.type != self.command or not frame.to_broker or not self.can_judge(state):
            return
        life, kind = state.lives.get(owner), "consumer" if owner[0] else "producer"
        sighting, end = state.sighting, life.end if life is not None else None
        rows: list[tuple[Sighting, str]] = []
        if life is None:
            problem = "was never opened on this connection"
        elif end is not None:
            if end.type == _ERROR:
                problem = "was refused"
            elif end.type == _UNSUBSCRIBE:
                return  # nothing is left that could be acknowledged
            elif end.to_broker:
                problem = "was closed by the client"
            elif self.grace_ns is not None and sighting.time_ns - end.time_ns >= self.grace_ns:
                problem = f"was closed by the broker {format_ns(sighting.time_ns - end.time_ns)} before"
            else:
                return
            rows.append((end, f"{kind} {owner[1]} {problem.partition(' by ')[0].removeprefix('was ')}"))
        elif life.success is None and life.queued is not None:
            problem = "waits for its turn"
            rows.append((life.queued, "producer_ready is false"))
        else:
            return
        rows.append((sighting, f"{kind} {owner[1]} is not open"))
        text = f"{frame.command} is for {kind} {owner[1]}, which {problem}."
        self.report_mistake(state, make_owner_subject(frame, owner), rows, text)


class SendWithoutProducer(_NotOpen):
    """A client sends messages for a producer that is not open.

    Must: send messages only for a producer that PRODUCER_SUCCESS has opened on this connection, and nothing
    has closed since.

    Wire: SEND with a producer id that was never opened, was refused by ERROR, waits for exclusive access, or
    was closed by CLOSE_PRODUCER. The broker closes the connection without an ERROR, with all that it carries.
    SENDs up to 5 s after the broker's own CLOSE_PRODUCER may have been on their way: brokers ignore them.

    Advice: Let the client wait for PRODUCER_SUCCESS, and open the producer again after CLOSE_PRODUCER.

    Source: Pulsar binary protocol, "Command Send".
    """

    id = "send_without_producer"
    command = NUMBERS["SEND"]
    grace_ns = _IN_FLIGHT


class AckWithoutConsumer(_NotOpen):
    """A client acknowledges messages for a consumer that is not open.

    Must: acknowledge messages only for a consumer that is open on this connection.

    Wire: ACK with a consumer id that was never opened, was refused by ERROR, or closed by the client. What
    the client still sends after the broker's CLOSE_CONSUMER is no mistake. The broker ignores the ACK, even
    one with a request id, so the messages come again.

    Advice: Let the client send its acknowledgements before it closes the consumer.

    Source: Pulsar binary protocol, "Command Ack".
    """

    id = "ack_without_consumer"
    command = NUMBERS["ACK"]
    grace_ns = None


class FlowWithoutConsumer(_NotOpen):
    """A client grants permits to a consumer that is not open.

    Must: send FLOW only for a consumer that is open on this connection.

    Wire: FLOW with a consumer id that was never opened, was refused by ERROR, or closed by the client. The
    broker ignores it: the permits are lost.

    Advice: Let the client send FLOW after SUCCESS of its SUBSCRIBE, again after each new one.

    Source: Pulsar binary protocol, "Command Flow".
    """

    id = "flow_without_consumer"
    command = NUMBERS["FLOW"]
    grace_ns = None


class ConsumerNotOpen(ConductRule):
    """A client asks something of a consumer that is not open.

    Must: name only consumers that are open on this connection.

    Wire: SEEK, UNSUBSCRIBE, GET_LAST_MESSAGE_ID, CONSUMER_STATS or REDELIVER_UNACKNOWLEDGED_MESSAGES with a
    consumer id that was never opened, was refused, or closed by the client. The broker answers MetadataError;
    it ignores REDELIVER_UNACKNOWLEDGED_MESSAGES, and closes the connection at CONSUMER_STATS.

    Advice: Let the client ask before it closes the consumer, and after SUCCESS of its SUBSCRIBE.

    Source: Pulsar binary protocol, "Consumer"; the broker's ServerCnx.
    """

    id = "consumer_not_open"
    handlers: ClassVar = dict.fromkeys(
        ("SEEK", "UNSUBSCRIBE", "GET_LAST_MESSAGE_ID", "CONSUMER_STATS", "REDELIVER_UNACKNOWLEDGED_MESSAGES"),
        "on_command",
    )

    def on_command(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Report the command, unless the broker has closed the consumer, or another rule has reported it."""
        if frame.body is None or not (state.is_whole and self.can_judge(state)) or state.is_mistake(sighting):
            return
        owner = True, frame.body.consumer_id
        life = state.lives.get(owner)
        end = life.end if life is not None else None
        if life is not None and (end is None or end is sighting or not (end.to_broker or end.type == _ERROR)):
            return
        rows = [(end, f"ended consumer {owner[1]}"), (sighting, f"consumer {owner[1]} is not open")]
        text = f"{frame.command} is for consumer {owner[1]}, which is not open on this connection."
        self.report_mistake(state, make_owner_subject(frame, owner), rows, text)


class _IdInUse(ConductRule):
    """A client opens a producer or consumer with the id of an open one."""

    is_consumer: ClassVar[bool]

    def on_id_in_use(self, state: CheckState, frame: Frame, life: OwnerLife) -> None:
        """Report a request with the id of an open producer or consumer."""
        body: Any = frame.body
        if (frame.type != PRODUCER) is not self.is_consumer or body is None or not self.can_judge(state):
            return
        owner = (True, body.consumer_id) if self.is_consumer else (False, body.producer_id)
        if life.is_seeking:
            return  # SEEK closes the consumer (`subscribe_before_seek_done`)
        rows = [(life.request, "opened it"), (life.success, "open since"), (state.sighting, "opens it again")]
        self.report_mistake(state, make_owner_subject(frame, owner), rows)


class ProducerIdInUse(_IdInUse):
    """A client opens a producer with the id of one that is open on this connection.

    Must: give each producer an id that no other open producer of the connection has.

    Wire: PRODUCER with the id of a producer that was opened and not closed. The broker says success and
    changes nothing: SENDs go on to the first topic, even if this one names another.

    Advice: Let the client close the first producer, or take another id.

    Source: Pulsar binary protocol, "Command Producer".
    """

    id = "producer_id_in_use"
    is_consumer = False


class ConsumerIdInUse(_IdInUse):
    """A client subscribes with the id of a consumer that is open on this connection.

    Must: give each consumer an id that no other open consumer of the connection has.

    Wire: SUBSCRIBE with the id of a consumer that was opened and not closed. The broker says success and
    changes nothing: messages go on to come from the first topic, and its permits stay.

    Advice: Let the client close the first consumer, or take another id.

    Source: Pulsar binary protocol, "Command Subscribe".
    """

    id = "consumer_id_in_use"
    is_consumer = True


class NotLookedUp(ConductRule):
    """A client opens a producer or consumer without having looked the topic up, and is refused.

    Must: look a topic up before a producer or consumer is opened.

    Wire: PRODUCER or SUBSCRIBE is answered ServiceNotReady, and the client host has sent no LOOKUP for the
    topic, nor a lookup over HTTP, since the beginning of the capture. The broker serves a topic only once
    somebody has looked it up there.

    Advice: Let the client send LOOKUP first, and go to the broker that the answer names.

    Source: Pulsar binary protocol, "Topic lookup".
    """

    id = "not_looked_up"
    relies_on = CAPTURE
    handlers: ClassVar = {"LOOKUP": "on_lookup", "ERROR": "on_error"}

    def __init__(self, doctor: Reporter) -> None:
        super().__init__(doctor)
        self._lookups: dict[tuple[str, str], None] = {}  # client host and topic

    def on_lookup(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Note a lookup."""
        self._note(state, frame.topic)

    def on_http(self, state: CheckState, message: HttpMessage, number: int) -> None:
        """Note a lookup over HTTP."""
        if message.kind == "lookup" and not message.status:
            self._note(state, message.topic)

    def _note(self, state: CheckState, topic: str | None) -> None:
        if topic is not None:
            self._lookups[find_client_host(state.connection), topic] = None
            bound(self._lookups, _MAX_CLOSED)

    def on_error(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Note a refusal for want of a lookup; what the client does next may be the worse mistake."""
        request, opening = state.answered_request, state.request_sighting
        if request is None or opening is None or request.topic is None or not state.is_whole:
            return
        if error_of(frame) != ServerError.ServiceNotReady or request.owner is None:
            return
        if (find_client_host(state.connection), request.topic) not in self._lookups:
            state.notes[self.id] = opening, sighting, make_owner_subject(frame, request.owner)

    def on_closed(self, state: CheckState, ending: EndedConnection) -> None:
        """Report a refusal that is the only mistake of its connection."""
        note = state.notes.get(self.id) if state.has_notes else None
        if note is None or state.has_erred or not self.can_judge(state):
            return
        opening, answer, subject = note
        is_explained = self.doctor.is_explained(self, (opening, answer), subject.topic, ("stale_ownership",))
        if not is_explained and (find_client_host(state.connection), subject.topic) not in self._lookups:
            self.report(state, subject, [(opening, "no LOOKUP before it"), (answer, "refused")])


class _Closed(NamedTuple):
    """A producer or consumer that the broker has closed."""

    state: CheckState
    owner: Owner
    topic: str
    close: Sighting
    subject: Subject


_Key = tuple[int, Owner]
"""The number of a connection, and a producer or consumer of it."""


def _make_topic_key(state: CheckState, topic: str) -> tuple[str, str]:
    return find_client_host(state.connection), without_partition(topic)


class NotReopened(Rule):
    """The broker closed a producer or consumer, and its client does not open it again.

    Must: look the topic up and open the producer or consumer again after the broker's CLOSE_PRODUCER or
    CLOSE_CONSUMER.

    Wire: CLOSE_PRODUCER or CLOSE_CONSUMER from the broker, then for T neither a lookup of the topic nor
    PRODUCER or SUBSCRIBE for it by that client host, on any connection, while its connection lives.

    Advice: Let the client look the topic up and open it again: the connection stays open for that.

    Source: Pulsar binary protocol, "Command CloseProducer".
    """

    id = "not_reopened"
    cause = ("client", "server")
    relies_on = CAPTURE
    handlers: ClassVar = {
        **dict.fromkeys(("CLOSE_PRODUCER", "CLOSE_CONSUMER"), "on_close"),
        **dict.fromkeys(("PRODUCER", "SUBSCRIBE", "LOOKUP", "PARTITIONED_METADATA"), "on_return"),
    }

    def __init__(self, doctor: Reporter) -> None:
        super().__init__(doctor)
        self._closed: dict[_Key, _Closed] = {}  # in order of time
        self._by_topic: dict[tuple[str, str], dict[_Key, None]] = {}  # by client host, and topic

    def on_close(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Note that the broker has closed a producer or consumer, or forget one that the client closes."""
        body: Any = frame.body
        if body is None:
            return
        owner = (True, body.consumer_id) if hasattr(body, "consumer_id") else (False, body.producer_id)
        if sighting.to_broker:
            self._pop((state.connection.index, owner))
            return
        life = state.lives.get(owner)
        if life is None or life.success is None or life.end is not sighting or frame.topic is None:
            return
        if life.is_seeking:
            return  # its client opens it again after the answer to SEEK
        if len(self._closed) >= _MAX_CLOSED:
            bound(self._closed, _MAX_CLOSED)
            self._by_topic.clear()
            for key, closed in self._closed.items():
                self._add(key, closed)
        self._add(
            (state.connection.index, owner),
            _Closed(state, owner, frame.topic, sighting, make_owner_subject(frame, owner)),
        )
        state.notes.setdefault(self.id, []).append(owner)

    def _add(self, key: _Key, closed: _Closed) -> None:
        self._closed[key] = closed
        self._by_topic.setdefault(_make_topic_key(closed.state, closed.topic), {})[key] = None

    def _pop(self, key: _Key) -> _Closed | None:
        closed = self._closed.pop(key, None)
        if closed is not None:
            topic_key = _make_topic_key(closed.state, closed.topic)
            keys = self._by_topic.get(topic_key, {})
            keys.pop(key, None)
            if not keys:
                self._by_topic.pop(topic_key, None)
        return closed

    def on_return(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Forget what the client takes up again."""
        self._forget(state, frame.topic)

    def on_http(self, state: CheckState, message: HttpMessage, number: int) -> None:
        """Forget what the client looks up over HTTP."""
        if not message.status:
            self._forget(state, message.topic)

    def _forget(self, state: CheckState, topic: str | None) -> None:
        if self._closed and topic is not None:
            for key in self._by_topic.pop(_make_topic_key(state, topic), ()):
                self._closed.pop(key, None)

    def on_due(self, now_ns: int) -> None:
        """Report producers and consumers that have not been opened again for too long."""
        while self._closed:
            key, closed = next(iter(self._closed.items()))
            waited_ns = now_ns - closed.close.time_ns
            if waited_ns < self.thresholds.quiet:
                break
            self._pop(key)
            self._report(closed, waited_ns)

    def on_closed(self, state: CheckState, ending: EndedConnection) -> None:
        """Judge the closed producers and consumers of a connection that has ended."""
        for owner in state.notes.get(self.id, ()) if state.has_notes else ():
            closed = self._pop((state.connection.index, owner))
            if closed is not None:
                waited_ns = (ending.end_ns or 0) - closed.close.time_ns
                if waited_ns >= self.thresholds.quiet:
                    self._report(closed, waited_ns)

    def _report(self, closed: _Closed, waited_ns: int) -> None:
        state = closed.state
        if not (state.is_whole and self.can_judge(state)):
            return
        if state.closed_ns is not None and state.closed_ns - closed.close.time_ns < self.thresholds.quiet:
            return
        kind = "consumer" if closed.owner[0] else "producer"
        text = f"The broker closed the {kind}, and for {format_ns(waited_ns)} its client neither looked the"
        rows = [(closed.close, f"closes {kind} {closed.owner[1]}")]
        self.report(state, closed.subject, rows, f"{text} topic up nor opened it again.", CERTAIN)
