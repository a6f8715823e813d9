"""Captures with cases that are easily counted wrong: two clusters, resends, errors of batches."""

from typing import Final

from segments import Tcp, Turn, acknowledge, build, captured, message, pcap, receipt, send

from pulsarctl_wire.capture.packets import Segment
from pulsarctl_wire.wire.PulsarApi_pb2 import MessageMetadata, ServerError

CONNECT: Final = [
    (True, build("CONNECT", client_version="test", protocol_version=21)),
    (False, build("CONNECTED", server_version="broker", protocol_version=21)),
]
PRODUCER: Final = [
    (True, build("PRODUCER", topic="t", producer_id=1, request_id=1, producer_name="p")),
    (False, build("PRODUCER_SUCCESS", request_id=1, producer_name="p")),
]


def two_clusters() -> bytes:
    """Each has a topic `t` whose first message has the same id; which is which their lookups tell."""
    segments: list[Segment] = []
    for number in (1, 2):
        broker = f"pulsar://10.0.{number}.2:6650"
        turns = [
            *CONNECT,
            (True, build("LOOKUP", topic="t", request_id=9)),
            (
                False,
                build(
                    "LOOKUP_RESPONSE", request_id=9, response=1, brokerServiceUrl=broker, authoritative=True
                ),
            ),
            *PRODUCER,
            (True, build("SUBSCRIBE", topic="t", subscription="s", subType=1, consumer_id=2, request_id=2)),
            (False, build("SUCCESS", request_id=2)),
            (True, build("FLOW", consumer_id=2, messagePermits=1000)),
        ]
        for sequence in range(number):  # one message here, two there
            turns += [
                (True, send(b"x" * number, sequence)),
                (False, receipt(sequence)),
                (False, message(b"x" * number, sequence)),
                (True, acknowledge(sequence)),
            ]
        segments += Tcp(("10.0.0.1", 50_000 + number), (f"10.0.{number}.2", 6650)).whole(turns)
    return pcap(captured(segments))


def batch(sequence: int, count: int) -> bytes:
    """A SEND of `count` messages."""
    metadata = MessageMetadata(
        producer_name="p",
        sequence_id=sequence,
        publish_time=1_700_000_000_000 + sequence,
        num_messages_in_batch=count,
        highest_sequence_id=sequence + count - 1,
    )
    return build(
        "SEND",
        metadata,
        b"batch",
        producer_id=1,
        sequence_id=sequence,
        highest_sequence_id=sequence + count - 1,
        num_messages=count,
    )


def resends() -> bytes:
    """Of five batches two are answered at once, two after they were sent again elsewhere, one never."""
    first, second = Tcp(), Tcp(("10.0.0.1", 50_001))
    turns: list[Turn] = [
        *CONNECT,
        *PRODUCER,
        (True, batch(0, 3)),
        (False, receipt(0)),
        (True, batch(3, 3)),
        (True, batch(6, 2)),
    ]
    again: list[Turn] = [
        *CONNECT,
        *PRODUCER,
        (True, batch(3, 3)),
        (True, batch(6, 2)),
        (False, receipt(3)),
        (False, receipt(6)),
        (True, batch(8, 1)),
        (False, receipt(8)),
        (True, batch(9, 4)),
    ]
    segments = [*first.handshake(), *first.say(turns), first.rst(False)]
    segments += [*second.handshake(), *second.say(again), second.rst(False)]
    return pcap(captured(segments, step_ns=10_000))


def batch_errors() -> bytes:
    """Errors name the highest sequence id of a batch, receipts the lowest."""
    error = ServerError.TopicTerminatedError
    turns: list[Turn] = [
        *CONNECT,
        *PRODUCER,
        (True, batch(0, 5)),
        (True, batch(5, 5)),
        (True, batch(10, 2)),
        (False, receipt(0)),
        (False, build("SEND_ERROR", producer_id=1, sequence_id=9, error=error, message="no")),
        (False, receipt(10)),
    ]
    return pcap(captured(Tcp().whole(turns), step_ns=5_000))


PLANTED: Final = {"two-clusters": two_clusters, "resends": resends, "batch-errors": batch_errors}
"""Name -> what makes the capture."""

NUMBERS: Final = {
    "two-clusters": {"sent": 3, "delivered": 3, "publishes": 3, "failed": 0, "unanswered": 0},
    "resends": {"sent": 18, "delivered": 0, "publishes": 4, "failed": 0, "unanswered": 1},
    "batch-errors": {"sent": 12, "delivered": 0, "publishes": 2, "failed": 1, "unanswered": 0},
}
"""Name -> what is to be counted."""
