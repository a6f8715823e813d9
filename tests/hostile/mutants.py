"""Mutants: captures changed at random, in their bytes, their packets, and the frames that they carry.

make(7, 3)    mutant 3 of seed 7: what it was made from, and the bytes of a file of at most 1 MB

python mutants.py SEED SECONDS FOLDER    tries mutants of that seed, prints those that break a promise and
                                         leaves them in FOLDER; exit code 1 if there are any

PWIRE_CAPTURES may name more folders of captures to change (separated as in PATH).
"""

import gzip
import io
import os
import shlex
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Final, NamedTuple, TypeVar

import zstandard
from crc32c import crc32c
from inputs import SIZE, START_NS
from limited import FORMS, Run, Runs, limited

from pulsarctl_wire.capture.files import RawPacket, is_capture, read_packets
from pulsarctl_wire.capture.packets import Dissector
from pulsarctl_wire.capture.recording import SessionWriter
from pulsarctl_wire.capture.sources import Decoder, Source, unpack
from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.wire.frame import Connection, Frame
from pulsarctl_wire.wire.frame_layout import MAGIC_CHECKSUM
from pulsarctl_wire.wire.varint import GROUP, SIZED, VARINT, fields, sized_field, tag, varint

HERE: Final = Path(__file__).parent
FOLDERS: Final = [
    HERE,
    HERE.parent.parent / "samples" / "pcaps",
    *map(Path, filter(None, os.environ.get("PWIRE_CAPTURES", "").split(os.pathsep))),
]
KINDS: Final = (".pcap", ".pcapng", ".bin", ".hex", ".gz", ".zst")
WEIGHT: Final = 20
"""How many times as often as a hostile file, which may take seconds, a sample is changed."""

MANY: Final = 25
"""Mutants that a process reads."""

BYTES: Final = (0, 1, 0x7F, 0x80, 0xFE, 0xFF)
NUMBERS: Final = (0, 1, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 5 * 2**20, 2**63 - 1, 2**64 - 1)
LENGTHS: Final = (1, 1, 2, 4, 4, 8, 16, 64, 256, 1500, 10_000)


_Item = TypeVar("_Item")


class Base(NamedTuple):
    """A file that is changed: its bytes as they are, unpacked, its packets, and its frames."""

    name: str
    packed: bytes
    data: bytes
    packets: list[RawPacket]
    frames: list["Sent"]
    weight: int


class Sent(NamedTuple):
    """A frame to be sent on a connection in a direction."""

    connection: int
    to_broker: bool
    raw: bytes


@cache
def bases() -> list[Base]:
    """All files of FOLDERS that hold at most SIZE bytes when unpacked, by name."""
    paths = [path for folder in FOLDERS for path in sorted(folder.iterdir()) if path.suffix in KINDS]
    return list(filter(None, map(_base, paths)))


def _base(path: Path) -> Base | None:
    packed = path.read_bytes()
    if len(packed) > SIZE:
        return None
    data = b"".join(_until_damaged(_unpacked(packed)))
    if len(data) > SIZE:
        return None
    packets = list(_until_damaged(iter(read_packets(data, bytes)))) if is_capture(data) else []
    decoder = Decoder()
    events = _until_damaged(decoder.read(Source(path.name, io.BytesIO(data), len(data))))
    frames = [
        Sent(event.connection.index, event.to_broker, event.raw)
        for some in (*events, *decoder.finish())
        for event in some
        if isinstance(event, Frame)
    ]
    return Base(path.name, packed, data, packets, frames, 1 if path.parent == HERE else WEIGHT)


def _unpacked(packed: bytes) -> Iterator[bytes]:
    stream = unpack(io.BytesIO(packed))
    size = 0
    while size <= SIZE and (piece := stream.read(SIZE)):
        size += len(piece)
        yield piece


def _until_damaged(items: Iterator[_Item]) -> Iterator[_Item]:
    with suppress(CaptureError):
        yield from items


def make(seed: int, number: int) -> tuple[str, bytes]:
    """The names of what a mutant was made from and how, and its bytes."""
    source = Random(f"{seed}/{number}")
    every = bases()
    base, other = source.choices(every, [each.weight for each in every], k=2)
    kind = source.choice(("bytes", "packets", "packets", "frames", "frames", "frames", "frames", "packed"))
    if kind == "packets" and base.packets:
        data = changed_packets(source, base)
    elif kind == "frames" and base.frames:
        data = changed_frames(source, base, other)
    else:
        data = changed(source, base.packed if kind == "packed" else base.data, other.data)
    if kind == "packed" or source.random() < 0.1:
        pack = source.choice((gzip.compress, zstandard.ZstdCompressor().compress))
        data = pack(data[:SIZE])
        data = changed(source, data, other.packed) if source.random() < 0.5 else data
    elif kind != "bytes" and source.random() < 0.1:
        data = changed(source, data, other.data)
    return f"{kind} of {base.name} ({other.name})", data[:SIZE]


def _several(source: Random) -> range:
    return range(source.choice((1, 1, 1, 2, 3, 5, 20)))


# -- bytes


def changed(source: Random, data: bytes, other: bytes = b"") -> bytes:
    """`data` with a few changes, which may be a splice with `other`."""
    made = bytearray(data)
    for _ in _several(source):
        at = source.randrange(len(made) + 1)
        stop = at + source.choice(LENGTHS)
        source.choice(_CHANGES)(source, made, at, stop)
        del made[SIZE:]
    if other and source.random() < 0.1:
        made[source.randrange(len(made) + 1) :] = other[source.randrange(len(other)) :]
    return bytes(made)


def _byte(source: Random, made: bytearray, at: int, stop: int) -> None:
    for index in range(at, min(stop, at + 4, len(made))):
        made[index] = source.choice((made[index] ^ 1 << source.randrange(8), *BYTES))


def _number(source: Random, made: bytearray, at: int, stop: int) -> None:
    """A number of 2, 4 or 8 bytes becomes another one: one beside it, of other byte order, an extreme."""
    size = source.choice((2, 4, 4, 4, 8))
    order = source.choice(("big", "little"))
    value = int.from_bytes(made[at : at + size], order)  # type: ignore[arg-type]
    value = source.choice((value - 1, value + 1, value * 2, len(made), *NUMBERS)) % (1 << 8 * size)
    new = value.to_bytes(size, order)  # type: ignore[arg-type]
    made[at : at + size] = new if source.random() < 0.8 else made[at : at + size][::-1]


def _delete(source: Random, made: bytearray, at: int, stop: int) -> None:
    del made[at:stop]


def _insert(source: Random, made: bytearray, at: int, stop: int) -> None:
    made[at:at] = source.choice((source.randbytes, bytes))(stop - at)


def _repeat(source: Random, made: bytearray, at: int, stop: int) -> None:
    made[at:at] = made[at:stop] * source.choice((1, 1, 2, 10, 100, 1000))


def _swap(source: Random, made: bytearray, at: int, stop: int) -> None:
    last = min(stop + source.choice(LENGTHS), len(made))
    made[at:last] = made[stop:last] + made[at:stop]


def _cut(source: Random, made: bytearray, at: int, stop: int) -> None:
    del made[at:]


_CHANGES: Final[list[Callable[[Random, bytearray, int, int], None]]] = [
    *(_byte, _byte, _byte, _number, _number, _number),
    *(_delete, _insert, _repeat, _swap, _cut),
]


# -- packets


def changed_packets(source: Random, base: Base) -> bytes:
    """A pcap file of the packets of `base`, of which some are changed, moved, repeated or missing."""
    packets = list(base.packets)
    for _ in _several(source):
        at = source.randrange(len(packets) + 1)
        stop = at + source.choice((1, 1, 2, 5, 20))
        action = source.randrange(9)
        if action == 0:
            del packets[at:stop]
        elif action == 1:
            packets[at:at] = packets[at:stop] * source.choice((1, 2, 50))
        elif action == 2:
            packets[at:stop] = source.sample(packets[at:stop], len(packets[at:stop]))
        elif action == 3:
            packets[at:at] = [packets.pop(source.randrange(len(packets)))] if packets else []
        else:
            packets[at:stop] = (changed_packet(source, packet) for packet in packets[at:stop])
    parts = [b"\xd4\xc3\xb2\xa1\x02\x00\x04\x00" + bytes(8) + b"\x00\x00\x04\x00"]
    parts.append(base.packets[0][1].to_bytes(4, "little"))
    for time_ns, _, data, length in packets:
        seconds, rest = divmod(time_ns or 0, 1_000_000_000)
        parts.append(struct.pack("<IIII", seconds % 2**32, rest // 1000, len(data), length))
        parts.append(data)
    return b"".join(parts)


def changed_packet(source: Random, packet: RawPacket) -> RawPacket:
    """The packet with another header or payload, cut, or at another time; no checksum or size is mended."""
    time_ns, link, data, length = packet
    segment = Dissector().segment(link, data, length)
    kind = source.randrange(6)
    if segment is None or kind == 0:
        return (time_ns, link, changed(source, data), length)
    if kind == 1:
        step = source.choice((-(10**6), -(10**9), 10**9, 10**15))
        return (max((time_ns or 0) + step, 0), link, data, length)
    if kind == 2:
        return (time_ns, link, data[: source.randrange(len(data) + 1)], length)
    tcp = data.find(struct.pack(">II", *segment[1:3]))
    if not 0 <= tcp < len(data) - 20:  # in other fragments
        return (time_ns, link, changed(source, data), length)
    made = bytearray(data)
    at = tcp + (made[tcp + 12] >> 4) * 4
    if kind == 3:
        made[tcp + 13] = source.choice((made[tcp + 13] ^ 1 << source.randrange(6), source.randrange(256)))
    elif kind == 4:
        where = tcp + source.choice((4, 4, 8))
        value = int.from_bytes(made[where : where + 4], "big") + source.choice((1, -1, 100, -1500, 2**31))
        made[where : where + 4] = (value % 2**32).to_bytes(4, "big")
    else:
        made[at:] = changed(source, bytes(made[at:]))
    return (time_ns, link, bytes(made), length)


# -- frames


def changed_frames(source: Random, base: Base, other: Base) -> bytes:
    """The frames of `base`, some changed, moved, repeated, missing, the other way: a capture, or bytes."""
    frames = list(base.frames)
    for _ in _several(source):
        at = source.randrange(len(frames) + 1)
        stop = at + source.choice((1, 1, 2, 5, 20))
        action = source.randrange(12)
        if action == 0:
            del frames[at:stop]
        elif action == 1:
            frames[at:at] = frames[at:stop] * source.choice((1, 2, 50))
        elif action == 2:
            frames[at:stop] = source.sample(frames[at:stop], len(frames[at:stop]))
        elif action == 3:
            frames[at:stop] = (each._replace(to_broker=not each.to_broker) for each in frames[at:stop])
        elif action == 4:
            frames[at:stop] = (each._replace(connection=source.randrange(3)) for each in frames[at:stop])
        elif action == 5:
            frames[at:at] = other.frames[: source.randrange(50)]
        else:
            frames[at:stop] = (each._replace(raw=changed_frame(source, each.raw)) for each in frames[at:stop])
    form = source.randrange(10)
    if form > 1:
        return b"".join(_capture(frames))
    raw = b"".join(each.raw for each in frames)[: SIZE // 4]
    if form:
        return raw
    rows = (raw[at : at + 16] for at in range(0, len(raw), 16))
    return b"".join(b"%08x: %s\n" % (16 * at, row.hex(" ").encode()) for at, row in enumerate(rows))


def _capture(frames: list[Sent]) -> Iterator[bytes]:
    file = io.BytesIO()
    writer = SessionWriter(file)
    connections = {each.connection: Connection(each.connection) for each in frames}
    for number, each in enumerate(frames):
        writer.carried(connections[each.connection], each.to_broker, each.raw, START_NS + number * 1000)
        if file.tell() > SIZE:
            break
    yield file.getvalue()


def changed_frame(source: Random, raw: bytes) -> bytes:
    """A frame whose command, metadata or payload is another one; sizes and checksum are right mostly."""
    size = int.from_bytes(raw[4:8], "big")
    command, entry = raw[8 : 8 + size], raw[8 + size :]
    kind = source.randrange(4)
    if kind == 0:
        return changed(source, raw)
    if kind == 1 or not entry:
        command = changed_message(source, command)
    else:
        entry = _changed_entry(source, entry)
    sizes = [4 + len(command) + len(entry), len(command)]
    if source.random() < 0.1:
        sizes[source.randrange(2)] += source.choice((-4, -1, 1, 4, 100, -sizes[0], 2**20))
    order = "little" if source.random() < 0.03 else "big"
    head = [(value % 2**32).to_bytes(4, order) for value in sizes]  # type: ignore[arg-type]
    return b"".join((*head, command, entry))


def _changed_entry(source: Random, entry: bytes) -> bytes:
    before, magic, checked = entry.partition(MAGIC_CHECKSUM)
    if not magic or len(checked) < 8:
        return changed(source, entry)
    size = int.from_bytes(checked[4:8], "big")
    metadata, payload = checked[8 : 8 + size], checked[8 + size :]
    if source.random() < 0.6:
        metadata = changed_message(source, metadata)
    else:
        payload = changed(source, payload)
    checked = b"".join((len(metadata).to_bytes(4, "big"), metadata, payload))
    crc = crc32c(checked) if source.random() < 0.9 else source.getrandbits(32)
    return b"".join((before, magic, crc.to_bytes(4, "big"), checked))


def changed_message(source: Random, data: bytes) -> bytes:
    """A protobuf message of which a field, or one in it, is another one; sizes around it are right."""
    found = [field for field in fields(data, 0, len(data)) if not field.depth and not field.problem]
    if not found:
        return changed(source, data) if data else _unknown(source)
    field = source.choice(found)
    whole, value = data[field.start : field.stop], data[field.at : field.stop]
    action = source.randrange(10)
    if action < 4 and field.wire == SIZED:
        change = changed_message if action < 3 else changed
        whole = sized_field(field.number, change(source, value))
    elif action < 4 and field.wire == VARINT:
        number = source.choice((field.value + 1, field.value - 1, *NUMBERS, source.getrandbits(64)))
        whole = tag(field.number, VARINT) + varint(number % 2**64)
    elif action == 4:
        whole = b""
    elif action == 5:
        whole *= source.choice((2, 2, 10, 1000, 20_000 // len(whole)))
    elif action == 6:
        whole += _unknown(source)
    elif action == 7:
        deep = source.choice((1, 2, 99, 100, 101, 1000))
        number = source.choice((field.number, 200, 2**29 - 1))
        whole = tag(number, GROUP) * deep + whole + tag(number, GROUP + 1) * deep
    elif action == 8:
        whole = tag(source.choice((field.number, source.randrange(1, 90))), source.randrange(8)) + value
    else:
        whole = changed(source, whole)
    return data[: field.start] + whole + data[field.stop :]


def _unknown(source: Random) -> bytes:
    """A field that the schema has not, many times maybe."""
    number = source.choice((source.randrange(90, 200), 2**29 - 1))
    field = source.choice(
        (
            sized_field(number, source.randbytes(source.choice((0, 3, 300)))),
            tag(number, VARINT) + varint(source.getrandbits(64)),
            tag(number, 1) + source.randbytes(8),
            tag(number, 5) + source.randbytes(4),
        )
    )
    return field * source.choice((1, 1, 1, 50, 2000))


# -- runs

_WAYS: Final = {
    **FORMS,
    "two passes": ["decode", "--two-pass"],
    "topic": ["decode", "--topic", "*", "-o", "json"],
}


def arguments(seed: int, number: int, path: Path) -> list[str]:
    """How `pwire` is called for a mutant in the file at `path`: in one of many ways, by the seed."""
    way = Random(f"{seed}/{number}/way").choice(list(_WAYS))
    out = [f"{path}.parquet"] if way == "table" else []
    return [*_WAYS[way], *out, str(path)]


class Find(NamedTuple):
    """A mutant that broke a promise: its number, what it was made from, how it was read, what came of it."""

    number: int
    origin: str
    arguments: list[str]
    run: Run

    def __str__(self) -> str:
        return (
            f"{self.run.broken()}: {self.origin}\n    pwire {shlex.join(self.arguments)}\n{self.run.stderr}"
        )


def try_some(pwire: Runs, seed: int, numbers: range, folder: Path) -> list[Find]:
    """Have a process read mutants, as files in `folder`; those that it does not get to go to another one."""
    finds = []
    while numbers:
        tried = []
        for number in numbers:
            path = folder / f"{seed}-{number}"
            origin, data = make(seed, number)
            path.write_bytes(data)
            tried.append((number, origin, arguments(seed, number, path)))
        runs = pwire(*(each[-1] for each in tried))
        finds += [Find(*each, run) for each, run in zip(tried, runs, strict=False) if run.broken()]
        numbers = numbers[len(runs) :]
    return finds


def explore(seed: int, seconds: float, folder: Path) -> int:
    """Try mutants for so long; print and keep those that break a promise. Gives how many these are."""
    end = time.monotonic() + seconds
    first = found = 0
    with limited() as pwire, tempfile.TemporaryDirectory() as scratch:
        while time.monotonic() < end:
            finds = try_some(pwire, seed, range(first, first + MANY), Path(scratch))
            first, found = first + MANY, found + len(finds)
            for find in finds:
                kept = Path(shutil.copy(find.arguments[-1], folder))
                told = find._replace(arguments=arguments(seed, find.number, kept))
                kept.with_suffix(".txt").write_text(f"{told}\n")
                print(told, flush=True)  # noqa: T201
            for path in Path(scratch).iterdir():
                path.unlink()
    print(f"seed {seed}: {first} mutants, {found} finds", flush=True)  # noqa: T201
    return found


if __name__ == "__main__":
    sys.exit(explore(int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])) > 0)
