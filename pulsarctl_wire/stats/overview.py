"""Counts traffic by connection, topic, producer and subscription, each with its recent past.

The past is a list of equal spans of time, the last one being the current. When there are more than `SPANS`,
each becomes twice as long, so that they always cover the whole traffic.

Memory is bounded: of each kind the first `MAX_ROWS` are counted, and `omitted` counts all others.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from pulsarctl_wire.wire.commands import PAYLOAD_TYPES
from pulsarctl_wire.wire.frame import Event, Frame
from pulsarctl_wire.wire.session.counts import error_of, is_publish, latency_of, messages_in
from pulsarctl_wire.wire.session.exchanges import ProducerLedger

SPANS: Final = 64
"""Maximum number of spans of the past."""

MAX_ROWS: Final = 1_000
"""Maximum number of rows of a kind."""

_MAX_OMITTED: Final = 100 * MAX_ROWS  # rows of a kind that are counted as omitted
_FIRST_SPAN: Final = 100_000_000  # ns

KINDS: Final = ("connections", "topics", "producers", "subscriptions")


class Consumer(Protocol):
    """An open consumer."""

    @property
    def topic(self) -> str:
        """Full name of its topic."""

    @property
    def subscription(self) -> str:
        """Name of its subscription."""

    @property
    def permits(self) -> int:
        """Messages that it asked for and did not get yet."""

    @property
    def unacked(self) -> int:
        """Messages that it got and did not acknowledge yet."""


class State(Protocol):
    """What a connection has open."""

    @property
    def producers(self) -> Mapping[int, ProducerLedger]:
        """Producers by their ids."""

    @property
    def consumers(self) -> Mapping[int, Any]:
        """Consumers by their ids."""


@dataclass
class Row:
    """The counters of a connection, topic, producer or subscription.

    name         what it is called: client and server, full topic name, producer name, subscription
    topic        of a producer or subscription; else ""
    connection   index of a connection or of a producer's connection; else -1
    id           of a producer; else -1
    frames, size, errors   frames, their bytes (of a connection: all bytes), and errors from the broker
    sent, delivered        messages to and from the broker
    pending      SENDs without an answer
    permits, unacked, consumers   of open consumers
    latency_ns   mean time from SEND to its answer; None without any
    past         per span: bytes of a connection, messages of a topic, mean latency in ns of a producer,
                 unacknowledged messages of a subscription
    """

    name: str
    topic: str = ""
    connection: int = -1
    id: int = -1
    frames: int = 0
    size: int = 0
    errors: int = 0
    sent: int = 0
    delivered: int = 0
    pending: int = 0
    permits: int = 0
    unacked: int = 0
    consumers: int = 0
    latency_ns: int | None = None
    past: list[float] = field(default_factory=list)


@dataclass
class Counts:
    """All rows of an `Overview`, by kind; `omitted` rows of each kind were not counted."""

    span_ns: int
    connections: list[Row]
    topics: list[Row]
    producers: list[Row]
    subscriptions: list[Row]
    omitted: dict[str, int]


class _Table:
    """The rows of a kind, with sums and counts of values per span. `has_means`: the past has means."""

    def __init__(self, *, has_means: bool = False) -> None:
        self.rows: dict[Any, Row] = {}
        self.omitted: set[int] = set()
        self._past: dict[Any, dict[int, tuple[int, int]]] = {}
        self._has_means = has_means

    def row(self, key: Any, name: str, topic: str = "", connection: int = -1, id: int = -1) -> Row | None:
        """Return the row with this key, a new one if need be; None if there are too many."""
        row = self.rows.get(key)
        if row is None:
            if len(self.rows) >= MAX_ROWS:
                if len(self.omitted) < _MAX_OMITTED:
                    self.omitted.add(hash(key))
                return None
            row = self.rows[key] = Row(name, topic, connection, id)
            self._past[key] = {}
        return row

    def add(self, key: Any, span: int, value: int) -> None:
        """Add a value to a span of a row."""
        past = self._past[key]
        total, count = past.get(span, (0, 0))
        past[span] = total + value, count + 1

    def value(self, key: Any, span: int) -> float:
        """Return the sum of a span, or its mean."""
        total, count = self._past[key].get(span, (0, 1))
        return total / count if self._has_means else total

    def mean(self, key: Any) -> int | None:
        """Return the mean of all values of a row; None without any."""
        spans = self._past[key].values()
        count = sum(count for _, count in spans)
        return round(sum(total for total, _ in spans) / count) if count else None

    def halve(self) -> None:
        """Join spans in pairs."""
        for key, past in self._past.items():
            joined: dict[int, tuple[int, int]] = {}
            for span, (total, count) in past.items():
                earlier = joined.get(span // 2, (0, 0))
                joined[span // 2] = total + earlier[0], count + earlier[1]
            self._past[key] = joined

    def list(self, last: int) -> list[Row]:
        """Return all rows with their past up to span `last`."""
        for key, row in self.rows.items():
            row.past = [self.value(key, span) for span in range(last + 1)]
        return [*self.rows.values()]


class Overview:
    """Counts events; `states` are those of the open connections, by index."""

    def __init__(self, states: Mapping[int, State]) -> None:
        self._states = states
        self._connections, self._topics = _Table(), _Table()
        self._producers, self._subscriptions = _Table(has_means=True), _Table(has_means=True)
        self._tables = (self._connections, self._topics, self._producers, self._subscriptions)
        self._start_ns: int | None = None
        self._span_ns = _FIRST_SPAN
        self._span = 0  # the current one

    def add(self, events: Iterable[Event]) -> None:
        """Count events, after the states of their connections have seen them."""
        for event in events:
            time_ns = event.time_ns
            if time_ns is not None:
                if self._start_ns is None:
                    self._start_ns = time_ns
                elif time_ns >= self._start_ns + (self._span + 1) * self._span_ns:
                    self._advance(time_ns - self._start_ns)
            connection = event.connection
            row = self._connections.row(connection.index, str(connection), connection=connection.index)
            if row is not None:
                row.size += event.size
                self._connections.add(connection.index, self._span, event.size)
            if event.__class__ is Frame and not event.partial:
                self._add_frame(event, row)

    def _add_frame(self, frame: Frame, connection: Row | None) -> None:
        topic = None if frame.topic is None else self._topics.row(frame.topic, frame.topic)
        rows = [row for row in (connection, topic) if row is not None]
        is_error = error_of(frame) is not None
        for row in rows:
            row.frames += 1
            row.errors += is_error
        if topic is not None:
            topic.size += frame.size
        if frame.type in PAYLOAD_TYPES:
            messages = messages_in(frame)
            if frame.to_broker:
                self._add_send(frame, messages, rows)
            else:
                self._add_message(frame, messages, rows)
            if topic is not None:
                self._topics.add(frame.topic, self._span, messages)
        elif is_publish(frame):
            latency = latency_of(frame)
            key = frame.connection.index, frame.ids.owner
            producer = self._producers.rows.get(key)
            if producer is not None and latency is not None:
                self._producers.add(key, self._span, latency)
                producer.errors += is_error

    def _add_send(self, frame: Frame, messages: int, rows: list[Row]) -> None:
        index, owner = frame.connection.index, frame.ids.owner
        producer = self._producers.row((index, owner), frame.producer or "", frame.topic or "", index, owner)
        for row in rows if producer is None else [*rows, producer]:
            row.sent += messages
        if producer is not None:
            producer.frames += 1
            producer.size += frame.size
            producer.topic = frame.topic or producer.topic

    def _add_message(self, frame: Frame, messages: int, rows: list[Row]) -> None:
        subscription = None
        if frame.subscription is not None:
            topic = frame.topic or ""
            subscription = self._subscriptions.row((topic, frame.subscription), frame.subscription, topic)
        for row in rows if subscription is None else [*rows, subscription]:
            row.delivered += messages
        if subscription is not None:
            subscription.frames += 1
            subscription.size += frame.size

    def _advance(self, elapsed_ns: int) -> None:
        """Begin the span that is `elapsed_ns` after the start."""
        self._read_states()
        while elapsed_ns // self._span_ns >= SPANS:
            self._span_ns *= 2
            for table in self._tables:
                table.halve()
        self._span = elapsed_ns // self._span_ns

    def _read_states(self) -> None:
        """Set the counters of what connections have open now, and of what waits for an answer."""
        for table in (self._connections, self._topics, self._producers, self._subscriptions):
            for row in table.rows.values():
                row.pending = row.permits = row.unacked = row.consumers = 0
        for index, state in list(self._states.items()):
            connection = self._connections.rows.get(index)
            for id, ledger in list(state.producers.items()):
                self._read_producer(connection, index, id, ledger)
            for consumer in list(state.consumers.values()):
                self._read_consumer(connection, consumer)
        for key, row in self._producers.rows.items():
            row.latency_ns = self._producers.mean(key)
        for key, row in self._subscriptions.rows.items():
            if row.consumers:
                self._subscriptions.add(key, self._span, row.unacked)

    def _read_producer(self, connection: Row | None, index: int, id: int, ledger: ProducerLedger) -> None:
        topic = ledger.topic or ""
        producer = self._producers.row((index, id), ledger.name, topic, index, id)
        for row in (connection, self._topics.row(topic, topic) if topic else None, producer):
            if row is not None:
                row.pending += ledger.waiting
        if producer is not None:
            producer.name, producer.topic = ledger.name or producer.name, topic or producer.topic

    def _read_consumer(self, connection: Row | None, consumer: Consumer) -> None:
        key = consumer.topic, consumer.subscription
        subscription = self._subscriptions.row(key, consumer.subscription, consumer.topic)
        for row in (connection, self._topics.row(consumer.topic, consumer.topic), subscription):
            if row is not None:
                row.permits += consumer.permits
                row.unacked += consumer.unacked
                row.consumers += 1

    def counts(self) -> Counts:
        """Return all rows as they are now."""
        self._read_states()
        connections, topics, producers, subscriptions = (table.list(self._span) for table in self._tables)
        omitted = {kind: len(table.omitted) for kind, table in zip(KINDS, self._tables, strict=True)}
        return Counts(self._span_ns, connections, topics, producers, subscriptions, omitted)
