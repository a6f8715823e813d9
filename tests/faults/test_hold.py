"""Breakpoints: frames that wait for a decision."""

from collections.abc import Sequence

from faults.traffic import lane, receipt, send
from hypothesis import given
from hypothesis import strategies as st

from pulsarctl_wire.faults import hold
from pulsarctl_wire.faults.base import Decision, Note, Send, Wake
from pulsarctl_wire.faults.lanes import FaultLane
from pulsarctl_wire.faults.text import parse_fault
from pulsarctl_wire.wire.frame import Frame


def feed(fault_lane: FaultLane, frame: Frame, now: float) -> list[bytes]:
    return sent(fault_lane.take(frame.raw, frame, now))


def sent(actions: Sequence[object]) -> list[bytes]:
    return [action.data for action in actions if isinstance(action, Send) and not action.back]


def notes(actions: Sequence[object]) -> list[str]:
    return [action.text for action in actions if isinstance(action, Note)]


def test_a_frame_waits_with_all_that_follows_it() -> None:
    fault_lane = lane("hold command=SEND nth=2 wait=10s")
    first, second, third = send(1), send(2), send(3)
    assert feed(fault_lane, first, 0.0) == [first.raw]
    actions = fault_lane.take(second.raw, second, 1.0)
    assert sent(actions) == []
    assert [action for action in actions if isinstance(action, Wake)] == [Wake(11.0)]
    assert feed(fault_lane, third, 2.0) == []
    (held,) = fault_lane._faults.held.list()
    assert held.unit.frame is second
    fault_lane._faults.held.decide(held.number, None)
    assert fault_lane._faults.held.list() == []
    assert sent(fault_lane.take(b"", None, 3.0)) == [second.raw, third.raw]
    assert feed(fault_lane, first, 4.0) == [first.raw]


def test_it_goes_on_after_a_time() -> None:
    fault_lane = lane("hold command=SEND wait=2s")
    frame = send(1)
    feed(fault_lane, frame, 0.0)
    assert sent(fault_lane.take(b"", None, 1.9)) == []
    actions = fault_lane.take(b"", None, 2.0)
    assert sent(actions) == [frame.raw]
    assert notes(actions) == ["hold: SEND has waited for 2 s and goes on"]
    assert fault_lane._faults.held.list() == []


def test_changed_dropped_repeated_answered() -> None:
    fault_lane = lane("hold command=SEND")
    other, answer = send(7, b"changed").raw, receipt(1).raw
    cases = {
        Decision((other,)): ([other], "hold: SEND changed"),
        Decision(()): ([], "hold: SEND dropped"),
        Decision((send(1).raw, send(1).raw)): ([send(1).raw] * 2, "hold: SEND sent 2 times"),
        Decision((), (answer,)): ([], "hold: SEND dropped, answered in the peer's place"),
    }
    for decision, (expected, note) in cases.items():
        feed(fault_lane, send(1), 0.0)
        (held,) = fault_lane._faults.held.list()
        fault_lane._faults.held.decide(held.number, decision)
        actions = fault_lane.take(b"", None, 1.0)
        assert sent(actions) == expected
        assert notes(actions) == [note]
        back = [action.data for action in actions if isinstance(action, Send) and action.back]
        assert back == list(decision.answers)


def test_a_removed_fault_holds_nothing() -> None:
    fault_lane = lane("hold command=SEND")
    frame = send(1)
    feed(fault_lane, frame, 0.0)
    fault_lane._faults.clear()
    assert sent(fault_lane.take(b"", None, 1.0)) == [frame.raw]
    assert fault_lane._faults.held.list() == []


def test_the_end_of_a_connection_forgets_what_is_held() -> None:
    fault_lane = lane("hold command=SEND")
    feed(fault_lane, send(1), 0.0)
    fault_lane.end()
    assert fault_lane._faults.held.list() == []


def test_what_waits_is_bounded() -> None:
    fault_lane = lane("hold command=SEND nth=1")
    payload = bytes(hold.MAX_HELD_BYTES // 3)
    frames = [send(number, payload) for number in range(4)]
    out = [feed(fault_lane, frame, 0.0) for frame in frames]
    assert out == [[], [], [frame.raw for frame in frames[:3]], [frames[3].raw]]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=12))
def test_nothing_is_lost_or_overtaken(steps: list[tuple[bool, int]]) -> None:
    fault_lane = lane("hold command=SEND every=2 wait=2m")
    expected, out = [], []
    for number, (decides, index) in enumerate(steps):
        frame = send(number)
        expected.append(frame.raw)
        out += feed(fault_lane, frame, float(number))
        held = fault_lane._faults.held.list()
        if decides and held:
            fault_lane._faults.held.decide(held[index % len(held)].number, None)
            out += sent(fault_lane.take(b"", None, float(number)))
    out += sent(fault_lane.flush(100.0))
    assert out == expected


def test_its_text() -> None:
    assert parse_fault("hold command=SEND wait=5s").wait == 5.0  # type: ignore[attr-defined]
