"""Authentication: whose credentials were refused, and what is read of a token."""

import json
from base64 import urlsafe_b64encode

import pytest
from segments import START_NS, Tcp, Turn, build
from timeline import LOGIN, Timeline, ids

from pulsarctl_wire.checks.finding import CERTAIN
from pulsarctl_wire.checks.rule import SECOND
from pulsarctl_wire.wire.fields import REFRESH

NOW = START_NS // SECOND
REFUSED = build("ERROR", request_id=2**64 - 1, error=3, message="no")  # AuthenticationError


def challenge(data: bytes = REFRESH) -> Turn:
    return False, build("AUTH_CHALLENGE", challenge={"auth_method_name": "token", "auth_data": data})


def response(data: bytes = b"") -> Turn:
    return True, build("AUTH_RESPONSE", response={"auth_method_name": "token", "auth_data": data})


def token(claims: object) -> bytes:
    return b"e30." + urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=") + b".c2VjcmV0"


def connect(data: bytes) -> Turn:
    return True, build("CONNECT", client_version="test", auth_method_name="token", auth_data=data)


def found(*turns: Turn, by_broker: bool = True, after: float = 3) -> list[tuple[str, str]]:
    tcp, timeline = Tcp(), Timeline()
    timeline.at(0, *tcp.handshake(), *tcp.say(turns))
    timeline.at(after, tcp.fin(not by_broker))
    return ids(timeline.findings())


def test_challenge_without_an_answer() -> None:
    assert found(*LOGIN, challenge()) == [("auth_challenge_unanswered", CERTAIN)]
    assert found(*LOGIN, challenge(), by_broker=False) == []
    assert found(*LOGIN, challenge(), after=0.5) == []
    assert found(*LOGIN, challenge(), response()) == []


def test_an_answer_after_the_brokers_fin_comes_too_late() -> None:
    tcp, timeline = Tcp(), Timeline()
    timeline.log_in(0, tcp, challenge())
    timeline.at(3, tcp.fin(False))
    timeline.say(3.1, tcp, response())
    assert ids(timeline.findings()) == [("auth_challenge_unanswered", CERTAIN)]


def test_refused_when_renewed_or_when_logging_in() -> None:
    assert found(*LOGIN, challenge(), response(), (False, REFUSED)) == [("auth_refresh_refused", CERTAIN)]
    begin = LOGIN[0], challenge(b"\x01\x02"), response()  # as SASL does
    assert found(*begin, (False, REFUSED)) == [("authentication_refused", CERTAIN)]
    assert found(LOGIN[0], (False, REFUSED)) == [("authentication_refused", CERTAIN)]


def test_an_error_that_answers_another_request_refuses_no_credentials() -> None:
    ask = True, build("PARTITIONED_METADATA", topic="t", request_id=1)
    answer = False, build("PARTITIONED_METADATA_RESPONSE", request_id=1, response=1, error=3)
    error = False, build("ERROR", request_id=1, error=3, message="no")
    assert found(*LOGIN, ask, answer) == []
    assert found(LOGIN[0], ask, error) == []


@pytest.mark.parametrize("late", [False, True])
def test_token(late: bool) -> None:
    data = token({"sub": "me", "exp": NOW + (-90 if late else 90)})
    tcp, timeline = Tcp(), Timeline()
    timeline.at(0, *tcp.handshake(), *tcp.say([connect(data), LOGIN[1], challenge(), response(data)]))
    findings = timeline.findings()
    assert ids(findings) == [("token_expired", CERTAIN)] * late
    for finding in findings:
        assert finding.count == 2
        assert "90.1 s" in finding.explanation
        texts = [finding.explanation, *(each.reason for each in finding.evidence)]
        assert not any(part.decode() in text for part in data.split(b".") for text in texts)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"..",
        b"a.b.c",
        b"secret",
        b"e30.\xff\xfe.e30",
        b"e30." + b"W1tb" * 4_000 + b".e30",  # [[[…
        b"e30." + b"MTEx" * 4_000 + b".e30",  # 111…
        b"e30." + b"YQ==" * 9_000 + b".e30",
        *map(
            token,
            [
                *(None, 1, [], "exp", {}, {"exp": None}, {"exp": "1"}, {"exp": [1]}, {"exp": {}}),
                *({"exp": float("nan")}, {"exp": float("inf")}, {"exp": -1}, {"exp": 10**400}),
            ],
        ),
    ],
)
def test_credentials_that_are_no_token_with_an_expiry(data: bytes) -> None:
    assert found(connect(data), LOGIN[1]) == []


def test_expiry_with_a_fraction() -> None:
    assert found(connect(token({"exp": NOW - 0.5})), LOGIN[1]) == [("token_expired", CERTAIN)]


def test_not_authorized_is_found_in_any_answer() -> None:
    timeline, tcp = Timeline(), Tcp()
    timeline.log_in(
        *(0, tcp),
        (True, build("PRODUCER", topic="t", producer_id=4, request_id=1)),
        (False, build("ERROR", request_id=1, error=4, message="no")),
        (True, build("GET_SCHEMA", topic="u", request_id=2)),
        (False, build("GET_SCHEMA_RESPONSE", request_id=2, error_code=4, error_message="no")),
    )
    findings = timeline.findings()
    assert ids(findings) == [("not_authorized", CERTAIN)] * 2
    assert [(each.subject.topic, each.subject.producer_id) for each in findings] == [
        ("persistent://public/default/t", 4),
        ("persistent://public/default/u", None),
    ]
