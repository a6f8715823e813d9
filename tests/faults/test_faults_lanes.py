"""Faults in force: which frames they meet, how they are counted, what seeds promise."""

from typing import Any

import pytest
from faults.traffic import (
    any_fault,
    any_frames,
    command,
    decoded,
    lane,
    passed,
    receipt,
    send,
    sent,
    through,
    units,
)
from hypothesis import given
from hypothesis import strategies as st

from pulsarctl_wire.errors import SettingsError
from pulsarctl_wire.faults import FAULTS
from pulsarctl_wire.faults.base import Action, Close, Fault, Note, Send, Wake
from pulsarctl_wire.faults.lanes import FaultLane, Faults
from pulsarctl_wire.faults.text import parse_fault
from pulsarctl_wire.wire.frame import Frame

PING = command("PING")
LOOKUP = command("LOOKUP", topic="persistent://public/default/t", request_id=3)
SHAPING = tuple(kind for kind in FAULTS if kind.name in ("delay", "bandwidth", "slice"))
KEEPING = tuple(kind for kind in FAULTS if kind.name in ("delay", "bandwidth", "slice", "reorder"))


def run(lane: FaultLane, units: list[Any]) -> list[Action]:
    """All that comes of units a quarter of a second apart."""
    actions: list[Action] = []
    now = 0.0
    for unit in units:
        raw, frame = (unit.raw, unit) if isinstance(unit, Frame) else (unit, None)
        actions += lane.take(raw, frame, now)
        now += 0.25
    return actions + lane.flush(now)


def lane_of(faults: list[Fault], *, connection: int = 0, to_broker: bool = True, seed: int = 7) -> FaultLane:
    force = Faults(seed)
    for fault in faults:
        force.add(fault)
    return FaultLane(force, connection, to_broker)


def way(units: list[Any]) -> bool:
    return all(unit.to_broker for unit in units if isinstance(unit, Frame))


@given(units)
def test_without_faults_the_very_bytes_go_on_at_once(units: list[Any]) -> None:
    quiet = lane_of([])
    for now, unit in enumerate(units):
        raw, frame = (unit.raw, unit) if isinstance(unit, Frame) else (unit, None)
        assert quiet.take(raw, frame, now) == [Send(raw, now)]


@given(st.lists(any_fault(), max_size=4), units)
def test_whatever_the_faults_the_same_seed_gives_the_same_actions(
    faults: list[Fault], units: list[Any]
) -> None:
    first, second = (run(lane_of(faults, to_broker=way(units)), units) for _ in range(2))
    assert first == second
    for action in first:
        assert not isinstance(action, Send) or action.data


@given(st.lists(any_fault(SHAPING), max_size=4), units)
def test_faults_of_pace_change_no_byte(faults: list[Fault], units: list[Any]) -> None:
    expected = b"".join(unit.raw if isinstance(unit, Frame) else unit for unit in units)
    assert sent(run(lane_of(faults, to_broker=way(units)), units)) == expected


@given(st.lists(any_fault(KEEPING), max_size=4), any_frames)
def test_faults_of_order_and_pace_lose_nothing(faults: list[Fault], frames: list[Frame]) -> None:
    out = sent(run(lane_of(faults, to_broker=way(frames)), frames))
    assert sorted(out) == sorted(b"".join(frame.raw for frame in frames))


@given(st.lists(any_fault(), max_size=4), st.lists(st.binary(min_size=1), max_size=5))
def test_faults_that_select_frames_leave_other_bytes_alone(faults: list[Fault], chunks: list[bytes]) -> None:
    picky = [fault for fault in faults if fault.has_selection or not fault.can_hit_bytes]
    assert run(lane_of(picky), chunks) == [Send(chunk, 0.25 * at) for at, chunk in enumerate(chunks)]


@pytest.mark.parametrize(
    ("parameters", "hit"),
    [
        ("nth=2", [2]),
        ("every=2", [2, 4, 6]),
        ("every=2 times=2", [2, 4]),
        ("times=2", [1, 2]),
        ("nth=2 times=1", [2]),
        ("", [1, 2, 3, 4, 5, 6]),
    ],
)
def test_which_matches_are_hit(parameters: str, hit: list[int]) -> None:
    one = lane(f"drop command=SEND {parameters}")
    frames = [frame for number in range(1, 7) for frame in (PING, send(number))]
    lost = [not on for on in through(one, *frames)]
    assert not any(lost[::2])  # PING matches nothing
    assert [number for number, gone in enumerate(lost[1::2], 1) if gone] == hit


def test_matches_and_hits_are_listed() -> None:
    faults = Faults(1)
    number = faults.add(parse_fault("drop command=SEND every=2 per=connection"))
    for connection in range(2):
        through(FaultLane(faults, connection, True), send(1), PING, send(2), send(3))
    (listed,) = faults.list_active()
    assert (listed.number, listed.matched, listed.hits) == (number, 6, 2)
    assert listed.fault == parse_fault("drop command=SEND every=2 per=connection")


@pytest.mark.parametrize(("per", "second"), [("proxy", True), ("connection", False)])
def test_counts_are_of_the_proxy_or_of_each_connection(per: str, second: bool) -> None:
    faults = Faults(1)
    faults.add(parse_fault(f"drop command=SEND nth=1 per={per}"))
    assert through(FaultLane(faults, 0, True), send(1), send(2)) == [False, True]
    assert through(FaultLane(faults, 1, True), send(1)) == [second]


@pytest.mark.parametrize(
    ("direction", "to_broker", "to_client"),
    [("both", False, False), ("to-broker", False, True), ("to-client", True, False)],
)
def test_a_direction(direction: str, to_broker: bool, to_client: bool) -> None:
    for way, goes_on in ((True, to_broker), (False, to_client)):
        assert through(lane(f"drop command=PING direction={direction}", to_broker=way), PING) == [goes_on]


def test_commands_are_patterns_in_any_case() -> None:
    one = lane("drop command=send_*,p?ng", to_broker=False)
    assert through(one, receipt(1), PING, send(1)) == [False, False, True]


def test_probability_is_left_to_the_seed() -> None:
    frames = [send(number) for number in range(200)]

    def lost(seed: int, connection: int) -> list[bool]:
        fault = parse_fault("drop probability=0.5")
        return through(lane_of([fault], seed=seed, connection=connection), *frames)

    assert lost(1, 0) == lost(1, 0)
    assert len({tuple(lost(1, 0)), tuple(lost(2, 0)), tuple(lost(1, 1))}) == 3
    assert 60 < sum(lost(1, 0)) < 140
    assert all(through(lane("drop probability=0"), *frames))
    assert not any(through(lane("drop command=* probability=1"), *frames))


def test_traffic_of_others_changes_nothing() -> None:
    texts = ("drop probability=0.5", "delay jitter=100ms", "flip command=SEND probability=0.5")
    frames = [send(number) for number in range(20)]
    alone = [passed(one, frame) for one in [lane(*texts)] for frame in frames]
    faults = Faults(7)
    for text in texts:
        faults.add(parse_fault(text))
    first, second = FaultLane(faults, 0, True), FaultLane(faults, 1, True)
    mixed = []
    for frame in frames:
        mixed.append(passed(first, frame))
        passed(second, frame)
    assert mixed == alone


def test_what_one_fault_sends_goes_through_the_next() -> None:
    both = lane("duplicate command=SEND copies=2", "drop command=SEND nth=2")
    assert [type(action) for action in both.take(send(1).raw, send(1), 0.0)] == [Note, Send, Note, Send]


def test_faults_that_cut_frames_come_last() -> None:
    frame = send(1)
    assert passed(lane("slice size=5", "drop command=SEND nth=1"), frame) == []
    assert len(passed(lane("slice size=5", "delay time=1s"), frame)) > 3


def test_faults_come_and_go_while_frames_pass() -> None:
    faults = Faults(1)
    one = FaultLane(faults, 0, True)
    assert not faults
    assert through(one, PING) == [True]
    first = faults.add(parse_fault("drop command=PING"))
    assert faults
    assert through(one, PING, send(1)) == [False, True]
    second = faults.add(parse_fault("drop command=SEND"))
    assert through(one, PING, send(1)) == [False, False]
    faults.remove(first)
    assert through(one, PING, send(1)) == [True, False]
    faults.clear()
    assert through(one, PING, send(1)) == [True, True]
    assert faults.add(parse_fault("drop command=PING")) not in (first, second)
    with pytest.raises(KeyError):
        faults.remove(first)


def test_a_fault_keeps_its_count_when_others_change() -> None:
    faults = Faults(1)
    faults.add(parse_fault("drop command=SEND nth=2 per=connection"))
    one = FaultLane(faults, 0, True)
    assert through(one, send(1)) == [True]
    faults.remove(faults.add(parse_fault("delay")))
    assert through(one, send(2), send(3)) == [False, True]


def test_what_a_removed_fault_holds_goes_on() -> None:
    faults = Faults(1)
    number = faults.add(parse_fault("reorder command=SEND behind=5"))
    faults.add(parse_fault("delay time=1s"))
    one = FaultLane(faults, 0, True)
    assert passed(one, send(1)) == [Wake(1.0)]
    faults.remove(number)
    assert passed(one, PING) == [Send(send(1).raw, 1.0), Send(PING.raw, 1.0)]


def test_after_the_end_nothing_more_is_done() -> None:
    one = lane("delay time=0s", "disconnect command=SEND", "duplicate command=PING")
    assert passed(one, PING) == [Send(PING.raw, 0.0)] * 2
    assert passed(one, send(1)) == [Close()]
    assert one.take(PING.raw, PING, 1.0) == []
    assert one.flush(2.0) == []


def test_nothing_passes_behind_an_end() -> None:
    both = lane("duplicate command=SEND", "disconnect command=SEND nth=1", "slice size=3")
    assert passed(both, send(1)) == [Close()]


def test_notes_tell_frames_apart() -> None:
    texts = ("drop command=SEND_RECEIPT,MESSAGE,LOOKUP", "delay command=PING", "delay", "blackhole nth=2")
    one = lane(*texts)
    message = command("MESSAGE", consumer_id=2, message_id={"ledgerId": 5, "entryId": 9})
    notes = [
        action.text
        for frame in (receipt(5), LOOKUP, message, PING, PING)
        for action in one.take(frame.raw, frame, 0.0)
        if isinstance(action, Note)
    ]
    assert notes == [
        "#1 drop: SEND_RECEIPT producer 1 sequence 5",
        "#1 drop: LOOKUP request 3 topic persistent://public/default/t",
        "#1 drop: MESSAGE consumer 2 message 5:9",
        "#2 delay: PING",
        "#2 delay: PING",
        "#4 blackhole: PING",
    ]


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (
            decoded(LOOKUP.raw.replace(b"public", b"pub\xffic")),
            r"request 3 topic persistent://pub\xffic/default/t",
        ),
        (command("LOOKUP", topic="t" * 9999, request_id=3), "request 3 topic " + "t" * 200),
    ],
    ids=["bytes", "long"],
)
def test_a_note_is_short_and_nothing_but_text(frame: Frame, said: str) -> None:
    assert lane("drop command=LOOKUP").take(frame.raw, frame, 0.0) == [Note(f"#1 drop: LOOKUP {said}")]


def test_a_tester_selects_by_topic_and_filter() -> None:
    asked: list[Fault] = []

    def tester(fault: Fault) -> Any:
        asked.append(fault)
        return lambda frame: frame.topic == "wanted"

    faults = Faults(1, tester)
    fault = parse_fault("drop topic=wanted command=SEND")
    faults.add(fault)
    assert asked == [fault]
    one = FaultLane(faults, 0, True)
    wanted, other, ping = send(1), send(2), command("PING")
    wanted.topic = ping.topic = "wanted"
    assert through(one, wanted, other, ping) == [False, True, True]


@pytest.mark.parametrize("text", ["drop topic=t", "drop filter=true"])
def test_without_a_tester_topics_and_filters_are_refused(text: str) -> None:
    faults = Faults(1)
    with pytest.raises(SettingsError, match="drop: topic and filter"):
        faults.add(parse_fault(text))
    assert not faults


def test_what_a_tester_refuses_is_not_in_force() -> None:
    def tester(fault: Fault) -> Any:
        raise SettingsError("no such field")

    faults = Faults(1, tester)
    with pytest.raises(SettingsError, match="no such field"):
        faults.add(parse_fault("drop filter=x"))
    assert not faults
    assert faults.list_active() == []
