"""The ring between proxy and watcher: what was put comes out in order, the rest is counted, nobody waits."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from net.relayed import Seen
from strategies import cuts, frames_to_broker

from pulsarctl_wire.net.proxy import tap
from pulsarctl_wire.net.proxy.tap import (
    CARRIED,
    CLOSED,
    END,
    LEFT_OUT,
    MISSED,
    NOTE,
    OPENED,
    TapRecord,
    TapRing,
    TapWriter,
)
from pulsarctl_wire.wire.frame import Connection
from pulsarctl_wire.wire.framing.walk import HEAD

SMALL = 512
RECORD = tap._HEAD.size
"""Bytes of a record without data."""

numbers = st.integers(0, 2**64 - 1)
times = st.integers(0, 2**63 - 1)


def ring(capacity: int = SMALL, **options: Any) -> TapRing:
    return TapRing(capacity=capacity, **options)


def drop(ring: TapRing) -> None:
    """What it holds open besides what `end` closes."""
    ring.use_in_proxy()
    if not ring._over:
        ring.use_in_watcher()


class Model(RuleBasedStateMachine):
    """A ring beside a queue."""

    def __init__(self) -> None:
        super().__init__()
        self.ring = ring()
        self.records = self.ring.records(0)
        self.queue: deque[TapRecord] = deque()

    def step(self, size: int) -> int:
        """Bytes that a record with so much data takes, padding and all."""
        return RECORD + size + -(RECORD + size) % 8

    def added(self, fits: bool, record: TapRecord) -> None:
        """It was taken if `fits`; and if there was no room, there really was none."""
        step = self.step(len(record.data))
        if fits:
            self.queue.append(record)
        else:  # what waits, an end of the memory left empty, the reserve
            most = sum(self.step(len(each.data)) for each in self.queue) + 2 * step + SMALL // 16
            assert most > SMALL - self.step(100)
        assert sum(self.step(len(each.data)) for each in self.queue) <= SMALL

    @rule(number=numbers, to_broker=st.booleans(), data=st.binary(max_size=100), time_ns=times)
    def carry(self, number: int, to_broker: bool, data: bytes, time_ns: int) -> None:
        fits = self.ring.carried(Connection(number), to_broker, data, time_ns)
        self.added(fits, TapRecord(CARRIED, number, to_broker, time_ns, data))

    @rule(number=numbers, to_broker=st.booleans(), size=numbers, frames=numbers)
    def miss(self, number: int, to_broker: bool, size: int, frames: int) -> None:
        fits = self.ring.missed(Connection(number), to_broker, size, frames, 5)
        data = tap._COUNTS.pack(size, frames)
        assert TapRecord(MISSED, 0, False, 0, data).counts == (size, frames)
        self.added(fits, TapRecord(MISSED, number, to_broker, 5, data))

    @precondition(lambda self: not self.queue)
    @rule(number=numbers)
    def open_and_close(self, number: int) -> None:
        """These say nothing of room; in an empty ring there is some."""
        connection = Connection(number, "a:1", "b:2")
        connection.listener = "c:3"
        self.ring.opened(connection, 3)
        self.ring.closed(Connection(number), 4, True)
        self.queue.append(TapRecord(OPENED, number, False, 3, b"a:1\nb:2\nc:3"))
        self.queue.append(TapRecord(CLOSED, number, False, 4, b""))

    @rule(count=st.integers(1, 12))
    def take(self, count: int) -> None:
        for _ in range(count):
            expected = self.queue.popleft() if self.queue else None
            assert next(self.records) == expected
            if expected is None:
                return

    @invariant()
    def it_is_not_over(self) -> None:
        assert not self.ring.is_ending

    def teardown(self) -> None:
        self.ring.end()
        found = [record for record in self.records if record is not None]
        assert found[: len(self.queue)] == list(self.queue)
        assert all(record.kind == END for record in found[len(self.queue) :])
        assert self.ring.is_ending
        drop(self.ring)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=100, stateful_step_count=40)


def taken(ring: TapRing, records: Iterator[TapRecord | None] | None = None) -> list[TapRecord]:
    """What there is by now."""
    found: list[TapRecord] = []
    for record in records or ring.records(0):
        if record is None:
            return found
        found.append(record)
    return found


# ---- Notes, and room for them ----


def stuff(it: TapRing) -> int:
    """Fill it to the last byte; gives the records that this took."""
    count = 0
    while it.missed(Connection(0), True, 1, 1, 0):
        count += 1
    put = -1
    while put != it._put:
        put = it._put
        it.closed(Connection(0), 0, True)
        count += put != it._put
    return count


def test_notes_are_cut_and_harmless() -> None:
    it = ring(64 * 1024)
    it.note("é" * 10_000)
    it.note("\ud800 alone")
    it.end()
    first, second, end = taken(it)
    assert first.data.decode() == "é" * 4_096
    assert second.data == b"\\ud800 alone"
    assert (first.kind, second.kind, end.kind) == (NOTE, NOTE, END)
    drop(it)


def left_out(it: TapRing, records: Iterator[TapRecord | None], count: int) -> None:
    """Fill it, have it leave out so many notes, and empty it."""
    stuffed = stuff(it)
    for _ in range(count):
        it.note("x")
    assert len(taken(it, records)) == stuffed


def test_notes_left_out_are_told_before_the_next_one() -> None:
    it = ring()
    records = it.records(0)
    left_out(it, records, 3)
    it.note("here")
    it.note("again")
    assert [(each.kind, each.connection) for each in taken(it, records)] == [
        (LEFT_OUT, 3),
        (NOTE, 0),
        (NOTE, 0),
    ]
    drop(it)


def test_notes_left_out_are_told_at_the_end() -> None:
    it = ring()
    records = it.records(0)
    left_out(it, records, 2)
    it.end()
    assert [(each.kind, each.connection) for each in records if each] == [(LEFT_OUT, 2), (END, 0)]
    drop(it)


def test_nothing_is_put_behind_the_end() -> None:
    it = ring()
    it.end()
    opened = len(os.listdir("/dev/fd"))
    assert not it.carried(Connection(0), True, b"x", 0)
    assert not it.missed(Connection(0), True, 1, 1, 0)
    it.opened(Connection(0), 0)
    it.closed(Connection(0), 0, True)
    it.note("x")
    assert [record.kind for record in it.records(0) if record] == [END]
    assert len(os.listdir("/dev/fd")) == opened
    drop(it)


def test_bytes_leave_room_for_all_else() -> None:
    it = ring(4096)
    while it.carried(Connection(0), True, b"x" * 100, 0):
        pass
    assert it.missed(Connection(0), True, 100, 1, 0)
    it.note("room for this")
    assert [record.kind for record in taken(it)][-2:] == [MISSED, NOTE]
    drop(it)


def test_a_full_ring_ends_too() -> None:
    it = ring()
    records = it.records(0)
    stuffed = stuff(it)
    it.end()  # no room for its record; the end of the pipe tells it
    assert it.is_ending
    assert [record.kind in (MISSED, CLOSED) for record in records if record] == [True] * stuffed
    drop(it)


def test_what_is_larger_than_the_ring() -> None:
    it = ring()
    assert not it.carried(Connection(0), True, bytes(SMALL), 0)
    assert it.carried(Connection(0), True, b"x", 0)
    assert [record.data for record in taken(it)] == [b"x"]
    drop(it)


# ---- What there was no room for ----


@st.composite
def told(draw: st.DrawFn) -> tuple[bytes, list[tuple[int, int]], list[bytes]]:
    """A direction of frames, where they lie, and how it came: cut off, or ending in what is no frame."""
    frames = draw(frames_to_broker)
    ends = [*itertools.accumulate(map(len, frames))]
    data = b"".join(frames)
    if draw(st.booleans()):
        data = data[: draw(st.integers(1, len(data)))]
    else:
        data += draw(st.sampled_from([b"", b"hello\n", bytes(10), bytes(2)]))
    places = [
        (start, stop) for start, stop in zip([0, *ends], ends, strict=False) if len(data) - start >= HEAD
    ]
    return data, places, draw(cuts(data))


class Forgetful(Seen):
    """A watcher without room, by a list of answers; it notes which bytes of the direction it was told."""

    def __init__(self, answers: list[bool]) -> None:
        super().__init__()
        self.at = 0
        self.told_of: list[range] = []
        self.began_after_a_miss: list[int] = []
        self._missed = False
        self.deaf = lambda: bool(answers) and answers.pop(0)

    def carried(self, connection: Connection, to_broker: bool, data: Any, time_ns: int) -> bool:
        if not super().carried(connection, to_broker, data, time_ns):
            return False
        if self._missed:
            self.began_after_a_miss.append(self.at)
        self._missed = False
        self.told_of.append(range(self.at, self.at + len(data)))
        self.at += len(data)
        return True

    def missed(self, connection: Connection, to_broker: bool, size: int, frames: int, time_ns: int) -> bool:
        if not super().missed(connection, to_broker, size, frames, time_ns):
            return False
        self._missed = True
        self.at += size
        return True


@given(told(), st.lists(st.booleans(), max_size=30))
@settings(max_examples=200)
def test_what_is_carried_and_what_is_missed_is_all(
    drawn: tuple[bytes, list[tuple[int, int]], list[bytes]], answers: list[bool]
) -> None:
    data, frames, chunks = drawn
    watcher = Forgetful(answers)
    tap_writer = TapWriter(watcher, Connection(0), True)
    for chunk in chunks:
        tap_writer.carried(chunk, 7)
    answers.clear()
    tap_writer.finish()
    assert watcher.at == len(data)
    told_of = {at for each in watcher.told_of for at in each}
    assert bytes(watcher.bytes[True]) == bytes(data[at] for at in sorted(told_of))
    missed = [each for each in frames if not told_of.issuperset(range(each[0], min(each[1], len(data))))]
    assert watcher.lost[True] == [len(data) - len(told_of), len(missed)]
    behind = frames[-1][1] if frames else 0
    boundaries = {start for start, _ in frames}
    assert all(at in boundaries or at >= behind for at in watcher.began_after_a_miss)


@pytest.mark.parametrize("cut", [55, 59])
def test_what_is_missed_before_bytes_that_are_no_frame(cut: int) -> None:
    frame = bytes.fromhex("00000017 00000008 0806 320408001000 00000007 0a0130 1001 1800")
    data = frame + frame + bytes(10)
    watcher = Forgetful([False, True])
    tap_writer = TapWriter(watcher, Connection(0), True)
    for chunk in (data[:1], data[1:cut], data[cut:]):
        tap_writer.carried(chunk, 7)
    tap_writer.finish()
    assert watcher.at == len(data)
    assert watcher.lost[True] == [len(data) - 1, 2]


@given(frames_to_broker, st.data())
def test_what_a_new_watcher_is_told_begins_with_a_frame(raws: list[bytes], drawn: st.DataObject) -> None:
    """Wherever the one before it was; and what that one saw of the frame that was cut counts as missed."""
    data = b"".join(raws)
    cut = drawn.draw(st.integers(0, len(data)))
    tap_writer = TapWriter(Seen(), Connection(0), True)
    for chunk in drawn.draw(cuts(data[:cut])):
        tap_writer.carried(chunk, 7)
    tap_writer._ring = watcher = Seen()
    tap_writer.restart()
    for chunk in drawn.draw(cuts(data[cut:])):
        tap_writer.carried(chunk, 7)
    tap_writer.finish()
    starts = [sum(map(len, raws[:number])) for number in range(len(raws) + 1)]
    begin = min(start for start in starts if start >= cut)
    assert bytes(watcher.bytes[True]) == data[begin:]
    assert watcher.lost[True] == [begin - cut, int(begin != cut)]


def test_a_new_watcher_misses_one_frame_though_its_head_was_cut() -> None:
    """Found by `.ci/explore`: all that came with the rest of that frame was missed too."""
    frame = bytes.fromhex("00000009 00000005 08 12 920100")
    tap_writer = TapWriter(Seen(), Connection(0), True)
    tap_writer.carried(frame[:1], 7)
    tap_writer._ring = watcher = Seen()
    tap_writer.restart()
    tap_writer.carried(frame[1:] + frame + frame, 7)
    tap_writer.finish()
    assert bytes(watcher.bytes[True]) == frame + frame
    assert watcher.lost[True] == [len(frame) - 1, 1]


def test_a_watcher_that_wants_no_bytes_is_not_told_of_any() -> None:
    watcher = Seen()
    watcher.wants_bytes = False
    tap_writer = TapWriter(watcher, Connection(0), True)
    tap_writer.carried(bytes(100), 7)
    tap_writer.finish()
    assert not watcher.told


def test_what_a_frame_lost_does_not_hide_the_next() -> None:
    frame = b"\0\0\0\x08\0\0\0\x04\x08\x12\x92\x01"
    answers = [True]
    watcher = Forgetful(answers)
    tap_writer = TapWriter(watcher, Connection(0), True)
    tap_writer.carried(frame[:HEAD], 7)
    tap_writer.carried(frame[HEAD:] + frame, 7)
    assert bytes(watcher.bytes[True]) == frame
    assert watcher.lost[True] == [len(frame), 1]


# ---- Two processes ----

FORKED = """
import os, signal, sys
from pulsarctl_wire.net.proxy.tap import TapRing
from pulsarctl_wire.wire.frame import Connection

ring = TapRing(capacity=4096)
child = os.fork()
if not child:
    ring.use_in_proxy()
    number = 0
    while number < 5_000:
        if ring.carried(Connection(number), True, b"%d" % number * (number % 50), 1):
            number += 1
    {ending}
ring.use_in_watcher()
expected = 0
for record in ring.records(60):
    if record is None:
        sys.exit("nothing came")
    if record.kind == 2:
        assert record.connection == expected, (record, expected)
        assert record.data == b"%d" % expected * (expected % 50)
        expected += 1
print(expected, ring.is_ending, os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="two processes need fork")
@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", f"5000 False {int(signal.SIGKILL)}"),
        ("os._exit(3)", f"5000 False {3 << 8}"),
        ("ring.end(); os._exit(0)", "5000 True 0"),
    ],
    ids=["killed", "gone", "ended"],
)
def test_all_comes_from_another_process_and_its_end_too(ending: str, said: str) -> None:
    command = [sys.executable, "-c", FORKED.format(ending=ending)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (result.stdout.strip(), result.stderr) == (said, "")


PUTTER = """
import os, sys
from pulsarctl_wire.net.proxy.tap import TapRing
from pulsarctl_wire.wire.frame import Connection

ring = TapRing(capacity=4096)
child = os.fork()
if not child:
    ring.use_in_watcher()
    next(ring.records(60))
    os._exit(0)
ring.use_in_proxy()
ring.note("first")
os.waitpid(child, 0)
while ring.carried(Connection(0), True, bytes(100), 1):  # to nobody, and without SIGPIPE
    pass
ring.end()
print("through")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="two processes need fork")
def test_a_watcher_that_is_gone_does_not_harm_the_proxy() -> None:
    result = subprocess.run(
        [sys.executable, "-c", PUTTER], capture_output=True, text=True, check=False, timeout=60
    )
    assert (result.stdout, result.stderr) == ("through\n", "")
