"""Runs `pwire doctor`: reads the sources once for the rules, and files again for the frames of findings."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import chain
from typing import BinaryIO

from pulsarctl_wire.capture.files import RawPacket
from pulsarctl_wire.capture.numbers import PacketNumbers
from pulsarctl_wire.capture.packets import Dissector, address_of, reverse
from pulsarctl_wire.capture.private_keys import read_private_keys
from pulsarctl_wire.capture.sources import Decoder, collect_rarely
from pulsarctl_wire.capture.writer import EventWriter
from pulsarctl_wire.checks.finding import Finding
from pulsarctl_wire.checks.folding import fold
from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.capture.comments import Commenter, describe_doctor, describe_findings
from pulsarctl_wire.cli.capture.doctor_options import DoctorOptions
from pulsarctl_wire.cli.capture.interface import open_interface
from pulsarctl_wire.cli.capture.reading import Sources
from pulsarctl_wire.cli.findings import FindingPrinter, choose_exit_code, summarize
from pulsarctl_wire.errors import CaptureError, DamagedCapture
from pulsarctl_wire.record import Recorder
from pulsarctl_wire.render.events import renderer
from pulsarctl_wire.render.findings import findings_markdown, limit_findings, sarif
from pulsarctl_wire.render.jsonl import json_line
from pulsarctl_wire.render.line import TimeFormatter
from pulsarctl_wire.render.text import Origin, Paint, count_of
from pulsarctl_wire.wire.frame import Event, Frame
from pulsarctl_wire.wire.session.knowledge import MAX_PENDING, bound


class DoctorJob:
    """One run."""

    def __init__(self, options: DoctorOptions, stack: ExitStack) -> None:
        self.options = options
        self.keys = read_private_keys(options.private_keys)
        self.stack = stack
        self.code = 0
        self.origin = Origin()
        self.clock = TimeFormatter(options.time_format, self.origin)
        paint = Paint(console.has_colour(sys.stdout))
        width = console.terminal_width(sys.stdout)
        self.numbers = PacketNumbers(several=len(options.sources) > 1)
        arguments = (options.output, paint, self.clock, self._write_out, width)
        self.sayer = FindingPrinter(*arguments, each=options.each, find_packet=self.numbers.find)
        self.decoder: Decoder
        self.rules = options.checks.pick_rules()
        self.at_once = options.is_live and options.output in ("text", "json")
        self.doctor = options.checks.make_doctor(
            live=bool(options.interface), on_finding=self.sayer if self.at_once else None
        )

    def run(self) -> int:
        """Look at everything; returns the exit code."""
        collect_rarely(every=1_000_000)  # the doctor keeps many objects, which are not garbage yet
        doctor = self.doctor
        self.decoder = decoder = Decoder(
            self.options.read.reading,
            join_chunks=False,
            sort=not self.options.is_live,
            new_state=doctor.new_state,
            on_end=doctor.end_connection,
        )
        decoder.numbers = self.numbers
        try:
            for events in self._batches(decoder):
                if self.origin.time_ns is None and events:
                    self.origin.time_ns = events[0].time_ns
        except KeyboardInterrupt:
            self.code = 0 if self.options.interface else console.EXIT_INTERRUPTED
        doctor.conclude(decoder.last_ns, decoder.finish())
        self.stack.close()  # removes the progress bar
        if self.code == console.EXIT_SOURCE and not doctor.connection_counts["connections"]:
            return self.code
        findings = list(doctor.findings.values())
        if not self.at_once:
            self._show(findings if self.options.each else fold(findings))
        if self.options.write is not None:
            self._write(self.options.write, findings)
        copies = decoder.reassembler.copies
        console.warn_of_packets(decoder.skipped, copies.total, copies.longer)
        console.warn(summarize(doctor, each=self.options.each))
        return self.code or choose_exit_code(findings, self.options.fail_on)

    # -- reading

    def _batches(self, decoder: Decoder) -> Iterator[list[Event]]:
        if self.options.interface:
            yield from self._read_live(decoder, self.options.interface)
            return
        sources = self._sources()
        try:
            yield from sources.read(decoder)
        finally:
            self.code = sources.code

    def _sources(self) -> Sources:
        bar = console.is_terminal(sys.stderr)
        return Sources(self.options.sources, self.stack, bar=bar, flush=sys.stdout.flush)

    def _read_live(self, decoder: Decoder, interface: str) -> Iterator[list[Event]]:
        options = self.options
        try:
            with open_interface(
                interface, options.capture_filter, options.buffer_bytes, before_wait=self._tick
            ) as live:
                decoder.secrets.is_live = True
                yield from decoder.read_packets(live)
        except DamagedCapture as error:
            self.code = console.EXIT_DAMAGED
            console.warn(str(error))
        except CaptureError as error:
            console.fail(str(error), console.EXIT_SOURCE)

    def _tick(self) -> None:
        import time

        sys.stdout.flush()
        self.doctor.tick(time.time_ns())

    def _read_again(self) -> Iterator[Event]:
        """Read the files again; returns their events."""
        decoder = self.decoder.repeat(sort=True)
        for events in chain(self._sources().read(decoder, say=False), decoder.finish()):
            yield from events

    # -- showing

    def _show(self, findings: list[Finding]) -> None:
        output = self.options.output
        note = ""
        if output in ("text", "markdown") and not self.options.each:
            findings, note = limit_findings(findings)
        lines = self._lines(findings) if output in ("text", "markdown") and findings else {}
        if output == "sarif":
            source = self.options.sources[0] if self.options.sources else self.options.interface or ""
            out = json_line(sarif(findings, self.rules, source, self.numbers.find))
        elif output == "markdown":
            out = findings_markdown(findings, note, lines).encode("utf-8", "backslashreplace")
        elif output == "json":
            out = b"".join(self.sayer.format(finding, lines) for finding in findings)
        else:
            texts = [*(self.sayer.format(finding, lines) for finding in findings), note.encode()]
            out = b"\n".join(filter(None, texts))
        self._write_out(out)

    def _write_out(self, out: bytes) -> None:
        sys.stdout.buffer.write(out)
        sys.stdout.buffer.flush()

    def _lines(self, findings: Iterable[Finding]) -> dict[int, str]:
        """Return the frames of the evidence as text, by number; {} if the sources cannot be read again."""
        if self.options.is_live:
            return {}
        # 0: the evidence is no frame
        numbers = {entry.sighting.number for finding in findings for entry in finding.evidence} - {0}
        recorder = Recorder(keys=self.keys)
        output = "tree" if self.options.tree else "line"
        colour = self.options.output == "text" and console.has_colour(sys.stdout)
        render = renderer(output, recorder, Paint(colour), self.clock)
        lines: dict[int, str] = {}
        for event in self._read_again():
            if isinstance(event, Frame) and event.number in numbers:
                lines[event.number] = b"".join(render([event])).decode("utf-8", "replace").strip()
                if len(lines) == len(numbers):
                    break
        return lines

    # -- a file for a bug report

    def _write(self, path: str, findings: list[Finding]) -> None:
        """Write the packets of all connections that findings name."""
        options = self.options
        console.refuse_source(
            "--write", path, [*options.sources, *options.read.keylogs, *options.private_keys]
        )
        connections = {str(finding.connection) for finding in findings}
        connections |= {str(entry.sighting.connection) for finding in findings for entry in finding.evidence}
        try:
            with open(path, "wb") as stream:
                count = self._copy(connections, stream, findings)
        except OSError as error:
            console.fail(f"--write {path}: {error.strerror}", console.EXIT_OUTPUT)
        text = f"{count_of(count, 'packet')} of {count_of(len(connections), 'connection')}"
        console.warn(f"{text} written to {path}")

    def _copy(self, connections: set[str], stream: BinaryIO, findings: list[Finding]) -> int:
        about = describe_doctor(self.options.checks, self.options.sources)
        writer, dissector = EventWriter(stream, about, describe_findings(findings)), Dissector()
        writer.begin()
        comment = Commenter(self.clock, show_secrets=False)
        decisions: dict[bytes, bool] = {}

        def is_named(client: str, server: str) -> bool:  # in either order
            return f"{client}-{server}" in connections or f"{server}-{client}" in connections

        def is_wanted(key: bytes) -> bool:
            if key not in decisions:
                decisions[key] = is_named(address_of(key), address_of(reverse(key)))
                bound(decisions, MAX_PENDING)
            return decisions.get(key, False)

        def see(number: int, packet: RawPacket) -> None:
            _, link, data, length = packet
            segment = dissector.segment(link, data, length)
            if segment is not None and is_wanted(segment[0]):
                writer.see(number, packet)
                writer.select(number)

        decoder = self.decoder.repeat(join_chunks=False, sort=True, tee=see)
        writer.secrets = decoder.secrets
        for event in chain.from_iterable(chain(self._sources().read(decoder, say=False), decoder.finish())):
            if is_named(event.connection.client, event.connection.server):
                writer.take(event, *comment(event))
        writer.close()
        return writer.count
