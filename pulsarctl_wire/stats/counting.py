"""`Stats` counts events in cells, and flushes these to rows from time to time. See the package."""

import sys
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from mypy_extensions import mypyc_attr

from pulsarctl_wire.stats.latencies import Latencies
from pulsarctl_wire.stats.rows import BUCKETS, NAMES, Cell, Ended, Key, Row
from pulsarctl_wire.wire.commands import ERROR_FIELDS, NUMBERS, command_name
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.frame import Event, Frame, HttpMessage
from pulsarctl_wire.wire.numbers import Numbers
from pulsarctl_wire.wire.PulsarApi_pb2 import ServerError
from pulsarctl_wire.wire.session.counts import ALWAYS_ERRORS, damage_of, error_of, latency_of, messages_in
from pulsarctl_wire.wire.session.ending import PULSAR, EndedConnection, WithoutData
from pulsarctl_wire.wire.session.knowledge import Knowledge

MAX_ROWS: Final = 10_000
"""Maximum number of rows of a kind."""
MAX_FRAMELESS: Final = 5_000
"""Connections without frames get no rows of their own once there are this many rows of connections."""
MAX_NAMES: Final = 5_000_000
"""Maximum bytes of the names of rows of a kind."""
MAX_LATENCY_BYTES: Final = 40_000_000
"""Maximum bytes of latencies."""
LONGEST: Final = 512
"""The first characters of a name that are significant."""
MAX_CELLS: Final = 16_000_000
"""Maximum bytes of cells; when they are exceeded, all cells are flushed and deleted."""

_FIRST_SHIFT: Final = 20  # buckets are 2**20 ns wide at first
_CELL_COST: Final = 1_000  # bytes, without its names
_MAX_PENDING: Final = 65_536  # events that are counted in cells before they are flushed

_SEND, _RECEIPT, _SEND_ERROR = NUMBERS["SEND"], NUMBERS["SEND_RECEIPT"], NUMBERS["SEND_ERROR"]
_KINDS: Final = tuple(NAMES)


@mypyc_attr(native_class=False)
class Stats:
    """Counts events. The counts of several processes can be merged. Call `finish` after the last event."""

    def __init__(self) -> None:
        self.total = Row()
        self.rows: dict[str, dict[Key, Row]] = {kind: {} for kind in NAMES}
        """Kind of row (a key of `NAMES`) -> the row's key -> the row."""
        self.damage: Counter[str] = Counter()
        """Counts of malformed, malformed_bytes, gaps, gap_bytes."""
        self.packets = self.cut_packets = self.dropped_packets = 0
        self.copies = self.longer_copies = 0
        self.skipped: dict[str, int] = {}
        self.forms: list[str] = []
        self.all_connections = 0
        self.without_data = WithoutData()
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self.shift = _FIRST_SHIFT
        """Buckets of series are 2**shift ns wide, and start at the epoch."""
        self.latencies: dict[Key, Latencies] = {}
        """Key -> latencies. A key has whether they are of publishes, and a row key (or None) of each kind.

        The kinds are in the order of `NAMES`. The command is that of the request, not of its answer.
        """
        self._room = MAX_LATENCY_BYTES
        self._names_room = dict.fromkeys(NAMES, MAX_NAMES)
        self._seen = Numbers()
        self._new_caches()

    def _new_caches(self) -> None:
        """Reset the state that is needed only while events come."""
        self._cells: dict[Key, Cell] = {}
        self._cells_size = 0
        self._pending = 0

    @property
    def connections(self) -> int:
        """The number of TCP connections with frames."""
        return len(self._seen)

    @property
    def seconds(self) -> float | None:
        """The time from the first event to the last one; None if the source has no times."""
        if self.first_ns is None or self.last_ns is None:
            return None
        return (self.last_ns - self.first_ns) / 1e9

    # -- counting

    def add(self, events: list[Event]) -> None:
        """Count `events`. This runs for every frame, so the loop is kept cheap."""
        cells = self._cells
        for event in events:
            if event.__class__ is not Frame:
                self._add_damage(event)
                continue
            kind = event.type
            head = None if event.partial else event.head
            key: Key
            if head is not None:
                name = event.producer or head.producer
                key = kind, event.connection, event.topic, event.subscription, name
            elif event.partial or kind in ERROR_FIELDS:
                key = self._special_key(event)
            else:
                producer = event.producer
                key = kind, event.connection, event.topic, event.subscription, producer, event.request_type
            try:
                cell = cells[key]
            except KeyError:
                cell = self._cell(key, event)
            cell.times.append(event.time_ns)
            cell.bytes += len(event.raw)
            if head is not None:
                cell.messages += messages_in(event)
                if event.checksum == "invalid":
                    cell.invalid += 1
            elif event.latency_ns is not None:
                latency = latency_of(event)
                if latency is not None:
                    cell.latencies.append(latency)
        self._pending += len(events)
        if self._pending > _MAX_PENDING:
            self.flush()

    def add_ended_connection(self, ending: EndedConnection) -> None:
        """Count a connection that has ended, and note how."""
        self.without_data.add(ending)
        connection, rows = ending.connection, self.rows["connection"]
        key = connection.index, connection.client, connection.server
        if key in rows or ending.protocol == PULSAR or len(rows) < MAX_FRAMELESS:
            row = self._admit("connection", key)
            if row.key:
                tls = f"; {connection.tls.describe()}" if connection.tls is not None else ""
                row.ended = Ended(ending.protocol, ending.end, ending.by_broker, ending.how + tls)

    def finish(self, decoder: Any) -> None:
        """Flush the cells, and copy the counts of `decoder`: a `Decoder` or `CountJob`."""
        self.flush()
        self._add_unanswered(decoder.knowledge)
        self.forms = decoder.forms
        self.packets = decoder.packets
        self.cut_packets = decoder.cut_packets
        self.dropped_packets = decoder.dropped_packets
        self.skipped = decoder.skipped
        copies = decoder.reassembler.copies
        self.copies, self.longer_copies = copies.total, copies.longer
        self.all_connections = decoder.reassembler.connections

    def _add_unanswered(self, knowledge: Knowledge) -> None:
        """Count the SENDs that surely got no answer, in the total and all rows that they belong to."""
        connections = {key[0]: key for key in self.rows["connection"] if key}
        for (topic, producer, *_), send in knowledge.unanswered.items():
            if send.is_sure:
                self.total.unanswered += 1
                keys: dict[str, Key] = {
                    "command": ("SEND",),
                    "connection": connections.get(send.connection.index, ()),
                    "producer": (producer[:LONGEST], topic),
                }
                if topic is not None:
                    keys["topic"] = (topic[:LONGEST],)
                for kind, key in keys.items():
                    rows = self.rows[kind]
                    if (row := rows.get(key) or rows.get(())) is not None:
                        row.unanswered += 1

    def _extend_time(self, first_ns: int, last_ns: int) -> None:
        """Include these times; widen the buckets if more than `BUCKETS` would be needed."""
        first = first_ns if self.first_ns is None else min(self.first_ns, first_ns)
        last = last_ns if self.last_ns is None else max(self.last_ns, last_ns)
        shift = self.shift
        while (last >> shift) - (first >> shift) >= BUCKETS:
            shift += 1
        self._widen(shift)
        self.first_ns, self.last_ns = first, last

    def _widen(self, shift: int) -> None:
        """Make all buckets 2**`shift` ns wide."""
        steps = shift - self.shift
        if steps <= 0 or self.first_ns is None:
            self.shift = max(shift, self.shift)
            return
        # bucket numbers are less than BUCKETS above the first one, so they can be stored modulo BUCKETS
        first = self.first_ns >> self.shift
        moves = [((first + n) % BUCKETS, (first + n >> steps) % BUCKETS) for n in range(BUCKETS)]
        for row in self._all_rows():
            slots = row.series
            if slots is not None:
                row.series = wider = array("Q", bytes(8 * BUCKETS))
                for source, target in moves:
                    wider[target] += slots[source]
        self.shift = shift

    def _all_rows(self) -> Iterator[Row]:
        yield self.total
        for rows in self.rows.values():
            yield from rows.values()

    def flush(self) -> None:
        """Flush all cells to their rows."""
        filled = [cell for cell in self._cells.values() if cell.times]
        self._pending = 0
        edges = [time_ns for cell in filled for time_ns in cell.edges()]
        if edges:
            self._extend_time(min(edges), max(edges))
        for cell in filled:
            if cell.latencies:
                self._add_latencies(cell.latency_key, cell.latencies)
            cell.flush(self.shift)

    def _add_damage(self, event: Event) -> None:
        if isinstance(event, HttpMessage):
            return
        if event.time_ns is not None:
            self._extend_time(event.time_ns, event.time_ns)
        self.damage.update(damage_of(event))

    # -- cells

    def _special_key(self, frame: Frame) -> Key:
        """Return the cell key of a frame that is incomplete, or may report an error."""
        kind, connection = frame.type, frame.connection
        if frame.partial:
            return kind, connection, frame.topic, frame.subscription, None, not frame.has_command
        error = error_of(frame)
        if error is None and kind in ALWAYS_ERRORS:
            error = 0
        return kind, connection, frame.topic, frame.subscription, frame.producer, frame.request_type, error

    def _cell(self, key: Key, frame: Frame) -> Cell:
        """Return the cell of a key that has none yet, or whose names are too long and must be cut first."""
        names = [part for part in key if isinstance(part, str | bytes)]
        if any(len(name) > LONGEST for name in names):
            key = tuple(part[:LONGEST] if isinstance(part, str | bytes) else part for part in key)
            cell = self._cells.get(key)
            if cell is not None:
                return cell
        if self._cells_size > MAX_CELLS:
            self._forget()
        self._cells_size += _CELL_COST + sum(map(sys.getsizeof, names))
        cell = self._cells[key] = self._new_cell(key, frame)
        return cell

    def _forget(self) -> None:
        """Flush and delete all cells."""
        self.flush()
        self._cells.clear()
        self._cells_size = 0

    def _new_cell(self, key: Key, frame: Frame) -> Cell:
        rows = {kind: self._admit(kind, row_key) for kind, row_key in self._row_keys(key, frame).items()}
        answered = rows["command"]
        if frame.request_type is not None:
            answered = self._admit("command", (command_name(frame.request_type),))
        keys = [rows[kind].key if kind in rows else None for kind in _KINDS[1:]]
        cell = Cell([self.total, *rows.values()], (frame.type == _RECEIPT, answered.key, *keys))
        cell.is_send, cell.is_error, cell.is_partial = frame.type == _SEND, "error" in rows, frame.partial
        self._seen.add(frame.connection.index)
        return cell

    def _row_keys(self, key: Key, frame: Frame) -> dict[str, Key]:
        """Return the keys of the rows in which a frame counts; `key` is the key of its cell.

        A cell's key has command, connection, topic, subscription and producer, maybe something else, and
        last, if there is a seventh part, the error.
        """
        connection, topic, subscription = frame.connection, frame.topic, frame.subscription
        keys: dict[str, Key] = {
            "command": (frame.command,),
            "connection": (connection.index, connection.client, connection.server),
        }
        if topic is not None:
            keys["topic"] = (topic[:LONGEST],)
        if key[4] is not None:
            keys["producer"] = as_text(key[4][:LONGEST]), topic
        if subscription is not None:
            keys["subscription"] = subscription[:LONGEST], topic
        if len(key) == 7 and key[6] is not None:
            error = ServerError.DESCRIPTOR.values_by_number.get(key[6])
            request = frame.command if frame.request_type is None else command_name(frame.request_type)
            address = connection.client.rpartition(":")[0]
            keys["error"] = error.name if error else str(key[6]), request, topic, address
        return keys

    def _admit(self, kind: str, key: Key) -> Row:
        """Return the row of `key`, created if there is space; otherwise the row of all others."""
        rows = self.rows[kind]
        row = rows.get(key)
        if row is None:
            size = sum(map(sys.getsizeof, key))
            if len(rows) >= MAX_ROWS or size > self._names_room[kind]:
                key = ()
                row = rows.get(key)
            else:
                self._names_room[kind] -= size
        if row is None:
            row = rows[key] = Row(key)
        return row

    # -- latencies

    def _add_latencies(self, key: Key, values: Sequence[int] | Latencies) -> None:
        """Add latencies to those of `key` (see `latencies`), or of its command alone if memory is short."""
        latencies = self.latencies.get(key)
        if self._room <= 0 and (latencies is None or not latencies.settled) and any(key[2:]):
            for kind, row_key in zip(_KINDS[1:], key[2:], strict=True):
                if row_key is not None:
                    self.rows[kind][row_key].lost = True
            common = (*key[:2], *[None] * (len(NAMES) - 1))
            if latencies is not None:
                self._add_latencies(common, self.latencies.pop(key))
            self._add_latencies(common, values)
            return
        if latencies is None:
            latencies = self.latencies[key] = Latencies()
            self._room -= latencies.cost
        self._room += latencies.cost
        if isinstance(values, Latencies):
            latencies.merge(values)
        else:
            latencies.add(values)
        self._room -= latencies.cost

    # -- merging and renaming

    def merge(self, other: "Stats") -> None:
        """Add the counts of `other`."""
        self.flush()
        other.flush()
        if other.first_ns is not None and other.last_ns is not None:
            self._extend_time(other.first_ns, other.last_ns)
        shift = max(self.shift, other.shift)
        self._widen(shift)
        other._widen(shift)
        self.total.merge(other.total)
        for kind, rows in other.rows.items():
            for key, row in rows.items():
                self._admit(kind, key).merge(row)
        for key, latencies in other.latencies.items():
            parts = zip(_KINDS, key[1:], strict=True)
            row_keys = [None if part is None else self._admit(kind, part).key for kind, part in parts]
            self._add_latencies((key[0], *row_keys), latencies)
        self.damage.update(other.damage)
        self._seen.merge(other._seen)
        self.without_data.merge(other.without_data)

    def __getstate__(self) -> Any:
        self.flush()
        caches = {"_cells", "_cells_size", "_pending"}
        return {name: value for name, value in self.__dict__.items() if name not in caches}

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)
        self._new_caches()

    def rename(self, numbers: Mapping[int, int], names: Mapping[str, str | None]) -> None:
        """Renumber the connections in `numbers`, and replace the stand-ins in `names` by the real names."""
        self._forget()
        self._seen.rename(numbers)

        for kind, rows in self.rows.items():
            self.rows[kind] = renamed = dict[Key, Row]()
            for row in rows.values():
                key = _rename_key(kind, row.key, numbers, names)
                if key in renamed:
                    renamed[key].merge(row)
                elif key is not None:
                    row.key = key
                    renamed[key] = row
        latencies, self.latencies = self.latencies, {}
        for key, values in latencies.items():
            new_key = (
                key[0],
                *[
                    _rename_key(kind, part, numbers, names)
                    for kind, part in zip(_KINDS, key[1:], strict=True)
                ],
            )
            if new_key in self.latencies:
                self.latencies[new_key].merge(values)
            else:
                self.latencies[new_key] = values


def _rename_key(
    kind: str, key: Key | None, numbers: Mapping[int, int], names: Mapping[str, str | None]
) -> Any:
    """Return a row's key, renumbered or renamed; None if `names` maps its first name to None."""
    if not key or kind == "command":
        return key
    if kind == "connection":
        return numbers.get(key[0], key[0]), *key[1:]
    texts = [names.get(part, part) for part in key]
    if texts[0] is None:
        return None
    return tuple(text and text[:LONGEST] for text in texts)
