"""Runs the doctor on captures, and compares what it finds with what it must find."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pulsarctl_wire.capture.files import RawPacket
from pulsarctl_wire.capture.sources import Decoder, open_source
from pulsarctl_wire.checks.doctor import Doctor
from pulsarctl_wire.checks.finding import Finding
from pulsarctl_wire.checks.rule import SECOND, Thresholds

SHORT = Thresholds(quiet=5 * SECOND, unacked=5 * SECOND, unanswered=3 * SECOND)
"""For captures of a few seconds."""


def examine(*paths: Path, thresholds: Thresholds = SHORT) -> Doctor:
    """The doctor, after it has read these captures."""
    doctor = Doctor(thresholds=thresholds)
    decoder = _decoder(doctor)
    for path in paths:
        source = open_source(str(path))
        with source.stream:
            for _ in decoder.read(source):
                pass
    doctor.conclude(decoder.last_ns, decoder.finish())
    return doctor


def examine_packets(packets: Iterable[RawPacket]) -> Doctor:
    """The doctor, after it has read the packets of a capture."""
    doctor = Doctor(thresholds=SHORT)
    decoder = _decoder(doctor)
    for _ in decoder.read_packets(packets):
        pass
    doctor.conclude(decoder.last_ns, decoder.finish())
    return doctor


def _decoder(doctor: Doctor) -> Decoder:
    return Decoder(new_state=doctor.new_state, on_end=doctor.end_connection, join_chunks=False, sort=True)


def evidence_of(finding: Finding) -> list[tuple[str, int | None, str, str | None]]:
    """Connection, ordinal, direction and command of each frame, as expected.json writes them."""
    rows = []
    for sighting, _ in finding.evidence:
        ordinal = sighting.ordinal if sighting.ordinal >= 0 else None
        direction = "to_broker" if sighting.to_broker else "to_client"
        rows.append((str(sighting.connection), ordinal, direction, sighting.command))
    return rows


def problems(findings: list[Finding], expected: dict[str, Any]) -> list[str]:
    """What is wrong with the findings of a capture."""
    wanted, allowed = expected["diagnosis"], expected["also"]
    found = [f"{each.rule}: must not be found" for each in findings if each.rule not in (wanted, *allowed)]
    if wanted is None:
        return found
    mine = [each for each in findings if each.rule == wanted]
    if not mine:
        return [*found, f"{wanted}: not found"]
    matching = [each for each in mine if _is_of(each, expected)]
    if not matching:
        return [
            *found,
            f"{wanted}: other subjects: {[each.subject for each in mine]}, not {expected['subject']}",
        ]
    first = expected["evidence"][0]
    row = (
        first.get("connection", expected["connection"]),
        first["frame"],
        first["direction"],
        first["command"],
    )
    if not any(row in evidence_of(each) for each in matching):
        found.append(f"{wanted}: no evidence {row} in {[evidence_of(each) for each in matching]}")
    if not any(each.certainty == expected["certainty"] for each in matching):
        found.append(f"{wanted}: must be {expected['certainty']}")
    return found


def _is_of(finding: Finding, expected: dict[str, Any]) -> bool:
    subject = finding.subject._asdict()
    return all(subject.get(name) == value for name, value in expected["subject"].items() if name in subject)
