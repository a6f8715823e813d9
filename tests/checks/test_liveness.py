"""A silent peer: what answers a PING, and when its silence counts."""

import pytest
from segments import PING, PONG, Tcp, build
from timeline import Timeline, ids

from pulsarctl_wire.checks.finding import CERTAIN, SUSPECTED

RULES = {False: "client_silent", True: "broker_silent"}
"""By the direction of the PING."""
both = pytest.mark.parametrize("to_broker", [False, True], ids=["client", "broker"])


@both
def test_never_answered(to_broker: bool) -> None:
    tcp, timeline = Tcp(), Timeline()
    timeline.log_in(0, tcp)
    for seconds in (1, 2, 3):
        timeline.say(seconds, tcp, (to_broker, PING))
    timeline.at(3.5, tcp.fin(to_broker))
    timeline.say(3.6, tcp, (not to_broker, PONG))  # too late
    [finding] = timeline.findings()
    assert (finding.rule, finding.certainty) == (RULES[to_broker], CERTAIN)
    assert [each.sighting.time_ns // 10**9 % 10 for each in finding.evidence] == [1, 2, 3]
    assert "for 2.5 s" in finding.explanation
    assert "every 1.0 s" in finding.explanation


@both
def test_silent_since_the_last_answer(to_broker: bool) -> None:
    tcp, timeline = Tcp(), Timeline()
    timeline.log_in(0, tcp)
    timeline.say(1, tcp, (to_broker, PING), (not to_broker, PONG))
    timeline.say(3, tcp, (to_broker, PING))
    timeline.at(5, tcp.rst(to_broker))
    [finding] = timeline.findings()
    assert [each.sighting.ordinal for each in finding.evidence] == [2]
    assert "every 2.0 s" in finding.explanation


@both
def test_any_frame_is_an_answer(to_broker: bool) -> None:
    frames = {False: build("FLOW", consumer_id=1, messagePermits=1), True: build("SUCCESS", request_id=7)}
    tcp, timeline = Tcp(), Timeline()
    timeline.log_in(0, tcp)
    timeline.say(1, tcp, (to_broker, PING))
    timeline.say(2, tcp, (not to_broker, frames[to_broker]))
    timeline.at(5, tcp.fin(to_broker))
    assert timeline.findings() == []


@both
def test_who_closes_and_when(to_broker: bool) -> None:
    for closer, after in ((to_broker, 0.5), (not to_broker, 3)):
        tcp, timeline = Tcp(), Timeline()
        timeline.log_in(0, tcp)
        timeline.say(1, tcp, (to_broker, PING))
        timeline.at(1 + after, tcp.fin(closer))
        assert timeline.findings(until=20) == []


@both
def test_still_open(to_broker: bool) -> None:
    for until, expected in ((6.5, []), (7.5, [(RULES[to_broker], SUSPECTED)])):  # R = 3
        tcp, timeline = Tcp(), Timeline()
        timeline.log_in(0, tcp)
        timeline.say(1, tcp, (to_broker, PING))
        assert ids(timeline.findings(until)) == expected


@both
def test_suspected_first_and_certain_later_is_one_finding(to_broker: bool) -> None:
    tcp, timeline = Tcp(), Timeline()
    timeline.log_in(0, tcp)
    timeline.say(1, tcp, (to_broker, PING))
    timeline.doctor.tick(timeline.now_ns(8))
    assert ids(timeline.doctor.findings.values()) == [(RULES[to_broker], SUSPECTED)]
    timeline.at(9, tcp.fin(to_broker))
    [finding] = timeline.findings()
    assert (finding.certainty, finding.count) == (CERTAIN, 1)
    assert "8.0 s" in finding.explanation


@both
def test_only_one_direction_was_captured(to_broker: bool) -> None:
    tcp, timeline = Tcp(), Timeline()
    for seconds in (1, 2, 30):
        timeline.say(seconds, tcp, (to_broker, PING))
    timeline.at(31, tcp.fin(to_broker))
    assert timeline.findings() == []


@both
def test_a_hole_may_have_had_the_answer(to_broker: bool) -> None:
    tcp, timeline = Tcp(), Timeline()
    timeline.log_in(0, tcp)
    timeline.say(1, tcp, (to_broker, PING))
    tcp.say([(not to_broker, PONG)])  # not captured
    timeline.at(3, tcp.fin(to_broker))
    assert timeline.findings() == []
