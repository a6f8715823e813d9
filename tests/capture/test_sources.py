"""Anything that holds Pulsar traffic -> its frames, or one line that says what is wrong with it."""

from __future__ import annotations

import errno
import gzip
import io
import itertools
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st
from segments import (
    ETHERNET,
    PCAP_MAGICS,
    PING,
    PONG,
    START_NS,
    Tcp,
    captured,
    conversation,
    enhanced,
    frames_of,
    interface,
    malformed,
    pcap,
    pcap_header,
    pcap_record,
    raws,
    section,
    send,
    story,
    troubles,
)

from pulsarctl_wire.capture import Decoder, Source, open_source, read_events, read_frames, sources
from pulsarctl_wire.capture.compression import reader
from pulsarctl_wire.capture.files import RawPacket, read_packets
from pulsarctl_wire.capture.sources import peel
from pulsarctl_wire.errors import CaptureError, DamagedCapture
from pulsarctl_wire.wire.frame import Event, Frame, Gap, Malformed

SAMPLES = Path(__file__).parents[2] / "samples" / "pcaps"

TURNS = conversation((b"one", b"two" * 300, b"three"))
SEGMENTS = Tcp().whole(TURNS, 400)
PACKETS = captured(SEGMENTS)
CAPTURE = pcap(PACKETS)
FRAMES = b"".join(raw for _, raw in TURNS)
ARP = bytes.fromhex("ffffffffffff 020000000001 0806 0001 0800 06 04 0001") + bytes(20)


def pcapng(packets: list[RawPacket]) -> bytes:
    return section() + interface() + b"".join(enhanced((p[0] or 0) // 1000, p[2], p[3]) for p in packets)


def events_of(data: bytes) -> list[Event]:
    return list(read_events(io.BytesIO(data)))


def gather(events: Iterator[Event]) -> tuple[list[Event], CaptureError | None]:
    """The events up to an error, and the error."""
    found: list[Event] = []
    try:
        for event in events:
            found.append(event)  # noqa: PERF402 (what came before the error counts)
    except CaptureError as error:
        return found, error
    return found, None


def told(events: list[Event]) -> list[tuple[object, ...]]:
    """All that a source says."""
    seen: list[tuple[object, ...]] = []
    for event in events:
        place = (event.connection.index, str(event.connection), event.to_broker, event.offset, event.packet)
        if isinstance(event, Frame):
            known = (event.number, event.type, event.raw, event.partial, event.request, event.topic)
            seen.append((*place, event.time_ns, tuple(event.packets), *known))
        elif isinstance(event, Malformed):
            seen.append((*place, event.size, event.raw, event.reason))
        else:
            seen.append((*place, event.size))
    return seen


WHOLE = told(events_of(CAPTURE))


def test_what_the_capture_holds() -> None:
    events = events_of(CAPTURE)
    assert [(frame.to_broker, frame.raw) for frame in frames_of(events)] == TURNS
    assert troubles(events) == []
    times = {packet: time_ns for packet, (time_ns, *_) in enumerate(PACKETS, 1)}
    assert all(frame.time_ns == times[frame.packet] for frame in frames_of(events))


# ---- forms ----

CAPTURE_FORMS: dict[str, Callable[[list[RawPacket]], bytes]] = {
    **{
        f"pcap {order} {'ns' if nanoseconds else 'us'}": lambda packets, flavour=flavour: pcap(
            packets, *flavour
        )  # type: ignore[misc]
        for flavour in PCAP_MAGICS
        for order, nanoseconds in [flavour]
    },
    "pcapng": pcapng,
    "gzip": lambda packets: gzip.compress(pcap(packets)),
    "zstd": lambda packets: zstandard.compress(pcap(packets)),
    "gzip of pcapng": lambda packets: gzip.compress(pcapng(packets)),
    "zstd of pcapng": lambda packets: zstandard.compress(pcapng(packets)),
    "gzip of zstd": lambda packets: gzip.compress(zstandard.compress(pcap(packets))),
    "zstd of gzip": lambda packets: zstandard.compress(gzip.compress(pcap(packets))),
    "gzip of gzip of gzip": lambda packets: gzip.compress(gzip.compress(gzip.compress(pcap(packets)))),
}


@pytest.mark.parametrize("form", CAPTURE_FORMS)
def test_every_form_of_a_capture_says_the_same(form: str) -> None:
    assert told(events_of(CAPTURE_FORMS[form](PACKETS))) == WHOLE


class Pieces(io.RawIOBase):
    """A stream that gives some bytes at a time, fails at its end if told so, and can do nothing but read."""

    def __init__(self, data: bytes, sizes: list[int], error: OSError | None = None) -> None:
        self._data = data
        self._sizes = itertools.cycle(sizes)
        self._error = error

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._error is not None and not self._data:
            raise self._error
        size = min(next(self._sizes), len(buffer), len(self._data))
        buffer[:size], self._data = self._data[:size], self._data[size:]
        return size


def pipe(data: bytes, sizes: list[int], error: OSError | None = None) -> BinaryIO:
    return cast(BinaryIO, Pieces(data, sizes, error))


@pytest.mark.parametrize("form", CAPTURE_FORMS)
@given(sizes=st.lists(st.integers(1, 300), min_size=1, max_size=5))
@example(sizes=[1])
@settings(max_examples=15, deadline=None)
def test_every_form_in_any_pieces_says_the_same(form: str, sizes: list[int]) -> None:
    assert told(list(read_events(pipe(CAPTURE_FORMS[form](PACKETS), sizes)))) == WHOLE


def test_a_real_pipe() -> None:
    reading, writing = os.pipe()
    with open(writing, "wb") as file:
        file.write(CAPTURE)  # fits into a pipe's buffer
    with open(reading, "rb") as pipe:
        assert told(list(read_events(pipe))) == WHOLE


def test_paths_and_streams(tmp_path: Path) -> None:
    path = tmp_path / "any name"
    path.write_bytes(CAPTURE)
    assert told(list(read_events(path))) == WHOLE
    assert told(list(read_events(str(path)))) == WHOLE
    with path.open("rb") as file:
        assert told(list(read_events(file))) == WHOLE
        assert not file.closed
    with path.open("rb", buffering=0) as raw:
        assert told(list(read_events(raw))) == WHOLE


def test_frames_are_the_events_that_are_frames() -> None:
    damaged = captured([*SEGMENTS[:8], *SEGMENTS[9:]])
    file = pcap(damaged)
    assert any(isinstance(event, Gap) for event in events_of(file))
    frames = [event for event in events_of(file) if isinstance(event, Frame)]
    assert told(list(read_frames(io.BytesIO(file)))) == told([*frames])


def test_a_file_is_closed_when_its_reader_is(tmp_path: Path) -> None:
    path = tmp_path / "capture"
    path.write_bytes(CAPTURE)
    events = read_events(path)
    assert isinstance(next(events), Frame)
    events.close()  # type: ignore[attr-defined]  # a file left open is a ResourceWarning, which fails the test
    assert list(events) == []


def test_open_source_tells_name_and_size(tmp_path: Path) -> None:
    path = tmp_path / "capture"
    path.write_bytes(CAPTURE)
    source = open_source(str(path))
    with source.stream:
        assert (source.name, source.size) == (str(path), len(CAPTURE))
        assert source.stream.read() == CAPTURE


# ---- several sources ----


@given(cuts=st.lists(st.integers(0, len(PACKETS)), min_size=1, max_size=3), forms=st.data())
@settings(max_examples=60, deadline=None)
def test_rotated_pieces_say_what_the_whole_does(cuts: list[int], forms: st.DataObject) -> None:
    places = [0, *sorted(cuts), len(PACKETS)]
    parts = [PACKETS[a:b] for a, b in itertools.pairwise(places)]
    made = [CAPTURE_FORMS[forms.draw(st.sampled_from(sorted(CAPTURE_FORMS)))](part) for part in parts]
    assert told(list(read_events(*map(io.BytesIO, made)))) == WHOLE


def uncompressed(path: Path) -> list[RawPacket]:
    stream, head = peel(io.BytesIO(path.read_bytes()))
    return list(read_packets(head, reader(stream)))


@pytest.mark.parametrize(
    "name",
    [
        "chunks-out-of-order.pcap",
        "corrupt-in-transit.pcap",
        "errors.pcap",
        "ipv6.pcap",
        "java-brokerentry.pcap",
        "linktype-sll2.pcap",
        "mixed.pcapng.gz",
        "snaplen96.pcap",
    ],
)
def test_rotated_pieces_of_real_captures(name: str, tmp_path: Path) -> None:
    packets = uncompressed(SAMPLES / name)
    link = packets[0][1]
    assert all(packet[1] == link for packet in packets)
    expected = told(list(read_events(SAMPLES / name)))
    assert len(expected) > 10
    rng = random.Random(name)
    for _ in range(4):
        places = [0, *sorted(rng.sample(range(1, len(packets)), 2)), len(packets)]
        paths = []
        for number, (a, b) in enumerate(itertools.pairwise(places)):
            paths.append(tmp_path / f"{number}.pcap")
            records = b"".join(pcap_record(packet, nanoseconds=True) for packet in packets[a:b])
            paths[-1].write_bytes(pcap_header(nanoseconds=True, link=link) + records)
        assert told(list(read_events(*paths))) == expected


def test_sources_of_different_kinds_follow_one_another() -> None:
    other = captured(Tcp(client=("10.0.0.9", 9)).whole(TURNS))
    mixed = [pcap(PACKETS), FRAMES, pcapng(other), FRAMES.hex().encode()]
    frames = list(read_frames(*map(io.BytesIO, mixed)))
    assert [frame.raw for frame in frames] == [raw for _, raw in TURNS] * 4
    assert [frame.number for frame in frames] == list(range(1, len(frames) + 1))
    assert sorted({frame.connection.index for frame in frames}) == [0, 1, 2, 3]
    assert all(frame.request is None or frame.request < frame.number for frame in frames)


def test_packets_in_the_order_of_their_times() -> None:
    def sorted_(*times: int | None) -> list[tuple[int, int | None]]:
        packets = [(time_ns, ETHERNET, b"", 0) for time_ns in times]
        return [(number, packet[0]) for number, packet in sources.in_order(enumerate(packets, 1))]

    assert sorted_(10, 30, 20, 20, 40) == [(1, 10), (3, 20), (4, 20), (2, 30), (5, 40)]
    assert sorted_(10, None, 5, None) == [(1, 10), (2, None), (3, 5), (4, None)]
    late = sources.MAX_LATE
    assert sorted_(*range(2, late + 2), 1)[0] == (late + 1, 1)
    assert sorted_(*range(2, late + 3), 1)[:2] == [(1, 2), (late + 2, 1)]


def test_no_source_at_all() -> None:
    assert list(read_events()) == []


# ---- hex dumps ----


def gutter(data: bytes) -> str:
    return "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in data)


def rows(data: bytes) -> Iterator[tuple[int, bytes]]:
    return ((at, data[at : at + 16]) for at in range(0, len(data), 16))


def xxd(data: bytes) -> str:
    return "".join(f"{at:08x}: {row.hex(' ', -2):39}  {gutter(row)}\n" for at, row in rows(data))


def hexdump_c(data: bytes) -> str:
    lines = [
        f"{at:08x}  {row[:8].hex(' '):23}  {row[8:].hex(' '):23}  |{gutter(row)}|" for at, row in rows(data)
    ]
    return "\n".join([*lines, f"{len(data):08x}"]) + "\n"


def wireshark(data: bytes) -> str:
    return "".join(f"{at:04x}   {row.hex(' '):47}   {gutter(row)}\n" for at, row in rows(data))


def tcpdump(packets: list[RawPacket], skip: int, text: bool) -> str:
    lines = []
    for time_ns, _, data, _ in packets:
        seconds, rest = divmod(time_ns or 0, 1_000_000_000)
        lines.append(f"{seconds}.{rest // 1000:06} IP 10.0.0.1.50000 > 10.0.0.2.6650: tcp {len(data)}")
        for at, row in rows(data[skip:]):
            lines.append(f"\t0x{at:04x}:  {row.hex(' ', -2):39}" + (f"  {gutter(row)}" if text else ""))
    return "\n".join(lines) + "\n"


HEX_FORMS: dict[str, Callable[[bytes], str]] = {
    "xxd": xxd,
    "hexdump -C": hexdump_c,
    "Wireshark": wireshark,
    "plain": lambda data: data.hex(),
    "plain in lines": lambda data: "\n".join(row.hex() for _, row in rows(data)),
    "with colons": lambda data: data.hex(":"),
    "Python literal": repr,
    "Python literals": lambda data: "data = (\n" + "\n".join(repr(row) for _, row in rows(data)) + "\n)",
}


@pytest.mark.parametrize("form", HEX_FORMS)
def test_hex_dumps_of_frames(form: str) -> None:
    events = events_of(HEX_FORMS[form](FRAMES).encode())
    assert raws(events) == [raw for _, raw in TURNS]
    known = [(frame.to_broker, frame.raw) for frame in frames_of(events)[:-2]]  # PING and PONG go both ways
    assert known == TURNS[:-2]
    assert troubles(events) == []
    assert story(events)[False][0].request is not None


@pytest.mark.parametrize("form", HEX_FORMS)
def test_hex_dumps_of_a_capture_file(form: str) -> None:
    assert told(events_of(HEX_FORMS[form](CAPTURE).encode())) == WHOLE


@pytest.mark.parametrize("form", HEX_FORMS)
@pytest.mark.parametrize("skip", [0, 14], ids=["Ethernet", "IP"])
def test_hex_dumps_of_one_packet(form: str, skip: int) -> None:
    (data,) = (packet[2] for packet in PACKETS if packet[2].endswith(TURNS[2][1]))
    (frame,) = events_of(HEX_FORMS[form](data[skip:]).encode())
    assert isinstance(frame, Frame)
    assert (frame.raw, frame.to_broker, frame.packet) == (TURNS[2][1], True, 1)
    assert str(frame.connection) == "10.0.0.1:50000-10.0.0.2:6650"


@pytest.mark.parametrize("skip", [0, 14], ids=["-xx", "-x"])
@pytest.mark.parametrize("text", [False, True], ids=["hex", "hex and text"])
def test_packets_as_tcpdump_prints_them(skip: int, text: bool) -> None:
    assert told(events_of(tcpdump(PACKETS, skip, text).encode())) == WHOLE


def test_packets_as_tcpdump_prints_them_between_others() -> None:
    noise: list[RawPacket] = [(START_NS, ETHERNET, ARP, len(ARP))]
    events = events_of(tcpdump([*noise, *PACKETS[:5], *noise, *PACKETS[5:]], 0, False).encode())
    assert [(frame.to_broker, frame.raw) for frame in frames_of(events)] == TURNS


def test_packets_as_wireshark_prints_them() -> None:
    events = events_of("\n".join(wireshark(packet[2]) for packet in PACKETS).encode())
    assert [(frame.to_broker, frame.raw) for frame in frames_of(events)] == TURNS
    assert troubles(events) == []
    assert str(events[0].connection) == "10.0.0.1:50000-10.0.0.2:6650"


@pytest.mark.parametrize("at", [0, 5, len(PACKETS)])
def test_packets_as_wireshark_prints_them_between_others(at: int) -> None:
    all_packets = [packet[2] for packet in PACKETS]
    all_packets.insert(at, ARP)
    events = events_of("\n".join(wireshark(packet) for packet in all_packets).encode())
    assert [(frame.to_broker, frame.raw) for frame in frames_of(events)] == TURNS


def test_fragments_as_wireshark_prints_them() -> None:
    whole = next(packet[2] for packet in PACKETS if packet[2].endswith(TURNS[2][1]))
    cut = 14 + 20 + 32
    first = whole[:20] + b"\x20\x00" + whole[22:cut]
    first = first[:16] + (cut - 14).to_bytes(2, "big") + first[18:]
    rest = whole[cut:]
    second = (
        whole[:16] + (20 + len(rest)).to_bytes(2, "big") + whole[18:20] + b"\x00\x04" + whole[22:34] + rest
    )
    assert raws(events_of(pcap([(0, ETHERNET, part, len(part)) for part in (first, second)]))) == [
        TURNS[2][1]
    ]
    events = events_of("\n".join(wireshark(part) for part in (first, second)).encode())
    assert raws(events) == [TURNS[2][1]]


def test_a_hex_dump_that_is_compressed_and_arrives_in_pieces() -> None:
    text = xxd(CAPTURE).encode()
    assert told(list(read_events(pipe(gzip.compress(text), [100])))) == WHOLE
    assert told(list(read_events(pipe(text, [1000])))) == WHOLE


def test_a_hex_dump_cut_between_packets_of_its_capture_gives_what_is_there() -> None:
    events, error = gather(read_events(io.BytesIO(xxd(CAPTURE[:-10]).encode())))
    assert isinstance(error, DamagedCapture)
    assert raws(events) == [raw for _, raw in TURNS]


# ---- raw frames ----


@given(sizes=st.lists(st.integers(1, 500), min_size=1, max_size=5))
@example(sizes=[1])
@settings(max_examples=30, deadline=None)
def test_raw_frames_in_any_pieces(sizes: list[int]) -> None:
    events = list(read_events(pipe(FRAMES, sizes)))
    assert raws(events) == [raw for _, raw in TURNS]
    assert troubles(events) == []
    assert all(event.time_ns is None and event.packet == 0 for event in events)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(zstandard.compress(PING * 80_000), id="zstd"),
        pytest.param(b"00000000: " + PING.hex(" ").encode() + b"\n*\n00080000: 00\n", id="a repeated row"),
    ],
)
def test_raw_frames_come_a_few_at_a_time(data: bytes) -> None:
    batches = list(Decoder().read(Source("it", io.BytesIO(data))))
    assert sum(map(len, batches)) > 40_000
    assert max(map(len, batches)) <= 64 * 1024 // len(PING) + 1


@pytest.mark.parametrize("how", [gzip.compress, zstandard.compress])
def test_compressed_raw_frames(how: Callable[[bytes], bytes]) -> None:
    assert raws(events_of(how(FRAMES))) == [raw for _, raw in TURNS]


def test_raw_frames_know_their_direction_and_their_requests() -> None:
    frames = list(read_frames(io.BytesIO(FRAMES)))
    assert [frame.to_broker for frame in frames[:-2]] == [to_broker for to_broker, _ in TURNS[:-2]]
    answers = [(frame.number, frame.request) for frame in frames if frame.request]
    assert (2, 1) in answers
    assert (4, 3) in answers
    assert (6, 5) in answers
    assert frames[7].topic == "persistent://public/default/t"


def test_raw_frames_with_damage_between_them() -> None:
    events = events_of(PING + PONG + b"\xff" * 50 + PING + PONG)
    assert raws(events) == [PING, PONG, PING, PONG]
    (lost,) = malformed(events)
    assert lost.size == 50


def test_raw_frames_behind_other_bytes() -> None:
    events = events_of(b"\x01\x02\x03\x04\x05\x06\x07\x08\x09" * 3 + PING + PONG)
    assert raws(events) == [PING, PONG]
    assert [lost.size for lost in malformed(events)] == [27]


def test_raw_frames_cut_at_every_offset() -> None:
    ends = [0]
    for _, raw in TURNS:
        ends.append(ends[-1] + len(raw))
    for cut in range(13, len(FRAMES), 7):
        events, error = gather(read_events(io.BytesIO(FRAMES[:cut])))
        whole = [raw for (_, raw), end in zip(TURNS, ends[1:], strict=True) if end <= cut]
        assert raws(events) == whole
        if error is not None:
            assert whole == []
        elif cut not in ends:
            assert len(troubles(events)) == 1


def test_a_frame_larger_than_the_limit() -> None:
    (large,) = events_of(send(b"x" * 3000))
    assert isinstance(large, Frame)
    assert large.notes == ()
    (noted,) = read_events(io.BytesIO(send(b"x" * 3000)), max_frame_size=1000)
    assert isinstance(noted, Frame)
    assert "over the limit of 1000" in noted.notes[0]
    in_packets = pcap(captured(Tcp().whole([(True, send(b"x" * 3000))])))
    (noted,) = read_frames(io.BytesIO(in_packets), max_frame_size=1000)
    assert "over the limit of 1000" in noted.notes[0]


# ---- errors ----


def failure(*given_sources: object) -> CaptureError:
    """The error of sources that give nothing."""
    events, error = gather(read_events(*given_sources))  # type: ignore[arg-type]
    assert events == []
    assert error is not None
    assert "\n" not in str(error)
    return error


def test_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "missing.pcap"
    assert str(failure(path)) == f"{path}: no such file"


def test_directory(tmp_path: Path) -> None:
    assert str(failure(tmp_path)).startswith(f"{tmp_path}: is a directory")


def test_file_used_as_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "file/capture: Not a directory" in str(failure(tmp_path / "file" / "capture"))


def test_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, mode: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(sources, "open", refuse, raising=False)
    assert str(failure(tmp_path / "capture")).startswith(f"{tmp_path / 'capture'}: permission denied")


def test_file_that_cannot_be_read_on() -> None:
    error = OSError(errno.EIO, "Input/output error")
    events, failed = gather(read_events(pipe(CAPTURE, [500], error)))
    assert str(failed) == "stream: Input/output error"
    assert raws(events) == [raw for _, raw in TURNS]
    for data in (b"", b"\xd4", gzip.compress(CAPTURE)[:100], b"00 00 00 09"):
        assert str(failure(pipe(data, [5], error))) == "stream: Input/output error"


@pytest.mark.parametrize(
    "data",
    [b"", gzip.compress(b""), zstandard.compress(b""), gzip.compress(gzip.compress(b""))],
    ids=["nothing", "gzip", "zstd", "gzip of gzip"],
)
def test_empty_source(data: bytes) -> None:
    assert str(failure(io.BytesIO(data))) == "stream: is empty: no packets, no frames"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x7fELF\x02\x01\x01" + bytes(500), id="program"),
        pytest.param(b"PK\x03\x04\x14" + bytes(range(256)), id="zip"),
        pytest.param(b"Dear reader,\nthis is a letter and no capture.\n", id="prose"),
        pytest.param(b"a,b,c\n1,2,3\n4,5,6\n", id="CSV"),
        pytest.param(b'{"command": "SEND", "size": 17}\n', id="JSON"),
        pytest.param(random.Random(1).randbytes(5000), id="noise"),
        pytest.param(bytes(5000), id="zeros"),
        pytest.param(b"\0", id="one byte"),
        pytest.param(gzip.compress(b"no capture at all, but text" * 10), id="compressed text"),
        pytest.param("no capture, but ünïcode\n".encode("utf-16"), id="UTF-16"),
    ],
)
def test_wrong_formats(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "wrong"
    path.write_bytes(data)
    message = str(failure(path))
    assert message.startswith(f"{path}: ")
    assert "neither a capture" in message


def test_compressed_too_often() -> None:
    data = CAPTURE
    for _ in range(4):
        data = gzip.compress(data)
    assert "more than three times" in str(failure(io.BytesIO(data)))


def test_capture_cut_inside_its_header() -> None:
    for data in (CAPTURE[:4], CAPTURE[:23], pcapng(PACKETS)[:4], pcapng(PACKETS)[:27]):
        assert str(failure(io.BytesIO(data))).startswith("stream: ")


def test_capture_without_packets_is_no_error() -> None:
    assert events_of(pcap([])) == []
    assert events_of(section() + interface()) == []


@pytest.mark.parametrize("form", CAPTURE_FORMS)
def test_capture_cut_in_the_middle_gives_what_is_before(form: str, tmp_path: Path) -> None:
    data = CAPTURE_FORMS[form](PACKETS)
    path = tmp_path / "cut"
    for cut in (len(data) // 2, len(data) - 5):
        path.write_bytes(data[:cut])
        events, error = gather(read_events(path))
        assert isinstance(error, DamagedCapture)
        assert str(error).startswith(f"{path}: ")
        found = raws(events)
        assert found == [raw for _, raw in TURNS][: len(found)]
        assert len(found) > len(TURNS) // 4 or "zip" in form or "zstd" in form


def test_a_damaged_source_does_not_stop_the_next_ones(tmp_path: Path) -> None:
    cut = pcap(PACKETS[:9])[:-3]
    paths = [tmp_path / "first", tmp_path / "second"]
    paths[0].write_bytes(cut)
    paths[1].write_bytes(pcap(PACKETS[8:]))
    events, error = gather(read_events(*paths))
    assert raws(events) == [raw for _, raw in TURNS]
    assert isinstance(error, DamagedCapture)
    assert str(error).startswith(f"{paths[0]}: ")


def test_a_damaged_source_gives_what_was_waiting() -> None:
    holed = captured([*SEGMENTS[:8], *SEGMENTS[9:-3]])
    events, error = gather(read_events(io.BytesIO(pcap(holed) + b"\0")))
    assert isinstance(error, DamagedCapture)
    assert told(events) == told(events_of(pcap(holed)))
    assert any(isinstance(event, Gap) for event in events)


def test_a_source_that_cannot_be_read_stops_at_once(tmp_path: Path) -> None:
    path = tmp_path / "missing"
    events, error = gather(read_events(io.BytesIO(CAPTURE), path, io.BytesIO(CAPTURE)))
    assert raws(events) == [raw for _, raw in TURNS]
    assert str(error) == f"{path}: no such file"


def test_compressed_raw_frames_cut_in_the_middle_give_what_is_before() -> None:
    incompressible = [send(random.Random(number).randbytes(200), number) for number in range(10)]
    data = gzip.compress(b"".join(incompressible))
    events, error = gather(read_events(io.BytesIO(data[: len(data) // 2])))
    assert isinstance(error, DamagedCapture)
    assert raws(events) == incompressible[: len(raws(events))]
    assert len(raws(events)) >= 4


def test_compressed_raw_frames_that_are_many_give_what_is_before() -> None:
    incompressible = [send(random.Random(number).randbytes(200), number) for number in range(100)]
    data = gzip.compress(b"".join(incompressible))
    events, error = gather(read_events(io.BytesIO(data[: len(data) // 2])))
    assert isinstance(error, DamagedCapture)
    assert raws(events) == incompressible[: len(raws(events))]
    assert len(raws(events)) >= 40
    assert [event for event in events if isinstance(event, Frame) and event.partial] == events[-1:]


def test_compressed_hex_dump_cut_in_the_middle_gives_what_is_before() -> None:
    data = gzip.compress(xxd(pcap(PACKETS * 20)).encode())
    events, error = gather(read_events(io.BytesIO(data[: len(data) // 2])))
    assert isinstance(error, DamagedCapture)
    assert len(raws(events)) > 5


SOURCES = [
    *(make(PACKETS[:12]) for make in CAPTURE_FORMS.values()),
    *(make(FRAMES[:400]).encode() for make in HEX_FORMS.values()),
    tcpdump(PACKETS[:6], 0, True).encode(),
    tcpdump(PACKETS[:6], 14, False).encode(),
    "\n".join(wireshark(packet[2]) for packet in PACKETS[:6]).encode(),
    FRAMES,
    gzip.compress(FRAMES),
]


@given(
    kind=st.integers(0, len(SOURCES) - 1),
    changes=st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), max_size=8),
    cut=st.floats(0, 1),
)
@settings(max_examples=400, deadline=None)
def test_mutated_sources_raise_nothing_but_capture_errors(
    kind: int, changes: list[tuple[int, int]], cut: float
) -> None:
    data = bytearray(SOURCES[kind])
    for at, byte in changes:
        data[at % len(data)] = byte
    data = data[: round(len(data) * cut)] if cut < 0.5 else data
    events, error = gather(read_events(io.BytesIO(bytes(data))))
    assert error is None or (str(error).startswith("stream: ") and "\n" not in str(error))
    assert len(frames_of(events)) <= len(TURNS)


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
@settings(max_examples=200, deadline=None)
def test_anything_raises_nothing_but_capture_errors(data: bytes) -> None:
    events, error = gather(read_events(io.BytesIO(data)))
    assert error is None or (str(error).startswith("stream: ") and "\n" not in str(error))
    assert error is not None or events


# ---- the decoder ----


def test_decoder_counts_and_shows_every_packet() -> None:
    noise: RawPacket = (START_NS, ETHERNET, ARP, len(ARP))
    cut = [(time_ns, link, data[:60], length) for time_ns, link, data, length in PACKETS]
    packets = [noise, *cut, noise]
    log: list[tuple[int, RawPacket]] = []
    decoder = Decoder(tee=lambda number, packet: log.append((number, packet)))
    assert (decoder.packets, decoder.cut_packets) == (0, 0)
    for events in decoder.read(Source("it", io.BytesIO(pcap(packets)))):
        assert all(event.packet <= len(log) for event in events)
        assert decoder.packets == len(log)
    assert log == list(enumerate(packets, 1))
    assert decoder.packets == len(packets)
    assert decoder.cut_packets == sum(len(packet[2]) > 60 for packet in PACKETS)
    assert list(decoder.finish()) in ([], [[]])


def test_decoder_numbers_packets_on_through_all_sources() -> None:
    decoder = Decoder()
    packets: list[int] = []
    for part in (PACKETS[:9], PACKETS[9:]):
        for events in decoder.read(Source("part", io.BytesIO(pcap(part)))):
            packets += [event.packet for event in events]
    assert packets == [event.packet for event in events_of(CAPTURE)]
    assert decoder.packets == len(PACKETS)


def test_decoder_gives_a_packet_s_events_before_it_reads_on() -> None:
    given_out: list[int] = []

    def packets() -> Iterator[RawPacket]:
        for number, packet in enumerate(PACKETS, 1):
            given_out.append(number)
            yield packet

    for events in Decoder().read_packets(packets()):
        assert {event.packet for event in events} == {given_out[-1]}
    assert len(given_out) == len(PACKETS)


def test_decoder_links_requests_to_answers_if_asked() -> None:
    decoder = Decoder(link_answers=True)
    frames = [event for events in decoder.read(Source("it", io.BytesIO(CAPTURE))) for event in events]
    answers = decoder.knowledge.answers
    assert answers is not None
    links = [(frame.request, frame.number) for frame in frames if isinstance(frame, Frame) and frame.request]
    assert len(links) > 5
    assert [(request, answers[request]) for request, _ in links] == links
    assert Decoder().knowledge.answers is None


def test_decoder_counts_other_traffic() -> None:
    http = [(True, b"GET / HTTP/1.1\r\n\r\n"), (False, b"HTTP/1.1 200 OK\r\n\r\n")]
    decoder = Decoder()
    assert not any(decoder.read(Source("it", io.BytesIO(pcap(captured(Tcp().whole(http)))))))
    assert decoder.reassembler.other_traffic == {"HTTP": 1}
