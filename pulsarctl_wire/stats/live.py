"""Live traffic counted while it passes: rates, latencies, and what waits for an answer right now.

    opened, add, closed     in the order in which things happened, by one thread
    snapshot                all counters at one moment (snapshot.py), as plain values for any thread

Events must have gone through a `Session`, which knows topics and latencies. What waits on a connection is
followed in waiting.py, what counts and times is in meters.py. Times come in, there is no clock in here.
Whoever adds may be late: rates, recent times and ages are those at the time of the traffic that was added.

Memory is bounded: `MAX_TOPICS` topics are told apart, all others are counted together as `OTHERS`; of ended
connections the last `KEPT` are remembered; a connection has the bounds of waiting.py.
"""

from collections import Counter, deque
from heapq import nlargest, nsmallest
from typing import Any, Final

from pulsarctl_wire.stats.meters import Meter, Passage, Timer
from pulsarctl_wire.stats.rows import OTHERS
from pulsarctl_wire.stats.snapshot import (
    ROWS,
    Backlog,
    ConnectionRow,
    ConsumerRow,
    ProducerRow,
    Snapshot,
    TopicRow,
    Traffic,
)
from pulsarctl_wire.stats.waiting import LONGEST, Consumer, Producer, Waiting, messages_of
from pulsarctl_wire.wire.commands import ERROR_FIELDS, NAMES, NUMBERS, PAYLOAD_TYPES
from pulsarctl_wire.wire.frame import Connection, Event, Frame, Gap, Malformed
from pulsarctl_wire.wire.server_errors import error_name

MAX_TOPICS: Final = 1_000
"""Topics that are told apart, the first ones seen."""
KEPT: Final = 256
"""Connections that are still known once they have ended, the last ones."""

_ALWAYS_ERRORS: Final = {NUMBERS["SEND_ERROR"], NUMBERS["ERROR"]}
_SEND: Final = NUMBERS["SEND"]


class _Topic:
    """What a topic's entries were, in both directions, and errors about it."""

    __slots__ = ("delivered", "errors", "sent")

    def __init__(self) -> None:
        self.sent, self.delivered = Meter(), Meter()
        self.errors = 0


class _Connection:
    """A connection, what waits on it, and its traffic: `meters` are indexed by `to_broker`."""

    __slots__ = ("connection", "errors", "is_open", "meters", "waiting")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.is_open = True
        self.waiting = Waiting()
        self.meters = Meter(), Meter()
        self.errors = 0


class Live:
    """Counts live traffic, from `started_ns` (ns since the epoch) on."""

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
        self._requests: dict[str, Timer] = {}
        self._checksum_failures = self._malformed = self._malformed_bytes = 0
        self._gaps = self._missed_bytes = self._missed_frames = 0

    def opened(self, connection: Connection, time_ns: int) -> None:
        """A connection was made; one that is open under the same index has ended."""
        self.closed(connection, time_ns)
        self._begin(connection)

    def _begin(self, connection: Connection) -> _Connection:
        row = self._open[connection.index] = _Connection(connection)
        self._all_connections += 1
        return row

    def closed(self, connection: Connection, time_ns: int, by_broker: bool = False) -> None:
        """A connection has ended, and all that was open on it; nothing if it is not open."""
        self._passage.meet(time_ns)
        row = self._open.pop(connection.index, None)
        if row is not None:
            row.is_open = False
            row.waiting = Waiting()
            self._ended.append(row)

    def missed(self, frames: int) -> None:
        """So many frames were forwarded that whoever decodes did not see."""
        self._missed_frames += frames

    def add(self, events: list[Event]) -> None:
        """Count events of one connection, as its streams and session gave them; all before `closed`."""
        if not events:
            return
        connection = events[-1].connection
        row = self._open.get(connection.index) or self._begin(connection)
        now = row.waiting.at_ns = self._time(events[-1])
        commands = self._commands
        counts = [0, 0, 0], [0, 0, 0]  # frames, bytes, messages, indexed by `to_broker`
        for event in events:
            count = counts[event.to_broker]
            if event.__class__ is not Frame:
                count[1] += self._add_damage(row, event)
                continue
            count[0] += 1
            count[1] += len(event.raw)
            kind = event.type
            commands[kind if kind in NAMES else -1, event.to_broker] += 1
            if kind in PAYLOAD_TYPES:
                count[2] += self._add_entry(event, now)
            if event.latency_ns is not None:
                self._timer(event.request_type).add(now, event.latency_ns)
            if kind in ERROR_FIELDS:
                self._add_error(row, event)
            row.waiting.follow(event)
        for to_broker, (frames, size, messages) in enumerate(counts):
            if size:
                row.meters[to_broker].add(now, frames, size, messages)
                self._meters[to_broker].add(now, frames, size, messages)

    def _time(self, last: Any) -> int:
        """The time to count events by, of which this is the last one."""
        time_ns: int | None = last.time_ns
        if time_ns is None or (last.partial if last.__class__ is Frame else last.__class__ is Malformed):
            return self._passage.at_ns  # what was left unfinished may have come long ago
        return self._passage.meet(time_ns)

    def _add_damage(self, row: _Connection, event: Any) -> int:
        """Count bytes that are in no frame; give how many."""
        if isinstance(event, Gap):
            self._gaps += 1
            self._missed_bytes += event.size
        else:
            self._malformed += 1
            self._malformed_bytes += event.size
        row.waiting.forget()
        size: int = event.size
        return size

    def _add_entry(self, frame: Frame, now: int) -> int:
        """Count a SEND or MESSAGE for its topic; give how many messages came with it."""
        messages = messages_of(frame)
        if frame.checksum == "invalid":
            self._checksum_failures += 1
        if frame.topic is not None:
            topic = self._topic(frame.topic)
            meter = topic.sent if frame.type == _SEND else topic.delivered
            meter.add(now, 1, len(frame.raw), messages)
        return messages

    def _add_error(self, row: _Connection, frame: Frame) -> None:
        body, field = frame.body, ERROR_FIELDS[frame.type]
        if body is not None and (frame.type in _ALWAYS_ERRORS or body.HasField(field)):
            self._errors[error_name(getattr(body, field))] += 1
            row.errors += 1
            if frame.topic is not None:
                self._topic(frame.topic).errors += 1

    def _topic(self, name: str) -> _Topic:
        """The counters of a topic, or those of all others."""
        topic = self._topics.get(name)
        if topic is None:
            name = self._name(name[:LONGEST])
            topic = self._topics.get(name)
            if topic is None:
                topic = self._topics[name] = _Topic()
        return topic

    def _name(self, name: str) -> str:
        """The name that a topic is counted by."""
        return name if name in self._topics or len(self._topics) < MAX_TOPICS else OTHERS

    def _timer(self, request_type: int | None) -> Timer:
        if request_type == _SEND:
            return self._publishes
        name = NAMES.get(request_type or 0, "?")
        timer = self._requests.get(name)
        if timer is None:
            timer = self._requests[name] = Timer()
        return timer

    # -- reading

    def snapshot(self, now_ns: int) -> Snapshot:
        """All counters as they are `now_ns` after the epoch."""
        at_ns = self._passage.read(now_ns)
        rows = [*self._open.values(), *self._ended]
        producers = [
            (row.connection.index, number, each)
            for row in self._open.values()
            for number, each in row.waiting.producers.items()
        ]
        consumers = [
            (row.connection.index, number, each)
            for row in self._open.values()
            for number, each in row.waiting.consumers.items()
        ]
        slowest = nlargest(ROWS, producers, key=lambda it: (it[2].waiting, it[2].messages))
        starved = nsmallest(ROWS, consumers, key=lambda it: (it[2].permits, -it[2].messages))
        connections = [_connection_row(each, at_ns) for each in rows]
        connections.sort(key=lambda row: (not row.is_open, *_rank(row.to_broker, row.to_client), row.index))
        return Snapshot(
            now_ns=now_ns,
            started_ns=self._started_ns,
            to_broker=self._meters[True].read(at_ns),
            to_client=self._meters[False].read(at_ns),
            open_connections=len(self._open),
            all_connections=self._all_connections,
            backlog=_backlog([it[2] for it in producers], [it[2] for it in consumers], at_ns),
            commands={(NAMES.get(kind, "UNKNOWN"), way): n for (kind, way), n in self._commands.items()},
            errors=dict(self._errors),
            checksum_failures=self._checksum_failures,
            malformed=self._malformed,
            malformed_bytes=self._malformed_bytes,
            gaps=self._gaps,
            missed_bytes=self._missed_bytes,
            missed_frames=self._missed_frames,
            publishes=self._publishes.read(at_ns),
            requests={name: timer.read(at_ns) for name, timer in self._requests.items()},
            connections=connections[:ROWS],
            kept_connections=len(rows),
            topics=self._topic_rows([it[2] for it in producers], [it[2] for it in consumers], at_ns),
            producers=[
                ProducerRow(
                    connection, number, each.name, each.topic, each.messages, each.waiting, _age(each, at_ns)
                )
                for connection, number, each in slowest
            ],
            consumers=[
                ConsumerRow(
                    *(connection, number, each.subscription, each.topic),
                    *(each.messages, each.permits, each.unacked, each.exact),
                )
                for connection, number, each in starved
            ],
        )

    def _topic_rows(self, producers: list[Producer], consumers: list[Consumer], at_ns: int) -> list[TopicRow]:
        for topic_name in [*(each.topic for each in producers), *(each.topic for each in consumers)]:
            self._topic(topic_name)  # nothing may have been sent there yet
        owners: dict[str, tuple[list[Producer], list[Consumer]]] = {name: ([], []) for name in self._topics}
        for producer in producers:
            owners[self._name(producer.topic)][0].append(producer)
        for consumer in consumers:
            owners[self._name(consumer.topic)][1].append(consumer)
        rows = [
            TopicRow(
                name,
                topic.sent.read(at_ns),
                topic.delivered.read(at_ns),
                _backlog(*owners[name], at_ns),
                topic.errors,
            )
            for name, topic in self._topics.items()
        ]
        return sorted(rows, key=lambda row: (row.topic == OTHERS, *_rank(row.sent, row.delivered), row.topic))


def _connection_row(row: _Connection, at_ns: int) -> ConnectionRow:
    connection, waiting = row.connection, row.waiting
    return ConnectionRow(
        connection.index,
        connection.client,
        connection.server,
        row.is_open,
        row.meters[True].read(at_ns),
        row.meters[False].read(at_ns),
        _backlog(list(waiting.producers.values()), list(waiting.consumers.values()), at_ns),
        row.errors,
    )


def _backlog(producers: list[Producer], consumers: list[Consumer], at_ns: int) -> Backlog:
    ages = [age for each in producers if (age := _age(each, at_ns)) is not None]
    return Backlog(
        len(producers),
        len(consumers),
        sum(each.waiting for each in producers),
        max(ages, default=None),
        sum(each.permits for each in consumers),
        sum(each.unacked for each in consumers),
        all(each.exact for each in consumers),
    )


def _age(producer: Producer, at_ns: int) -> int | None:
    """How long the oldest pending send has waited, in ns."""
    return None if producer.oldest_ns is None else at_ns - producer.oldest_ns


def _rank(one: Traffic, other: Traffic) -> tuple[float, int]:
    """The busiest first: by what passes now, then by all that did."""
    return -one.bytes_per_s - other.bytes_per_s, -one.size - other.size
