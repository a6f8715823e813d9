"""What is written as pcapng is what was captured, and of chosen events exactly their packets."""

from __future__ import annotations

import io
import itertools
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scapy.utils import RawPcapNgReader
from segments import (
    ETHERNET,
    PING,
    PONG,
    START_NS,
    Tcp,
    captured,
    conversation,
    frames_of,
    packet_comments,
    pcap,
    pcapng_options,
    raws,
    send,
    troubles,
)

from pulsarctl_wire.capture import Decoder, Source, read_events, read_frames, writer
from pulsarctl_wire.capture.comments import About
from pulsarctl_wire.capture.files import RawPacket, read_packets
from pulsarctl_wire.capture.writer import EventWriter, PcapngWriter
from pulsarctl_wire.wire.frame import Connection, Event, Frame, Gap

RAW = 101
PAYLOADS = [bytes([65 + number]) * size for number, size in enumerate((10, 2000, 0, 5000, 10))]


def written(packets: list[RawPacket]) -> bytes:
    file = io.BytesIO()
    made = PcapngWriter(file)
    for packet in packets:
        made.write(packet)
    assert made.count == len(packets)
    return file.getvalue()


def read(data: bytes) -> list[RawPacket]:
    return list(read_packets(b"", io.BytesIO(data).read))


packet_lists = st.lists(
    st.tuples(
        st.integers(0, 2**63 - 1),
        st.sampled_from([0, ETHERNET, RAW, 113, 276, 65_535]),
        st.binary(max_size=70),
        st.integers(0, 3000),
    ).map(lambda made: (made[0], made[1], made[2], len(made[2]) + made[3])),
    max_size=10,
)


# ---- PcapngWriter ----


@given(packet_lists)
@example([])
@settings(max_examples=200)
def test_what_is_written_is_read_again(packets: list[RawPacket]) -> None:
    assert read(written(packets)) == packets


@given(packet_lists)
@settings(max_examples=50, deadline=None)
def test_what_is_written_is_read_by_scapy(packets: list[RawPacket]) -> None:
    reader: Any = RawPcapNgReader(io.BytesIO(written(packets)))  # type: ignore[arg-type]
    found = [
        ((about.tshigh << 32) + about.tslow, about.linktype, data, about.wirelen, about.tsresol)
        for data, about in reader
    ]
    assert found == [(*packet, 1_000_000_000) for packet in packets]


def test_the_bytes_of_a_small_file() -> None:
    assert written([(0x0123456789ABCDEF, RAW, b"abcde", 9)]).hex(" ", 4) == (
        "0a0d0d0a 1c000000 4d3c2b1a 01000000 ffffffff ffffffff 1c000000 "  # section
        "01000000 20000000 65000000 00000000 09000100 09000000 00000000 20000000 "  # interface, 10^-9
        "06000000 28000000 00000000 67452301 efcdab89 05000000 09000000 61626364 65000000 28000000"
    )


def test_a_file_without_packets_is_a_capture() -> None:
    assert read(written([])) == []


def test_one_interface_for_each_link_type() -> None:
    packets: list[RawPacket] = [(n, link, b"x", 1) for n, link in enumerate([RAW, 1, RAW, 113, 1, 113, RAW])]
    file = written(packets)
    assert file.count(b"\x01\0\0\0\x20\0\0\0") == 3
    assert read(file) == packets


def test_each_section_can_be_read_by_itself() -> None:
    file = io.BytesIO()
    made = PcapngWriter(file)
    made.write((1, RAW, b"one", 3))
    first = file.tell()
    made.begin()
    made.write((2, RAW, b"two", 3))
    assert read(file.getvalue()) == [(1, RAW, b"one", 3), (2, RAW, b"two", 3)]
    assert read(file.getvalue()[first:]) == [(2, RAW, b"two", 3)]
    assert made.count == 2


def test_the_bytes_of_statistics() -> None:
    """Of an interface without packets too."""
    file = io.BytesIO()
    PcapngWriter(file).write_statistics(RAW, 0x0123456789ABCDEF, 22_721, 350)
    assert file.getvalue()[60:].hex(" ", 4) == (
        "05000000 34000000 00000000 67452301 efcdab89 "
        "04000800 c1580000 00000000 05000800 5e010000 00000000 00000000 34000000"  # received, dropped
    )
    assert read(file.getvalue()) == []


def test_a_packet_without_time_is_of_the_epoch() -> None:
    assert read(written([(None, RAW, b"x", 1)])) == [(0, RAW, b"x", 1)]


def test_a_length_on_the_wire_is_never_less_than_what_was_captured() -> None:
    assert read(written([(1, RAW, b"abc", 0)])) == [(1, RAW, b"abc", 3)]


def test_a_packet_is_there_as_soon_as_it_is_written() -> None:
    file = io.BytesIO()
    made = PcapngWriter(file)
    for number in range(1, 4):
        made.write((number, RAW, b"x" * number, number))
        assert len(read(file.getvalue())) == made.count == number


def test_a_full_disk_is_an_oserror() -> None:
    class Full(io.RawIOBase):
        """Takes the head of a file and no more."""

        def __init__(self) -> None:
            self.room = 30

        def write(self, data: Any, /) -> int:
            self.room -= len(data)
            if self.room < 0:
                raise OSError(28, "No space left on device")
            return len(data)

    made = PcapngWriter(Full())  # type: ignore[arg-type]
    with pytest.raises(OSError, match="No space left"):
        made.write((0, RAW, b"x", 1))
    assert made.count == 0


# ---- EventWriter ----


def event(*packets: int, packet: int = 0) -> Event:
    made = Frame(PING, None, 18, Connection(0), True, packet=packet or (packets[-1] if packets else 0))
    made.packets = packets
    return made


def some(number: int, size: int = 10) -> RawPacket:
    return number * 1000, RAW, bytes([number % 256]) * size, size


def test_packets_of_events_are_written_once() -> None:
    file = io.BytesIO()
    made = EventWriter(file)
    for number in range(1, 8):
        made.see(number, some(number))
    made.take(event(2, 3))
    made.take(event(3, 4))
    made.take(event(packet=4))
    made.take(event(packet=7))
    made.take(Gap(5, Connection(0), True, packet=6))
    assert read(file.getvalue()) == [some(number) for number in (2, 3, 4, 7, 6)]
    assert (made.count, made.lost) == (5, 0)


def test_events_without_packets_write_nothing() -> None:
    file = io.BytesIO()
    made = EventWriter(file)
    made.see(1, some(1))
    made.take(event())
    made.take(Gap(5, Connection(0), True))
    assert (made.count, made.lost) == (0, 0)
    assert read(file.getvalue()) == []


def choose(packets: list[RawPacket], wanted: bytes) -> tuple[list[Event], bytes]:
    """The frames that contain `wanted`, and the file of their packets."""
    file = io.BytesIO()
    made = EventWriter(file)
    decoder = Decoder(tee=made.see)
    chosen: list[Event] = []
    batches = [*decoder.read(Source("it", io.BytesIO(pcap(packets))))]
    for found in (frame for events in [*batches, *decoder.finish()] for frame in frames_of(events)):
        if wanted in found.raw:
            chosen.append(found)
            made.take(found)
    assert made.lost == 0
    return chosen, file.getvalue()


@pytest.mark.parametrize("most", [100, 1448, 9000])
def test_chosen_frames_can_be_read_from_what_was_written(most: int) -> None:
    packets = captured(Tcp().whole(conversation(PAYLOADS), most))
    for wanted in (b"A" * 10, b"B" * 2000, b"D" * 5000, b"E" * 10):
        chosen, file = choose(packets, wanted)
        assert len(chosen) == 2  # SEND and MESSAGE
        numbers = sorted({number for frame in chosen for number in frame.packets or [frame.packet]})
        assert read(file) == [packets[number - 1] for number in numbers]
        assert [frame.raw for frame in read_frames(io.BytesIO(file)) if wanted in frame.raw] == raws(chosen)


def test_all_frames_give_all_packets_with_bytes() -> None:
    packets = captured(Tcp().whole(conversation(PAYLOADS), 500))
    _, file = choose(packets, b"")
    assert read(file) == [packet for packet in packets if len(packet[2]) > 54]
    events = list(read_events(io.BytesIO(file)))
    assert raws(events) == [raw for _, raw in conversation(PAYLOADS)]
    assert troubles(events) == []


def test_chosen_frames_that_came_out_of_order_can_be_read_from_what_was_written() -> None:
    tcp = Tcp()
    opening = tcp.handshake()
    one, two, three = (tcp.send(True, send(letter * 50, n)) for n, letter in enumerate((b"a", b"b", b"c")))
    packets = captured([*opening, three, two, one])
    for number, letter in ((6, b"a"), (5, b"b"), (4, b"c")):
        chosen, file = choose(packets, letter * 50)
        assert len(chosen) == 1
        assert read(file) == [packets[number - 1]]


def test_a_frame_found_by_a_search_can_be_read_from_what_was_written() -> None:
    """The capture begins inside a frame; what looks like a frame first, in packet 1, is none."""
    tcp = Tcp()
    tcp.sent[True] = 5000
    frame = send(b"x" * 1000)
    decoy = b"junk" * 5 + send(b"y" * 300)[:40]  # waits for 300 bytes, then its checksum is wrong
    data = decoy + frame + PONG + PONG
    cuts = [0, len(decoy) + 50, len(decoy) + 400, len(data)]
    packets = captured([tcp.send(True, data[a:b]) for a, b in itertools.pairwise(cuts)])
    chosen, file = choose(packets, frame)
    assert raws(chosen) == [frame]
    assert read(file) == packets


def test_old_packets_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "KEPT_BYTES", 10_000)
    file = io.BytesIO()
    made = EventWriter(file)
    for number in range(1, 101):
        made.see(number, some(number, 1000))
        assert sum(len(kept[2]) for kept in made._packets.values()) <= 10_000
    made.take(event(89, 90, 99, 100))
    assert read(file.getvalue()) == [some(99, 1000), some(100, 1000)]
    assert (made.count, made.lost) == (2, 2)
    made.take(event(99, 100))
    assert (made.count, made.lost) == (2, 2)


def test_a_written_packet_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "KEPT_BYTES", 10_000)
    made = EventWriter(io.BytesIO())
    for number in range(1, 1001):
        made.see(number, some(number, 1000))
        if number > 5:
            made.take(event(packet=number))
    made.take(event(1, 2, 3, 4, 5))
    assert (made.count, made.lost) == (1000, 0)


def test_a_packet_larger_than_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "KEPT_BYTES", 1000)
    made = EventWriter(io.BytesIO())
    made.see(1, some(1, 5000))
    made.see(2, some(2, 10))
    made.take(event(1, 2))
    assert (made.count, made.lost) == (1, 1)


def test_empty_packets_are_let_go_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "KEPT_BYTES", 1000)
    made = EventWriter(io.BytesIO())
    for number in range(1, 10_001):
        made.see(number, (START_NS, ETHERNET, b"", 1500))
    assert len(made._packets) <= 1000


def test_what_was_written_is_remembered_in_bounds() -> None:
    made = EventWriter(io.BytesIO())
    for number in range(1, 70_001):
        made.see(number, some(number, 1))
        made.take(event(packet=number))
    assert made.count == 70_000
    assert made.lost == 0
    assert len(made._last_written) <= 65_536
    assert len(made._packets) == 0


def make_commented(**further: list[str]) -> tuple[io.BytesIO, EventWriter]:
    file = io.BytesIO()
    about = About("a tool", "a section", "an interface")
    return file, EventWriter(file, about, {int(name[1:]): texts for name, texts in further.items()})


def test_comments_are_on_the_packets_that_complete_events() -> None:
    file, made = make_commented(_3=["a finding", "another"], _2=["on a packet of two"], _9=["on none"])
    for number in range(1, 6):
        made.see(number, some(number))
    made.take(event(1, 2, 3), "one")
    made.take(event(packet=3), "two")
    made.take(event(packet=5), "late → é")
    made.take(event(packet=5), "tail")
    assert read(file.getvalue()) == []
    made.close()
    assert read(file.getvalue()) == [some(number) for number in (1, 2, 3, 5)]
    assert packet_comments(file.getvalue()) == [
        [],
        ["on a packet of two"],
        ["one", "two", "a finding", "another"],
        ["late → é", "tail"],
    ]
    (_, section), (_, interface), *_ = pcapng_options(file.getvalue())
    assert section == [(4, "a tool"), (1, "a section")]
    assert [text for code, text in interface if code == 1] == ["an interface"]


def test_an_event_that_comes_when_its_packet_was_written_is_counted() -> None:
    file, made = make_commented()
    made.see(1, some(1))
    made.take(event(1), "one")
    made.see(2, some(2))
    made.take(event(1), "two")
    made.see(5000, some(5000))
    assert read(file.getvalue()) == [some(1)]
    made.take(event(1), "three")
    made.close()
    assert packet_comments(file.getvalue()) == [["one", "two"]]
    assert (made.lost, made.uncommented) == (0, 1)


def test_comments_are_bounded() -> None:
    file, made = make_commented(_1=["finding"] * 40)
    made.see(1, some(1))
    for number in range(5_000):
        made.take(event(1), f"{number}")
    made.close()
    (comments,) = packet_comments(file.getvalue())
    assert comments == [*map(str, range(32)), *["finding"] * 32, "… 4976 more"]


@given(st.text(max_size=40), st.integers(0, 40_000))
@settings(max_examples=50)
def test_any_comment_is_read_again(text: str, count: int) -> None:
    packet = (1, RAW, b"abc", 3)
    file = io.BytesIO()
    PcapngWriter(file).write(packet, [text, "é" * count])
    assert read(file.getvalue()) == [packet]
    first, second = packet_comments(file.getvalue())[0]
    assert first == text.encode("utf-8", "backslashreplace").decode()
    assert second == "é" * min(count, 32_767)


def test_selected_packets_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "KEPT_BYTES", 10_000)
    file, made = make_commented()
    for number in range(1, 101):
        made.see(number, some(number, 1000))
        made.take(event(number), "x")
    assert made.count > 80
    made.close()
    assert read(file.getvalue()) == [some(number, 1000) for number in range(1, 101)]
