"""Looks for findings in files, in a process of its own: the rules need all connections in order.

Objects of compiled classes cannot be sent from one process to another, so findings go as plain values.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from pulsarctl_wire.capture.sources import Decoder
from pulsarctl_wire.checks.doctor import Doctor
from pulsarctl_wire.checks.finding import Evidence, Finding, Sighting
from pulsarctl_wire.cli.capture.reading import Sources
from pulsarctl_wire.pipeline.decoding.counting import pool_until
from pulsarctl_wire.wire.frame import Connection

_Values = tuple[Any, ...]


@dataclass(frozen=True)
class Examination:
    """What was found. `left_out` counts further findings; `files` are for `make_rows`, if any."""

    findings: list[Finding]
    left_out: int
    files: list[str]


def examine_beside(
    stack: ExitStack,
    paths: list[str],
    max_frame_size: int | None,
    *,
    places: bool = False,
    keep_duplicates: bool = False,
) -> Callable[[], Examination]:
    """Let another process look for findings, until `stack` closes; the function returned waits for them.

    `places` is as for `Decoder`; `keep_duplicates`: copies are connections of their own. Problems with the
    files are left to whoever reads them as well.
    """
    future = pool_until(stack, 1).submit(_examine, paths, max_frame_size, places, keep_duplicates)

    def wait() -> Examination:
        findings, left_out, files = future.result()
        connections: dict[int, Connection] = {}
        return Examination([_finding(values, connections) for values in findings], left_out, files)

    return wait


def _examine(
    paths: list[str], max_frame_size: int | None, places: bool, keep_duplicates: bool
) -> tuple[list[_Values], int, list[str]]:
    doctor = Doctor()
    decoder = Decoder(
        max_frame_size=max_frame_size,
        join_chunks=False,
        places=places,
        sort=True,
        new_state=doctor.new_state,
        on_end=doctor.end_connection,
    )
    decoder.reassembler.copies.keep = keep_duplicates
    with ExitStack() as stack:
        for _ in Sources(paths, stack, bar=False).read(decoder, say=False):
            pass
    doctor.conclude(decoder.last_ns, decoder.finish())
    return [_values(finding) for finding in doctor.findings.values()], doctor.omitted_count, decoder.sources


def _values(finding: Finding) -> _Values:
    """Convert a finding to plain values."""
    evidence = []
    for sighting, reason in finding.evidence:
        place = sighting.number, sighting.ordinal, sighting.type, sighting.time_ns, sighting.packet
        evidence.append((_ends(sighting.connection), sighting.to_broker, place, reason))
    about = finding.rule, finding.severity, finding.certainty, finding.subject, _ends(finding.connection)
    times = finding.count, finding.first_ns, finding.last_ns
    return about, evidence, finding.explanation, finding.advice, times


def _ends(connection: Connection) -> _Values:
    return connection.index, connection.client, connection.server, connection.since


def _finding(values: _Values, connections: dict[int, Connection]) -> Finding:
    """Make a finding from plain values; `connections` are those known so far, by number."""

    def look_up(ends: _Values) -> Connection:
        return connections.setdefault(ends[0], Connection(*ends))

    (rule, severity, certainty, subject, ends), entries, explanation, advice, times = values
    evidence = [Evidence(Sighting(look_up(ends), way, *place), text) for ends, way, place, text in entries]
    about = rule, severity, certainty, subject
    finding = Finding(*about, look_up(ends), evidence, explanation, advice)
    finding.count, finding.first_ns, finding.last_ns = times
    return finding
