"""A connection goes on in another process only from where it really stood."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from segments import Tcp, added, build, closed, conversation, raws

from pulsarctl_wire.capture import halves
from pulsarctl_wire.capture.handover import (
    FRESH,
    IDLE,
    STEP,
    Handover,
    SyncPoint,
    agrees,
    halves_of,
    hand_over,
    sync_point,
    take_over,
)
from pulsarctl_wire.capture.packets import Segment
from pulsarctl_wire.capture.reassembly import Reassembler
from pulsarctl_wire.wire.frame import Event
from pulsarctl_wire.wire.session.knowledge import Knowledge
from pulsarctl_wire.wire.session.partial_state import KnownState

FLOW = build("FLOW", consumer_id=2, messagePermits=1)
MESSAGE = build("ACTIVE_CONSUMER_CHANGE", consumer_id=2, is_active=True)


def following() -> Reassembler:
    return Reassembler(Knowledge(join_chunks=False, schemas=False), new_state=KnownState)


def feed(into: Reassembler, segments: Iterable[Segment], first: int = 1) -> list[Event]:
    return [
        event for number, each in enumerate(segments, first) for event in added(into, each, number, number)
    ]


def connection(into: Reassembler, tcp: Tcp) -> halves.Tcp:
    found = into.connection(tcp.segment(True, 0)[0])
    assert found is not None
    return found


def stand(tcp: Tcp, *segments: Segment) -> tuple[Reassembler, SyncPoint | None]:
    """A process that saw just these segments, behind four others, and where the connection stands for it."""
    into = following()
    feed(into, segments, 5)
    return into, sync_point(connection(into, tcp), patient=False)


def kinds(found: SyncPoint | None) -> list[str]:
    assert found is not None
    return sorted(half.kind for half in found.halves)


# ---- Where it stands ----


def test_a_connection_that_was_just_opened() -> None:
    tcp = Tcp()
    assert kinds(stand(tcp, tcp.syn())[1]) == [FRESH, FRESH]


def test_a_connection_in_step_and_one_with_a_silent_side() -> None:
    tcp = Tcp()
    both = [tcp.send(True, FLOW), tcp.send(False, MESSAGE)]
    assert kinds(stand(tcp, *both)[1]) == [STEP, STEP]
    into, found = stand(tcp, both[0])
    assert kinds(found) == [IDLE, STEP]
    assert sync_point(connection(into, tcp), patient=True) is None


def test_where_nobody_stands() -> None:
    tcp = Tcp()
    flow, change = tcp.send(True, FLOW), tcp.send(False, MESSAGE)
    later = tcp.segment(True, 500, FLOW)
    for segments in (
        [tcp.segment(True, 0)],  # nothing was said
        [tcp.send(True, build("PING"))],  # which side is the broker?
        [flow, change, later],  # a segment waits for others
        [flow, change, tcp.fin(True)],
        [flow, change, tcp.rst(True)],
        [tcp.send(True, b"\\xff" * 30), change],  # out of step
    ):
        assert stand(tcp, *segments)[1] is None


# ---- Whether it really stood there ----


def guessed() -> tuple[Tcp, list[Segment], SyncPoint, Handover]:
    """A connection in step, guessed by one who began in its middle: what that saw, and what it found."""
    tcp = Tcp()
    tcp.sent.update({True: 100, False: 200})
    segments = [tcp.send(True, FLOW + FLOW[:5]), tcp.send(False, MESSAGE)]
    into, found = stand(tcp, *segments)
    assert found is not None
    return tcp, segments, found, pickle.loads(pickle.dumps(hand_over(connection(into, tcp))))


def past(rest: bytes = b"") -> list[Segment]:
    """What came before, up to where `guessed` begins; the broker's bytes end with `rest`."""
    tcp = Tcp()
    connect = build("CONNECT", client_version="c" * 86)
    connected = build("CONNECTED", server_version="b" * (184 - len(rest))) + rest
    assert (len(connect), len(connected)) == (100, 200)
    return [tcp.syn(), tcp.syn_ack(), tcp.send(True, connect), tcp.send(False, connected)]


def test_a_true_guess_agrees() -> None:
    tcp, segments, guess, state = guessed()
    truth = following()
    feed(truth, [*past(), *segments])
    assert agrees(guess, connection(truth, tcp), state)


DIFFERENCES: dict[str, Callable[[Tcp, list[Segment]], list[Segment]]] = {
    "a byte more": lambda tcp, seen: [*seen, tcp.send(True, FLOW[5:6])],
    "a frame more": lambda tcp, seen: [*seen, tcp.send(False, MESSAGE)],
    "out of step": lambda tcp, seen: [tcp.segment(True, 90, b"\\xff" * 10), *seen],
    "a gap before": lambda tcp, seen: [tcp.segment(True, 400, FLOW), *seen],
    "a segment that waits": lambda tcp, seen: [*seen, tcp.segment(True, 500, FLOW)],
    "bytes acknowledged that were not seen": lambda tcp, seen: [
        *seen,
        tcp.segment(False, tcp.sent[False], acknowledged=999),
    ],
    "one side ended": lambda tcp, seen: [*seen, tcp.fin(True)],
    "a FIN that waits for more": lambda tcp, seen: [*seen, tcp.segment(False, 5_000, flags=0x11)],
    "ended": lambda tcp, seen: [*seen, tcp.rst(True)],
    "nothing came before": lambda tcp, seen: [tcp.segment(True, 90, b"\\xff" * 10)],
}


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_a_guess_that_is_not_true_does_not_agree(difference: str) -> None:
    tcp, segments, guess, state = guessed()
    truth = following()
    feed(truth, [*past(), *DIFFERENCES[difference](tcp, segments)])
    assert not agrees(guess, connection(truth, tcp), state)


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": FRESH},
        {"started": False},
        {"next": 1},
        {"sources": ((9, 9, 9),)},
    ],
)
@pytest.mark.parametrize("which", [0, 1])
def test_any_other_sync_point_of_a_half_does_not_agree(wrong: dict[str, Any], which: int) -> None:
    tcp, segments, guess, state = guessed()
    truth = following()
    feed(truth, [*past(), *segments])
    halves = list(guess.halves)
    halves[which] = halves[which]._replace(**wrong)
    assert not agrees(guess._replace(halves=(halves[0], halves[1])), connection(truth, tcp), state)
    assert not agrees(guess._replace(to_broker=not guess.to_broker), connection(truth, tcp), state)


def test_a_silent_half_that_was_inside_a_frame() -> None:
    """If it woke up with what looks like a frame, that was the middle of another one."""
    tcp = Tcp()
    tcp.sent.update({True: 100, False: 200})
    seen = [tcp.send(True, FLOW), tcp.segment(False, 200)]
    into, guess = stand(tcp, *seen)
    assert guess is not None
    silent = hand_over(connection(into, tcp))
    feed(into, [tcp.send(False, MESSAGE)], 7)
    woken = hand_over(connection(into, tcp))
    for rest, agrees_when_woken in ((b"", True), (MESSAGE[:7], False)):
        truth = following()
        feed(truth, [*past(rest), *seen])
        assert agrees(guess, connection(truth, tcp), silent)
        assert agrees(guess, connection(truth, tcp), woken) is agrees_when_woken


# ---- Going on ----


@pytest.mark.parametrize("cut", range(2, 20, 3))
def test_what_goes_on_gives_what_one_would_have_given(cut: int) -> None:
    """Handed over in the middle of a capture, with offsets and sequence numbers close to their end."""
    tcp = Tcp(isn=(2**32 - 200, 2**32 - 300))
    segments = [*tcp.handshake(), *tcp.say(conversation([b"x" * 40] * 6), most=50), *tcp.goodbye()]
    alone = following()
    expected = [*feed(alone, segments), *closed(alone)]
    truth, part = following(), following()
    events = feed(truth, segments[:cut])
    for at in range(cut, len(segments)):
        number = at + 1
        feed(part, segments[at : at + 1], number)
        events += feed(truth, segments[at : at + 1], number)
        mine = connection(part, tcp)
        guess = sync_point(mine, patient=False)
        if guess is not None and agrees(guess, connection(truth, tcp), hand_over(mine)):
            break
    assert guess is not None
    events += feed(part, segments[at + 1 :], at + 2)
    state = pickle.loads(pickle.dumps(hand_over(connection(part, tcp))))
    true = connection(truth, tcp)
    assert agrees(guess, true, state)
    before = [half.stream.position for half in halves_of(true)]
    take_over(true, guess, state)
    assert [half.stream.position for half in halves_of(true)] >= before
    events += closed(truth)
    assert [raws(events, side) for side in (True, False)] == [raws(expected, side) for side in (True, False)]
    assert true.ended


def test_of_two_ends_the_one_with_the_earlier_time_counts() -> None:
    tcp, into = Tcp(), following()
    feed(into, [*tcp.handshake(), tcp.fin(True)])
    whole = connection(into, tcp)
    first = halves_of(whole)[0]
    mine = halves.life_state(whole, first)
    assert (mine.end_ns, mine.by_second) == (4, False)
    for end_ns, by_second in ((5, False), (3, True)):
        halves.extend_life(whole, first, mine._replace(end_ns=end_ns, by_second=True))
        assert halves.life_state(whole, first).by_second is by_second
