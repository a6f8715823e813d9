"""`--metrics` of the proxy: live counters as metrics.

Each scrape makes the metric families from a snapshot, which is immutable, so no lock is needed here.

The number of label values is bounded: commands and errors by the protocol, topics by `Live`; the rest are
two directions. There are no labels for connections, producers and consumers: their number is unbounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily as Counter
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.core import HistogramMetricFamily as Histogram
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pulsarctl_wire import __version__
from pulsarctl_wire.render.text import clean
from pulsarctl_wire.stats.meters import BOUNDS
from pulsarctl_wire.stats.snapshot import Snapshot, Times, TopicRow

_DIRECTIONS: Final = {True: "to_broker", False: "to_client"}
_LIMITS: Final = [f"{limit / 1e9:g}" for limit in BOUNDS]


class SnapshotCollector(Collector):
    """Makes metrics from the snapshot that `snapshot` returns at each scrape."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot

    def describe(self) -> Iterable[Metric]:
        """Return no metrics, as there may be no snapshot yet."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The families of one snapshot."""
        found = self._snapshot()
        yield from _whole(found)
        yield from _by_kind(found)
        yield from _by_topic(found.topics)
        text = "From SEND to SEND_RECEIPT or SEND_ERROR."
        yield _histogram("pwire_publish_latency_seconds", text, "", {"": found.publishes})
        text = "From a request to its answer."
        yield _histogram("pwire_request_latency_seconds", text, "command", found.requests)


def _whole(found: Snapshot) -> Iterator[Metric]:
    """Metrics without labels by command, topic and the like."""
    info = Gauge("pwire_build_info", "Always 1; its label is pwire's version.", labels=["version"])
    info.add_metric([__version__], 1)
    yield info
    oldest = (found.backlog.oldest_send_ns or 0) / 1e9
    yield Gauge("pwire_start_time_seconds", "When counting began, since the epoch.", found.started_ns / 1e9)
    yield Gauge("pwire_connections", "Open connections.", found.open_connections)
    yield Gauge(
        "pwire_oldest_pending_send_seconds", "How long the oldest SEND without an answer has waited.", oldest
    )
    yield Counter("pwire_connections_opened", "Connections opened.", found.all_connections)
    yield Counter("pwire_checksum_failures", "Entries with a wrong CRC32-C.", found.checksum_failures)
    yield Counter("pwire_malformed", "Stretches of bytes that are not frames.", found.malformed)
    yield Counter("pwire_malformed_bytes", "Bytes that are not frames.", found.malformed_bytes)
    yield Counter("pwire_tap_gaps", "Stretches of bytes forwarded but not decoded.", found.gaps)
    yield Counter("pwire_tap_missed_bytes", "Bytes forwarded but not decoded.", found.missed_bytes)
    yield Counter("pwire_tap_missed_frames", "Frames forwarded but not shown.", found.missed_frames)


def _by_kind(found: Snapshot) -> Iterator[Metric]:
    """Metrics by command, direction and error."""
    frames = Counter("pwire_frames", "Frames, by command.", labels=["command", "direction"])
    for (command, to_broker), count in sorted(found.commands.items()):
        frames.add_metric([command, _DIRECTIONS[to_broker]], count)
    yield frames
    size = Counter("pwire_bytes", "Bytes forwarded.", labels=["direction"])
    text = "Messages sent to the broker, and delivered by it."
    messages = Counter("pwire_messages", text, labels=["direction"])
    for to_broker, traffic in ((True, found.to_broker), (False, found.to_client)):
        size.add_metric([_DIRECTIONS[to_broker]], traffic.size)
        messages.add_metric([_DIRECTIONS[to_broker]], traffic.messages)
    yield size
    yield messages
    errors = Counter("pwire_errors", "Errors in the broker's answers, by ServerError.", labels=["code"])
    for code, count in sorted(found.errors.items()):
        errors.add_metric([code], count)
    yield errors


_GAUGES: Final = {
    "pwire_producers": ("producers", "Open producers."),
    "pwire_consumers": ("consumers", "Open consumers."),
    "pwire_pending_sends": ("pending_sends", "SENDs without SEND_RECEIPT or SEND_ERROR."),
    "pwire_permits": ("permits", "Messages requested by FLOW but not delivered."),
    "pwire_unacked_messages": ("unacked", "Messages delivered but not acknowledged."),
}
"""Gauges by topic -> field of its backlog, help."""


def _by_topic(topics: list[TopicRow]) -> Iterator[Metric]:
    rows = [(clean(row.topic), row) for row in sorted(topics, key=lambda row: row.topic)]
    for name, (field, text) in _GAUGES.items():
        gauge = Gauge(name, text, labels=["topic"])
        for topic, row in rows:
            gauge.add_metric([topic], getattr(row.backlog, field))
        yield gauge
    labels = ["topic", "direction"]
    messages = Counter("pwire_topic_messages", "Messages, by topic.", labels=labels)
    size = Counter("pwire_topic_bytes", "Bytes of SEND and MESSAGE frames, by topic.", labels=labels)
    for topic, row in rows:
        for to_broker, traffic in ((True, row.sent), (False, row.delivered)):
            messages.add_metric([topic, _DIRECTIONS[to_broker]], traffic.messages)
            size.add_metric([topic, _DIRECTIONS[to_broker]], traffic.size)
    yield messages
    yield size


def _histogram(name: str, text: str, label: str, times: dict[str, Times]) -> Metric:
    """A histogram by `label`; "" for no label."""
    family = Histogram(name, text, labels=[label] if label else None)
    for value, each in sorted(times.items()):
        total = 0
        buckets = []
        for limit, count in zip([*_LIMITS, "+Inf"], each.buckets, strict=True):
            total += count
            buckets.append((limit, total))
        family.add_metric([value] if label else [], buckets, each.sum_ns / 1e9)
    return family
