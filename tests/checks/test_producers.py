"""Producers: receipts of the wrong SEND, sequence ids that were used before."""

import pytest
from segments import Tcp, Turn, build
from timeline import Timeline, ids

from pulsarctl_wire.checks.finding import CERTAIN, SUSPECTED
from pulsarctl_wire.wire.PulsarApi_pb2 import MessageMetadata, ServerError

TOPIC = "persistent://public/default/t"
NOWHERE = 2**64 - 1


def opened(topic: str = TOPIC, name: str = "p", last: int = -1, epoch: int = 0) -> list[Turn]:
    success = {"request_id": 1, "producer_name": name, "producer_ready": True, "last_sequence_id": last}
    return [
        (True, build("PRODUCER", topic=topic, producer_id=1, request_id=1, epoch=epoch)),
        (False, build("PRODUCER_SUCCESS", **success)),
    ]


def sent(sequence: int, payload: bytes = b"x", highest: int = 0, encrypted: bool = False) -> Turn:
    metadata = MessageMetadata(producer_name="p", sequence_id=sequence, publish_time=1)
    if encrypted:
        metadata.encryption_keys.add(key="k", value=b"v")
    body = {"producer_id": 1, "sequence_id": sequence} | ({"highest_sequence_id": highest} if highest else {})
    return True, build("SEND", metadata, payload, **body)


def received(sequence: int, entry: int) -> Turn:
    at = {"ledgerId": entry if entry == NOWHERE else 7, "entryId": entry}
    return False, build("SEND_RECEIPT", producer_id=1, sequence_id=sequence, message_id=at)


def refused(sequence: int) -> Turn:
    body = {"producer_id": 1, "sequence_id": sequence, "error": ServerError.PersistenceError, "message": ""}
    return False, build("SEND_ERROR", **body)


def findings(*turns: Turn) -> list[tuple[str, str]]:
    timeline, tcp = Timeline(), Tcp()
    timeline.log_in(0, tcp, *turns)
    return ids(timeline.findings())


DROPPED = "dropped_as_duplicate"


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ([sent(5), received(5, 1), sent(5, b"y"), received(5, NOWHERE)], [(DROPPED, CERTAIN)]),
        ([sent(5), received(5, 1), sent(5), received(5, NOWHERE)], []),  # the same again, which is stored
        ([sent(5), refused(5), sent(5), received(5, NOWHERE)], [(DROPPED, CERTAIN)]),
        (
            [sent(5, encrypted=True), received(5, 1), sent(5, b"y", encrypted=True), received(5, NOWHERE)],
            [(DROPPED, SUSPECTED)],
        ),
        ([sent(5), received(5, 1), sent(3, highest=8), received(3, NOWHERE)], [(DROPPED, CERTAIN)]),
        ([sent(5), received(5, 1), sent(3), received(3, NOWHERE)], []),  # sent before the capture, perhaps
    ],
)
def test_sequence_ids_that_were_used(turns: list[Turn], expected: list[tuple[str, str]]) -> None:
    assert findings(*opened(), *turns) == expected


@pytest.mark.parametrize(
    ("last", "epoch", "expected"),
    [(9, 0, [(DROPPED, SUSPECTED)]), (9, 1, []), (2, 0, [])],
)
def test_sequence_ids_that_the_broker_knew(last: int, epoch: int, expected: list[tuple[str, str]]) -> None:
    assert findings(*opened(last=last, epoch=epoch), sent(5), received(5, NOWHERE)) == expected


def test_receipts_on_a_topic_that_stores_nothing() -> None:
    topic = "non-persistent://public/default/t"
    turns = [sent(5), received(5, NOWHERE), sent(5, b"y"), received(5, NOWHERE)]
    assert findings(*opened(topic), *turns) == []


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ([sent(0), sent(1), received(1, 1)], 1),
        ([sent(0), sent(1), received(0, 0), received(1, 1)], 0),
        ([sent(0), sent(1), refused(1), received(0, 0)], 0),  # an error may overtake
        ([sent(0), sent(1), refused(0), received(1, 1)], 0),
        ([sent(0), received(0, 0), sent(1), received(0, 0), received(1, 1)], 0),  # one below is ignored
        ([sent(0, highest=4), received(4, 0)], 0),  # a batch answers to its highest id, too
    ],
)
def test_receipts_out_of_order(turns: list[Turn], expected: int) -> None:
    assert findings(*opened(), *turns) == [("receipt_mismatch", CERTAIN)] * expected


def test_receipts_of_a_replicator_carry_positions_of_the_source() -> None:
    assert findings(*opened(name="pulsar.repl.east"), sent(0), sent(1), received(1, 1)) == []


@pytest.mark.parametrize("size", [10, 9_000])
def test_a_delayed_message_waits_for_no_consumer_whatever_its_size(size: int) -> None:
    timeline, tcp = Timeline(), Tcp()
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, deliver_at_time=1 << 50)
    metadata.properties.add(key="k", value="v" * size)
    timeline.log_in(0, tcp, (True, build("PRODUCER", topic="t", producer_id=0, request_id=1)))
    timeline.say(1, tcp, (False, build("PRODUCER_SUCCESS", request_id=1, producer_name="p")))
    timeline.say(2, tcp, (True, build("SEND", metadata, b"x", producer_id=0, sequence_id=0)))
    (publisher,) = timeline.doctor.facts.publishers.values()
    (send,) = publisher.sends.values()
    assert (send.is_deliverable, send.may_be_encrypted) == (False, size > 100)
