"""Wrong peers: what must be seen before a client is said to speak the wrong protocol."""

import pytest
from segments import START_NS, Tcp, Turn, build
from timeline import LOGIN, Timeline, ids

from pulsarctl_wire.checks.doctor import Doctor
from pulsarctl_wire.checks.finding import CERTAIN, SUSPECTED
from pulsarctl_wire.checks.rule import SECOND
from pulsarctl_wire.wire.frame import Connection
from pulsarctl_wire.wire.session.sinks import Follower

HELLO = bytes.fromhex("160301002f0100002b0303") + bytes(41)
SERVER_HELLO = bytes.fromhex("160303002f0200002b0303") + bytes(41)
ALERT = bytes.fromhex("15030300020228")
GET = b"GET /admin/v2/clusters?token=secret HTTP/1.1\r\n\r\n"
PROXY_1 = b"PROXY TCP4 10.1.2.3 10.1.2.4 51234 6650\r\n"
PROXY_2 = bytes.fromhex("0d0a0d0a000d0a515549540a2111000c0a0102030a010204c82219fa")
CONNECT = LOGIN[0][1]
ERROR = build("ERROR", request_id=2**64 - 1, error=3, message="no")


def found(
    *turns: Turn, by_broker: bool = True, after: float = 0.1, joined: bool = False
) -> list[tuple[str, str]]:
    """What is found on a connection that ends `after` s."""
    tcp, timeline = Tcp(), Timeline()
    timeline.at(0, *(() if joined else tcp.handshake()), *tcp.say(turns))
    timeline.at(after, tcp.fin(by_broker is False), tcp.fin(by_broker))
    return ids(timeline.findings())


def found_live(*turns: Turn, by_broker: bool = True) -> list[tuple[str, str]]:
    """What is found on such a connection when it is followed live."""
    doctor, connection = Doctor(live=True), Connection(0, "10.0.0.1:50000", "10.0.0.2:6650")
    follower = Follower([doctor], doctor.new_state)
    follower.opened(connection, START_NS)
    for to_broker, data in turns:
        follower.carried(connection, to_broker, data, START_NS + SECOND // 10)
    follower.closed(connection, START_NS + SECOND // 5, by_broker)
    follower.finish()
    return ids(doctor.findings.values())


@pytest.mark.parametrize(
    ("first", "rule"),
    [
        (HELLO, "tls_client_on_plain_port"),
        (GET, "http_client_on_binary_port"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "http_client_on_binary_port"),
        (PROXY_1, "proxy_header_refused"),
        (PROXY_2 + CONNECT, "proxy_header_refused"),
    ],
    ids=["TLS", "HTTP", "HTTP/2", "PROXY v1", "PROXY v2"],
)
def test_first_bytes(first: bytes, rule: str) -> None:
    assert found((True, first)) == found_live((True, first)) == [(rule, CERTAIN)]
    assert found((True, first), by_broker=False) == found_live((True, first), by_broker=False) == []
    assert found((True, first), joined=True) == []


@pytest.mark.parametrize(
    ("first", "answer"),
    [
        (HELLO, ALERT),
        (HELLO, SERVER_HELLO),
        (GET, b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        (PROXY_1 + CONNECT, LOGIN[1][1]),
        (CONNECT, ERROR),
    ],
    ids=["alert", "handshake", "HTTP", "PROXY", "ERROR"],
)
def test_an_answer_shows_that_the_port_understands(first: bytes, answer: bytes) -> None:
    expected = [("authentication_refused", CERTAIN)] * (answer is ERROR)
    assert found((True, first), (False, answer)) == found_live((True, first), (False, answer)) == expected


def test_an_answer_in_another_protocol_is_no_hole() -> None:
    timeline, tcp = Timeline(), Tcp()
    answer = False, b"HTTP/1.1 400 Illegal character CNTL=0x0\r\n\r\n"
    timeline.at(0, *tcp.handshake(), *tcp.say([(True, CONNECT), answer]), tcp.fin(False))
    assert timeline.findings() == []
    assert timeline.doctor.facts.has_all_bytes


@pytest.mark.parametrize(("missing", "is_whole"), [(1, True), (2, False)])
def test_a_keep_alive_probe_at_the_beginning_is_no_hole(missing: int, is_whole: bool) -> None:
    timeline, tcp = Timeline(), Tcp()
    timeline.at(0, tcp.segment(True, 0), tcp.segment(False, 0), tcp.segment(True, missing, CONNECT))
    assert timeline.findings() == []
    assert timeline.doctor.facts.has_all_bytes is is_whole


def test_plain_client() -> None:
    assert found((True, CONNECT)) == [("plain_client_on_tls_port", SUSPECTED)]
    assert found((True, CONNECT), after=1.5) == []


@pytest.mark.parametrize("tls_first", [True, False])
def test_a_handshake_proves_that_the_port_speaks_tls(tls_first: bool) -> None:
    timeline = Timeline()
    clients = [Tcp(client=("10.0.0.1", 50_000 + number)) for number in range(3)]
    for number, tcp in enumerate(clients):
        is_tls = number == 0 if tls_first else number == 2
        turns = [(True, HELLO), (False, SERVER_HELLO)] if is_tls else [(True, CONNECT)]
        timeline.at(number, *tcp.handshake(), *tcp.say(turns), tcp.fin(False), tcp.fin(True))
    [finding] = timeline.findings()
    assert (finding.rule, finding.certainty, finding.count) == ("plain_client_on_tls_port", CERTAIN, 2)


def test_a_port_that_has_answered_in_plain_does_not_speak_tls() -> None:
    timeline, first, refused = Timeline(), Tcp(), Tcp(client=("10.0.0.1", 50_001))
    timeline.log_in(0, first)
    timeline.at(1, *refused.handshake(), *refused.say([(True, CONNECT)]), refused.fin(False))
    assert timeline.findings() == []


def test_attempts_of_a_host_are_one_finding() -> None:
    timeline = Timeline()
    for number in range(4):
        host = "10.0.0.9" if number == 3 else "10.0.0.1"
        tcp = Tcp(client=(host, 50_000 + number))
        timeline.at(number, *tcp.handshake(), *tcp.say([(True, GET)]), tcp.fin(False), tcp.fin(True))
    findings = timeline.findings()
    assert [each.count for each in findings] == [3, 1]
    assert str(findings[0].connection) == "10.0.0.1:50000-10.0.0.2:6650"
    assert "secret" not in findings[0].evidence[0].reason
