"""`--metrics`: live counters for Prometheus, over HTTP.

Families are made of a snapshot at each scrape. The snapshot is made elsewhere and never changes, so that the
server's threads need no lock. Names and units follow the conventions of Prometheus and OpenMetrics: seconds,
bytes, `_total` for what only grows.

What labels there can be is bounded: commands and errors by the protocol, topics by `Live`, the rest are
two directions. Connections, producers and consumers have none: they come and go without end.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import MetricsHandler, choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pulsarctl_wire import __version__
from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.options import host_port
from pulsarctl_wire.net.settings import Address
from pulsarctl_wire.net.sockets import bound
from pulsarctl_wire.stats.meters import BOUNDS
from pulsarctl_wire.stats.snapshot import Snapshot, Times, TopicRow

_DIRECTIONS: Final = {True: "to_broker", False: "to_client"}
_LIMITS: Final = [f"{limit / 1e9:g}" for limit in BOUNDS]
_PATIENCE: Final = 10.0  # seconds that a connection may be silent


def serve(address: str, snapshot: Callable[[], Snapshot], stack: ExitStack) -> str:
    """Serve metrics at `address` ("9464", ":9464", "HOST:9464", "[::1]:9464") until `stack` closes.

    `snapshot` is called in the server's threads: it gives the newest one that was made. Gives the URL.
    An address that is none, or that cannot be had, ends the command with one line.
    """
    where = Address(*host_port("--metrics", address))
    registry = CollectorRegistry()
    registry.register(SnapshotCollector(snapshot))
    try:
        server = _Server(where, _Handler.factory(registry))
    except OSError as error:
        why = error.strerror or error
        console.fail(f"--metrics {address}: {why}; name another HOST:PORT", console.EXIT_USAGE)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    stack.callback(thread.join)
    stack.callback(server.server_close)
    stack.callback(server.shutdown)
    return f"http://{Address(where.host, server.server_port)}/metrics"


class _Handler(MetricsHandler):
    """Answers a request, whatever its path is; gives up who neither asks nor reads."""

    timeout = _PATIENCE

    def do_GET(self) -> None:
        try:
            urlsplit(self.path)
            choose_encoder(self.headers.get("Accept", ""))
        except (TypeError, ValueError):  # nonsense, which the library takes as it comes
            self.send_error(HTTPStatus.BAD_REQUEST)
        else:
            super().do_GET()


class _Server(ThreadingHTTPServer):
    """A thread for each connection. Construction raises OSError."""

    def __init__(self, where: Address, handler: type) -> None:
        super().__init__(where, handler, bind_and_activate=False)
        self.socket.close()
        self.socket = bound(where)  # of IPv6, if that is what the host has
        self.server_port = self.socket.getsockname()[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say what went wrong; but how connections end is the concern of who made them."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class SnapshotCollector(Collector):
    """Makes metrics of the snapshot that `snapshot` gives, whenever they are collected."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot

    def describe(self) -> Iterable[Metric]:
        """Nothing: there need not be a snapshot yet."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The families of one snapshot."""
        found = self._snapshot()
        yield from _whole(found)
        yield from _by_kind(found)
        yield from _by_topic(found.topics)
        yield _histogram(
            "pwire_publish_latency_seconds",
            "From SEND to SEND_RECEIPT or SEND_ERROR.",
            "",
            {"": found.publishes},
        )
        yield _histogram(
            "pwire_request_latency_seconds", "From a request to its answer.", "command", found.requests
        )


def _whole(found: Snapshot) -> Iterator[Metric]:
    """What has no labels."""
    info = GaugeMetricFamily(
        "pwire_build_info", "Always 1; its label is pwire's version.", labels=["version"]
    )
    info.add_metric([__version__], 1)
    yield info
    yield GaugeMetricFamily(
        "pwire_start_time_seconds", "When counting began, since the epoch.", found.started_ns / 1e9
    )
    backlog = found.backlog
    gauges = {
        "pwire_connections": ("Open connections.", found.open_connections),
        "pwire_oldest_pending_send_seconds": (
            "How long the oldest SEND without an answer has waited.",
            (backlog.oldest_send_ns or 0) / 1e9,
        ),
    }
    for name, (text, value) in gauges.items():
        yield GaugeMetricFamily(name, text, value)
    counters = {
        "pwire_connections_opened": ("Connections that were made.", found.all_connections),
        "pwire_checksum_failures": ("Entries whose CRC32-C is wrong.", found.checksum_failures),
        "pwire_malformed": ("Stretches of bytes that are no frames.", found.malformed),
        "pwire_malformed_bytes": ("Bytes of those.", found.malformed_bytes),
        "pwire_tap_gaps": ("Stretches of bytes that were forwarded and not decoded.", found.gaps),
        "pwire_tap_missed_bytes": ("Bytes of those.", found.missed_bytes),
        "pwire_tap_missed_frames": ("Frames that were forwarded and not shown.", found.missed_frames),
    }
    for name, (text, count) in counters.items():
        yield CounterMetricFamily(name, text, count)


def _by_kind(found: Snapshot) -> Iterator[Metric]:
    """What is told apart by command, direction or error."""
    frames = CounterMetricFamily("pwire_frames", "Frames, by command.", labels=["command", "direction"])
    for (command, to_broker), count in sorted(found.commands.items()):
        frames.add_metric([command, _DIRECTIONS[to_broker]], count)
    yield frames
    size = CounterMetricFamily("pwire_bytes", "Bytes that passed.", labels=["direction"])
    messages = CounterMetricFamily(
        "pwire_messages", "Messages sent to the broker and delivered by it.", labels=["direction"]
    )
    for to_broker, traffic in ((True, found.to_broker), (False, found.to_client)):
        size.add_metric([_DIRECTIONS[to_broker]], traffic.size)
        messages.add_metric([_DIRECTIONS[to_broker]], traffic.messages)
    yield size
    yield messages
    errors = CounterMetricFamily(
        "pwire_errors", "Errors that the broker answered, by ServerError.", labels=["code"]
    )
    for code, count in sorted(found.errors.items()):
        errors.add_metric([code], count)
    yield errors


_GAUGES: Final[dict[str, tuple[str, Callable[[TopicRow], int]]]] = {
    "pwire_producers": ("Open producers.", lambda row: row.backlog.producers),
    "pwire_consumers": ("Open consumers.", lambda row: row.backlog.consumers),
    "pwire_pending_sends": (
        "SENDs without SEND_RECEIPT or SEND_ERROR.",
        lambda row: row.backlog.pending_sends,
    ),
    "pwire_permits": (
        "Messages that FLOW allowed and that were not delivered.",
        lambda row: row.backlog.permits,
    ),
    "pwire_unacked_messages": ("Messages delivered and not acknowledged.", lambda row: row.backlog.unacked),
}
"""Gauges by topic -> help, value."""


def _by_topic(topics: list[TopicRow]) -> Iterator[Metric]:
    rows = [(console.clean(row.topic), row) for row in sorted(topics, key=lambda row: row.topic)]
    for name, (text, value) in _GAUGES.items():
        gauge = GaugeMetricFamily(name, text, labels=["topic"])
        for topic, row in rows:
            gauge.add_metric([topic], value(row))
        yield gauge
    labels = ["topic", "direction"]
    messages = CounterMetricFamily("pwire_topic_messages", "Messages, by topic.", labels=labels)
    size = CounterMetricFamily(
        "pwire_topic_bytes", "Bytes of SEND and MESSAGE frames, by topic.", labels=labels
    )
    for topic, row in rows:
        for to_broker, traffic in ((True, row.sent), (False, row.delivered)):
            messages.add_metric([topic, _DIRECTIONS[to_broker]], traffic.messages)
            size.add_metric([topic, _DIRECTIONS[to_broker]], traffic.size)
    yield messages
    yield size


def _histogram(name: str, text: str, label: str, times: dict[str, Times]) -> Metric:
    """A histogram by `label`, or without labels."""
    family = HistogramMetricFamily(name, text, labels=[label] if label else None)
    for value, each in sorted(times.items()):
        total = 0
        buckets = []
        for limit, count in zip([*_LIMITS, "+Inf"], each.buckets, strict=True):
            total += count
            buckets.append((limit, total))
        family.add_metric([value] if label else [], buckets, each.sum_ns / 1e9)
    return family
