"""Lookups over HTTP count for the rules as LOOKUP does."""

import json
from itertools import pairwise

import pytest
from segments import Tcp, Turn, build
from timeline import Timeline, ids

from pulsarctl_wire.checks.finding import CERTAIN
from pulsarctl_wire.checks.registry import RULES
from pulsarctl_wire.wire.PulsarApi_pb2 import ServerError

TOPIC = "persistent://public/default/t"
PATH = TOPIC.replace("://", "/")
CLIENT = "10.0.0.1"
PRODUCER = build("PRODUCER", topic=TOPIC, producer_id=1, request_id=7)
NOT_READY = build("ERROR", request_id=7, error=ServerError.ServiceNotReady, message="moved")


def call(target: str, status: int, value: object = "", location: str = "") -> list[Turn]:
    body = json.dumps(value).encode()
    head = f"HTTP/1.1 {status} X\r\nLocation: {location}\r\nContent-Length: {len(body)}\r\n\r\n"
    return [(True, f"GET {target} HTTP/1.1\r\n\r\n".encode()), (False, head.encode() + body)]


class Web:
    """Web services at 10.0.1.N:8080; each call has a connection of its own."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self.calls = 0

    def ask(self, seconds: float, host: int, turns: list[Turn], *, client: str = CLIENT) -> None:
        self.calls += 1
        tcp = Tcp(client=(client, 60_000 + self.calls), server=(f"10.0.1.{host}", 8080))
        self.timeline.at(seconds, *tcp.handshake(), *tcp.say(turns))

    def look_up(self, seconds: float, url: str = "10.0.1.1:6650", *, client: str = CLIENT) -> None:
        found = {"brokerUrl": f"pulsar://{url}"}
        self.ask(seconds, 1, call(f"/lookup/v2/topic/{PATH}", 200, found), client=client)

    @property
    def found(self) -> list[tuple[str, str]]:
        return ids(self.timeline.findings(until=100))


def broker(number: int = 1) -> Tcp:
    return Tcp(client=(CLIENT, 50_000 + number), server=(f"10.0.1.{number}", 6650))


@pytest.mark.parametrize(
    ("seconds", "client", "is_stale"),
    [(None, CLIENT, True), (2.5, CLIENT, False), (0.5, CLIENT, True), (2.5, "10.0.0.2", True)],
)
def test_a_client_that_looked_up_again_over_http(seconds: float | None, client: str, is_stale: bool) -> None:
    web, tcp = Web(), broker()
    web.timeline.log_in(0, tcp)
    if seconds is not None and seconds < 2:
        web.look_up(seconds, client=client)
    web.timeline.say(2, tcp, (True, PRODUCER), (False, NOT_READY))
    if seconds is not None and seconds > 2:
        web.look_up(seconds, client=client)
    web.timeline.say(3, tcp, (True, PRODUCER), (False, NOT_READY))
    assert (("stale_ownership", CERTAIN) in web.found) is is_stale


@pytest.mark.parametrize(("path", "is_found"), [("1212", False), ("12121", True), ("123123", True)])
def test_redirected_in_a_circle_over_http(path: str, is_found: bool) -> None:
    web = Web()
    for number, (host, target) in enumerate(pairwise(path)):
        location = f"http://10.0.1.{target}:8080/lookup/v2/topic/{PATH}?authoritative=false"
        web.ask(1 + number / 100, int(host), call(f"/lookup/v2/topic/{PATH}", 307, "", location))
    findings = web.timeline.findings()
    assert ids(findings) == [("redirect_loop", CERTAIN)] * is_found
    if findings:
        assert findings[0].subject.topic == TOPIC
        assert findings[0].evidence[0].sighting.to_broker


@pytest.mark.parametrize(("refusals", "is_found"), [(2, False), (3, True)])
def test_lookups_that_are_refused_over_http(refusals: int, is_found: bool) -> None:
    web = Web()
    web.ask(1, 1, call("/metrics", 429))
    for number in range(refusals):
        web.ask(2 + number / 100, 1, call(f"/lookup/v2/topic/{PATH}", 429, {"reason": "Too many requests"}))
    assert web.found == [("lookup_throttled", CERTAIN)] * is_found


def test_an_answer_ends_a_circle() -> None:
    web = Web()
    for number, (host, target) in enumerate(pairwise("121212121")):
        if number % 3 == 2:
            web.look_up(1 + number / 100)
        location = f"http://10.0.1.{target}:8080/lookup/v2/topic/{PATH}"
        web.ask(1.001 + number / 100, int(host), call(f"/lookup/v2/topic/{PATH}", 307, "", location))
    assert web.found == []


def test_an_address_that_refuses_the_client() -> None:
    web = Web()
    web.look_up(1, "10.0.1.9:6650")
    tcp = Tcp(client=(CLIENT, 50_000), server=("10.0.1.9", 6650))
    first, *_ = tcp.handshake()
    web.timeline.at(1.1, first, tcp.rst(False))
    assert web.found == [("advertised_address_unreachable", CERTAIN)]


def test_a_mere_lookup_is_no_failure() -> None:
    web = Web()
    web.look_up(1, "broker-9:6650")
    assert web.found == []


def test_partitions_over_http() -> None:
    web, tcp = Web(), broker()
    web.ask(1, 1, call(f"/admin/v2/{PATH}/partitions", 200, {"partitions": 3}))
    success = build("PRODUCER_SUCCESS", request_id=7, producer_name="p", last_sequence_id=-1)
    web.timeline.log_in(2, tcp, (True, PRODUCER), (False, success))
    assert web.found == [("producer_on_partitioned_parent", CERTAIN)]


@pytest.mark.parametrize(
    ("target", "is_found"), [(f"/admin/v2/{PATH}/partitions", True), (f"/lookup/v2/topic/{PATH}", False)]
)
def test_only_lookups_look_up(target: str, is_found: bool) -> None:
    web, tcp = Web(), broker()
    web.timeline = Timeline(rules=RULES)
    web.ask(1, 1, call(target, 200, {"partitions": 0, "brokerUrl": "pulsar://10.0.1.1:6650"}))
    web.timeline.log_in(2, tcp, (True, PRODUCER), (False, NOT_READY))
    web.timeline.at(3, *tcp.goodbye())
    assert (("not_looked_up", CERTAIN) in web.found) is is_found


def test_what_is_forbidden() -> None:
    web = Web()
    web.ask(1, 1, call(f"/lookup/v2/topic/{PATH}", 403, {"reason": "no"}))
    assert web.found == [("not_authorized", CERTAIN)]


def test_other_http_says_nothing() -> None:
    web = Web()
    web.ask(1, 1, call(f"/admin/v2/{PATH}/stats", 403))
    assert web.found == []
