"""Events counted: cells while they come, rows when the time moves on. See the package."""

import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from pulsarctl_wire.capture.sources import Decoder
from pulsarctl_wire.stats.latencies import Latencies
from pulsarctl_wire.stats.rows import BUCKETS, NAMES, Cell, Ended, Key, Row
from pulsarctl_wire.wire.commands import ERROR_FIELDS, NUMBERS, command_name
from pulsarctl_wire.wire.ending import PULSAR, Ending, WithoutData
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.frame import Connection, Event, Frame, Gap, Malformed
from pulsarctl_wire.wire.numbers import Numbers
from pulsarctl_wire.wire.PulsarApi_pb2 import ServerError
from pulsarctl_wire.wire.session import bound

MAX_ROWS: Final = 10_000
"""Rows of a kind."""
MAX_FRAMELESS: Final = 5_000
"""Rows of connections up to which one without frames gets its own: the rest is kept for those with frames."""
MAX_NAMES: Final = 5_000_000
"""Bytes of the names of rows of a kind."""
ROOM: Final = 40_000_000
"""Bytes of latencies."""
LONGEST: Final = 512
"""Characters of a name that are told apart."""
MAX_CELLS: Final = 16_000_000
"""Bytes of cells that are remembered; beyond that they are made anew."""

_FIRST_SHIFT: Final = 20  # buckets are 2**20 ns wide at first
_CELL_COST: Final = 1_000  # bytes, without its names
_MAX_PENDING: Final = 65_536  # events that are noted in cells
_MAX_PRODUCERS: Final = 16_384
_PART: Final = 256  # rows of a part

_SEND, _RECEIPT, _SEND_ERROR = NUMBERS["SEND"], NUMBERS["SEND_RECEIPT"], NUMBERS["SEND_ERROR"]
_PRODUCER, _PRODUCER_SUCCESS = NUMBERS["PRODUCER"], NUMBERS["PRODUCER_SUCCESS"]
_ALWAYS_ERRORS: Final = {_SEND_ERROR, NUMBERS["ERROR"]}
_BY: Final = tuple(NAMES)


_SPECIAL: Final = {*ERROR_FIELDS, _PRODUCER, _PRODUCER_SUCCESS}


class Stats:
    """Counts events; those of several processes can be added up. `finish` comes behind the last event."""

    def __init__(self) -> None:
        self.total = Row()
        self.rows: dict[str, dict[Key, Row]] = {by: {} for by in NAMES}
        """What they are by -> the row's key -> the row."""
        self.damage: Counter[str] = Counter()
        """Of malformed, malformed_bytes, gaps, gap_bytes."""
        self.packets = self.cut_packets = self.dropped_packets = 0
        self.connections = 0
        """TCP connections with frames."""
        self.all_connections = 0
        self.without_data = WithoutData()
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self.shift = _FIRST_SHIFT
        """Buckets of series are 2**shift ns wide and counted from the epoch."""
        self.latencies: dict[Key, Latencies] = {}
        """Whether they are of publishes, then the keys of the rows that they are of, in the order of `NAMES`.

        The command is that of the request.
        """
        self._room = ROOM
        self._names_room = dict.fromkeys(NAMES, MAX_NAMES)
        self._new_caches()

    def _new_caches(self) -> None:
        """What is of use only while events come."""
        self._cells: dict[Key, Cell] = {}
        self._cells_size = 0
        self._pending = 0
        self._seen = Numbers()
        self._names: dict[tuple[Connection, int], Any] = {}
        self._opening: dict[tuple[Connection, int], int] = {}

    @property
    def seconds(self) -> float | None:
        """From the first event to the last one; None where the source has no times."""
        if self.first_ns is None or self.last_ns is None:
            return None
        return (self.last_ns - self.first_ns) / 1e9

    # -- counting

    def add(self, events: list[Event]) -> None:
        """Count `events`. All frames pass here, so that it does little for each."""
        cells = self._cells
        for event in events:
            if event.__class__ is not Frame:
                self._add_damage(event)
                continue
            kind = event.type
            metadata = None if event.partial else event.metadata
            key: Key
            if metadata is not None:
                name = metadata.producer_name
                key = kind, event.connection, event.topic, event.subscription, name
            elif event.partial or kind in _SPECIAL:
                key = self._special_key(event)
            elif kind == _RECEIPT:
                producer = event.base.send_receipt.producer_id  # type: ignore[union-attr]
                key = kind, event.connection, event.topic, producer, event.request_type
            else:
                key = kind, event.connection, event.topic, event.subscription, event.request_type
            try:
                cell = cells[key]
            except KeyError:
                cell = self._cell(key, event)
            cell.times.append(event.time_ns)
            cell.bytes += len(event.raw)
            if metadata is not None:
                if metadata.num_chunks_from_msg > 1:
                    cell.messages += event.joined is not None
                else:
                    cell.messages += metadata.num_messages_in_batch
                if event.checksum == "invalid":
                    cell.invalid += 1
            elif event.latency_ns is not None:
                cell.latencies.append(event.latency_ns)
        self._pending += len(events)
        if self._pending > _MAX_PENDING:
            self.flush()

    def end(self, ending: Ending) -> None:
        """Take note of what became of a connection."""
        self.without_data.add(ending)
        connection, rows = ending.connection, self.rows["connection"]
        key = connection.index, connection.client, connection.server
        if key in rows or ending.protocol == PULSAR or len(rows) < MAX_FRAMELESS:
            row = self._admit("connection", key)
            if row.key:
                row.ended = Ended(ending.protocol, ending.end, ending.by_broker, ending.how)

    def finish(self, decoder: Decoder) -> None:
        """Take over what the decoder has counted itself."""
        self.flush()
        self.packets = decoder.packets
        self.cut_packets = decoder.cut_packets
        self.dropped_packets = decoder.dropped_packets
        self.all_connections = decoder.reassembler.connections

    def _span(self, first_ns: int, last_ns: int) -> None:
        first = first_ns if self.first_ns is None else min(self.first_ns, first_ns)
        last = last_ns if self.last_ns is None else max(self.last_ns, last_ns)
        shift = self.shift
        while (last >> shift) - (first >> shift) >= BUCKETS:
            shift += 1
        self._widen(shift)
        self.first_ns, self.last_ns = first, last

    def _widen(self, shift: int) -> None:
        """Make all buckets 2**`shift` ns wide."""
        by = shift - self.shift
        if by <= 0 or self.first_ns is None:
            self.shift = max(shift, self.shift)
            return
        # numbers that occur lie within BUCKETS of the first one, and are kept modulo BUCKETS
        first = self.first_ns >> self.shift
        moves = [((first + n) % BUCKETS, (first + n >> by) % BUCKETS) for n in range(BUCKETS)]
        for row in self._all_rows():
            old = row.series
            if old is not None:
                row.series = new = array("Q", bytes(8 * BUCKETS))
                for source, target in moves:
                    new[target] += old[source]
        self.shift = shift

    def _all_rows(self) -> Iterator[Row]:
        yield self.total
        for rows in self.rows.values():
            yield from rows.values()

    def flush(self) -> None:
        """Empty all cells into their rows."""
        filled = [cell for cell in self._cells.values() if cell.times]
        self._pending = 0
        edges = [time_ns for cell in filled for time_ns in cell.edges()]
        if edges:
            self._span(min(edges), max(edges))
        for cell in filled:
            if cell.latencies:
                self._keep(cell.latency_key, cell.latencies)
            cell.empty(self.shift)

    def _add_damage(self, event: Event) -> None:
        if event.time_ns is not None:
            self._span(event.time_ns, event.time_ns)
        if isinstance(event, Gap):
            self.damage["gaps"] += 1
            self.damage["gap_bytes"] += event.size
        elif isinstance(event, Malformed):
            self.damage["malformed"] += 1
            self.damage["malformed_bytes"] += event.size

    # -- cells

    def _special_key(self, frame: Frame) -> Key:
        """The cell's key of a frame that is cut, reports an error or opens a producer."""
        kind, connection = frame.type, frame.connection
        if frame.partial:
            return kind, connection, frame.topic, frame.subscription, None, frame.base is None
        body: Any = frame.body
        producer = error = None
        if kind == _PRODUCER and body is not None:
            self._opening[connection, body.request_id] = body.producer_id
            bound(self._opening, _MAX_PRODUCERS)
        elif kind == _PRODUCER_SUCCESS and body is not None:
            opened = self._opening.pop((connection, body.request_id), None)
            if opened is not None:
                self._name(connection, opened, body.producer_name)
        elif kind in _ALWAYS_ERRORS:
            producer = body.producer_id if kind == _SEND_ERROR and body is not None else None
            error = body.error if body is not None else 0
        elif body is not None and body.HasField(ERROR_FIELDS[kind]):
            error = getattr(body, ERROR_FIELDS[kind])
        return kind, connection, frame.topic, frame.subscription, frame.request_type, producer, error

    def _name(self, connection: Connection, producer: int, name: str) -> None:
        """Producer number `producer` is called `name` from now on."""
        if self._names.get((connection, producer)) not in (None, name):
            self._forget()  # cells of its receipts count for the producer before it
        self._names[connection, producer] = name
        bound(self._names, _MAX_PRODUCERS)

    def _cell(self, key: Key, frame: Frame) -> Cell:
        """The cell of a key that has none, or is longer than is kept."""
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
        """Make cells anew from now on."""
        self.flush()
        self._cells.clear()
        self._cells_size = 0

    def _new_cell(self, key: Key, frame: Frame) -> Cell:
        rows = {by: self._admit(by, row_key) for by, row_key in self._row_keys(key, frame).items()}
        answered = rows["command"]
        if frame.request_type is not None:
            answered = self._admit("command", (command_name(frame.request_type),))
        keys = [rows[by].key if by in rows else None for by in _BY[1:]]
        cell = Cell([self.total, *rows.values()], (frame.type == _RECEIPT, answered.key, *keys))
        cell.sent, cell.is_error, cell.partial = frame.type == _SEND, "error" in rows, frame.partial
        self.connections += self._seen.add(frame.connection.index)
        return cell

    def _row_keys(self, key: Key, frame: Frame) -> dict[str, Key]:
        """The keys of the rows that a frame counts for; `key` is its cell's."""
        connection, topic, subscription = frame.connection, frame.topic, frame.subscription
        keys: dict[str, Key] = {
            "command": (frame.command,),
            "connection": (connection.index, connection.client, connection.server),
        }
        if topic is not None:
            keys["topic"] = (topic[:LONGEST],)
        name = self._producer_of(key, frame)
        if name is not None:
            keys["producer"] = name, topic
        if subscription is not None:
            keys["subscription"] = subscription[:LONGEST], topic
        if len(key) == 7 and key[6] is not None:
            error = ServerError.DESCRIPTOR.values_by_number.get(key[6])
            request = frame.command if frame.request_type is None else command_name(frame.request_type)
            address = connection.client.rpartition(":")[0]
            keys["error"] = error.name if error else str(key[6]), request, topic, address
        return keys

    def _producer_of(self, key: Key, frame: Frame) -> str | None:
        """The name of the producer that a frame comes from or goes to, as far as it is known."""
        name: Any = None
        if frame.partial:
            return None
        if frame.metadata is not None:
            name = frame.metadata.producer_name
            if frame.type == _SEND:
                body: Any = frame.body
                known = body is None or (frame.connection, body.producer_id) in self._names
                if not known:
                    self._name(frame.connection, body.producer_id, name)
        elif frame.type == _RECEIPT:
            name = self._names.get((frame.connection, key[3]))
        elif len(key) == 7 and key[5] is not None:
            name = self._names.get((frame.connection, key[5]))
        return as_text(name[:LONGEST]) if name is not None else None

    def _admit(self, by: str, key: Key) -> Row:
        """The row that counts what is about `key`: its own, or that of all others."""
        rows = self.rows[by]
        row = rows.get(key)
        if row is None:
            size = sum(map(sys.getsizeof, key))
            if len(rows) >= MAX_ROWS or size > self._names_room[by]:
                key = ()
                row = rows.get(key)
            else:
                self._names_room[by] -= size
        if row is None:
            row = rows[key] = Row(key)
        return row

    # -- latencies

    def _keep(self, key: Key, values: Sequence[int] | Latencies) -> None:
        """Keep latencies for a key: whether they are of publishes, their request's row, the other rows."""
        kept = self.latencies.get(key)
        if self._room <= 0 and (kept is None or not kept.settled) and any(key[2:]):
            for by, row_key in zip(_BY[1:], key[2:], strict=True):
                if row_key is not None:
                    self.rows[by][row_key].lost = True
            rest = (*key[:2], *[None] * (len(NAMES) - 1))
            if kept is not None:
                self._keep(rest, self.latencies.pop(key))
            self._keep(rest, values)
            return
        if kept is None:
            kept = self.latencies[key] = Latencies()
            self._room -= kept.cost
        self._room += kept.cost
        if isinstance(values, Latencies):
            kept.merge(values)
        else:
            kept.add(values)
        self._room -= kept.cost

    # -- several

    def merge(self, other: "Stats") -> None:
        """Add the counts of `other`, made of other connections, or a part of another one (see `parts`)."""
        self.flush()
        other.flush()
        if other.first_ns is not None and other.last_ns is not None:
            self._span(other.first_ns, other.last_ns)
        shift = max(self.shift, other.shift)
        self._widen(shift)
        other._widen(shift)
        self.total.merge(other.total)
        for by, rows in other.rows.items():
            for key, row in rows.items():
                self._admit(by, key).merge(row)
        for key, latencies in other.latencies.items():
            keys = zip(_BY, key[1:], strict=True)
            rest = [None if one is None else self._admit(by, one).key for by, one in keys]
            self._keep((key[0], *rest), latencies)
        self.damage.update(other.damage)
        self.packets = max(self.packets, other.packets)
        self.cut_packets = max(self.cut_packets, other.cut_packets)
        self.dropped_packets = max(self.dropped_packets, other.dropped_packets)
        self.connections += other.connections
        self.all_connections += other.all_connections
        self.without_data.merge(other.without_data)

    def parts(self) -> Iterator["Stats"]:
        """The same in parts, to be merged one after the other where the whole would take too much memory."""
        self.flush()
        part = self._part()
        part.total, part.damage = self.total, self.damage
        part.packets, part.cut_packets = self.packets, self.cut_packets
        part.dropped_packets = self.dropped_packets
        part.connections, part.all_connections = self.connections, self.all_connections
        part.without_data = self.without_data
        yield part
        for by, rows in self.rows.items():
            for some in _pieces(rows.items(), _PART):
                part = self._part()
                part.rows[by] = dict(some)
                yield part
        for latencies in _pieces(self.latencies.items(), _PART // 4):
            part = self._part()
            part.latencies = dict(latencies)
            yield part

    def _part(self) -> "Stats":
        part = Stats()
        part.first_ns, part.last_ns, part.shift = self.first_ns, self.last_ns, self.shift
        return part

    def __getstate__(self) -> Any:
        self.flush()
        caches = {"_cells", "_cells_size", "_pending", "_seen", "_names", "_opening"}
        return {name: value for name, value in self.__dict__.items() if name not in caches}

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)
        self._new_caches()

    def renumber(self, number: Callable[[int], int]) -> None:
        """Give connections other numbers: `number` is a function from one to the other."""
        self._forget()

        def renamed(key: Key | None) -> Key | None:
            return (number(key[0]), *key[1:]) if key else key

        rows = self.rows["connection"]
        self.rows["connection"] = {}
        for row in rows.values():
            row.key = renamed(row.key) or ()
            self.rows["connection"][row.key] = row
        self.latencies = {
            (*key[:2], renamed(key[2]), *key[3:]): latencies for key, latencies in self.latencies.items()
        }


def _pieces(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    iterator = iter(items)
    while piece := list(islice(iterator, size)):
        yield piece
