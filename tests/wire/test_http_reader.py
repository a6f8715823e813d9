"""Lookups over HTTP in a stream: requests and answers, in any chunks, and with any damage."""

from __future__ import annotations

import gzip
import json
from collections import deque
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pulsarctl_wire.wire import rest
from pulsarctl_wire.wire.frame import Connection, Event, HttpMessage, Malformed
from pulsarctl_wire.wire.framing.http import MAX_BODY, MAX_CALLS, MAX_HEAD
from pulsarctl_wire.wire.framing.web_stream import WebStream

LOOKUP = "/lookup/v2/topic/persistent/public/default/t"
FOUND = {"brokerUrl": "pulsar://b:6650", "httpUrl": "http://b:8080", "brokerUrlSsl": ""}
Said = tuple[str, str, int, str | None, dict[str, Any], int, int, bool]


def ask(target: str = LOOKUP, *headers: str, method: str = "GET") -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: b:8080", *headers, "", ""]
    return "\r\n".join(lines).encode()


def tell(status: int = 200, value: object = FOUND, *headers: str) -> bytes:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    lines = [f"HTTP/1.1 {status} Reason", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def chunked(value: object, *sizes: int) -> bytes:
    body, lines = json.dumps(value).encode(), [b"HTTP/1.1 200 OK", b"transfer-encoding: Chunked", b"", b""]
    out, pos = b"\r\n".join(lines), 0
    for size in (*sizes, len(body)):
        part = body[pos : pos + size]
        pos += len(part)
        if part:
            out += b"%x;x=y\r\n%b\r\n" % (len(part), part)
    return out + b"0\r\nTrailer: x\r\n\r\n"


class Talk:
    """Both directions of a connection."""

    def __init__(self, *, from_start: bool = True) -> None:
        self.connection = Connection(0)
        self.streams = [WebStream(self.connection, way, from_start=from_start) for way in (False, True)]
        self.events: list[Event] = []
        self.time_ns = 0

    def send(self, to_broker: bool, data: bytes, size: int = 1 << 30) -> None:
        for start in range(0, len(data), size):
            self.time_ns += 1000
            self.events += self.streams[to_broker].feed(data[start : start + size], self.time_ns, 1)

    def lose(self, to_broker: bool, size: int) -> None:
        self.events += self.streams[to_broker].gap(size, self.time_ns, 1)

    def end(self) -> list[Said]:
        for way in (True, False):
            self.events += self.streams[way].close()
        return self.said

    @property
    def said(self) -> list[Said]:
        return [
            (
                *(event.method, event.target, event.status, event.topic or event.namespace, event.fields),
                *(event.offset, event.size, event.partial),
            )
            for event in self.events
            if isinstance(event, HttpMessage)
        ]


def statuses(said: list[Said]) -> list[int]:
    return [message[2] for message in said]


def test_a_lookup_and_its_answer() -> None:
    talk = Talk()
    request, answer = ask(), tell()
    talk.send(True, request)
    talk.send(False, answer)
    topic = "persistent://public/default/t"
    found = {"brokerUrl": "pulsar://b:6650", "httpUrl": "http://b:8080"}
    assert talk.said == [
        ("GET", LOOKUP, 0, topic, {}, 0, len(request), False),
        ("GET", LOOKUP, 200, topic, found, 0, len(answer), False),
    ]
    first, second = (event for event in talk.events if isinstance(event, HttpMessage))
    assert second.request is first
    assert second.latency_ns == 1000
    assert first.to_broker and not second.to_broker  # noqa: PT018
    assert talk.connection.calls == deque()
    talk.end()
    assert not talk.connection.calls
    assert [event.protocol for event in talk.events if isinstance(event, Malformed)] == ["HTTP", "HTTP"]


@pytest.mark.parametrize(
    ("target", "kind", "subject"),
    [
        ("/lookup/v2/topic/persistent/a/b/c%2Fd%20e?authoritative=true", "lookup", "persistent://a/b/c/d e"),
        ("/lookup/v2/topic/non-persistent/a/b/c", "lookup", "non-persistent://a/b/c"),
        ("/lookup/v2/destination/persistent/a/cluster/b/c", "lookup", "persistent://a/cluster/b/c"),
        ("http://b:8080/lookup/v2/topic/persistent/a/b/c", "lookup", "persistent://a/b/c"),
        (
            "/admin/v2/persistent/a/b/c/partitions?checkAllowAutoCreation=true",
            "partitions",
            "persistent://a/b/c",
        ),
        ("/admin/v2/namespaces/a/b/topics?mode=ALL", "topics", "a/b"),
        ("/admin/v2/schemas/a/b/c/schema", "schema", "persistent://a/b/c"),
        ("/admin/v2/schemas/a/b/c/schema/7", "schema", "persistent://a/b/c"),
        ("/admin/v2/persistent/a/b/c/stats", "", ""),
        ("/lookup/v2/topic/persistent/a/b/c/bundle", "lookup", "persistent://a/b/c/bundle"),
        ("/admin/v2/persistent/a/b/%2e%2E/partitions", "", ""),
        ("/metrics", "", ""),
        ("*", "", ""),
        ("", "", ""),
        ("/" * 5000, "", ""),
    ],
)
def test_what_is_a_call(target: str, kind: str, subject: str) -> None:
    call = rest.parse_target(target)
    assert (call.kind if call else "", (call.topic or call.namespace) if call else "") == (kind, subject)


@given(st.text(min_size=1), st.text(min_size=1), st.text(st.characters(codec="utf-8"), min_size=1))
def test_what_we_ask_is_understood(tenant: str, namespace: str, name: str) -> None:
    topic = f"persistent://{tenant}/{namespace}/{name}".encode("utf-8", "replace").decode()
    if topic.count("/") != 4 or ".." in topic or len(rest.make_lookup_target(topic)) > 2000:
        return
    made = (
        rest.make_lookup_target(topic, "out"),
        rest.make_partitions_target(topic, create=False),
        rest.make_schema_target(topic, bytes(8)),
    )
    calls = [rest.parse_target(target) for target in made]
    assert [call and (call.kind, call.topic) for call in calls] == [
        *(("lookup", topic), ("partitions", topic), ("schema", topic)),
    ]
    assert [rest.hide_credentials(target) for target in made] == list(made)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"{LOOKUP}?token=abc&authoritative=true", f"{LOOKUP}?token=[redacted]&authoritative=true"),
        (f"{LOOKUP}?abc", f"{LOOKUP}?[redacted]"),
        (f"{LOOKUP}?a=b?c=d", f"{LOOKUP}?a=[redacted]"),
        ("http://me:pw@b:8080/x?y=1", "http://[redacted]@b:8080/x?y=[redacted]"),
        ("//me:pw@b/x", "//[redacted]@b/x"),
    ],
)
def test_credentials_are_hidden(text: str, shown: str) -> None:
    assert rest.hide_credentials(text) == shown


@pytest.mark.parametrize(
    ("target", "answer", "status", "fields"),
    [
        (LOOKUP, tell(307, b"", "Location: http://me:pw@c:1/x?authoritative=true&t=1"), 307,
         {"location": "http://[redacted]@c:1/x?authoritative=true&t=[redacted]"}),
        (LOOKUP, tell(404, {"reason": "Namespace not found"}), 404, {"reason": "Namespace not found"}),
        (LOOKUP, tell(503, b"<html>"), 503, {}),
        (LOOKUP, chunked(FOUND, 1, 7), 200, {"brokerUrl": "pulsar://b:6650", "httpUrl": "http://b:8080"}),
        ("/admin/v2/persistent/a/b/c/partitions", tell(200, {"partitions": 3}), 200, {"partitions": 3}),
        ("/admin/v2/namespaces/a/b/topics", tell(200, ["a", "b"]), 200, {"topics": 2}),
        ("/admin/v2/schemas/a/b/c/schema", tell(200, {"version": 1, "type": "AVRO", "data": "{}"}), 200,
         {"version": 1, "type": "AVRO"}),
        (LOOKUP, tell(200, gzip.compress(b'{"partitions": 1}', mtime=0), "Content-Encoding: gzip"), 200,
         {"partitions": 1}),
        (LOOKUP, tell(200, gzip.compress(bytes(10**6), mtime=0), "Content-Encoding: gzip"), 200, {}),
        (LOOKUP, tell(200, b"\x1f\x8bno gzip", "Content-Encoding: gzip"), 200, {}),
        (LOOKUP, tell(200, b" " * MAX_BODY + b"{}"), 200, {}),
        (LOOKUP, tell(200, b"[" * 50_000), 200, {}),
        (LOOKUP, tell(200, {"brokerUrl": ["x"], "partitions": 2**60, "version": True}), 200, {}),
        (LOOKUP, tell(200, b'{"brokerUrl": "\\ud800"}'), 200, {}),
        (LOOKUP, tell(200, b'{"brokerUrl": "\\u00e4"}'), 200, {"brokerUrl": "ä"}),
        (LOOKUP, tell(200, b"1" * 10_000), 200, {}),
        (LOOKUP, b"HTTP/1.1 100 Continue\r\n\r\n" + tell(), 200,
         {"brokerUrl": "pulsar://b:6650", "httpUrl": "http://b:8080"}),
        (LOOKUP, b"HTTP/1.1 204 No Content\r\n\r\n", 204, {}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [1, 7, 1 << 30])
def test_answers(target: str, answer: bytes, status: int, fields: dict[str, Any], size: int) -> None:
    talk = Talk()
    for _ in range(2):  # the next one begins where it ends
        talk.send(True, ask(target), size)
        talk.send(False, answer, size)
    assert [(message[2], message[4]) for message in talk.said] == [(0, {}), (status, fields)] * 2


def test_an_answer_up_to_the_end_of_the_connection() -> None:
    talk = Talk()
    talk.send(True, ask())
    talk.send(False, b"HTTP/1.0 200 OK\r\n\r\n" + json.dumps(FOUND).encode())
    assert statuses(talk.said) == [0]
    assert [message[4].get("brokerUrl") for message in talk.end()] == [None, "pulsar://b:6650"]


def test_other_requests_are_paired_and_left_out() -> None:
    talk = Talk()
    for target in ("/metrics", LOOKUP, "/admin/v2/clusters"):
        talk.send(True, ask(target))
        talk.send(False, tell(200, {"brokerUrl": target}))
    talk.send(True, ask("/x", "Content-Length: 5", method="POST") + b"GET /" + ask())
    talk.send(True, ask(LOOKUP, method="HEAD"))
    talk.send(False, tell(204, b"") + tell() + b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
    assert [message[4].get("brokerUrl") for message in talk.said] == [None, LOOKUP, None, "pulsar://b:6650"]


def test_another_protocol_may_follow() -> None:
    talk = Talk()
    talk.send(True, ask("/ws", "Upgrade: websocket"))
    talk.send(False, b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + tell())
    talk.send(True, ask("b:1", method="CONNECT"))
    assert talk.end() == []


def test_a_hole_in_a_body() -> None:
    talk = Talk()
    answer = tell()
    talk.send(True, ask())
    talk.send(False, answer[:-20])
    talk.lose(False, 15)
    talk.send(False, answer[-5:])
    talk.send(True, ask())
    talk.send(False, answer)
    assert [(message[2], bool(message[4])) for message in talk.said] == [
        *((0, False), (200, False), (0, False), (200, True)),
    ]


@pytest.mark.parametrize("way", [False, True])
def test_a_hole_between_messages(way: bool) -> None:
    talk = Talk()
    talk.send(True, ask())
    talk.lose(way, 100)
    talk.send(False, tell())  # of which request is not known
    talk.send(True, ask("/lookup/v2/topic/persistent/a/b/c"))
    talk.send(False, tell())
    assert [message[3] for message in talk.said][-2:] == ["persistent://a/b/c"] * 2
    assert statuses(talk.said) == [0, 0, 200]


def test_an_answer_that_is_cut() -> None:
    talk = Talk()
    talk.send(True, ask())
    talk.send(False, tell()[:-3])
    last = talk.end()[-1]
    assert (last[2], last[4], last[7]) == (200, {}, True)


def test_a_connection_joined_midway() -> None:
    talk = Talk(from_start=False)
    talk.send(False, b"the end of a body")
    for _ in range(3):
        talk.send(True, ask())
        talk.send(False, tell())
    assert statuses(talk.end()) == [0, 200] * 3


@given(st.lists(st.integers(1, 60), min_size=1, max_size=30), st.booleans())
def test_any_chunks_give_the_same(sizes: list[int], midway: bool) -> None:
    requests = ask() + ask("/metrics") + ask("/admin/v2/namespaces/a/b/topics", "Content-Length: 3") + b"xyz"
    answers = tell() + chunked({"a": 1}, 1, 2) + tell(404, {"reason": "none"})

    def run(cuts: list[int]) -> list[Said]:
        talk = Talk(from_start=not midway)
        for way, data in ((True, requests), (False, answers)):
            pos, turn = 0, 0
            while pos < len(data):
                size = cuts[turn % len(cuts)]
                talk.send(way, data[pos : pos + size])
                pos, turn = pos + size, turn + 1
        return sorted(talk.end(), key=str)

    whole = run([1 << 30])
    assert run(sizes) == whole
    assert sorted(statuses(whole)) == [0, 0, 200, 404]


PIECES = st.one_of(
    st.sampled_from(
        [ask(), tell(), chunked(FOUND, 3), ask()[:-3], tell()[:-3], b"\r\n\r\n", b"HTTP/1.1 200"]
    ),
    st.binary(max_size=40),
    st.sampled_from(
        [b"GET /lookup/ HTTP/1.1\r\n", b"Content-Length: -1\r\n", b"Transfer-Encoding: chunked\r\n"]
    ),
    st.sampled_from([b"ffffffffffff\r\n", b"0\r\n", b"\0" * 5000, b"GET " * 5000, b"HTTP/1.1 200 " * 2000]),
)
STEPS = st.lists(
    st.one_of(st.tuples(st.booleans(), PIECES), st.tuples(st.booleans(), st.integers(1, 2**40))), max_size=30
)


@settings(max_examples=300)
@given(STEPS, st.booleans())
@example([(False, b"GET " * 5000 + b"\r\n\r\n"), (False, b"HTTP/1.1 200 " * 2000 + b"\r\n\r\n")], True)
def test_anything_at_all(steps: list[tuple[bool, bytes | int]], midway: bool) -> None:
    talk = Talk(from_start=not midway)
    for way, step in steps:
        if isinstance(step, bytes):
            talk.send(way, step)
        else:
            talk.lose(way, step)
        for stream in talk.streams:
            assert stream.kept_bytes <= MAX_HEAD + MAX_BODY + 3_000 * MAX_CALLS
    talk.end()
    for event in talk.events:
        if isinstance(event, HttpMessage):
            assert event.kind
            assert event.size > 0


@given(st.binary(max_size=3), st.integers(0, 600), st.integers(1, 40))
def test_one_byte_that_changed(patch: bytes, place: int, size: int) -> None:
    data = bytearray(tell() + chunked(FOUND, 5) + tell())
    data[place : place + len(patch)] = patch
    talk = Talk()
    talk.send(True, ask() * 3)
    talk.send(False, bytes(data), size)
    assert set(statuses(talk.end())) <= {0, *range(100, 600)}


def test_requests_that_wait_are_bounded() -> None:
    talk = Talk()
    for number in range(3 * MAX_CALLS):
        talk.send(True, ask(f"/lookup/v2/topic/persistent/a/b/{number}"))
    assert talk.connection.calls is not None
    assert len(talk.connection.calls) == MAX_CALLS
    talk.send(True, b"GET /" + b"x" * 10 * MAX_HEAD)
    assert talk.streams[True].kept_bytes <= MAX_HEAD + 3_000 * MAX_CALLS
