"""`--metrics`: live counters for Prometheus, over HTTP.

Families are made of a snapshot at each scrape. The snapshot is made elsewhere and never changes, so that the
server's thread needs no lock. Names and units follow the conventions of Prometheus and OpenMetrics: seconds,
bytes, `_total` for what only grows.

What labels there can be is bounded: commands and errors by the protocol, topics by `Live`, the rest are
two directions. Connections, producers and consumers have none: they come and go without end.

One thread with one loop answers all requests, one for each connection.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pulsarctl_wire import __version__
from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.options import host_port
from pulsarctl_wire.net.settings import Address
from pulsarctl_wire.net.sockets import Socket, bound
from pulsarctl_wire.stats.meters import BOUNDS
from pulsarctl_wire.stats.snapshot import Snapshot, Times, TopicRow

MOST_CONNECTIONS: Final = 32
"""Connections at a time; if more come, the one that has been there for longest is closed."""

_DIRECTIONS: Final = {True: "to_broker", False: "to_client"}
_LIMITS: Final = [f"{limit / 1e9:g}" for limit in BOUNDS]
_PATIENCE: Final = 10.0  # seconds for a connection, from its beginning to its end
_LONGEST_REQUEST: Final = 16 * 1024  # bytes


def serve(address: str, snapshot: Callable[[], Snapshot], stack: ExitStack) -> str:
    """Serve metrics at `address` ("9464", ":9464", "HOST:9464", "[::1]:9464") until `stack` closes.

    `snapshot` is called in the server's thread: it gives the newest one that was made. Gives the URL.
    An address that is none, or that cannot be had, ends the command with one line.
    """
    where = Address(*host_port("--metrics", address))
    registry = CollectorRegistry()
    registry.register(SnapshotCollector(snapshot))
    try:
        sock = bound(where)  # of IPv6, if that is what the host has
    except OSError as error:
        why = error.strerror or error
        console.fail(f"--metrics {address}: {why}; name another HOST:PORT", console.EXIT_USAGE)
    url = f"http://{Address(where.host, sock.getsockname()[1])}/metrics"
    stack.callback(_Server(sock, registry).stop)
    return url


class _Server:
    """Answers requests in a thread of its own, whatever their path is."""

    def __init__(self, sock: Socket, registry: CollectorRegistry) -> None:
        self._app: Any = make_wsgi_app(registry)
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._open: dict[asyncio.StreamWriter, None] = {}
        run = self._loop.run_until_complete
        self._thread = threading.Thread(target=run, args=(self._serve(sock),), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Answer no more."""
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self, sock: Socket) -> None:
        server = await asyncio.start_server(self._welcome, sock=sock, limit=_LONGEST_REQUEST)
        await self._over.wait()
        server.close()
        answering = asyncio.all_tasks() - {asyncio.current_task()}
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, and close the connection; whoever is too slow for that is reset."""
        while len(self._open) >= MOST_CONNECTIONS:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()
        self._open[writer] = None
        try:
            await asyncio.wait_for(self._answer(reader, writer), _PATIENCE)
        except (OSError, EOFError, TimeoutError, asyncio.TimeoutError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._open.pop(writer, None)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            answer = _error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        else:
            answer = self._response(head.decode("latin-1"))
        writer.write(answer)
        writer.close()
        await writer.wait_closed()

    def _response(self, head: str) -> bytes:
        """The answer to a request with this head."""
        first, *lines = head.split("\r\n")
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
        }
        accept = headers.get("accept", "")
        try:
            method, target, version = first.split(" ")
            query = urlsplit(target).query
            choose_encoder(accept)  # which the library does not expect to fail
        except (TypeError, ValueError):
            return _error(HTTPStatus.BAD_REQUEST)
        if not version.startswith("HTTP/"):
            return _error(HTTPStatus.BAD_REQUEST)
        if method != "GET":
            return _error(HTTPStatus.METHOD_NOT_ALLOWED)
        environ = {"REQUEST_METHOD": method, "PATH_INFO": "/metrics", "QUERY_STRING": query}
        environ |= {"HTTP_ACCEPT": accept, "HTTP_ACCEPT_ENCODING": headers.get("accept-encoding", "")}
        began: list[Any] = []
        try:
            body = b"".join(self._app(environ, lambda *status: began.extend(status)))
        except Exception as error:
            console.complain(f"a bug in pwire: no metrics ({type(error).__name__}: {error})")
            return _error(HTTPStatus.INTERNAL_SERVER_ERROR)
        return _message(began[0], began[1], body)


def _error(status: HTTPStatus) -> bytes:
    return _message(f"{status.value} {status.phrase}", [], b"")


def _message(status: str, headers: list[tuple[str, str]], body: bytes) -> bytes:
    more = [("Content-Length", str(len(body))), ("Connection", "close")]
    lines = "".join(f"{name}: {value}\r\n" for name, value in (*headers, *more))
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode("latin-1") + body


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
