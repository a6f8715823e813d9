"""Looks for findings in files, in one other process: the rules need all connections in order.

Findings come as plain values, in which a connection is the same object wherever a finding names it.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from pulsarctl_wire.capture.numbers import PacketNumbers
from pulsarctl_wire.capture.sources import Decoder, Reading
from pulsarctl_wire.checks.doctor import Doctor
from pulsarctl_wire.checks.finding import Evidence, Finding, Sighting
from pulsarctl_wire.cli.capture.reading import Sources
from pulsarctl_wire.pipeline.decoding.counting import pool_until
from pulsarctl_wire.wire.frame import Connection

_Values = tuple[Any, ...]


@dataclass(frozen=True)
class Examination:
    """The findings in files. `left_out` counts those beyond the limit; `files` is as in `make_rows`.

    `packets` are the results of `PacketNumbers.find` for the packets of the evidence.
    """

    findings: list[Finding]
    left_out: int
    files: list[str]
    packets: dict[int, tuple[str | None, int | None]]


def examine_beside(
    stack: ExitStack, paths: list[str], reading: Reading, *, places: bool = False
) -> Callable[[], Examination]:
    """Start to look for findings in another process; return a function that waits for the result.

    The process ends when `stack` closes. `reading` and `places` are as for `Decoder`. Problems with the files
    are not reported here: the caller reads the same files, and reports them.
    """
    future = pool_until(stack, 1).submit(_examine, paths, reading, places)

    def wait() -> Examination:
        findings, *rest = future.result()
        connections: dict[int, Connection] = {}
        return Examination([_unpack(values, connections) for values in findings], *rest)

    return wait


def _examine(paths: list[str], reading: Reading, places: bool) -> tuple[Any, ...]:
    doctor = Doctor()
    decoder = Decoder(
        reading,
        join_chunks=False,
        places=places,
        sort=True,
        new_state=doctor.new_state,
        on_end=doctor.end_connection,
    )
    decoder.numbers = PacketNumbers(several=len(paths) > 1)
    with ExitStack() as stack:
        for _ in Sources(paths, stack, bar=False).read(decoder, say=False):
            pass
    doctor.conclude(decoder.last_ns, decoder.finish())
    findings = doctor.findings.values()
    packets = {row.sighting.packet for finding in findings for row in finding.evidence}
    numbers = {packet: decoder.numbers.find(packet) for packet in packets}
    return list(map(_pack, findings)), doctor.omitted_count, decoder.sources, numbers


def _pack(finding: Finding) -> _Values:
    """Convert a finding to plain values."""
    evidence = []
    for sighting, reason in finding.evidence:
        frame = sighting.number, sighting.ordinal, sighting.type, sighting.time_ns, sighting.packet
        connection = _pack_connection(sighting.connection)
        evidence.append((connection, sighting.to_broker, frame, sighting.checksum_cause, reason))
    connection = _pack_connection(finding.connection)
    about = finding.rule, finding.severity, finding.certainty, finding.subject, connection
    attributes = finding.count, finding.first_ns, finding.last_ns, finding.cause
    return about, evidence, finding.explanation, finding.advice, attributes


def _pack_connection(connection: Connection) -> _Values:
    return connection.index, connection.client, connection.server, connection.since


def _unpack(values: _Values, connections: dict[int, Connection]) -> Finding:
    """Make a finding from plain values; `connections` are those known so far, by number."""

    def look_up(packed: _Values) -> Connection:
        return connections.setdefault(packed[0], Connection(*packed))

    (rule, severity, certainty, subject, packed), entries, explanation, advice, attributes = values
    evidence = []
    for connection, to_broker, frame, checksum_cause, reason in entries:
        sighting = Sighting(look_up(connection), to_broker, *frame)
        sighting.checksum_cause = checksum_cause
        evidence.append(Evidence(sighting, reason))
    about = rule, severity, certainty, subject
    finding = Finding(*about, look_up(packed), evidence, explanation, advice)
    finding.count, finding.first_ns, finding.last_ns, finding.cause = attributes
    return finding
