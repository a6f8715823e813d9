"""Each fault: what it makes of a frame."""

import random
import struct
from typing import Any

import pytest
from faults.traffic import answered, command, decoded, lane, passed, send, sent, through
from hypothesis import given
from hypothesis import strategies as st

from pulsarctl_wire.errors import SettingsError
from pulsarctl_wire.faults import FAULTS
from pulsarctl_wire.faults.base import (
    Action,
    Blackhole,
    Close,
    Fault,
    HeldFrames,
    LaneContext,
    Note,
    Reset,
    Send,
    Unit,
    Wake,
)
from pulsarctl_wire.faults.text import parse_fault
from pulsarctl_wire.wire.commands import ERROR_FIELDS, FAILED, NAMES, NUMBERS, REQUESTS, build_command
from pulsarctl_wire.wire.frame import Frame, build_frame
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, BrokerEntryMetadata, MessageMetadata

PING = command("PING")


def times(actions: list[Action]) -> list[float]:
    return [action.at for action in actions if isinstance(action, Send)]


def parts(actions: list[Action]) -> list[int]:
    return [len(action.data) for action in actions if isinstance(action, Send)]


# -- pace


def test_delay() -> None:
    assert passed(lane("delay time=250ms"), PING, 2.0) == [Send(PING.raw, 2.25)]
    assert lane("delay time=250ms").take(b"opaque", None, 2.0) == [Send(b"opaque", 2.25)]


def test_jitter_is_around_the_delay_and_never_in_the_past() -> None:
    one = lane("delay time=1s jitter=500ms")
    late = [time for _ in range(300) for time in times(passed(one, PING))]
    assert 0.5 <= min(late) < 0.6
    assert 1.4 < max(late) <= 1.5
    one = lane("delay time=100ms jitter=1s")
    assert min(time for _ in range(300) for time in times(passed(one, PING, 5.0))) == 5.0


def test_bandwidth_carries_one_byte_after_the_other() -> None:
    one = lane("bandwidth rate=1000/s")
    first = passed(one, send(1, b"x" * 430), 0.0)
    size = len(send(1, b"x" * 430).raw)
    assert parts(first) == [100, 100, 100, 100, size - 400]
    assert times(first) == pytest.approx([0.1, 0.2, 0.3, 0.4, size / 1000])
    assert sent(first) == send(1, b"x" * 430).raw
    behind = passed(one, PING, 0.2)  # the line is not free yet
    assert times(behind) == pytest.approx([(size + len(PING.raw)) / 1000])
    later = passed(one, PING, 10.0)
    assert times(later) == pytest.approx([10.0 + len(PING.raw) / 1000])


def test_slices() -> None:
    frame = send(1, b"x" * 20)
    even = passed(lane("slice size=16 pause=500ms"), frame, 1.0)
    assert sent(even) == frame.raw
    assert set(parts(even)[:-1]) == {16}
    assert times(even) == [1.0 + 0.5 * at for at in range(len(even))]


def test_slices_of_different_sizes() -> None:
    frame = send(1, b"x" * 2000)
    varied = parts(passed(lane("slice size=10 variation=4"), frame))
    assert set(varied[:-1]) == set(range(6, 15))
    assert sum(varied) == len(frame.raw)


def test_a_second_frame_follows_the_slices_of_the_first() -> None:
    one = lane("slice size=8 pause=1s")
    first = times(passed(one, PING, 0.0))
    assert times(passed(one, PING, 0.0))[0] == first[-1] == 1.0


@pytest.mark.parametrize("text", ["slice size=1", "bandwidth rate=1"])
def test_a_frame_comes_in_a_bounded_number_of_parts(text: str) -> None:
    frame = send(1, b"x" * 1_000_000)
    actions = passed(lane(text), frame)
    assert 4000 < len(actions) <= 4096
    assert sent(actions) == frame.raw


# -- the end


@pytest.mark.parametrize(("name", "end"), [("disconnect", Close()), ("reset", Reset())])
def test_an_end_instead_of_the_frame(name: str, end: Action) -> None:
    frame = send(1)
    assert passed(lane(name), frame) == [end]
    assert passed(lane(f"{name} bytes=10"), frame, 1.0) == [Send(frame.raw[:10], 1.0), end]
    assert passed(lane(f"{name} bytes=10KB"), frame, 1.0) == [Send(frame.raw, 1.0), end]
    assert lane(name).take(b"opaque", None, 0.0) == [Note(f"#1 {name}: 6 bytes"), end]


def test_blackhole() -> None:
    one = lane("blackhole command=SEND nth=2")
    assert through(one, send(1), PING) == [True, True]
    assert passed(one, send(2)) == [Blackhole()]
    assert passed(one, PING) == []


# -- order


def test_drop_and_its_other_name() -> None:
    for name in ("drop", "swallow"):
        assert through(lane(f"{name} command=PING"), PING, send(1), PING) == [False, True, False]


def test_duplicate() -> None:
    assert passed(lane("duplicate copies=2"), PING, 1.0) == [Send(PING.raw, 1.0)] * 3


def test_copies_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulsarctl_wire.faults.order.MAX_COPIED_BYTES", 3 * len(PING.raw) + 1)
    assert passed(lane("duplicate copies=1000"), PING, 1.0) == [Send(PING.raw, 1.0)] * 4


def test_reorder_puts_a_frame_behind_the_next() -> None:
    one = lane("reorder command=SEND nth=1 behind=2")
    frames = [send(1), send(2), PING, send(3)]
    actions = [passed(one, frame, at / 8) for at, frame in enumerate(frames)]
    assert actions == [
        [Wake(1.0)],
        [Send(send(2).raw, 0.125)],
        [Send(PING.raw, 0.25), Send(send(1).raw, 0.0)],
        [Send(send(3).raw, 0.375)],
    ]


def test_reorder_of_all_swaps_pairs() -> None:
    one = lane("reorder")
    out = b"".join(sent(passed(one, send(number))) for number in range(1, 6))
    assert out + sent(one.flush(0.0)) == b"".join(send(number).raw for number in (2, 1, 4, 3, 5))


def test_reorder_waits_no_longer_than_it_may() -> None:
    one = lane("reorder command=SEND hold=500ms")
    assert passed(one, send(1), 1.0) == [Wake(1.5)]
    assert one.take(b"", None, 1.25) == []
    assert one.take(b"", None, 1.5) == [Send(send(1).raw, 1.0)]
    assert one.take(b"", None, 2.0) == []


def test_a_frame_that_comes_when_the_hold_is_over_does_not_overtake() -> None:
    one = lane("reorder command=SEND nth=1 hold=500ms")
    passed(one, send(1), 1.0)
    assert passed(one, send(2), 1.5) == [Send(send(1).raw, 1.0), Send(send(2).raw, 1.5)]


def test_no_held_frame_gets_between_bytes_that_are_none() -> None:
    one = lane("reorder command=SEND behind=3")
    passed(one, send(1))
    assert one.take(b"half of", None, 0.5) == [Send(send(1).raw, 0.0), Send(b"half of", 0.5)]


def test_the_end_of_a_direction_gives_out_what_is_held() -> None:
    one = lane("reorder command=SEND", "delay time=1s")
    passed(one, send(1))
    assert one.flush(0.5) == [Send(send(1).raw, 1.0)]
    assert one.flush(0.5) == []


# -- content


def differing(one: bytes, other: bytes) -> list[int]:
    """Numbers of the bits that differ."""
    assert len(one) == len(other)
    return [
        at * 8 + bit
        for at, (a, b) in enumerate(zip(one, other, strict=True))
        for bit in range(8)
        if (a ^ b) >> bit & 1
    ]


@given(
    st.sampled_from(["payload", "metadata", "checksum", "command"]), st.integers(1, 16), st.integers(0, 99)
)
def test_bits_flip_in_the_part_that_was_asked_for(where: str, bits: int, seed: int) -> None:
    frame = send(1)
    span = (8, 8 + frame.command_size) if where == "command" else getattr(frame.parts, where)
    text = f"flip where={where} bits={bits} command=SEND"
    flipped = differing(frame.raw, sent(passed(lane(text, seed=seed), frame)))
    assert len(flipped) == bits
    assert all(span[0] * 8 <= bit < span[1] * 8 for bit in flipped)


@pytest.mark.parametrize(
    ("text", "checksum"),
    [
        ("flip", "invalid"),
        ("flip crc=fix", "valid"),
        ("flip where=checksum", "invalid"),
    ],
)
def test_the_checksum_after_a_flip(text: str, checksum: str) -> None:
    assert decoded(sent(passed(lane(text, seed=3), send(1)))).checksum == checksum


def test_fixed_metadata_is_believed() -> None:
    raw = sent(passed(lane("flip where=metadata crc=fix bits=20"), send(1)))
    assert decoded(raw).checksum == "valid"
    assert raw != send(1).raw


def test_broker_entry_metadata_stays_out_of_it() -> None:
    base = build_command("MESSAGE", consumer_id=1, message_id={"ledgerId": 1, "entryId": 2})
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    entry = BrokerEntryMetadata(broker_timestamp=2000)
    frame = decoded(build_frame(base, metadata, b"x", broker_entry=entry), to_broker=False)
    fixed = decoded(sent(passed(lane("flip crc=fix", to_broker=False), frame)), to_broker=False)
    assert (fixed.checksum, fixed.payload != b"x") == ("valid", True)
    assert fixed.raw[: fixed.parts.checksum[0]] == frame.raw[: frame.parts.checksum[0]]


def test_what_has_no_such_part_is_no_match() -> None:
    bare, empty = send(1, checksum=False), send(2, b"")
    assert through(lane("flip where=checksum nth=1"), bare, PING, send(3)) == [True, True, False]
    assert through(lane("flip nth=1"), empty, PING, send(3)) == [True, True, False]
    assert through(lane("flip crc=fix"), bare) == [False]  # there is no checksum to put right


def test_more_bits_than_there_are() -> None:
    frame = send(1, b"\x00")
    assert decoded(sent(passed(lane("flip bits=1000"), frame))).payload == b"\xff"


EPOCHS: list[tuple[Frame, str]] = [
    (command("PRODUCER", topic="t", producer_id=1, request_id=2, epoch=5), "epoch"),
    (
        command(
            "SUBSCRIBE", topic="t", subscription="s", subType=0, consumer_id=1, request_id=2, consumer_epoch=5
        ),
        "consumer_epoch",
    ),
    (command("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1, consumer_epoch=5), "consumer_epoch"),
]


@pytest.mark.parametrize(("frame", "field"), EPOCHS, ids=lambda value: getattr(value, "command", ""))
def test_stale_epoch(frame: Frame, field: str) -> None:
    for by, left in ((1, 4), (5, 0), (9, 0)):
        stale = decoded(sent(passed(lane(f"stale-epoch by={by}"), frame)))
        assert getattr(stale.body, field) == left
        setattr(stale.body, field, 5)
        assert stale.body == frame.body


def test_stale_epoch_of_a_message_leaves_its_entry_alone() -> None:
    base = build_command(
        "MESSAGE", consumer_id=1, message_id={"ledgerId": 1, "entryId": 2}, consumer_epoch=300
    )
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    frame = decoded(build_frame(base, metadata, b"payload"), to_broker=False)
    stale = decoded(sent(passed(lane("stale-epoch by=299", to_broker=False), frame)), to_broker=False)
    assert stale.body.consumer_epoch == 1
    assert (stale.checksum, stale.payload, stale.metadata) == ("valid", b"payload", metadata)


def test_no_epoch_is_made_up() -> None:
    without = command("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1)
    lowest = command("PRODUCER", topic="t", producer_id=1, request_id=2, epoch=0)
    one = lane("stale-epoch nth=1")
    assert through(one, without, lowest, PING, EPOCHS[0][0]) == [True, True, True, False]


def test_what_was_changed_is_seen_changed_by_the_next_fault() -> None:
    one = lane("stale-epoch by=5", "stale-epoch nth=1")
    frame = EPOCHS[0][0]
    assert decoded(sent(passed(one, frame))).body.epoch == 0  # nothing is left for the second
    assert not any(
        isinstance(action, Note) and "#2" in action.text for action in one.take(frame.raw, frame, 0.0)
    )


def test_a_topic_outlives_a_change() -> None:
    frame = send(1)
    frame.topic = "t"
    (unit,) = parse_fault("flip").apply(
        Unit(frame.raw, frame, 0.0), LaneContext(random.Random(1), "", 0, HeldFrames())
    )
    assert isinstance(unit, Unit)
    assert unit.frame is not None
    assert (unit.frame.topic, unit.frame.raw) == ("t", unit.data)
    assert unit.data != frame.raw


def test_a_frame_that_was_made_unreadable_is_no_frame_for_the_next_fault() -> None:
    frame = command("PRODUCER", topic="t", producer_id=1, request_id=2)
    unreadable = 0
    for seed in range(40):
        out = sent(passed(lane("flip where=command", "drop command=PRODUCER", seed=seed), frame))
        unreadable += bool(out)  # else it is a PRODUCER still, with other fields
    assert 0 < unreadable < 40


# -- answers


def request(name: str) -> Frame:
    """A request with all its required fields, request id 9, and what makes it ask for an answer."""
    descriptor: Any = BaseCommand.DESCRIPTOR.fields_by_number[NUMBERS[name]].message_type
    fields: dict[str, Any] = {}
    for field in descriptor.fields:
        if field.is_required:
            fields[field.name] = (
                "t" if field.type == field.TYPE_STRING else 9 if field.name.endswith("_id") else 0
            )
            if field.message_type is not None:
                fields[field.name] = {"name": "s", "schema_data": b"", "type": 0}
    if name in ("ACK", "GET_SCHEMA"):
        fields["request_id"] = 9
    if name == "SEND":
        metadata = MessageMetadata(producer_name="p", sequence_id=9, publish_time=1)
        return decoded(build_frame(build_command(name, **fields), metadata, b"x"))
    return command(name, **fields)


ANSWERED = [NAMES[number] for number in REQUESTS] + ["SEND", "CONNECT", "AUTH_RESPONSE"]
OWN = {
    "SEND": "SEND_ERROR",
    "LOOKUP": "LOOKUP_RESPONSE",
    "PARTITIONED_METADATA": "PARTITIONED_METADATA_RESPONSE",
    "ACK": "ACK_RESPONSE",
    "CONSUMER_STATS": "CONSUMER_STATS_RESPONSE",
    "GET_SCHEMA": "GET_SCHEMA_RESPONSE",
    "GET_OR_CREATE_SCHEMA": "GET_OR_CREATE_SCHEMA_RESPONSE",
    "TC_CLIENT_CONNECT_REQUEST": "TC_CLIENT_CONNECT_RESPONSE",
    **{name: f"{name}_RESPONSE" for name in ANSWERED if "TXN" in name or name == "SCALABLE_TOPIC_SUBSCRIBE"},
    "SCALABLE_TOPIC_LOOKUP": "SCALABLE_TOPIC_UPDATE",
    "WATCH_SCALABLE_TOPICS": "WATCH_SCALABLE_TOPICS_UPDATE",
    "WATCH_TC_ASSIGNMENTS": "WATCH_TC_ASSIGNMENTS_UPDATE",
}
"""Requests that brokers refuse by a command of their own."""


@pytest.mark.parametrize("name", ANSWERED)
def test_an_answer_in_the_place_of_the_broker(name: str) -> None:
    one = lane(f"answer command={name} error=TopicNotFound 'message=not here'")
    answer, others = answered(one, request(name))
    assert answer.command == OWN.get(name, "ERROR")
    assert getattr(answer.body, ERROR_FIELDS[answer.type]) == 11
    text = "message" if "message" in answer.body.DESCRIPTOR.fields_by_name else "error_message"
    assert getattr(answer.body, text) == "not here"
    if answer.type in FAILED:
        assert answer.body.response == FAILED[answer.type]
    ids = {field.name: value for field, value in answer.body.ListFields() if field.name.endswith("_id")}
    if name in ("CONNECT", "AUTH_RESPONSE"):
        assert (ids, others) == ({"request_id": 2**64 - 1}, [Close()])
    else:
        assert others == []
        keys = {"SEND": {"producer_id", "sequence_id"}, "ACK": {"request_id", "consumer_id"}}
        assert ids.keys() == keys.get(name, {REQUESTS[NUMBERS[name]].key if name != "SEND" else ""})
        assert set(ids.values()) == {9}


def test_an_ack_that_asks_for_no_answer_goes_on() -> None:
    ack = command("ACK", consumer_id=1, ack_type=0)
    assert through(lane("answer command=ACK error=MetadataError nth=1"), ack, request("ACK")) == [True, False]


def test_a_request_without_the_ids_of_an_answer_goes_on() -> None:
    base = BaseCommand(type=BaseCommand.SEND)
    base.send.producer_id = 1  # and no sequence id
    raw = base.SerializePartialToString()
    frame = decoded(struct.pack(">II", 4 + len(raw), len(raw)) + raw)
    assert through(lane("answer command=SEND error=MetadataError"), frame) == [True]


def test_a_command_that_lacks_fields_can_be_stale() -> None:
    base = BaseCommand(type=BaseCommand.PRODUCER)
    base.producer.epoch = 5  # and no more
    raw = base.SerializePartialToString()
    frame = decoded(struct.pack(">II", 4 + len(raw), len(raw)) + raw)
    assert decoded(sent(passed(lane("stale-epoch"), frame))).body.epoch == 4


def test_only_what_can_be_answered_is() -> None:
    one = lane("answer command=FLOW,LOOKUP error=ServiceNotReady")
    assert through(one, command("FLOW", consumer_id=1, messagePermits=1), request("LOOKUP")) == [True, False]


def test_answers_are_for_requests_alone() -> None:
    closing = command("CLOSE_PRODUCER", producer_id=1, request_id=2**64 - 1)
    assert through(lane("answer command=CLOSE_PRODUCER error=MetadataError", to_broker=False), closing) == [
        True
    ]


@pytest.mark.parametrize(
    ("url", "field"),
    [("pulsar://proxy:6649", "brokerServiceUrl"), ("pulsar+ssl://proxy:6651", "brokerServiceUrlTls")],
)
@pytest.mark.parametrize("authoritative", [False, True])
def test_redirect_loop(url: str, field: str, authoritative: bool) -> None:
    lookup = command("LOOKUP", topic="t", request_id=9, authoritative=authoritative)
    for one in (lane("redirect-loop", url=url), lane(f"redirect-loop to={url}", url="pulsar://other")):
        answer, others = answered(one, lookup)
        assert others == []
        assert answer.base == build_command(
            "LOOKUP_RESPONSE", response=0, request_id=9, authoritative=authoritative, **{field: url}
        )


def test_redirect_loop_ends_after_so_many_times() -> None:
    lookup = request("LOOKUP")
    assert through(lane("redirect-loop times=2", url="pulsar://p"), lookup, lookup, lookup) == [
        False,
        False,
        True,
    ]


def test_redirect_loop_without_an_address_lets_lookups_pass() -> None:
    lookup = request("LOOKUP")
    first, second, third = lane("redirect-loop").take(lookup.raw, lookup, 0.0)
    assert first == Note("#1 redirect-loop: LOOKUP request 9 topic t")
    assert second == Note("redirect-loop: the address of the proxy is not known; give it as to=URL")
    assert third == Send(lookup.raw, 0.0)


# -- what is no fault


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("drop", "say which frames"),
        ("drop nth=1 every=2", "nth and every exclude each other"),
        ("flip command=PING", "not for PING; it applies to SEND, MESSAGE"),
        ("flip where=checksum crc=fix", "crc=fix would undo where=checksum"),
        ("slice size=4 variation=4", "variation=4 must be less than size=4"),
        (
            "stale-epoch command=SEND",
            "not for SEND; it applies to SUBSCRIBE, PRODUCER, MESSAGE, REDELIVER",
        ),
        ("answer error=TopicNotFound", "say which requests"),
        ("answer command=FLOW error=TopicNotFound", "not for FLOW; it applies to CONNECT, "),
        ("answer command=LOOKUP", "answer: error=: give one of UnknownError, "),
        (
            "answer command=LOOKUP error=TopicNotFond",
            "answer: error=TopicNotFond: did you mean TopicNotFound",
        ),
        ("answer command=LOOKUP error=TopicNotFound direction=both", "direction=both: give one of to-broker"),
        ("redirect-loop command=SEND", "not for SEND; it applies to LOOKUP"),
        ("redirect-loop to=http://x", "to=http://x is not a URL such as"),
        ("drop command=SEND_RECIPT", "no such command; did you mean SEND_RECEIPT"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said) as error:
        parse_fault(text)
    assert str(error.value).startswith(text.split()[0] + ": ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", FAULTS, ids=lambda kind: kind.name)
def test_a_fault_made_by_code_is_checked_as_well(kind: type[Fault]) -> None:
    for wrong in ({"probability": 1.5}, {"nth": 0}, {"times": "x"}, {"direction": "up"}, {"per": None}):
        with pytest.raises(SettingsError, match=f"{kind.name}: {next(iter(wrong))}="):
            kind(**wrong)


def test_names_are_told_apart() -> None:
    names = [name for kind in FAULTS for name in (kind.name, *kind.aliases)]
    assert len(set(names)) == len(names)
