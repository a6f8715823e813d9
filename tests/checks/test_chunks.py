"""Chunked messages: which order of chunks is complete, and when a missing one counts."""

import pytest
from segments import Tcp, Turn, build
from timeline import Timeline, ids

from pulsarctl_wire.checks.finding import CERTAIN, SUSPECTED
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSubscribe, MessageMetadata

TOPIC = "persistent://public/default/t"
RULE = "incomplete_chunks"


def metadata(chunk: int, uuid: str = "p-0", count: int = 3) -> MessageMetadata:
    return MessageMetadata(
        producer_name="p",
        sequence_id=0,
        publish_time=1,
        uuid=uuid,
        chunk_id=chunk,
        num_chunks_from_msg=count,
        total_chunk_msg_size=count,
    )


def produces() -> list[Turn]:
    return [
        (True, build("PRODUCER", topic=TOPIC, producer_id=0, request_id=1, producer_name="p")),
        (False, build("PRODUCER_SUCCESS", request_id=1, producer_name="p")),
    ]


def consumes(permits: int) -> list[Turn]:
    body = {"topic": TOPIC, "subscription": "s", "subType": CommandSubscribe.Exclusive, "consumer_id": 0}
    return [
        (True, build("SUBSCRIBE", request_id=2, **body)),
        (False, build("SUCCESS", request_id=2)),
        (True, build("FLOW", consumer_id=0, messagePermits=permits)),
    ]


def send(chunk: int, uuid: str = "p-0") -> Turn:
    return True, build("SEND", metadata(chunk, uuid), b"x", producer_id=0, sequence_id=0)


def message(chunk: int) -> Turn:
    at = {"ledgerId": 7, "entryId": chunk}
    return False, build("MESSAGE", metadata(chunk), b"x", consumer_id=0, message_id=at)


def found(timeline: Timeline, until: float) -> list[tuple[str, str]]:
    return ids(each for each in timeline.findings(until) if each.rule == RULE)


@pytest.mark.parametrize(
    ("chunks", "certainty"),
    [
        ([0, 1, 2], None),
        ([0, 1, 0, 1, 2], None),
        ([0, 0, 1, 1, 2, 2], None),
        ([0, 1, 1, 0, 1, 2], None),
        ([0, 2, 0, 1, 2], None),
        ([0, 1, 2, 0, 1], None),
        ([0, 1], SUSPECTED),
        ([0, 1, 0], SUSPECTED),
        ([0, 2, 0, 1], SUSPECTED),
        ([0, 2, 1], CERTAIN),
        ([1, 2], CERTAIN),
        ([0, 1, 0, 2], CERTAIN),
        ([0, 2**31 - 1], CERTAIN),
        ([-1, 0], SUSPECTED),
    ],
    ids=lambda each: ",".join(map(str, each)) if isinstance(each, list) else None,
)
def test_order(chunks: list[int], certainty: str | None) -> None:
    timeline, tcp = Timeline(), Tcp()
    timeline.log_in(0, tcp, *produces())
    timeline.say(1, tcp, *map(send, chunks))
    findings = [each for each in timeline.findings(5) if each.rule == RULE]
    assert ids(findings) == ([(RULE, certainty)] if certainty else [])
    for finding in findings:
        frames = [seen.number for seen, _ in finding.evidence]
        assert len(frames) == len(set(frames)), "a frame is shown once"


def test_chunks_on_two_connections_and_of_two_messages() -> None:
    timeline, first, second = Timeline(), Tcp(), Tcp(client=("10.0.0.1", 50_001))
    timeline.log_in(0, first, *produces())
    timeline.say(1, first, send(0), send(0, "p-1"), send(1), send(1, "p-1"))
    timeline.at(1.1, *first.goodbye())
    timeline.log_in(2, second, *produces())
    timeline.say(3, second, send(2), send(0, "p-1"))
    [finding] = [each for each in timeline.findings(9) if each.rule == RULE]
    assert (finding.certainty, finding.subject.uuid) == (SUSPECTED, "p-1")


def test_last_chunk_may_still_come() -> None:
    for until, expected in ((3.9, []), (4.1, [(RULE, SUSPECTED)])):  # R = 3
        timeline, tcp = Timeline(), Tcp()
        timeline.log_in(0, tcp, *produces())
        timeline.say(1, tcp, send(0), send(1))
        assert found(timeline, until) == expected


def test_pause_that_ends_is_judged_once() -> None:
    timeline, tcp = Timeline(), Tcp()
    timeline.log_in(0, tcp, *produces())
    timeline.say(1, tcp, send(0), send(1))
    timeline.say(4.5, tcp, send(2))
    assert found(timeline, 20) == [(RULE, SUSPECTED)]


@pytest.mark.parametrize(
    ("permits", "closes", "expected"), [(9, False, 1), (2, False, 0), (9, True, 0)], ids=str
)
def test_consumer_that_gets_no_more(permits: int, closes: bool, expected: int) -> None:
    timeline, tcp = Timeline(), Tcp()
    timeline.log_in(0, tcp, *consumes(permits))
    timeline.say(1, tcp, message(0), message(1))
    if closes:
        timeline.say(2, tcp, (True, build("CLOSE_CONSUMER", consumer_id=0, request_id=3)))
    assert found(timeline, 9) == [(RULE, SUSPECTED)] * expected


def test_of_a_send_and_its_message_only_the_send_counts() -> None:
    timeline, tcp = Timeline(), Tcp()
    timeline.log_in(0, tcp, *produces(), *consumes(9))
    timeline.say(1, tcp, send(0), message(0), send(2), message(2))
    [finding] = [each for each in timeline.findings(9) if each.rule == RULE]
    assert (finding.certainty, finding.subject.subscription) == (CERTAIN, None)


def test_bytes_that_were_missed_may_be_the_chunk() -> None:
    timeline, tcp = Timeline(), Tcp()
    timeline.log_in(0, tcp, *produces())
    timeline.say(1, tcp, send(0))
    timeline.at(1.1, tcp.send(True, b"", missing=len(send(1)[1])))
    timeline.say(1.2, tcp, send(2))
    assert found(timeline, 9) == []
