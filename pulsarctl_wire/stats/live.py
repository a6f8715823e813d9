"""Counts live traffic: rates, latencies, and what is waiting for an answer.

    opened, events, closed  must be called by one thread, in the order in which things happened
    snapshot                returns all counters at one moment (snapshot.py), as plain values for any thread

Events must have passed through the `LedgerState` of their connection, which knows topics, latencies and what
is waiting. The counters are in meters.py. The caller passes all times; there is no clock in here. The caller
may be late: rates, recent times and ages refer to the time of the traffic that was counted last.

Memory is bounded: `MAX_TOPICS` topics are counted separately, all others together as `OTHERS`. The last
`KEPT` ended connections are kept. The state of a connection has its own bounds.
"""

from collections import Counter, defaultdict, deque
from itertools import chain
from typing import Any, Final, NamedTuple

from pulsarctl_wire.stats.meters import Meter, Passage, Timer
from pulsarctl_wire.stats.rows import OTHERS
from pulsarctl_wire.stats.snapshot import ROWS, Backlog, ConnectionRow, Snapshot, TopicRow, Traffic
from pulsarctl_wire.wire.commands import ERROR_FIELDS, NAMES, NUMBERS, PAYLOAD_TYPES
from pulsarctl_wire.wire.frame import Connection, Event, Frame, Malformed
from pulsarctl_wire.wire.server_errors import error_name
from pulsarctl_wire.wire.session.counts import damage_of, error_of, is_publish, latency_of, messages_in
from pulsarctl_wire.wire.session.exchanges import ProducerLedger
from pulsarctl_wire.wire.session.ledgers import ConsumerLedger, LedgerState
from pulsarctl_wire.wire.session.sinks import Sink

MAX_TOPICS: Final = 1_000
"""Topics that are counted separately: the first ones seen."""
KEPT: Final = 256
"""Number of ended connections that are kept: the last ones."""
LONGEST: Final = 512
"""The first characters of a name that are kept."""

_SEND: Final = NUMBERS["SEND"]


class _Topic:
    """The counters of a topic: its entries in both directions, and errors."""

    __slots__ = ("delivered", "errors", "sent")

    def __init__(self) -> None:
        self.sent, self.delivered = Meter(), Meter()
        self.errors = 0


class _Connection:
    """The state and the counters of a connection; `meters` are indexed by `to_broker`."""

    __slots__ = ("connection", "errors", "is_open", "meters", "state")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.is_open = True
        self.state: LedgerState | None = None
        self.meters = Meter(), Meter()
        self.errors = 0


class Live(Sink):
    """Counts live traffic from `started_ns` (ns since the epoch) on."""

    def __init__(self, started_ns: int) -> None:
        self._started_ns = started_ns
        self._passage = Passage(started_ns)
        self._meters = Meter(), Meter()
        self._open: dict[int, _Connection] = {}
        self._ended: deque[_Connection] = deque(maxlen=KEPT)
        self._all_connections = 0
        self._topics: dict[str, _Topic] = {}
        self._commands: Counter[tuple[int, bool]] = Counter()
        self._errors: Counter[str] = Counter()
        self._publishes = Timer()
        self._requests: defaultdict[str, Timer] = defaultdict(Timer)
        self._damage: Counter[str] = Counter()
        self._checksum_failures = 0
        self.missed_frames = 0
        """Frames that were forwarded but not decoded, or not shown."""

    def opened(self, connection: Connection, time_ns: int, state: LedgerState | None = None) -> None:
        """Add a connection and its state. If one with the same index is still open, close that first."""
        self.closed(connection, time_ns)
        self._begin(connection).state = state

    def _begin(self, connection: Connection) -> _Connection:
        row = self._open[connection.index] = _Connection(connection)
        self._all_connections += 1
        return row

    def closed(self, connection: Connection, time_ns: int, by_broker: bool = False) -> None:
        """Close a connection, with its producers and consumers. Ignored if it is not open."""
        self._passage.observe(time_ns)
        row = self._open.pop(connection.index, None)
        if row is not None:
            row.is_open = False
            row.state = None
            self._ended.append(row)

    def missed(self, connection: Connection, to_broker: bool, size: int, frames: int, time_ns: int) -> None:
        """Count missed frames; their bytes come as a Gap event."""
        self.missed_frames += frames

    def events(self, events: list[Event]) -> None:
        """Count events of one connection, after its state has seen them, and before `closed`."""
        if not events:
            return
        connection = events[-1].connection
        row = self._open.get(connection.index) or self._begin(connection)
        now = self._time(events[-1])
        commands = self._commands
        counts = [0, 0, 0], [0, 0, 0]  # frames, bytes, messages, indexed by `to_broker`
        for event in events:
            count = counts[event.to_broker]
            if event.__class__ is not Frame:
                self._damage.update(damage_of(event))
                count[1] += event.size
                continue
            count[1] += len(event.raw)
            if event.partial:
                continue
            count[0] += 1
            kind = event.type
            commands[kind if kind in NAMES else -1, event.to_broker] += 1
            if kind in PAYLOAD_TYPES:
                count[2] += self._add_entry(event, now)
            latency = latency_of(event)
            if latency is not None:
                self._timer(event).add(now, latency)
            if kind in ERROR_FIELDS:
                self._add_error(row, event)
        for to_broker, (frames, size, messages) in enumerate(counts):
            if size:
                row.meters[to_broker].add(now, frames, size, messages)
                self._meters[to_broker].add(now, frames, size, messages)

    def _time(self, last: Any) -> int:
        """Return the time at which to count events, of which `last` is the last one."""
        time_ns: int | None = last.time_ns
        if time_ns is None or (last.partial if last.__class__ is Frame else last.__class__ is Malformed):
            return self._passage.at_ns  # the bytes of an incomplete frame may have come long ago
        return self._passage.observe(time_ns)

    def _add_entry(self, frame: Frame, now: int) -> int:
        """Count a SEND or MESSAGE for its topic; return how many messages it has."""
        messages = messages_in(frame)
        if frame.checksum == "invalid":
            self._checksum_failures += 1
        if frame.topic is not None:
            topic = self._topic(frame.topic)
            meter = topic.sent if frame.type == _SEND else topic.delivered
            meter.add(now, 1, len(frame.raw), messages)
        return messages

    def _add_error(self, row: _Connection, frame: Frame) -> None:
        error = error_of(frame)
        if error is not None:
            self._errors[error_name(error)] += 1
            row.errors += 1
            if frame.topic is not None:
                self._topic(frame.topic).errors += 1

    def _topic(self, name: str) -> _Topic:
        """Return the counters of a topic, or those of `OTHERS`."""
        topic = self._topics.get(name)
        if topic is None:
            name = self._name(name[:LONGEST])
            topic = self._topics.get(name)
            if topic is None:
                topic = self._topics[name] = _Topic()
        return topic

    def _name(self, name: str) -> str:
        """Return the name under which a topic is counted: its own, or `OTHERS`."""
        return name if name in self._topics or len(self._topics) < MAX_TOPICS else OTHERS

    def _timer(self, answer: Frame) -> Timer:
        if is_publish(answer):
            return self._publishes
        return self._requests[NAMES.get(answer.request_type or 0, "?")]

    # -- reading

    def snapshot(self, now_ns: int) -> Snapshot:
        """Return all counters at `now_ns` (ns since the epoch)."""
        at_ns = self._passage.read(now_ns)
        rows = [*self._open.values(), *self._ended]
        owners = [_owners(row, self._passage.now_ns) for row in rows]
        connections = [_connection_row(*pair, at_ns) for pair in zip(rows, owners, strict=True)]
        connections.sort(key=lambda row: (not row.is_open, *_rank(row.to_broker, row.to_client), row.index))
        producers = list(chain.from_iterable(owner.producers for owner in owners))
        consumers = list(chain.from_iterable(owner.consumers for owner in owners))
        return Snapshot(
            now_ns=now_ns,
            started_ns=self._started_ns,
            to_broker=self._meters[True].read(at_ns),
            to_client=self._meters[False].read(at_ns),
            open_connections=len(self._open),
            all_connections=self._all_connections,
            backlog=_backlog(_Owners(producers, consumers)),
            commands={
                (NAMES.get(kind, "UNKNOWN"), to_broker): count
                for (kind, to_broker), count in self._commands.items()
            },
            errors=dict(self._errors),
            checksum_failures=self._checksum_failures,
            malformed=self._damage["malformed"],
            malformed_bytes=self._damage["malformed_bytes"],
            gaps=self._damage["gaps"],
            missed_bytes=self._damage["gap_bytes"],
            missed_frames=self.missed_frames,
            publishes=self._publishes.read(at_ns),
            requests={name: timer.read(at_ns) for name, timer in self._requests.items()},
            connections=connections[:ROWS],
            kept_connections=len(rows),
            topics=self._topic_rows(producers, consumers, at_ns),
        )

    def _topic_rows(
        self, producers: list["_Producer"], consumers: list[ConsumerLedger], at_ns: int
    ) -> list[TopicRow]:
        for topic_name in [*(owner.topic for owner in producers), *(owner.topic for owner in consumers)]:
            self._topic(topic_name)  # added here if it has no traffic yet
        owners = {name: _Owners([], []) for name in self._topics}
        for producer in producers:
            owners[self._name(producer.topic)].producers.append(producer)
        for consumer in consumers:
            owners[self._name(consumer.topic)].consumers.append(consumer)
        rows = [
            TopicRow(
                name,
                topic.sent.read(at_ns),
                topic.delivered.read(at_ns),
                _backlog(owners[name]),
                topic.errors,
            )
            for name, topic in self._topics.items()
        ]
        return sorted(rows, key=lambda row: (row.topic == OTHERS, *_rank(row.sent, row.delivered), row.topic))


class _Producer(NamedTuple):
    """An open producer in a snapshot: topic, number of SENDs without answer, and age of the oldest one."""

    topic: str
    waiting: int
    oldest_ns: int | None


class _Owners(NamedTuple):
    """The open producers and consumers of a connection, or of a topic."""

    producers: list[_Producer]
    consumers: list[ConsumerLedger]


def _producer(ledger: ProducerLedger, now_ns: int) -> _Producer:
    waiting, since_ns = ledger.count_certain()
    oldest_ns = None if since_ns is None else max(now_ns - since_ns, 0)
    return _Producer((ledger.topic or "")[:LONGEST], waiting, oldest_ns)


def _owners(row: _Connection, now_ns: int) -> _Owners:
    if row.state is None:
        return _Owners([], [])
    producers = [_producer(producer, now_ns) for producer in row.state.producers.values() if producer.is_open]
    return _Owners(producers, list(row.state.consumers.values()))


def _connection_row(row: _Connection, owners: _Owners, at_ns: int) -> ConnectionRow:
    connection = row.connection
    return ConnectionRow(
        connection.index,
        connection.client,
        connection.server,
        row.is_open,
        row.meters[True].read(at_ns),
        row.meters[False].read(at_ns),
        _backlog(owners),
        row.errors,
    )


def _backlog(owners: _Owners) -> Backlog:
    producers, consumers = owners
    return Backlog(
        len(producers),
        len(consumers),
        sum(owner.waiting for owner in producers),
        max((owner.oldest_ns for owner in producers if owner.oldest_ns is not None), default=None),
        sum(owner.permits for owner in consumers),
        sum(owner.unacked for owner in consumers),
        all(owner.has_exact_permits for owner in consumers),
    )


def _rank(first: Traffic, second: Traffic) -> tuple[float, int]:
    """Return a key that sorts the busiest first: by the current rate of both directions, then by bytes."""
    return -first.bytes_per_s - second.bytes_per_s, -first.size - second.size
