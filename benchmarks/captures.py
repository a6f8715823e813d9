"""Captures to measure decoders with: generated, unpacked, cut, copied; and tshark, which reads them."""

import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import zstandard

from benchmarks.harness import pwire, run

HERE: Final = Path(__file__).resolve().parent
SAMPLES: Final = HERE.parent / "samples" / "pcaps"
COPIES: Final = 10
"""How often a capture is concatenated with itself, to see whether memory grows."""

FOUR: Final = ("frame.number", "frame.time_epoch", "tcp.stream", "apache.pulsar.cmd.type")
FOURTEEN: Final = (
    *FOUR,
    *("apache.pulsar.frame_size", "apache.pulsar.topic", "apache.pulsar.subscription"),
    *("apache.pulsar.producer_id", "apache.pulsar.producer_name", "apache.pulsar.sequence_id"),
    *("apache.pulsar.consumer_id", "apache.pulsar.message_id", "apache.pulsar.request_id"),
    "apache.pulsar.publish_time",
)


# -- tshark


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


def fields(names: Sequence[str]) -> tuple[str, ...]:
    """Return tshark's options to print these fields."""
    return ("-T", "fields", *(word for name in names for word in ("-e", name)))


def tshark(path: Path, *options: str) -> dict[str, list[str]]:
    """Return tshark as a contender that decodes a capture; none if it is not installed.

    It puts TCP segments in order, as pwire does: by default it does not, and a single swapped packet makes it
    wait for a frame that never ends.
    """
    words = ["-n", "-o", "tcp.reassemble_out_of_order:TRUE", "-r", str(path), *options]
    return {"tshark": [command, *words]} if (command := _tshark()) else {}


def frames_of_tshark(path: Path) -> int:
    """Count the frames that tshark finds: it prints the commands of each packet, separated by commas."""
    for command in tshark(path, *fields(["apache.pulsar.cmd.type"])).values():
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            return sum(line.count(b",") + 1 for line in process.stdout if line.strip())
    return 0


def frames_of_pwire(path: Path) -> int:
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
        return Input(self.name, path, frames_of_pwire(path))


def inputs(captures: Sequence[Path], frames: int, scratch: Path) -> list[Input]:
    """Return the captures, unpacked, as "real …", and a generated one of so many frames as "MTU-sized"."""
    sources = []
    for number, path in enumerate(captures):
        name = f"real {path.name}"
        if path.suffix == ".zst":
            unpacked = scratch / f"{number}-{path.stem}"
            with path.open("rb") as source, unpacked.open("wb") as target:
                zstandard.ZstdDecompressor().copy_stream(source, target)
            path = unpacked
        sources.append(Input(name, path, frames_of_pwire(path)))
    if frames:
        sources.append(Input("MTU-sized", generated(scratch, frames), frames))
    return sources


def made(path: Path, make: Callable[[Path], object]) -> Path:
    """Return a file or directory, which is made if it does not exist yet."""
    if not path.exists():
        make(path)
    return path


def generated(scratch: Path, frames: int, connections: int = 8) -> Path:
    """Return a generated capture of MTU-sized packets."""
    options = ["--frames", frames, "--connections", connections]
    return made(
        scratch / f"generated-{frames}-{connections}.pcap",
        lambda path: run([sys.executable, HERE / "generate.py", path, *options]),
    )


class Pcap:
    """The records of a classic pcap, which begins with `header`; raises ValueError if it is not one."""

    def __init__(self, source: BinaryIO) -> None:
        self.header = source.read(24)
        self.order = {b"\xd4\xc3\xb2\xa1": "<", b"\x4d\x3c\xb2\xa1": "<"}.get(self.header[:4], ">")
        if self.order == ">" and self.header[:4] not in (b"\xa1\xb2\xc3\xd4", b"\xa1\xb2\x3c\x4d"):
            raise ValueError(f"{source.name} is not a classic pcap; convert it with: editcap -F pcap IN OUT")
        self._source = source

    def __iter__(self) -> Iterator[bytes]:
        """Yield each record: 16 bytes with seconds, fraction and sizes, then the packet; end at a cut one."""
        while len(head := self._source.read(16)) == 16:
            (size,) = struct.unpack_from(f"{self.order}I", head, 8)
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
                time = struct.Struct(f"{capture.order}I")
                shift = copy * (end - start + 1)
                for record in map(bytearray, capture):
                    (seconds,) = time.unpack_from(record)
                    if copy == 0:
                        start, end = min(start or seconds, seconds), max(end, seconds)
                    time.pack_into(record, 0, seconds + shift)
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
