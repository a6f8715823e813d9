"""Passes a proxy's traffic to the watcher process: a ring of records in shared memory.

    proxy   TapRing.carried, missed, opened, closed, note    puts a record if there is room; never waits
    watcher TapRing.records                                  takes records in order; waits

One process puts and one takes records; the watcher is forked after the ring was made. Bytes that do not fit
into a full ring are counted by their writer (`TapWriter`), which reports them later in one record. The
watcher is woken through a pipe, but only if it sleeps; the end of the pipe means that the proxy is gone.

    record   SIZE (4)  KIND (1)  TO_BROKER (1)  -  (2)  CONNECTION (8)  TIME_NS (8)  DATA …     padded to 8
    memory   TAKEN (8)  PUT (8)  ASLEEP (8)  ENDING (8)  -  |  records, wrapping around

TAKEN and PUT count all bytes so far, and never go back; modulo the capacity, they are places in the ring.
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
from pulsarctl_wire.wire.framing.walk import FrameWalk

OPENED, CARRIED, MISSED, CLOSED, NOTE, LEFT_OUT, END, CHANGED = range(1, 9)
"""Kinds of records. LEFT_OUT: number of notes that did not fit; END: there are no more records."""

CAPACITY: Final = 64 * 1024 * 1024
"""Bytes of the ring."""

_HEAD: Final = struct.Struct("=IBBxxQq")
_COUNTS: Final = struct.Struct("=QQ")
_START: Final = 64  # offset of the first record in the memory; the marks come before it
_TAKEN, _PUT, _ASLEEP, _ENDING = range(4)
_WRAP: Final = 0  # kind of record that means: go on at the beginning of the memory
_LONGEST_NOTE: Final = 4_096
_RESERVES: Final = {CARRIED: 16, MISSED: 32}
"""kind -> n: records of this kind must leave 1/n of the ring free, for rarer ones that must not be lost."""


_LOCK: Final = threading.Lock()
_LOCK.acquire()


def _fence() -> None:
    """Set a memory barrier: other processors see all accesses before it before those after it.

    Releasing a lock orders it after all earlier accesses, acquiring it before all later ones. Python has no
    other barrier, and processors reorder: ARM nearly everything, x86 only reads that follow writes.
    """
    _LOCK.release()
    _LOCK.acquire()


class TapRecord(NamedTuple):
    """A record of one of the kinds above.

    `connection` is the number of the connection, or (LEFT_OUT) of notes. `data` has the bytes carried, a text
    in UTF-8, or (MISSED) the `counts`. `to_broker` of CLOSED: the client has ended the connection.
    """

    kind: int
    connection: int
    to_broker: bool
    time_ns: int
    data: bytes

    @property
    def counts(self) -> tuple[int, int]:
        """The number of bytes and frames of a MISSED record."""
        return _COUNTS.unpack(self.data)


class TapRing:
    """The ring. `records` is the watcher's side; the bytes of connections are put only if `wants_bytes`."""

    def __init__(self, *, wants_bytes: bool = True, capacity: int = CAPACITY) -> None:
        self.wants_bytes = wants_bytes
        self._memory = mmap(-1, _START + capacity)
        self._capacity = capacity
        buffer = memoryview(self._memory)
        self._marks = buffer[:_START].cast("Q")
        self._area = buffer[_START:]
        self._put = 0
        self._notes_left_out = 0
        self._over = False
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_writer, False)

    # -- the proxy's side

    def use_in_proxy(self) -> None:
        """Prepare the ring in the process that puts records."""
        os.close(self._wake_reader)

    def opened(self, connection: Connection, time_ns: int) -> None:
        """Put a record of a new connection."""
        ends = f"{connection.client}\n{connection.server}\n{connection.listener}"
        self._add(OPENED, connection.index, False, time_ns, ends.encode())

    def carried(self, connection: Connection, to_broker: bool, data: bytes, time_ns: int) -> bool:
        """Put `data` that was passed on; return whether there was room for it."""
        return self._add(CARRIED, connection.index, to_broker, time_ns, data)

    def changed(self, connection: Connection, to_broker: bool, change: str, time_ns: int) -> None:
        """Put what was done to the frame that is carried next."""
        self._add(CHANGED, connection.index, to_broker, time_ns, change.encode())

    def missed(self, connection: Connection, to_broker: bool, size: int, frames: int, time_ns: int) -> bool:
        """Put a record of missed bytes and frames; return whether there was room for it."""
        return self._add(MISSED, connection.index, to_broker, time_ns, _COUNTS.pack(size, frames))

    def closed(self, connection: Connection, time_ns: int, by_broker: bool) -> None:
        """Put a record of the end of a connection."""
        self._add(CLOSED, connection.index, not by_broker, time_ns, b"")

    def note(self, text: str) -> None:
        """Put a note for the user."""
        if self._notes_left_out and self._add(LEFT_OUT, self._notes_left_out, False, 0, b""):
            self._notes_left_out = 0
        if not self._add(
            NOTE, 0, False, time.time_ns(), text[:_LONGEST_NOTE].encode("utf-8", "backslashreplace")
        ):
            self._notes_left_out += 1

    def end(self) -> None:
        """Put the last record."""
        self._marks[_ENDING] = 1
        if self._notes_left_out:
            self._add(LEFT_OUT, self._notes_left_out, False, 0, b"")
        self._add(END, 0, False, 0, b"")
        self._over = True
        os.close(self._wake_writer)

    def _add(self, kind: int, number: int, to_broker: bool, time_ns: int, data: bytes) -> bool:
        if self._over:
            return False
        size = _HEAD.size + len(data)
        step = size + -size % 8
        position, capacity = self._put, self._capacity
        free = capacity - (position - self._marks[_TAKEN]) - capacity // _RESERVES.get(kind, capacity)
        offset = position % capacity
        to_end = capacity - offset
        if step > to_end:  # a record must be contiguous: the end of the memory stays unused
            if step + to_end > free:
                return False
            if to_end >= _HEAD.size:
                _HEAD.pack_into(self._area, offset, to_end, _WRAP, 0, 0, 0)
            position, offset = position + to_end, 0
        elif step > free:
            return False
        area = self._area
        _HEAD.pack_into(area, offset, size, kind, to_broker, number, time_ns)
        area[offset + _HEAD.size : offset + size] = data
        _fence()
        self._put = self._marks[_PUT] = position + step
        _fence()
        if self._marks[_ASLEEP]:
            self._marks[_ASLEEP] = 0
            with suppress(OSError):  # the watcher has been woken already, or is gone
                os.write(self._wake_writer, b"!")
        return True

    # -- the watcher's side

    def use_in_watcher(self) -> None:
        """Prepare the ring in the process that takes records."""
        os.close(self._wake_writer)

    @property
    def is_ending(self) -> bool:
        """Whether the proxy is ending, even if there are still records to be taken."""
        return bool(self._marks[_ENDING])

    def records(self, seconds: float) -> Iterator[TapRecord | None]:
        """Yield the records until the proxy has ended, and None whenever `seconds` have passed without any.

        Begins where an earlier watcher has stopped.
        """
        marks, area, capacity = self._marks, self._area, self._capacity
        position = marks[_TAKEN]
        is_gone = False  # the proxy has died without an END
        while True:
            if marks[_PUT] == position:
                if is_gone:
                    return
                marks[_ASLEEP] = 1
                _fence()
                if marks[_PUT] == position and select.select([self._wake_reader], [], [], seconds)[0]:
                    is_gone = not os.read(self._wake_reader, 4096)
                elif marks[_PUT] == position:
                    yield None
                marks[_ASLEEP] = 0
                continue
            _fence()
            offset = position % capacity
            size, kind, number, time_ns = capacity - offset, _WRAP, 0, 0
            to_broker = 0
            if size >= _HEAD.size:
                size, kind, to_broker, number, time_ns = _HEAD.unpack_from(area, offset)
            data = bytes(area[offset + _HEAD.size : offset + size])
            _fence()
            marks[_TAKEN] = position = position + size + -size % 8
            if kind != _WRAP:
                yield TapRecord(kind, number, bool(to_broker), time_ns, data)
            if kind == END:
                return


class TapWriter:
    """Writes the bytes of one lane to the ring; counts those that did not fit, and reports them later.

    A missed stretch ends where a frame begins, so that the watcher can go on decoding. A frame counts as
    missed if any part of it is.
    """

    def __init__(self, ring: TapRing, connection: Connection, to_broker: bool) -> None:
        self._ring = ring
        self._wants_bytes = ring.wants_bytes
        self._connection = connection
        self._to_broker = to_broker
        self._walk = FrameWalk(frozenset())
        self._tail = b""  # less than a frame's head
        self._is_behind = False  # there are missed bytes that were not reported yet
        self._missed = self._frames = 0  # missed bytes; frames before the first one missed

    def carried(self, data: bytes, now: int) -> None:
        """Write `data` that the lane has passed on at `now` (ns since the epoch)."""
        if not self._wants_bytes:
            return
        walk = self._walk
        frames, is_mid_frame = walk.frames, walk.left > 0
        remaining, new_frames, tail = walk.left, 0, self._tail
        buffer = tail + data if tail else data
        self._tail = buffer[walk.walk(buffer, 0) :]
        if tail:  # the start of a frame that was not counted yet
            size = 0 if walk.lost else walk.size(buffer, 0)
            remaining, new_frames = (size - len(tail), 1) if size else (len(data), 0)
        if self._is_behind:
            frames += new_frames
            skip = min(remaining, len(data))
            if skip == len(data) or not self._put_missed(skip, frames, now):
                self._missed += len(data)
                return
            data, is_mid_frame = data[skip:], False
        if not self._ring.carried(self._connection, self._to_broker, data, now):
            self._is_behind, self._missed, self._frames = True, len(data), frames - is_mid_frame

    def _put_missed(self, skip: int, frames: int, now: int) -> bool:
        """Report the missed bytes and `skip` more; `frames` have begun. Return whether there was room."""
        size, frame_count = self._missed + skip, frames - self._frames
        if not self._ring.missed(self._connection, self._to_broker, size, frame_count, now):
            return False
        self._is_behind, self._missed = False, 0
        return True

    def restart(self) -> None:
        """Go on at the beginning of a frame, for a new watcher that has not seen the earlier bytes."""
        walk = self._walk
        if not self._is_behind and (walk.left or self._tail):
            self._is_behind, self._frames = True, walk.frames - (walk.left > 0)

    def finish(self) -> None:
        """Report the missed bytes at the end of the lane."""
        if self._is_behind:
            self._put_missed(0, self._walk.frames, time.time_ns())


class RingTap:
    """Writes all connections of a process to the ring; it is a `Tap` of net/frame_socket.py."""

    def __init__(self, ring: TapRing) -> None:
        self._ring = ring
        self._connections: dict[int, tuple[Connection, tuple[TapWriter, TapWriter]]] = {}

    def opened(self, connection: Connection, time_ns: int) -> None:
        """Write a new connection."""
        writers = TapWriter(self._ring, connection, False), TapWriter(self._ring, connection, True)
        self._connections[connection.index] = connection, writers
        self._ring.opened(connection, time_ns)

    def carried(self, connection: Connection, to_broker: bool, data: bytes, time_ns: int) -> None:
        """Write `data` that the connection carried."""
        entry = self._connections.get(connection.index)
        if entry is not None and data:
            entry[1][to_broker].carried(data, time_ns)

    def changed(self, connection: Connection, to_broker: bool, change: str) -> None:
        """Write what a fault did to the frame that is carried next."""
        self._ring.changed(connection, to_broker, change, time.time_ns())

    def closed(self, connection: Connection, time_ns: int, by_broker: bool) -> None:
        """Write the end of the connection."""
        entry = self._connections.pop(connection.index, None)
        if entry is not None:
            for writer in entry[1]:
                writer.finish()
            self._ring.closed(connection, time_ns, by_broker)

    def restart(self) -> None:
        """Write the open connections again, for a new watcher."""
        for connection, writers in self._connections.values():
            self._ring.opened(connection, time.time_ns())
            for writer in writers:
                writer.restart()
