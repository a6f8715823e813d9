"""What is recorded of a live session is a capture with the same bytes, that nobody has complaints about."""

from __future__ import annotations

import io
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6
from segments import PING, PONG, START_NS, conversation, message, raws, send, troubles

from pulsarctl_wire.capture import checksum, read_events, read_frames
from pulsarctl_wire.capture.comments import parse_route
from pulsarctl_wire.capture.files import RawPacket, read_packets
from pulsarctl_wire.capture.packets import ACK, FIN, SYN, Dissector
from pulsarctl_wire.capture.recording import MAX_PAYLOAD, SessionWriter
from pulsarctl_wire.wire.frame import Connection, Event, Frame, Gap
from pulsarctl_wire.wire.framing.stream import FrameStream

TSHARK = shutil.which("tshark")
PSH = 0x08

# (client, server): addresses, names, sockets, nothing; some of them twice
ENDS = [
    ("10.0.0.1:50000", "10.0.0.2:6650"),
    ("[::1]:50001", "[::1]:6650"),
    ("", ""),
    ("10.0.0.1:50000", "10.0.0.2:6650"),
    ("10.0.0.2:6650", "10.0.0.1:50000"),
    ("laptop:50000", "broker.example:6651"),
    ("unix:/run/client.sock", "unix:/run/pulsar.sock"),
    ("127.0.0.1:9", "[fe80::1%eth0]:6650"),
    ("10.0.0.9:6650", "10.0.0.9:6650"),
]


def some(index: int = 0, ends: tuple[str, str] = ENDS[0]) -> Connection:
    return Connection(index, *ends)


class Chunk(NamedTuple):
    connection: int
    to_broker: bool
    data: bytes


def record(chunks: Iterable[Chunk], ends: list[tuple[str, str]] = ENDS, *, isn: int = 1) -> bytes:
    """A file of `chunks`, carried a microsecond apart by connections that are all open at once."""
    file = io.BytesIO()
    made = SessionWriter(file, isn=isn)
    connections = [Connection(number, *each) for number, each in enumerate(ends)]
    for connection in connections:
        made.opened(connection, START_NS)
    last = START_NS
    for number, chunk in enumerate(chunks, 1):
        last = START_NS + number * 1000
        made.carried(connections[chunk.connection], chunk.to_broker, memoryview(chunk.data), last)
    for connection in connections:
        made.closed(connection, last + 1000, by_broker=connection.index % 2 == 1)
    return file.getvalue()


def packets(file: bytes) -> list[RawPacket]:
    return list(read_packets(b"", io.BytesIO(file).read))


def parsed(file: bytes) -> list[Any]:
    """The TCP layers of a file's packets."""
    layers: list[Any] = [(IPv6 if data[0] >> 4 == 6 else IP)(data) for _, _, data, _ in packets(file)]
    return [layer[TCP] for layer in layers]


def shown(tcp: Any) -> tuple[int, int, int, bytes]:
    """Flags, sequence number, acknowledgement number and payload."""
    return int(tcp.flags), tcp.seq, tcp.ack, bytes(tcp.payload)


def right_checksums(data: bytes) -> bool:
    """Whether a packet has the checksums that scapy would give it."""
    layer: Any = (IPv6 if data[0] >> 4 == 6 else IP)(data)
    del layer[TCP].chksum
    if data[0] >> 4 == 4:
        del layer.chksum
    return bytes(layer) == data


isns = st.sampled_from([0, 1, 2**31 - 2, 2**32 - 1, 2**32 - 2, 2**32 - 100])
chunk_lists = st.lists(
    st.builds(Chunk, st.integers(0, len(ENDS) - 1), st.booleans(), st.binary(max_size=90)), max_size=20
)


@st.composite
def talks(draw: st.DrawFn) -> tuple[list[Chunk], dict[tuple[int, bool], list[bytes]]]:
    """Frames of several connections, both ways, in chunks cut anywhere; and the frames of each direction."""
    frames: dict[tuple[int, bool], list[bytes]] = {}
    waiting: dict[tuple[int, bool], bytes] = {}
    for connection in range(len(ENDS)):
        for to_broker, kinds in ((True, (PING, send(b"x" * 40))), (False, (PONG, message(b"y" * 40)))):
            chosen = draw(st.lists(st.sampled_from(kinds), max_size=3))
            if chosen:
                frames[connection, to_broker] = chosen
                waiting[connection, to_broker] = b"".join(chosen)
    chunks = []
    while waiting:
        one = draw(st.sampled_from(sorted(waiting)))
        size = draw(st.integers(1, 100))
        chunks.append(Chunk(*one, waiting[one][:size]))
        waiting[one] = waiting[one][size:]
        if not waiting[one]:
            del waiting[one]
    return chunks, frames


# ---- What is read again ----


@given(talks(), isns)
def test_the_frames_are_those_that_were_carried(
    talk: tuple[list[Chunk], dict[tuple[int, bool], list[bytes]]], isn: int
) -> None:
    chunks, frames = talk
    events = list(read_events(io.BytesIO(record(chunks, isn=isn))))
    assert troubles(events) == []
    found: dict[tuple[int, bool], list[Frame]] = {}
    for event in events:
        assert isinstance(event, Frame)
        found.setdefault((event.connection.index, event.to_broker), []).append(event)
    assert {one: raws(those) for one, those in found.items()} == frames
    for one, those in found.items():
        # when the first and the last byte of each frame were carried
        times = [
            START_NS + number * 1000
            for number, chunk in enumerate(chunks, 1)
            if (chunk.connection, chunk.to_broker) == one
            for _ in chunk.data
        ]
        for frame in those:
            stop = frame.offset + len(frame.raw)
            assert (frame.start_ns, frame.time_ns) == (times[frame.offset], times[stop - 1])


@given(chunk_lists, isns)
@example([Chunk(0, True, b""), Chunk(1, False, bytes(range(256)) * 600)], 2**32 - 1)
@example([Chunk(1, True, b"\xff" * (MAX_PAYLOAD + 1)), Chunk(0, False, b"\xff" * MAX_PAYLOAD)], 1)
def test_each_direction_has_its_bytes_in_packets_without_a_hole(chunks: list[Chunk], isn: int) -> None:
    expected: dict[int, dict[bool, bytes]] = {n: {True: b"", False: b""} for n in range(len(ENDS))}
    for chunk in chunks:
        expected[chunk.connection][chunk.to_broker] += chunk.data
    dissector = Dissector()
    clients: list[bytes] = []
    following: dict[bytes, int] = {}
    carried: dict[bytes, bytes] = {}
    peers: dict[bytes, bytes] = {}
    for _, link, data, length in packets(record(chunks, isn=isn)):
        assert len(data) == length <= 65_535
        assert right_checksums(data)
        segment = dissector.segment(link, data, length)
        assert segment is not None
        key, sequence, acknowledged, flags, payload, missing = segment
        assert missing == 0
        half = (len(key) - 4) // 2
        peers[key] = key[half : 2 * half] + key[:half] + key[-2:] + key[-4:-2]
        if flags == SYN:
            assert key not in following
            clients.append(key)
        assert following.setdefault(key, sequence) == sequence
        following[key] = (sequence + len(payload) + bool(flags & (SYN | FIN))) % 2**32
        carried[key] = carried.get(key, b"") + payload
        assert acknowledged == (following[peers[key]] if flags & ACK else 0)
        assert flags == PSH | ACK or not payload
    assert [{True: carried[key], False: carried[peers[key]]} for key in clients] == list(expected.values())


def test_a_conversation_is_decoded_as_one() -> None:
    turns = conversation([b"x" * 10, b"y" * 200_000])
    file = record([Chunk(0, to_broker, raw) for to_broker, raw in turns], ENDS[:1])
    frames = list(read_frames(io.BytesIO(file)))
    assert [(frame.to_broker, frame.raw) for frame in frames] == turns
    assert {str(frame.connection) for frame in frames} == {"10.0.0.1:50000-10.0.0.2:6650"}
    assert [frame.time_ns for frame in frames] == [START_NS + 1000 * n for n in range(1, len(turns) + 1)]


def test_what_is_recorded_is_there_at_once() -> None:
    file = io.BytesIO()
    made = SessionWriter(file)
    made.opened(some(), 1)
    for number in range(1, 4):
        made.carried(some(), True, PING, number)
        assert raws(read_frames(io.BytesIO(file.getvalue()))) == [PING] * number


@pytest.mark.parametrize("ends", [("10.0.0.1:50000", "10.0.0.2:6650"), ("[2001:db8::1]:7", "broker:6650")])
def test_the_address_that_the_client_came_to_is_read_again(ends: tuple[str, str]) -> None:
    file = io.BytesIO()
    made = SessionWriter(file)
    for index, listener in enumerate(["127.0.0.1:6649", "", "[::1]:6649"]):
        connection = Connection(index, ends[0] + str(index), ends[1])
        connection.listener = listener
        made.opened(connection, 1)
        made.carried(connection, True, PING, 2)
    frames = read_frames(io.BytesIO(file.getvalue()))
    assert [frame.connection.listener for frame in frames] == ["127.0.0.1:6649", "", "[::1]:6649"]


@given(st.binary(max_size=200))
@example(b"pwire proxy: a came to b, and was led to \xff")
@example(b"pwire proxy: a came to \x1b[31m, and was led to c")
@example(b"pwire proxy: " + b"a" * 65_000)
def test_comments_of_others_do_no_harm(comment: bytes) -> None:
    route = parse_route(comment)
    assert route is None or "".join(route).isprintable()


# ---- Packets ----


def test_the_packets_of_a_small_session() -> None:
    file = record([Chunk(0, True, b"ask"), Chunk(0, False, b"answer")], ENDS[:1], isn=2**32 - 3)
    isn = 2**32 - 3
    assert [shown(tcp) for tcp in parsed(file)] == [
        (SYN, isn, 0, b""),
        (SYN | ACK, isn, isn + 1, b""),
        (ACK, isn + 1, isn + 1, b""),
        (PSH | ACK, isn + 1, isn + 1, b"ask"),
        (PSH | ACK, isn + 1, 1, b"answer"),
        (FIN | ACK, 1, 4, b""),
        (ACK, 4, 2, b""),
        (FIN | ACK, 4, 2, b""),
        (ACK, 2, 5, b""),
    ]
    assert [time_ns for time_ns, *_ in packets(file)] == [
        START_NS + 1000 * number for number in (0, 0, 0, 1, 2, 3, 3, 3, 3)
    ]


@pytest.mark.parametrize("by_broker", [False, True])
def test_whoever_closes_sends_the_first_fin(by_broker: bool) -> None:
    file = io.BytesIO()
    made = SessionWriter(file)
    made.opened(some(), 1)
    made.closed(some(), 2, by_broker)
    made.closed(some(), 3)
    assert [(int(tcp.flags), tcp.dport == 6650) for tcp in parsed(file.getvalue())[3:]] == [
        (FIN | ACK, not by_broker),
        (ACK, by_broker),
        (FIN | ACK, by_broker),
        (ACK, not by_broker),
    ]


def test_many_bytes_one_way_are_acknowledged_on_the_way() -> None:
    file = record([Chunk(0, True, bytes(3_000_000))] * 2, ENDS[:1])
    acknowledged, most = 2, 0
    for flags, sequence, number, payload in map(shown, parsed(file)[3:-4]):
        if payload:
            most = max(most, sequence + len(payload) - acknowledged)
        else:
            assert flags == ACK
            acknowledged = number
    assert 1_000_000 < most < 1_200_000


@pytest.mark.parametrize("size", [1, 2, 3, 511, 512, 513, 514, 515, 516, 64_997, 64_998, 64_999, 65_000])
def test_checksums_are_right_at_any_size(size: int) -> None:
    data = (bytes(range(1, 252)) * 260)[:size]
    made = packets(record([Chunk(0, True, data), Chunk(1, False, data)], ENDS[:2]))
    assert len(made) == 16
    assert all(right_checksums(packet) for _, _, packet, _ in made)


@given(st.binary(max_size=5_000))
@example(b"\xff" * 4_000)
@example(b"\xff" * 4_001)
def test_words_are_summed_alike_in_parts_and_in_a_loop(data: bytes) -> None:
    padded = data + bytes(len(data) % 2)
    words = sum(int.from_bytes(padded[at : at + 2], "big") for at in range(0, len(padded), 2))
    assert checksum.sum_words(memoryview(data)) % 0xFFFF == words % 0xFFFF
    assert (checksum._sum_compiled(data) << 8) % 0xFFFF == words % 0xFFFF


def test_a_checksum_may_be_zero() -> None:
    file = record([Chunk(0, True, b"ab")] * 65_535, ENDS[:1])  # the numbers give every sum
    sums = [data[36:38] for _, _, data, _ in packets(file)]
    zero = sums.index(b"\0\0")
    assert b"\xff\xff" not in sums  # of a sum that is not zero there is no such complement
    assert right_checksums(packets(file)[zero][2])


def test_nothing_carried_writes_nothing() -> None:
    assert len(packets(record([Chunk(0, True, b"")] * 3, ENDS[:1]))) == 7


def addresses(*ends: tuple[str, str]) -> list[str]:
    """The connections that pwire finds, all open at once."""
    file = record([Chunk(number, True, PING) for number in range(len(ends))], list(ends))
    return [str(frame.connection) for frame in read_frames(io.BytesIO(file))]


@pytest.mark.parametrize(
    ("client", "server", "found"),
    [
        ("1.2.3.4:567", "5.6.7.8:6650", "1.2.3.4:567-5.6.7.8:6650"),
        ("[::1]:567", "[2001:db8::2]:6650", "[::1]:567-[2001:db8::2]:6650"),
        ("[fe80::1%eth0]:567", "[fe80::2]:6650", "[fe80::1]:567-[fe80::2]:6650"),
        ("1.2.3.4:567", "[::1]:6650", "[::ffff:102:304]:567-[::1]:6650"),
        ("", "", "198.18.0.0:49152-198.19.0.0:6650"),
        ("1.2.3.4:567", "broker.example:6651", "1.2.3.4:567-198.19.0.0:6651"),
        ("[::1]:567", "broker.example:6651", "[::1]:567-[::ffff:c613:0]:6651"),
        ("/run/a.sock", "1.2.3.4", "198.18.0.0:49152-198.19.0.0:6650"),
        ("1.2.3.4:0", "5.6.7.8:65536", "198.18.0.0:49152-198.19.0.0:6650"),
        (":1", "5.6.7.8:-1", "198.18.0.0:1-198.19.0.0:6650"),
    ],
)
def test_addresses_are_the_connections_or_stand_in(client: str, server: str, found: str) -> None:
    assert addresses((client, server)) in ([found], [found.replace("::ffff:102:304", "::ffff:1.2.3.4")])


def test_connections_never_mix() -> None:
    found = addresses(*ENDS, *ENDS)
    assert len(set(found)) == 2 * len(ENDS)
    assert found[:4] == [
        "10.0.0.1:50000-10.0.0.2:6650",
        "[::1]:50001-[::1]:6650",
        "198.18.0.2:49152-198.19.0.2:6650",
        "198.18.0.3:49152-10.0.0.2:6650",
    ]


def test_stand_ins_are_distinct_beyond_the_block_of_addresses() -> None:
    file = io.BytesIO()
    made = SessionWriter(file)
    for index in (0, 65_536, 2**30, -1):
        made.opened(some(index, ("", "broker:6650")), 1)
    assert [(tcp.underlayer.src, tcp.sport) for tcp in parsed(file.getvalue())[::3]] == [
        ("198.18.0.0", 49_152),
        ("198.18.0.0", 49_153),
        ("198.18.0.1", 49_152),
        ("198.18.255.255", 65_535),
    ]


# ---- Opening, again and not at all ----


@pytest.mark.parametrize("close", [True, False])
@pytest.mark.parametrize("ends", ENDS)
def test_closing_and_opening_again_gives_two_connections(ends: tuple[str, str], close: bool) -> None:
    file = io.BytesIO()
    made = SessionWriter(file)
    connection = some(4, ends)
    for time_ns in (1, 2):
        made.opened(connection, time_ns)
        made.carried(connection, True, PING, time_ns)
        made.carried(connection, False, PONG[:5], time_ns)  # which must not continue in the next one
        if close:
            made.closed(connection, time_ns)
    made.closed(connection, 2)
    events = list(read_events(io.BytesIO(file.getvalue())))
    frames = [event for event in events if isinstance(event, Frame) and not event.partial]
    assert [(frame.connection.index, frame.raw, frame.time_ns) for frame in frames] == [
        (0, PING, 1),
        (1, PING, 2),
    ]
    assert len(troubles(events)) == 2
    assert [int(tcp.flags) for tcp in parsed(file.getvalue())].count(SYN) == 2
    assert len({(tcp.sport, tcp.seq) for tcp in parsed(file.getvalue()) if tcp.flags == "S"}) == 2


def test_what_an_unopened_connection_carries_opens_it() -> None:
    file = io.BytesIO()
    made = SessionWriter(file)
    made.closed(some(), 1)
    assert packets(file.getvalue()) == []
    made.carried(some(), True, PING, 2)
    assert [int(tcp.flags) for tcp in parsed(file.getvalue())] == [SYN, SYN | ACK, ACK, PSH | ACK]


def test_a_full_disk_is_an_oserror() -> None:
    class Full(io.BytesIO):
        full = False

        def write(self, data: Any, /) -> int:
            if self.full:
                raise OSError(28, "No space left on device")
            return super().write(data)

    file = Full()
    made = SessionWriter(file)
    made.opened(some(), 1)
    file.full = True
    with pytest.raises(OSError, match="No space left"):
        made.opened(some(1), 2)
    with pytest.raises(OSError, match="No space left"):
        made.carried(some(), True, PING, 2)
    with pytest.raises(OSError, match="No space left"):
        made.closed(some(), 3)
    assert len(packets(file.getvalue())) == 3


# ---- What was not seen ----


class Unseen(NamedTuple):
    connection: int
    to_broker: bool
    size: int


def whole(events: Iterable[Event]) -> list[tuple[int, bytes]]:
    """The frames that are not cut: offset and bytes."""
    return [(event.offset, event.raw) for event in events if isinstance(event, Frame) and not event.partial]


@st.composite
def holed_talks(draw: st.DrawFn) -> list[Chunk | Unseen]:
    """A talk of which some chunks were not seen, and much else was not seen either."""
    chunks: list[Chunk | Unseen] = []
    for chunk in draw(talks())[0]:
        lost = draw(st.sampled_from([False, False, True]))
        chunks.append(Unseen(chunk.connection, chunk.to_broker, len(chunk.data)) if lost else chunk)
        if draw(st.sampled_from([False] * 7 + [True])):
            size = draw(st.sampled_from([0, 1, 2**20, 2**22 + 1, 2**31, 2**32 + 5]))
            chunks.append(Unseen(chunk.connection, chunk.to_broker, size))
    return chunks


@given(holed_talks(), isns)
@example([Unseen(0, True, 2**33), Chunk(0, True, PING * 2), Unseen(0, True, 3), Chunk(0, False, PONG)], 1)
@example(  # the client's ACKs for what was not seen come while what the broker sends waits for the client's
    [
        *(Unseen(0, True, 6), Chunk(0, False, PONG), Unseen(0, False, 2**31)),
        *(Chunk(0, True, PING), Chunk(0, False, PONG)),
    ],
    1,
)
@example(  # the same with two holes, of which only the second is known of by then
    [
        *(Unseen(0, False, 1), Chunk(0, False, PONG), Unseen(0, False, 1), Chunk(0, False, PONG)),
        *(Chunk(0, True, PING), Unseen(0, True, 2**31), Chunk(0, True, PING)),
    ],
    1,
)
@settings(max_examples=50, deadline=None)
def test_what_was_not_seen_is_missing_and_the_rest_as_it_was(chunks: list[Chunk | Unseen], isn: int) -> None:
    file = io.BytesIO()
    made = SessionWriter(file, isn=isn)
    connections = [Connection(number, *each) for number, each in enumerate(ENDS)]
    expected: dict[tuple[int, bool], list[tuple[int, bytes]]] = {}
    streams = {
        (number, to_broker): FrameStream(connections[number], to_broker)
        for number in range(len(ENDS))
        for to_broker in (True, False)
    }
    for connection in connections:
        made.opened(connection, START_NS)
    for chunk in chunks:
        one = chunk.connection, chunk.to_broker
        if isinstance(chunk, Unseen):
            made.gap(connections[chunk.connection], chunk.to_broker, chunk.size, START_NS)
            events = streams[one].gap(chunk.size) if chunk.size else []
        else:
            made.carried(connections[chunk.connection], chunk.to_broker, chunk.data, START_NS)
            events = streams[one].feed(chunk.data)
        expected.setdefault(one, []).extend(whole(events))
    for one, stream in streams.items():
        expected.setdefault(one, []).extend(whole(stream.close()))
    found: dict[tuple[int, bool], list[tuple[int, bytes]]] = {}
    for event in read_events(io.BytesIO(file.getvalue())):
        if whole([event]):
            found.setdefault((event.connection.index, event.to_broker), []).extend(whole([event]))
    assert found == {one: those for one, those in expected.items() if those}
    unseen = sum(chunk.size for chunk in chunks if isinstance(chunk, Unseen))
    assert len(packets(file.getvalue())) <= 3 * len(ENDS) + 2 * len(chunks) + unseen // 2**20


def test_a_gap_of_a_connection_that_is_not_open_opens_it() -> None:
    file = io.BytesIO()
    made = SessionWriter(file)
    made.gap(some(), False, 10, 1)
    made.carried(some(), False, PONG, 2)
    assert [int(tcp.flags) for tcp in parsed(file.getvalue())] == [SYN, SYN | ACK, ACK, PSH | ACK]
    gap, frame = read_events(io.BytesIO(file.getvalue()))
    assert isinstance(gap, Gap)
    assert (gap.size, gap.to_broker) == (10, False)
    assert isinstance(frame, Frame)
    assert (frame.raw, frame.offset) == (PONG, 10)


# ---- Wireshark ----

NOTE = 0x400000
FIELDS = ["_ws.expert.severity", "_ws.expert.message", "ip.checksum.status", "tcp.checksum.status"]
FIELDS += ["tcp.stream", "tcp.len", "tcp.analysis.flags"]


@pytest.mark.skipif(TSHARK is None, reason="tshark is not installed")
@pytest.mark.parametrize("isn", [1, 2**32 - 2000])
def test_tshark_has_no_complaint(isn: int, tmp_path: Path) -> None:
    path = tmp_path / "session.pcapng"
    chunks = [Chunk(n % len(ENDS), n % 5 < 3, send(b"\xff" * n, n)) for n in range(600)]
    large = send(b"\xfe\xff" * 2_000_001)
    chunks += [Chunk(number, True, part) for number in range(2) for part in (large, large)]
    chunks += [Chunk(number, False, PONG) for number in range(len(ENDS))]
    path.write_bytes(record(chunks, isn=isn))
    checks = ["-o", "ip.check_checksum:TRUE", "-o", "tcp.check_checksum:TRUE"]
    checks += ["-d", "tcp.port==1-65535,data"]  # else short frames are taken for SMPP on some ports
    shown = ["-T", "fields", *(part for field in FIELDS for part in ("-e", field))]
    command = [str(TSHARK), "-n", "-r", str(path), *checks, *shown]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert [line for line in done.stderr.splitlines() if "root" not in line] == []
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert len(rows) == len(packets(path.read_bytes()))
    complaints = [row for row in rows if any(int(one) > NOTE for one in row[0].split(",") if one)]
    assert complaints == []
    notes = [row for row in rows if str(NOTE) in row[0] and "connection closing" not in row[1]]
    assert notes == []
    assert {row[2] for row in rows} == {"1", ""}  # good; IPv6 has none
    assert {row[3] for row in rows} == {"1"}
    assert len({row[4] for row in rows}) == len(ENDS)
    assert sum(int(row[5]) for row in rows) == sum(len(chunk.data) for chunk in chunks)
    assert {row[6] for row in rows} == {""}


@pytest.mark.skipif(TSHARK is None, reason="tshark is not installed")
def test_tshark_finds_that_unseen_bytes_were_not_captured_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "session.pcapng"
    with path.open("wb") as file:
        made = SessionWriter(file)
        for number in range(40):
            for to_broker in (True, False):
                made.carried(some(), to_broker, PING, START_NS + number)
            made.gap(some(), number % 3 == 0, (1, 70_000, 9_000_000)[number % 3], START_NS + number)
    shown = ["-T", "fields", "-e", "tcp.analysis.flags", "-e", "_ws.expert.message"]
    command = [str(TSHARK), "-n", "-r", str(path), "-d", "tcp.port==6650,data", *shown]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    said = {each for flags, text in rows if flags for each in text.split("),")}
    assert {text.partition(" (")[0] for text in said} == {
        "Previous segment(s) not captured",
        "ACKed segment that wasn't captured",
    }
