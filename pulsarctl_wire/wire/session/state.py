"""The state of one connection, in layers. Each layer tracks frames in order, and fills in what it knows.

    State           numbers frames, joins chunks, applies the announced frame size limit
    TopicState      + topics and subscriptions by id, requests and their answers
    ExchangeState   + SENDs and their receipts, resends, schemas (exchanges.py)
    LedgerState     + permits, unacknowledged entries, exchanges as values (ledgers.py)

A caller that needs less uses a lower layer, and pays nothing for the others. A table (`commands.REQUESTS`)
says how requests are paired with answers, except for these:

    SEND            by producer id and sequence id (exchanges.py)
    CONNECT         answered in order by CONNECTED, AUTH_CHALLENGE or ERROR without a request id
    AUTH_CHALLENGE  answered by AUTH_RESPONSE, which is answered as CONNECT is
    PING            answered by the other side's PONG, in order

Ids are valid within one connection. All tables are bounded: if only one direction was captured, or the
traffic is hostile, they drop their oldest rows. No I/O, no clock.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final

from mypy_extensions import mypyc_attr

from pulsarctl_wire.wire.commands import ACK, ANSWERS, BODIES, MESSAGE, NUMBERS, REQUESTS, SEND, SEND_RECEIPT
from pulsarctl_wire.wire.credentials import WITH_SECRETS, is_doubtful
from pulsarctl_wire.wire.fields import REFRESH, as_text
from pulsarctl_wire.wire.frame import FRAME_PADDING, Connection, Event, Frame, HttpMessage
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.names import full_topic
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, CommandTopicMigrated
from pulsarctl_wire.wire.session.greeting import CONNECT, Greeting
from pulsarctl_wire.wire.session.knowledge import MAX_PENDING, Knowledge, bound
from pulsarctl_wire.wire.session.state_data import Owner, Request

NO_REQUEST: Final = 2**64 - 1
"""The request id of commands that the broker sends without a request."""

FIELDS: Final = {
    number: frozenset(getattr(BaseCommand(), body).DESCRIPTOR.fields_by_name)
    for number, body in BODIES.items()
}
"""Type number -> the names of the command's fields."""

RuleNames = dict[int, str]
"""Type number -> name of the method that tracks frames of that type.

Other types are not tracked, except SEND, SEND_RECEIPT, MESSAGE and ACK, which have methods of their own.
"""

STATE_RULES: Final[RuleNames] = {NUMBERS["CONNECTED"]: "_connected"}

TOPIC_RULES: Final[RuleNames] = {
    **{number: "_name_by_consumer" for number, fields in FIELDS.items() if "consumer_id" in fields},
    **dict.fromkeys(REQUESTS, "_request"),
    **dict.fromkeys(ANSWERS, "_answer"),
    **STATE_RULES,
    NUMBERS["SEND_ERROR"]: "_send_error",
    NUMBERS["CONNECT"]: "_connect",
    NUMBERS["AUTH_RESPONSE"]: "_connect",
    NUMBERS["AUTH_CHALLENGE"]: "_connected",
    NUMBERS["TOPIC_MIGRATED"]: "_migrated",
    NUMBERS["PING"]: "_ping",
    NUMBERS["PONG"]: "_pong",
}

_NO_PINGS: Final[dict[bool, deque[Request]]] = {}

Rules = dict[int, Callable[[Any, Frame], None]]
_rules: dict[Any, Rules] = {}


def _rules_of(kind: Any) -> Rules:
    """Return the methods for a class's `RULES`; they are looked up once per class."""
    rules = _rules.get(kind)
    if rules is None:
        rules = _rules[kind] = {number: getattr(kind, name) for number, name in kind.RULES.items()}
    return rules


@mypyc_attr(allow_interpreted_subclasses=True)
class State:
    """Tracks one connection. The lowest layer. The caller must call `track` with all events, in order."""

    RULES: ClassVar[RuleNames] = STATE_RULES

    def __init__(
        self, connection: Connection, knowledge: Knowledge, streams: Iterable[FrameStream] = ()
    ) -> None:
        self.connection = connection
        self._knowledge = knowledge
        self._streams = tuple(streams)
        self.closed_ns: int | None = None
        """When the first FIN or RST was captured, ns since the epoch."""
        self._rules = _rules_of(self.__class__)

    def track(self, events: list[Event]) -> None:
        """Number the frames in `events`, and fill in what is known about each."""
        for event in events:
            if isinstance(event, Frame):
                self._follow(event)
            elif not isinstance(event, HttpMessage):
                self._lose()

    def _follow(self, frame: Frame) -> None:
        """Number a frame, and fill in what is known about it."""
        knowledge = self._knowledge
        knowledge.frames += 1
        frame.number = knowledge.frames
        if not frame.has_command:
            return
        raw, number = frame.raw, frame.type
        if raw[7] == 2 and raw[4:7] == b"\0\0\0":
            return  # the command is just a type, without ids
        if number == SEND:  # most of the traffic: compiled code calls a method faster than a rule
            self._send(frame)
        elif number == SEND_RECEIPT:
            self._receipt(frame)
        elif number == MESSAGE:
            self._message(frame)
        elif number == ACK:
            self._ack(frame)
        else:
            rule = self._rules.get(number)
            if rule is not None:
                rule(self, frame)

    def end(self) -> None:
        """End the connection."""

    def apply_limit(self, frame: Frame) -> None:
        """Set the streams' frame size limit to the one that a CONNECTED announces."""
        announced = frame.base.connected.max_message_size if frame.base is not None else 0
        if announced > 0 and not self._knowledge.fixed_limit:
            for stream in self._streams:
                stream.limit = announced + FRAME_PADDING

    def _lose(self) -> None:
        """Note that bytes were missed, or were not a frame."""

    def _connected(self, frame: Frame) -> None:
        self.apply_limit(frame)

    def _send(self, frame: Frame) -> None:
        head = frame.head
        if head is not None and head.chunks > 1 and not frame.partial:
            self._join(frame)

    def _message(self, frame: Frame) -> None:
        head = frame.head
        if head is not None and head.chunks > 1 and not frame.partial:
            self._join(frame)

    def _receipt(self, frame: Frame) -> None:
        """Track a SEND_RECEIPT."""

    def _ack(self, frame: Frame) -> None:
        """Track an ACK."""

    def _join(self, frame: Frame) -> None:
        """Add a chunk to its message."""
        metadata = frame.metadata
        assert metadata is not None
        self._knowledge.chunks.add(frame, metadata, frame.ids.owner)


@mypyc_attr(allow_interpreted_subclasses=True)
class TopicState(State):
    """Fills in the topics and subscriptions of frames, and pairs answers with requests; but not SENDs."""

    RULES: ClassVar[RuleNames] = TOPIC_RULES

    def __init__(
        self, connection: Connection, knowledge: Knowledge, streams: Iterable[FrameStream] = ()
    ) -> None:
        super().__init__(connection, knowledge, streams)
        self._producers: dict[int, str] = {}
        self._consumers: dict[int, tuple[str, str]] = {}
        self._in_use: dict[Owner, int] = {}  # number of the frame that opened it
        self._pending_requests: dict[tuple[str, int], Request] = {}
        self._handshake: Request | None = None  # the CONNECT or AUTH_RESPONSE that waits for its answer
        self._challenge: Request | None = None  # the AUTH_CHALLENGE that does
        self._pings: dict[bool, deque[Request]] = _NO_PINGS  # by direction
        self.greeting = Greeting()
        """What the handshake says."""

    def _lose(self) -> None:
        self._in_use.clear()  # any of them may have been closed

    # -- by id

    def _name_by_producer(self, frame: Frame) -> None:
        frame.topic = self._topic_of(getattr(frame.base, BODIES[frame.type]).producer_id)

    def _topic_of(self, producer: int) -> str | None:
        return self._producers.get(producer)

    def _send(self, frame: Frame) -> None:
        frame.topic = self._producers.get(frame.ids.owner)

    def _receipt(self, frame: Frame) -> None:
        frame.topic = self._topic_of(frame.ids.owner)

    def _send_error(self, frame: Frame) -> None:
        self._name_by_producer(frame)

    def _message(self, frame: Frame) -> None:
        self._name(frame, frame.ids.owner)

    def _ack(self, frame: Frame) -> None:
        if frame.ids.request is not None:
            self._request(frame)
        else:
            self._name(frame, frame.ids.owner)

    def _name_by_consumer(self, frame: Frame) -> None:
        self._name(frame, getattr(frame.base, BODIES[frame.type]).consumer_id)

    def _name(self, frame: Frame, consumer: int) -> None:
        names = self._consumers.get(consumer)
        if names is not None:
            frame.topic, frame.subscription = names

    def _migrated(self, frame: Frame) -> None:
        body = frame.base.topicMigrated  # type: ignore[union-attr]
        if body.resource_type == CommandTopicMigrated.Producer:
            frame.topic = self._topic_of(body.resource_id)
        else:
            self._name(frame, body.resource_id)

    # -- requests and answers

    def _request(self, frame: Frame) -> None:
        """Track any request of the table: find out what it is about, and remember it until it is answered."""
        body = getattr(frame.base, BODIES[frame.type])
        fields = FIELDS[frame.type]
        owner: Owner | None = None
        if "consumer_id" in fields:
            owner = True, body.consumer_id
        elif "producer_id" in fields:
            owner = False, body.producer_id
        if frame.type in WITH_SECRETS and is_doubtful(frame):
            pass  # its topic may be anything
        elif "topic" in fields:
            frame.topic = full_topic(body.topic) if body.topic else None
        elif "consumer_id" in fields:
            self._name_by_consumer(frame)
        elif frame.type in _IN_TRANSACTION:
            self._name_by_transaction(frame, body)
        elif "producer_id" in fields:
            self._name_by_producer(frame)
        if frame.type in _OPENING:
            if frame.type != PRODUCER:
                frame.subscription = as_text(body.subscription)
            if owner is None or frame.type not in _TAKING or self._take(owner, frame.number):
                self._open(frame, body)
        elif frame.type in _CLOSING and owner is not None:
            self._free(owner)
        pairing = REQUESTS[frame.type]
        if frame.to_broker and body.HasField(pairing.key):
            key = pairing.family, getattr(body, pairing.key)
            self._remember_request(key, _request_of(frame, owner), body)

    def _take(self, owner: Owner, number: int) -> bool:
        """Note that frame `number` opens a producer or consumer; return False if its id is in use.

        Then the broker changes nothing, even for another topic: it answers success, or an error if the
        request that uses the id is not answered yet.
        """
        if owner in self._in_use:
            return False
        self._in_use[owner] = number
        bound(self._in_use, MAX_PENDING)
        return True

    def _free(self, owner: Owner) -> None:
        """Note that a producer or consumer is not open any more."""
        self._in_use.pop(owner, None)

    def _is_repeat(self, request: Request) -> bool:
        """Return whether a request to open a producer or consumer found its id in use by another one."""
        return request.owner is not None and self._in_use.get(request.owner, request.number) != request.number

    def _remember_request(self, key: tuple[str, int], request: Request, body: Any) -> None:
        """Remember a request until it is answered."""
        self._pending_requests[key] = request
        bound(self._pending_requests, MAX_PENDING)

    def _name_by_transaction(self, frame: Frame, body: Any) -> None:
        """Set the topic or subscription of a transaction's command, if there is only one."""
        if frame.type == _ADD_PARTITIONS:
            if len(body.partitions) == 1:
                frame.topic = full_topic(body.partitions[0])
            return
        subscriptions = body.subscription if frame.type == _ADD_SUBSCRIPTIONS else [body.subscription]
        if len(subscriptions) == 1 and subscriptions[0].topic:
            frame.topic = full_topic(subscriptions[0].topic)
            frame.subscription = as_text(subscriptions[0].subscription)

    def _open(self, frame: Frame, body: Any) -> None:
        """Store the names of a producer or consumer by its id, from the request to open it."""
        if frame.type == PRODUCER:
            self._producers[body.producer_id] = full_topic(body.topic)
            bound(self._producers, MAX_PENDING)
        else:
            self._consumers[body.consumer_id] = full_topic(body.topic), as_text(body.subscription)
            bound(self._consumers, MAX_PENDING)

    def _answer(self, frame: Frame) -> None:
        """Track any answer of the table: find its request."""
        body: Any = frame.body
        if body is None:
            return
        last = frame.type != PRODUCER_SUCCESS or body.producer_ready  # else another answer follows
        for family, name in ANSWERS[frame.type]:
            key = family, getattr(body, name)
            request = self._pending_requests.get(key) if body.HasField(name) else None
            if request is None or frame.type not in REQUESTS[request.type].answers:
                continue
            self._pair_answer(frame, request)
            if last:
                del self._pending_requests[key]
            self._complete(key, frame, body, request, last)
            break
        else:
            if "consumer_id" in FIELDS[frame.type]:
                self._name_by_consumer(frame)
            if frame.type == _ERROR and body.request_id == NO_REQUEST and self._handshake is not None:
                self._pair_answer(frame, self._handshake)
                self._handshake = None

    def _complete(self, key: tuple[str, int], frame: Frame, body: Any, request: Request, last: bool) -> None:
        """Note that an answer was paired with its request; `last` if no other answer follows."""

    def _pair_answer(self, frame: Frame, request: Request) -> None:
        frame.request, frame.request_offset, frame.request_type = request.number, request.offset, request.type
        frame.topic, frame.subscription = request.topic, request.subscription
        owner = request.owner if frame.type == _ERROR and request.type in _TAKING else None
        if owner is not None and not self._is_repeat(request):
            self._free(owner)
        if frame.time_ns is not None and request.time_ns is not None:
            frame.latency_ns = frame.time_ns - request.time_ns
        if self._knowledge.answers is not None:
            self._knowledge.link(request.number, frame.number)

    # -- the connection itself

    def _connect(self, frame: Frame) -> None:
        if frame.type == CONNECT:
            self.greeting = self.greeting.merge(frame)
            if not frame.offset:  # a later one comes too late for rows that are already written
                self.connection.broker = self.greeting.broker
        self._handshake = _request_of(frame)
        if frame.type == _AUTH_RESPONSE and self._challenge is not None:
            self._pair_answer(frame, self._challenge)
            self._challenge = None

    def _connected(self, frame: Frame) -> None:
        if frame.type == _AUTH_CHALLENGE:
            challenge = frame.base.authChallenge.challenge  # type: ignore[union-attr]
            if challenge.auth_data == REFRESH:
                self._handshake = None  # a successful refresh gets no answer; this begins the next one
        if self._handshake is not None:
            self._pair_answer(frame, self._handshake)
            self._handshake = None
        if frame.type == _AUTH_CHALLENGE:
            self._challenge = _request_of(frame)
            return
        self.greeting = self.greeting.merge(frame)
        self.apply_limit(frame)

    def _ping(self, frame: Frame) -> None:
        self._wait_for_pong(frame.to_broker, _request_of(frame))

    def _wait_for_pong(self, to_broker: bool, ping: Request) -> None:
        if self._pings is _NO_PINGS:  # a flood's connections need no dict of their own
            self._pings = {}
        self._pings.setdefault(to_broker, deque(maxlen=MAX_PENDING)).append(ping)

    def _pong(self, frame: Frame) -> None:
        pings = self._pings.get(not frame.to_broker)
        if pings:
            self._pair_answer(frame, pings.popleft())


def _request_of(frame: Frame, owner: Owner | None = None) -> Request:
    number, time_ns, offset = frame.number, frame.time_ns, frame.offset
    return Request(number, time_ns, offset, frame.type, frame.topic, frame.subscription, owner)


PRODUCER: Final = NUMBERS["PRODUCER"]
PRODUCER_SUCCESS: Final = NUMBERS["PRODUCER_SUCCESS"]
_ERROR: Final = NUMBERS["ERROR"]
_AUTH_CHALLENGE: Final = NUMBERS["AUTH_CHALLENGE"]
_AUTH_RESPONSE: Final = NUMBERS["AUTH_RESPONSE"]
_ADD_PARTITIONS, _ADD_SUBSCRIPTIONS = NUMBERS["ADD_PARTITION_TO_TXN"], NUMBERS["ADD_SUBSCRIPTION_TO_TXN"]
_IN_TRANSACTION: Final = {_ADD_PARTITIONS, _ADD_SUBSCRIPTIONS, NUMBERS["END_TXN_ON_SUBSCRIPTION"]}
_TAKING: Final = {PRODUCER, NUMBERS["SUBSCRIBE"]}  # requests that change nothing if their id is in use
_OPENING: Final = {*_TAKING, NUMBERS["SCALABLE_TOPIC_SUBSCRIBE"]}
_CLOSING: Final = {NUMBERS["CLOSE_PRODUCER"], NUMBERS["CLOSE_CONSUMER"], NUMBERS["UNSUBSCRIBE"]}
