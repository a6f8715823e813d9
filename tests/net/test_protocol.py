"""Sessions without sockets, clocks and event loops: both sides of a connection, producers, consumers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from net.scripted import TOPIC, build, entry

from pulsarctl_wire.errors import BrokerError, LinkClosed, RequestTimeout, Unreachable
from pulsarctl_wire.net.outbox import Now, Warned
from pulsarctl_wire.net.protocol import (
    HANDSHAKE,
    ClientProtocol,
    FrameProtocol,
    Outcome,
    read_refusal,
)
from pulsarctl_wire.net.session.acks import AckRequest
from pulsarctl_wire.net.session.inbox import Inbox
from pulsarctl_wire.net.session.receive_queue import ConsumerOptions, ReceiveQueue
from pulsarctl_wire.net.session.send_queue import ProducerOptions, Restart, SendQueue, SendResult
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.entry import Outgoing
from pulsarctl_wire.wire.frame import Connection, Frame
from pulsarctl_wire.wire.payload import Budget
from pulsarctl_wire.wire.PulsarApi_pb2 import ServerError

SECOND = 1_000_000_000
CONNECTED = build("CONNECTED", server_version="b", protocol_version=21, max_message_size=1000)
LOOKUP = build_command("LOOKUP", topic=TOPIC, authoritative=False)


def at(seconds: float) -> Now:
    return Now(int(seconds * SECOND), 0)


def client() -> ClientProtocol:
    """A client's side, connected at 0 s."""
    protocol = ClientProtocol(Connection(0), "broker:6650")
    protocol.connect(None, "", at(0), 10)
    protocol.receive(CONNECTED, at(0))
    protocol.take_events()
    protocol.take_bytes()
    return protocol


def outcomes(protocol: ClientProtocol) -> list[Outcome]:
    return [event for event in protocol.take_events() if isinstance(event, Outcome)]


def frame_of(data: bytes, *, to_broker: bool = False) -> Frame:
    side = FrameProtocol(Connection(0), to_broker)
    side.receive(data, at(0))
    (frame,) = side.take_events()
    assert isinstance(frame, Frame)
    return frame


@given(st.integers(1, 40))
def test_two_sides_without_a_socket(size: int) -> None:
    """The handshake between a client's side and a broker's, in pieces of any size."""
    ours, broker = ClientProtocol(Connection(0)), FrameProtocol(Connection(0), to_broker=True)
    ours.connect(("token", b"secret"), "", at(0), 10)
    data = b"".join(ours.take_bytes())
    for start in range(0, len(data), size):
        broker.receive(data[start : start + size], at(1))
    (connect,) = broker.take_events()
    assert isinstance(connect, Frame)
    assert connect.body.auth_data == b"secret"
    broker.send(CONNECTED)
    data = b"".join(broker.take_bytes())
    for start in range(0, len(data), size):
        ours.receive(data[start : start + size], at(2))
    assert (ours.server, ours.max_message_size) == ("b", 1000)
    assert [(each.number, each.error) for each in outcomes(ours)] == [(HANDSHAKE, None)]


def test_requests_end_in_time() -> None:
    """A request that nothing answers fails at its deadline, which is when the protocol wants to be woken."""
    protocol = client()
    late, soon = protocol.request(LOOKUP, at(0), 30), protocol.request(LOOKUP, at(0), 5)
    assert protocol.wake_at == 5 * SECOND
    protocol.wake(at(4.9))
    assert not outcomes(protocol)
    protocol.wake(at(5))
    (outcome,) = outcomes(protocol)
    assert outcome.number == soon
    assert isinstance(outcome.error, RequestTimeout)
    assert protocol.wake_at == 30 * SECOND
    protocol.receive(build("ERROR", request_id=late, error=ServerError.TopicNotFound, message="x"), at(6))
    (outcome,) = outcomes(protocol)
    assert isinstance(outcome.error, BrokerError)
    assert TOPIC in str(outcome.error)
    assert protocol.wake_at is None


def test_a_producer_in_line_waits_without_end() -> None:
    """PRODUCER_SUCCESS that says to wait takes the deadline away; the next one is the answer."""
    protocol = client()
    command = build_command("PRODUCER", topic=TOPIC, producer_id=1)
    number = protocol.request(command, at(0), 5)
    fields = {"request_id": number, "producer_name": "p"}
    protocol.receive(build("PRODUCER_SUCCESS", **fields, producer_ready=False), at(1))
    assert any(isinstance(event, Warned) for event in protocol.take_events())
    assert protocol.wake_at is None
    protocol.wake(at(1000))
    assert not outcomes(protocol)
    protocol.receive(build("PRODUCER_SUCCESS", **fields), at(1001))
    assert [(each.number, each.error) for each in outcomes(protocol)] == [(number, None)]


def test_pings_keep_alive() -> None:
    """A PING each time; where nothing came since the last one, the connection is to be closed."""
    protocol = client()
    protocol.keep_alive(30, at(0))
    assert protocol.wake_at == 30 * SECOND
    protocol.wake(at(30))
    assert protocol.take_bytes() == [build("PING")]
    protocol.receive(build("PONG"), at(31))
    for seconds in (60, 90):
        assert not protocol.failure
        protocol.wake(at(seconds))
    assert protocol.failure == "PING was not answered by PONG within 30 s"


def test_the_end_fails_what_waits() -> None:
    """What waits for an answer when the connection ends gets none, and nothing more can be sent."""
    protocol = client()
    protocol.request(LOOKUP, at(0), 30)
    protocol.end()
    (outcome,) = outcomes(protocol)
    assert str(outcome.error) == "broker:6650: the broker closed the connection; LOOKUP has no answer"
    with pytest.raises(LinkClosed):
        protocol.request(LOOKUP, at(0), 30)
    silent = ClientProtocol(Connection(0), "broker:6650")
    silent.connect(None, "", at(0), 10)
    silent.end()
    assert isinstance(outcomes(silent)[0].error, Unreachable)


def test_either_side_refuses_what_is_no_frame() -> None:
    """Bytes that are no frame are the end of the connection, on a broker's side as on a client's."""
    for to_broker, who in ((True, "the client"), (False, "the broker")):
        side = FrameProtocol(Connection(0), to_broker)
        side.receive(bytes(64), at(0))
        assert side.failure.startswith(f"{who} sent bytes that are not a frame")
        with pytest.raises(LinkClosed):
            side.send(build("PONG"))


def test_a_short_first_frame_whose_sizes_do_not_fit_is_refused_at_once() -> None:
    side = FrameProtocol(Connection(0), to_broker=True)
    side.receive(bytes.fromhex("00000006 00000802 0802"), at(0))
    assert side.failure == "the client sent bytes that are not a frame: its sizes do not fit together"


def test_refusals_are_told_from_answers() -> None:
    """An answer tells of no error; ERROR does."""
    assert read_refusal(frame_of(build("SUCCESS", request_id=1)), "SEEK") is None
    error = read_refusal(
        frame_of(build("ERROR", request_id=1, error=ServerError.NotAllowedError, message="no")), "SEEK", TOPIC
    )
    assert error is not None
    assert (error.code, error.detail, error.request) == ("NotAllowedError", "no", "SEEK")


SUCCESS = frame_of(build("PRODUCER_SUCCESS", request_id=1, producer_name="p", last_sequence_id=-1)).body


def sending(**options: object) -> SendQueue:
    """The sends of a producer that is open."""
    queue = SendQueue(TOPIC, 1, ProducerOptions(**options))  # type: ignore[arg-type]
    queue.on_registered(SUCCESS, 1 << 20)
    queue.on_open(at(0))
    return queue


def receipt(sequence_id: int) -> Frame:
    return frame_of(
        build(
            "SEND_RECEIPT",
            producer_id=1,
            sequence_id=sequence_id,
            message_id={"ledgerId": 7, "entryId": sequence_id},
        )
    )


def test_a_batch_goes_when_it_is_time() -> None:
    """Messages wait for others for the batch delay; the receipt tells of the latency."""
    queue = sending(batch_delay=0.5)
    assert not queue.add(Outgoing(b"a"), at(1))
    assert not queue.add(Outgoing(b"b"), at(1.25))
    assert (queue.take_bytes(), queue.wake_at) == ([], 1.5 * SECOND)
    queue.wake(at(1.5))
    assert len(queue.take_bytes()) == 1
    queue.on_frame(receipt(0), at(2))
    (sent,) = queue.take_events()
    assert isinstance(sent, SendResult)
    assert (sent.count, sent.highest, sent.latency_ns) == (2, 1, SECOND // 2)
    assert queue.wake_at is None


def test_what_is_pending_goes_again() -> None:
    """What was sent over a link that was lost goes again, and fails once the send timeout is over."""
    queue = sending(batch_count=1, send_timeout=10)
    queue.add(Outgoing(b"a"), at(0))
    first = queue.take_bytes()
    queue.suspend()
    queue.add(Outgoing(b"b"), at(1))
    assert not queue.take_bytes()
    queue.on_registered(SUCCESS, 1 << 20)
    queue.on_open(at(0))
    assert queue.take_bytes()[:1] == first
    queue.on_frame(receipt(1), at(2))
    assert [type(event) for event in queue.take_events()] == [Warned, Restart]
    queue.wake(at(10))
    (sent,) = queue.take_events()
    assert isinstance(sent, SendResult)
    assert isinstance(sent.error, RequestTimeout)
    assert queue.wake_at == 11 * SECOND


class Consuming:
    """What deliveries know of a consumer."""

    def __init__(self, **options: object) -> None:
        consumers = [self]
        self.inbox: Inbox[Any] = Inbox(consumers, Budget(Budget.RATIO))
        self.queue = ReceiveQueue(self, TOPIC, 1, ConsumerOptions("s", **options), self.inbox)  # type: ignore[arg-type]
        self.queue.make_command(at(0))
        self.queue.on_open(at(0))

    @property
    def generation(self) -> int:
        return self.queue.generation

    def sent(self) -> list[str]:
        return [frame_of(data, to_broker=True).command for data in self.queue.take_bytes()]


def test_what_is_received_is_acknowledged_and_asked_for_again() -> None:
    """Permits at the beginning, an ACK once it has waited, and a refused message again after its delay."""
    consumer = Consuming(type=1, nack_delay=2.0)
    queue = consumer.queue
    assert consumer.sent() == ["FLOW"]
    deliveries = []
    for number in range(2):
        queue.on_frame(frame_of(entry(number, b"a")(1)), at(1))
        delivery = consumer.inbox._queue.popleft()
        assert queue.open_entry(delivery)
        queue.release_permits(delivery, at(1))
        deliveries.append(delivery)
    queue.ack(deliveries[0], None, at(1))
    queue.nack(deliveries[1], at(1))
    assert queue.wake_at == int(1.1 * SECOND)
    queue.wake(at(1.1))
    (request,) = (event for event in queue.take_events() if isinstance(event, AckRequest))
    assert [each["entryId"] for each in request.ids] == [0]
    queue.acks.settle(request.number, is_lost=False)
    assert queue.wake_at == 3 * SECOND
    queue.wake(at(3))
    assert consumer.sent() == ["REDELIVER_UNACKNOWLEDGED_MESSAGES"]
    assert queue.wake_at is None


def test_permits_go_back_for_what_costs_some() -> None:
    """A message costs a permit, which goes back when it is taken; a marker costs none."""
    consumer = Consuming(queue_size=1)
    assert consumer.sent() == ["FLOW"]
    cases: list[tuple[dict[str, Any], list[str]]] = [({"marker_type": 10}, []), ({}, ["FLOW"])]
    for number, (fields, sent) in enumerate(cases):
        consumer.queue.on_frame(frame_of(entry(number, b"a", **fields)(1)), at(1))
        delivery = consumer.inbox._queue.popleft()
        assert consumer.queue.open_entry(delivery)
        consumer.queue.release_permits(delivery, at(1))
        assert consumer.sent() == sent
