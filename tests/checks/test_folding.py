"""Findings of one cause are folded into one, and those of different causes stay apart."""

from __future__ import annotations

from segments import Tcp, Turn, build
from timeline import Timeline

from pulsarctl_wire.checks.finding import Finding
from pulsarctl_wire.checks.folding import fold
from pulsarctl_wire.wire.PulsarApi_pb2 import ServerError


def ask_twice(topic: str) -> list[Turn]:
    """A client asks a broker twice for a topic that it does not serve, without looking it up."""
    turns: list[Turn] = []
    for request in (1, 2):
        turns.append((True, build("PRODUCER", topic=topic, producer_id=1, request_id=request)))
        error = {"error": ServerError.ServiceNotReady, "message": "no"}
        turns.append((False, build("ERROR", request_id=request, **error)))
    return turns


def refuse(topic: str) -> list[Turn]:
    """A client that may not write to a topic."""
    error = {"error": ServerError.AuthorizationError, "message": "no"}
    return [
        (True, build("PRODUCER", topic=topic, producer_id=1, request_id=1)),
        (False, build("ERROR", request_id=1, **error)),
    ]


def find(*sessions: tuple[float, str, str, list[Turn]]) -> list[Finding]:
    """The findings in a capture of sessions: seconds, client, server, and what they say."""
    timeline = Timeline()
    for number, (seconds, client, server, turns) in enumerate(sessions):
        timeline.log_in(seconds, Tcp((client, 50_000 + number), (server, 6650)), *turns)
    return timeline.findings()


def sizes(findings: list[Finding]) -> list[int]:
    """For how many findings each one stands."""
    return [1 + len(finding.others) for finding in fold(findings)]


def test_many_connections_after_the_restart_of_a_broker() -> None:
    findings = find(
        *((number, f"10.0.0.{number % 7}", "10.0.1.1", ask_twice(f"t{number}")) for number in range(39))
    )
    assert len(findings) == 39
    (folded,) = fold(findings)
    assert folded.evidence == findings[0].evidence
    assert (folded.subject, folded.connection) == (findings[0].subject, findings[0].connection)
    assert (folded.count, len(folded.others)) == (39, 38)
    assert (folded.first_ns, folded.last_ns) == (findings[0].first_ns, findings[-1].last_ns)
    assert [finding.count for finding in findings] == [1] * 39  # they are not changed


def test_other_brokers_and_later_restarts_stay_apart() -> None:
    findings = find(
        (0, "10.0.0.1", "10.0.1.1", ask_twice("a")),
        (10, "10.0.0.1", "10.0.1.2", ask_twice("b")),
        (60, "10.0.0.1", "10.0.1.1", ask_twice("c")),
        (121, "10.0.0.1", "10.0.1.1", ask_twice("d")),
    )
    assert sizes(findings) == [2, 1, 1]


def test_topics_stay_apart_where_they_matter_and_partitions_are_one() -> None:
    topic = "persistent://public/default/t"
    findings = find(
        *(
            (number, "10.0.0.1", f"10.0.1.{number % 2}", refuse(name))
            for number, name in enumerate([f"{topic}-partition-0", f"{topic}-partition-1", "u", topic])
        ),
        (5, "10.0.0.2", "10.0.1.1", refuse(topic)),
    )
    assert [(finding.subject.topic, 1 + len(finding.others)) for finding in fold(findings)] == [
        (f"{topic}-partition-0", 3),
        ("persistent://public/default/u", 1),
        (topic, 1),
    ]


def test_certain_and_suspected_stay_apart() -> None:
    first, second = find(*((0, "10.0.0.1", "10.0.1.1", ask_twice(topic)) for topic in "ab"))
    second.certainty = "suspected"
    assert sizes([first, second]) == [1, 1]


def test_they_are_in_the_order_in_which_they_were_found() -> None:
    findings = find(
        (0, "10.0.0.1", "10.0.1.1", ask_twice("a")),
        (1, "10.0.0.1", "10.0.1.2", ask_twice("b")),
        (2, "10.0.0.1", "10.0.1.1", ask_twice("c")),
    )
    later_first = [findings[2], findings[1], findings[0]]
    assert [finding.subject.topic for finding in fold(later_first)] == [
        findings[0].subject.topic,
        findings[1].subject.topic,
    ]


def test_nothing_is_folded_from_nothing() -> None:
    assert fold([]) == []
