"""Measure `pwire decode` beside tshark: `python benchmarks/decode.py [CAPTURE...]`.

tshark takes part if it is installed with the official Pulsar dissector (the `wireshark` folder of
apache/pulsar-client-cpp); otherwise pwire's figures stand alone. Inputs are a generated capture of
MTU-sized packets and every CAPTURE (classic pcap, maybe .zst), with Pulsar's traffic on port 6650.

Both tools run as whole processes, in turns, with their output thrown away, so that a change in the
machine's speed meets both; ratios are of neighbouring runs. Peak memory is what the kernel says of the
process. A process starts with its parent's peak, so this one stays small: the generator runs outside it.

tshark is told to put TCP segments in order, as pwire does: by default it does not, and then a single
swapped packet makes it wait for a frame that never ends. The column `tshark_frames` shows whether it
found them all.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import zstandard

HERE: Final = Path(__file__).resolve().parent
SAMPLES: Final = HERE.parent / "samples" / "pcaps"

COPIES: Final = 10
"""How often --memory concatenates a capture with itself."""

FOUR: Final = ("frame.number", "frame.time_epoch", "tcp.stream", "apache.pulsar.cmd.type")
FOURTEEN: Final = (
    *FOUR,
    *("apache.pulsar.frame_size", "apache.pulsar.topic", "apache.pulsar.subscription"),
    *("apache.pulsar.producer_id", "apache.pulsar.producer_name", "apache.pulsar.sequence_id"),
    *("apache.pulsar.consumer_id", "apache.pulsar.message_id", "apache.pulsar.request_id"),
    "apache.pulsar.publish_time",
)

Record = dict[str, str | int | float | bool | None]
"""A row of a report: column -> value, None where there is no figure."""


class Row(NamedTuple):
    """A comparison: both tools' options, and the ratio to reach for each kind of input.

    `cut` says that it takes only the first packets of a capture, as tshark would need minutes.
    """

    name: str
    pwire: tuple[str, ...]
    tshark: tuple[str, ...]
    goals: dict[str, float]
    cut: bool = False


class Input(NamedTuple):
    """A capture to decode; `kind` is "real" or "MTU", `frames` how many it holds if that is known."""

    name: str
    kind: str
    path: Path
    frames: int | None


class Run(NamedTuple):
    """What a process took, and what it wrote to stderr."""

    seconds: float
    mib: float
    said: str


def fields(names: Sequence[str]) -> tuple[str, ...]:
    """tshark's options to print these fields."""
    return ("-T", "fields", *(word for name in names for word in ("-e", name)))


ROWS: Final = (
    Row("-q", ("-q",), fields(FOUR), {"real": 1.7, "MTU": 4}),
    Row("line", ("-o", "line"), fields(FOURTEEN), {"real": 1.5, "MTU": 3}),
    Row("json", ("-o", "json"), ("-T", "json"), {"real": 4, "MTU": 8}, cut=True),
)


def find_pwire() -> str | None:
    """The `pwire` beside this Python, else the one on PATH."""
    return shutil.which("pwire", path=Path(sys.executable).parent) or shutil.which("pwire")


def find_tshark() -> str | None:
    """tshark, if it has the dissector."""
    tshark = shutil.which("tshark")
    if tshark is None:
        return None
    known = subprocess.run([tshark, "-G", "protocols"], capture_output=True, text=True, check=True).stdout
    return tshark if "\tapache.pulsar\n" in known else None


def pwire_command(pwire: str, options: Sequence[str], path: Path) -> list[str]:
    """How `path` is decoded with pwire."""
    return [pwire, "decode", *options, str(path)]


def tshark_command(tshark: str, options: Sequence[str], path: Path) -> list[str]:
    """How `path` is decoded with tshark."""
    return [tshark, "-n", "-o", "tcp.reassemble_out_of_order:TRUE", "-r", str(path), *options]


def run(command: list[str]) -> Run:
    """Run a process to its end; RuntimeError if it fails."""
    with tempfile.TemporaryFile() as stderr:
        started = time.perf_counter()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        stderr.seek(0)
        said = stderr.read().decode(errors="replace")
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {said[-500:]}")
    unit = 1 if sys.platform == "darwin" else 1024
    return Run(seconds, usage.ru_maxrss * unit / 2**20, said)


def frames_said(summary: str) -> int | None:
    """The number of frames in pwire's summary, "12,345 frames" or "frames: 12345"; None if it says none."""
    number = r"(\d[\d,._]*\d|\d)"
    found = re.search(rf"{number}\s+frames?\b", summary) or re.search(rf"\bframes?\W+{number}", summary)
    return int(re.sub(r"\D", "", found[1])) if found else None


def frames_named(tshark: str, path: Path) -> int:
    """How many frames tshark finds: the commands it names, several a packet with commas between."""
    command = tshark_command(tshark, fields(["apache.pulsar.cmd.type"]), path)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        return sum(line.count(b",") + 1 for line in process.stdout if line.strip())


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


def rate(frames: int | None, runs: list[Run]) -> int | None:
    """Median frames a second."""
    return round(frames / statistics.median(run.seconds for run in runs)) if frames and runs else None


def start_up(pwire: str, runs: int) -> list[Record]:
    """Wall time of what should feel immediate."""
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


class Pcap:
    """Reads the records of a classic pcap; ValueError if it is none."""

    def __init__(self, source: BinaryIO) -> None:
        self.header = source.read(24)
        order = {b"\xd4\xc3\xb2\xa1": "<", b"\x4d\x3c\xb2\xa1": "<"}.get(self.header[:4])
        order = order or {b"\xa1\xb2\xc3\xd4": ">", b"\xa1\xb2\x3c\x4d": ">"}.get(self.header[:4])
        if order is None or len(self.header) < 24:
            raise ValueError(f"{source.name} is no classic pcap; convert it with: editcap -F pcap IN OUT")
        self.record = struct.Struct(f"{order}IIII")
        self._source = source

    def __iter__(self) -> Iterator[tuple[int, int, int, bytes]]:
        """Each packet: seconds, fraction, bytes on the wire, captured bytes. A cut record ends it."""
        while len(head := self._source.read(16)) == 16:
            seconds, fraction, stored, size = self.record.unpack(head)
            packet = self._source.read(stored)
            if len(packet) < stored:
                return
            yield seconds, fraction, size, packet


def cut(path: Path, out: Path, packets: int) -> None:
    """Write the first `packets` packets of a capture to `out`."""
    with path.open("rb") as source, out.open("wb") as target:
        capture = Pcap(source)
        target.write(capture.header)
        for _, (seconds, fraction, size, packet) in zip(range(packets), capture, strict=False):
            target.write(capture.record.pack(seconds, fraction, len(packet), size) + packet)


def concatenate(path: Path, out: Path, copies: int) -> None:
    """Write copies of a capture to `out`, each later than the one before and of other connections."""
    with out.open("wb") as target:
        start = end = 0
        for copy in range(copies):
            with path.open("rb") as source:
                capture = Pcap(source)
                if copy == 0:
                    target.write(capture.header)
                shift = copy * (end - start + 1)
                for seconds, fraction, size, packet in capture:
                    if copy == 0:
                        start, end = min(start or seconds, seconds), max(end, seconds)
                    target.write(capture.record.pack(seconds + shift, fraction, len(packet), size))
                    target.write(readdressed(packet, copy))


def readdressed(packet: bytes, copy: int) -> bytes:
    """An Ethernet packet with both IP addresses changed in their second byte, differently for each copy."""
    at, size = {b"\x08\x00": (26, 4), b"\x86\xdd": (22, 16)}.get(packet[12:14], (0, 0))
    if not copy or not size or len(packet) < at + 2 * size:
        return packet
    changed = bytearray(packet)
    changed[at + 1] ^= copy
    changed[at + size + 1] ^= copy
    return bytes(changed)


def prepare(options: argparse.Namespace, scratch: Path) -> list[Input]:
    """Generate and unpack the inputs."""
    inputs = []
    if options.generated_frames:
        path = scratch / "generated.pcap"
        frames = str(options.generated_frames)
        subprocess.run([sys.executable, HERE / "generate.py", path, "--frames", frames], check=True)
        inputs.append(Input("generated", "MTU", path, options.generated_frames))
    for number, given in enumerate(options.captures):
        path = given
        if given.suffix == ".zst":
            path = scratch / f"{number}-{given.stem}"
            with given.open("rb") as packed, path.open("wb") as target:
                zstandard.ZstdDecompressor().copy_stream(packed, target)
        inputs.append(Input(given.name, "real", path, options.frames))
    return inputs


def first_packets(source: Input, packets: int, scratch: Path) -> Input:
    """The beginning of an input."""
    path = scratch / f"cut-{source.path.name}"
    cut(source.path, path, packets)
    return source._replace(path=path, frames=None)


def table(report: list[Record]) -> str:
    """Records as aligned columns."""
    lines = [list(report[0]), *([cell(value) for value in record.values()] for record in report)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)) for line in lines
    )


def cell(value: str | int | float | bool | None) -> str:
    """A value as the table shows it."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Measure pwire beside tshark.")
    parser.add_argument("captures", nargs="*", type=Path, metavar="CAPTURE", help="classic pcap, maybe .zst")
    parser.add_argument("--runs", type=int, default=3, help="runs of each tool for each row")
    parser.add_argument("--generated-frames", type=int, default=1_000_000, help="0: no generated capture")
    parser.add_argument("--json-packets", type=int, default=100_000, help='packets for the row "json"')
    parser.add_argument("--frames", type=int, help="frames in CAPTURE, should pwire not say")
    parser.add_argument("--memory", action="store_true", help="measure pwire's memory only")
    parser.add_argument("--json", action="store_true", help="print JSON, not tables")
    return parser.parse_args()


def measure(options: argparse.Namespace, pwire: str) -> dict[str, list[Record]]:
    """All that was asked for, as reports by name."""
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        inputs = prepare(options, scratch)
        if options.memory:
            return {"memory": [record for source in inputs for record in memory(pwire, source, scratch)]}
        tshark = find_tshark()
        if tshark is None:
            print("no tshark with the Pulsar dissector: pwire's figures alone", file=sys.stderr)
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
    reports = measure(options, pwire)
    if options.json:
        print(json.dumps(reports, indent=2))
    else:
        print("\n\n".join(table(report) for report in reports.values() if report))


if __name__ == "__main__":
    main()
