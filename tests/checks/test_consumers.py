"""What consumers are given: seeks, epochs, delays, missing messages, frames that make clients hang up."""

import pytest
from segments import START_NS, Tcp, Turn, build
from timeline import Timeline, ids

from pulsarctl_wire.checks.finding import CERTAIN, SUSPECTED
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandAck, CommandSubscribe, MessageMetadata

TOPIC = "persistent://public/default/t"
EXCLUSIVE, SHARED = CommandSubscribe.Exclusive, CommandSubscribe.Shared
KINDS = (EXCLUSIVE, CommandSubscribe.Failover, SHARED, CommandSubscribe.Key_Shared)


def subscribed(kind: int = EXCLUSIVE, number: int = 0) -> list[Turn]:
    body = {"topic": TOPIC, "subscription": "s", "subType": kind, "consumer_id": number}
    return [
        (True, build("SUBSCRIBE", request_id=100 + number, **body)),
        (False, build("SUCCESS", request_id=100 + number)),
        (True, build("FLOW", consumer_id=number, messagePermits=1000)),
    ]


def message(entry: int, number: int = 0, *, due_ms: int = 0, **fields: object) -> Turn:
    metadata = MessageMetadata(producer_name="p", sequence_id=entry, publish_time=1)
    if due_ms:
        metadata.deliver_at_time = due_ms
    at = {"ledgerId": 7, "entryId": entry}
    return False, build("MESSAGE", metadata, b"x", consumer_id=number, message_id=at, **fields)


def acknowledged(entry: int) -> Turn:
    at = [{"ledgerId": 7, "entryId": entry}]
    return True, build("ACK", consumer_id=0, ack_type=CommandAck.Individual, message_id=at)


def closes() -> list[Turn]:
    return [
        (True, build("CLOSE_CONSUMER", consumer_id=0, request_id=9)),
        (False, build("SUCCESS", request_id=9)),
    ]


def one(*turns: Turn) -> tuple[Timeline, Tcp]:
    timeline, tcp = Timeline(), Tcp()
    timeline.log_in(0, tcp, *turns)
    return timeline, tcp


# -- seeks


@pytest.mark.parametrize(
    ("seeks", "answer", "expected"),
    [
        (0, None, 1),
        (1, None, 0),
        (0, "SUCCESS", 0),
        (0, "ERROR", 0),
        (0, "CLOSE_CONSUMER", 1),
        (0, "closes", 1),
    ],
)
def test_subscribed_again_before_the_seek_is_answered(seeks: int, answer: str | None, expected: int) -> None:
    timeline, tcp = one(*subscribed(), *subscribed(number=1))
    timeline.say(1, tcp, (True, build("SEEK", consumer_id=seeks, request_id=1)))
    if answer == "ERROR":
        timeline.say(1.1, tcp, (False, build("ERROR", request_id=1, error=0, message="no")))
    elif answer == "SUCCESS":
        timeline.say(1.1, tcp, (False, build("SUCCESS", request_id=1)))
    elif answer == "closes":
        timeline.say(1.1, tcp, *closes())
    elif answer is not None:
        timeline.say(1.1, tcp, (False, build("CLOSE_CONSUMER", consumer_id=0, request_id=2**64 - 1)))
    timeline.say(1.2, tcp, *subscribed())
    assert ids(timeline.findings()) == [("subscribe_before_seek_done", SUSPECTED)] * expected


# -- epochs


def redelivers(epoch: int) -> Turn:
    return True, build("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=0, consumer_epoch=epoch)


def test_old_epochs_on_the_way_are_normal() -> None:
    timeline, tcp = one(*subscribed())
    timeline.say(1, tcp, redelivers(1))
    for number in range(40):
        timeline.say(1.1 + number / 10, tcp, message(number))  # up to 5.0 s, T = 5
    timeline.say(7, tcp, message(0, consumer_epoch=1))
    timeline.say(13, tcp, message(1, consumer_epoch=1))
    assert timeline.findings() == []


def test_epoch_that_is_never_reached() -> None:
    timeline, tcp = one(*subscribed())
    timeline.say(1, tcp, redelivers(1))
    timeline.say(2, tcp, redelivers(2))
    timeline.say(6.1, tcp, message(0))
    [finding] = timeline.findings()
    assert ids([finding]) == [("stale_epoch", CERTAIN)]
    assert [each.reason for each in finding.evidence] == ["epoch 1", "5.1 s later still epoch 0"]


def test_epoch_that_falls() -> None:
    anew = closes() + subscribed()
    for again, expected in (([], 1), (subscribed(), 1), (anew, 0)):
        timeline, tcp = one(*subscribed())
        timeline.say(1, tcp, redelivers(2), message(0, consumer_epoch=2), *again)
        timeline.say(2, tcp, message(1, consumer_epoch=1))
        assert ids(timeline.findings()) == [("stale_epoch", SUSPECTED)] * expected


# -- delays


@pytest.mark.parametrize("kind", KINDS)
def test_delay(kind: int) -> None:
    ignored = kind not in (SHARED, CommandSubscribe.Key_Shared)
    for early_ms, expected in ((1_400, 0), (1_600, ignored), (2**63 // 10**6 * 1_000, ignored)):
        timeline, tcp = one(*subscribed(kind))
        timeline.say(1, tcp, message(0, due_ms=START_NS // 10**6 + 1_000 + early_ms))
        assert ids(timeline.findings()) == [("delay_ignored", CERTAIN)] * expected


# -- last messages that never come


def last_is(ledger: int, entry: int) -> list[Turn]:
    at = {"ledgerId": ledger, "entryId": entry}
    return [
        (True, build("GET_LAST_MESSAGE_ID", consumer_id=0, request_id=5)),
        (False, build("GET_LAST_MESSAGE_ID_RESPONSE", request_id=5, last_message_id=at)),
    ]


MISSING = [("reader_waits_for_missing_message", SUSPECTED)]


@pytest.mark.parametrize(
    ("turns", "later", "until", "expected"),
    [
        ([message(0), *last_is(7, 1)], [], 6.1, 1),
        ([*last_is(7, 1), message(0)], [], 6.1, 1),
        ([message(0), *last_is(7, 1)], [], 5.9, 0),
        ([message(0), *last_is(7, 1)], [message(1)], 9, 0),
        (last_is(7, 1), [message(0)], 6.9, 0),
        ([message(0), *last_is(7, 0)], [], 9, 0),
        ([*last_is(7, 1)], [], 9, 0),
        ([message(0), *last_is(2**64 - 1, 2**64 - 1)], [], 9, 0),
        ([message(0), *last_is(8, 2**64 - 1)], [], 9, 0),
        ([message(0), *last_is(7, 1), *closes()], [], 9, 0),
        ([message(0, redelivery_count=1), acknowledged(0), *last_is(7, 1)], closes(), 9, 0),
    ],
    ids=[
        *(
            "waits",
            "asked before",
            "not yet",
            "it comes",
            "the one before comes",
            "it was the last one",
            "at the latest",
            "no message",
        ),
        *("empty ledger", "closed", "closed later"),
    ],
)
def test_reader_that_waits(turns: list[Turn], later: list[Turn], until: float, expected: int) -> None:
    timeline, tcp = one(*subscribed())
    timeline.say(1, tcp, *turns)
    timeline.say(2, tcp, *later)
    assert ids(timeline.findings(until)) == MISSING * expected


def test_message_that_comes_too_late_ends_the_wait() -> None:
    timeline, tcp = one(*subscribed())
    timeline.say(1, tcp, message(0), *last_is(7, 1))
    timeline.say(7, tcp, message(1))
    [finding] = timeline.findings()
    assert ids([finding]) == MISSING
    assert "6.0 s" in finding.explanation


def test_reader_that_may_get_no_more_or_shares_messages() -> None:
    for kind, permits in ((EXCLUSIVE, 1), (SHARED, 1000)):
        subscribe, success, _ = subscribed(kind)
        flow = True, build("FLOW", consumer_id=0, messagePermits=permits)
        timeline, tcp = one(subscribe, success, flow)
        timeline.say(1, tcp, message(0), *last_is(7, 1))
        assert timeline.findings(9) == []


# -- clients that hang up


class Client:
    """A client that connects again and again, at seconds 1, 2, 3, …"""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self.connections = 0

    def connect(
        self, *turns: Turn, after: float = 0.1, by_broker: bool = False, host: str = "10.0.0.1"
    ) -> None:
        """A connection on which these frames pass, and which is closed some seconds after."""
        self.connections += 1
        tcp = Tcp(client=(host, 50_000 + self.connections))
        self.timeline.log_in(self.connections, tcp, *subscribed(SHARED), *turns)
        self.timeline.at(self.connections + after, tcp.fin(not by_broker), tcp.fin(by_broker))


def loop(certainty: str, entry: int = 1) -> list[tuple[str, str, str]]:
    return [("reconnect_loop_on_frame", certainty, f"7:{entry}")]


def loops_of(client: Client) -> list[tuple[str, str, str | None]]:
    return [(each.rule, each.certainty, each.subject.message_id) for each in client.timeline.findings()]


def test_hangs_up_on_the_same_message() -> None:
    for times, expected in ((1, []), (2, loop(SUSPECTED)), (3, loop(CERTAIN)), (30, loop(CERTAIN))):
        client = Client()
        client.connect(message(0), acknowledged(0), message(1))
        for number in range(1, times):
            client.connect(message(2 + number), message(1))
        assert loops_of(client) == expected


def test_message_with_a_wrong_checksum_is_the_one() -> None:
    direction, raw = message(2)
    client = Client()
    for _ in range(2):
        client.connect(message(1), (direction, raw[:-1] + b"?"))
    assert ("reconnect_loop_on_frame", SUSPECTED, "7:2") in loops_of(client)


@pytest.mark.parametrize(
    "second",
    [
        "another message",
        "acknowledged",
        "closed cleanly",
        "later",
        "by the broker",
        "another client",
    ],
)
def test_no_loop(second: str) -> None:
    turns = [message(1)]
    if second == "another message":
        turns = [message(2)]
    elif second == "acknowledged":
        turns.append(acknowledged(1))
    elif second == "closed cleanly":
        turns += closes()
    after = 0.6 if second == "later" else 0.1
    host = "10.0.0.7" if second == "another client" else "10.0.0.1"
    client = Client()
    client.connect(message(1))
    client.connect(*turns, after=after, by_broker=second == "by the broker", host=host)
    assert loops_of(client) == []


def test_consumers_side_by_side_are_no_loop() -> None:
    timeline, first, second = Timeline(), Tcp(), Tcp(client=("10.0.0.1", 50_001))
    for tcp in (first, second):
        timeline.log_in(0, tcp, *subscribed(SHARED))
    for at, tcp in ((1, first), (2, second)):
        timeline.say(at, tcp, message(1))
        timeline.at(at + 0.1, tcp.fin(True), tcp.fin(False))
    assert timeline.findings() == []


def test_messages_in_turn_are_no_loop() -> None:
    client = Client()
    for entry in (1, 2, 1):
        client.connect(message(entry))
    assert loops_of(client) == []


END: Turn = False, build("REACHED_END_OF_TOPIC", consumer_id=0)
HANGS_UP = [("client_closes_on_end_of_topic", CERTAIN)]


def test_hangs_up_on_the_end_of_the_topic() -> None:
    client = Client()
    client.connect(END)
    client.connect(END)
    client.connect()
    [finding] = client.timeline.findings()
    assert ids([finding]) == HANGS_UP
    assert (finding.count, len(finding.evidence)) == (2, 4)
    assert str(finding.connection) == "10.0.0.1:50001-10.0.0.2:6650"


@pytest.mark.parametrize(
    "case",
    [
        "closed cleanly",
        "later",
        "by the broker",
        "another client",
        "never again",
        "same connection",
        "other frame",
    ],
)
def test_end_of_the_topic_is_no_matter(case: str) -> None:
    turns = {
        "closed cleanly": [END, *closes()],
        "same connection": [END, *subscribed(SHARED, 1)],
        "other frame": [message(1)],
    }.get(case, [END])
    client = Client()
    client.connect(*turns, after=0.6 if case == "later" else 0.1, by_broker=case == "by the broker")
    if case not in ("never again", "same connection"):
        client.connect(host="10.0.0.7" if case == "another client" else "10.0.0.1")
    assert client.timeline.findings() == []


def test_subscribed_again_before_the_old_connection_is_over() -> None:
    timeline, first, second = Timeline(), Tcp(), Tcp(client=("10.0.0.1", 50_001))
    timeline.log_in(0, first, *subscribed(), END)
    timeline.log_in(0.1, second, *subscribed())
    timeline.at(0.2, first.fin(True))  # the broker never closes
    assert ids(timeline.findings()) == HANGS_UP
