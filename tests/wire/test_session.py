"""A session: every request finds its answer, every id its topic, and no table grows for ever."""

from typing import Any, Final

import pytest
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsarctl_wire.wire.commands import BODIES, NUMBERS, REQUESTS, TO_BROKER
from pulsarctl_wire.wire.frame import (
    FRAME_PADDING,
    MAX_FRAME_SIZE,
    Connection,
    Event,
    Frame,
    Gap,
    build_frame,
)
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.names import MAX_NAME_LENGTH, full_topic
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, MessageMetadata, Schema
from pulsarctl_wire.wire.session import exchanges, knowledge, state
from pulsarctl_wire.wire.session.counts import latency_of
from pulsarctl_wire.wire.session.exchanges import ExchangeState
from pulsarctl_wire.wire.session.knowledge import MAX_PENDING, MAX_STORED, Knowledge, MessageStore, Schemas
from pulsarctl_wire.wire.session.state import NO_REQUEST

TOPIC: Final = "persistent://public/default/t"
JAVA_ID: Final = 2**62 + 12345
"""A request id as Java clients draw them: from a random start of 62 to 63 bits."""

V0, V1 = bytes(8), bytes(7) + b"\x01"


def body_type(name: str) -> Any:
    """The descriptor of the sub-message of command `name`."""
    return BaseCommand.DESCRIPTOR.fields_by_number[NUMBERS[name]].message_type


def filled(message: Any, fields: dict[str, Any]) -> Any:
    """Set `fields` of a protobuf message, and its other required fields to something."""
    values: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.name in fields:
            values[field.name] = fields[field.name]
        elif field.is_required:
            values[field.name] = something(field)
    assert fields.keys() <= values.keys()
    message.CopyFrom(type(message)(**values))
    return message


def something(field: Any) -> Any:
    if field.message_type is not None:
        return filled(GetMessageClass(field.message_type)(), {})
    if field.enum_type is not None:
        return field.enum_type.values[0].number
    return {field.TYPE_STRING: "x", field.TYPE_BYTES: b"x"}.get(field.type, 1)


def command(name: str, **fields: Any) -> BaseCommand:
    """The command `name` with `fields` in its sub-message, complete."""
    base = BaseCommand(type=BaseCommand.Type.Value(name))
    body = getattr(base, BODIES[NUMBERS[name]])
    body.SetInParent()
    filled(body, fields)
    return base


def entry(**fields: Any) -> MessageMetadata:
    return MessageMetadata(**{"producer_name": "p", "sequence_id": 0, "publish_time": 1000, **fields})


class Talk:
    """Both sides of a connection, and the session that follows them."""

    def __init__(self, knowledge: Knowledge | None = None, index: int = 0) -> None:
        self.knowledge = knowledge if knowledge is not None else Knowledge()
        self.connection = Connection(index)
        self.up = FrameStream(self.connection, True)
        self.down = FrameStream(self.connection, False)
        self.session = ExchangeState(self.connection, self.knowledge, (self.up, self.down))

    def client(self, base: BaseCommand, at: int | None = 0, metadata: MessageMetadata | None = None) -> Frame:
        """The client says `base` at `at` ns."""
        return self._say(self.up, build_frame(base, metadata), at)

    def broker(self, base: BaseCommand, at: int | None = 0, metadata: MessageMetadata | None = None) -> Frame:
        """The broker says `base` at `at` ns."""
        return self._say(self.down, build_frame(base, metadata), at)

    def _say(self, stream: FrameStream, data: bytes, at: int | None) -> Frame:
        events = stream.feed(data, at)
        self.session.track(events)
        (frame,) = events
        assert isinstance(frame, Frame)
        return frame

    def produce(self, producer: int = 1, topic: str = "t", request: int = 9000, **fields: Any) -> None:
        """Open a producer, successfully; `fields` are those of its PRODUCER."""
        self.client(command("PRODUCER", topic=topic, producer_id=producer, request_id=request, **fields))
        self.broker(command("PRODUCER_SUCCESS", request_id=request))

    def consume(self, consumer: int = 1, topic: str = "t", name: str = "sub", **fields: Any) -> None:
        """Open a consumer, successfully; `fields` are those of its SUBSCRIBE."""
        ids = {"consumer_id": consumer, "request_id": 9001}
        self.client(command("SUBSCRIBE", topic=topic, subscription=name, **ids, **fields))
        self.broker(command("SUCCESS", request_id=9001))

    def send(self, producer: int, sequence: int, at: int | None = 0, highest: int = 0, **meta: Any) -> Frame:
        """The client SENDs; `meta` are fields of the entry's metadata."""
        ids = {"producer_id": producer, "sequence_id": sequence}
        if highest:
            ids["highest_sequence_id"] = highest
        return self.client(command("SEND", **ids), at, entry(**meta))

    def receipt(self, producer: int, sequence: int, at: int | None = 0) -> Frame:
        return self.broker(command("SEND_RECEIPT", producer_id=producer, sequence_id=sequence), at)

    def send_error(self, producer: int, sequence: int, at: int | None = 0) -> Frame:
        return self.broker(command("SEND_ERROR", producer_id=producer, sequence_id=sequence), at)

    def message(self, consumer: int, **meta: Any) -> Frame:
        return self.broker(command("MESSAGE", consumer_id=consumer), 0, entry(**meta))


def asks(name: str, number: int, **fields: Any) -> BaseCommand:
    """The request `name` with `number` in whatever field identifies it."""
    return command(name, **{key_of(name): number}, **fields)


def key_of(name: str) -> str:
    return {
        "SCALABLE_TOPIC_LOOKUP": "session_id",
        "SCALABLE_TOPIC_UPDATE": "session_id",
        "WATCH_SCALABLE_TOPICS": "watch_id",
        "WATCH_SCALABLE_TOPICS_UPDATE": "watch_id",
        "WATCH_TC_ASSIGNMENTS": "watch_id",
        "WATCH_TC_ASSIGNMENTS_UPDATE": "watch_id",
    }.get(name, "request_id")


# -- requests and answers: the protocol's table

ANSWERED_BY: Final = {
    "PRODUCER": ("PRODUCER_SUCCESS", "ERROR"),
    "SUBSCRIBE": ("SUCCESS", "ERROR"),
    "ACK": ("ACK_RESPONSE",),
    "SEEK": ("SUCCESS", "ERROR"),
    "UNSUBSCRIBE": ("SUCCESS", "ERROR"),
    "CLOSE_PRODUCER": ("SUCCESS", "ERROR"),
    "CLOSE_CONSUMER": ("SUCCESS", "ERROR"),
    "LOOKUP": ("LOOKUP_RESPONSE",),
    "PARTITIONED_METADATA": ("PARTITIONED_METADATA_RESPONSE", "LOOKUP_RESPONSE"),
    "GET_TOPICS_OF_NAMESPACE": ("GET_TOPICS_OF_NAMESPACE_RESPONSE", "ERROR"),
    "GET_LAST_MESSAGE_ID": ("GET_LAST_MESSAGE_ID_RESPONSE", "ERROR"),
    "CONSUMER_STATS": ("CONSUMER_STATS_RESPONSE", "ERROR"),
    "GET_SCHEMA": ("GET_SCHEMA_RESPONSE", "ERROR"),
    "GET_OR_CREATE_SCHEMA": ("GET_OR_CREATE_SCHEMA_RESPONSE", "ERROR"),
    "TC_CLIENT_CONNECT_REQUEST": ("TC_CLIENT_CONNECT_RESPONSE", "ERROR"),
    "NEW_TXN": ("NEW_TXN_RESPONSE", "ERROR"),
    "ADD_PARTITION_TO_TXN": ("ADD_PARTITION_TO_TXN_RESPONSE", "ERROR"),
    "ADD_SUBSCRIPTION_TO_TXN": ("ADD_SUBSCRIPTION_TO_TXN_RESPONSE", "ERROR"),
    "END_TXN": ("END_TXN_RESPONSE", "ERROR"),
    "END_TXN_ON_PARTITION": ("END_TXN_ON_PARTITION_RESPONSE", "ERROR"),
    "END_TXN_ON_SUBSCRIPTION": ("END_TXN_ON_SUBSCRIPTION_RESPONSE", "ERROR"),
    "WATCH_TOPIC_LIST": ("WATCH_TOPIC_LIST_SUCCESS", "ERROR"),
    "WATCH_TOPIC_LIST_CLOSE": ("SUCCESS",),
    "SCALABLE_TOPIC_LOOKUP": ("SCALABLE_TOPIC_UPDATE",),
    "SCALABLE_TOPIC_SUBSCRIBE": ("SCALABLE_TOPIC_SUBSCRIBE_RESPONSE",),
    "WATCH_SCALABLE_TOPICS": ("WATCH_SCALABLE_TOPICS_UPDATE",),
    "WATCH_TC_ASSIGNMENTS": ("WATCH_TC_ASSIGNMENTS_UPDATE",),
}
"""Request -> the answers that brokers and proxies give to it."""

PAIRS: Final = [(request, answer) for request, answers in ANSWERED_BY.items() for answer in answers]


def about(name: str) -> tuple[dict[str, Any], str | None, str | None]:
    """Fields for a request of topic `t`: by name or by id 7; what its frame should then say."""
    fields = body_type(name).fields_by_name
    given: dict[str, Any] = {"consumer_id": 7} if "consumer_id" in fields else {}
    if "subscription" in fields and name in ("SUBSCRIBE", "SCALABLE_TOPIC_SUBSCRIBE"):
        return {**given, "topic": "t", "subscription": "sub"}, TOPIC, "sub"
    if "topic" in fields:
        return {"topic": "t"}, TOPIC, None
    if given:
        return given, TOPIC, "sub"
    return ({"producer_id": 7}, TOPIC, None) if "producer_id" in fields else ({}, None, None)


@pytest.mark.parametrize(("request_name", "answer_name"), PAIRS)
@pytest.mark.parametrize("number", [0, 1, JAVA_ID])
def test_an_answer_finds_its_request(request_name: str, answer_name: str, number: int) -> None:
    talk = Talk()
    talk.produce(7)
    talk.consume(7)
    fields, topic, subscription = about(request_name)
    other = talk.client(asks(request_name, number + 2, **fields), 500)
    request = talk.client(asks(request_name, number, **fields), 1000)
    assert (request.topic, request.subscription, request.request) == (topic, subscription, None)

    answered = {key_of(answer_name): number}
    if answer_name == "ACK_RESPONSE":
        answered["consumer_id"] = 7
    answer = talk.broker(command(answer_name, **answered), 1750)
    assert (answer.request, answer.latency_ns) == (request.number, 750)
    assert (answer.topic, answer.subscription) == (topic, subscription)

    again = talk.broker(command(answer_name, **answered), 1800)
    assert (again.request, again.latency_ns) == (None, None)
    later = talk.broker(command(answer_name, **{**answered, key_of(answer_name): number + 2}), 1900)
    assert (later.request, later.latency_ns) == (other.number, 1400)


def test_every_request_of_the_table_is_tested() -> None:
    assert {NUMBERS[name] for name in ANSWERED_BY} == REQUESTS.keys()


@pytest.mark.parametrize(
    ("request_name", "answer_name"),
    [
        ("LOOKUP", "SUCCESS"),
        ("LOOKUP", "PARTITIONED_METADATA_RESPONSE"),
        ("PRODUCER", "SUCCESS"),
        ("PRODUCER", "ACK_RESPONSE"),
        ("SUBSCRIBE", "PRODUCER_SUCCESS"),
        ("ACK", "SUCCESS"),
        ("ACK", "ERROR"),
        ("GET_SCHEMA", "GET_OR_CREATE_SCHEMA_RESPONSE"),
        ("NEW_TXN", "END_TXN_RESPONSE"),
        ("WATCH_SCALABLE_TOPICS", "WATCH_TC_ASSIGNMENTS_UPDATE"),
    ],
)
def test_an_answer_of_another_kind_is_none(request_name: str, answer_name: str) -> None:
    talk = Talk()
    request = talk.client(asks(request_name, 3))
    assert talk.broker(command(answer_name, **{key_of(answer_name): 3})).request is None
    right = ANSWERED_BY[request_name][0]
    assert talk.broker(command(right, **{key_of(right): 3})).request == request.number


def test_the_sides_of_an_answer_without_times() -> None:
    talk = Talk()
    first, second = talk.client(asks("LOOKUP", 1), None), talk.client(asks("LOOKUP", 2), 5)
    for request, at in ((first, 7), (second, None)):
        answer = talk.broker(command("LOOKUP_RESPONSE", request_id=request.number), at)
        assert (answer.request, answer.latency_ns) == (request.number, None)


def test_the_two_counters_of_cpp_clients() -> None:
    talk = Talk()
    producer = talk.client(command("PRODUCER", topic="a", producer_id=0, request_id=1), 10)
    lookup = talk.client(command("LOOKUP", topic="b", request_id=1), 20)
    found = talk.broker(command("LOOKUP_RESPONSE", request_id=1), 30)
    success = talk.broker(command("PRODUCER_SUCCESS", request_id=1), 40)
    assert (found.request, found.latency_ns) == (lookup.number, 10)
    assert found.topic == "persistent://public/default/b"
    assert (success.request, success.latency_ns) == (producer.number, 30)
    assert success.topic == "persistent://public/default/a"


@pytest.mark.parametrize("name", ["PRODUCER", "GET_TOPICS_OF_NAMESPACE", "GET_SCHEMA"])
def test_an_error_answers_either_family(name: str) -> None:
    talk = Talk()
    request = talk.client(asks(name, 4), 1)
    error = talk.broker(command("ERROR", request_id=4), 3)
    assert (error.request, error.latency_ns, error.topic) == (request.number, 2, request.topic)


@pytest.mark.parametrize("names", [("PRODUCER", "GET_SCHEMA"), ("GET_SCHEMA", "PRODUCER")])
def test_two_errors_answer_both_families(names: tuple[str, str]) -> None:
    talk = Talk()
    requests = {talk.client(asks(name, 4)).number for name in names}
    errors = [talk.broker(command("ERROR", request_id=4)) for _ in range(3)]
    assert {error.request for error in errors[:2]} == requests
    assert errors[2].request is None


def test_an_error_passes_by_a_request_that_it_cannot_answer() -> None:
    talk = Talk()
    talk.client(command("ACK", consumer_id=1, request_id=4))
    lookup = talk.client(asks("GET_TOPICS_OF_NAMESPACE", 4))
    assert talk.broker(command("ERROR", request_id=4)).request == lookup.number


def test_the_proxy_answers_partitioned_metadata_with_lookup_response() -> None:
    """Also while a LOOKUP is open: they share the counter, so the id decides."""
    talk = Talk()
    metadata = talk.client(command("PARTITIONED_METADATA", topic="a", request_id=1), 1)
    lookup = talk.client(command("LOOKUP", topic="b", request_id=2), 2)
    failed = talk.broker(command("LOOKUP_RESPONSE", request_id=1, response=2), 5)
    assert (failed.request, failed.latency_ns) == (metadata.number, 4)
    assert failed.topic == "persistent://public/default/a"
    assert talk.broker(command("LOOKUP_RESPONSE", request_id=2)).request == lookup.number


def test_a_producer_that_waits_is_answered_twice() -> None:
    talk = Talk(Knowledge(link_answers=True))
    request = talk.client(command("PRODUCER", topic="t", producer_id=1, request_id=5), 10)
    waits = talk.broker(command("PRODUCER_SUCCESS", request_id=5, producer_ready=False), 30)
    ready = talk.broker(command("PRODUCER_SUCCESS", request_id=5, producer_ready=True), 910)
    assert (waits.request, waits.latency_ns, waits.topic) == (request.number, 20, TOPIC)
    assert (ready.request, ready.latency_ns, ready.topic) == (request.number, 900, TOPIC)
    assert (latency_of(waits), latency_of(ready)) == (None, 900)  # the last answer counts
    assert talk.knowledge.answers is not None
    assert talk.knowledge.answers[request.number] == ready.number
    assert talk.broker(command("PRODUCER_SUCCESS", request_id=5)).request is None


def test_a_producer_that_waits_may_fail() -> None:
    talk = Talk()
    request = talk.client(command("PRODUCER", topic="t", producer_id=1, request_id=5))
    talk.broker(command("PRODUCER_SUCCESS", request_id=5, producer_ready=False))
    assert talk.broker(command("ERROR", request_id=5)).request == request.number


@pytest.mark.parametrize(
    ("name", "fields"),
    [("CLOSE_PRODUCER", {"producer_id": 1}), ("CLOSE_CONSUMER", {"consumer_id": 1})],
)
def test_what_the_broker_closes_is_no_request(name: str, fields: dict[str, int]) -> None:
    talk = Talk()
    talk.produce(1)
    talk.consume(1)
    closed = talk.broker(command(name, request_id=NO_REQUEST, **fields))
    assert (closed.topic, closed.request) == (TOPIC, None)
    assert closed.subscription == ("sub" if name == "CLOSE_CONSUMER" else None)
    for answer in ("SUCCESS", "ERROR"):
        assert talk.broker(command(answer, request_id=NO_REQUEST)).request is None
        assert talk.client(command(answer, request_id=NO_REQUEST)).request is None


def test_a_close_may_be_repeated() -> None:
    """Closing an unknown id is answered like any other."""
    talk = Talk()
    request = talk.client(command("CLOSE_CONSUMER", consumer_id=99, request_id=3))
    answer = talk.broker(command("SUCCESS", request_id=3))
    assert (request.topic, answer.request, answer.topic) == (None, request.number, None)


def test_ack_without_request_id_waits_for_nothing() -> None:
    talk = Talk()
    talk.consume(3)
    ack = talk.client(command("ACK", consumer_id=3))
    assert (ack.topic, ack.subscription) == (TOPIC, "sub")
    answer = talk.broker(command("ACK_RESPONSE", consumer_id=3, request_id=0))
    assert (answer.request, answer.topic, answer.subscription) == (None, TOPIC, "sub")


@pytest.mark.parametrize("consumer", [3, 99])
def test_ack_with_request_id(consumer: int) -> None:
    talk = Talk()
    talk.consume(3)
    known = (TOPIC, "sub") if consumer == 3 else (None, None)
    ack = talk.client(command("ACK", consumer_id=consumer, request_id=8), 100)
    answer = talk.broker(command("ACK_RESPONSE", consumer_id=consumer, request_id=8), 160)
    assert (answer.request, answer.latency_ns) == (ack.number, 60)
    assert (ack.topic, ack.subscription) == (answer.topic, answer.subscription) == known


def test_scalable_topics_by_session_and_consumer() -> None:
    talk = Talk()
    lookup = talk.client(command("SCALABLE_TOPIC_LOOKUP", session_id=1, topic="topic://a/b/t"), 5)
    talk.client(command("SCALABLE_TOPIC_LOOKUP", session_id=2, topic="topic://a/b/u"), 6)
    update = talk.broker(command("SCALABLE_TOPIC_UPDATE", session_id=1), 9)
    assert (update.request, update.latency_ns, update.topic) == (lookup.number, 4, "topic://a/b/t")
    assert talk.broker(command("SCALABLE_TOPIC_UPDATE", session_id=1)).request is None  # a later change
    assert talk.client(command("SCALABLE_TOPIC_CLOSE", session_id=2)).request is None

    fields = {"consumer_id": 4, "topic": "topic://a/b/t", "subscription": "s"}
    subscribe = talk.client(command("SCALABLE_TOPIC_SUBSCRIBE", request_id=3, **fields))
    answer = talk.broker(command("SCALABLE_TOPIC_SUBSCRIBE_RESPONSE", request_id=3))
    assert (answer.request, answer.topic, answer.subscription) == (subscribe.number, "topic://a/b/t", "s")
    pushed = talk.broker(command("SCALABLE_TOPIC_ASSIGNMENT_UPDATE", consumer_id=4))
    assert (pushed.request, pushed.topic, pushed.subscription) == (None, "topic://a/b/t", "s")


def test_watches_of_different_kinds_share_ids() -> None:
    talk = Talk()
    topics = talk.client(command("WATCH_SCALABLE_TOPICS", watch_id=1))
    assignments = talk.client(command("WATCH_TC_ASSIGNMENTS", watch_id=1))
    lookup = talk.client(command("SCALABLE_TOPIC_LOOKUP", session_id=1))
    names = talk.client(command("WATCH_TOPIC_LIST", request_id=1, watcher_id=1))
    for name, key, request in (
        ("SCALABLE_TOPIC_UPDATE", "session_id", lookup),
        ("WATCH_TC_ASSIGNMENTS_UPDATE", "watch_id", assignments),
        ("WATCH_TOPIC_LIST_SUCCESS", "request_id", names),
        ("WATCH_SCALABLE_TOPICS_UPDATE", "watch_id", topics),
    ):
        assert talk.broker(command(name, **{key: 1})).request == request.number
    assert talk.broker(command("WATCH_TOPIC_UPDATE", watcher_id=1)).request is None


@pytest.mark.parametrize(
    ("request_name", "fields", "answer"),
    [
        ("PRODUCER", {"producer_id": 0, "request_id": 0}, "PRODUCER_SUCCESS"),
        ("SUBSCRIBE", {"consumer_id": 0, "request_id": 0}, "SUCCESS"),
        ("LOOKUP", {"request_id": 0}, "LOOKUP_RESPONSE"),
        ("SEND", {"producer_id": 0, "sequence_id": 0}, "SEND_RECEIPT"),
        ("SEND", {"producer_id": 0, "sequence_id": 0}, "SEND_ERROR"),
    ],
)
def test_an_answer_without_its_sub_message_answers_nothing(
    request_name: str, fields: dict[str, int], answer: str
) -> None:
    talk = Talk()
    request = talk.client(command(request_name, **fields), 0, entry() if request_name == "SEND" else None)
    broken = talk.broker(BaseCommand(type=BaseCommand.Type.Value(answer)))
    assert broken.request is None
    assert request.request is None


def test_an_ack_response_without_request_id_answers_nothing() -> None:
    talk = Talk()
    talk.client(command("ACK", consumer_id=1, request_id=0))
    assert talk.broker(command("ACK_RESPONSE", consumer_id=1)).request is None


# -- the handshake and what else concerns the connection


def test_connect_is_answered_by_connected() -> None:
    talk = Talk()
    connect = talk.client(command("CONNECT"), 10)
    connected = talk.broker(command("CONNECTED"), 25)
    assert (connected.request, connected.latency_ns) == (connect.number, 15)
    assert talk.broker(command("CONNECTED")).request is None
    assert talk.broker(command("ERROR", request_id=NO_REQUEST)).request is None


def test_connect_is_answered_by_an_error_without_request_id() -> None:
    talk = Talk()
    connect = talk.client(command("CONNECT"), 10)
    lookup = talk.client(asks("LOOKUP", 1))  # pipelined after CONNECT
    error = talk.broker(command("ERROR", request_id=NO_REQUEST, error=3), 25)
    assert (error.request, error.latency_ns) == (connect.number, 15)
    assert talk.broker(command("ERROR", request_id=NO_REQUEST)).request is None
    assert talk.broker(command("ERROR", request_id=1)).request == lookup.number


def test_an_error_with_a_request_id_leaves_connect_open() -> None:
    talk = Talk()
    connect = talk.client(command("CONNECT"))
    assert talk.broker(command("ERROR", request_id=1)).request is None
    assert talk.broker(command("CONNECTED")).request == connect.number


def test_rounds_of_authentication() -> None:
    talk = Talk()
    said = [
        talk.client(command("CONNECT"), 0),
        talk.broker(command("AUTH_CHALLENGE"), 10),
        talk.client(command("AUTH_RESPONSE"), 30),
        talk.broker(command("AUTH_CHALLENGE"), 60),
        talk.client(command("AUTH_RESPONSE"), 100),
        talk.broker(command("CONNECTED"), 150),
    ]
    assert [frame.request for frame in said] == [None, 1, 2, 3, 4, 5]
    assert [frame.latency_ns for frame in said] == [None, 10, 20, 30, 40, 50]


def refresh(at: int = 0) -> BaseCommand:
    return command(
        "AUTH_CHALLENGE", challenge={"auth_method_name": "token", "auth_data": b"PulsarAuthRefresh"}
    )


@pytest.mark.parametrize("answer", ["silence", "error"])
def test_credentials_are_refreshed_later(answer: str) -> None:
    talk = Talk()
    talk.client(command("CONNECT"), 0)
    talk.broker(command("CONNECTED"), 1)
    challenge = talk.broker(refresh(), 1000)
    response = talk.client(command("AUTH_RESPONSE"), 1007)
    assert challenge.request is None
    assert (response.request, response.latency_ns) == (challenge.number, 7)
    if answer == "error":
        error = talk.broker(command("ERROR", request_id=NO_REQUEST, error=3), 1010)
        assert (error.request, error.latency_ns) == (response.number, 3)


def test_a_refresh_answers_nothing() -> None:
    """A refresh that succeeds gets no reply, so the next AUTH_CHALLENGE begins anew."""
    talk = Talk()
    talk.client(command("CONNECT"))
    talk.broker(command("CONNECTED"))
    for at in (60, 120, 180):
        challenge = talk.broker(refresh(), at * 10**9)
        assert (challenge.request, challenge.latency_ns) == (None, None)
        assert talk.client(command("AUTH_RESPONSE"), at * 10**9 + 5).request == challenge.number


@pytest.mark.parametrize("from_broker", [False, True])
def test_pings_are_answered_in_order(from_broker: bool) -> None:
    talk = Talk()
    ask, reply = (talk.broker, talk.client) if from_broker else (talk.client, talk.broker)
    pings = [ask(command("PING"), at) for at in (0, 10, 30)]
    pongs = [reply(command("PONG"), at) for at in (100, 200, 400)]
    assert [pong.request for pong in pongs] == [ping.number for ping in pings]
    assert [pong.latency_ns for pong in pongs] == [100, 190, 370]
    assert reply(command("PONG")).request is None


def test_pings_of_both_sides_cross() -> None:
    talk = Talk()
    mine, theirs = talk.client(command("PING"), 0), talk.broker(command("PING"), 5)
    answer_to_them = talk.client(command("PONG"), 6)
    answer_to_me = talk.broker(command("PONG"), 9)
    assert (answer_to_them.request, answer_to_them.latency_ns) == (theirs.number, 1)
    assert (answer_to_me.request, answer_to_me.latency_ns) == (mine.number, 9)


def test_a_pong_of_the_pinging_side_is_no_answer() -> None:
    talk = Talk()
    talk.client(command("PING"))
    assert talk.client(command("PONG")).request is None


def test_unanswered_pings_are_few(small_tables: int) -> None:
    talk = Talk()
    pings = [talk.client(command("PING")).number for _ in range(500)]
    answers = [talk.broker(command("PONG")).request for _ in range(500)]
    answered = [number for number in answers if number is not None]
    assert 0 < len(answered) <= small_tables
    assert answered == pings[-len(answered) :]


@pytest.mark.parametrize("announced", [1024 * 1024, 20 * 1024 * 1024])
def test_connected_moves_the_limit_of_both_streams(announced: int) -> None:
    talk = Talk()
    talk.broker(command("CONNECTED", max_message_size=announced))
    assert talk.up.limit == talk.down.limit == announced + FRAME_PADDING


@pytest.mark.parametrize(
    "fields", [{}, {"max_message_size": 0}, {"max_message_size": -1}, {"max_message_size": -(2**31)}]
)
def test_connected_without_a_sensible_limit(fields: dict[str, int]) -> None:
    talk = Talk()
    talk.broker(command("CONNECTED", **fields))
    assert talk.up.limit == talk.down.limit == MAX_FRAME_SIZE


def test_a_limit_that_was_asked_for_stays() -> None:
    talk = Talk(Knowledge(fixed_limit=True))
    talk.broker(command("CONNECTED", max_message_size=1024))
    assert talk.up.limit == talk.down.limit == MAX_FRAME_SIZE


def test_frames_up_to_the_announced_limit_pass() -> None:
    """The limit counts the frame's length prefix too."""
    talk = Talk()
    talk.broker(command("CONNECTED", max_message_size=1024))
    limit = 1024 + FRAME_PADDING
    send = command("SEND", producer_id=1, sequence_id=1)
    bare = len(build_frame(send, entry()))
    for size, passes in ((limit, True), (limit + 1, False)):
        stream = FrameStream(Connection(0), True, limit=talk.up.limit)
        (event,) = stream.feed(build_frame(send, entry(), bytes(size - bare)))
        assert isinstance(event, Frame)
        assert len(event.raw) == size
        assert (event.notes == ()) is passes


# -- the traffic of messages


def test_a_receipt_finds_its_send() -> None:
    talk = Talk()
    talk.produce(1, "a/b/t")
    sends = [talk.send(1, sequence, 10 * sequence) for sequence in range(5)]
    receipts = [talk.receipt(1, sequence, 100) for sequence in range(5)]
    assert [receipt.request for receipt in receipts] == [send.number for send in sends]
    assert [receipt.latency_ns for receipt in receipts] == [100, 90, 80, 70, 60]
    assert {frame.topic for frame in sends + receipts} == {"persistent://a/b/t"}
    assert [send.request for send in sends] == [None] * 5
    assert talk.receipt(1, 4).request is None


def test_producers_do_not_mix() -> None:
    talk = Talk()
    talk.produce(1, "a")
    talk.produce(2, "b")
    first, second = talk.send(1, 0, 0), talk.send(2, 0, 1)
    receipt = talk.receipt(2, 0, 5)
    assert (receipt.request, receipt.latency_ns) == (second.number, 4)
    assert receipt.topic == "persistent://public/default/b"
    assert talk.receipt(1, 0).request == first.number


def test_chunks_share_a_sequence_id() -> None:
    talk = Talk()
    chunks = [talk.send(1, 7, at, uuid="p-7", chunk_id=at, num_chunks_from_msg=4) for at in range(4)]
    talk.send(1, 8, 4)
    receipts = [talk.receipt(1, 7, 10 + at) for at in range(5)]
    assert [receipt.request for receipt in receipts] == [*(chunk.number for chunk in chunks), None]
    assert [receipt.latency_ns for receipt in receipts[:4]] == [10] * 4


def send_chunks(talk: Talk, *chunks: int, of: int = 6) -> list[Frame]:
    return [talk.send(1, 7, chunk, uuid="p-7", chunk_id=chunk, num_chunks_from_msg=of) for chunk in chunks]


def test_where_a_chunk_may_be_missing_no_receipt_is_paired() -> None:
    """All share one sequence id: nothing tells whose receipt it is."""
    talk = Talk()
    talk.client(command("CONNECT", client_version="c"))
    send_chunks(talk, 0, 1, 2)
    assert talk.receipt(1, 7).request is not None
    talk.session.track([Gap(100, talk.connection, True)])
    send_chunks(talk, 4, 5)
    assert [talk.receipt(1, 7).request for _ in range(5)] == [None] * 5
    whole = send_chunks(talk, 0, 1, of=2)
    assert [talk.receipt(1, 7).request for _ in range(3)] == [*(frame.number for frame in whole), None]


def test_a_capture_that_begins_among_chunks_pairs_none_of_them() -> None:
    talk = Talk()
    send_chunks(talk, 3, 4)
    assert [talk.receipt(1, 7).request for _ in range(3)] == [None] * 3


def test_chunks_out_of_order_are_paired_where_nothing_is_missing() -> None:
    talk = Talk()
    talk.client(command("CONNECT", client_version="c"))
    sends = send_chunks(talk, 1, 0, 3, 2, of=4)
    assert [talk.receipt(1, 7).request for _ in range(4)] == [frame.number for frame in sends]


@pytest.mark.slow
def test_chunks_that_nobody_answers_are_forgotten() -> None:
    talk = Talk()
    for sequence in range(MAX_PENDING // 50):
        for chunk in range(70):
            talk.send(1, sequence, 0, uuid=f"{sequence}", chunk_id=chunk, num_chunks_from_msg=200)
    ledger = talk.session.producers[1]
    assert sum(len(each.waiting) for each in ledger.chunks.values()) == ledger.waiting <= MAX_PENDING
    assert len(ledger.chunks) <= 1024


def test_a_sequence_id_sent_again() -> None:
    """As after a ChecksumError: the client sends all that waits again; each SEND has its own receipt."""
    talk = Talk()
    first = talk.send(1, 5, 0)
    again = talk.send(1, 5, 100)
    one, other = talk.receipt(1, 5, 110), talk.receipt(1, 5, 130)
    assert (one.request, one.latency_ns) == (first.number, 110)
    assert (other.request, other.latency_ns) == (again.number, 30)
    third = talk.send(1, 5, 200)
    assert talk.receipt(1, 5, 201).request == third.number


def test_sends_die_with_their_producer() -> None:
    """After the broker's CLOSE_PRODUCER it ignores SENDs; the client opens the id anew and sends again."""
    talk = Talk()
    talk.produce(1)
    talk.send(1, 5, 0)
    talk.broker(command("CLOSE_PRODUCER", producer_id=1, request_id=NO_REQUEST), 10)
    talk.send(1, 6, 11)
    talk.produce(1, request=9002)
    sends = [talk.send(1, sequence, 200) for sequence in (5, 6)]
    receipts = [talk.receipt(1, sequence, 203) for sequence in (5, 6)]
    assert [receipt.request for receipt in receipts] == [send.number for send in sends]
    assert [receipt.latency_ns for receipt in receipts] == [203, 192]  # since they were sent first


def test_a_repeated_producer_keeps_what_waits() -> None:
    """PRODUCER with an id that is open succeeds again and changes nothing."""
    talk = Talk()
    talk.produce(1)
    send = talk.send(1, 5, 0)
    talk.produce(1, request=9002)
    assert talk.receipt(1, 5, 8).request == send.number


@pytest.mark.parametrize("sequence", [0, 5, 2**64 - 1])
def test_a_receipt_without_its_send(sequence: int) -> None:
    talk = Talk()
    talk.produce(1)
    receipt = talk.receipt(1, sequence)
    assert (receipt.request, receipt.latency_ns, receipt.topic) == (None, None, TOPIC)
    assert talk.send_error(1, sequence).request is None
    assert talk.receipt(2, sequence).topic is None


def test_an_error_finds_its_send() -> None:
    talk = Talk()
    talk.produce(1)
    first, second = talk.send(1, 0, 0), talk.send(1, 1, 5)
    error = talk.send_error(1, 1, 7)  # overtakes the receipt of the one before
    assert (error.request, error.latency_ns, error.topic) == (second.number, 2, TOPIC)
    assert talk.receipt(1, 0).request == first.number


def test_the_error_of_a_batch_has_its_highest_sequence_id() -> None:
    talk = Talk()
    talk.produce(1)
    talk.produce(2)
    first = talk.send(1, 0, 0, highest=9)
    other = talk.send(2, 10, 0, highest=19)
    second = talk.send(1, 10, 5, highest=19)
    error = talk.send_error(1, 19, 7)
    assert (error.request, error.latency_ns, error.topic) == (second.number, 2, TOPIC)
    assert talk.send_error(1, 19).request is None
    assert talk.receipt(1, 0).request == first.number
    assert talk.send_error(2, 19).request == other.number


def test_the_error_of_a_batch_without_a_highest_sequence_id() -> None:
    talk = Talk()
    send = talk.send(1, 10)
    assert talk.send_error(1, 19).request is None
    assert talk.send_error(1, 10).request == send.number


def test_an_error_without_its_send_is_no_other_sends() -> None:
    talk = Talk()
    send = talk.send(1, 10)
    assert talk.send_error(1, 0).request is None
    assert talk.receipt(1, 10).request == send.number


def test_the_error_of_a_batch_that_was_sent_twice() -> None:
    talk = Talk()
    first, again = talk.send(1, 10, highest=19), talk.send(1, 10, highest=19)
    assert [talk.send_error(1, 19).request for _ in range(2)] == [first.number, again.number]


def test_everything_of_a_consumer_knows_its_topic() -> None:
    talk = Talk()
    talk.consume(6, "a/b/t", "s")
    said = [
        talk.client(command("FLOW", consumer_id=6)),
        talk.message(6),
        talk.client(command("ACK", consumer_id=6)),
        talk.client(command("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=6)),
        talk.broker(command("ACTIVE_CONSUMER_CHANGE", consumer_id=6)),
        talk.broker(command("REACHED_END_OF_TOPIC", consumer_id=6)),
        talk.client(command("SEEK", consumer_id=6, request_id=1)),
        talk.broker(command("CLOSE_CONSUMER", consumer_id=6, request_id=NO_REQUEST)),
        talk.broker(command("SUCCESS", request_id=1)),
        talk.client(command("GET_LAST_MESSAGE_ID", consumer_id=6, request_id=2)),
        talk.client(command("CONSUMER_STATS", consumer_id=6, request_id=3)),
        talk.client(command("UNSUBSCRIBE", consumer_id=6, request_id=4)),
    ]
    assert {(frame.topic, frame.subscription) for frame in said} == {("persistent://a/b/t", "s")}
    assert [frame.request for frame in said if frame.command != "SUCCESS"] == [None] * 11


def test_a_standby_hears_of_it_before_its_success() -> None:
    talk = Talk()
    talk.client(command("SUBSCRIBE", topic="t", subscription="s", consumer_id=2, request_id=1))
    change = talk.broker(command("ACTIVE_CONSUMER_CHANGE", consumer_id=2))
    assert (change.topic, change.subscription, change.request) == (TOPIC, "s", None)


@pytest.mark.parametrize(("kind", "subscription"), [(0, None), (1, "sub")])
def test_a_migration_knows_its_topic(kind: int, subscription: str | None) -> None:
    talk = Talk()
    talk.produce(1)
    talk.consume(2)
    migrated = talk.broker(command("TOPIC_MIGRATED", resource_id=1 + kind, resource_type=kind))
    assert (migrated.topic, migrated.subscription) == (TOPIC, subscription)


def test_ids_nobody_opened() -> None:
    talk = Talk()
    said = [talk.send(1, 0), talk.message(1), talk.client(command("FLOW", consumer_id=1))]
    said.append(talk.broker(command("CLOSE_PRODUCER", producer_id=1, request_id=NO_REQUEST)))
    assert [(frame.topic, frame.subscription) for frame in said] == [(None, None)] * 4


# -- topics


@pytest.mark.parametrize(
    ("spelling", "topic"),
    [
        ("t", "persistent://public/default/t"),
        ("a/b/t", "persistent://a/b/t"),
        ("a/b/t-partition-3", "persistent://a/b/t-partition-3"),
        ("non-persistent://a/b/t", "non-persistent://a/b/t"),
        ("persistent://prop/cluster/ns/t", "persistent://prop/cluster/ns/t"),
        ("segment://a/b/t/0000-7fff-1", "segment://a/b/t/0000-7fff-1"),
    ],
)
def test_topics_have_their_full_names(spelling: str, topic: str) -> None:
    talk = Talk()
    talk.produce(1, spelling)
    talk.consume(1, spelling)
    said = [
        talk.client(command("LOOKUP", topic=spelling, request_id=1)),
        talk.client(command("PARTITIONED_METADATA", topic=spelling, request_id=2)),
        talk.client(command("GET_SCHEMA", topic=spelling, request_id=3)),
        talk.send(1, 0),
        talk.message(1),
    ]
    assert {frame.topic for frame in said} == {topic}


@pytest.mark.parametrize("closed_by", ["client", "broker"])
def test_a_producer_id_used_again_after_a_close(closed_by: str) -> None:
    talk = Talk()
    talk.produce(1, "a")
    if closed_by == "client":
        talk.client(command("CLOSE_PRODUCER", producer_id=1, request_id=2))
        success = talk.broker(command("SUCCESS", request_id=2))
        assert success.topic == "persistent://public/default/a"
    else:
        talk.broker(command("CLOSE_PRODUCER", producer_id=1, request_id=NO_REQUEST))
    talk.produce(1, "b")
    assert talk.send(1, 0).topic == "persistent://public/default/b"


def test_a_consumer_id_used_again_after_a_close() -> None:
    talk = Talk()
    talk.consume(1, "a", "s1")
    talk.client(command("CLOSE_CONSUMER", consumer_id=1, request_id=2))
    success = talk.broker(command("SUCCESS", request_id=2))
    assert (success.topic, success.subscription) == ("persistent://public/default/a", "s1")
    talk.consume(1, "b", "s2")
    message = talk.message(1)
    assert (message.topic, message.subscription) == ("persistent://public/default/b", "s2")


def test_a_receipt_has_the_topic_of_its_send() -> None:
    talk = Talk()
    talk.produce(1, "a")
    send = talk.send(1, 0)
    talk.client(command("CLOSE_PRODUCER", producer_id=1, request_id=2))
    talk.client(command("PRODUCER", topic="b", producer_id=1, request_id=3))
    receipt = talk.receipt(1, 0)
    assert receipt.request == send.number
    assert receipt.topic == send.topic == "persistent://public/default/a"


def test_an_ack_response_has_the_topic_of_its_ack() -> None:
    talk = Talk()
    talk.consume(1, "a", "s1")
    ack = talk.client(command("ACK", consumer_id=1, request_id=5))
    talk.client(command("CLOSE_CONSUMER", consumer_id=1, request_id=6))
    talk.client(command("SUBSCRIBE", topic="b", subscription="s2", consumer_id=1, request_id=7))
    answer = talk.broker(command("ACK_RESPONSE", consumer_id=1, request_id=5))
    assert answer.request == ack.number
    assert (answer.topic, answer.subscription) == ("persistent://public/default/a", "s1")


@pytest.mark.parametrize("kind", ["producer", "consumer"])
def test_a_live_id_stays_on_its_topic(kind: str) -> None:
    """The broker does not compare the repeat: it succeeds and changes nothing."""
    talk = Talk()
    for topic in ("a", "b"):
        if kind == "producer":
            talk.produce(1, topic)
        else:
            talk.consume(1, topic)
    frame = talk.send(1, 0) if kind == "producer" else talk.message(1)
    assert frame.topic == "persistent://public/default/a"


OPENING = {"PRODUCER": "PRODUCER_SUCCESS", "SUBSCRIBE": "SUCCESS"}


def used(talk: Talk, name: str) -> str | None:
    """The topic of a frame of the producer or consumer 1."""
    topic = (talk.send(1, 0) if name == "PRODUCER" else talk.message(1)).topic
    return topic and topic.removeprefix("persistent://public/default/")


def opens(talk: Talk, name: str, topic: str, request: int) -> None:
    ids = {"producer_id": 1} if name == "PRODUCER" else {"consumer_id": 1, "subscription": topic}
    frame = talk.client(command(name, topic=topic, request_id=request, **ids))
    assert (frame.topic, frame.subscription) == (
        f"persistent://public/default/{topic}",
        None if name == "PRODUCER" else topic,
    )


def closing(name: str, request: int) -> BaseCommand:
    """Closes what `opens` has opened."""
    kind = "producer" if name == "PRODUCER" else "consumer"
    return command(f"CLOSE_{kind.upper()}", request_id=request, **{f"{kind}_id": 1})


@pytest.mark.parametrize("name", OPENING)
@pytest.mark.parametrize("by_broker", [False, True])
def test_an_id_is_free_once_it_is_closed(name: str, by_broker: bool) -> None:
    talk = Talk()
    opens(talk, name, "a", 1)
    talk.broker(command(OPENING[name], request_id=1))
    (talk.broker if by_broker else talk.client)(closing(name, 2))
    opens(talk, name, "b", 3)
    assert used(talk, name) == "b"


@pytest.mark.parametrize("name", OPENING)
def test_an_id_is_free_once_its_request_is_refused(name: str) -> None:
    talk = Talk()
    opens(talk, name, "a", 1)
    opens(talk, name, "b", 2)
    talk.broker(command("ERROR", request_id=2))  # as the first request is not answered yet
    opens(talk, name, "b", 3)
    assert used(talk, name) == "a"
    talk.broker(command("ERROR", request_id=1))
    opens(talk, name, "b", 4)
    assert used(talk, name) == "b"


@pytest.mark.parametrize("name", OPENING)
def test_an_error_that_comes_late_does_not_free_the_id_of_another_one(name: str) -> None:
    talk = Talk()
    opens(talk, name, "a", 1)
    talk.client(closing(name, 2))
    opens(talk, name, "b", 3)
    talk.broker(command("ERROR", request_id=1))
    opens(talk, name, "c", 4)
    assert used(talk, name) == "b"


@pytest.mark.parametrize("name", OPENING)
def test_missed_bytes_may_have_closed_an_id(name: str) -> None:
    talk = Talk()
    opens(talk, name, "a", 1)
    talk.broker(command(OPENING[name], request_id=1))
    talk.session.track(talk.down.gap(1))
    opens(talk, name, "b", 2)
    assert used(talk, name) == "b"


def renamed(base: BaseCommand, old: bytes, new: bytes) -> BaseCommand:
    """`base` with the text `old` replaced by bytes of the same length, UTF-8 or not."""
    assert len(old) == len(new)
    return BaseCommand.FromString(base.SerializeToString().replace(old, new))


def test_names_that_are_not_utf8() -> None:
    talk = Talk()
    producer = command("PRODUCER", topic="cafe", producer_id=1, request_id=1)
    talk.client(renamed(producer, b"cafe", b"caf\xe9"))
    assert (
        talk.broker(command("PRODUCER_SUCCESS", request_id=1)).topic == r"persistent://public/default/caf\xe9"
    )
    assert talk.send(1, 0).topic == r"persistent://public/default/caf\xe9"

    subscribe = command("SUBSCRIBE", topic="cafe", subscription="suba", consumer_id=1, request_id=2)
    frame = talk.client(renamed(renamed(subscribe, b"cafe", b"caf\xe9"), b"suba", b"sub\xff"))
    message = talk.message(1)
    expected = (r"persistent://public/default/caf\xe9", r"sub\xff")
    assert (frame.topic, frame.subscription) == (message.topic, message.subscription) == expected


@pytest.mark.parametrize("name", ["LOOKUP", "PRODUCER", "SUBSCRIBE"])
def test_a_topic_without_a_name(name: str) -> None:
    talk = Talk()
    assert talk.client(command(name, topic="", request_id=1)).topic is None


# -- numbers, damage, several connections


def test_frames_are_numbered_over_all_connections() -> None:
    knowledge = Knowledge()
    talks = [Talk(knowledge, index) for index in range(3)]
    frames = [talk.client(command("PING")) for talk in talks + talks]
    assert [frame.number for frame in frames] == [1, 2, 3, 4, 5, 6]
    assert knowledge.frames == 6


def test_ids_are_a_connections_own() -> None:
    knowledge = Knowledge()
    one, other = Talk(knowledge, 0), Talk(knowledge, 1)
    one.produce(1, "a")
    other.produce(1, "b")
    lookups = [talk.client(asks("LOOKUP", 1)).number for talk in (one, other)]
    sends = [talk.send(1, 0).number for talk in (one, other)]
    assert [talk.receipt(1, 0).request for talk in (other, one)] == sends[::-1]
    assert [talk.receipt(1, 0).topic for talk in (one, other)] == [
        "persistent://public/default/a",
        "persistent://public/default/b",
    ]
    answers = [talk.broker(command("LOOKUP_RESPONSE", request_id=1)).request for talk in (one, other)]
    assert answers == lookups


def test_what_is_no_frame_has_no_number() -> None:
    talk = Talk()
    ping, pong = build_frame(command("PING")), build_frame(command("PONG"))
    events: list[Event] = talk.up.feed(ping + b"\xff" * 50)
    events += talk.up.gap(10)
    events += talk.up.feed(pong + pong[:9])
    events += talk.up.close()
    talk.session.track(events)
    frames = [event for event in events if isinstance(event, Frame)]
    assert [(frame.number, frame.command) for frame in frames] == [(1, "PING"), (2, "PONG"), (3, "?")]
    assert any(isinstance(event, Gap) for event in events)
    assert talk.knowledge.frames == 3


def test_commands_nobody_knows_are_numbered() -> None:
    talk = Talk()
    unknown = bytes.fromhex("00000006 00000002 0863".replace(" ", ""))  # type 99
    events = talk.up.feed(unknown + build_frame(command("PING")))
    talk.session.track(events)
    assert [(event.number, event.command) for event in events if isinstance(event, Frame)] == [
        (1, "UNKNOWN(99)"),
        (2, "PING"),
    ]


def test_a_send_without_entry_has_a_receipt_all_the_same() -> None:
    talk = Talk()
    talk.produce(1)
    send = talk.client(command("SEND", producer_id=1, sequence_id=4))
    assert (send.metadata, send.topic) == (None, TOPIC)
    assert talk.receipt(1, 4).request == send.number


@pytest.mark.parametrize("name", sorted(NUMBERS))
@pytest.mark.parametrize("from_broker", [False, True])
def test_a_command_without_its_sub_message_breaks_nothing(name: str, from_broker: bool) -> None:
    talk = Talk()
    talk.client(command("PRODUCER", topic="t", producer_id=1, request_id=5))
    broken = (talk.broker if from_broker else talk.client)(BaseCommand(type=BaseCommand.Type.Value(name)))
    assert (broken.command, broken.body, broken.number) == (name, None, 2)
    assert talk.broker(command("PRODUCER_SUCCESS", request_id=5)).request == 1


def with_ids(name: str, owner: int, number: int) -> BaseCommand:
    """The command `name`; its ids of producers, consumers and the like are `owner`, all others `number`."""
    ids = [
        field.name
        for field in body_type(name).fields
        if field.name.endswith("_id") and field.type == field.TYPE_UINT64
    ]
    return command(
        name, **{field: number if field in ("request_id", "sequence_id") else owner for field in ids}
    )


@settings(deadline=None, max_examples=150)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(NUMBERS)),
            st.booleans(),
            st.sampled_from([0, 1, 2]),
            st.sampled_from([0, 1, NO_REQUEST]),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_any_traffic_links_to_what_was_said_before(said: list[tuple[str, bool, int, int]]) -> None:
    """Whatever is said, an answer refers to an earlier frame of the other side; latency is that distance."""
    talk = Talk(Knowledge(link_answers=True))
    frames: list[Frame] = []
    for name, either, owner, number in said:
        say = talk.client if TO_BROKER.get(NUMBERS[name], either) else talk.broker
        frames.append(say(with_ids(name, owner, number), 10 * len(frames)))
    assert [frame.number for frame in frames] == list(range(1, len(frames) + 1))
    linked = talk.knowledge.answers
    assert linked is not None
    for frame in frames:
        if frame.request is None:
            assert frame.latency_ns is None
            continue
        asked = frames[frame.request - 1]
        assert 0 < asked.number < frame.number
        assert asked.to_broker is not frame.to_broker
        assert frame.latency_ns == 10 * (frame.number - asked.number)
        assert linked[asked.number] == frame.number


# -- what is counted over the whole capture


def test_answers_are_linked_where_asked_for() -> None:
    talk = Talk(Knowledge(link_answers=True))
    said = [
        talk.client(command("CONNECT")),
        talk.broker(command("CONNECTED")),
        talk.client(command("PING")),
        talk.client(asks("LOOKUP", 1)),
        talk.send(1, 0),
        talk.client(asks("LOOKUP", 2)),
        talk.receipt(1, 0),
        talk.broker(command("LOOKUP_RESPONSE", request_id=1)),
        talk.broker(command("PONG")),
    ]
    answers = talk.knowledge.answers
    assert answers is not None
    assert [answers[frame.number] for frame in said] == [2, 0, 9, 8, 7, 0, 0, 0, 0]
    assert answers[0] == 0


def test_answers_of_late_requests_are_linked() -> None:
    knowledge = Knowledge(link_answers=True)
    knowledge.link(1, 2)
    knowledge.link(100_000, 100_003)
    knowledge.link(50_000, 100_004)
    assert knowledge.answers is not None
    assert {at: number for at, number in enumerate(knowledge.answers) if number} == {
        1: 2,
        50_000: 100_004,
        100_000: 100_003,
    }


def test_answers_are_not_kept_unasked() -> None:
    talk = Talk()
    talk.client(asks("LOOKUP", 1))
    talk.broker(command("LOOKUP_RESPONSE", request_id=1))
    assert talk.knowledge.answers is None


# -- tables forget


@pytest.fixture
def small_tables(monkeypatch: pytest.MonkeyPatch) -> int:
    """Few rows in every table; of what is kept by its bytes as many as have those of `schema()`."""
    for module in (exchanges, knowledge, state):
        monkeypatch.setattr(module, "MAX_PENDING", 8)
    monkeypatch.setattr(knowledge, "MAX_STORED", 8 * (schema().ByteSize() + knowledge._STORING))
    return 8


def newest(known: list[bool]) -> int:
    """How many are known, which must be the newest."""
    count = sum(known)
    assert known == [False] * (len(known) - count) + [True] * count
    return count


@pytest.mark.parametrize("name", ["LOOKUP", "UNSUBSCRIBE", "NEW_TXN"])
def test_unanswered_requests_are_forgotten(small_tables: int, name: str) -> None:
    talk = Talk()
    requests = [talk.client(asks(name, number)) for number in range(50)]
    answers = [talk.broker(command(ANSWERED_BY[name][0], request_id=number)) for number in range(50)]
    assert 1 <= newest([answer.request is not None for answer in answers]) <= small_tables
    assert answers[-1].request == requests[-1].number


def test_unanswered_sends_are_forgotten(small_tables: int) -> None:
    talk = Talk()
    sends = [talk.send(1, sequence) for sequence in range(50)]
    receipts = [talk.receipt(1, sequence) for sequence in range(50)]
    assert 1 <= newest([receipt.request is not None for receipt in receipts]) <= small_tables
    assert receipts[-1].request == sends[-1].number


def test_answered_ones_are_not_counted(small_tables: int) -> None:
    talk = Talk()
    talk.produce(1)
    first_send, first_lookup = talk.send(1, 0), talk.client(asks("LOOKUP", 0))
    for number in range(1, 50):
        talk.send(1, number)
        talk.receipt(1, number)
        talk.client(asks("LOOKUP", number))
        talk.broker(command("LOOKUP_RESPONSE", request_id=number))
    assert talk.receipt(1, 0).request == first_send.number
    assert talk.broker(command("LOOKUP_RESPONSE", request_id=0)).request == first_lookup.number


def test_producers_and_consumers_are_forgotten(small_tables: int) -> None:
    talk = Talk()
    for number in range(50):
        talk.produce(number, f"p{number}")
        talk.consume(number, f"c{number}")
    sends = [talk.send(number, 0).topic for number in range(50)]
    messages = [talk.message(number).topic for number in range(50)]
    assert 1 <= newest([topic is not None for topic in sends]) <= small_tables
    assert 1 <= newest([topic is not None for topic in messages]) <= small_tables
    assert (sends[-1], messages[-1]) == ("persistent://public/default/p49", "persistent://public/default/c49")


def test_sends_with_one_sequence_id_are_forgotten() -> None:
    talk = Talk()
    sends = [talk.send(1, 0).number for _ in range(2000)]
    receipts = [talk.receipt(1, 0).request for _ in range(2000)]
    answered = [number for number in receipts if number is not None]
    assert 100 < len(answered) < 2000
    assert answered == sends[-len(answered) :]


def test_sends_after_others_of_their_id_are_forgotten(small_tables: int) -> None:
    """Of many ids that each wait several times, no more are remembered than the tables have rows."""
    talk = Talk()
    sends = {talk.send(1, at // 4).number: at // 4 for at in range(400)}
    receipts = [talk.receipt(1, at // 4) for at in range(400)]
    answered = [(receipt.request, at // 4) for at, receipt in enumerate(receipts) if receipt.request]
    assert len(answered) <= 3 * small_tables
    assert all(sends[number] == sequence for number, sequence in answered)


def test_the_newest_send_is_not_forgotten(small_tables: int) -> None:
    for count in range(1, 50):
        talk = Talk()
        sends = [talk.send(1, 0).number for _ in range(count)]
        assert sends[-1] in [talk.receipt(1, 0).request for _ in range(count)]


@pytest.mark.parametrize("count", [2, 4, 3000])
def test_answered_sends_are_not_counted_as_queued(count: int) -> None:
    """However many share an id: 2000 messages in chunks would else take the bound away."""
    talk = Talk()
    for say in (talk.send, talk.receipt):
        for _ in range(count):
            say(1, 0)
    assert talk.session.producers[1].waiting == 0
    assert talk.session._pending < MAX_PENDING


# -- schemas


def schema(name: str = "s", kind: str = "Json") -> Schema:
    return Schema(name=name, schema_data=b"{}", type=Schema.Type.Value(kind))


def declared(talk: Talk, topic: str, version: bytes, by: str = "PRODUCER", name: str = "s") -> None:
    """The schema `name` becomes known as `version` of `topic`."""
    if by == "GET_SCHEMA":
        talk.client(command(by, topic=topic, request_id=70))
        answered: dict[str, Any] = {"schema": schema(name)}
    else:
        talk.client(command(by, topic=topic, request_id=70, schema=schema(name)))
        answered = {}
    answer = {"PRODUCER": "PRODUCER_SUCCESS"}.get(by, f"{by}_RESPONSE")
    talk.broker(command(answer, request_id=70, schema_version=version, **answered))
    if by == "PRODUCER":
        talk.client(command("CLOSE_PRODUCER", request_id=71))


@pytest.mark.parametrize("by", ["PRODUCER", "GET_SCHEMA", "GET_OR_CREATE_SCHEMA"])
def test_a_schema_is_found_by_its_version(by: str) -> None:
    talk = Talk()
    declared(talk, "t", V0, by, "old")
    declared(talk, "t", V1, by, "new")
    declared(talk, "u", V0, by, "other")
    talk.produce(2, "t")
    talk.consume(2, "t")
    for version, name in ((V0, "old"), (V1, "new")):
        assert talk.send(2, 0, schema_version=version).schema == schema(name)
        assert talk.message(2, schema_version=version).schema == schema(name)
    assert talk.send(2, 0, schema_version=bytes(7) + b"\x09").schema is None
    assert talk.send(2, 0).schema is None
    assert talk.send(99, 0, schema_version=V0).schema is None  # a topic nobody knows


def test_schemas_are_shared_by_connections_and_partitions() -> None:
    knowledge = Knowledge()
    producing, consuming = Talk(knowledge, 0), Talk(knowledge, 1)
    declared(producing, "persistent://public/default/t-partition-0", V0)
    consuming.consume(1, "t-partition-3")
    assert consuming.message(1, schema_version=V0).schema == schema()
    consuming.consume(2, "t-partition-03")  # no partition, an odd topic
    assert consuming.message(2, schema_version=V0).schema is None


def test_a_consumers_schema_serves_for_versions_nobody_declared() -> None:
    talk = Talk()
    talk.consume(1, "t", schema=schema("mine"))
    assert talk.message(1, schema_version=V0).schema == schema("mine")
    declared(talk, "t", V0)
    assert talk.message(1, schema_version=V0).schema == schema()
    assert talk.message(1, schema_version=V1).schema == schema("mine")


def test_messages_without_a_version_are_of_what_their_client_declared() -> None:
    """The Go client sends no version with a single message."""
    talk = Talk()
    declared(talk, "t", V0)
    talk.consume(1, "t", schema=schema("mine"))
    talk.consume(2, "t", name="other")
    assert talk.message(1).schema == schema("mine")
    assert talk.message(2).schema is None
    request = command("PRODUCER", topic="t", producer_id=5, request_id=1, schema=schema("producer's"))
    talk.client(request)
    talk.broker(command("PRODUCER_SUCCESS", request_id=1, producer_name="p", schema_version=V1))
    talk.produce(6)
    assert talk.send(5, 1).schema == schema("producer's")
    assert talk.send(6, 1).schema is None
    assert Talk(talk.knowledge, 1).send(5, 1).schema is None
    talk.produce(5)
    talk.consume(1)
    assert talk.send(5, 1).schema == schema("producer's")  # as their ids were in use
    assert talk.message(1).schema == schema("mine")
    talk.client(command("CLOSE_PRODUCER", producer_id=5, request_id=2))
    talk.client(command("CLOSE_CONSUMER", consumer_id=1, request_id=3))
    talk.produce(5)
    talk.consume(1)
    assert talk.send(5, 2).schema is None
    assert talk.message(1).schema is None


@pytest.mark.parametrize(
    ("request_", "subject"),
    [
        (command("ADD_PARTITION_TO_TXN", partitions=["t"]), (TOPIC, None)),
        (command("ADD_PARTITION_TO_TXN", partitions=["t", "u"]), (None, None)),
        (command("ADD_PARTITION_TO_TXN"), (None, None)),
        (
            command("ADD_SUBSCRIPTION_TO_TXN", subscription=[{"topic": "t", "subscription": "s"}]),
            (TOPIC, "s"),
        ),
        (
            command("ADD_SUBSCRIPTION_TO_TXN", subscription=[{"topic": "t", "subscription": "s"}] * 2),
            (None, None),
        ),
        (command("END_TXN_ON_SUBSCRIPTION", subscription={"topic": "t", "subscription": "s"}), (TOPIC, "s")),
        (command("END_TXN_ON_SUBSCRIPTION"), (None, None)),
    ],
)
def test_frames_of_a_transaction_know_their_only_topic(
    request_: BaseCommand, subject: tuple[str | None, str | None]
) -> None:
    frame = Talk().client(request_)
    assert (frame.topic, frame.subscription) == subject


def test_the_version_asked_for_serves_where_the_answer_has_none() -> None:
    talk = Talk()
    talk.client(command("GET_SCHEMA", topic="t", request_id=1, schema_version=V1))
    talk.broker(command("GET_SCHEMA_RESPONSE", request_id=1, schema=schema()))
    talk.consume(1, "t")
    assert talk.message(1, schema_version=V1).schema == schema()
    assert talk.message(1, schema_version=V0).schema is None


@pytest.mark.parametrize(
    ("asked", "answer", "fields"),
    [
        ("PRODUCER", "ERROR", {}),
        ("PRODUCER", "PRODUCER_SUCCESS", {"schema_version": b""}),
        ("PRODUCER", "PRODUCER_SUCCESS", {}),
        ("GET_OR_CREATE_SCHEMA", "GET_OR_CREATE_SCHEMA_RESPONSE", {"error_code": 18}),
        ("GET_OR_CREATE_SCHEMA", "ERROR", {}),
    ],
)
def test_a_schema_that_was_refused_is_unknown(asked: str, answer: str, fields: dict[str, Any]) -> None:
    talk = Talk()
    talk.client(command(asked, topic="t", request_id=1, schema=schema()))
    talk.broker(command(answer, request_id=1, **fields))
    talk.consume(1, "t")
    assert talk.message(1, schema_version=V0).schema is None
    assert not talk.knowledge.schemas


def test_a_get_schema_that_failed_teaches_nothing() -> None:
    talk = Talk()
    talk.client(command("GET_SCHEMA", topic="t", request_id=1, schema_version=V0))
    talk.broker(command("GET_SCHEMA_RESPONSE", request_id=1, error_code=11))
    assert not talk.knowledge.schemas


@pytest.mark.parametrize("kind", ["None", "AutoConsume"])
def test_kinds_that_are_no_schema(kind: str) -> None:
    talk = Talk()
    talk.consume(1, "t", schema=schema(kind=kind))
    assert talk.message(1, schema_version=V0).schema is None
    assert not talk.knowledge.schemas


def test_schemas_without_topic() -> None:
    schemas = Schemas()
    for topic in ("", None):
        schemas.add(topic, V0, schema())
        assert schemas.find(topic, V0) is None
    assert not schemas


def test_a_new_declaration_replaces_the_old() -> None:
    schemas = Schemas()
    schemas.add("t", V0, schema("old"))
    schemas.add("t-partition-1", V0, schema("new"))
    assert schemas.find("t-partition-7", V0) == schema("new")
    assert bool(schemas) is True


def test_schemas_are_forgotten(small_tables: int) -> None:
    schemas = Schemas()
    versions = [number.to_bytes(8, "big") for number in range(50)]
    for version in versions:
        schemas.add("t", version, schema())
    assert 1 <= newest([schemas.find("t", version) is not None for version in versions]) <= small_tables
    topics = [f"topic-{number}" for number in range(50)]
    for topic in topics:
        schemas.add(topic, V0, schema())
    assert 1 <= newest([schemas.find(topic, V0) is not None for topic in topics]) <= small_tables


def large(size: int = 1024 * 1024, name: str = "s") -> Schema:
    return Schema(name=name, schema_data=bytes(size), type=Schema.Json)


def kept_bytes(kept: MessageStore, keys: range) -> int:
    """The bytes of what `kept` still has under `keys`, which must be the newest."""
    found = [kept.get(key) for key in keys]
    newest([message is not None for message in found])
    return sum(message.ByteSize() for message in found if message is not None)


def test_large_schemas_are_bounded_by_their_bytes() -> None:
    kept = MessageStore()
    for number in range(100):
        kept.put(number, large())
        assert kept_bytes(kept, range(number + 1)) <= MAX_STORED
        assert kept.get(number) is not None
    assert kept_bytes(kept, range(100)) > MAX_STORED // 4


def test_large_schemas_of_topics_are_bounded() -> None:
    schemas = Schemas()
    topics = [f"topic-{number}" for number in range(100)]
    for topic in topics:
        schemas.add(topic, V0, large())
    known = newest([schemas.find(topic, V0) is not None for topic in topics])
    assert MAX_STORED // 4 < known * large().ByteSize() <= MAX_STORED


@pytest.mark.parametrize("name", ["PRODUCER", "GET_OR_CREATE_SCHEMA"])
def test_large_requests_without_answer_are_bounded(name: str) -> None:
    """They still find their answers; those that were forgotten teach no schema."""
    talk = Talk()
    for number in range(100):
        ids = {"producer_id": number} if name == "PRODUCER" else {}
        talk.client(asks(name, number, topic=f"topic-{number}", schema=large(), **ids))
    keys = [(0, REQUESTS[NUMBERS[name]].family, number) for number in range(100)]
    assert 8 < newest([talk.knowledge.bodies.get(key) is not None for key in keys]) < 32
    answer = {"PRODUCER": "PRODUCER_SUCCESS"}.get(name, f"{name}_RESPONSE")
    answers = [talk.broker(command(answer, request_id=number, schema_version=V0)) for number in range(100)]
    assert None not in [frame.request for frame in answers]
    assert not talk.knowledge.bodies
    schemas = talk.knowledge.schemas
    known = newest(
        [schemas.find(f"persistent://public/default/topic-{number}", V0) is not None for number in range(100)]
    )
    assert MAX_STORED // 4 < known * large().ByteSize() <= MAX_STORED


def test_schemas_of_topics_with_long_names_are_bounded() -> None:
    """A name is a key: it is cut, and what is left of it is in the 4096 bytes that each is counted with."""
    schemas = Schemas()
    topics = [full_topic(f"{number:05}" + "x" * 10_000) for number in range(10_000)]
    assert max(map(len, topics)) < MAX_NAME_LENGTH + 40
    for topic in topics:
        schemas.add(topic, V0, schema())
    known = newest([schemas.find(topic, V0) is not None for topic in topics])
    assert MAX_STORED // 4 < known * 4096 <= MAX_STORED


def test_what_is_replaced_or_dropped_is_not_counted() -> None:
    kept = MessageStore()
    kept.put("first", schema())
    for _ in range(100):
        kept.put("again", large())
    for number in range(100):
        kept.put(number, large())
        kept.drop(number)
        kept.drop(number)
    assert kept.get("first") == schema()
    assert kept.get("again") == large()
    assert kept.get("never") is None


def test_what_is_larger_than_all_that_may_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knowledge, "MAX_STORED", 10_000)
    kept = MessageStore()
    kept.put(1, large(20_000))
    assert (bool(kept), kept.get(1)) == (False, None)
    kept.put(2, schema())
    assert kept.get(2) == schema()


# -- chunks: a session hands them to the joiner


def chunk(at: int, **fields: Any) -> dict[str, Any]:
    return {"uuid": "p-1", "chunk_id": at, "num_chunks_from_msg": 2, **fields}


@pytest.mark.parametrize("join", [True, False])
def test_the_last_chunk_has_the_message(join: bool) -> None:
    talk = Talk(Knowledge(join_chunks=join))
    bare = build_frame(command("SEND", producer_id=1, sequence_id=1), entry(**chunk(0)), b"ab")
    last = build_frame(command("SEND", producer_id=1, sequence_id=1), entry(**chunk(1)), b"cd")
    events = talk.up.feed(bare + last)
    talk.session.track(events)
    joined = [event.joined for event in events if isinstance(event, Frame)]
    assert joined == [None, b"abcd" if join else b""]


def test_chunks_of_both_directions_and_owners_are_apart() -> None:
    talk = Talk()
    frames = [
        talk.send(1, 1, **chunk(0)),
        talk.message(1, **chunk(0)),
        talk.send(2, 1, **chunk(0)),
        talk.message(1, **chunk(1)),
        talk.send(1, 1, **chunk(1)),
        talk.message(2, **chunk(1)),
    ]
    assert [frame.joined is not None for frame in frames] == [False, False, False, True, True, False]
    assert [bool(frame.notes) for frame in frames] == [False] * 5 + [True]
