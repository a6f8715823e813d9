"""Live counters at one moment, as plain values, which `--stats` shows and `--metrics` serves.

A snapshot is immutable, so one thread may make it and others read it. It has at most `ROWS` rows of
connections, and the number of all rows.
"""

from dataclasses import dataclass, replace
from typing import Final

ROWS: Final = 200
"""Maximum number of rows of connections in a snapshot."""


@dataclass(frozen=True)
class Traffic:
    """The traffic in one direction since the start, and its rates."""

    frames: int
    size: int
    """Bytes of the frames, and of anything between them."""
    messages: int
    frames_per_s: float
    bytes_per_s: float
    messages_per_s: float

    def over(self, seconds: float) -> "Traffic":
        """Return the same traffic, with rates that are averages over all `seconds`."""
        rates = (count / seconds for count in (self.frames, self.size, self.messages))
        return Traffic(self.frames, self.size, self.messages, *rates)


@dataclass(frozen=True)
class Times:
    """How long something took. `recent` and `whole` are from `Latencies.record`, None without any times."""

    count: int
    sum_ns: int
    buckets: tuple[int, ...]
    """Counts by bucket, not cumulative: up to each bound in `meters.BOUNDS`, and above the last one."""
    recent: dict[str, int] | None
    """Times of the last 10 to 20 seconds."""
    whole: dict[str, int] | None
    """Times since the start."""


@dataclass(frozen=True)
class Backlog:
    """What is waiting: SENDs for receipts, permits for messages, messages for acknowledgements."""

    producers: int
    consumers: int
    pending_sends: int
    """SENDs without SEND_RECEIPT or SEND_ERROR."""
    oldest_send_ns: int | None
    """How long the oldest of them has waited."""
    permits: int
    """Messages requested by FLOW but not delivered yet."""
    unacked: int
    """Messages delivered but not acknowledged."""
    exact: bool
    """False if bytes were missed, so that the numbers may be wrong."""


@dataclass(frozen=True)
class ConnectionRow:
    """The counters of a connection. Connections that have ended are kept for a while."""

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
    """The counters of a topic: the traffic of its entries, `sent` to the broker, `delivered` to clients."""

    topic: str
    sent: Traffic
    delivered: Traffic
    backlog: Backlog
    errors: int


@dataclass(frozen=True)
class Snapshot:
    """All counters at `now_ns` (ns since the epoch)."""

    now_ns: int
    started_ns: int
    to_broker: Traffic
    to_client: Traffic
    open_connections: int
    all_connections: int
    backlog: Backlog
    """The total of all open connections."""
    commands: dict[tuple[str, bool], int]
    """Frames by command name and `to_broker`."""
    errors: dict[str, int]
    """Errors by the name of their ServerError."""
    checksum_failures: int
    malformed: int
    malformed_bytes: int
    gaps: int
    missed_bytes: int
    """Bytes that were forwarded but not decoded."""
    missed_frames: int
    publishes: Times
    """Times from SEND to SEND_RECEIPT or SEND_ERROR."""
    requests: dict[str, Times]
    """Times from request to answer, by the request's command."""
    connections: list[ConnectionRow]
    """Open ones first, then the busiest first."""
    kept_connections: int
    """The number of all rows, of which `connections` has the first."""
    topics: list[TopicRow]
    """The busiest first. Topics beyond the bound of `Live` are one row, `OTHERS`."""

    def averaged(self) -> "Snapshot":
        """Return the same snapshot, with rates that are averages over the whole time."""
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
