"""Live counters at one moment, as plain values: what `--stats` shows and `--metrics` serves.

Nothing here changes once it is made, so that one thread may make a snapshot and others read it.
Rows of connections, producers and consumers are at most `ROWS`; beside them stands how many there are.
"""

from dataclasses import dataclass, replace
from typing import Final

ROWS: Final = 200
"""Rows of connections, producers and consumers, of each, that a snapshot holds."""


@dataclass(frozen=True)
class Traffic:
    """What passed in one direction since the start, and by the second."""

    frames: int
    size: int
    """Bytes of those frames, and of what passed between them."""
    messages: int
    frames_per_s: float
    bytes_per_s: float
    messages_per_s: float

    def over(self, seconds: float) -> "Traffic":
        """The same with the rates of so many seconds, which were all there were."""
        rates = (count / seconds for count in (self.frames, self.size, self.messages))
        return Traffic(self.frames, self.size, self.messages, *rates)


@dataclass(frozen=True)
class Times:
    """How long something took. Records are those of `Latencies.record`, None where nothing was timed."""

    count: int
    sum_ns: int
    buckets: tuple[int, ...]
    """How many took up to each of `meters.BOUNDS` and more than the bound before; the last: longer."""
    recent: dict[str, int] | None
    """Of the last 10 to 20 seconds."""
    whole: dict[str, int] | None
    """Since the start."""


@dataclass(frozen=True)
class Backlog:
    """What waits: sends for receipts, permits for messages, messages for acknowledgements."""

    producers: int
    consumers: int
    pending_sends: int
    """SENDs without SEND_RECEIPT or SEND_ERROR."""
    oldest_send_ns: int | None
    """How long the oldest of them has waited."""
    permits: int
    """Messages that FLOW allowed and that were not delivered yet."""
    unacked: int
    """Messages delivered and not acknowledged."""
    exact: bool
    """False where bytes were missed, so that it may be otherwise."""


@dataclass(frozen=True)
class ConnectionRow:
    """A connection; those that ended are kept for a while."""

    index: int
    client: str
    server: str
    is_open: bool
    to_broker: Traffic
    to_client: Traffic
    backlog: Backlog
    errors: int


@dataclass(frozen=True)
class TopicRow:
    """A topic: the traffic of its entries, `sent` to the broker, `delivered` to clients."""

    topic: str
    sent: Traffic
    delivered: Traffic
    backlog: Backlog
    errors: int


@dataclass(frozen=True)
class ProducerRow:
    """An open producer; `name` is empty until the broker has said it."""

    connection: int
    producer_id: int
    name: str
    topic: str
    messages: int
    pending_sends: int
    oldest_send_ns: int | None


@dataclass(frozen=True)
class ConsumerRow:
    """An open consumer."""

    connection: int
    consumer_id: int
    subscription: str
    topic: str
    messages: int
    permits: int
    unacked: int
    exact: bool


@dataclass(frozen=True)
class Snapshot:
    """All counters, `now_ns` after the epoch."""

    now_ns: int
    started_ns: int
    to_broker: Traffic
    to_client: Traffic
    open_connections: int
    all_connections: int
    backlog: Backlog
    """Of all open connections together."""
    commands: dict[tuple[str, bool], int]
    """Frames by command and whether they went to the broker."""
    errors: dict[str, int]
    """By the name of their ServerError."""
    checksum_failures: int
    malformed: int
    malformed_bytes: int
    gaps: int
    missed_bytes: int
    """Bytes that were forwarded and not looked at."""
    missed_frames: int
    publishes: Times
    """SEND to SEND_RECEIPT or SEND_ERROR."""
    requests: dict[str, Times]
    """By the request's command."""
    connections: list[ConnectionRow]
    """Open ones first, then the busiest first."""
    kept_connections: int
    """Rows that there are, of which `connections` are the first."""
    topics: list[TopicRow]
    """The busiest first. Topics beyond the bound of `Live` are one row, `OTHERS`."""
    producers: list[ProducerRow]
    """Those with the most pending sends first. How many there are is in `backlog`."""
    consumers: list[ConsumerRow]
    """Those with the fewest permits first."""

    def averaged(self) -> "Snapshot":
        """The same with the rates of the whole time."""
        seconds = max((self.now_ns - self.started_ns) / 1e9, 1.0)
        return replace(
            self,
            to_broker=self.to_broker.over(seconds),
            to_client=self.to_client.over(seconds),
            connections=[
                replace(row, to_broker=row.to_broker.over(seconds), to_client=row.to_client.over(seconds))
                for row in self.connections
            ],
            topics=[
                replace(row, sent=row.sent.over(seconds), delivered=row.delivered.over(seconds))
                for row in self.topics
            ],
        )
