"""Compare `pwire doctor` with `pwire decode -q --jobs 1`: `python benchmarks/doctor.py [CAPTURE...]`.

Inputs are a generated capture of MTU-sized packets and every CAPTURE (classic pcap, maybe .zst). Both run in
turns, see side_by_side.py; ratios are of processor time. The last row is a generated capture of
`--memory-frames` frames, which is only for memory.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.decode import frames_said
from benchmarks.side_by_side import Record, find_pwire, generate, rate, run, table, unpacked, version

GOAL = 0.7
"""Frames per second of doctor, as a part of those of decode."""

GOAL_MIB = 150


def compare(pwire: str, name: str, path: Path, runs: int) -> Record:
    """Measure both on one capture."""
    doctor = [pwire, "doctor", "--fail-on", "never", str(path)]
    decode = [pwire, "decode", "-q", "--jobs", "1", str(path)]
    ours, theirs = [], []
    for _ in range(runs):
        ours.append(run(doctor))
        theirs.append(run(decode))
    frames = frames_said(theirs[0].said)
    ratio = statistics.median(their.cpu / our.cpu for our, their in zip(ours, theirs, strict=True))
    mib = max(our.mib for our in ours)
    return {
        "input": name,
        "frames": frames,
        "doctor_per_s": rate(frames, ours),
        "decode_per_s": rate(frames, theirs),
        "ratio": ratio,
        "goal": GOAL,
        "met": ratio >= GOAL and mib < GOAL_MIB,
        "doctor_mib": mib,
        "decode_mib": max(their.mib for their in theirs),
    }


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description="Compare pwire doctor with pwire decode -q.")
    parser.add_argument("captures", nargs="*", type=Path, metavar="CAPTURE", help="classic pcap, maybe .zst")
    parser.add_argument("--runs", type=int, default=3, help="runs of each on each capture")
    parser.add_argument("--generated-frames", type=int, default=1_000_000, help="0: no generated capture")
    parser.add_argument("--memory-frames", type=int, default=10_000_000, help="0: do not measure memory")
    options = parser.parse_args()
    pwire = find_pwire()
    if pwire is None:
        sys.exit("pwire is not installed")
    print(version(pwire), file=sys.stderr)
    report = []
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        for number, given in enumerate(options.captures):
            path = unpacked(given, scratch / f"{number}-{given.stem}")
            report.append(compare(pwire, given.name, path, options.runs))
        for frames, runs in ((options.generated_frames, options.runs), (options.memory_frames, 1)):
            if frames:
                path = scratch / "generated.pcap"
                generate(path, frames)
                report.append(compare(pwire, "generated", path, runs))
    print(table(report))


if __name__ == "__main__":
    main()
