"""`--metrics`: live counters of a proxy, and the progress of `analyze --follow`, served to Prometheus.

One thread with one event loop answers all requests, one per connection. Each scrape makes the metric families
from a snapshot, which is immutable, or from the current numbers of a status. So no lock is needed here.

The number of label values is bounded: commands and errors by the protocol, topics by `Live`; the rest are
two directions. There are no labels for connections, producers and consumers: their number is unbounded.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily as Counter
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.core import HistogramMetricFamily as Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pulsarctl_wire import __version__
from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.options import parse_address
from pulsarctl_wire.net.settings import Address
from pulsarctl_wire.net.sockets import Socket, bind_socket
from pulsarctl_wire.render.text import clean
from pulsarctl_wire.stats.meters import BOUNDS
from pulsarctl_wire.stats.snapshot import Snapshot, Times, TopicRow

if TYPE_CHECKING:
    from pulsarctl_wire.spark.follow import Status

MAX_CONNECTIONS: Final = 32
"""Maximum number of open connections; when it is exceeded, the oldest one is closed."""

_TIMEOUT: Final = 10.0  # seconds that a connection may take in all
_LONGEST_REQUEST: Final = 16 * 1024  # bytes


def serve(address: str, collector: Collector, stack: ExitStack) -> str:
    """Serve metrics at `address` ("9464", ":9464", "HOST:9464", "[::1]:9464") until `stack` closes.

    `collector` makes them in the server's thread. Returns the URL. An invalid address, or one that cannot be
    bound, ends the command with one line.
    """
    endpoint = Address(*parse_address("--metrics", address))
    registry = CollectorRegistry()
    registry.register(collector)
    try:
        sock = bind_socket(endpoint)  # IPv4 or IPv6, depending on the host
    except OSError as error:
        reason = error.strerror or error
        console.fail(f"--metrics {address}: {reason}; name another HOST:PORT")
    url = f"http://{Address(endpoint.host, sock.getsockname()[1])}/metrics"
    stack.callback(_Server(sock, registry).stop)
    return url


class _Server:
    """Answers HTTP requests, with any path, in its own thread."""

    def __init__(self, sock: Socket, registry: CollectorRegistry) -> None:
        self._app: Any = make_wsgi_app(registry)
        self._loop = asyncio.new_event_loop()
        self._end_event = asyncio.Event()
        self._connections: dict[asyncio.StreamWriter, None] = {}
        run = self._loop.run_until_complete
        self._thread = threading.Thread(target=run, args=(self._serve(sock),), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the server and its thread."""
        self._loop.call_soon_threadsafe(self._end_event.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self, sock: Socket) -> None:
        server = await asyncio.start_server(self._accept, sock=sock, limit=_LONGEST_REQUEST)
        await self._end_event.wait()
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, and close the connection. Slow connections are reset."""
        while len(self._connections) >= MAX_CONNECTIONS:
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            oldest.transport.abort()
        self._connections[writer] = None
        try:
            await asyncio.wait_for(self._answer(reader, writer), _TIMEOUT)
        except (OSError, EOFError, TimeoutError, asyncio.TimeoutError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._connections.pop(writer, None)

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
        """Return the answer to a request with this head."""
        first, *lines = head.split("\r\n")
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
        }
        accept = headers.get("accept", "")
        try:
            method, target, version = first.split(" ")
            query = urlsplit(target).query
            choose_encoder(accept)  # raises if the header is invalid: an error of the client, not of `_app`
        except (TypeError, ValueError):
            return _error(HTTPStatus.BAD_REQUEST)
        if not version.startswith("HTTP/"):
            return _error(HTTPStatus.BAD_REQUEST)
        if method != "GET":
            return _error(HTTPStatus.METHOD_NOT_ALLOWED)
        environ = {"REQUEST_METHOD": method, "PATH_INFO": "/metrics", "QUERY_STRING": query}
        environ |= {"HTTP_ACCEPT": accept, "HTTP_ACCEPT_ENCODING": headers.get("accept-encoding", "")}
        response: list[Any] = []  # the status and the headers, as WSGI passes them
        try:
            body = b"".join(self._app(environ, lambda *arguments: response.extend(arguments)))
        except Exception as error:
            console.warn(f"a bug in pwire: metrics failed ({type(error).__name__}: {error})")
            return _error(HTTPStatus.INTERNAL_SERVER_ERROR)
        return _message(response[0], response[1], body)


def _error(status: HTTPStatus) -> bytes:
    return _message(f"{status.value} {status.phrase}", [], b"")


def _message(status: str, headers: list[tuple[str, str]], body: bytes) -> bytes:
    extra = [("Content-Length", str(len(body))), ("Connection", "close")]
    lines = "".join(f"{name}: {value}\r\n" for name, value in (*headers, *extra))
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode("latin-1") + body


# -- what is served


class _LateCollector(Collector):
    """A collector that makes no metrics before the first scrape, not even when it is registered."""

    def describe(self) -> Iterable[Metric]:
        """Return no metrics: there may be nothing to make them from yet."""
        return ()


def _build_info() -> Metric:
    """Return the metric that all processes have."""
    info = Gauge("pwire_build_info", "Always 1; its label is pwire's version.", labels=["version"])
    info.add_metric([__version__], 1)
    return info


_DIRECTIONS: Final = {True: "to_broker", False: "to_client"}
_LIMITS: Final = [f"{limit / 1e9:g}" for limit in BOUNDS]  # of buckets, in seconds


class SnapshotCollector(_LateCollector):
    """Makes metrics from the snapshot that `snapshot` returns at each scrape."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """Return the families of one snapshot."""
        snapshot = self._snapshot()
        yield from _totals(snapshot)
        yield from _by_kind(snapshot)
        yield from _by_topic(snapshot.topics)
        text = "From SEND to SEND_RECEIPT or SEND_ERROR."
        yield _histogram("pwire_publish_latency_seconds", text, "", {"": snapshot.publishes})
        text = "From a request to its answer."
        yield _histogram("pwire_request_latency_seconds", text, "command", snapshot.requests)


def _totals(snapshot: Snapshot) -> Iterator[Metric]:
    """Return the metrics without labels by command, topic and the like."""
    yield _build_info()
    oldest, start = (snapshot.backlog.oldest_send_ns or 0) / 1e9, snapshot.started_ns / 1e9
    yield Gauge("pwire_start_time_seconds", "When counting began, since the epoch.", start)
    yield Gauge("pwire_connections", "Open connections.", snapshot.open_connections)
    yield Gauge(
        "pwire_oldest_pending_send_seconds", "How long the oldest SEND without an answer has waited.", oldest
    )
    yield Counter("pwire_connections_opened", "Connections opened.", snapshot.all_connections)
    yield Counter("pwire_checksum_failures", "Entries with a wrong CRC32-C.", snapshot.checksum_failures)
    yield Counter("pwire_malformed", "Stretches of bytes that are not frames.", snapshot.malformed)
    yield Counter("pwire_malformed_bytes", "Bytes that are not frames.", snapshot.malformed_bytes)
    yield Counter("pwire_tap_gaps", "Stretches of bytes forwarded but not decoded.", snapshot.gaps)
    yield Counter("pwire_tap_missed_bytes", "Bytes forwarded but not decoded.", snapshot.missed_bytes)
    yield Counter("pwire_tap_missed_frames", "Frames forwarded but not shown.", snapshot.missed_frames)


def _by_kind(snapshot: Snapshot) -> Iterator[Metric]:
    """Return the metrics by command, direction and error."""
    frames = Counter("pwire_frames", "Frames, by command.", labels=["command", "direction"])
    for (command, to_broker), count in sorted(snapshot.commands.items()):
        frames.add_metric([command, _DIRECTIONS[to_broker]], count)
    yield frames
    size = Counter("pwire_bytes", "Bytes forwarded.", labels=["direction"])
    text = "Messages sent to the broker, and delivered by it."
    messages = Counter("pwire_messages", text, labels=["direction"])
    for to_broker, traffic in ((True, snapshot.to_broker), (False, snapshot.to_client)):
        size.add_metric([_DIRECTIONS[to_broker]], traffic.size)
        messages.add_metric([_DIRECTIONS[to_broker]], traffic.messages)
    yield size
    yield messages
    errors = Counter("pwire_errors", "Errors in the broker's answers, by ServerError.", labels=["code"])
    for code, count in sorted(snapshot.errors.items()):
        errors.add_metric([code], count)
    yield errors


_GAUGES: Final = {
    "pwire_producers": ("producers", "Open producers."),
    "pwire_consumers": ("consumers", "Open consumers."),
    "pwire_pending_sends": ("pending_sends", "SENDs without SEND_RECEIPT or SEND_ERROR."),
    "pwire_permits": ("permits", "Messages requested by FLOW but not delivered."),
    "pwire_unacked_messages": ("unacked", "Messages delivered but not acknowledged."),
}
"""Gauges with the label topic -> the field of a topic's backlog, and the help."""


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
    """Make a histogram by `label`; "" for no label."""
    family = Histogram(name, text, labels=[label] if label else None)
    for value, entry in sorted(times.items()):
        total = 0
        buckets = []
        for limit, count in zip([*_LIMITS, "+Inf"], entry.buckets, strict=True):
            total += count
            buckets.append((limit, total))
        family.add_metric([value] if label else [], buckets, entry.sum_ns / 1e9)
    return family


class FollowCollector(_LateCollector):
    """Makes metrics from `status` at each scrape, and looks into the directory for files that wait."""

    def __init__(self, status: Status) -> None:
        self._status = status
        self._started = time.time()

    def collect(self) -> Iterator[Metric]:
        """Return the families of the current status."""
        status, totals, files = self._status, self._status.totals, self._status.waiting()
        lag = max((time.time() - file.modified_ns / 1e9 for file in files), default=0.0)
        yield _build_info()
        yield Gauge("pwire_start_time_seconds", "When this process began, since the epoch.", self._started)
        text = "How long ago the oldest file was written that is complete and not added."
        yield Gauge("pwire_follow_lag_seconds", text, lag)
        yield Gauge("pwire_follow_waiting_files", "Files that are complete and not added.", len(files))
        yield Gauge("pwire_follow_last_batch_timestamp_seconds", "When a batch last ended.", status.ended)
        yield Gauge("pwire_follow_last_batch_seconds", "How long the last batch took.", status.seconds)
        yield Counter("pwire_follow_batches", "Batches added since the start.", status.batches)
        yield Counter("pwire_follow_files", "Files of the table.", status.files)
        yield Counter("pwire_follow_read_bytes", "Bytes of captures in the table.", totals.read)
        yield Counter("pwire_follow_frames", "Frames added since the start.", status.frames)
        yield Counter("pwire_follow_gaps", "Gaps added since the start.", status.gaps)
        text = "Packets that the kernel dropped while capturing."
        yield Counter("pwire_follow_dropped_packets", text, totals.dropped)
        text = "Files that are damaged, grew or were overwritten, with what is missing of them."
        yield Counter("pwire_follow_problems", text, len(totals.problems))
