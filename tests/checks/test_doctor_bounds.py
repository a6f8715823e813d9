"""What the doctor remembers is bounded."""

from segments import Tcp, build
from timeline import Timeline

from pulsarctl_wire.checks.doctor import MAX_FINDINGS, Doctor
from pulsarctl_wire.checks.facts import MAX_NAMES, MAX_SENDS, Facts, Send
from pulsarctl_wire.checks.finding import CERTAIN, MAX_EVIDENCE, Evidence, Sighting, Subject
from pulsarctl_wire.checks.rules.owners import NotReopened
from pulsarctl_wire.checks.rules.producers import BacklogQuotaExceeded
from pulsarctl_wire.cli.findings import summarize
from pulsarctl_wire.wire.frame import Connection
from pulsarctl_wire.wire.session.knowledge import Knowledge

CONNECTION = Connection(0, "10.0.0.1:50000", "10.0.0.2:6650")


def test_findings_beyond_the_bound_are_counted() -> None:
    doctor = Doctor()
    state, rule = doctor.new_state(CONNECTION, Knowledge()), BacklogQuotaExceeded(doctor)
    for number in range(MAX_FINDINGS + 5):
        doctor.report(rule, state, Subject(producer_id=number), [], "", CERTAIN)
    assert len(doctor.findings) == MAX_FINDINGS
    assert "; 5 more findings are left out" in summarize(doctor)
    for number in range(20):
        rows = [Evidence(Sighting(CONNECTION, True, number), "")]
        doctor.report(rule, state, Subject(producer_id=0), rows, "", CERTAIN)
    finding = doctor.findings[rule.id, 0, Subject(producer_id=0)]
    assert [sighting.number for sighting, _ in finding.evidence] == [*range(MAX_EVIDENCE - 1), 19]
    assert finding.count == 20


def test_names_are_bounded() -> None:
    facts = Facts()
    for number in range(2 * MAX_NAMES):
        facts.get_publisher(f"t{number}", "p")
        facts.get_subscription(f"t{number}", "s")
    for table in (facts.topics, facts.subscriptions, facts.publishers):
        assert MAX_NAMES // 2 <= len(table) <= MAX_NAMES
    assert f"t{2 * MAX_NAMES - 1}" in facts.topics


def test_what_brokers_close_is_forgotten_with_its_connection() -> None:
    timeline = Timeline(rules=[NotReopened])
    for number in range(5):
        topic, tcp = f"persistent://public/default/t{number}", Tcp(client=("10.0.0.1", 50_000 + number))
        timeline.log_in(number, tcp, (True, build("PRODUCER", topic=topic, producer_id=1, request_id=1)))
        timeline.say(number, tcp, (False, build("PRODUCER_SUCCESS", request_id=1, producer_name="p")))
        timeline.say(number, tcp, (False, build("CLOSE_PRODUCER", producer_id=1, request_id=2)))
        [rule] = [rule for rule in timeline.doctor._rules if isinstance(rule, NotReopened)]
        assert (len(rule._closed), len(rule._by_topic)) == (1, 1)
        timeline.at(number, *tcp.goodbye())
        assert (rule._closed, rule._by_topic) == ({}, {})


def test_sends_are_bounded() -> None:
    facts = Facts()
    publishers = [facts.get_publisher("t", name) for name in "ab"]
    for number in range(2 * MAX_SENDS):
        send = Send(CONNECTION, number, number, 6, 0, 0)
        send.sequence = number
        facts.remember(publishers[number % 2], send)
    assert MAX_SENDS // 4 <= sum(len(each.sends) for each in publishers) <= MAX_SENDS
    assert 2 * MAX_SENDS - 1 in publishers[1].sends
