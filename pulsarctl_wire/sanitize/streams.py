"""The bytes of one direction of a connection and what replaces them, by their offset in the stream.

A packet's bytes can be replaced only once the frame that they belong to is complete. So the original bytes
are kept until then, and the new ones for a while after, in case a packet repeats them.
"""

from bisect import bisect_right
from collections import deque
from contextlib import suppress
from typing import Any, Final

from google.protobuf.message import DecodeError

from pulsarctl_wire.capture.halves import Half
from pulsarctl_wire.capture.packets import NEXT, SYN, Segment
from pulsarctl_wire.sanitize.frames import FrameRewriter
from pulsarctl_wire.sanitize.noise import Noise
from pulsarctl_wire.sanitize.opened import Plain
from pulsarctl_wire.sanitize.strays import StrayRewriter
from pulsarctl_wire.wire.frame import Event, Frame, Gap, Malformed
from pulsarctl_wire.wire.frame_entry import build_cut_frame
from pulsarctl_wire.wire.framing.stream import FrameStream

_MIN_STRAYS: Final = 16 * 1024
"""Stray bytes to wait for, unless their stretch ends before: the first ones show what they are."""

KEPT_BYTES: Final = 32 * 1024 * 1024
"""New bytes of all streams that are kept."""

_MIN_FRAME: Final = 8  # bytes that show the sizes of a frame
_COST: Final = 128  # memory for a span, besides its bytes


class History:
    """The new bytes of all streams, of which the oldest are forgotten."""

    def __init__(self, limit: int = KEPT_BYTES) -> None:
        self._limit = limit
        self._size = 0
        self._spans: deque[tuple[Stream, int]] = deque()

    def add(self, stream: "Stream", start: int, data: bytes) -> None:
        """Add the new bytes of a stream at offset `start`, which come after those added before."""
        stream.starts.append(start)
        stream.spans[start] = data
        self._spans.append((stream, len(data) + _COST))
        self._size += len(data) + _COST
        while self._size > self._limit:
            oldest, size = self._spans.popleft()
            self._size -= size
            oldest.forget()


class Stream:
    """One direction of a connection.

    `resolved` is the offset up to which all bytes are replaced. Call `add` with the bytes of each packet,
    then `resolve` with the events that it completed.
    """

    def __init__(
        self,
        decoder: FrameStream,
        frames: FrameRewriter,
        strays: StrayRewriter,
        noise: Noise,
        history: History,
    ) -> None:
        self.resolved = 0
        self.half: Half | None = None
        """This direction of its connection, once known."""
        self.key = b""
        """The key of its segments."""
        self.plain = Plain()
        """What is to be written if it is TLS that was opened."""
        self.unfinished = -1, b""
        """Offset and new bytes of a frame that is not complete, if its packets could not wait."""
        self.waiting: deque[Any] = deque()
        """Packets that wait for their bytes; for the caller's use."""
        self.starts: list[int] = []
        self.spans: dict[int, bytes] = {}
        """Offset -> new bytes from there on; gaps have none."""
        self._forgotten = 0  # how many of `starts`
        self._decoder = decoder
        self._frames = frames
        self._strays = strays
        self._noise = noise
        self._history = history
        self._pieces: deque[tuple[int, bytes]] = deque()  # original bytes that are not replaced yet
        self._skipped_until = 0  # the end of the frame whose rest is skipped
        self._in_step = decoder.is_in_step  # a frame should begin at `resolved`

    def offset_of(self, half: Half, segment: Segment) -> int:
        """Return the offset of the first byte of a segment; `half` is this direction."""
        delivered = self._decoder.position + self._decoder.held_bytes
        if segment[3] & NEXT:
            return delivered - len(segment[4])
        return half.unwrap(segment[1] + bool(segment[3] & SYN)) - half.next + delivered

    def add(self, start: int, data: bytes) -> None:
        """Add the original bytes of a packet."""
        if start + len(data) > self.resolved:
            self._pieces.append((start, data))

    def resolve(self, events: list[Event], *, is_last: bool = False) -> None:
        """Replace all bytes that the events explain; `is_last`: no events will follow."""
        if self.half is not None and self.half.is_opened:
            self._carry(events)
            return
        for event in events:
            self._end_strays(event.offset)
            if isinstance(event, Frame):
                self._put(self._frames.rewrite(event))
                if event.partial:
                    self._skipped_until = event.offset + event.size
                self._in_step = True
            elif isinstance(event, Gap):
                self.resolved += event.size
                self._in_step = self.resolved <= self._skipped_until
            elif not (isinstance(event, Malformed) and event.protocol):
                # the size of another protocol's bytes leaves out holes, so it does not show where they end
                self._end_strays(event.offset + event.size)
        position = self._decoder.position
        self._replace_skipped(position)
        if is_last or position - self.resolved >= _MIN_STRAYS:
            self._replace_strays(position)
        while self._pieces and (is_last or self._pieces[0][0] + len(self._pieces[0][1]) <= self.resolved):
            self._pieces.popleft()

    def resolve_unfinished(self) -> None:
        """Replace the bytes of a frame that is not complete, as if it was cut there.

        Its packets cannot wait any longer. If the rest comes, it does not fit: the checksum is wrong then.
        """
        data, position = self._decoder.held, self._decoder.position
        if self.resolved != position or len(data) < _MIN_FRAME or not self._decoder.is_in_step:
            return
        with suppress(DecodeError):
            frame = build_cut_frame(
                data, self._decoder.connection, self._decoder.to_broker, position, None, 0
            )
            self.unfinished = position, self._frames.rewrite(frame)

    def _carry(self, events: list[Event]) -> None:
        """Replace the plain bytes in the events, and have the packets of the events carry them."""
        for event in events:
            if isinstance(event, Frame):
                self.plain.add(event.packet, event.offset, self._frames.rewrite(event))
            elif isinstance(event, Malformed):
                self._strays.begin()
                data = self._strays.rewrite(event.raw, in_step=True)
                rest = self._noise.like(bytes(event.size - len(event.raw)))
                self.plain.add(event.packet, event.offset, data + rest)

    def _end_strays(self, stop: int) -> None:
        """Replace the bytes up to `stop`, which are no frames; a frame or a gap follows."""
        if stop > self.resolved:
            self._replace_strays(stop)
            self._strays.begin()
            self._in_step = True

    def _replace_skipped(self, stop: int) -> None:
        """Replace the bytes up to `stop` that are the rest of a cut frame."""
        end = min(self._skipped_until, stop)
        if end > self.resolved:
            self._put(self._noise.like(self._collect(end)))

    def _replace_strays(self, stop: int) -> None:
        self._replace_skipped(stop)
        if stop > self.resolved:
            self._put(self._strays.rewrite(self._collect(stop), in_step=self._in_step))

    def _collect(self, stop: int) -> bytes:
        """Return the original bytes from `resolved` to `stop`."""
        out = bytearray(stop - self.resolved)
        for start, data in reversed(self._pieces):
            skipped = max(self.resolved - start, 0)
            part = data[skipped : max(stop - start, 0)]
            offset = start + skipped - self.resolved
            out[offset : offset + len(part)] = part
        return bytes(out)

    def _put(self, data: bytes) -> None:
        if data:
            self._history.add(self, self.resolved, data)
            self.resolved += len(data)

    def forget(self) -> None:
        """Forget the oldest new bytes."""
        del self.spans[self.starts[self._forgotten]]
        self._forgotten += 1
        if self._forgotten > 1_024 and self._forgotten * 2 > len(self.starts):
            del self.starts[: self._forgotten]
            self._forgotten = 0

    def read(self, start: int, original: bytes) -> bytes:
        """Return what replaces the bytes of a packet at `start`.

        Bytes whose replacement is not known become zeros; if none is known, all become noise.
        """
        stop = start + len(original)
        frame_at, unfinished = self.unfinished
        if self.resolved <= frame_at <= start and stop <= frame_at + len(unfinished):
            return unfinished[start - frame_at : stop - frame_at]
        out = bytearray(len(original))
        known_bytes = 0
        index = max(bisect_right(self.starts, start, self._forgotten) - 1, self._forgotten)
        while index < len(self.starts) and self.starts[index] < stop:
            begin = self.starts[index]
            span = self.spans[begin]
            low, high = max(begin, start), min(begin + len(span), stop)
            if low < high:
                out[low - start : high - start] = span[low - begin : high - begin]
                known_bytes += high - low
            index += 1
        return bytes(out) if known_bytes else self._noise.like(original)
