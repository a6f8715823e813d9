"""pcap and pcapng files, written here byte by byte, read in any pieces and in any state."""

from __future__ import annotations

import gzip
import io
import struct
from collections.abc import Callable, Iterable, Sequence

import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st
from segments import (
    ETHERNET,
    PCAP_MAGICS,
    START_NS,
    block,
    enhanced,
    interface,
    old_packet,
    option,
    pcap,
    pcap_header,
    pcap_record,
    pieces,
    section,
    simple,
    statistics,
)

from pulsarctl_wire.capture.compression import CHUNK, FREE_BYTES, MAX_RATIO, reader
from pulsarctl_wire.capture.files import (
    LARGEST_PACKET,
    MAX_INTERFACES,
    PacketReader,
    RawPacket,
    is_capture,
    read_packets,
)
from pulsarctl_wire.capture.sources import peel
from pulsarctl_wire.errors import CaptureError, DamagedCapture

RAW = 101
SECOND = 1_000_000_000

Outcome = tuple[list[RawPacket], CaptureError | None]


def collect(data: bytes, sizes: Sequence[int] = (CHUNK,)) -> Outcome:
    """The packets of a file read in pieces of `sizes`, and the error that ends it."""
    return gather(lambda: read_packets(b"", pieces(data, sizes)))


def gather(packets: Callable[[], Iterable[RawPacket]]) -> Outcome:
    found: list[RawPacket] = []
    try:
        for packet in packets():
            found.append(packet)  # noqa: PERF402 (what came before the error counts)
    except CaptureError as error:
        return found, error
    return found, None


def read(data: bytes, sizes: Sequence[int] = (CHUNK,)) -> list[RawPacket]:
    packets, error = collect(data, sizes)
    assert error is None
    return packets


def compressed(data: bytes) -> Outcome:
    """The packets of a compressed file."""
    stream, head = peel(io.BytesIO(data))
    return gather(lambda: read_packets(head, reader(stream)))


PACKETS: list[RawPacket] = [
    (START_NS, ETHERNET, b"first", 5),
    (START_NS + 1000, ETHERNET, b"", 0),
    (START_NS + 2000, ETHERNET, bytes(range(60)), 1514),
    (START_NS, ETHERNET, b"going back in time", 18),
]

# ---- pcap ----

payloads = st.binary(max_size=40)
sizes = st.lists(st.integers(1, 50), min_size=1, max_size=20)


@st.composite
def packet_lists(draw: st.DrawFn, unit: int = 1000) -> list[RawPacket]:
    times = st.integers(0, 2**32 * SECOND // unit - 1).map(lambda ticks: ticks * unit)
    made = draw(st.lists(st.tuples(times, payloads, st.integers(0, 3000)), max_size=8))
    return [(time, ETHERNET, data, len(data) + more) for time, data, more in made]


@pytest.mark.parametrize(("order", "nanoseconds"), PCAP_MAGICS)
@given(data=st.data(), sizes=sizes)
@settings(max_examples=50)
def test_any_pcap_in_any_pieces(order: str, nanoseconds: bool, data: st.DataObject, sizes: list[int]) -> None:
    packets = data.draw(packet_lists(1 if nanoseconds else 1000))
    assert read(pcap(packets, order, nanoseconds), sizes) == packets


def test_pcap_magics_are_those_of_the_format() -> None:
    assert {magic.hex() for magic in PCAP_MAGICS.values()} == {"d4c3b2a1", "a1b2c3d4", "4d3cb2a1", "a1b23c4d"}


def test_head_already_read_is_part_of_the_file() -> None:
    file = pcap(PACKETS)
    for size in range(len(file) + 1):
        assert list(read_packets(file[:size], pieces(file[size:], [7]))) == PACKETS


@pytest.mark.parametrize("order", ["<", ">"])
def test_pcap_link_type_without_the_checksum_bits(order: str) -> None:
    header = pcap_header(order, link=RAW | 0x2400_0000)
    assert read(header + pcap_record((0, RAW, b"x", 1), order)) == [(0, RAW, b"x", 1)]


def test_pcap_without_packets() -> None:
    assert read(pcap([])) == []


def test_packet_larger_than_a_chunk() -> None:
    packets: list[RawPacket] = [(0, ETHERNET, bytes(3 * CHUNK + 1), 3 * CHUNK + 1), PACKETS[0]]
    assert read(pcap(packets)) == packets


def test_packet_is_given_as_soon_as_it_has_arrived() -> None:
    chunks = [pcap(PACKETS[:1]), pcap_record(PACKETS[2])]

    def one_at_a_time() -> bytes:
        return chunks.pop(0)

    packets = iter(read_packets(b"", one_at_a_time))
    assert (next(packets), len(chunks)) == (PACKETS[0], 1)
    assert (next(packets), len(chunks)) == (PACKETS[2], 0)


@pytest.mark.parametrize(("order", "nanoseconds"), PCAP_MAGICS)
def test_pcap_cut_at_every_offset(order: str, nanoseconds: bool) -> None:
    file = pcap(PACKETS, order, nanoseconds)
    ends = [24]
    for packet in PACKETS:
        ends.append(ends[-1] + 16 + len(packet[2]))
    for cut in range(len(file) + 1):
        packets, error = collect(file[:cut], [11])
        assert packets == PACKETS[: sum(end <= cut for end in ends[1:])]
        if cut in ends:
            assert error is None
        elif cut > 24:
            assert isinstance(error, DamagedCapture)
            assert f"the packet at byte {max(end for end in ends if end <= cut)}" in str(error)
        else:
            assert type(error) is CaptureError
            assert ("header" if cut >= 4 else "not a pcap") in str(error)


@pytest.mark.parametrize("size", [LARGEST_PACKET + 1, 0x7FFFFFFF, 0xFFFFFFFF])
def test_pcap_record_of_absurd_length(size: int) -> None:
    record = struct.pack("<IIII", 0, 0, size, size)
    packets, error = collect(pcap(PACKETS) + record + bytes(100))
    assert packets == PACKETS
    assert isinstance(error, DamagedCapture)
    assert str(size) in str(error)


def test_absurd_length_is_noticed_without_reading_on() -> None:
    chunks = [pcap(PACKETS) + struct.pack("<IIII", 0, 0, 2**31, 2**31)]

    def read_once() -> bytes:
        return chunks.pop(0)  # fails when asked again

    packets, error = gather(lambda: read_packets(b"", read_once))
    assert packets == PACKETS
    assert isinstance(error, DamagedCapture)


# ---- pcapng ----


def pcapng(order: str = "<") -> tuple[list[bytes], list[RawPacket]]:
    """Blocks of a file of two sections (the second of the other byte order), and the packets in it."""
    other = {"<": ">", ">": "<"}[order]
    resolution = option(order, 9, b"\x09") + option(order, 0, b"")
    blocks = [
        section(order, option(order, 4, b"editor")),
        interface(order, ETHERNET, 0, option(order, 2, b"eth0")),
        interface(order, RAW, 64, resolution),
        block(order, 4, bytes(20)),  # name resolution
        enhanced(START_NS // 1000, b"one", 3, 0, order, option(order, 1, b"comment") + option(order, 0, b"")),
        enhanced(START_NS + 7, b"two!", 1000, 1, order),
        block(order, 0xBAD, bytes(8)),  # custom
        simple(b"three", 5, order),
        old_packet(START_NS // 1000, b"four", 4, 0, order),
        block(order, 5, bytes(12)),  # interface statistics
        section(other),
        interface(other, 113, 8),
        simple(b"eight is", 90, other),
        enhanced(START_NS // 1000 + 2**32, b"", 0, 0, other),
        block(other, 0x80000001, b""),  # for local use
    ]
    packets: list[RawPacket] = [
        (START_NS, ETHERNET, b"one", 3),
        (START_NS + 7, RAW, b"two!", 1000),
        (None, ETHERNET, b"three", 5),
        (START_NS, ETHERNET, b"four", 4),
        (None, 113, b"eight is", 90),
        (START_NS + 2**32 * 1000, 113, b"", 0),
    ]
    return blocks, packets


@pytest.mark.parametrize("order", ["<", ">"])
@given(sizes=sizes)
@example(sizes=[1])
@settings(max_examples=50)
def test_pcapng_of_all_blocks_in_any_pieces(order: str, sizes: list[int]) -> None:
    blocks, packets = pcapng(order)
    assert read(b"".join(blocks), sizes) == packets


@pytest.mark.parametrize("order", ["<", ">"])
@given(data=st.data(), sizes=sizes)
@settings(max_examples=50)
def test_any_pcapng_in_any_pieces(order: str, data: st.DataObject, sizes: list[int]) -> None:
    file = section(order) + interface(order)
    packets = data.draw(packet_lists())
    for time_ns, _, content, length in packets:
        make = data.draw(st.sampled_from([enhanced, old_packet]))
        file += make((time_ns or 0) // 1000, content, length, 0, order)
    assert read(file, sizes) == packets


@pytest.mark.parametrize("order", ["<", ">"])
def test_pcapng_cut_at_every_offset(order: str) -> None:
    blocks, packets = pcapng(order)
    file = b"".join(blocks)
    ends = [0]
    for made in blocks:
        ends.append(ends[-1] + len(made))
    holds_packet = [
        made[:4] in {struct.pack(o + "I", kind) for o in "<>" for kind in (2, 3, 6)} for made in blocks
    ]
    for cut in range(len(file) + 1):
        found, error = collect(file[:cut], [13])
        whole = sum(end <= cut for end in ends[1:])
        assert found == packets[: sum(holds_packet[:whole])]
        if cut < 4:
            assert type(error) is CaptureError
        elif cut in ends:
            assert error is None
        else:
            assert isinstance(error, DamagedCapture)


@pytest.mark.parametrize(
    ("resolution", "ticks", "time_ns"),
    [
        (0, 5, 5 * SECOND),
        (3, 1_234, 1_234_000_000),
        (6, 1_234, 1_234_000),
        (9, 1_234, 1_234),
        (12, 1_234_999, 1_234),
        (0x80, 5, 5 * SECOND),
        (0x80 | 1, 3, 1_500_000_000),
        (0x80 | 10, 1024 + 512, 1_500_000_000),
        (0x80 | 32, (7 << 32) + (1 << 31), 7_500_000_000),
        (127, 2**64 - 1, 0),
    ],
)
@pytest.mark.parametrize("order", ["<", ">"])
def test_timestamp_resolution(order: str, resolution: int, ticks: int, time_ns: int) -> None:
    options = option(order, 2, b"any") + option(order, 9, bytes([resolution]))
    file = section(order) + interface(order, options=options) + enhanced(ticks, b"x", 1, 0, order)
    assert read(file) == [(time_ns, ETHERNET, b"x", 1)]


@pytest.mark.parametrize("seconds", [0, 1, 1_700_000_000, -3])
@pytest.mark.parametrize("order", ["<", ">"])
def test_timestamp_offset(order: str, seconds: int) -> None:
    options = option(order, 14, struct.pack(order + "q", seconds)) + option(order, 9, b"\x03")
    file = section(order) + interface(order, options=options) + enhanced(5_250, b"x", 1, 0, order)
    assert read(file) == [((seconds + 5) * SECOND + 250_000_000, ETHERNET, b"x", 1)]


def test_options_behind_the_end_of_options_do_not_count() -> None:
    options = option("<", 0, b"") + option("<", 9, b"\x00")
    file = section() + interface(options=options) + enhanced(1, b"x", 1)
    assert read(file) == [(1000, ETHERNET, b"x", 1)]


def test_simple_packets_are_cut_by_the_snap_length_of_the_first_interface() -> None:
    file = section() + interface(snap=5) + interface(link=RAW)
    assert read(file + simple(b"abcde", 3000)) == [(None, ETHERNET, b"abcde", 3000)]
    assert read(file + simple(b"abc", 3)) == [(None, ETHERNET, b"abc", 3)]


def test_padding_is_no_data() -> None:
    for size in range(9):
        data = b"\xff" * size
        file = (
            section() + interface() + enhanced(0, data, size) + simple(data, size) + old_packet(0, data, size)
        )
        assert [packet[2] for packet in read(file)] == [data] * 3


def test_sections_forget_the_interfaces_before_them() -> None:
    one = section() + interface(link=RAW) + interface(link=113) + enhanced(0, b"x", 1, 1)
    packets, error = collect(one + section(">") + interface(">") + enhanced(0, b"y", 1, 1, ">"))
    assert packets == [(0, 113, b"x", 1)]
    assert isinstance(error, DamagedCapture)


def test_a_section_has_so_many_interfaces_and_no_more() -> None:
    blocks = section() + interface() * MAX_INTERFACES
    packets, error = collect(blocks + enhanced(0, b"x", 1, MAX_INTERFACES - 1) + interface())
    assert packets == [(0, ETHERNET, b"x", 1)]
    assert isinstance(error, DamagedCapture)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(struct.pack("<II", 6, 0) + bytes(40), id="block of no bytes"),
        pytest.param(struct.pack("<II", 6, 8) + bytes(40), id="block shorter than its frame"),
        pytest.param(struct.pack("<II", 6, 33) + bytes(40), id="block of an odd length"),
        pytest.param(struct.pack("<II", 6, 0x7FFFFFFC) + bytes(40), id="block of 2 GiB"),
        pytest.param(struct.pack("<II", 6, 0xFFFFFFFC) + bytes(40), id="block of 4 GiB"),
        pytest.param(enhanced(0, b"x", 1, number=7), id="unknown interface"),
        pytest.param(old_packet(0, b"x", 1, number=7), id="unknown interface of an old block"),
        pytest.param(block("<", 6, struct.pack("<IIIII", 0, 0, 0, 100, 100)), id="data beyond the block"),
        pytest.param(block("<", 2, struct.pack("<HHIIII", 0, 0, 0, 0, 2**31, 9)), id="old data beyond it"),
        pytest.param(block("<", 6, bytes(16)), id="block without its fields"),
        pytest.param(block("<", 3, b""), id="simple block without its field"),
        pytest.param(block("<", 1, b"\x01\x00"), id="interface without its fields"),
        pytest.param(interface(options=struct.pack("<HH", 9, 1)), id="option without its value"),
        pytest.param(interface(options=struct.pack("<HHI", 14, 8, 0)), id="option beyond the block"),
        pytest.param(block("<", 0x0A0D0D0A, bytes(16)), id="section without byte order"),
    ],
)
def test_damaged_pcapng_gives_what_is_before_the_damage(damage: bytes) -> None:
    start = section() + interface() + enhanced(1, b"good", 4)
    packets, error = collect(start + damage + enhanced(2, b"lost", 4), [5])
    assert packets == [(1000, ETHERNET, b"good", 4)]
    assert isinstance(error, DamagedCapture)
    assert str(error)


def test_packets_before_any_interface() -> None:
    for made in (enhanced(0, b"x", 1), old_packet(0, b"x", 1), simple(b"x", 1)):
        assert isinstance(collect(section() + made)[1], DamagedCapture)


@pytest.mark.parametrize(("order", "other"), ["<>", "><"])
def test_packets_dropped_by_the_kernel(order: str, other: str) -> None:
    """Counts grow; of each interface of each section the last one is what counts, wherever reading begins."""
    blocks = [
        section(order),
        interface(order),
        statistics(3, 0, order),
        interface(order),
        simple(b"one", 3, order),
        statistics(5, 0, order),
        statistics(2, 1, order, code=7),
        statistics(4, 0, order),  # less than before
        statistics(9, 2, order),  # of no interface
        statistics(2**64 - 1, 1, order),  # not known
        block(order, 5, bytes(8)),
        simple(b"two", 3, order),
        section(other),
        interface(other),
        simple(b"three", 5, other),
        statistics(10, 0, other),
    ]
    data = b"".join(blocks)
    whole = read_packets(b"", io.BytesIO(data).read)
    assert [packet[2] for packet in whole] == [b"one", b"two", b"three"]
    assert whole.dropped == 5 + 2 + 10
    for number in range(1, len(blocks)):
        cut = len(b"".join(blocks[:number]))
        first = read_packets(b"", io.BytesIO(data).read, cut)
        list(first)
        rest = PacketReader(b"", io.BytesIO(data[cut:]).read, first.layout, cut)
        list(rest)
        assert first.dropped + rest.dropped == whole.dropped


# ---- what is no capture ----


@pytest.mark.parametrize(
    "data",
    [b"", b"\xd4", b"PK\x03\x04" + bytes(30), b"\xd4\xc3\xb2\xa2" + bytes(30), b"\n\r\r\r" + bytes(30)],
)
def test_no_capture(data: bytes) -> None:
    packets, error = collect(data)
    assert packets == []
    assert type(error) is CaptureError
    assert "not a pcap or pcapng file" in str(error)


def test_captures_are_told_by_four_bytes() -> None:
    assert all(is_capture(magic) for magic in PCAP_MAGICS.values())
    assert is_capture(section("<")[:4])
    assert is_capture(section(">")[:4])
    assert not is_capture(b"\x1f\x8b\x08\x00")
    assert not is_capture(b"")


def mutated(file: bytes, changes: list[tuple[int, int]]) -> bytes:
    changed = bytearray(file)
    for at, byte in changes:
        changed[at % len(file)] = byte
    return bytes(changed)


changes = st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=8)


@given(changes=changes, kind=st.integers(0, 5), sizes=sizes)
@settings(max_examples=300)
def test_mutated_captures_raise_nothing_but_capture_errors(
    changes: list[tuple[int, int]], kind: int, sizes: list[int]
) -> None:
    files = [pcap(PACKETS, *flavour) for flavour in PCAP_MAGICS]
    files += [b"".join(pcapng(order)[0]) for order in "<>"]
    changed = mutated(files[kind], changes)
    packets, error = collect(changed, sizes)
    assert error is None or str(error)
    assert sum(len(packet[2]) for packet in packets) <= len(changed)
    assert collect(changed)[0] == packets


@given(st.binary(max_size=200), st.sampled_from([*PCAP_MAGICS.values(), section()[:12], section(">")[:12]]))
def test_anything_behind_a_magic_raises_nothing_but_capture_errors(rest: bytes, magic: bytes) -> None:
    packets, error = collect(magic + rest)
    assert error is None or str(error)
    assert sum(len(packet[2]) for packet in packets) <= len(rest)


# ---- compression ----


def in_frames(data: bytes, size: int) -> bytes:
    """zstd with a frame for each `size` bytes, a skippable one after the first."""
    compressor = zstandard.ZstdCompressor(write_checksum=True)
    frames = [compressor.compress(data[at : at + size]) for at in range(0, len(data), size)]
    return frames[0] + struct.pack("<II", 0x184D2A50, 3) + b"abc" + b"".join(frames[1:])


COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "gzip of two members": lambda data: gzip.compress(data[:50]) + gzip.compress(data[50:]),
    "gzip padded with zeros": lambda data: gzip.compress(data) + bytes(100),
    "zstd": zstandard.ZstdCompressor().compress,
    "zstd with checksum": zstandard.ZstdCompressor(write_checksum=True).compress,
    "zstd without size": lambda data: zstandard.ZstdCompressor(write_content_size=False).compress(data),
    "zstd of many frames": lambda data: in_frames(data, 50),
}


@pytest.mark.parametrize("how", COMPRESSIONS)
def test_compressed_captures(how: str) -> None:
    large: list[RawPacket] = [*PACKETS, (0, ETHERNET, bytes(range(256)) * 2000, 512_000), PACKETS[0]]
    for packets in ([], PACKETS, large):
        assert compressed(COMPRESSIONS[how](pcap(packets))) == (packets, None)


@pytest.mark.parametrize("compress", [zstandard.compress, lambda data: gzip.compress(gzip.compress(data))])
def test_a_source_that_expands_too_much_breaks_off(compress: Callable[[bytes], bytes]) -> None:
    file = compress(bytes(FREE_BYTES) + bytes(FREE_BYTES))
    stream, head = peel(io.BytesIO(file))
    sizes = [len(head)]
    with pytest.raises(DamagedCapture, match="expands more than"):
        sizes.extend(map(len, iter(reader(stream), b"")))
    assert sum(sizes) <= FREE_BYTES + MAX_RATIO * len(file)


def test_uncompressed_data_is_left_alone() -> None:
    stream = io.BytesIO(pcap(PACKETS))
    assert peel(stream)[0] is stream


@pytest.mark.parametrize("how", ["gzip", "gzip of two members"])
def test_gzip_cut_at_every_offset(how: str) -> None:
    file = COMPRESSIONS[how](pcap(PACKETS))
    whole = 0 if how == "gzip" else len(gzip.compress(pcap(PACKETS)[:50]))
    for cut in set(range(4, len(file))) - {whole}:
        packets, error = compressed(file[:cut])
        assert packets == PACKETS[: len(packets)]
        assert isinstance(error, DamagedCapture)
        assert "compressed" in str(error)


@pytest.mark.parametrize("how", ["zstd", "zstd with checksum", "zstd without size"])
def test_zstd_cut_at_every_offset(how: str) -> None:
    file = COMPRESSIONS[how](pcap(PACKETS))
    for cut in range(4, len(file)):
        packets, error = compressed(file[:cut])
        assert packets == PACKETS[: len(packets)]
        assert isinstance(error, DamagedCapture)
        assert "compressed" in str(error)


def test_zstd_cut_inside_a_later_frame() -> None:
    compress = zstandard.ZstdCompressor().compress
    first, second = compress(pcap(PACKETS[:2])), compress(pcap_record(PACKETS[2]))
    assert compressed(first + second) == (PACKETS[:3], None)
    for cut in range(len(first) + 1, len(first + second)):
        packets, error = compressed((first + second)[:cut])
        assert packets == PACKETS[:2]
        assert isinstance(error, DamagedCapture)
        assert "compressed" in str(error)


@pytest.mark.parametrize("how", COMPRESSIONS)
@given(changes=changes)
@settings(max_examples=60)
def test_mutated_compressed_captures_raise_nothing_but_capture_errors(
    how: str, changes: list[tuple[int, int]]
) -> None:
    changed = mutated(COMPRESSIONS[how](pcap(PACKETS)), changes)
    packets, error = compressed(changed)
    assert error is None or str(error)
    assert len(packets) < 1000


def test_reader_gives_what_there_is() -> None:
    class Pipe(io.RawIOBase):
        """Three bytes at a time."""

        def __init__(self, data: bytes) -> None:
            self.left = data

        def readable(self) -> bool:
            return True

        def read(self, size: int = -1, /) -> bytes:
            given, self.left = self.left[:3], self.left[3:]
            return given

    read = reader(Pipe(b"abcdefgh"))  # type: ignore[arg-type]
    assert [read(), read(), read(), read()] == [b"abc", b"def", b"gh", b""]
