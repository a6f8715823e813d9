"""Producers and consumers that cannot be opened: who holds the name, and what the client does then."""

import pytest
from segments import PING, PONG, Tcp, Turn, build
from timeline import Timeline, ids

from pulsarctl_wire.checks.finding import CERTAIN, SUSPECTED
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSubscribe, ServerError

TOPIC = "persistent://public/default/t"
IN_USE = [("producer_name_in_use", CERTAIN)]
DEAD = "producer_name_held_by_dead_connection"


def producer(request: int, name: str = "billing", number: int = 0, **fields: object) -> Turn:
    body = {"topic": TOPIC, "producer_id": number, "request_id": request, "producer_name": name}
    return True, build("PRODUCER", **body, **fields)


def produced(request: int, name: str = "billing") -> Turn:
    return False, build("PRODUCER_SUCCESS", request_id=request, producer_name=name)


def subscribe(request: int, kind: int, number: int = 0) -> Turn:
    body = {"topic": TOPIC, "subscription": "s", "subType": kind, "consumer_id": number}
    return True, build("SUBSCRIBE", request_id=request, **body)


def succeeded(request: int) -> Turn:
    return False, build("SUCCESS", request_id=request)


def refused(request: int, error: int = ServerError.ProducerBusy) -> Turn:
    return False, build("ERROR", request_id=request, error=error, message="no")


def two_clients(*holds: Turn) -> tuple[Timeline, Tcp, Tcp]:
    """A connection that opens something, and another one."""
    timeline, holder, other = Timeline(), Tcp(), Tcp(client=("10.0.0.3", 50_000))
    timeline.log_in(0, holder, *holds)
    timeline.log_in(0.5, other)
    return timeline, holder, other


def test_holder_that_the_broker_gives_up() -> None:
    for closes, until, certainty in ((True, 5, CERTAIN), (False, 6, SUSPECTED), (False, 4.9, None)):  # R = 3
        timeline, holder, other = two_clients(producer(1), produced(1))
        timeline.say(1, other, producer(1), refused(1))
        timeline.say(2, holder, (False, PING))
        if closes:
            timeline.at(4, holder.fin(False))
        found = [each for each in timeline.findings(until) if each.rule == DEAD]
        assert [each.certainty for each in found] == [certainty] * (certainty is not None)
        if not found:
            continue
        [finding] = found
        assert [each.sighting.command for each in finding.evidence] == [
            *("PRODUCER", "ERROR", "PRODUCER_SUCCESS", "PING")
        ]
        assert str(finding.connection) == "10.0.0.3:50000-10.0.0.2:6650"


@pytest.mark.parametrize("is_proxied", [True, False])
def test_client_that_is_in_its_own_way(is_proxied: bool) -> None:
    """Behind a proxy all is seen twice: the other half of the connection is no other client."""
    timeline, client, proxy = Timeline(), Tcp(), Tcp(client=("10.0.0.3", 50_000))
    connections = (client, proxy) if is_proxied else (client,)
    for tcp in connections:
        timeline.log_in(0, tcp)
    for request, answer in ((1, succeeded(1)), (2, refused(2, ServerError.ConsumerBusy))):
        for tcp in connections:
            timeline.say(request, tcp, subscribe(request, CommandSubscribe.Exclusive, request))
        for tcp in reversed(connections):
            timeline.say(request + 0.1, tcp, (False, PING), (True, PONG), answer)
    assert timeline.findings(60) == []


def test_silent_holder_without_a_ping_proves_nothing() -> None:
    timeline, holder, other = two_clients(producer(1), produced(1))
    timeline.say(1, other, producer(1), refused(1))
    timeline.at(60, holder.fin(False))
    assert timeline.findings() == []


def test_holder_that_answers_late_is_alive() -> None:
    timeline, holder, other = two_clients(producer(1), produced(1))
    timeline.say(1, other, producer(1), refused(1))
    timeline.say(2, holder, (False, PING))
    timeline.say(4, holder, (True, PONG))
    [finding] = timeline.findings(60)
    assert ids([finding]) == IN_USE
    assert len(finding.evidence) == 3  # the sign of life came later


@pytest.mark.parametrize("late", [0.01, 3, 9])
def test_success_that_the_broker_did_not_hold_back(late: float) -> None:
    timeline, holder, other = two_clients(producer(1), produced(1))
    timeline.say(1, other, producer(1))
    timeline.say(1.001, holder, (False, PING))
    timeline.at(1 + late - 0.001, holder.fin(False))
    timeline.say(1 + late, other, produced(1))
    assert DEAD not in dict(ids(timeline.findings()))


@pytest.mark.parametrize(
    "case",
    [
        "never opened",
        "not there yet",
        "refused itself",
        "closed",
        "other name",
        "its client has left",
        "given up",
    ],
)
def test_busy_without_a_holder(case: str) -> None:
    holds = [producer(1), produced(1)]
    if case == "never opened":
        holds = []
    elif case == "not there yet":
        del holds[1]
    elif case == "refused itself":
        holds[1] = refused(1)
    elif case == "closed":
        holds += [(True, build("CLOSE_PRODUCER", producer_id=0, request_id=2)), succeeded(2)]
    timeline, holder, other = two_clients(*holds)
    if case == "its client has left":
        timeline.at(0.9, holder.fin(True))
    elif case == "given up":
        timeline.say(0.7, holder, (False, PING))
        timeline.at(0.9, holder.fin(False))
    name = "invoices" if case == "other name" else "billing"
    timeline.say(1, other, producer(1, name))
    timeline.say(1.1, holder, (False, PING), (True, PONG))
    timeline.say(1.2, other, refused(1))
    assert [each for each in timeline.findings() if each.rule != "client_silent"] == []


def test_subscription_that_is_asked_for_twice_at_the_same_time() -> None:
    timeline, holder, other = two_clients(subscribe(1, CommandSubscribe.Exclusive))
    timeline.say(1, other, subscribe(1, CommandSubscribe.Exclusive), refused(1, ServerError.ConsumerBusy))
    timeline.say(1.1, holder, (False, PING), (True, PONG))
    assert timeline.findings() == []


@pytest.mark.parametrize("holds", [CommandSubscribe.Exclusive, CommandSubscribe.Shared])
@pytest.mark.parametrize("wants", [CommandSubscribe.Exclusive, CommandSubscribe.Failover])
def test_only_exclusive_subscriptions_are_held(holds: int, wants: int) -> None:
    timeline, holder, other = two_clients(subscribe(1, holds), succeeded(1))
    timeline.say(1, other, subscribe(1, wants))
    timeline.say(1.1, holder, (False, PING), (True, PONG))
    timeline.say(1.2, other, refused(1, ServerError.ConsumerBusy))
    exclusive = holds == wants == CommandSubscribe.Exclusive
    assert ids(timeline.findings()) == [("subscription_in_use", CERTAIN)] * exclusive


def test_nothing_is_said_about_names_when_bytes_are_missing() -> None:
    timeline, holder, other = two_clients(producer(1), produced(1))
    timeline.say(1, other, producer(1))
    timeline.at(1.1, holder.send(True, b"", missing=50))
    timeline.say(1.2, holder, (False, PING), (True, PONG))
    timeline.say(1.3, other, refused(1))
    assert timeline.findings() == []


# -- requests that are given up


@pytest.mark.parametrize(
    ("again", "after", "expected"),
    [
        (producer(2, number=1), 3, 1),
        (producer(2, number=0), 3, 1),
        (producer(2, number=1), 2.9, 0),
        (producer(2, "invoices", number=1), 3, 0),
        (subscribe(2, CommandSubscribe.Shared), 3, 0),
    ],
    ids=["again", "same id", "too soon", "other name", "a consumer"],
)
def test_asked_again_without_closing(again: Turn, after: float, expected: int) -> None:
    timeline, tcp = Timeline(), Tcp()
    timeline.log_in(0, tcp)
    timeline.say(1, tcp, producer(1))
    timeline.say(1 + after, tcp, again)
    assert ids(timeline.findings()) == [("create_timed_out_not_closed", SUSPECTED)] * expected


def test_late_answer_of_the_first_consumer() -> None:
    for answer, certainty in ((succeeded(1), CERTAIN), (refused(1, ServerError.ConsumerBusy), SUSPECTED)):
        timeline, tcp = Timeline(), Tcp()
        timeline.log_in(0, tcp)
        timeline.say(1, tcp, subscribe(1, CommandSubscribe.Shared))
        timeline.say(5, tcp, subscribe(2, CommandSubscribe.Shared, 1), succeeded(2))
        timeline.say(6, tcp, answer)
        [finding] = timeline.findings()
        assert ids([finding]) == [("create_timed_out_not_closed", certainty)]
        assert finding.subject.consumer_id == 0


# -- brokers that do not own the topic


def lookup(request: int, topic: str = TOPIC) -> Turn:
    return True, build("LOOKUP", topic=topic, request_id=request)


def not_ready(request: int) -> list[Turn]:
    return [producer(request), refused(request, ServerError.ServiceNotReady)]


STALE = [("stale_ownership", CERTAIN)]


@pytest.mark.parametrize(
    ("between", "expected"),
    [([], 1), ([lookup(9)], 0), ([lookup(9, "other")], 1)],
    ids=["nothing", "lookup", "lookup of another topic"],
)
def test_asked_again_without_lookup(between: list[Turn], expected: int) -> None:
    timeline, tcp = Timeline(), Tcp()
    timeline.log_in(0, tcp)
    timeline.say(1, tcp, *not_ready(1), *between, *not_ready(2))
    assert ids(timeline.findings()) == STALE * expected


@pytest.mark.parametrize(
    "case", ["reconnects", "stays", "other server", "other client", "looked up elsewhere"]
)
def test_asked_again_on_another_connection(case: str) -> None:
    timeline, first, aside = Timeline(), Tcp(), Tcp(client=("10.0.0.1", 50_009), server=("10.0.0.9", 6650))
    second = Tcp(
        client=("10.0.0.7" if case == "other client" else "10.0.0.1", 50_001),
        server=("10.0.0.8" if case == "other server" else "10.0.0.2", 6650),
    )
    timeline.log_in(0, aside)
    timeline.log_in(1, first, *not_ready(1))
    if case != "stays":
        timeline.at(2, *first.goodbye())
    if case == "looked up elsewhere":
        timeline.say(2.5, aside, lookup(1))
    timeline.log_in(3, second, *not_ready(1))
    assert ids(timeline.findings()) == STALE * (case == "reconnects")
