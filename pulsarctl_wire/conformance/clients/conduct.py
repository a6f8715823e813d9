"""What a client does wrong in a case, besides what the case is about: findings of the doctor."""

from __future__ import annotations

from typing import Final

from pulsarctl_wire.checks.doctor import Doctor
from pulsarctl_wire.checks.finding import Finding
from pulsarctl_wire.checks.registry import RULES
from pulsarctl_wire.checks.requirement import LEVELS
from pulsarctl_wire.checks.rule import read_requirement
from pulsarctl_wire.checks.rules import answers, handshake, liveness, producers
from pulsarctl_wire.conformance.basics.checking import Mismatch
from pulsarctl_wire.conformance.basics.transcript import Transcript
from pulsarctl_wire.wire.session.sinks import Follower

_ABOUT_BROKERS: Final = {
    *(rule.id for rule in RULES if rule.__module__ == answers.__name__),
    *(handshake.CommandOfClient.id, producers.ReceiptMismatch.id, liveness.BrokerSilent.id),
}
_LEVELS: Final = {
    rule.id: requirement.level
    for rule in RULES
    if rule.id not in _ABOUT_BROKERS and (requirement := read_requirement(rule))
}
"""Id of a rule about clients -> how binding it is."""


def check_conduct(transcript: Transcript, level: str) -> None:
    """Require that clients broke no rule of the doctor that is at least as binding as `level`."""
    doctor = Doctor(live=True)
    follower = Follower([doctor], doctor.new_state)
    transcript.replay(follower)
    follower.finish()
    for finding in list_breaches(doctor, level):
        reasons = "; ".join(f"{row.sighting.command or 'TCP'}: {row.reason}" for row in finding.evidence)
        raise Mismatch(f"no {finding.rule}", f"{finding.explanation} ({reasons})", "rules of doctor")


def list_breaches(doctor: Doctor, level: str) -> list[Finding]:
    """Return the findings that blame clients, at this level or a more binding one."""
    levels = LEVELS[: LEVELS.index(level) + 1]
    return [
        finding
        for finding in doctor.findings.values()
        if _LEVELS.get(finding.rule) in levels and any(row.sighting.to_broker for row in finding.evidence)
    ]
