"""Sanitizes captures in memory, and tells what must be the same before and after."""

import io
import re
from collections.abc import Iterable
from itertools import chain
from typing import Any

from pulsarctl_wire.capture.files import RawPacket
from pulsarctl_wire.capture.sources import Decoder, Source
from pulsarctl_wire.capture.writer import PcapngWriter
from pulsarctl_wire.checks.doctor import Doctor
from pulsarctl_wire.cli.findings import CheckOptions
from pulsarctl_wire.errors import DamagedCapture
from pulsarctl_wire.sanitize.check import Leftover, Originals, check_output
from pulsarctl_wire.sanitize.names import Kind, Pseudonyms
from pulsarctl_wire.sanitize.sanitizer import Sanitizer
from pulsarctl_wire.wire.frame import Event, Frame, Malformed
from pulsarctl_wire.wire.payload import open_entry


def pcapng(packets: Iterable[RawPacket]) -> bytes:
    """A capture of these packets."""
    out = io.BytesIO()
    writer = PcapngWriter(out)
    for packet in packets:
        writer.write(packet)
    return out.getvalue()


def sanitize(
    capture: bytes, seed: bytes = b"1", *, keep: frozenset[Kind] = frozenset(), opens_tls: bool = False
) -> tuple[bytes, Sanitizer, Originals]:
    """Sanitize a capture; what is damaged is taken up to there."""
    originals, out = Originals(), io.BytesIO()
    sanitizer = Sanitizer(out, Pseudonyms(seed, keep, on_replaced=originals.add), opens_tls=opens_tls)
    try:
        for events in sanitizer.decoder.read(Source("capture", io.BytesIO(capture))):
            sanitizer.take(events)
    except DamagedCapture:
        pass
    sanitizer.finish()
    return out.getvalue(), sanitizer, originals


def search(capture: bytes, originals: Originals) -> list[Leftover]:
    """What is left of the originals."""
    return list(check_output(io.BytesIO(capture), originals.make_search()))


def decode(capture: bytes, **options: Any) -> tuple[list[Event], Decoder]:
    """All events of a capture."""
    decoder = Decoder(**options)
    events: list[Event] = []
    try:
        for some in decoder.read(Source("capture", io.BytesIO(capture))):
            events += some
    except DamagedCapture:
        pass
    return [*events, *chain.from_iterable(decoder.finish())], decoder


def describe(capture: bytes) -> list[Any]:
    """All that must stay the same of a capture."""
    events, decoder = decode(capture)
    about = decoder.packets, decoder.cut_packets, decoder.dropped_packets, decoder.reassembler.connections
    return [about, decoder.reassembler.other_traffic, *map(_describe, events)]


def _describe(event: Event) -> Any:
    at = type(event), event.connection.index, event.to_broker, event.offset, event.size, event.packet
    if isinstance(event, Frame):
        entry = open_entry(event)
        sizes = [None if message.payload is None else len(message.payload) for message in entry.messages]
        entry_shape = event.checksum, event.payload_at, sizes, entry.corrupt, len(entry.notes)
        links = event.number, event.answer, event.request, event.latency_ns, event.resend_of
        notes = list(map(len, event.notes))
        return at, event.type, tuple(event.packets), event.time_ns, entry_shape, links, notes
    if isinstance(event, Malformed):
        return at, re.sub("[A-Za-z0-9]", "x", event.reason) if event.protocol else event.reason
    return at


def examine(capture: bytes) -> list[Any]:
    """The findings of the doctor, without names."""
    doctor: Doctor = CheckOptions().make_doctor()
    decoder = Decoder(join_chunks=False, sort=True, new_state=doctor.new_state, on_end=doctor.end_connection)
    for _ in decoder.read(Source("capture", io.BytesIO(capture))):
        pass
    doctor.conclude(decoder.last_ns, decoder.finish())
    return [
        (
            *(
                finding.rule,
                finding.certainty,
                finding.count,
                finding.connection.index,
                len(finding.explanation),
            ),
            *(
                (entry.sighting.number, entry.sighting.packet, len(entry.reason))
                for entry in finding.evidence
            ),
        )
        for finding in doctor.findings.values()
    ]
