"""Counts are those of the records, latencies exact while they are few, sums what one process counts."""

from __future__ import annotations

import json
import math
import pickle
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsarctl_wire.capture.sources import Decoder, open_source
from pulsarctl_wire.record import Recorder
from pulsarctl_wire.stats import counting, rows
from pulsarctl_wire.stats.counting import Stats
from pulsarctl_wire.stats.latencies import EXACT, PERCENTILES, Latencies
from pulsarctl_wire.stats.report import records, total_record
from pulsarctl_wire.stats.rows import NAMES, OTHERS
from pulsarctl_wire.wire.frame import Connection, Event, Frame, build_frame
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, MessageMetadata
from pulsarctl_wire.wire.session.counts import latency_of
from pulsarctl_wire.wire.session.ending import UNANSWERED, EndedConnection
from pulsarctl_wire.wire.session.exchanges import ExchangeState
from pulsarctl_wire.wire.session.knowledge import Knowledge

SAMPLES = Path(__file__).parents[1] / "samples" / "pcaps"
CAPTURES = sorted(path.name for path in SAMPLES.iterdir() if ".pcap" in path.name)


def events_of(*names: str) -> tuple[list[Event], Decoder]:
    decoder = Decoder(join_chunks=False)
    events: list[Event] = []
    for name in names:
        source = open_source(str(SAMPLES / name))
        with source.stream:
            events += chain.from_iterable(decoder.read(source))
    events += chain.from_iterable(decoder.finish())
    return events, decoder


def count(events: list[Event], decoder: Decoder | None = None, *, at_a_time: int = 64) -> Stats:
    stats = Stats()
    for start in range(0, len(events), at_a_time):
        stats.add(events[start : start + at_a_time])
    if decoder is not None:
        stats.finish(decoder)
    return stats


def everything(stats: Stats) -> list[dict[str, Any]]:
    return [total_record(stats), *chain.from_iterable(records(stats, by) for by in NAMES)]


def nearest_rank(values: Iterable[int]) -> dict[str, int] | None:
    """The smallest value with at least q of all values at or below it."""
    ordered = sorted(values)
    if not ordered:
        return None
    found = {
        name: next(
            value for at, value in enumerate(ordered, start=1) if at * 1000 >= thousandths * len(ordered)
        )
        for name, thousandths in PERCENTILES.items()
    }
    return {"count": len(ordered), **found, "max": ordered[-1]}


# -- against what is known of the samples


@pytest.mark.parametrize(
    "row", json.loads((SAMPLES / "expected.json").read_text()), ids=lambda row: row["file"]
)
def test_totals_are_what_is_expected(row: dict[str, Any]) -> None:
    stats = count(*events_of(row["file"]))
    total = total_record(stats)
    assert {
        record["command"]: record["frames"] for record in records(stats, "command") if record["frames"]
    } == (row["by_command"])
    assert (total["sent"], total["delivered"]) == (row["messages"]["sent"], row["messages"]["delivered"])
    assert total["partial"] == row["partial_frames"]
    assert total["gaps"] == row["gaps"]
    assert total["packets"] == row["packets"]
    assert total["cut_packets"] == row["cut_packets"]
    assert total["bytes"] == sum(record["bytes"] for record in records(stats, "command"))


def from_records(events: list[Event]) -> dict[tuple[str, Any], Counter[str]]:
    """Counts by (what, name) of whole frames, made of the records that `decode -o json` prints."""
    record_of = Recorder()
    commands: dict[int, str] = {}
    counts: dict[tuple[str, Any], Counter[str]] = defaultdict(Counter)
    for event in events:
        if not isinstance(event, Frame):
            continue
        record = record_of(event)
        commands[record["number"]] = record["command"]
        if record["partial"]:
            continue
        error = (record["fields"] or {}).get("error", (record["fields"] or {}).get("error_code"))
        about = [("total", None), ("command", record["command"]), ("connection", record["connection"])]
        if record["topic"] is not None:
            about.append(("topic", record["topic"]))
        if record["subscription"] is not None:
            about.append(("subscription", (record["subscription"], record["topic"])))
        if record["metadata"] is not None:
            about.append(("entries", (record["metadata"]["producer_name"], record["topic"])))
        if error is not None:
            asked = commands.get(record["request"], record["command"])
            address = record["client"].rpartition(":")[0]
            about.append(("error", (error, asked, record["topic"], address)))
        entry = event.metadata
        messages = 0
        if entry is not None:
            chunked = entry.num_chunks_from_msg > 1
            messages = int(event.joined is not None) if chunked else entry.num_messages_in_batch
        for key in about:
            counts[key]["frames"] += 1
            counts[key]["bytes"] += record["total_size"] + 4
            counts[key]["sent"] += messages if record["command"] == "SEND" else 0
            counts[key]["delivered"] += messages if record["command"] == "MESSAGE" else 0
            counts[key]["errors"] += error is not None
            counts[key]["invalid_checksums"] += record["checksum"] == "invalid"
    return counts


@pytest.mark.parametrize("name", CAPTURES)
def test_rows_are_what_the_records_add_up_to(name: str) -> None:
    events, decoder = events_of(name)
    stats = count(events, decoder)
    expected = from_records(events)
    found: dict[tuple[str, Any], dict[str, Any]] = {("total", None): total_record(stats)}
    for by in ("command", "connection", "topic", "subscription", "error"):
        for record in records(stats, by):
            names = tuple(record[key] for key in NAMES[by] if key not in ("client", "server"))
            found[by, names[0] if len(names) == 1 else names] = record
    for key, counts in expected.items():
        if key[0] != "entries":
            assert counts == {name: found[key][name] for name in counts}, key
    # a command that occurs only in captures of answers, or cut, has no whole frames
    assert all(not found[key]["frames"] for key in found.keys() - expected.keys())


@pytest.mark.parametrize("name", CAPTURES)
def test_latencies_are_those_of_the_records(name: str) -> None:
    events, decoder = events_of(name)
    stats = count(events, decoder)
    publish: dict[tuple[str, Any], list[int]] = defaultdict(list)
    request: dict[tuple[str, Any], list[int]] = defaultdict(list)
    commands: dict[int, str] = {}
    for event in events:
        if not isinstance(event, Frame):
            continue
        commands[event.number] = event.command
        if latency_of(event) is not None and event.request is not None:
            of = publish if event.command == "SEND_RECEIPT" else request
            for key in (
                ("command", commands[event.request]),
                ("topic", event.topic),
                ("connection", event.connection.index),
                ("total", None),
            ):
                of[key].append(event.latency_ns or 0)
    for by in ("command", "topic", "connection"):
        for record in records(stats, by):
            assert record["publish_ns"] == nearest_rank(publish[by, record[by]])
            assert record["request_ns"] == nearest_rank(request[by, record[by]])
    total = total_record(stats)
    assert total["publish_ns"] == nearest_rank(publish["total", None])
    assert total["request_ns"] == nearest_rank(request["total", None])


def test_latencies_of_a_plain_session() -> None:
    """Ten SENDs of python-simple.pcap, and the times to their receipts as tshark shows them, in µs."""
    micros = [3971, 4090, 2396, 2388, 4156, 2273, 2040, 2582, 2280, 2951]
    assert sorted(micros)[4] == 2396  # 5 of 10 are at or below it
    [record] = [
        each for each in records(count(*events_of("python-simple.pcap")), "command", 2) if each["sent"]
    ]
    assert record["publish_ns"] == {
        "count": 10,
        "p50": 2_396_000,
        "p90": 4_090_000,
        "p99": 4_156_000,
        "p999": 4_156_000,
        "max": 4_156_000,
    }
    assert record["request_ns"] is None


def test_producers_are_known_by_the_names_they_were_given() -> None:
    events, decoder = events_of("errors.pcap")
    by_name = {
        (record["producer"], record["topic"]): record
        for record in records(count(events, decoder), "producer")
    }
    small = by_name["verbose", "persistent://public/default/errors-small"]
    assert (small["frames"], small["sent"], small["errors"]) == (4, 2, 1)
    assert small["publish_ns"]["count"] == 1
    assert small["request_ns"]["count"] == 1  # SEND_ERROR


def test_errors_say_what_was_asked() -> None:
    found = records(count(*events_of("errors.pcap")), "error")
    assert [(each["error"], each["command"], each["frames"]) for each in found] == [
        ("ConsumerBusy", "SUBSCRIBE", 2),
        ("ProducerFenced", "PRODUCER", 2),
        ("IncompatibleSchema", "PRODUCER", 1),
        ("NotAllowedError", "SEND", 1),
        ("ProducerBusy", "PRODUCER", 1),
        ("ProducerBusy", "PRODUCER", 1),
        ("TopicNotFound", "PARTITIONED_METADATA", 1),
        ("TopicTerminatedError", "PRODUCER", 1),
    ]
    assert {each["address"] for each in found} == {"127.0.0.1"}
    checksum = records(count(*events_of("corrupt-in-transit.pcap")), "error")
    assert [(each["error"], each["command"]) for each in checksum] == [("ChecksumError", "SEND")]


# -- adding up


@pytest.mark.parametrize("at_a_time", [1, 7, 100_000])
def test_the_size_of_batches_does_not_matter(at_a_time: int) -> None:
    events, decoder = events_of("errors.pcap", "java-keyshared.pcap", "snaplen96.pcap")
    assert everything(count(events, decoder, at_a_time=at_a_time)) == everything(count(events, decoder))


def test_a_connection_is_in_one_half_and_both_make_the_whole() -> None:
    names = ("auth-token.pcap", "errors.pcap", "mixed.pcapng.gz", "java-batch-zlib.pcap")
    whole = count(*events_of(*names))
    events, decoder = events_of(*names)
    first, second = (count([each for each in events if each.connection.index % 2 == part]) for part in (0, 1))
    both = Stats()
    for part in (first, second):
        both.merge(pickle.loads(pickle.dumps(part)))
    both.finish(decoder)
    for by in ("command", "topic", "producer", "subscription", "error"):
        assert records(both, by) == records(whole, by)
    total = total_record(whole)
    assert {key: value for key, value in total_record(both).items() if key != "other_connections"} == {
        key: value for key, value in total.items() if key != "other_connections"
    }


_KINDS = (BaseCommand.PING, BaseCommand.PONG, BaseCommand.FLOW)


@st.composite
def traffic(draw: st.DrawFn) -> list[list[tuple[int, int, int | None]]]:
    """For each of some connections: commands, topics and times of frames."""
    time = st.one_of(st.none(), st.integers(0, 10**9), st.integers(0, 2**63), st.integers(-(2**62), 10**6))
    frame = st.tuples(st.integers(0, 2), st.integers(0, 3), time)
    return draw(st.lists(st.lists(frame, max_size=12), min_size=2, max_size=4))


def made(index: int, frames: list[tuple[int, int, int | None]]) -> list[Event]:
    connection = Connection(index, f"10.0.0.{index}:1", "10.0.1.1:6650")
    events: list[Event] = []
    for kind, topic, time_ns in frames:
        frame = Frame(b"x" * (10 + topic), BaseCommand(type=_KINDS[kind]), _KINDS[kind], connection, True)
        frame.time_ns = time_ns
        frame.topic = f"persistent://a/b/{topic}" if topic else None
        if kind == 1:
            frame.latency_ns, frame.request_type = topic * 1000, BaseCommand.PING
        events.append(frame)
    return events


@given(traffic(), st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_any_order_of_adding_up_gives_the_same(
    connections: list[list[tuple[int, int, int | None]]], chance: random.Random
) -> None:
    lists = [made(index, frames) for index, frames in enumerate(connections)]
    whole = count([event for events in lists for event in events])
    parts = [count(events, at_a_time=3) for events in lists]
    chance.shuffle(parts)
    together = Stats()
    for part in parts:
        together.merge(part)
    assert everything(together) == everything(whole)
    total = total_record(whole)
    timed = sum(time is not None for frames in connections for _, _, time in frames)
    assert sum(total["series"]) == timed
    assert len(total["series"]) <= rows.BUCKETS
    assert total["frames"] == sum(map(len, connections))


def test_a_series_has_each_frame_in_its_bucket() -> None:
    width = 1 << 20
    times = [5 * width, 5 * width + 1, 6 * width, 68 * width, 69 * width]
    stats = count(made(0, [(0, 0, time) for time in times[:4]]))
    total = total_record(stats)
    assert total["series_width_ns"] == width
    assert total["series_start_ns"] == 5 * width
    assert total["series"] == [2, 1, *[0] * 61, 1]
    stats.add(made(0, [(0, 0, times[4])]))
    total = total_record(stats)
    assert total["series_width_ns"] == 2 * width
    assert total["series_start_ns"] == 4 * width
    assert total["series"] == [2, 1, *[0] * 30, 2]


# -- latencies


def record_of(values: Iterable[int], *, pieces: int = 1) -> dict[str, int] | None:
    values = list(values)
    parts = []
    for piece in range(pieces):
        part = Latencies()
        part.add(values[piece::pieces])
        parts.append(pickle.loads(pickle.dumps(part)))
    return Latencies.together(parts).record()


@given(st.lists(st.integers(-(2**40), 2**62), max_size=60), st.integers(1, 4))
def test_few_latencies_are_exact(values: list[int], pieces: int) -> None:
    assert record_of(values, pieces=pieces) == nearest_rank(values)


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize(
    "draw",
    [
        lambda chance: chance.lognormvariate(13, 1),
        lambda chance: 1e5 * chance.paretovariate(1.2),
        lambda chance: chance.lognormvariate(12, 0.3) if chance.random() > 0.01 else chance.uniform(1e8, 5e9),
        lambda chance: 250_000,
    ],
    ids=["lognormal", "pareto", "stalls", "one value"],
)
def test_many_latencies_are_right_within_a_percent(draw: Any, pieces: int) -> None:
    chance = random.Random(7)
    values = [int(draw(chance)) for _ in range(30_000)]
    found, exact = record_of(values, pieces=pieces), nearest_rank(values)
    assert found is not None
    assert exact is not None
    assert (found["count"], found["max"]) == (30_000, exact["max"])
    for name in PERCENTILES:
        assert math.isclose(found[name], exact[name], rel_tol=0.01), name


def test_histograms_add_up_to_the_same_in_any_order() -> None:
    chance = random.Random(3)
    values = [int(chance.lognormvariate(13, 1)) for _ in range(20_000)]
    assert record_of(values) == record_of(values[::-1], pieces=4) == record_of(sorted(values), pieces=7)


def test_latencies_beyond_all_reason_are_kept_apart_by_their_bounds() -> None:
    values = [*[10] * EXACT, 2**80, -(2**80), 2**50]
    found = record_of(values)
    assert found is not None
    assert found["count"] == len(values)
    assert found["max"] == 2**62


# -- bounds


def hostile(size: int, *, name: str = "") -> Iterator[Event]:
    """Frames of a client that names everything anew."""
    connection = Connection(0, "10.0.0.1:1", "10.0.1.1:6650")
    stream = FrameStream(connection, True)
    stream.is_direction_certain = False
    session = ExchangeState(connection, Knowledge(join_chunks=False), (stream,))
    for number in range(size):
        frames = []
        base = BaseCommand(type=BaseCommand.PRODUCER)
        base.producer.topic, base.producer.producer_id = f"{number}{name}", number
        base.producer.request_id = number
        frames.append(build_frame(base))
        base = BaseCommand(type=BaseCommand.SEND)
        base.send.producer_id, base.send.sequence_id = number, 0
        metadata = MessageMetadata(producer_name=f"p{number}{name}", sequence_id=0, publish_time=1)
        frames.append(build_frame(base, metadata, b"payload"))
        base = BaseCommand(type=BaseCommand.SEND_RECEIPT)
        base.send_receipt.producer_id, base.send_receipt.sequence_id = number, 0
        frames.append(build_frame(base))
        events = stream.feed(b"".join(frames), 1000 * number)
        session.track(events)
        yield from events


def test_rows_are_bounded_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "MAX_ROWS", 50)
    monkeypatch.setattr(counting, "MAX_CELLS", 100_000)
    stats = count(list(hostile(400)))
    assert len(stats._cells) < 110
    for by in ("topic", "producer"):
        found = records(stats, by)
        assert len(found) == 51
        assert found[-1][by] == OTHERS
        assert sum(record["sent"] for record in found) == 400
    assert records(stats, "topic", 3)[3][NAMES["topic"][0]] == OTHERS
    assert sum(record["frames"] for record in records(stats, "topic")) == 1200
    assert sum(record["publish_ns"]["count"] for record in records(stats, "topic")) == 400


def test_unanswered_sends_of_rows_that_there_is_no_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "MAX_ROWS", 50)
    stats = count(list(hostile(60)))
    send = SimpleNamespace(is_sure=True, connection=Connection(0, "10.0.0.1:1", "10.0.1.1:6650"))
    prefix = "persistent://public/default/"
    knowledge: Any = SimpleNamespace(unanswered={(f"{prefix}{n}", f"p{n}"): send for n in (1, 59)})
    stats._add_unanswered(knowledge)
    for by, first in (("topic", f"{prefix}1"), ("producer", "p1")):
        counts = {record[by]: record["unanswered_sends"] for record in records(stats, by)}
        assert {name: count for name, count in counts.items() if count} == {first: 1, OTHERS: 1}


def test_connections_without_frames_leave_room_for_those_with_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "MAX_FRAMELESS", 20)
    stats = Stats()
    for index in range(1, 100):
        connection = Connection(index, f"10.0.0.9:{index}", "10.0.1.1:6650")
        session = ExchangeState(connection, Knowledge())
        stats.add_ended_connection(
            EndedConnection(
                connection, session, index, 0, 0, 1, False, UNANSWERED, None, None, False, None, (0, 0)
            )
        )
    stats.add(list(hostile(1)))
    found = records(stats, "connection")
    assert [row["end"] for row in found] == [None] + [UNANSWERED] * 20
    assert total_record(stats)["without_data"][0]["connections"] == 99


def test_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "MAX_NAMES", 20_000)
    stats = count(list(hostile(100, name="\U0001f600" * 3_000)))
    assert len(stats.rows["producer"]) < 12
    assert max(len(record["topic"]) for record in records(stats, "topic")) <= counting.LONGEST
    assert sum(record["frames"] for record in records(stats, "producer")) == 200


def test_latencies_are_bounded_and_rows_without_them_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "MAX_LATENCY_BYTES", 20_000)
    stats = count(list(hostile(100)))
    found = records(stats, "topic")
    known = [record for record in found if record["publish_ns"] is not None]
    assert 0 < len(known) < 40
    assert total_record(stats)["publish_ns"]["count"] == 100
    sends = next(record for record in records(stats, "command") if record["command"] == "SEND")
    assert sends["publish_ns"]["count"] == 100


def test_a_producer_opened_anew_has_its_new_name() -> None:
    connection = Connection(0)
    session = ExchangeState(connection, Knowledge(join_chunks=False))
    stream = FrameStream(connection, True)
    stream.is_direction_certain = False
    stats = Stats()
    for number, name in enumerate(("first", "second")):
        asked = BaseCommand(type=BaseCommand.PRODUCER)
        asked.producer.topic, asked.producer.producer_id, asked.producer.request_id = "t", 1, number
        told = BaseCommand(type=BaseCommand.PRODUCER_SUCCESS)
        told.producer_success.producer_name, told.producer_success.request_id = name, number
        sent = BaseCommand(type=BaseCommand.SEND)
        sent.send.producer_id, sent.send.sequence_id = 1, number
        receipt = BaseCommand(type=BaseCommand.SEND_RECEIPT)
        receipt.send_receipt.producer_id, receipt.send_receipt.sequence_id = 1, number
        metadata = MessageMetadata(producer_name=name, sequence_id=number, publish_time=1)
        frames = [build_frame(asked), build_frame(told), build_frame(sent, metadata), build_frame(receipt)]
        events = stream.feed(b"".join(frames), number)
        for event in events:
            assert isinstance(event, Frame)
            event.to_broker = event.command in ("PRODUCER", "SEND")
        session.track(events)
        stats.add(events)
    assert {record["producer"]: record["frames"] for record in records(stats, "producer")} == {
        "first": 2,
        "second": 2,
    }
