"""Live counters are those of the whole capture, and what waits is what a plain list of it says."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from segments import build

from pulsarctl_wire.capture.sources import Decoder, open_source
from pulsarctl_wire.stats.counting import Stats
from pulsarctl_wire.stats.live import KEPT, MAX_TOPICS, Live
from pulsarctl_wire.stats.meters import BOUNDS, SECOND, WINDOW, Meter, Passage, Timer
from pulsarctl_wire.stats.report import records, total_record
from pulsarctl_wire.stats.rows import OTHERS
from pulsarctl_wire.stats.snapshot import ROWS, Backlog, Snapshot, Traffic
from pulsarctl_wire.wire.frame import Connection, Event, Frame, Gap, Malformed
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.PulsarApi_pb2 import MessageMetadata
from pulsarctl_wire.wire.session.counts import latency_of
from pulsarctl_wire.wire.session.knowledge import MAX_PENDING, Knowledge
from pulsarctl_wire.wire.session.ledgers import LedgerState

SAMPLES = Path(__file__).parents[1] / "samples" / "pcaps"
START = 1_700_000_000 * SECOND
MS = 1_000_000
ORDERS = "persistent://public/default/orders"


class Talk:
    """A connection whose frames go through a stream and a session into `live`, a millisecond apart."""

    def __init__(self, live: Live | None = None, index: int = 0) -> None:
        self.live = live or Live(START)
        self.now = START
        self.connection = Connection(index, f"10.0.0.1:{50_000 + index % 10_000}", "10.0.0.2:6650")
        self._streams = FrameStream(self.connection, False), FrameStream(self.connection, True)
        self.session = LedgerState(self.connection, Knowledge(), self._streams)
        self.live.opened(self.connection, START, self.session)

    def _add(self, events: list[Event]) -> None:
        self.session.track(events)
        self.live.events(events)

    def carry(self, to_broker: bool, data: bytes) -> None:
        self.now += MS
        self._add(self._streams[to_broker].feed(data, self.now))

    def miss(self, to_broker: bool, size: int) -> None:
        self._add(self._streams[to_broker].gap(size, self.now))

    def ask(self, kind: str, **fields: object) -> None:
        self.carry(True, build(kind, **fields))

    def tell(self, kind: str, **fields: object) -> None:
        self.carry(False, build(kind, **fields))

    def produce(self, producer: int = 1, topic: str = "orders") -> None:
        self.ask("PRODUCER", topic=topic, producer_id=producer, request_id=producer)
        self.tell("PRODUCER_SUCCESS", request_id=producer, producer_name=f"p-{producer}")

    def send(self, sequence: int, batch: int = 1, producer: int = 1, **metadata: Any) -> None:
        fields: dict[str, Any] = {"num_messages_in_batch": batch, **metadata}
        described = MessageMetadata(producer_name="p", sequence_id=sequence, publish_time=1, **fields)
        highest = {"highest_sequence_id": sequence + batch - 1} if batch > 1 else {}
        command = {"producer_id": producer, "sequence_id": sequence, **highest}
        self.carry(True, build("SEND", described, b"x" * 100, **command))

    def receipt(self, sequence: int, producer: int = 1) -> None:
        self.tell("SEND_RECEIPT", producer_id=producer, sequence_id=sequence)

    def subscribe(self, consumer: int = 2, topic: str = "orders") -> None:
        self.ask(
            "SUBSCRIBE",
            topic=topic,
            subscription="s",
            subType=1,
            consumer_id=consumer,
            request_id=1000 + consumer,
        )
        self.tell("SUCCESS", request_id=1000 + consumer)

    def deliver(self, entry: int, batch: int = 1, consumer: int = 2, **fields: object) -> None:
        described = MessageMetadata(
            producer_name="p", sequence_id=entry, publish_time=1, num_messages_in_batch=batch
        )
        at = {"ledgerId": 7, "entryId": entry}
        self.carry(
            False, build("MESSAGE", described, b"y" * 50, consumer_id=consumer, message_id=at, **fields)
        )

    def acknowledge(self, *entries: int, kind: int = 0, ack_set: tuple[int, ...] = ()) -> None:
        ids = [{"ledgerId": 7, "entryId": each, "ack_set": ack_set} for each in entries]
        self.ask("ACK", consumer_id=2, ack_type=kind, message_id=ids)

    def end(self, time_ns: int) -> None:
        """No more bytes come; long after the last of them, perhaps."""
        for stream in self._streams:
            self._add(stream.close())
        self.live.closed(self.connection, time_ns)

    @property
    def snapshot(self) -> Snapshot:
        return self.live.snapshot(self.now)

    @property
    def backlog(self) -> Backlog:
        return self.snapshot.backlog


def test_the_average_is_that_of_the_whole_time() -> None:
    one = Traffic(40, 4_000, 400, 0.0, 0.0, 0.0)
    live = Live(START)
    live.opened(Connection(0), START)
    found = live.snapshot(START + 20 * SECOND)
    row = replace(found.connections[0], to_broker=one, to_client=one)
    averaged = replace(found, to_broker=one, to_client=one, connections=[row]).averaged()
    means = [averaged.to_broker, averaged.to_client, *(each.to_client for each in averaged.connections)]
    assert means == [Traffic(40, 4_000, 400, 2.0, 200.0, 20.0)] * 3


# ---- Counts ----


@pytest.mark.parametrize(
    "row", json.loads((SAMPLES / "expected.json").read_text()), ids=lambda row: row["file"]
)
def test_counts_are_those_of_the_whole_capture(row: dict[str, Any]) -> None:
    decoder, stats = Decoder(), Stats()
    source = open_source(str(SAMPLES / row["file"]))
    with source.stream:
        events = list(chain.from_iterable(decoder.read(source)))
    events += chain.from_iterable(decoder.finish())
    events = [event for event in events if not (isinstance(event, Frame) and event.partial)]
    live = Live(START)
    for _, some in groupby(events, key=lambda event: event.connection.index):
        live.events(list(some))
    stats.add(events)
    stats.finish(decoder)
    found = live.snapshot(events[-1].time_ns or 0)
    total = total_record(stats)
    assert found.to_broker.frames + found.to_client.frames == total["frames"]
    assert (found.checksum_failures, found.malformed) == (total["invalid_checksums"], total["malformed"])
    assert (found.gaps, found.missed_bytes) == (total["gaps"], total["gap_bytes"])
    by_command: Counter[str] = Counter()
    for (command, _), frames in found.commands.items():
        by_command[command] += frames
    assert by_command == {
        each["command"]: each["frames"] for each in records(stats, "command") if each["frames"]
    }
    by_error: Counter[str] = Counter()
    for each in records(stats, "error"):
        by_error[each["error"]] += each["frames"]
    assert found.errors == by_error
    if not total["gaps"]:
        assert (found.to_broker.messages, found.to_client.messages) == (total["sent"], total["delivered"])
    if not events[0].time_ns:
        return
    latencies = [latency_of(event) for event in events if isinstance(event, Frame)]
    took = [each for each in latencies if each is not None]
    timed = [found.publishes, *found.requests.values()]
    assert sum(each.count for each in timed) == len(took)
    assert sum(each.sum_ns for each in timed) == sum(took)


def test_what_passed_is_told_apart_by_connection_topic_and_direction() -> None:
    one = Talk()
    other = Talk(one.live, 1)
    for number in range(3):
        one.produce(number, f"t-{number}")
    one.send(0, 5, producer=1)
    one.send(1, 1, producer=2)
    other.subscribe(topic="t-1")
    other.deliver(0, 5)
    other.now = one.now = max(one.now, other.now)
    found = one.snapshot
    assert (found.to_broker.messages, found.to_client.messages) == (6, 5)
    assert {
        row.topic.rpartition("/")[2]: (row.sent.messages, row.delivered.messages) for row in found.topics
    } == {
        "t-0": (0, 0),
        "t-1": (5, 5),
        "t-2": (1, 0),
    }
    assert found.topics[0].topic == "persistent://public/default/t-1"
    assert [(row.topic[-1], row.backlog.producers, row.backlog.consumers) for row in found.topics] == [
        ("1", 1, 1),
        ("2", 1, 0),
        ("0", 1, 0),
    ]
    assert [(row.index, row.backlog.producers, row.backlog.consumers) for row in found.connections] == [
        (0, 3, 0),
        (1, 0, 1),
    ]
    assert found.commands["SEND", True] == 2


def test_events_of_both_directions_may_come_together() -> None:
    connection = Connection(3)
    events: list[Event] = []
    for to_broker, data in ((True, build("PING") + b"\0\0"), (False, build("PONG") + b"\0\0\0")):
        stream = FrameStream(connection, to_broker)
        events += [*stream.feed(data, START), *stream.close()]
    live = Live(START)
    live.events(events)
    found = live.snapshot(START)
    assert found.commands["PING", True] == found.commands["PONG", False] == 1
    assert found.to_broker.size + found.to_client.size == len(build("PING") + build("PONG")) + 5
    assert found.to_client.size - found.to_broker.size == len(build("PONG")) - len(build("PING")) + 1
    live.events([])
    assert live.snapshot(START) == found


def test_errors_are_counted_by_code_topic_and_connection() -> None:
    talk = Talk()
    talk.produce()
    talk.send(0)
    talk.tell("SEND_ERROR", producer_id=1, sequence_id=0, error=9, message="no")
    talk.ask("LOOKUP", topic="orders", request_id=7)
    talk.tell("LOOKUP_RESPONSE", request_id=7, response=2, error=11)
    talk.ask("LOOKUP", topic="orders", request_id=8)
    talk.tell("LOOKUP_RESPONSE", request_id=8, response=1, brokerServiceUrl="pulsar://b:6650")
    talk.tell("ERROR", request_id=2**64 - 1, error=3, message="go")
    found = talk.snapshot
    assert found.errors == {"ChecksumError": 1, "TopicNotFound": 1, "AuthenticationError": 1}
    assert [row.errors for row in found.connections] == [3]
    assert [(row.topic, row.errors) for row in found.topics] == [(ORDERS, 2)]


def test_connections_that_ended_are_kept_for_a_while() -> None:
    live = Live(START)
    for index in range(KEPT + 10):
        talk = Talk(live, index)
        talk.produce()
        if index % 2 == 0:
            live.closed(talk.connection, talk.now)
            live.closed(talk.connection, talk.now)
    Talk(live, KEPT + 9)  # the same number again: the one before has ended
    found = live.snapshot(START)
    still_open = (KEPT + 10) // 2
    assert (found.open_connections, found.all_connections) == (still_open, KEPT + 11)
    assert found.kept_connections == KEPT + 11
    assert len(found.connections) == ROWS
    assert [row.is_open for row in found.connections] == [True] * still_open + [False] * (ROWS - still_open)
    assert found.backlog.producers == still_open - 1
    for index in range(KEPT + 10):
        live.closed(Connection(index), START)
    found = live.snapshot(START)
    assert all(row.backlog.producers == 0 for row in found.connections)
    assert (found.open_connections, found.kept_connections) == (0, KEPT)
    assert found.backlog.producers == 0


def test_topics_beyond_the_bound_are_counted_together() -> None:
    talk = Talk()
    for number in range(MAX_TOPICS + 20):
        talk.produce(number, f"t-{number}")
        talk.send(0, producer=number)
    found = talk.snapshot
    assert len(found.topics) == MAX_TOPICS + 1
    assert found.topics[-1].topic == OTHERS
    assert found.topics[-1].sent.messages == found.topics[-1].backlog.producers == 20
    assert sum(row.sent.messages for row in found.topics) == MAX_TOPICS + 20
    assert found.backlog.producers == MAX_TOPICS + 20


def test_commands_nobody_knows_are_one() -> None:
    live = Live(START)
    for number in (200, 201):
        live.events([Frame(b"\0" * 9, None, number, Connection(0), True, time_ns=START)])
    assert live.snapshot(START).commands == {("UNKNOWN", True): 2}


def test_what_was_missed_is_counted() -> None:
    talk = Talk()
    talk.live.missed(talk.connection, True, 0, 3, START)
    talk.live.missed(talk.connection, False, 0, 4, START)
    talk.miss(True, 1_000)
    live = talk.live
    live.events([Malformed("?", b"abc", 3, talk.connection, False, time_ns=START)])
    found = talk.snapshot
    assert (found.missed_frames, found.gaps, found.missed_bytes) == (7, 1, 1_000)
    assert (found.malformed, found.malformed_bytes) == (1, 3)
    assert (found.to_broker.size, found.to_client.size) == (1_000, 3)


# ---- Sends ----


def test_sends_are_pending_until_they_are_answered() -> None:
    talk = Talk()
    talk.produce()
    for sequence in range(5):
        talk.send(sequence)
    assert (talk.backlog.pending_sends, talk.backlog.oldest_send_ns) == (5, 4 * MS)
    for sequence in (0, 1, 3, 3, 99):
        talk.receipt(sequence)
    assert talk.backlog.pending_sends == 2
    assert talk.backlog.oldest_send_ns == 7 * MS  # since number 2, that got no receipt
    assert talk.snapshot.topics[0].backlog.pending_sends == 2
    talk.receipt(2)
    talk.receipt(4)
    assert talk.backlog.pending_sends == 0
    assert talk.backlog.oldest_send_ns is None


def test_an_error_names_the_highest_id_of_a_batch() -> None:
    talk = Talk()
    talk.produce()
    talk.send(0, 10)
    talk.send(10, 10)
    talk.tell("SEND_ERROR", producer_id=1, sequence_id=19, error=9, message="")
    assert talk.backlog.oldest_send_ns == 2 * MS
    assert talk.backlog.pending_sends == 1
    talk.receipt(0)
    assert talk.backlog.pending_sends == 0


def test_chunks_share_a_sequence_id_and_are_one_message() -> None:
    talk = Talk()
    talk.produce()
    for chunk in range(3):
        talk.send(4, num_chunks_from_msg=3, chunk_id=chunk)
    assert talk.backlog.pending_sends == 3
    assert talk.snapshot.to_broker.messages == 1
    talk.receipt(4)
    assert talk.backlog.pending_sends == 2
    talk.receipt(4)
    talk.receipt(4)
    talk.receipt(4)
    assert talk.backlog.pending_sends == 0


@pytest.mark.parametrize("how", ["closed by the client", "closed by the broker", "refused", "lost"])
def test_a_producer_that_is_gone_waits_for_nothing(how: str) -> None:
    talk = Talk()
    if how == "refused":
        talk.ask("PRODUCER", topic="orders", producer_id=1, request_id=9)
    else:
        talk.produce()
    talk.produce(2)
    talk.send(0)
    talk.send(0, producer=2)
    if how == "closed by the client":
        talk.ask("CLOSE_PRODUCER", producer_id=1, request_id=9)
    elif how == "closed by the broker":
        talk.tell("CLOSE_PRODUCER", producer_id=1, request_id=2**64 - 1)
    elif how == "refused":
        assert talk.backlog.producers == 2
        talk.tell("ERROR", request_id=9, error=15, message="busy")
    else:
        talk.live.closed(talk.connection, talk.now)
        assert (talk.backlog.producers, talk.backlog.pending_sends) == (0, 0)
        return
    assert (talk.backlog.producers, talk.backlog.pending_sends) == (1, 1)


def test_a_repeat_that_is_refused_closes_nothing() -> None:
    talk = Talk()
    talk.produce()
    talk.send(0)
    talk.ask("PRODUCER", topic="orders", producer_id=1, request_id=9)
    talk.tell("ERROR", request_id=9, error=15, message="busy")
    assert (talk.backlog.producers, talk.backlog.pending_sends) == (1, 1)


def test_a_lookup_of_the_same_id_that_fails_closes_nothing() -> None:
    talk = Talk()  # the C++ client counts lookups apart
    talk.ask("PRODUCER", topic="orders", producer_id=1, request_id=5)
    talk.ask("PARTITIONED_METADATA", topic="orders", request_id=5)
    talk.tell("PARTITIONED_METADATA_RESPONSE", request_id=5, response=1, error=11)
    talk.tell("PRODUCER_SUCCESS", request_id=5, producer_name="p-1")
    assert [(each.name, each.is_open) for each in talk.session.producers.values()] == [("p-1", True)]


def test_what_waits_when_bytes_are_missed_is_not_known_any_more() -> None:
    talk = Talk()
    talk.produce()
    talk.subscribe()
    talk.ask("FLOW", consumer_id=2, messagePermits=10)
    talk.send(0)
    talk.deliver(0)
    assert [talk.backlog.exact] == [True]
    talk.miss(False, 100)
    assert (talk.backlog.pending_sends, talk.backlog.unacked, talk.backlog.permits) == (0, 0, 9)
    assert [talk.backlog.exact] == [False]
    assert talk.snapshot.topics[0].backlog.exact is False
    talk.send(1)
    assert talk.backlog.pending_sends == 1
    talk.ask("CLOSE_CONSUMER", consumer_id=2, request_id=9)
    assert talk.backlog.exact


def test_where_nobody_answers_memory_is_bounded() -> None:
    talk = Talk()
    talk.produce()
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    some = [build("SEND", metadata, b"", producer_id=1, sequence_id=n) for n in range(MAX_PENDING + 10)]
    talk.carry(True, b"".join(some))
    assert talk.backlog.pending_sends < MAX_PENDING
    assert talk.snapshot.to_broker.messages == MAX_PENDING + 10


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["send", "receipt", "error", "close"]), st.integers(0, 2), st.integers(0, 4)
        )
    )
)
@settings(max_examples=200)
def test_pending_sends_are_those_of_a_plain_list(steps: list[tuple[str, int, int]]) -> None:
    talk = Talk()
    waiting: dict[int, list[tuple[int, int]]] = {}
    for step, producer, sequence in steps:
        if producer not in waiting:
            talk.produce(producer)
            waiting[producer] = []
        if step == "send":
            talk.send(sequence, producer=producer)
            waiting[producer].append((sequence, talk.now))
        elif step == "close":
            talk.ask("CLOSE_PRODUCER", producer_id=producer, request_id=77)
            del waiting[producer]
        else:
            if step == "receipt":
                talk.receipt(sequence, producer)
            else:
                talk.tell("SEND_ERROR", producer_id=producer, sequence_id=sequence, error=9, message="")
            answered = next((each for each in waiting[producer] if each[0] == sequence), None)
            if answered is not None:
                waiting[producer].remove(answered)
    found = talk.snapshot
    ledgers = {number: each for number, each in talk.session.producers.items() if each.is_open}
    assert {number: each.count_certain()[0] for number, each in ledgers.items()} == {
        producer: len(those) for producer, those in waiting.items()
    }
    assert found.backlog.pending_sends == sum(map(len, waiting.values()))
    assert (found.backlog.oldest_send_ns is None) == (found.backlog.pending_sends == 0)


def test_the_oldest_send_may_be_a_chunk() -> None:
    talk = Talk()
    talk.produce()
    talk.send(0, uuid="u", num_chunks_from_msg=2, chunk_id=0, total_chunk_msg_size=200)
    talk.send(1)
    assert (talk.backlog.pending_sends, talk.backlog.oldest_send_ns) == (2, 1 * MS)


# ---- Permits, and what is not acknowledged ----


def test_permits_are_what_flow_gave_less_what_was_delivered() -> None:
    talk = Talk()
    talk.subscribe()
    talk.ask("FLOW", consumer_id=2, messagePermits=1_000)
    talk.deliver(0)
    assert talk.backlog.permits == 999
    talk.deliver(1, 10)
    assert talk.backlog.permits == 989
    talk.deliver(2, 10, ack_set=[0b1000000111])  # six indexes were acknowledged before
    assert talk.backlog.permits == 985
    talk.deliver(3, 70, ack_set=[-4, 30])  # 62 of the first 64, 4 of the others
    assert talk.backlog.permits == 985 - 66
    talk.deliver(4, 2_000)
    assert talk.backlog.permits == 919 - 2_000
    talk.ask("FLOW", consumer_id=2, messagePermits=2_000)
    assert talk.backlog.permits == 919
    talk.ask("FLOW", consumer_id=9, messagePermits=5)
    talk.deliver(5, consumer=9)
    assert talk.backlog.permits == 919
    row = talk.session.consumers[2]
    assert (row.permits, row.topic, row.subscription) == (919, ORDERS, "s")


def test_a_new_subscription_begins_without_permits() -> None:
    talk = Talk()
    talk.subscribe()
    talk.ask("FLOW", consumer_id=2, messagePermits=1_000)
    talk.tell("CLOSE_CONSUMER", consumer_id=2, request_id=2**64 - 1)
    assert (talk.backlog.permits, talk.backlog.consumers) == (0, 0)
    talk.subscribe()
    assert (talk.backlog.permits, talk.backlog.consumers) == (0, 1)


def test_a_subscription_that_ends_or_is_refused_is_gone() -> None:
    talk = Talk()
    talk.subscribe()
    talk.ask("UNSUBSCRIBE", consumer_id=2, request_id=50)
    assert talk.backlog.consumers == 1
    talk.tell("SUCCESS", request_id=50)
    assert talk.backlog.consumers == 0
    talk.ask("SUBSCRIBE", topic="t", subscription="s", subType=0, consumer_id=2, request_id=51)
    talk.tell("ERROR", request_id=51, error=5, message="busy")
    assert talk.backlog.consumers == 0
    talk.subscribe()
    talk.ask("UNSUBSCRIBE", consumer_id=2, request_id=52)
    talk.tell("ERROR", request_id=52, error=1, message="others are there")
    assert talk.backlog.consumers == 1


def test_unacknowledged_messages() -> None:
    talk = Talk()
    talk.subscribe()
    for entry in range(6):
        talk.deliver(entry, 10)
    assert talk.backlog.unacked == 60
    talk.acknowledge(0, 4, 4, 99)
    assert talk.backlog.unacked == 40
    talk.acknowledge(1, ack_set=(0b111,))
    assert talk.backlog.unacked == 33
    talk.acknowledge(3, kind=1, ack_set=(0b1,))  # all before it, and nine of its own
    assert talk.backlog.unacked == 10 + 1
    talk.acknowledge(3, ack_set=(0b11111,))  # nobody takes an acknowledgement back
    assert talk.backlog.unacked == 11
    talk.deliver(5, 10)
    assert talk.backlog.unacked == 11  # the same entry once more
    talk.ask("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=2, message_ids=[{"ledgerId": 7, "entryId": 5}])
    assert talk.backlog.unacked == 1
    talk.ask("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=2)
    assert talk.backlog.unacked == 0


CLIENTS = sorted(path.name for client in ("java", "python") for path in SAMPLES.glob(f"{client}-*.pcap"))


@pytest.mark.parametrize("name", CLIENTS)
def test_clients_stay_within_their_permits_and_acknowledge_all(name: str) -> None:
    live, lowest, most, last = Live(START), 0, 0, START
    states: list[LedgerState] = []

    def new_state(*arguments: Any) -> LedgerState:
        states.append(LedgerState(*arguments))
        live.opened(states[-1].connection, START, states[-1])
        return states[-1]

    decoder = Decoder(new_state=new_state)
    source = open_source(str(SAMPLES / name))
    with source.stream:
        for event in chain.from_iterable(decoder.read(source)):
            live.events([event])
            last = event.time_ns or last
            if isinstance(event, Frame) and event.type == 9:
                rows = [row for state in states for row in state.consumers.values()]
                lowest = min([lowest, *(row.permits for row in rows)])
                most = max([most, *(row.unacked for row in rows)])
    found = live.snapshot(last).backlog
    assert lowest == 0
    assert most > 0
    assert (found.unacked, found.pending_sends, found.exact) == (0, 0, True)


# ---- Meters and timers ----


@given(
    st.lists(st.tuples(st.integers(0, 20 * SECOND), st.integers(1, 1_000)), min_size=1, max_size=30),
    st.integers(0, 10 * SECOND),
)
def test_rates_are_those_of_the_last_seconds(counted: list[tuple[int, int]], later: int) -> None:
    counted.sort()
    meter = Meter()
    for time_ns, size in counted:
        meter.add(START + time_ns, 1, size, 2)
    now = START + counted[-1][0] + later
    first = (now // SECOND - WINDOW + 1) * SECOND
    span = max(now - max(first, (START + counted[0][0]) // SECOND * SECOND), SECOND) / SECOND
    within = [size for time_ns, size in counted if START + time_ns >= first]
    for _ in range(2):
        found = meter.read(now)
        assert (found.frames, found.messages) == (len(counted), 2 * len(counted))
        assert found.size == sum(size for _, size in counted)
        assert found.bytes_per_s == pytest.approx(sum(within) / span)
        assert found.frames_per_s == pytest.approx(len(within) / span)
        assert found.messages_per_s == pytest.approx(2 * len(within) / span)


def test_a_steady_rate_is_that_rate_at_any_moment() -> None:
    meter = Meter()
    for tenth in range(300):
        meter.add(START + tenth * SECOND // 10, 7, 0, 0)
        assert tenth < 10 or 60 < meter.read(START + tenth * SECOND // 10).frames_per_s < 80


TICK = SECOND // 4
TRUE = 4_000
"""Messages a second, 1,000 a tick."""


def about_true(rate: float) -> bool:
    """Whether it is the true rate: the first of five seconds counts whole, and has more than it lasted."""
    return TRUE * 0.95 < rate < TRUE * 1.07


@pytest.mark.parametrize("late", [0, 1, 16, 20, 32, 200])
def test_rates_and_ages_are_those_of_the_traffic_however_late_it_is_counted(late: int) -> None:
    talk = Talk()
    talk.produce(1)
    talk.produce(2)
    talk.send(7, producer=2)  # it is never answered
    sent = talk.now
    for tick in range(100):
        talk.now = START + SECOND + tick * TICK
        talk.send(tick, 1_000)
        talk.receipt(tick)
        found = talk.live.snapshot(talk.now + late * TICK)
        if tick < 40:
            continue
        assert about_true(found.to_broker.messages_per_s)
        assert about_true(found.topics[0].sent.messages_per_s)
        assert about_true(found.connections[0].to_client.frames_per_s * 1_000)
        assert found.publishes.recent is not None
        assert 40 <= found.publishes.recent["count"] <= 80
        unknown = TICK if late == 1 else 0  # so long ago it was seen last: nothing may have come since
        assert found.backlog.oldest_send_ns == talk.now + unknown - sent
    for more in range(1, 30):
        found = talk.live.snapshot(talk.now + (late + more) * TICK)
        assert found.backlog.oldest_send_ns == talk.now + (late + more) * TICK - sent
    assert found.to_broker.messages_per_s == 0  # it is as late as the clock says, for nothing comes


@pytest.mark.parametrize("late", [0, 32])
@pytest.mark.parametrize("jump", [-3_600, -7, -2, 2, 7, 3_600])
def test_a_clock_that_is_set_makes_no_rates_up(jump: int, late: int) -> None:
    def clock(tick: int) -> int:
        return START + tick * TICK + (jump * SECOND if tick >= 100 else 0)

    talk = Talk()
    talk.produce()
    for tick in range(180):
        talk.now = clock(tick)
        talk.send(tick, 1_000)
        talk.receipt(tick)
        found = talk.live.snapshot(clock(tick + late))
        rate = found.to_broker.messages_per_s
        assert tick < 40 or rate < TRUE * 1.2
        if 40 < tick < 100 or tick >= 124:
            assert about_true(rate)
            assert found.publishes.recent is not None
            assert found.publishes.recent["count"] <= 82
            assert tick < 140 or found.publishes.recent["count"] >= 40
    for more in range(30):
        rate = talk.live.snapshot(clock(180 + late + more)).to_broker.messages_per_s
    assert rate == 0


def test_what_passed_before_a_silence_stays_gone_when_the_clock_is_set_back() -> None:
    talk = Talk()
    talk.produce()
    talk.send(1, 1_000)
    now = talk.now
    for _ in range(240):
        now += TICK
        found = talk.live.snapshot(now)
    assert found.to_broker.messages_per_s == 0
    now -= 3_600 * SECOND
    for _ in range(10):
        now += TICK
        assert talk.live.snapshot(now).to_broker.messages_per_s == 0
    talk.now = now
    talk.send(2, 1)
    assert talk.live.snapshot(now + TICK).to_broker.messages_per_s < 1


def test_what_was_left_unfinished_long_ago_does_not_turn_time_back() -> None:
    talk = Talk()
    talk.produce()
    stopped = Talk(talk.live, 1)
    stopped.carry(True, build("PING")[:-1])
    garbage = Talk(talk.live, 2)
    garbage.carry(True, bytes(range(50)))
    for tick in range(100):
        talk.now = START + tick * TICK
        talk.send(tick, 1_000)
        if tick == 60:
            stopped.end(talk.now)
        if tick == 80:
            garbage.end(talk.now)
        assert tick < 40 or about_true(talk.snapshot.to_broker.messages_per_s)
    assert (talk.snapshot.malformed, talk.snapshot.open_connections) == (1, 1)


@given(st.lists(st.tuples(st.booleans(), st.integers(-5 * SECOND, 5 * SECOND))))
def test_time_never_goes_back_for_meters(steps: list[tuple[bool, int]]) -> None:
    passage = Passage(START)
    at = START
    for is_met, step in steps:
        before, at = at, passage.observe(START + step) if is_met else passage.at_ns
        assert at >= before
        assert is_met or passage.read(START + step) >= at


@given(st.lists(st.one_of(st.integers(-5, 60 * SECOND), st.sampled_from(BOUNDS)), max_size=300))
def test_times_fall_into_their_buckets(took: list[int]) -> None:
    timer = Timer()
    for each in took:
        timer.add(START, each)
    found = timer.read(START)
    took = [max(each, 0) for each in took]
    assert (found.count, found.sum_ns) == (len(took), sum(took))
    edges = [-1, *BOUNDS, 2**62]
    expected = [sum(low < each <= high for each in took) for low, high in pairwise(edges)]
    assert list(found.buckets) == expected
    assert found.whole == found.recent
    assert found.whole is None or found.whole["max"] == max(took)


def test_recent_times_are_those_of_the_last_seconds() -> None:
    timer = Timer()
    for second in range(60):
        timer.add(START + second * SECOND, second)
    found = timer.read(START + 60 * SECOND)
    assert found.whole is not None
    assert (found.whole["count"], found.whole["max"]) == (60, 59)
    assert found.recent is not None
    assert found.recent["count"] == 10  # the window before; the new one has none yet
    assert timer.read(START + 69 * SECOND).recent == found.recent
    assert timer.read(START + 70 * SECOND).recent is None
    assert timer.read(START + 70 * SECOND).count == 60
    timer.add(START + 71 * SECOND, 1)
    timer.add(START + 95 * SECOND, 2)
    found = timer.read(START + 95 * SECOND)
    assert found.recent is not None
    assert found.recent["count"] == 1


def test_many_times_stay_within_a_histogram() -> None:
    timer = Timer()
    for number in range(50_000):
        timer.add(START, number * 1_000)
    found = timer.read(START)
    assert sum(found.buckets) == found.count == 50_000
    assert found.whole is not None
    assert found.whole["p50"] == pytest.approx(25_000_000, rel=0.01)


def test_latencies_are_told_apart_by_request() -> None:
    talk = Talk()
    talk.produce()
    for sequence in range(4):
        talk.send(sequence)
        talk.receipt(sequence)
    talk.tell("PING")
    talk.ask("PONG")
    found = talk.snapshot
    assert (found.publishes.count, found.publishes.sum_ns) == (4, 4 * MS)
    assert {name: times.count for name, times in found.requests.items()} == {"PRODUCER": 1, "PING": 1}


def test_a_gap_event_is_no_frame() -> None:
    live = Live(START)
    live.events([Gap(10, Connection(0), True, time_ns=None)])
    assert live.snapshot(START).to_broker.frames == 0
