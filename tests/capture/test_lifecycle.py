"""How connections went: opened, refused, closed or reset and by whom, and what was spoken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from segments import START_NS, Tcp, added, closed, conversation, decode, frames_of

from pulsarctl_wire.capture import reassembly
from pulsarctl_wire.capture.packets import ACK, FIN, RST, SYN, Segment
from pulsarctl_wire.capture.reassembly import Reassembler
from pulsarctl_wire.wire.frame import Frame, Gap, Malformed
from pulsarctl_wire.wire.session.ending import (
    SERVERS,
    Contents,
    EndedConnection,
    WithoutData,
    without_data_in_words,
)
from pulsarctl_wire.wire.session.knowledge import Knowledge

HELLO = b"\x16\x03\x01\x00\x40\x01" + bytes(63)
REQUEST = b"GET /metrics HTTP/1.1\r\nHost: broker\r\n\r\n"
TALK = conversation()


def listening() -> tuple[Reassembler, list[EndedConnection]]:
    told: list[EndedConnection] = []
    return Reassembler(Knowledge(), new_state=Contents, on_end=told.append), told


def endings(segments: Sequence[Segment]) -> list[EndedConnection]:
    into, told = listening()
    decode(segments, into)
    return told


def refusal(tcp: Tcp) -> Segment:
    """RST in answer to SYN: sequence number 0, and the SYN acknowledged."""
    return tcp.segment(False, -1 - tcp.isn[1], flags=RST | ACK)


def late_syn(tcp: Tcp) -> list[Segment]:
    """A conversation, and a SYN of another connection on the same addresses."""
    return [*tcp.handshake(), *tcp.say(TALK), Tcp(isn=(9_000, 1)).syn()]


def killed(tcp: Tcp) -> list[Segment]:
    """The client closes and goes; what the broker still says is answered by RST."""
    return [*tcp.handshake(), *tcp.say(TALK), tcp.fin(True), tcp.send(False, b""), tcp.rst(True)]


LIVES: dict[str, tuple[Callable[[Tcp], list[Segment]], dict[str, Any]]] = {
    "SYN sent 3 times, never answered": (
        lambda tcp: [tcp.syn()] * 3,
        {"end": "unanswered", "syns": 3, "protocol": None, "by_broker": None},
    ),
    "SYN sent once, never answered": (
        lambda tcp: [tcp.syn(), tcp.segment(True, 0, flags=RST)],
        {"end": "unanswered", "by_broker": None, "end_ns": None},
    ),
    "refused (reset by 10.0.0.2:6650)": (
        lambda tcp: [tcp.syn(), refusal(tcp)],
        {"end": "refused", "by_broker": True, "protocol": None, "end_ns": START_NS + 2000},
    ),
    "closed by client": (
        lambda tcp: tcp.whole(TALK),
        {"end": "closed", "by_broker": False, "protocol": "Pulsar", "joined": False, "both": True},
    ),
    "closed by broker": (
        lambda tcp: [*tcp.handshake(), tcp.send(True, HELLO), tcp.fin(False), tcp.fin(True)],
        {"by_broker": True, "protocol": "TLS", "sizes": (0, len(HELLO)), "end_ns": START_NS + 5000},
    ),
    "closed by broker, but not by client": (
        lambda tcp: [*tcp.handshake(), tcp.send(True, REQUEST), tcp.fin(False)],
        {"end": "closed", "protocol": "HTTP", "both": False},
    ),
    "reset by broker": (
        lambda tcp: [*tcp.handshake(), *tcp.say(TALK), tcp.rst(False)],
        {"end": "reset", "by_broker": True, "protocol": "Pulsar"},
    ),
    "reset by client": (
        lambda tcp: [*tcp.handshake(), tcp.rst(True)],
        {"end": "reset", "by_broker": False, "protocol": None, "sizes": (0, 0)},
    ),
    "still open when the capture ends": (
        lambda tcp: [*tcp.handshake(), tcp.send(True, b"what is this?"), tcp.segment(False, 0)],
        {"end": "open", "by_broker": None, "protocol": "unknown", "last_ns": START_NS + 5000},
    ),
    "still open when its addresses were used again": (
        late_syn,
        {"end": "reused", "protocol": "Pulsar", "both": False},
    ),
    "closed by client, joined midway": (
        lambda tcp: [*tcp.say(TALK), *tcp.goodbye()],
        {"end": "closed", "by_broker": False, "protocol": "Pulsar", "joined": True, "syns": 0},
    ),
    "reset by broker, joined midway": (
        # the first to be seen is taken for the client until its commands show otherwise
        lambda tcp: [*tcp.say(TALK)[1:], tcp.rst(False)],
        {"by_broker": True, "joined": True},
    ),
}


@pytest.mark.parametrize("how", LIVES)
def test_what_became_of_a_connection(how: str) -> None:
    script, expected = LIVES[how]
    told = endings(script(Tcp()))[0]
    assert told.how == how
    assert {name: getattr(told, name) for name in expected} == expected
    assert told.time_ns == START_NS + 1000
    assert told.packet == 1


def test_who_ended_it_is_who_was_first() -> None:
    tcp = Tcp()
    (told,) = endings(killed(tcp))
    assert (told.how, told.both) == ("closed by client", True)


def test_the_end_that_came_first_is_the_one_with_the_earlier_time() -> None:
    tcp = Tcp()
    opened = [*tcp.handshake(), *tcp.say(TALK)]
    by_broker, by_client = tcp.fin(False), tcp.fin(True)
    into, told = listening()
    for number, segment in enumerate([*opened, by_client], 1):
        added(into, segment, START_NS + 9_000 * (segment is by_client), number)
    added(into, by_broker, START_NS + 8_000, len(opened) + 2)
    assert [(each.by_broker, each.end_ns) for each in told] == [(True, START_NS + 8_000)]


def test_a_server_that_speaks_first_is_known_as_such_in_the_end() -> None:
    tcp = Tcp(client=("10.0.0.1", 80), server=("10.0.0.2", 50_000))
    segments = [tcp.send(False, TALK[1][1]), tcp.rst(False)]
    (told,) = endings(segments)
    assert (told.connection.server, told.by_broker) == ("10.0.0.2:50000", True)


def test_an_answer_that_was_not_captured_is_no_refusal() -> None:
    tcp = Tcp()
    handshake = tcp.handshake()
    (told,) = endings([handshake[0], handshake[2], tcp.send(True, TALK[0][1])])
    assert told.how == "still open when the capture ends"
    (told,) = endings([handshake[1], tcp.send(True, TALK[0][1])])
    assert (told.joined, told.syns) == (False, 0)


def test_a_reset_that_is_not_of_this_connection_ends_nothing() -> None:
    tcp = Tcp()
    (told,) = endings([*tcp.handshake(), tcp.segment(False, 1 << 30, flags=RST), *tcp.say(TALK)])
    assert told.end == "open"


def test_more_open_connections_than_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reassembly, "MAX_CONNECTIONS", 20)
    told = endings([Tcp(client=("10.0.0.1", port)).handshake()[2] for port in range(1, 22)])
    assert [each.end for each in told] == ["dropped"] * 2 + ["open"] * 19
    assert told[0].how == "not followed to its end: too many connections were open, joined midway"


def test_contents_count_what_was_carried_up_to_the_last_packet() -> None:
    tcp = Tcp()
    first, *rest = TALK
    last = rest.pop()[1]
    segments = [*tcp.handshake(), *tcp.say([first, *rest]), tcp.fin(False), tcp.fin(True, last)]
    into, told = listening()
    events = decode(segments, into)
    contents: Any = told[0].state
    frames = frames_of(events)
    assert contents.count(Frame) == tuple(
        sum(frame.to_broker is way for frame in frames) for way in (False, True)
    )
    assert (contents.greeting.client_version, contents.greeting.protocol_version) == ("test", 21)
    assert told[0].sizes == tuple(
        sum(len(raw) for to_broker, raw in TALK if to_broker is way) for way in (False, True)
    )


def test_contents_follow_the_direction_that_is_learned_late() -> None:
    tcp = Tcp(client=("10.0.0.1", 80), server=("10.0.0.2", 50_000))
    junk = tcp.send(False, b"\xff" * 40)
    lost = tcp.send(True, b"", missing=100)
    frames = tcp.say(TALK[:4])
    (told,) = endings([junk, lost, *frames])
    contents: Any = told.state
    assert told.connection.flipped
    assert contents.count(Frame) == (2, 2)
    assert contents.count(Malformed) == (1, 0)
    assert contents.count(Gap) == (0, 1)


@given(
    st.lists(
        st.tuples(
            st.integers(1, 4),
            st.booleans(),
            st.integers(-1, 60),
            st.sampled_from([SYN, SYN | ACK, ACK, FIN | ACK, RST, RST | ACK]),
            st.sampled_from([b"", TALK[0][1], HELLO]),
        ),
        max_size=30,
    )
)
def test_every_connection_is_told_of_once(script: list[tuple[int, bool, int, int, bytes]]) -> None:
    tcps = {port: Tcp(client=("10.0.0.1", port)) for port in range(1, 5)}
    into, told = listening()
    events = decode(
        [
            tcps[port].segment(to_broker, offset, payload, flags=flags)
            for port, to_broker, offset, flags, payload in script
        ],
        into,
    )
    assert sorted(each.connection.index for each in told) == list(range(into.connections))
    sessions: list[Any] = [each.state for each in told]
    assert sum(sum(session.count(Frame)) for session in sessions) == sum(
        isinstance(event, Frame) for event in events
    )
    for each in told:
        assert each.how
        assert (each.by_broker is None) is (each.end_ns is None)


def test_nobody_asks_and_nothing_is_kept() -> None:
    into = Reassembler(Knowledge())
    decode(Tcp().whole(TALK), into)
    assert closed(into) == []


# ---- connections without data, counted


def without_data(segments: Sequence[Segment]) -> WithoutData:
    counted = WithoutData()
    into = Reassembler(Knowledge(), on_end=counted.add)
    decode(segments, into)
    return counted


def test_connections_without_data_are_counted_and_their_servers_named() -> None:
    segments: list[Segment] = []
    for number in range(1, 7):
        tcp = Tcp(client=("10.0.0.1", number), server=(f"10.0.1.{number % 5}", 6650))
        segments += [tcp.syn(), *([refusal(tcp)] if number == 3 else [])]
    segments += [*Tcp().whole([]), *Tcp(client=("10.0.0.3", 1)).whole(TALK)]
    counted = without_data(segments)
    assert without_data_in_words(counted.records()) == (
        "5 never answered (10.0.1.1:6650, 10.0.1.2:6650, 10.0.1.4:6650, …), "
        "1 refused (10.0.1.3:6650), 1 without a byte (10.0.0.2:6650)"
    )
    assert counted.records()[1] == {"end": "refused", "connections": 1, "servers": ["10.0.1.3:6650"]}
    assert without_data_in_words(WithoutData().records()) == ""


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 30)), max_size=40))
def test_parts_add_up_to_the_whole(pairs: list[tuple[int, int]]) -> None:
    told = endings(
        [
            Tcp(client=(f"10.0.0.{client}", number), server=(f"10.0.1.{server}", 6650)).syn()
            for number, (client, server) in enumerate(pairs, 1)
        ]
    )
    whole, one, other = WithoutData(), WithoutData(), WithoutData()
    for number, each in enumerate(told):
        whole.add(each)
        (one if number % 2 else other).add(each)
    one.merge(other)
    assert one.records() == whole.records()
    assert all(len(each["servers"]) <= SERVERS for each in whole.records())
