"""Findings that come from another process."""

from pulsarctl_wire.checks.finding import CERTAIN, WRONG_CHECKSUM, Evidence, Finding, Sighting, Subject
from pulsarctl_wire.cli.capture.examination import _pack, _unpack
from pulsarctl_wire.wire.frame import Connection


def test_why_a_checksum_is_wrong_comes_with_the_finding() -> None:
    connection = Connection(3, "10.0.0.1:50000", "10.0.0.2:6650")
    sighting = Sighting(connection, True, 7)
    sighting.checksum_cause = "one flipped bit explains it"
    evidence = [Evidence(sighting, WRONG_CHECKSUM)]
    finding = Finding("send_corrupt", "error", CERTAIN, Subject(), connection, evidence, "text", "advice")
    copy = _unpack(_pack(finding), {})
    assert [row.text for row in copy.evidence] == [row.text for row in evidence]
    assert copy.evidence[0].sighting.connection is copy.connection
