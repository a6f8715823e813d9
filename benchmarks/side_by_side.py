"""Common parts of the comparisons with tshark: inputs, processes and their memory, tables of figures.

Whole processes are measured, in turns, with their output discarded, so that a change in the machine's
speed affects all of them; ratios are of neighbouring runs. A process starts with its parent's peak memory, so
the parent stays small: the generator, and anything else that needs memory, runs in another process.
"""

import os
import re
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import zstandard

HERE: Final = Path(__file__).resolve().parent

FOUR: Final = ("frame.number", "frame.time_epoch", "tcp.stream", "apache.pulsar.cmd.type")
FOURTEEN: Final = (
    *FOUR,
    *("apache.pulsar.frame_size", "apache.pulsar.topic", "apache.pulsar.subscription"),
    *("apache.pulsar.producer_id", "apache.pulsar.producer_name", "apache.pulsar.sequence_id"),
    *("apache.pulsar.consumer_id", "apache.pulsar.message_id", "apache.pulsar.request_id"),
    "apache.pulsar.publish_time",
)

Record = dict[str, str | int | float | bool | None]
"""A row of a report: column -> value, None if there is no figure."""


# -- the tools


def find_pwire() -> str | None:
    """The `pwire` next to this Python, or the one on PATH."""
    return shutil.which("pwire", path=Path(sys.executable).parent) or shutil.which("pwire")


def version(pwire: str) -> str:
    """The output of `pwire --version`, which shows whether it is compiled (two to four times as fast)."""
    return subprocess.run([pwire, "--version"], capture_output=True, text=True, check=True).stdout.strip()


def find_tshark() -> str | None:
    """tshark, if it has the Pulsar dissector."""
    tshark = shutil.which("tshark")
    if tshark is None:
        return None
    known = subprocess.run([tshark, "-G", "protocols"], capture_output=True, text=True, check=True).stdout
    return tshark if "\tapache.pulsar\n" in known else None


def fields(names: Sequence[str]) -> tuple[str, ...]:
    """tshark's options to print these fields."""
    return ("-T", "fields", *(word for name in names for word in ("-e", name)))


def tshark_command(tshark: str, options: Sequence[str], path: Path) -> list[str]:
    """The command that decodes `path` with tshark."""
    return [tshark, "-n", "-o", "tcp.reassemble_out_of_order:TRUE", "-r", str(path), *options]


def frames_named(tshark: str, path: Path) -> int:
    """How many frames tshark finds: it prints the commands of each packet, separated by commas."""
    command = tshark_command(tshark, fields(["apache.pulsar.cmd.type"]), path)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        return sum(line.count(b",") + 1 for line in process.stdout if line.strip())


# -- running them


class Tree(NamedTuple):
    """Peak memory of a process and all processes it started, in MiB.

    `resident` adds up their resident memory, shared pages once for each; `shared_once` (the kernel's PSS)
    at about the same moment counts each page once; `largest` is the most that one process had.
    """

    resident: float
    shared_once: float
    largest: float
    processes: int


class Run(NamedTuple):
    """What a process took, and its stderr. `tree` is None if memory was not, or could not be, measured.

    `cpu` is processor time in seconds, including that of processes that it started and waited for.
    """

    seconds: float
    mib: float
    said: str
    tree: Tree | None = None
    cpu: float = 0.0


def run(command: Sequence[str], *, watch: bool = False, out: Path | None = None) -> Run:
    """Run a process to its end, its stdout into `out` or discarded; raises RuntimeError if it fails.

    With `watch` it gets its own session, by which all processes it starts are found, and waited for.
    """
    with tempfile.TemporaryFile() as stderr, open(out or os.devnull, "wb") as stdout:
        started = time.perf_counter()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=watch
        )
        watcher = Watcher(process.pid) if watch and Watcher.possible() else None
        try:
            _, status, usage = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - started
        except BaseException:
            process.kill()
            if watcher:
                watcher.end(patience=0)
            raise
        tree = watcher.end() if watcher else None
        process.returncode = os.waitstatus_to_exitcode(status)
        stderr.seek(0)
        said = stderr.read().decode(errors="replace")
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {said[-500:]}")
    mib = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 2**20
    if tree is not None:
        tree = tree._replace(largest=max(tree.largest, mib), resident=max(tree.resident, mib))
    return Run(seconds, mib, said, tree, usage.ru_utime + usage.ru_stime)


class Watcher(threading.Thread):
    """Measures the memory of all processes of a session, often; Linux only."""

    INTERVAL: Final = 0.2

    def __init__(self, session: int) -> None:
        super().__init__(daemon=True)
        self._session = session
        self._peak = Tree(0, 0, 0, 0)
        self._others: set[str] = set()
        """Processes that are not in the session; they cannot join it later."""
        self._ended = threading.Event()
        self._page = os.sysconf("SC_PAGE_SIZE") / 2**20
        self.start()

    @staticmethod
    def possible() -> bool:
        """Whether this system has the necessary files in /proc."""
        return os.path.exists("/proc/self/smaps_rollup")

    def end(self, patience: float = 60) -> Tree:
        """Stop measuring, wait until no process of the session is left, and return the peak.

        Some processes may outlive the first one, like Spark's Java. They are killed after `patience` seconds.
        """
        self._ended.set()
        self.join()
        give_up = time.monotonic() + patience
        while left := self._members():
            if time.monotonic() > give_up:
                for pid in left:
                    with suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
            time.sleep(self.INTERVAL)
        return self._peak

    def run(self) -> None:
        """Measure until `end`."""
        while not self._ended.wait(self.INTERVAL):
            self._look()

    def _members(self) -> list[str]:
        present = {name for name in os.listdir("/proc") if name.isdigit()}
        self._others &= present
        members = []
        for pid in present - self._others:
            stat = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
            if len(stat) < 4 or stat[0] in "ZX":  # gone
                continue
            if int(stat[3]) == self._session:
                members.append(pid)
            else:
                self._others.add(pid)
        return members

    def _look(self) -> None:
        members = self._members()
        resident = 0.0
        largest = self._peak.largest
        for pid in members:
            statm = _read(f"/proc/{pid}/statm").split()
            own = int(statm[1]) * self._page if statm else 0.0
            resident += own
            largest = max(largest, own, _kib(f"/proc/{pid}/status", "VmHWM:") / 1024)
        shared_once = self._peak.shared_once
        if resident > 1.01 * self._peak.resident:  # only at new peaks, as this is slow in the kernel
            now = sum(_kib(f"/proc/{pid}/smaps_rollup", "Pss:") for pid in members) / 1024
            shared_once = max(shared_once, now)
        processes = max(self._peak.processes, len(members))
        self._peak = Tree(max(self._peak.resident, resident), shared_once, largest, processes)


def _read(path: str) -> str:
    """A file of /proc; empty if the process is gone."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _kib(path: str, name: str) -> int:
    found = re.search(rf"^{name}\s+(\d+) kB", _read(path), re.MULTILINE)
    return int(found[1]) if found else 0


def rate(frames: int | None, runs: Sequence[Run]) -> int | None:
    """Median frames per second."""
    return round(frames / statistics.median(run.seconds for run in runs)) if frames and runs else None


# -- captures


class Pcap:
    """Reads the records of a classic pcap; raises ValueError if it is not one."""

    def __init__(self, source: BinaryIO) -> None:
        self.header = source.read(24)
        order = {b"\xd4\xc3\xb2\xa1": "<", b"\x4d\x3c\xb2\xa1": "<"}.get(self.header[:4])
        order = order or {b"\xa1\xb2\xc3\xd4": ">", b"\xa1\xb2\x3c\x4d": ">"}.get(self.header[:4])
        if order is None or len(self.header) < 24:
            raise ValueError(f"{source.name} is not a classic pcap; convert it with: editcap -F pcap IN OUT")
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


def generate(path: Path, frames: int, *options: str) -> None:
    """Write a capture of MTU-sized packets."""
    command = [sys.executable, str(HERE / "generate.py"), str(path), "--frames", str(frames), *options]
    subprocess.run(command, check=True)


def unpacked(given: Path, path: Path) -> Path:
    """`given` if it is not compressed, otherwise `path`, into which it is unpacked."""
    if given.suffix != ".zst":
        return given
    with given.open("rb") as packed, path.open("wb") as target:
        zstandard.ZstdDecompressor().copy_stream(packed, target)
    return path


def concatenate(path: Path, out: Path, copies: int) -> None:
    """Write copies of a capture to `out`, each later than the previous one and with other connections."""
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
    """An Ethernet packet with the second byte of both IP addresses changed, differently for each copy."""
    at, size = {b"\x08\x00": (26, 4), b"\x86\xdd": (22, 16)}.get(packet[12:14], (0, 0))
    if not copy or not size or len(packet) < at + 2 * size:
        return packet
    changed = bytearray(packet)
    changed[at + 1] ^= copy
    changed[at + size + 1] ^= copy
    return bytes(changed)


def rotate(path: Path, directory: Path, size: int) -> list[Path]:
    """Write a capture as files of about `size` bytes, as a capturing tool with rotation does."""
    files: list[Path] = []
    with path.open("rb") as source:
        capture = Pcap(source)
        target: BinaryIO | None = None
        for seconds, fraction, on_wire, packet in capture:
            if target is None or target.tell() + 16 + len(packet) > size:
                if target is not None:
                    target.close()
                files.append(directory / f"{path.stem}-{len(files):03}.pcap")
                target = files[-1].open("wb")
                target.write(capture.header)
            target.write(capture.record.pack(seconds, fraction, len(packet), on_wire) + packet)
        if target is not None:
            target.close()
    return files


def by_host(path: Path, directory: Path, hosts: int = 2) -> list[Path]:
    """Write a capture as those of several hosts, each of which sees some of the connections."""
    files = [directory / f"host-{chr(ord('a') + number)}.pcap" for number in range(hosts)]
    with path.open("rb") as source, ExitStack() as stack:
        capture = Pcap(source)
        targets = [stack.enter_context(file.open("wb")) for file in files]
        for target in targets:
            target.write(capture.header)
        for seconds, fraction, on_wire, packet in capture:
            port = max(int.from_bytes(packet[at : at + 2], "big") for at in (34, 36))  # that of the client
            head = capture.record.pack(seconds, fraction, len(packet), on_wire)
            targets[port % hosts].write(head + packet)
    return files


# -- figures


def table(report: list[Record]) -> str:
    """Records as aligned columns."""
    lines = [list(report[0]), *([cell(value) for value in record.values()] for record in report)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)) for line in lines
    )


def cell(value: str | int | float | bool | None) -> str:
    """Format a value for the table."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"
