"""Compare `pwire decode` with tshark, and `pwire doctor` with `pwire decode -q --jobs 1`.

    python -m benchmarks.decode [CAPTURE...]

Inputs are every CAPTURE, with Pulsar's traffic on port 6650, and a generated capture of MTU-sized packets.
tshark is measured if it is installed with the official Pulsar dissector (the `wireshark` folder of
apache/pulsar-client-cpp). `--only` selects some of these sections:

    decode    decode beside tshark; "frames" shows whether it found all of them
    start-up  commands that should feel immediate
    memory    decode of each input, and of ten copies of it one after another
    tls       decode -q of the input inside TLS, beside the plain one
    doctor    doctor beside decode -q; its last capture has ten times the frames, and is for memory
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import typer

from benchmarks.captures import (
    COPIES,
    FOUR,
    FOURTEEN,
    SAMPLES,
    CaptureBench,
    Input,
    concatenate,
    count_with_tshark,
    tshark,
)
from benchmarks.harness import Captures, Figures, Frames, Goal, Only, Runs, measure, pwire
from benchmarks.tls import seal_capture

JSON_PACKETS: Final = 100_000
"""Packets that are decoded as JSON: tshark would need minutes for a whole capture."""


class Row(NamedTuple):
    """Options of both tools that are compared, and the ratios wanted of real and of MTU-sized captures."""

    name: str
    pwire: tuple[str, ...]
    tshark: tuple[str, ...]
    real: float
    generated: float


ROWS: Final = (
    Row("-q", ("-q",), FOUR, 3, 4),
    Row("-o line", ("-o", "line"), FOURTEEN, 2, 3),
    Row("-o json", ("-o", "json"), ("-T", "json"), 5, 8),
)
GOALS: Final = (
    *(Goal(f"real *: {row.name}", "pwire", "frames/s", "≥", row.real, "tshark") for row in ROWS),
    *(Goal(f"MTU-sized: {row.name}", "pwire", "frames/s", "≥", row.generated, "tshark") for row in ROWS),
    Goal("start-up", "--help", "s", "≤", 0.25),
    Goal("start-up", "decode", "s", "≤", 0.6),
    Goal("*: TLS", "TLS", "frames/CPU s", "≥", 0.5, "plain"),
    Goal("*", "doctor", "frames/CPU s", "≥", 0.7, "decode -q"),
    Goal("*", "doctor", "largest MiB", "≤", 150),
)


class Bench(CaptureBench):
    """All sections."""

    def decode(self, figures: Figures) -> None:
        """Compare with tshark."""
        for source in self.sources:
            beginning = source.cut(JSON_PACKETS, self.scratch)
            for row in ROWS:
                capture = beginning if row.name == "-o json" else source
                path, case = capture.path, f"{source.name}: {row.name}"
                commands = {"pwire": pwire("decode", *row.pwire, path)} | tshark(path, *row.tshark)
                figures.compare(case, commands, self.runs, capture.frames)
                figures.add(case, "pwire", {"frames": capture.frames})
                if "tshark" in commands:
                    figures.add(case, "tshark", {"frames": count_with_tshark(path)})

    def start_up(self, figures: Figures) -> None:
        """Run commands that have little to do."""
        commands = {"--help": pwire("--help"), "decode": pwire("decode", min(SAMPLES.glob("*.pcap")))}
        figures.compare("start-up", commands, self.runs)

    def memory(self, figures: Figures) -> None:
        """Compare inputs with many copies of each."""
        for source in self.sources:
            copies = self.scratch / "copies.pcap"
            concatenate(source.path, copies)
            for options in (("-q",), ("-o", "json")):
                commands = {"once": pwire("decode", *options, source.path)}
                commands[f"{COPIES} copies"] = pwire("decode", *options, copies)
                figures.compare(f"{source.name}: {' '.join(options)}", commands, runs=1)

    def tls(self, figures: Figures) -> None:
        """Compare inputs with the same traffic inside TLS."""
        sealed, keylog = self.scratch / "tls.pcapng", self.scratch / "keys.log"
        for source in self.sources:
            seal_capture(Path(source.path), sealed, keylog)
            commands = {"plain": pwire("decode", "-q", "--jobs", 1, source.path)}
            commands["TLS"] = pwire("decode", "-q", "--keylog", keylog, sealed)
            figures.compare(f"{source.name}: TLS", commands, self.runs, source.frames)

    def doctor(self, figures: Figures) -> None:
        """Compare doctor with decode."""
        for source in self.sources:
            self._compare_doctor(figures, source, self.runs)
        if frames := 10 * self.frames:
            self._compare_doctor(figures, Input("large", self.generate(frames), frames), runs=1)

    def _compare_doctor(self, figures: Figures, source: Input, runs: int) -> None:
        commands = {"doctor": pwire("doctor", "--fail-on", "never", source.path)}
        commands["decode -q"] = pwire("decode", "-q", "--jobs", 1, source.path)
        figures.compare(source.name, commands, runs, source.frames)


def main(captures: Captures = None, frames: Frames = 1_000_000, runs: Runs = 3, only: Only = None) -> None:
    """Compare pwire decode with tshark, and pwire doctor with pwire decode."""
    with TemporaryDirectory() as name:
        bench = Bench(captures or (), frames, runs, Path(name))
        sections = {"decode": bench.decode, "start-up": bench.start_up}
        sections |= {"memory": bench.memory, "tls": bench.tls, "doctor": bench.doctor}
        measure(sections, only, GOALS, ("tshark", "once", "plain", "decode -q"))


if __name__ == "__main__":
    typer.run(main)
