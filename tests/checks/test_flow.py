"""Flow control: consumers that get nothing although messages wait, or although none does."""

import pytest
from segments import Tcp, Turn, build
from timeline import Timeline, ids

from pulsarctl_wire.checks.finding import CERTAIN, SUSPECTED
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandAck, CommandSubscribe, MessageMetadata

TOPIC = "persistent://public/default/t"
EXCLUSIVE, SHARED = CommandSubscribe.Exclusive, CommandSubscribe.Shared
OTHER = "10.0.0.1", 50_001
PRODUCER: list[Turn] = [
    (True, build("PRODUCER", topic=TOPIC, producer_id=1, request_id=1)),
    (False, build("PRODUCER_SUCCESS", request_id=1, producer_name="p", producer_ready=True)),
]


def subscribed(permits: int, number: int = 0, kind: int = SHARED) -> list[Turn]:
    body = {"topic": TOPIC, "subscription": "s", "subType": kind, "consumer_id": number}
    opened = [
        (True, build("SUBSCRIBE", request_id=number, **body)),
        (False, build("SUCCESS", request_id=number)),
    ]
    return [*opened, (True, build("FLOW", consumer_id=number, messagePermits=permits))]


def stored(entry: int, **metadata: object) -> list[Turn]:
    """A message is published and stored."""
    head = MessageMetadata(producer_name="p", sequence_id=entry, publish_time=1, **metadata)  # type: ignore[arg-type]
    at = {"ledgerId": 7, "entryId": entry}
    return [
        (True, build("SEND", head, b"x", producer_id=1, sequence_id=entry)),
        (False, build("SEND_RECEIPT", producer_id=1, sequence_id=entry, message_id=at)),
    ]


def dropped(entry: int) -> list[Turn]:
    """The message is sent again, and dropped as a duplicate."""
    (_, send), _ = stored(entry)
    at = {"ledgerId": 2**64 - 1, "entryId": 2**64 - 1}
    return [(True, send), (False, build("SEND_RECEIPT", producer_id=1, sequence_id=entry, message_id=at))]


def delivered(entry: int, number: int = 0) -> Turn:
    head = MessageMetadata(producer_name="p", sequence_id=entry, publish_time=1)
    at = {"ledgerId": 7, "entryId": entry}
    return False, build("MESSAGE", head, b"x", consumer_id=number, message_id=at)


def acknowledged(entry: int, number: int = 0) -> Turn:
    at = [{"ledgerId": 7, "entryId": entry}]
    return True, build("ACK", consumer_id=number, ack_type=CommandAck.Individual, message_id=at)


def stall(timeline: Timeline, permits: int, deliveries: list[Turn], waiting: list[Turn]) -> Tcp:
    """A consumer gets deliveries at 0 s; then more is stored at 1 s."""
    consumer, producer = Tcp(), Tcp(OTHER)
    timeline.log_in(0, consumer, *subscribed(permits), *deliveries)
    timeline.log_in(0.5, producer, *PRODUCER)
    timeline.say(1, producer, *waiting)
    return consumer


TWO = [delivered(0), delivered(1)]
BOTH = [acknowledged(0), acknowledged(1)]


@pytest.mark.parametrize(
    ("deliveries", "waiting", "until", "expected"),
    [
        (TWO, stored(2), 7, [("application_not_receiving", SUSPECTED)]),
        ([*TWO, *BOTH], stored(2), 7, [("permit_leak", SUSPECTED)]),
        ([*TWO, acknowledged(0)], stored(2), 7, [("permit_leak", SUSPECTED)]),
        (TWO, [*stored(2), *dropped(2)], 7, [("application_not_receiving", SUSPECTED)]),
        ([*TWO, *BOTH], [*stored(2), *dropped(2)], 7, [("permit_leak", SUSPECTED)]),
        (TWO, stored(2), 5.5, []),  # it has not waited for T
        (TWO, [], 60, []),  # nothing waits
        (TWO, stored(1), 60, []),  # nothing that it was not given
        (TWO, [*stored(1), *dropped(1)], 60, []),
        (TWO, stored(2, deliver_at_time=10**15), 60, []),
        (TWO, stored(2, txnid_most_bits=1), 60, []),
        (TWO, stored(2, marker_type=10), 60, []),
        ([delivered(0)], stored(2), 60, []),  # it has a permit left
    ],
)
def test_a_consumer_without_permits(
    deliveries: list[Turn], waiting: list[Turn], until: float, expected: list[tuple[str, str]]
) -> None:
    timeline = Timeline()
    stall(timeline, 2, deliveries, waiting)
    assert ids(timeline.findings(until)) == expected


def test_a_pause_that_ends_is_judged_when_it_ends() -> None:
    timeline = Timeline()
    consumer = stall(timeline, 2, TWO, stored(2))
    timeline.say(7, consumer, (True, build("FLOW", consumer_id=0, messagePermits=2)), delivered(2))
    [finding] = timeline.findings(60)
    assert finding.rule == "application_not_receiving"
    assert "for 7.0 s" in finding.explanation


def test_what_a_closed_consumer_was_given_waits_for_the_next_one() -> None:
    timeline = Timeline()
    consumer = stall(
        timeline, 4, [*TWO, delivered(2), delivered(3)], [turn for n in range(4) for turn in stored(n)]
    )
    timeline.say(2, consumer, (True, build("CLOSE_CONSUMER", consumer_id=0, request_id=9)))
    timeline.say(2.1, consumer, (False, build("SUCCESS", request_id=9)))
    timeline.say(3, consumer, *subscribed(2), *TWO)
    assert ids(timeline.findings(20)) == [("application_not_receiving", SUSPECTED)]


def test_what_another_consumer_has_acknowledged_does_not_wait() -> None:
    timeline = Timeline()
    consumer = stall(timeline, 2, TWO, stored(2))
    timeline.say(1.1, consumer, *subscribed(10, 1), delivered(2, 1), acknowledged(2, 1))
    assert set(ids(timeline.findings(20))) == {("ack_hole", SUSPECTED)}


MANY = [delivered(entry) for entry in range(12)]


@pytest.mark.parametrize(
    ("kind", "deliveries", "more", "expected"),
    [
        (SHARED, MANY, [], [("blocked_on_unacked", SUSPECTED)]),
        (SHARED, MANY[:9], [], []),  # too few for a limit
        (EXCLUSIVE, MANY, [], []),  # which has no limit
        (SHARED, MANY, subscribed(10, 1), []),  # another consumer could take it: something else holds it back
    ],
)
def test_a_consumer_that_holds_many(
    kind: int, deliveries: list[Turn], more: list[Turn], expected: list[tuple[str, str]]
) -> None:
    timeline = Timeline()
    consumer, producer = Tcp(), Tcp(OTHER)
    timeline.log_in(0, consumer, *subscribed(100, kind=kind), *more, *deliveries)
    timeline.log_in(0.5, producer, *PRODUCER, *stored(12))
    timeline.say(7, producer, (True, build("PING")))
    assert ids(timeline.findings(7)) == expected


def test_a_dropped_duplicate_does_not_hide_what_waits() -> None:
    timeline = Timeline()
    stall(timeline, 100, MANY, [*stored(12), *dropped(12)])
    assert ids(timeline.findings(7)) == [("blocked_on_unacked", SUSPECTED)]


def test_the_broker_says_that_it_blocks() -> None:
    timeline, tcp = Timeline(), Tcp()
    answer = {"blockedConsumerOnUnackedMsgs": True, "unackedMessages": 12, "request_id": 3}
    timeline.log_in(0, tcp, *subscribed(100), (True, build("CONSUMER_STATS", request_id=3, consumer_id=0)))
    timeline.say(0.1, tcp, (False, build("CONSUMER_STATS_RESPONSE", **answer)))
    assert ids(timeline.findings()) == [("blocked_on_unacked", CERTAIN)]


@pytest.mark.parametrize(
    ("grants", "expected"),
    [
        ([2**31 - 1], []),
        ([2**31 - 1, 1], [("permit_overflow", CERTAIN)]),
        ([10, 10, 1], [("permits_over_granted", SUSPECTED)]),
        ([10, 10], []),  # twice the first, after two
        ([20, 21], []),  # more than twice the first, after two
        ([4, 4, 4, 4], []),  # a small queue
    ],
)
def test_permits_that_grow(grants: list[int], expected: list[tuple[str, str]]) -> None:
    timeline, tcp = Timeline(), Tcp()
    more = [(True, build("FLOW", consumer_id=0, messagePermits=grant)) for grant in grants[1:]]
    timeline.log_in(0, tcp, *subscribed(grants[0]), *more)
    assert ids(timeline.findings()) == expected
