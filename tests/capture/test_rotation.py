"""Rotated files are one capture with the frames of one file, and each of them is good by itself."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from segments import PING, PONG, START_NS, build, conversation, message, send, troubles

from pulsarctl_wire.capture import read_events, read_frames
from pulsarctl_wire.capture.rotation import GATHERED, RotatingFiles, RotatingWriter
from pulsarctl_wire.capture.sources import Decoder, open_source
from pulsarctl_wire.wire.frame import Connection, Event, Frame, Gap

TSHARK = shutil.which("tshark")
SECOND = 1_000_000_000
About = tuple[object, ...]


def some(index: int = 0) -> Connection:
    return Connection(index, f"10.0.0.1:{50_000 + index}", "10.0.0.2:6650")


def decoded(paths: Iterable[Path]) -> list[Event]:
    """The events of files that continue each other."""
    decoder = Decoder()
    events: list[Event] = []
    for path in paths:
        source = open_source(str(path))
        with source.stream:
            events += chain.from_iterable(decoder.read(source))
    return [*events, *chain.from_iterable(decoder.finish())]


def talk(made: RotatingWriter, connections: int = 3, frames: int = 150) -> list[bytes]:
    """Conversations of several connections, a millisecond a frame; gives the frames in order."""
    ends = [some(number) for number in range(connections)]
    for connection in ends:
        made.opened(connection, START_NS)
    turns = conversation([bytes([number % 256]) * (number * 7 % 1500) for number in range(frames)])
    raws = []
    for number, (to_broker, raw) in enumerate(turns):
        for connection in ends:
            made.carried(connection, to_broker, raw, START_NS + number * SECOND // 1000)
            raws.append(raw)
    for connection in ends:
        made.closed(connection, START_NS + len(turns) * SECOND // 1000)
    made.files.close()
    return raws


def about(events: list[Event]) -> list[About]:
    """What events are, without the packets that they came in."""
    return [
        (
            *(event.number, event.raw, event.connection.index, event.to_broker, event.offset, event.time_ns),
            *(event.topic, event.subscription, event.request, event.latency_ns),
        )
        for event in events
        if isinstance(event, Frame)
    ]


# ---- All files together ----


@pytest.fixture(scope="module")
def one_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[bytes], list[About]]:
    """What was said, and what one file has of it."""
    path = tmp_path_factory.mktemp("rotation") / "talk.pcapng"
    one = RotatingWriter(path, START_NS)
    raws = talk(one)
    assert one.files.paths == [path]
    return raws, about(decoded([path]))


@given(size=st.integers(1_000, 200_000), period_ns=st.sampled_from([0, SECOND // 20, SECOND]))
@settings(max_examples=15, deadline=None)
def test_all_files_hold_the_frames_of_one(
    one_file: tuple[list[bytes], list[About]],
    tmp_path_factory: pytest.TempPathFactory,
    size: int,
    period_ns: int,
) -> None:
    raws, expected = one_file
    path = tmp_path_factory.mktemp("rotation") / "talk.pcapng"
    many = RotatingWriter(path, START_NS, size=size, period_ns=period_ns)
    assert talk(many) == raws
    assert len(many.files.paths) > 1
    events = decoded(many.files.paths)
    assert troubles(events) == []
    assert about(events) == expected
    assert sorted(raw for event in events if isinstance(event, Frame) for raw in [event.raw]) == sorted(raws)


def test_each_file_opens_by_itself(tmp_path: Path) -> None:
    made = RotatingWriter(tmp_path / "talk.pcapng", START_NS, size=20_000)
    talk(made)
    assert len(made.files.paths) > 10
    for path in made.files.paths:
        assert path.read_bytes()[:4] == b"\x0a\x0d\x0d\x0a"
    for path in made.files.paths[:-1]:
        events = list(read_events(path))
        assert troubles(events) == []
        assert len({event.connection.index for event in events}) == 3
        assert {event.connection.server for event in events} == {"10.0.0.2:6650"}


def test_each_file_says_which_address_of_the_proxy_the_client_came_to(tmp_path: Path) -> None:
    made = RotatingWriter(tmp_path / "a.pcapng", START_NS, size=1)
    connection = some()
    connection.listener = "dev-box:6649"
    made.opened(connection, START_NS)
    for _ in range(3):
        made.carried(connection, True, PING, START_NS)
    made.closed(connection, START_NS)
    made.files.close()
    assert len(made.files.paths) == 5
    for path in made.files.paths[:-1]:
        assert {event.connection.listener for event in read_events(path)} <= {"dev-box:6649"}
    assert [event.connection.listener for event in decoded(made.files.paths)] == ["dev-box:6649"] * 3


def test_a_frame_and_a_gap_may_go_on_in_the_next_file(tmp_path: Path) -> None:
    made = RotatingWriter(tmp_path / "a.pcapng", START_NS, size=1)
    large = send(b"x" * 200)
    for part in (large[:100], large[100:], PING):
        made.carried(some(), True, part, START_NS)
    made.gap(some(), False, 7_000_000_000, START_NS)
    made.carried(some(), False, PONG, START_NS)
    made.closed(some(), START_NS)
    made.files.close()
    assert len(made.files.paths) == 6
    events = decoded(made.files.paths)
    assert [event.raw for event in events if isinstance(event, Frame)] == [large, PING, PONG]
    assert sum(event.size for event in events if isinstance(event, Gap)) == 7_000_000_000


# ---- When a file ends ----


def test_a_file_ends_with_the_call_that_fills_it(tmp_path: Path) -> None:
    made = RotatingWriter(tmp_path / "a.pcapng", START_NS, size=10_000)
    for number in range(100):
        made.carried(some(), True, send(b"x" * 1000, number), START_NS)
    made.files.close()
    sizes = [path.stat().st_size for path in made.files.paths]
    assert all(10_000 <= size < 12_000 for size in sizes[:-1])
    assert len(sizes) > 5


def test_a_period_begins_with_the_first_packet_of_its_file(tmp_path: Path) -> None:
    made = RotatingWriter(tmp_path / "a.pcapng", START_NS, period_ns=60 * SECOND)
    for second in (3600, 3630, 3659, 3660, 3661, 3719, 7200):
        made.carried(some(), True, build("PING"), START_NS + second * SECOND)
    made.files.close()
    found = [
        [((frame.time_ns or 0) - START_NS) // SECOND for frame in read_frames(path)]
        for path in made.files.paths
    ]
    assert found == [[3600, 3630, 3659], [3660, 3661, 3719], [7200]]


def test_files_are_named_and_only_the_last_ones_kept(tmp_path: Path) -> None:
    made = RotatingWriter(tmp_path / "my.orders.pcapng", START_NS, size=1, keep=3)
    for number in range(12):
        made.carried(some(), True, PING, START_NS + number * SECOND)
    (tmp_path / made.files.paths[0].name).unlink()  # somebody was faster
    made.carried(some(), True, PING, START_NS + 12 * SECOND)
    made.files.close()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [path.name for path in made.files.paths]
    assert len(names) == 3
    for number, name in zip(range(11, 14), names, strict=True):
        assert re.fullmatch(
            rf"my\.orders_{number:05}_2023111[345]\d{{6}}\.pcapng|my\.orders_{number:05}_202311\d{{8}}\.pcapng",
            name,
        )
    assert [len(list(read_frames(path))) for path in made.files.paths] == [1, 1, 1]


def test_without_rotation_there_is_one_file_of_that_name(tmp_path: Path) -> None:
    made = RotatingWriter(tmp_path / "a.pcapng", START_NS, keep=1)
    for number in range(10):
        made.carried(some(), True, send(b"x" * 100_000), START_NS + number * 3600 * SECOND)
    made.files.close()
    assert [path.name for path in tmp_path.iterdir()] == ["a.pcapng"]


@pytest.mark.parametrize("size", [0, 2_000])
def test_what_continues_a_recording_overwrites_nothing_of_it(size: int, tmp_path: Path) -> None:
    path = tmp_path / "seen.pcapng"
    old = tmp_path / "seen_00099_20010101000000.pcapng"
    old.write_bytes(b"of another run")
    since: int | None = None
    kept: dict[Path, bytes] = {}
    for turn in range(3):
        made = RotatingWriter(path, START_NS + turn * SECOND, size=size, keep=size and 500, since_ns=since)
        talk(made, frames=20)
        assert all(kept[each] == each.read_bytes() for each in kept)
        assert [each for each in kept if each not in made.files.paths and each != path] == []
        kept.update((each, each.read_bytes()) for each in made.files.paths)
        since = START_NS
    assert old.read_bytes() == b"of another run"
    numbers = [int(each.name.split("_")[1]) for each in sorted(kept) if each != path]
    assert numbers == list(range(1 if size else 2, len(kept) + 1))


def test_a_device_is_continued_as_it_is(tmp_path: Path) -> None:
    made = RotatingWriter(Path("/dev/null"), START_NS, since_ns=START_NS)
    talk(made)
    assert made.files.paths == [Path("/dev/null")]


def test_what_is_flushed_is_there(tmp_path: Path) -> None:
    path = tmp_path / "a.pcapng"
    made = RotatingWriter(path, START_NS)
    made.carried(some(), True, PING, START_NS)
    assert path.stat().st_size == 0
    made.files.flush()
    assert [frame.raw for frame in read_frames(path)] == [PING]
    made.carried(some(), False, message(b"x" * GATHERED), START_NS)
    assert path.stat().st_size > GATHERED  # so much does not wait
    made.files.close()


# ---- What cannot be written ----


def test_a_directory_that_is_not_there_is_an_oserror_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RotatingWriter(tmp_path / "none" / "a.pcapng", START_NS)


_FULL = """
import resource, sys
from pathlib import Path
from segments import START_NS, send
from pulsarctl_wire.capture.rotation import RotatingWriter
from pulsarctl_wire.wire.frame import Connection

made = RotatingWriter(Path(sys.argv[1]), START_NS, size=int(sys.argv[2]))
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
connection = Connection(0, "10.0.0.1:50000", "10.0.0.2:6650")
for number in range(2000):
    try:
        made.carried(connection, True, send(b"x" * 999, number), START_NS)
        if number % 7 == 0:
            made.files.flush()
    except OSError as error:
        print(error.errno)
        break
made.files.close()
"""


@pytest.mark.parametrize("size", [0, 190_000, 1_000_000])
def test_a_file_that_cannot_grow_ends_with_a_whole_packet(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.pcapng"
    done = subprocess.run(
        [sys.executable, "-c", _FULL, str(path), str(size)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={"PYTHONPATH": str(Path(__file__).parent)},
    )
    files = sorted(tmp_path.iterdir())
    events = decoded(files)
    assert troubles(events) == []
    frames = [event.raw for event in events if isinstance(event, Frame)]
    assert frames == [send(b"x" * 999, number) for number in range(len(frames))]
    if size == 190_000:  # files are never so large
        assert (done.stdout, len(frames), len(files)) == ("", 2000, 12)
    else:
        assert done.stdout == "27\n"  # EFBIG
        assert len(files) == 1
        assert 190_000 < files[0].stat().st_size <= 200_000


# ---- Wireshark ----


@pytest.mark.skipif(TSHARK is None, reason="tshark is not installed")
def test_tshark_has_no_complaint(tmp_path: Path) -> None:
    made = RotatingWriter(tmp_path / "talk.pcapng", START_NS, size=150_000)
    talk(made)
    assert len(made.files.paths) > 3
    shown = [
        "-T",
        "fields",
        "-e",
        "tcp.analysis.flags",
        "-e",
        "tcp.checksum.status",
        "-e",
        "_ws.expert.severity",
    ]
    for path in made.files.paths:
        command = [str(TSHARK), "-n", "-r", str(path), "-o", "tcp.check_checksum:TRUE"]
        command += ["-d", "tcp.port==6650,data", *shown]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        assert [line for line in done.stderr.splitlines() if "root" not in line] == []
        rows = [line.split("\t") for line in done.stdout.splitlines()]
        assert len(rows) > 10
        assert {row[0] for row in rows} == {""}
        assert {row[1] for row in rows} == {"1"}
        assert all(int(one) <= 0x400000 for row in rows for one in row[2].split(",") if one)


def test_more_files_than_five_digits_number(tmp_path: Path) -> None:
    names = [f"o_{number}_20251122093000.pcapng" for number in (99_998, 99_999, 100_000)]
    for name in names:
        (tmp_path / name).touch()
    files = RotatingFiles(tmp_path / "o.pcapng", START_NS, size=100, keep=3, since_ns=1)
    files.close()
    assert [path.name for path in files.paths[:2]] == names[1:]
    assert files.paths[2].name.startswith("o_100001_")
    assert sorted(tmp_path.iterdir()) == sorted(files.paths)
