"""The doctor finds what clients do against the protocol, and nothing in near misses.

`mistakes/expected.json` names the rule that each capture breaks; "" is none. Those that record_mistakes.py
does not make were recorded in the same way.
"""

import gzip
import json
from pathlib import Path
from typing import Final

import pytest
from disorder import packets_of
from judge import SHORT, examine, examine_packets
from test_conduct import BROKERS
from test_diagnoses import EXPECTED as DIAGNOSES
from test_findings import diagnosed, of_doctor
from test_recorded import carry

from pulsarctl_wire import data
from pulsarctl_wire.capture.files import RawPacket
from pulsarctl_wire.capture.packets import SYN, Dissector
from pulsarctl_wire.checks.doctor import Doctor
from pulsarctl_wire.checks.finding import WARNING
from pulsarctl_wire.checks.registry import RULES
from pulsarctl_wire.checks.rule import FRAME, read_requirement
from pulsarctl_wire.wire.session.sinks import Follower

FOLDER: Final = Path(__file__).parent / "mistakes"
EXPECTED: Final[dict[str, str]] = json.loads((FOLDER / "expected.json").read_text())
BY_ID: Final = {rule.id: rule for rule in RULES}
SEEN_WHOLE: Final = {
    *("chunk_size_mismatch", "connection_per_message", "no_flow", "not_reopened", "producer_per_message"),
    *("request_refused", "stored_twice"),
}
"""Rules that judge producers, consumers and requests which were seen whole, whatever came before."""


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.pcapng.gz"


@pytest.mark.parametrize("name", EXPECTED)
def test_a_mistake_is_found_and_nothing_else(name: str) -> None:
    findings = list(examine(path_of(name)).findings.values())
    assert {finding.rule for finding in findings} == {EXPECTED[name]} - {""}
    for finding in findings:
        assert finding.explanation
        assert finding.evidence


def midway(path: Path) -> list[RawPacket]:
    """The packets of a capture without the first four of each connection with data, and its SYNs."""
    packets, seen = [], dict[frozenset[bytes], int]()
    for packet in packets_of(str(path)):
        segment = Dissector().segment(*packet[1:])
        assert segment is not None
        key, _, _, flags, payload, _ = segment
        ends = frozenset((key, key[4:8] + key[:4] + key[-2:] + key[-4:-2]))
        count = seen[ends] = seen.get(ends, 0) + bool(payload)
        if not flags & SYN and count > 4:
            packets.append(packet)
    return packets


ON_FRAMES: Final = {rule.id for rule in RULES if rule.relies_on == FRAME}


@pytest.mark.parametrize(
    "name", [name for name, rule in EXPECTED.items() if rule not in SEEN_WHOLE | ON_FRAMES]
)
def test_who_joins_midway_knows_nothing(name: str) -> None:
    findings = examine_packets(midway(path_of(name))).findings.values()
    assert not {finding.rule for finding in findings} & {EXPECTED[name]}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_table_tells_what_its_capture_does(name: str) -> None:
    with data.tables(path_of(name)) as tables:
        assert diagnosed(tables.engine, SHORT) == of_doctor(path_of(name), SHORT)


@pytest.mark.parametrize("name", EXPECTED)
def test_live_traffic_shows_the_same(name: str) -> None:
    doctor = Doctor(thresholds=SHORT, live=True)
    carry(packets_of(str(path_of(name))), Follower([doctor], doctor.new_state))
    assert {finding.rule for finding in doctor.findings.values()} == {EXPECTED[name]} - {""}


def test_all_captures_have_a_row() -> None:
    assert {path_of(name) for name in EXPECTED} == {*FOLDER.glob("*.gz")}
    for path in FOLDER.glob("*.gz"):
        assert gzip.decompress(path.read_bytes())


def test_every_rule_has_a_capture() -> None:
    assert {*BY_ID} <= {
        *(rule for expected in DIAGNOSES for rule in (expected["diagnosis"], *expected["also"])),
        *EXPECTED.values(),
        *(rule for rule, _, _ in BROKERS),
    }


def test_what_only_wastes_is_a_warning() -> None:
    levels = {rule.id: requirement.level for rule in RULES if (requirement := read_requirement(rule))}
    wasteful = {
        "connection_per_message",
        "producer_per_message",
        "flow_per_message",
        "producer_name_not_kept",
    }
    assert {rule for rule, level in levels.items() if level == "should"} == wasteful
    assert {BY_ID[rule].severity for rule in wasteful} == {WARNING}
