"""What passes a proxy, handed to another process that watches: a ring of records in shared memory.

    proxy   Ring.carried, missed, opened, closed, note    puts a record, or finds no room: never waits
    watcher Ring.records                                  takes them, in order; waits

One process puts and one takes, both forks of the one that made the ring. What a full ring did not take is
told later, in one record, by whoever had no room (`relay.Telling`). The watcher is woken through a pipe, and
only if it said that it sleeps; the end of that pipe tells it that the proxy is gone, however that came about.

    record   SIZE (4)  KIND (1)  TO_BROKER (1)  -  (2)  CONNECTION (8)  TIME_NS (8)  DATA …     padded to 8
    memory   TAKEN (8)  PUT (8)  ASLEEP (8)  ENDING (8)  -  |  records, around and around
"""

import os
import select
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from mmap import mmap
from typing import Final, NamedTuple

from pulsarctl_wire.wire.frame import Connection

OPENED, CARRIED, MISSED, CLOSED, NOTE, LEFT_OUT, END = range(1, 8)
"""Kinds of records. LEFT_OUT: notes there was no room for; END: no more will come."""

CAPACITY: Final = 64 * 1024 * 1024
"""Bytes of records that may wait."""

_HEAD: Final = struct.Struct("=IBBxxQq")
_COUNTS: Final = struct.Struct("=QQ")
_START: Final = 64
_TAKEN, _PUT, _ASLEEP, _ENDING = range(4)
_WRAP: Final = 0  # a record of this kind: go on at the beginning
_LONGEST_NOTE: Final = 4_096
_RESERVES: Final = {CARRIED: 16, MISSED: 32}
"""For these a part of the ring is no room: it is kept for what happens seldom, and must not be lost."""


_LOCK: Final = threading.Lock()
_LOCK.acquire()


def _fence() -> None:
    """What is read and written from here on comes after what was before, as other processors see it.

    A lock is released after what was before it, and acquired before what follows. Nothing else in Python says
    so, and no processor keeps all of the order by itself: ARM little of it, x86 all but reads after writes.
    """
    _LOCK.release()
    _LOCK.acquire()


class Record(NamedTuple):
    """What happened: see the kinds. `data` are the bytes carried, or a text in UTF-8."""

    kind: int
    connection: int
    to_broker: bool
    time_ns: int
    data: bytes

    @property
    def counts(self) -> tuple[int, int]:
        """Of MISSED: bytes, frames."""
        return _COUNTS.unpack(self.data)


class Ring:
    """The ring; `relay.Watcher` for the proxy, `records` for the watcher."""

    def __init__(self, *, wants_bytes: bool = True, capacity: int = CAPACITY) -> None:
        self.wants_bytes = wants_bytes
        self._memory = mmap(-1, _START + capacity)
        self._capacity = capacity
        whole = memoryview(self._memory)
        self._marks = whole[:_START].cast("Q")
        self._room = whole[_START:]
        self._put = 0
        self._left_out = 0
        self._over = False
        self._wakes, self._wake = os.pipe()
        os.set_blocking(self._wake, False)

    # -- the proxy's side

    def for_proxy(self) -> None:
        """This process puts records."""
        os.close(self._wakes)

    def opened(self, connection: Connection, time_ns: int) -> None:
        """Both legs of a connection stand."""
        self._add(
            OPENED, connection.index, False, time_ns, f"{connection.client}\n{connection.server}".encode()
        )

    def carried(self, connection: Connection, to_broker: bool, data: bytes, time_ns: int) -> bool:
        """`data` was passed on; gives whether there was room for it."""
        return self._add(CARRIED, connection.index, to_broker, time_ns, data)

    def missed(self, connection: Connection, to_broker: bool, size: int, frames: int, time_ns: int) -> bool:
        """There was no room for `size` bytes, in which `frames` frames lay or began; whether for this."""
        return self._add(MISSED, connection.index, to_broker, time_ns, _COUNTS.pack(size, frames))

    def closed(self, connection: Connection, time_ns: int, by_broker: bool) -> None:
        """The connection has ended."""
        self._add(CLOSED, connection.index, not by_broker, time_ns, b"")

    def note(self, text: str) -> None:
        """Something that people should know."""
        if self._left_out and self._add(LEFT_OUT, self._left_out, False, 0, b""):
            self._left_out = 0
        if not self._add(
            NOTE, 0, False, time.time_ns(), text[:_LONGEST_NOTE].encode("utf-8", "backslashreplace")
        ):
            self._left_out += 1

    def end(self) -> None:
        """No more will come."""
        self._marks[_ENDING] = 1
        if self._left_out:
            self._add(LEFT_OUT, self._left_out, False, 0, b"")
        self._add(END, 0, False, 0, b"")
        self._over = True
        os.close(self._wake)

    def _add(self, kind: int, number: int, to_broker: bool, time_ns: int, data: bytes) -> bool:
        if self._over:
            return False
        size = _HEAD.size + len(data)
        step = size + -size % 8
        put, capacity = self._put, self._capacity
        free = capacity - (put - self._marks[_TAKEN]) - capacity // _RESERVES.get(kind, capacity)
        at = put % capacity
        to_end = capacity - at
        if step > to_end:  # it lies in one piece: the rest of the memory stays empty
            if step + to_end > free:
                return False
            if to_end >= _HEAD.size:
                _HEAD.pack_into(self._room, at, to_end, _WRAP, 0, 0, 0)
            put, at = put + to_end, 0
        elif step > free:
            return False
        room = self._room
        _HEAD.pack_into(room, at, size, kind, to_broker, number, time_ns)
        room[at + _HEAD.size : at + size] = data
        _fence()
        self._put = self._marks[_PUT] = put + step
        _fence()
        if self._marks[_ASLEEP]:
            self._marks[_ASLEEP] = 0
            with suppress(OSError):  # it is awake, or gone
                os.write(self._wake, b"!")
        return True

    # -- the watcher's side

    def for_watcher(self) -> None:
        """This process takes records."""
        os.close(self._wake)

    @property
    def ending(self) -> bool:
        """Whether the proxy is at its end, whatever there is still to be taken."""
        return bool(self._marks[_ENDING])

    def records(self, seconds: float) -> Iterator[Record | None]:
        """The records as they come, to the end; None whenever `seconds` have passed without any.

        They begin where whoever took some before has stopped.
        """
        marks, room, capacity = self._marks, self._room, self._capacity
        taken = marks[_TAKEN]
        gone = False  # the proxy, without a word
        while True:
            if marks[_PUT] == taken:
                if gone:
                    return
                marks[_ASLEEP] = 1
                _fence()
                if marks[_PUT] == taken and select.select([self._wakes], [], [], seconds)[0]:
                    gone = not os.read(self._wakes, 4096)
                elif marks[_PUT] == taken:
                    yield None
                marks[_ASLEEP] = 0
                continue
            _fence()
            at = taken % capacity
            size, kind, number, time_ns = capacity - at, _WRAP, 0, 0
            to_broker = 0
            if size >= _HEAD.size:
                size, kind, to_broker, number, time_ns = _HEAD.unpack_from(room, at)
            data = bytes(room[at + _HEAD.size : at + size])
            _fence()
            marks[_TAKEN] = taken = taken + size + -size % 8
            if kind != _WRAP:
                yield Record(kind, number, bool(to_broker), time_ns, data)
            if kind == END:
                return
