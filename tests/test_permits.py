"""The ledgers of consumers are those that the records of `decode -o json` give, in rows of any width."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pwire_run import SAMPLES, decode

from pulsarctl_wire.capture.sources import Decoder, open_source
from pulsarctl_wire.render.permits import describe_row, warnings
from pulsarctl_wire.stats import permits as limits
from pulsarctl_wire.stats.permits import Permits, Row, consumer_records, merged, ordered
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.frame import Connection, Frame, build_frame
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.session.knowledge import Knowledge

CAPTURES = sorted(path.name for path in SAMPLES.iterdir() if ".pcap" in path.name)
SECOND = 1_000_000_000
SUMS = ("flows", "granted", "used", "delivered", "acked", "asked", "redelivered")


def read(*names: str) -> Permits:
    permits = Permits()
    decoder = Decoder(join_chunks=False, new_state=permits.new_state, on_end=permits.ended)
    for name in names:
        source = open_source(str(SAMPLES / name))
        with source.stream:
            for _ in decoder.read(source):
                pass
    for _ in decoder.finish():
        pass
    return permits


# -- an independent calculation


class Ledger:
    """A consumer's ledger by the records alone."""

    def __init__(self) -> None:
        self.sums = dict.fromkeys(SUMS, 0)
        self.permits = 0
        self.held: dict[tuple[int, int], set[int]] = {}  # entry -> messages not acknowledged
        self.is_open = True

    def flow(self, fields: dict[str, Any]) -> None:
        self.permits += fields["messagePermits"]
        self.sums["flows"] += 1
        self.sums["granted"] += fields["messagePermits"]

    def message(self, fields: dict[str, Any], metadata: dict[str, Any]) -> None:
        count = metadata.get("num_messages_in_batch", 1)
        left = set(range(count))
        if fields.get("ack_set"):
            left = {bit for bit in left if bit_of(fields["ack_set"], bit)}
        if "marker_type" in metadata:
            left = set()
        self.permits -= len(left)
        self.held[entry_of(fields["message_id"])] = left
        self.sums["used"] += len(left)
        self.sums["delivered"] += count
        self.sums["redelivered"] += fields.get("redelivery_count", 0) > 0

    def ack(self, fields: dict[str, Any]) -> None:
        for each in fields["message_id"]:
            last = entry_of(each)
            if fields["ack_type"] == "Cumulative":
                for entry in [entry for entry in self.held if entry < last]:
                    self.sums["acked"] += len(self.held.pop(entry))
            left = self.held.get(last, set())
            done = {bit for bit in left if not bit_of(each.get("ack_set", []), bit)}
            self.sums["acked"] += len(done)
            left -= done
            if not left:
                self.held.pop(last, None)

    def redeliver(self, fields: dict[str, Any]) -> None:
        for entry in [entry_of(each) for each in fields.get("message_ids", [])] or list(self.held):
            self.sums["asked"] += self.held.pop(entry, None) is not None


def entry_of(identity: dict[str, Any]) -> tuple[int, int]:
    return identity["ledgerId"], identity["entryId"]


def bit_of(words: list[int], bit: int) -> bool:
    """A bit of an ack_set; those behind its words are 0."""
    return bit < 64 * len(words) and bool(words[bit // 64] >> bit % 64 & 1)


def calculated(records: list[dict[str, Any]]) -> dict[tuple[int, int, str], Ledger]:
    """The consumers of a capture without holes, by connection, id and subscription."""
    found: dict[tuple[int, int, str], Ledger] = {}
    current: dict[tuple[int, int], Ledger] = {}
    asked: dict[int, tuple[int, int]] = {}
    for record in records:
        fields = record.get("fields", {})
        key = record["connection"], fields.get("consumer_id", -1)
        ledger = current.get(key)
        match record.get("command"):
            case "SUBSCRIBE":
                ledger = found.setdefault((*key, fields["subscription"]), Ledger())
                ledger.permits, ledger.held = 0, {}
                current[key] = ledger
                asked[record["number"]] = key
            case "ERROR":
                current.pop(asked.get(record["request"], (-1, -1)), None)
            case "UNSUBSCRIBE":
                asked[record["number"]] = key
            case "SUCCESS" if record["request"] in asked and asked[record["request"]] in current:
                request = next(one for one in records if one.get("number") == record["request"])
                if request["command"] == "UNSUBSCRIBE":
                    del current[asked[record["request"]]]
            case "CLOSE_CONSUMER":
                current.pop(key, None)
            case "FLOW" if ledger:
                ledger.flow(fields)
            case "MESSAGE" if ledger:
                ledger.message(fields, record["metadata"])
            case "ACK" if ledger:
                ledger.ack(fields)
            case "REDELIVER_UNACKNOWLEDGED_MESSAGES" if ledger:
                ledger.redeliver(fields)
    return found


WHOLE = [name for name in CAPTURES if name not in ("snaplen96.pcap", "chunks-out-of-order.pcap")]
"""Samples without holes, and without messages whose chunks have to be counted."""


@pytest.mark.parametrize("name", WHOLE)
def test_ledgers_are_those_of_the_records(name: str) -> None:
    wanted = calculated(decode("-o", "json", name).records)
    found = {
        (each.connection.index, each.consumer_id, each.subscription): each
        for each in read(name).consumers.values()
        if each.is_known
    }
    assert found.keys() == wanted.keys()
    for key, consumer in found.items():
        total, ledger = consumer.total, wanted[key]
        assert {name: getattr(total, name) for name in SUMS} == ledger.sums
        assert total.permits == ledger.permits
        assert total.unacked == sum(map(len, ledger.held.values()))
        assert total.pending == len(ledger.held)
        assert total.exact


def test_the_samples_have_what_is_compared() -> None:
    sums: defaultdict[str, int] = defaultdict(int)
    for name in WHOLE:
        for consumer in read(name).consumers.values():
            for what in (*SUMS, "pending"):
                sums[what] += getattr(consumer.total, what)
    assert all(sums[what] > 0 for what in (*SUMS, "pending"))


# -- rows


@pytest.mark.parametrize("name", CAPTURES)
def test_rows_continue_each_other(name: str) -> None:
    for consumer in read(name).consumers.values():
        rows, _ = consumer.rows(limits.MAX_ROWS)
        for before, row in pairwise(rows):
            opened = any(text.startswith("SUBSCRIBE") for text in row.moments)
            assert row.permits == (0 if opened else before.permits) + row.granted - row.used
            assert row.first >= before.last
            assert row.lowest <= row.permits <= row.highest


@given(st.integers(2, 40), st.integers(0, 2**62))
def test_rows_of_any_width_add_up_to_the_same(most: int, width: int) -> None:
    for consumer in NACKS.consumers.values():
        rows, got = consumer.rows(most, width)
        assert len(rows) <= most
        assert got >= width
        total, *rest = merged(rows, 2**80)
        assert not rest
        assert replace(total, exact=True) == replace(consumer.total, exact=True)


NACKS = read("java-nack-dlq.pcap")


def flow(number: int, time_ns: int | None, consumer: int = 0) -> Frame:
    raw = build_frame(build_command("FLOW", consumer_id=consumer, messagePermits=1))
    (event,) = FrameStream(Connection(0), True).feed(raw, time_ns)
    assert isinstance(event, Frame)
    event.number = number
    return event


@settings(max_examples=10)
@given(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=3), st.integers(1, 2_000))
def test_rows_of_a_long_capture_are_bounded(starts: list[int], step: int) -> None:
    state = Permits().new_state(Connection(0), Knowledge())
    times = [start + n * step for start in starts for n in range(900)]
    state.track([flow(0, time_ns) for time_ns in times])
    (consumer,) = state.open_consumers()
    assert len(consumer._rows) <= 2 * limits.MAX_ROWS
    assert consumer.total.granted == consumer.total.flows == len(times)
    assert sum(row.flows for row in consumer.rows(2)[0]) == len(times)


def test_more_consumers_than_are_followed() -> None:
    permits = Permits()
    state = permits.new_state(Connection(0), Knowledge())
    more = limits.MAX_CONSUMERS + 7
    state.track([flow(0, None, consumer) for consumer in range(more)])
    assert len(permits.consumers) == limits.MAX_CONSUMERS
    assert permits.left_out == 7


def test_different_events_of_a_row_are_bounded_and_counted() -> None:
    row = Row(0, 0)
    for number in range(20):
        row.note(f"event {number}")
    assert len(row.moments) == 9
    assert row.moments["…"] == 12


# -- what is known of a consumer


def only(name: str) -> dict[str, Any]:
    permits = read(name)
    (consumer,) = permits.consumers.values()
    return consumer_records(consumer, 0, 100, 0)[0]


def test_a_consumer_that_ran_out_of_permits() -> None:
    record = only("permit-leak.pcap")
    assert (record["granted"], record["used"], record["permits"], record["unacked"]) == (20, 20, 0, 0)
    assert record["empty_ns"] == record["last_ns"] - 1795201159116100000 == 9_052_075_000
    assert record["quiet_ns"] == record["empty_ns"]
    assert record["how"] == "connection closed by client"


def test_a_consumer_whose_subscribe_was_not_captured() -> None:
    for consumer in ordered(read("snaplen96.pcap").consumers.values()):
        record, *rows = consumer_records(consumer, 0, 100, 0)
        assert not record["subscribe_seen"]
        assert record["subscription"] is record["topic"] is record["empty_ns"] is None
        assert record["granted"] == 1_000
        assert not any(each["exact"] for each in (record, *rows))


def test_a_refused_consumer_is_not_open() -> None:
    refused = [each for each in read("errors.pcap").consumers.values() if each.how == "SUBSCRIBE refused"]
    assert any("SUBSCRIBE refused: ConsumerBusy" in each.total.moments for each in refused)
    assert all(each.closed is not None for each in refused)


def test_frames_behind_a_close_are_of_no_consumer() -> None:
    permits = Permits()
    state = permits.new_state(Connection(0), Knowledge())
    names = {"topic": "t", "subscription": "s", "subType": 1}
    opening = build_frame(build_command("SUBSCRIBE", **names, consumer_id=0, request_id=1))
    closing = build_frame(build_command("CLOSE_CONSUMER", consumer_id=0, request_id=2))
    stream = FrameStream(Connection(0), True)
    events = [*stream.feed(opening, 1), flow(0, 2), *stream.feed(closing, 3), flow(0, 4)]
    state.track(events)
    (consumer,) = permits.consumers.values()
    assert (consumer.total.flows, consumer.closed, consumer.how) == (1, 3, "closed by client")
    state.track(list(chain(stream.feed(opening, 5), [flow(0, 6)])))
    assert (consumer.total.flows, consumer.closed, consumer.total.permits) == (2, None, 1)


def subscribe(time_ns: int) -> Frame:
    names = {"topic": "t", "subscription": "s", "subType": 0}
    raw = build_frame(build_command("SUBSCRIBE", **names, consumer_id=0, request_id=1))
    (event,) = FrameStream(Connection(0), True).feed(raw, time_ns)
    assert isinstance(event, Frame)
    return event


@pytest.mark.parametrize(
    ("times", "end", "wanted"),
    [
        ([3 * SECOND], 4 * SECOND, ["waited up to 3.00 s without permits for a FLOW"]),
        ([1, *[2] * 24], 60 * SECOND, ["permits grew to 25: 25 times the first FLOW"]),
        ([1, *[2] * 19], 60 * SECOND, []),
        ([], 2 * SECOND, ["no permits in its last 2.00 s: no FLOW came, so nothing is delivered"]),
        ([], SECOND - 1, []),
    ],
)
def test_what_is_remarkable(times: list[int], end: int, wanted: list[str]) -> None:
    permits = Permits()
    state = permits.new_state(Connection(0), Knowledge())
    state.track([subscribe(0), *(flow(0, time_ns) for time_ns in times)])
    (consumer,) = permits.consumers.values()
    record, *rows = consumer_records(consumer, end, 100, 0)
    assert list(warnings(record)) == wanted
    assert record["is_open"]
    said = [text for row in rows for text in describe_row(row)]
    assert said[0] == "SUBSCRIBE Exclusive"
    assert ("FLOW +1 after 3.00 s without permits" in said) == (times == [3 * SECOND])


def test_subscribing_again_changes_nothing() -> None:
    permits = Permits()
    state = permits.new_state(Connection(0), Knowledge())
    state.track([subscribe(0), flow(0, 1), subscribe(2)])
    (consumer,) = permits.consumers.values()
    assert consumer.ledger.permits == 1
    assert consumer.total.moments == {"SUBSCRIBE Exclusive": 1, "SUBSCRIBE": 1}


def test_what_is_remarkable_in_a_sample() -> None:
    permits = read("java-nack-dlq.pcap")
    assert not any(any(warnings(consumer_records(each, 0, 9, 0)[0])) for each in permits.consumers.values())
    (warning,) = warnings(only("permit-leak.pcap"))
    assert warning.endswith("no FLOW came, so nothing is delivered; all is acknowledged")
