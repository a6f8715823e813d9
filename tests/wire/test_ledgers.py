"""The exchanges of a connection are what the answers' records tell."""

from functools import partial
from pathlib import Path

import pytest

from pulsarctl_wire import Frame
from pulsarctl_wire.capture.sources import Decoder, open_source
from pulsarctl_wire.wire.commands import NUMBERS, build_command
from pulsarctl_wire.wire.frame import Connection, build_frame
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.PulsarApi_pb2 import MessageMetadata
from pulsarctl_wire.wire.session import exchanges
from pulsarctl_wire.wire.session.counts import permits_used
from pulsarctl_wire.wire.session.knowledge import Knowledge
from pulsarctl_wire.wire.session.ledgers import Acknowledged, Answered, ConsumerLedger, Exchange, LedgerState

WAITS = NUMBERS["PRODUCER_SUCCESS"]
"""The answer that may come twice: the producer may have to wait for others (PIP 68)."""
SAMPLES = sorted((Path(__file__).parents[2] / "samples" / "pcaps").glob("*.pcap*"))


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_exchanges_are_what_answers_tell(sample: Path) -> None:
    found: list[Exchange] = []
    decoder = Decoder(new_state=partial(LedgerState, on_exchange=found.append))
    source = open_source(str(sample))
    with source.stream:
        batches = [*decoder.read(source), *decoder.finish()]
    frames = {each.number: each for batch in batches for each in batch if isinstance(each, Frame)}
    told = {
        (frame.number, frame.type, frame.time_ns, frame.latency_ns, frame.topic, frame.subscription)
        for frame in frames.values()
        if frame.latency_ns is not None and not (frame.type == WAITS and not frame.body.producer_ready)
    }
    answered = [each for each in found if isinstance(each, Answered)]
    assert told == {
        (each.answer, each.answer_type, each.time_ns, each.latency_ns, each.topic, each.subscription)
        for each in answered
    }
    for each in answered:
        request, answer = frames[each.number], frames[each.answer]
        assert (request.type, request.connection) == (each.type, answer.connection)
    for one in found:
        if isinstance(one, Acknowledged):
            message_id = frames[one.number].body.message_id
            assert (message_id.ledgerId, message_id.entryId) == (one.ledger, one.entry)
            assert frames[one.answer].command == "ACK"


def test_messages_that_ack_set_masks_were_acknowledged_before() -> None:
    """A client's ACK says nothing of the messages that it did not get, so their bits are set."""
    identity = {"ledgerId": 1, "entryId": 2}
    message = build_command("MESSAGE", consumer_id=0, message_id=identity, ack_set=[0b11100])
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=0, num_messages_in_batch=5)
    (frame,) = FrameStream(Connection(0), False).feed(build_frame(message, metadata))
    assert isinstance(frame, Frame)
    ledger = ConsumerLedger("t", "s")
    ledger.deliver((1, 2), permits_used(frame), frame)
    assert (ledger.permits, ledger.unacked) == (-3, 3)
    assert ledger.acknowledge((1, 2), [0b01011]) is None
    assert ledger.unacked == 1
    assert ledger.acknowledge((1, 2), [0b00011]) is not None
    assert (ledger.unacked, ledger.entries) == (0, {})


def test_the_producer_of_a_refused_request_may_be_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "MAX_PENDING", 2)
    connection = Connection(0)
    state = LedgerState(connection, Knowledge())
    said = [(True, build_frame(build_command("PRODUCER", producer_id=1, topic="t", request_id=1)))]
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=0)
    for producer in (2, 3, 4):
        send = build_command("SEND", producer_id=producer, sequence_id=0)
        said.append((True, build_frame(send, metadata)))
    said.append((False, build_frame(build_command("ERROR", request_id=1, error=0, message=""))))
    for to_broker, data in said:
        state.track(events := FrameStream(connection, to_broker).feed(data))
    assert isinstance(events[0], Frame)
    assert events[0].request == 1
    assert 1 not in state.producers
