"""`TableBuilder`: makes the rows of all tables from events, in Arrow batches."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from pulsarctl_wire.table.columns import batch_of
from pulsarctl_wire.table.frames import FrameRows
from pulsarctl_wire.table.messages import MessageRows
from pulsarctl_wire.table.parquet import GROUP_ROWS
from pulsarctl_wire.table.rows import Row, RowMaker
from pulsarctl_wire.table.schema import CONNECTIONS, GAPS, MESSAGES
from pulsarctl_wire.wire.detail import ALL, MessageOptions
from pulsarctl_wire.wire.frame import Event, HttpMessage
from pulsarctl_wire.wire.session.ending import EndedConnection

_MIN_EVENTS: Final = 64  # events that are added at a time
_MAX_ROWS: Final = 1_024  # rows of gaps and connections together
_MAX_BYTES: Final = 64 * 1024 * 1024  # bytes of payloads and distinct texts


class TableBuilder:
    """Collects events. `take_frames`, … return the rows of one table and start over, `take` those of all.

    `sources` are file names, by the file numbers in events' `packet` (see `PACKET_OFFSET_BITS`); it may grow
    while rows are collected. `payload`: keep the payload of each frame, as it was on the wire, except that
    possible credentials are masked. `cluster` is the label of all rows, `host` the host of their files, or a
    pattern of paths with {host}. `messages`: collect messages, too. `detail` is one of `DETAILS`.
    """

    def __init__(
        self,
        sources: Sequence[str] | Mapping[int, str],
        *,
        payload: bool = False,
        cluster: str | None = None,
        messages: MessageOptions | None = None,
        host: str | None = None,
        detail: str = ALL,
    ) -> None:
        self._frames = FrameRows(sources, payload, cluster, host, detail)
        self._rows = RowMaker(sources, cluster, host)
        self._gaps: list[Row] = []
        self._connections: list[Row] = []
        self._messages = None if messages is None else MessageRows(self._rows, messages)

    @property
    def is_full(self) -> bool:
        """Whether the caller should take rows now."""
        size = self._frames.size + (0 if self._messages is None else self._messages.size)
        rows = len(self._gaps) + len(self._connections)
        return rows >= _MAX_ROWS or self._frames.row_count >= GROUP_ROWS or size >= _MAX_BYTES

    def add_all(self, batches: Iterable[list[Event]]) -> Iterator[dict[str, Any]]:
        """Add all events; yield what `take` returns, at least once."""
        pending: list[Event] = []
        for events in batches:
            pending += events
            if len(pending) >= _MIN_EVENTS:
                yield from self.add_and_take(pending)
                pending = []
        yield from self.add_and_take(pending)
        yield self.take()

    def add_and_take(self, events: list[Event]) -> Iterator[dict[str, Any]]:
        """Add events; yield what `take` returns whenever it is full. (A frame may have many messages.)"""
        for part in [events] if self._messages is None else [[event] for event in events]:
            self.add(part)
            if self.is_full:
                yield self.take()

    def add(self, events: list[Event]) -> None:
        """Collect `events`."""
        other_events = self._frames.add(events)
        self._gaps += [
            self._rows.make_gap_row(event) for event in other_events if not isinstance(event, HttpMessage)
        ]
        if self._messages is not None:
            self._messages.add(events)

    def end_and_take(self, ending: EndedConnection) -> Iterator[dict[str, Any]]:
        """Add a connection that has ended; yield what `take` returns if it is full."""
        self.add_ended_connection(ending)
        if self.is_full:
            yield self.take()

    def add_ended_connection(self, ending: EndedConnection) -> None:
        """Collect a connection that has ended."""
        self._connections.append(self._rows.make_connection_row(ending))

    def take(self) -> dict[str, Any]:
        """Return the rows collected, by table (see `TABLES`), each as a `pyarrow.RecordBatch`."""
        return {
            "frames": self.take_frames(),
            "gaps": self.take_gaps(),
            "connections": self.take_connections(),
            "messages": self.take_messages(),
        }

    def take_frames(self) -> Any:
        """Return the rows of frames."""
        return self._frames.take()

    def take_gaps(self) -> Any:
        """Return the rows of gaps and malformed bytes."""
        rows, self._gaps = self._gaps, []
        return batch_of(rows, GAPS)

    def take_connections(self) -> Any:
        """Return the rows of connections."""
        rows, self._connections = self._connections, []
        return batch_of(rows, CONNECTIONS)

    def take_messages(self) -> Any:
        """Return the rows of messages."""
        return batch_of([] if self._messages is None else self._messages.take(), MESSAGES)
