"""Compare `pwire decode` with tshark: `python benchmarks/decode.py [CAPTURE...]`.

tshark is measured if it is installed with the official Pulsar dissector (the `wireshark` folder of
apache/pulsar-client-cpp); otherwise only pwire is. Inputs are a generated capture of
MTU-sized packets and every CAPTURE (classic pcap, maybe .zst), with Pulsar's traffic on port 6650.

Both run in turns, see side_by_side.py. Peak memory is the kernel's figure for the process.

tshark runs with an option to put TCP segments in order, as pwire does: by default it does not, and a single
swapped packet makes it wait for a frame that never ends. The column `tshark_frames` shows whether it
found all frames.
"""

import argparse
import json
import re
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.side_by_side import (
    FOUR,
    FOURTEEN,
    HERE,
    Pcap,
    Record,
    concatenate,
    fields,
    find_pwire,
    find_tshark,
    frames_named,
    generate,
    rate,
    run,
    table,
    tshark_command,
    unpacked,
    version,
)

SAMPLES: Final = HERE.parent / "samples" / "pcaps"

COPIES: Final = 10
"""How often --memory concatenates a capture with itself."""


class Row(NamedTuple):
    """A comparison: both tools' options, and the target ratio for each kind of input.

    `cut`: only the first packets of a capture are used, as tshark would need minutes.
    """

    name: str
    pwire: tuple[str, ...]
    tshark: tuple[str, ...]
    goals: dict[str, float]
    cut: bool = False


class Input(NamedTuple):
    """A capture to decode; `kind` is "real" or "MTU", `frames` its number of frames if known."""

    name: str
    kind: str
    path: Path
    frames: int | None


ROWS: Final = (
    Row("-q", ("-q",), fields(FOUR), {"real": 3, "MTU": 4}),
    Row("line", ("-o", "line"), fields(FOURTEEN), {"real": 2, "MTU": 3}),
    Row("json", ("-o", "json"), ("-T", "json"), {"real": 5, "MTU": 8}, cut=True),
)


def pwire_command(pwire: str, options: Sequence[str], path: Path) -> list[str]:
    """The command that decodes `path` with pwire."""
    return [pwire, "decode", *options, str(path)]


def frames_said(summary: str) -> int | None:
    """The number of frames in pwire's summary, "12,345 frames" or "frames: 12345"; None if there is none."""
    number = r"(\d[\d,._]*\d|\d)"
    found = re.search(rf"{number}\s+frames?\b", summary) or re.search(rf"\bframes?\W+{number}", summary)
    return int(re.sub(r"\D", "", found[1])) if found else None


def compare(pwire: str, tshark: str | None, source: Input, row: Row, runs: int) -> Record:
    """Measure one row of the table on one input."""
    print(f"{source.name}: {row.name}", file=sys.stderr)
    said = frames_said(run(pwire_command(pwire, ["-q"], source.path)).said)
    named = frames_named(tshark, source.path) if tshark else None
    frames = said or source.frames or named
    ours, theirs = [], []
    for _ in range(runs):
        ours.append(run(pwire_command(pwire, row.pwire, source.path)))
        if tshark:
            theirs.append(run(tshark_command(tshark, row.tshark, source.path)))
    ratios = [their.seconds / our.seconds for our, their in zip(ours, theirs, strict=False)]
    ratio = statistics.median(ratios) if ratios else None
    goal = row.goals[source.kind]
    return {
        "input": source.name,
        "kind": source.kind,
        "row": row.name,
        "frames": frames,
        "tshark_frames": named,
        "pwire_per_s": rate(frames, ours),
        "tshark_per_s": rate(frames, theirs),
        "ratio": ratio,
        "goal": goal,
        "met": None if ratio is None else ratio >= goal,
        "pwire_mib": max(our.mib for our in ours),
        "tshark_mib": max((their.mib for their in theirs), default=None),
    }


def start_up(pwire: str, runs: int) -> list[Record]:
    """Wall time of commands that should feel immediate."""
    commands = [("pwire --help", [pwire, "--help"], 0.25)]
    small = min(SAMPLES.glob("*.pcap"), default=None)
    if small is None:
        print(f"no captures in {SAMPLES.relative_to(HERE.parent)}: `decode` is left out", file=sys.stderr)
    else:
        commands.append((f"pwire decode {small.name}", pwire_command(pwire, [], small), 0.6))
    report: list[Record] = []
    for name, command, goal in commands:
        seconds = statistics.median(run(command).seconds for _ in range(runs))
        report.append({"start-up": name, "seconds": seconds, "goal": goal, "met": seconds <= goal})
    return report


def memory(pwire: str, source: Input, scratch: Path) -> list[Record]:
    """Peak memory of pwire on a capture and on many copies of it, one after another."""
    many = scratch / "copies.pcap"
    concatenate(source.path, many, COPIES)
    report: list[Record] = []
    for options in (["-q"], ["-o", "json"]):
        print(f"{source.name}: memory, {' '.join(options)}", file=sys.stderr)
        once, often = (run(pwire_command(pwire, options, path)).mib for path in (source.path, many))
        report.append(
            {
                "input": source.name,
                "decode": " ".join(options),
                "mib_once": once,
                f"mib_{COPIES}_times": often,
                "growth": often / once,
            }
        )
    many.unlink()
    return report


def cut(path: Path, out: Path, packets: int) -> None:
    """Write the first `packets` packets of a capture to `out`."""
    with path.open("rb") as source, out.open("wb") as target:
        capture = Pcap(source)
        target.write(capture.header)
        for _, (seconds, fraction, size, packet) in zip(range(packets), capture, strict=False):
            target.write(capture.record.pack(seconds, fraction, len(packet), size) + packet)


def prepare(options: argparse.Namespace, scratch: Path) -> list[Input]:
    """Generate and unpack the inputs."""
    inputs = []
    if options.generated_frames:
        path = scratch / "generated.pcap"
        generate(path, options.generated_frames)
        inputs.append(Input("generated", "MTU", path, options.generated_frames))
    for number, given in enumerate(options.captures):
        path = unpacked(given, scratch / f"{number}-{given.stem}")
        inputs.append(Input(given.name, "real", path, options.frames))
    return inputs


def first_packets(source: Input, packets: int, scratch: Path) -> Input:
    """The beginning of an input."""
    path = scratch / f"cut-{source.path.name}"
    cut(source.path, path, packets)
    return source._replace(path=path, frames=None)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Compare pwire with tshark.")
    parser.add_argument("captures", nargs="*", type=Path, metavar="CAPTURE", help="classic pcap, maybe .zst")
    parser.add_argument("--runs", type=int, default=3, help="runs of each tool for each row")
    parser.add_argument("--generated-frames", type=int, default=1_000_000, help="0: no generated capture")
    parser.add_argument("--json-packets", type=int, default=100_000, help='packets for the row "json"')
    parser.add_argument("--frames", type=int, help="frames in CAPTURE, if pwire does not print it")
    parser.add_argument("--memory", action="store_true", help="measure only pwire's memory")
    parser.add_argument("--json", action="store_true", help="print JSON, not tables")
    return parser.parse_args()


def measure(options: argparse.Namespace, pwire: str) -> dict[str, list[Record]]:
    """Run the selected measurements; report name -> rows."""
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        inputs = prepare(options, scratch)
        if options.memory:
            return {"memory": [record for source in inputs for record in memory(pwire, source, scratch)]}
        tshark = find_tshark()
        if tshark is None:
            print("no tshark with the Pulsar dissector: only pwire is measured", file=sys.stderr)
        decode = []
        for source in inputs:
            beginning = first_packets(source, options.json_packets, scratch)
            decode += [
                compare(pwire, tshark, beginning if row.cut else source, row, options.runs) for row in ROWS
            ]
        return {"decode": decode, "start_up": start_up(pwire, options.runs)}


def main() -> None:
    """Read the command line, measure, print."""
    options = parse_arguments()
    pwire = find_pwire()
    if pwire is None:
        sys.exit("pwire is not installed")
    print(version(pwire), file=sys.stderr)
    reports = measure(options, pwire)
    if options.json:
        print(json.dumps(reports, indent=2))
    else:
        print("\n\n".join(table(report) for report in reports.values() if report))


if __name__ == "__main__":
    main()
