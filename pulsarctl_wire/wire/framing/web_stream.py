"""`WebStream`: a `FrameStream` that also reads lookups over HTTP, where the peers speak HTTP."""

from mypy_extensions import mypyc_attr

from pulsarctl_wire.wire.frame import MAX_FRAME_SIZE, Connection, Event
from pulsarctl_wire.wire.framing.http import HttpReader
from pulsarctl_wire.wire.framing.stream import FrameStream


@mypyc_attr(allow_interpreted_subclasses=True)
class WebStream(FrameStream):
    """A stream whose events include an `HttpMessage` for each request and answer of a lookup over HTTP."""

    __slots__ = ("_from_start", "_messages", "_reader", "_seen")

    def __init__(
        self, connection: Connection, to_broker: bool, *, from_start: bool = True, limit: int = MAX_FRAME_SIZE
    ) -> None:
        super().__init__(connection, to_broker, from_start=from_start, limit=limit)
        self._from_start = from_start
        self._reader: HttpReader | None = None  # takes no memory on other connections
        self._messages: list[Event] | None = None
        self._seen = 0  # offset after the bytes that were read, while the stream searches for a frame

    def gap(self, size: int, time_ns: int | None = None, packet: int = 0) -> list[Event]:
        """Note a gap. Overrides the parent's method."""
        events = super().gap(size, time_ns, packet)
        if self._reader is not None:
            events += self._reader.skip(size)
            self.kept_bytes = self._reader.held_bytes
        elif self.connection.calls:
            self.connection.calls.clear()  # their answers may be missing
        return events

    def close(self) -> list[Event]:
        """Note the end. Overrides the parent's method."""
        events = super().close()
        if self._reader is not None:
            events = [*self._reader.close(), *events]
            self._reader, self.kept_bytes = None, 0
        if not self.to_broker:
            self.connection.calls = None  # there are no more answers; this ends a cycle of references
        return events

    def _pass_over(self, data: bytes) -> None:
        if self.protocol == "HTTP":
            self._read(data, self._lost.offset + self._lost.size)
        super()._pass_over(data)

    def _read(self, data: bytes, offset: int) -> None:
        if self._reader is None:
            self._reader = HttpReader(self.connection, from_start=self._from_start and not offset)
        messages = self._reader.feed(data, offset, self.to_broker, self._time_ns, self._packet)
        if messages:
            self._messages = [*(self._messages or ()), *messages]
        self.kept_bytes = self._reader.held_bytes

    def _run(self, data: bytes, pos: int, events: list[Event], is_last: bool = False) -> int:
        if self._is_searching and not (self.spoke or self.protocol):
            # a search passes bytes over late, so that answers would come before their requests
            start = max(self._seen - self.position, pos)
            self._read(data[start:], self.position + start)
            self._seen = self.position + len(data)
        stop = super()._run(data, pos, events, is_last)
        if self._messages is not None:
            events += self._messages
            self._messages = None
        if self.spoke and self._reader is not None:
            self._reader, self.kept_bytes = None, 0
        return stop
