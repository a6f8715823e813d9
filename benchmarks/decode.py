"""Compare `pwire decode` with tshark, and `pwire doctor` with `pwire decode -q --jobs 1`.

    python -m benchmarks.decode [CAPTURE...]

Inputs are every CAPTURE, with Pulsar's traffic on port 6650, and a generated capture of MTU-sized packets.
tshark is measured if it is installed with the official Pulsar dissector (the `wireshark` folder of
apache/pulsar-client-cpp). `--only` selects some of these sections:

    decode    decode beside tshark; "frames" shows whether it found all of them
    start-up  commands that should feel immediate
    memory    decode of each input, and of ten copies of it one after another
    doctor    doctor beside decode -q; its last capture has ten times the frames, and is for memory
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import typer

from benchmarks.captures import (
    COPIES,
    FOUR,
    FOURTEEN,
    SAMPLES,
    Input,
    concatenate,
    fields,
    frames_of_tshark,
    generated,
    inputs,
    tshark,
)
from benchmarks.harness import Captures, Figures, Frames, Goal, Only, Runs, measure, pwire

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
    Row("-q", ("-q",), fields(FOUR), 3, 4),
    Row("-o line", ("-o", "line"), fields(FOURTEEN), 2, 3),
    Row("-o json", ("-o", "json"), ("-T", "json"), 5, 8),
)
GOALS: Final = (
    *(Goal(f"real *: {row.name}", "pwire", "frames/s", "≥", row.real, "tshark") for row in ROWS),
    *(Goal(f"MTU-sized: {row.name}", "pwire", "frames/s", "≥", row.generated, "tshark") for row in ROWS),
    Goal("start-up", "--help", "s", "≤", 0.25),
    Goal("start-up", "decode", "s", "≤", 0.6),
    Goal("*", "doctor", "frames/CPU s", "≥", 0.7, "decode -q"),
    Goal("*", "doctor", "MiB", "≤", 150),
)


def compare_with_tshark(sources: Sequence[Input], runs: int, scratch: Path, figures: Figures) -> None:
    """Decode captures with both tools."""
    for source in sources:
        beginning = source.cut(JSON_PACKETS, scratch)
        for row in ROWS:
            capture = beginning if row.name == "-o json" else source
            path, case = capture.path, f"{source.name}: {row.name}"
            commands = {"pwire": pwire("decode", *row.pwire, path)} | tshark(path, *row.tshark)
            figures.compare(case, commands, runs, capture.frames)
            figures.add(case, "pwire", {"frames": capture.frames})
            if "tshark" in commands:
                figures.add(case, "tshark", {"frames": frames_of_tshark(path)})


def start_up(runs: int, figures: Figures) -> None:
    """Run commands that have little to do."""
    small = min(SAMPLES.glob("*.pcap"))
    figures.compare("start-up", {"--help": pwire("--help"), "decode": pwire("decode", small)}, runs)


def compare_with_copies(sources: Sequence[Input], scratch: Path, figures: Figures) -> None:
    """Decode captures, and many copies of each."""
    for source in sources:
        copies = scratch / "copies.pcap"
        concatenate(source.path, copies)
        for options in (("-q",), ("-o", "json")):
            commands = {"once": pwire("decode", *options, source.path)}
            commands[f"{COPIES} copies"] = pwire("decode", *options, copies)
            figures.compare(f"{source.name}: {' '.join(options)}", commands, runs=1)


def compare_doctor(sources: Sequence[Input], frames: int, runs: int, scratch: Path, figures: Figures) -> None:
    """Run doctor and decode on captures, and once on a generated one of so many frames."""
    large = [Input("large", generated(scratch, frames), frames)] if frames else []
    for source in (*sources, *large):
        commands = {"doctor": pwire("doctor", "--fail-on", "never", source.path)}
        commands["decode -q"] = pwire("decode", "-q", "--jobs", 1, source.path)
        figures.compare(source.name, commands, 1 if source in large else runs, source.frames)


def main(captures: Captures = None, frames: Frames = 1_000_000, runs: Runs = 3, only: Only = None) -> None:
    """Compare pwire decode with tshark, and pwire doctor with pwire decode."""
    with TemporaryDirectory() as name:
        scratch = Path(name)
        sources = inputs(captures or (), frames, scratch)
        sections = {
            "decode": partial(compare_with_tshark, sources, runs, scratch),
            "start-up": partial(start_up, runs),
            "memory": partial(compare_with_copies, sources, scratch),
            "doctor": partial(compare_doctor, sources, 10 * frames, runs, scratch),
        }
        measure(sections, only, GOALS, ("tshark", "once", "decode -q"))


if __name__ == "__main__":
    typer.run(main)
