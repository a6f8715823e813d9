"""Captures to measure decoders with: generated, unpacked, cut, copied; and tshark, which reads them."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final, Literal, NamedTuple

import zstandard

from benchmarks.harness import pwire, run

HERE: Final = Path(__file__).resolve().parent
SAMPLES: Final = HERE.parent / "samples" / "pcaps"
COPIES: Final = 10
"""How often a capture is concatenated with itself, to see whether memory grows."""


# -- tshark


def _fields(*names: str) -> tuple[str, ...]:
    return ("-T", "fields", *(word for name in names for word in ("-e", name)))


_COMMAND: Final = "apache.pulsar.cmd.type"
_NAMES: Final = ("frame.number", "frame.time_epoch", "tcp.stream", _COMMAND)
_MORE: Final = (
    *("frame_size", "topic", "subscription", "producer_id", "producer_name", "sequence_id", "consumer_id"),
    *("message_id", "request_id", "publish_time"),
)
FOUR: Final = _fields(*_NAMES)
FOURTEEN: Final = _fields(*_NAMES, *(f"apache.pulsar.{name}" for name in _MORE))
"""Options to print so many fields."""


@cache
def _tshark() -> str | None:
    """Return tshark, if it has the Pulsar dissector."""
    tshark = shutil.which("tshark")
    if tshark:
        command = [tshark, "-G", "protocols"]
        known = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        if "\tapache.pulsar\n" in known:
            return tshark
    print("no tshark with the Pulsar dissector: only pwire is measured", file=sys.stderr)
    return None


def tshark(path: Path, *options: str) -> dict[str, list[str]]:
    """Return tshark as a contender that decodes a capture; none if it is not installed.

    It puts TCP segments in order, as pwire does: by default it does not, and a single swapped packet makes it
    wait for a frame that never ends.
    """
    words = ["-n", "-o", "tcp.reassemble_out_of_order:TRUE", "-r", str(path), *options]
    return {"tshark": [command, *words]} if (command := _tshark()) else {}


def count_with_tshark(path: Path) -> int:
    """Count the frames that tshark finds: it prints the commands of each packet, separated by commas."""
    for command in tshark(path, *_fields(_COMMAND)).values():
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            return sum(line.count(b",") + 1 for line in process.stdout if line.strip())
    return 0


def count_with_pwire(path: Path) -> int:
    """Count the frames that `pwire decode -q` finds."""
    found = re.search(r"([\d,]+) frames?", run(pwire("decode", "-q", path)).stderr)
    return int(found[1].replace(",", "")) if found else 0


# -- captures


class Input(NamedTuple):
    """A capture to measure with: what it is called, and its number of frames."""

    name: str
    path: Path
    frames: int

    def cut(self, packets: int, scratch: Path) -> "Input":
        """Return a new capture with the first packets."""
        path = scratch / f"cut-{self.path.name}"
        with self.path.open("rb") as source, path.open("wb") as target:
            capture = Pcap(source)
            target.write(capture.header)
            target.writelines(islice(capture, packets))
        return Input(self.name, path, count_with_pwire(path))


def make_once(path: Path, make: Callable[[Path], object]) -> Path:
    """Return a file or directory, which is made if it does not exist yet."""
    if not path.exists():
        make(path)
    return path


@dataclass
class CaptureBench:
    """A benchmark of decoders, with files in `scratch`."""

    captures: Sequence[Path]
    frames: int
    runs: int
    scratch: Path

    @cached_property
    def sources(self) -> list[Input]:
        """The captures, unpacked, as "real …", and a generated one, if it has frames, as "MTU-sized"."""
        sources = []
        for number, path in enumerate(self.captures):
            name = f"real {path.name}"
            if path.suffix == ".zst":
                unpacked = self.scratch / f"{number}-{path.stem}"
                with path.open("rb") as source, unpacked.open("wb") as target:
                    zstandard.ZstdDecompressor().copy_stream(source, target)
                path = unpacked
            sources.append(Input(name, path, count_with_pwire(path)))
        if self.frames:
            sources.append(Input("MTU-sized", self.generate(self.frames), self.frames))
        return sources

    def generate(self, frames: int, connections: int = 8) -> Path:
        """Return a capture of MTU-sized packets."""
        options = ["--frames", frames, "--connections", connections]
        return make_once(
            self.scratch / f"generated-{frames}-{connections}.pcap",
            lambda path: run([sys.executable, HERE / "generate.py", path, *options]),
        )


class Pcap:
    """The records of a classic pcap, which begins with `header`; anything else ends the benchmark."""

    def __init__(self, source: BinaryIO) -> None:
        self.header = source.read(24)
        self.order: Literal["little", "big"] = "little" if self.header[3:4] == b"\xa1" else "big"
        if int.from_bytes(self.header[:4], self.order) not in (0xA1B2C3D4, 0xA1B23C4D):
            sys.exit(f"{source.name} is not a classic pcap; convert it with: editcap -F pcap IN OUT")
        self._source = source

    def __iter__(self) -> Iterator[bytes]:
        """Yield each record: 16 bytes with seconds, fraction and sizes, then the packet; end at a cut one."""
        while len(head := self._source.read(16)) == 16:
            size = int.from_bytes(head[8:12], self.order)
            packet = self._source.read(size)
            if len(packet) < size:
                return
            yield head + packet


def concatenate(path: Path, out: Path, copies: int = COPIES) -> None:
    """Write copies of a capture, each later than the previous one and with other connections."""
    with out.open("wb") as target:
        start = end = 0
        for copy in range(copies):
            with path.open("rb") as source:
                capture = Pcap(source)
                target.write(b"" if copy else capture.header)
                shift = copy * (end - start + 1)
                for record in map(bytearray, capture):
                    seconds = int.from_bytes(record[:4], capture.order)
                    if copy == 0:
                        start, end = min(start or seconds, seconds), max(end, seconds)
                    record[:4] = (seconds + shift).to_bytes(4, capture.order)
                    readdress(record, copy)
                    target.write(record)


def readdress(record: bytearray, copy: int) -> None:
    """Change the second byte of both IP addresses of an Ethernet packet, differently for each copy."""
    at, size = {b"\x08\x00": (42, 4), b"\x86\xdd": (38, 16)}.get(bytes(record[28:30]), (0, 0))
    if size and len(record) >= at + 2 * size:
        record[at + 1] ^= copy
        record[at + size + 1] ^= copy


def rotate(paths: Sequence[Path], directory: Path, size: int) -> None:
    """Write captures as files of about `size` bytes, as a capturing tool with rotation does."""
    directory.mkdir()
    for path in paths:
        with path.open("rb") as source, ExitStack() as stack:
            capture = Pcap(source)
            target: BinaryIO | None = None
            for number, record in enumerate(capture):
                if target is None or target.tell() + len(record) > size:
                    stack.close()
                    file = directory / f"{path.stem}-{number:09}.pcap"
                    target = stack.enter_context(file.open("wb"))
                    target.write(capture.header)
                target.write(record)


def split_by_host(path: Path, directory: Path, hosts: int = 2) -> None:
    """Write a capture as those of several hosts, each of which sees some of the connections."""
    directory.mkdir()
    with path.open("rb") as source, ExitStack() as stack:
        capture = Pcap(source)
        files = [directory / f"host-{number}.pcap" for number in range(hosts)]
        targets = [stack.enter_context(file.open("wb")) for file in files]
        for target in targets:
            target.write(capture.header)
        for record in capture:
            port = max(int.from_bytes(record[at : at + 2], "big") for at in (50, 52))  # that of the client
            targets[port % hosts].write(record)
