"""What Prometheus scrapes is what was counted, in names and units that it expects."""

from __future__ import annotations

import gzip
import re
import socket
import struct
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from http.client import HTTPResponse
from typing import Any, cast

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from proxied import until
from segments import conversation, send

from pulsarctl_wire import __version__
from pulsarctl_wire.cli import metrics
from pulsarctl_wire.cli.console import EXIT_USAGE
from pulsarctl_wire.cli.metrics import SnapshotCollector
from pulsarctl_wire.cli.options import parse_address
from pulsarctl_wire.render.text import clean
from pulsarctl_wire.stats.live import Live
from pulsarctl_wire.stats.snapshot import Snapshot
from pulsarctl_wire.wire.frame import Connection
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.session.knowledge import Knowledge
from pulsarctl_wire.wire.session.ledgers import LedgerState

START = 1_700_000_000 * 10**9


def serve(address: str, snapshot: Callable[[], Snapshot], stack: ExitStack) -> str:
    return metrics.serve(address, SnapshotCollector(snapshot), stack)


OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def counted(turns: list[tuple[bool, bytes]]) -> tuple[Live, Snapshot]:
    """A connection on which frames passed, a millisecond apart."""
    live = Live(START)
    connection = Connection(0, "10.0.0.1:50000", "10.0.0.2:6650")
    streams = FrameStream(connection, False), FrameStream(connection, True)
    state = LedgerState(connection, Knowledge(), streams)
    live.opened(connection, START, state)
    for number, (to_broker, raw) in enumerate(turns):
        events = streams[to_broker].feed(raw, START + number * 1_000_000)
        state.track(events)
        live.events(events)
    live.missed_frames += 7
    return live, live.snapshot(START + len(turns) * 1_000_000)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def get(url: str, accept: str = "text/plain") -> tuple[str, str]:
    request = urllib.request.Request(url, headers={"Accept": accept})
    with cast(HTTPResponse, urllib.request.urlopen(request, timeout=10)) as response:
        return response.headers["Content-Type"], response.read().decode()


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


# ---- Addresses ----


@pytest.mark.parametrize(
    ("address", "found"),
    [
        (":9464", ("127.0.0.1", 9464)),
        ("9464", ("127.0.0.1", 9464)),
        ("0", ("127.0.0.1", 0)),
        ("0.0.0.0:9464", ("0.0.0.0", 9464)),
        ("localhost:65535", ("localhost", 65535)),
        ("[::1]:9464", ("::1", 9464)),
        ("[::]:1", ("::", 1)),
    ],
)
def test_a_port_alone_is_one_of_the_loopback_address(address: str, found: tuple[str, int]) -> None:
    assert parse_address("--metrics", address) == found


@pytest.mark.parametrize(
    "address",
    ["", ":", "x", "host", ":65536", ":-1", ":9 ", "::1:9464", "a:b:1", "[::1]", ":" + "9" * 5000, ":٣"],
)
def test_what_is_no_address_is_said(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_address("--metrics", address)
    assert ended.value.code == EXIT_USAGE
    said = capsys.readouterr().err
    assert said.startswith("pwire: --metrics ")
    assert said.count("\n") == 1


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1", "a" * 70 + ".x"])
def test_an_address_of_another_machine_is_said(
    host: str, stack: ExitStack, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        serve(f"{host}:0", lambda: counted([])[1], stack)
    assert ended.value.code == EXIT_USAGE
    assert capsys.readouterr().err.startswith(f"pwire: --metrics {host}:0: ")


def test_a_port_in_use_is_said(stack: ExitStack, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SystemExit) as ended:
            serve(f":{port}", lambda: counted([])[1], stack)
    assert ended.value.code == EXIT_USAGE
    assert capsys.readouterr().err == (
        f"pwire: --metrics :{port}: Address already in use; name another HOST:PORT\n"
    )


# ---- Scraping ----


def test_what_is_scraped_is_what_was_counted(stack: ExitStack) -> None:
    turns = conversation([b"one", b"two", b"three"])
    turns.append((True, send(b"four", 3)))
    raw = bytearray(send(b"five", 4))
    raw[-1] ^= 1
    turns.append((True, bytes(raw)))
    _, snapshot = counted(turns)
    url = serve("0", lambda: snapshot, stack)
    assert url.startswith("http://127.0.0.1:")
    kind, text = get(url)
    assert kind.startswith("text/plain; version=")
    found = samples(text)

    def value(name: str, **labels: str) -> float:
        return found[name, tuple(sorted(labels.items()))]

    topic = "persistent://public/default/t"
    assert value("pwire_frames_total", command="SEND", direction="to_broker") == 5
    assert value("pwire_frames_total", command="MESSAGE", direction="to_client") == 3
    to_broker = sum(len(raw) for direction, raw in turns if direction)
    assert value("pwire_bytes_total", direction="to_broker") == to_broker
    assert value("pwire_messages_total", direction="to_broker") == 5
    assert value("pwire_messages_total", direction="to_client") == 3
    assert value("pwire_topic_messages_total", topic=topic, direction="to_client") == 3
    assert value("pwire_checksum_failures_total") == 1
    assert value("pwire_tap_missed_frames_total") == 7
    assert value("pwire_connections") == value("pwire_connections_opened_total") == 1
    assert value("pwire_producers", topic=topic) == value("pwire_consumers", topic=topic) == 1
    assert value("pwire_pending_sends", topic=topic) == 2
    assert value("pwire_permits", topic=topic) == 1000 - 3
    assert value("pwire_unacked_messages", topic=topic) == 0
    assert value("pwire_oldest_pending_send_seconds") == pytest.approx(0.002)
    assert value("pwire_build_info", version=__version__) == 1
    assert value("pwire_start_time_seconds") == START / 1e9
    assert value("pwire_publish_latency_seconds_count") == 3
    assert value("pwire_publish_latency_seconds_sum") == pytest.approx(0.003)
    assert value("pwire_publish_latency_seconds_bucket", le="0.0005") == 0
    assert value("pwire_publish_latency_seconds_bucket", le="0.001") == 3
    assert value("pwire_publish_latency_seconds_bucket", le="+Inf") == 3
    assert value("pwire_request_latency_seconds_count", command="SUBSCRIBE") == 1
    assert ("pwire_errors_total", (("code", "ChecksumError"),)) not in found


def test_scrapes_follow_the_conventions(stack: ExitStack) -> None:
    _, snapshot = counted(conversation())
    url = serve(":0", lambda: snapshot, stack)
    kind, text = get(url, OPENMETRICS)
    assert kind.startswith(OPENMETRICS.partition(";")[0])
    parse: Any = openmetrics.text_string_to_metric_families  # which is strict
    families = list(parse(text))
    assert len(families) > 20
    for family in families:
        assert family.name.startswith("pwire_")
        assert family.documentation.endswith(".")
        assert family.type in ("counter", "gauge", "histogram")
        assert not family.name.endswith(("_total", "_count", "_sum", "_ms", "_ns"))
        if family.type == "histogram":
            assert family.name.endswith("_seconds")
    names = [sample.name for family in families for sample in family.samples]
    assert "pwire_bytes_total" in names


def test_histograms_only_grow_along_their_buckets(stack: ExitStack) -> None:
    _, snapshot = counted(conversation([b"x"] * 50))
    found = samples(get(serve(":0", lambda: snapshot, stack))[1])
    name = "pwire_publish_latency_seconds_bucket"
    buckets = [(float(labels[0][1]), count) for (each, labels), count in found.items() if each == name]
    assert [bound for bound, _ in buckets] == sorted(bound for bound, _ in buckets)
    assert [count for _, count in buckets] == sorted(count for _, count in buckets)
    assert buckets[0][0] == 0.0001
    assert buckets[-2][0] == 30
    assert buckets[-1] == (float("inf"), 50)


def test_names_that_are_no_text_can_be_scraped(stack: ExitStack) -> None:
    evil = 'a"b\\c\n\x1b[31m{}=,é\u202e'
    live, _ = counted([])
    subscribe: Any = conversation()[4]
    _, base = subscribe
    frames = [(True, base.replace(b"\x0a\x01t", b"\x0a\x01\xff"))]  # the topic: no UTF-8
    _, snapshot = counted(frames)
    assert snapshot.backlog.consumers == 1
    text = get(serve(":0", lambda: snapshot, stack))[1]
    assert any(name == "pwire_consumers" for name, _ in samples(text))
    connection = Connection(1)
    stream = FrameStream(connection, True)
    from segments import build

    state = LedgerState(connection, Knowledge())
    live.opened(connection, START, state)
    events = stream.feed(build("PRODUCER", topic=evil, producer_id=1, request_id=1), START)
    state.track(events)
    live.events(events)
    found = samples(get(serve(":0", lambda: live.snapshot(START), stack))[1])
    shown = f"persistent://public/default/{clean(evil)}"
    assert shown.isprintable()
    assert found["pwire_producers", (("topic", shown),)] == 1
    assert found["pwire_topic_bytes_total", (("direction", "to_broker"), ("topic", shown))] == 0


def test_each_scrape_asks_for_the_snapshot_and_several_may_at_once(stack: ExitStack) -> None:
    live, _ = counted(conversation())
    lock = threading.Lock()

    def newest() -> Snapshot:
        with lock:
            live.missed_frames += 1
            return live.snapshot(START)

    url = serve(":0", newest, stack)
    seen: list[float] = []

    def scrape() -> None:
        seen.extend(samples(get(url)[1])["pwire_tap_missed_frames_total", ()] for _ in range(5))

    threads = [threading.Thread(target=scrape) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == [7 + number for number in range(1, 21)]


def test_the_server_ends_with_the_stack() -> None:
    before = threading.active_count()
    with ExitStack() as stack:
        url = serve(":0", lambda: counted([])[1], stack)
        assert "pwire_build_info" in get(url)[1]
        port = int(url.split(":")[2].partition("/")[0])
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    assert threading.active_count() == before


# ---- Whoever connects ----


def connected(url: str) -> socket.socket:
    host, _, port = url.split("/")[2].rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def test_a_connection_that_is_reset_is_no_news(stack: ExitStack, capsys: pytest.CaptureFixture[str]) -> None:
    url = serve(":0", lambda: counted([])[1], stack)
    threads = threading.active_count()
    for _ in range(3):
        sock = connected(url)
        sock.sendall(b"GET /met")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
    assert "pwire_build_info" in get(url)[1]
    until(lambda: threading.active_count() == threads)
    assert capsys.readouterr().err == ""


def test_who_neither_asks_nor_leaves_is_given_up(
    stack: ExitStack, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert metrics._TIMEOUT == 10
    monkeypatch.setattr(metrics, "_TIMEOUT", 0.01)
    url = serve(":0", lambda: counted([])[1], stack)
    for sent in (b"", b"GET /metrics HTTP/1.1\r\n"):
        with connected(url) as sock, suppress(ConnectionError):
            sock.sendall(sent)
            assert sock.recv(1) == b""
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "request_",
    [
        b"\x16\x03\x01\xff\xfe garbage\r\n\r\n",
        b"GET http://[x HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nAccept: text/plain; version=x\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 10_000 + b"\r\n",
        b"POST / HTTP/1.1\r\n\r\n",
    ],
    ids=["no HTTP", "no URL", "no version", "endless", "POST"],
)
def test_nonsense_is_refused(request_: bytes, stack: ExitStack, capsys: pytest.CaptureFixture[str]) -> None:
    url = serve(":0", lambda: counted([])[1], stack)
    with connected(url) as sock:
        sock.sendall(request_)
        answer = b""
        with suppress(ConnectionResetError):  # not all of it was read
            while piece := sock.recv(4_096):
                answer += piece
    assert re.search(rb"\b[45]\d\d\b", answer)
    assert capsys.readouterr().err == ""


def test_what_is_wrong_with_ourselves_is_said(stack: ExitStack, capsys: pytest.CaptureFixture[str]) -> None:
    url = serve(":0", lambda: counted([])[1].nothing, stack)  # type: ignore[attr-defined]
    with connected(url) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert sock.recv(12) == b"HTTP/1.1 500"
    assert capsys.readouterr().err.startswith("pwire: a bug in pwire: metrics failed (AttributeError: ")


def test_those_that_say_nothing_keep_nobody_from_the_metrics(
    stack: ExitStack, capsys: pytest.CaptureFixture[str]
) -> None:
    """However many connect and wait, there is one thread, and the newest are served."""
    before = threading.active_count()
    url = serve(":0", lambda: counted([])[1], stack)
    with ExitStack() as idle:
        socks = [idle.enter_context(connected(url)) for _ in range(3 * metrics.MAX_CONNECTIONS)]
        for sock in socks[::2]:
            with suppress(ConnectionError):
                sock.sendall(b"GET / HTTP/1.1\r\nSlow")
        assert "pwire_build_info" in get(url)[1]
        with suppress(ConnectionError):  # the first ones were closed for the others
            assert socks[0].recv(1) == b""
        assert threading.active_count() == before + 1
    assert capsys.readouterr().err == ""


def test_metrics_are_packed_for_those_who_ask_for_it(stack: ExitStack) -> None:
    url = serve(":0", lambda: counted(conversation())[1], stack)
    request = urllib.request.Request(url, headers={"Accept-Encoding": "gzip", "Accept": "text/plain"})
    with cast(HTTPResponse, urllib.request.urlopen(request, timeout=10)) as response:
        assert response.headers["Content-Encoding"] == "gzip"
        assert samples(gzip.decompress(response.read()).decode())["pwire_connections", ()] == 1


def test_ipv6(stack: ExitStack) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    url = serve("[::1]:0", lambda: counted([])[1], stack)
    assert url.startswith("http://[::1]:")
    assert "pwire_build_info" in get(url)[1]
