"""One run of `pwire table`: sources become a Parquet file of frames and one of gaps.

Of large captures two processes follow half of the connections each. Each numbers its own; a batch of rows
gets its numbers when it is known which connections the other one had opened before. The second process
leaves its batches in files for the first one, which alone writes the tables.
"""

import gc
import os
import sys
from array import array
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from pulsarctl_wire.capture.sources import Decoder
from pulsarctl_wire.cli import console, twin
from pulsarctl_wire.cli.reading import Sources
from pulsarctl_wire.table import FRAMES, GAPS, TableBuilder, renumbered, writer
from pulsarctl_wire.wire.topics import TopicSession

_MOST_WAITING: Final = 2  # batches of the first process that wait for the second one


class _Batch(NamedTuple):
    """Rows of one process: its frames, or the file that holds them, and its gaps; how many connections it
    had opened by then, and packets read.
    """

    frames: Any
    gaps: Any
    opened: int
    packets: int


class _Side:
    """What one process has given so far: the packets that opened its connections, and batches that wait."""

    def __init__(self) -> None:
        self.opened = array("Q")
        self.packets = 0
        self.waiting: deque[_Batch] = deque()


class TableJob:
    """One run; nothing is left of the tables if they cannot be made whole."""

    def __init__(
        self, paths: list[str], out: str, stack: ExitStack, *, payload: bool, max_frame_size: int | None
    ) -> None:
        self._paths = paths
        self._out = out
        self._stack = stack
        self._payload = payload
        self._max_frame_size = max_frame_size
        self._code = 0

    def run(self, *, twice: bool) -> int:
        """Make the tables, by two processes if that is wanted and pays; give the exit code."""
        # frames come and go by the hundred thousand and hold no cycles: collecting them is wasted time
        gc.freeze()
        gc.set_threshold(100_000, 20, 100)
        pa.set_memory_pool(pa.system_memory_pool())  # it gives back what a batch has used
        other = None
        if twice and twin.pays(self._paths):
            sizes = {path: os.path.getsize(path) for path in self._paths}
            other = twin.Twin()
            self._stack.callback(other.part)
            if other.is_twin:
                other.run(lambda: self._send(other, sizes))
        tables = [_Part(path, schema, self._stack) for path, schema in self._tables()]
        batches = self._together(other, sizes) if other is not None else self._batches({}, None)
        for batch in batches:
            for part, rows in zip(tables, batch[:2], strict=True):
                part.write(rows)
        if self._code == console.EXIT_SOURCE and not any(part.rows for part in tables):
            return self._code  # nothing could be read: a table of nothing would hide that
        for part in tables:
            part.close()
        return self._code

    def _tables(self) -> list[tuple[str, Any]]:
        return [(self._out, FRAMES), (gaps_path(self._out), GAPS)]

    def _batches(
        self, sizes: dict[str, int], share: tuple[int, int] | None, opened: Any = None
    ) -> Iterator[_Batch]:
        """The rows of this process's connections; `opened` takes the packets that opened them."""

        def new_session(*arguments: Any) -> TopicSession:
            opened.append(decoder.packets)
            return TopicSession(*arguments)

        decoder = Decoder(
            max_frame_size=self._max_frame_size,
            join_chunks=False,
            places=True,
            share=share or (0, 1),
            new_session=TopicSession if opened is None else new_session,
        )
        builder = TableBuilder(decoder.sources, payload=self._payload)
        is_first = share is None or share[0] == 0
        sources = Sources(self._paths, self._stack, bar=console.is_terminal(sys.stderr), sizes=sizes)
        events = chain(sources.read(decoder, say=is_first), decoder.finish())
        for frames, gaps in builder.batches(events):
            yield _Batch(frames, gaps, len(opened or ()), decoder.packets)
        self._code = sources.code
        if is_first and decoder.dropped_packets:
            dropped = console.count_of(decoder.dropped_packets, "packet")
            console.complain(f"{dropped} dropped by the kernel while capturing")

    # -- two processes

    def _send(self, other: twin.Twin, sizes: dict[str, int]) -> None:
        """In the second process: its batches."""
        opened = array("Q")
        told = 0
        for number, batch in enumerate(self._batches(sizes, (1, 2), opened)):
            path = f"{self._out}.{number}.unfinished"
            with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, FRAMES) as stream:
                stream.write_batch(batch.frames)
            other.send((opened[told:], batch._replace(frames=path)))
            told = len(opened)
        other.send(None)

    def _together(self, other: twin.Twin, sizes: dict[str, int]) -> Iterator[_Batch]:
        """The batches of both processes, once their connections can be numbered."""
        mine, theirs = _Side(), _Side()
        is_whole = False
        for batch in self._batches(sizes, (0, 2), mine.opened):
            mine.waiting.append(batch)
            mine.packets = batch.packets
            while not is_whole and (other.has_sent() or len(mine.waiting) > _MOST_WAITING):
                is_whole = self._receive(other, theirs)
            yield from _numbered(mine, theirs)
            yield from _numbered(theirs, mine)
        while not is_whole:
            is_whole = self._receive(other, theirs)
        mine.packets = theirs.packets = sys.maxsize
        yield from _numbered(mine, theirs)
        yield from _numbered(theirs, mine)

    def _receive(self, other: twin.Twin, theirs: _Side) -> bool:
        """Take the next batch of the second process; whether that was all."""
        sent = other.receive()
        if sent is None:
            return True
        opened, batch = sent
        theirs.opened += opened
        theirs.packets = batch.packets
        theirs.waiting.append(batch)
        self._stack.callback(_remove, batch.frames)
        return False


def _numbered(side: _Side, other: _Side) -> Iterator[_Batch]:
    """The batches of `side` whose connections can be numbered among those of both."""
    while side.waiting:
        batch = side.waiting[0]
        if batch.opened and side.opened[batch.opened - 1] > other.packets:
            return
        side.waiting.popleft()
        frames = batch.frames
        if isinstance(frames, str):
            with pa.OSFile(frames) as file:
                frames = pa.ipc.open_stream(file).read_next_batch()
            _remove(batch.frames)
        own, others = np.array(side.opened[: batch.opened]), np.array(other.opened)
        numbers = np.arange(len(own)) + np.searchsorted(others, own)
        yield batch._replace(frames=renumbered(frames, numbers), gaps=renumbered(batch.gaps, numbers))


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.remove(path)


def gaps_path(out: str) -> str:
    """Where the gaps table of the frames table at `out` is: frames.parquet has frames.gaps.parquet."""
    stem, dot, ending = out.rpartition(".")
    return f"{stem}.gaps.{ending}" if dot and "/" not in ending else f"{out}.gaps"


class _Part:
    """A Parquet file that has its name only once it is whole."""

    def __init__(self, path: str, schema: Any, stack: ExitStack) -> None:
        self._path = path
        self._unfinished = f"{path}.unfinished"
        self._writer: Any = None
        self.rows = 0
        stack.callback(self._discard)
        self._writer = writer(self._unfinished, schema)

    def write(self, batch: Any) -> None:
        """Append a batch."""
        if batch.num_rows:
            self._writer.write_batch(batch)
            self.rows += batch.num_rows

    def close(self) -> None:
        """Finish the file and give it its name."""
        self._writer.close()
        os.replace(self._unfinished, self._path)

    def _discard(self) -> None:
        with suppress(OSError, pa.ArrowException):
            if self._writer is not None:
                self._writer.close()
        _remove(self._unfinished)
