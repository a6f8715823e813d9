"""Counts of connections, topics, producers and subscriptions, with their recent past."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsarctl_wire.capture.sources import Decoder, open_source
from pulsarctl_wire.checks.doctor import Doctor
from pulsarctl_wire.stats.overview import SPANS, Counts, Overview
from pulsarctl_wire.wire.frame import Connection, Gap

SAMPLES = Path(__file__).parent.parent / "samples" / "pcaps"


def count(name: str, stop_at: int = 10**9) -> Counts:
    doctor = Doctor()
    decoder = Decoder(new_state=doctor.new_state, on_end=doctor.end_connection)
    overview, source = Overview(doctor.states), open_source(str(SAMPLES / name))
    seen = 0
    with source.stream:
        for events in decoder.read(source):
            overview.add(events)
            seen += len(events)
            if seen >= stop_at:
                break
        return overview.counts()


def test_a_capture() -> None:
    counts = count("java-nack-dlq.pcap")
    (connection,) = counts.connections
    assert (connection.frames, connection.sent, connection.delivered, connection.errors) == (131, 9, 14, 2)
    topics = {row.name.rpartition("/")[2]: row for row in counts.topics}
    mail = topics["java-nack-dlq-mail"]
    assert (mail.sent, mail.delivered) == (4, 9)
    assert sum(mail.past) == 13
    assert sum(connection.past) == connection.size
    assert len(connection.past) <= SPANS
    producers = {row.name: row for row in counts.producers}
    assert producers["outbox"].sent == 4
    assert max(producers["outbox"].past) == pytest.approx((4.958 + 2.758 + 3.275 + 2.627) * 1e6 / 4, rel=1e-3)
    subscriptions = {(row.name, row.topic.rpartition("-")[2]): row.delivered for row in counts.subscriptions}
    assert subscriptions == {("undertaker", "DLQ"): 3, ("postman", "mail"): 9, ("postman", "RETRY"): 2}


def test_what_is_open() -> None:
    counts = count("java-nack-dlq.pcap", stop_at=40)
    postman = next(row for row in counts.subscriptions if row.name == "postman" and "RETRY" not in row.topic)
    assert (postman.consumers, postman.permits, postman.unacked) == (1, 998, 2)
    outbox = next(row for row in counts.producers if row.name == "outbox")
    assert outbox.pending == 1


@given(st.lists(st.tuples(st.integers(0, 10**15), st.integers(1, 1000)), min_size=1, max_size=60))
def test_the_past_has_everything(gaps: list[tuple[int, int]]) -> None:
    overview, connection = Overview({}), Connection(0)
    for time_ns, size in sorted(gaps):
        overview.add([Gap(size, connection, True, time_ns=time_ns)])
    row = overview.counts().connections[0]
    assert sum(row.past) == row.size == sum(size for _, size in gaps)
    assert len(row.past) <= SPANS


def test_what_consumers_of_a_subscription_hold_is_added_up() -> None:
    consumer = SimpleNamespace(topic="t", subscription="s", permits=5, unacked=10)
    state: Any = SimpleNamespace(producers={}, consumers={1: consumer, 2: consumer})
    (row,) = Overview({0: state}).counts().subscriptions
    assert (row.consumers, row.unacked, row.past) == (2, 20, [20])
