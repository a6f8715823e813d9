"""Saved progress is data: it comes back as it was, and what others wrote is refused or harmless."""

from __future__ import annotations

import pickle
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import msgpack
from pipeline.comparing import Now, alone, in_memory, run, stored
from pipeline.traffic import capture
from segments import START_NS, Tcp, captured, conversation, enhanced, interface, option, pcap, section

from pulsarctl_wire.capture.layout import Interface, Layout
from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline.decoding.edges import Decoded, Options, Settings
from pulsarctl_wire.pipeline.decoding.progress import Progress
from pulsarctl_wire.pipeline.decoding.rows import Stitched, TableStitcher, decode_split, new_progress
from pulsarctl_wire.pipeline.files.inputs import find_inputs
from pulsarctl_wire.pipeline.files.splits import Split, open_input, plan
from pulsarctl_wire.pipeline.run import Run
from pulsarctl_wire.pipeline.storage import saved
from pulsarctl_wire.pipeline.storage.finish import finish_split
from pulsarctl_wire.pipeline.storage.tasks import Pool
from pulsarctl_wire.wire.frame import PACKET_OFFSET_BITS

OPTIONS = Options(split_size=1_500)


class Trap:
    """What is unpickled makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


class Work:
    """The splits of some files, and the work on them, step by step."""

    def __init__(self, paths: list[str], directory: Path, options: Options = OPTIONS) -> None:
        (directory / "drafts").mkdir()
        self.settings = Settings(str(directory / "drafts"), options)
        self.out = str(directory)
        self.options = options
        self.inputs = find_inputs(paths)
        self.good = b""  # what is saved of it

    def new_progress(self) -> Progress:
        progress = new_progress(self.settings)
        progress.inputs = self.inputs
        return progress

    def splits(self, progress: Progress) -> Iterator[Split]:
        first = progress.part
        for file in range(progress.file, len(self.inputs)):
            yield from plan(file, self.inputs[file], self.options.split_size)[first:]
            first = 0

    def step(self, progress: Progress, split: Split) -> tuple[Decoded, Stitched] | None:
        settled = progress.settle(
            decode_split(split, self.settings), lambda each: decode_split(each, self.settings)
        )
        return (
            None
            if settled is None
            else (settled, progress.take(saved.load(saved.dump(settled), Decoded, "it")))
        )

    def rest(self, progress: Progress) -> None:
        """Do all that is left."""
        with in_memory():
            for split in self.splits(progress):
                if stepped := self.step(progress, split):
                    finish_split(split.name, stepped[1], self.settings, self.out)
            finish_split("end", progress.stitcher.close(), self.settings, self.out)


def written(rng: random.Random, directory: Path) -> Work:
    """The work on a random capture."""
    made = capture(rng)
    for file in made.files:
        (directory / file.name).write_bytes(file.data)
    paths = [str(directory / file.name) for file in made.files]
    return Work(paths, directory, Options(made.split_size, made.max_frame_size))


def again(progress: Progress) -> Progress:
    return saved.load_progress(saved.dump(progress), "progress/all")


# ---- What comes back ----


@settings(max_examples=15)
@given(seed=st.integers(0, 2**64 - 1))
@example(seed=3)  # no connection is open after the first file
@example(seed=1_408)  # a segment is repeated after its connection has ended
@example(seed=10_011)  # nor after the first of two that are then read side by side
def test_progress_and_rows_come_back_as_they_were(seed: int) -> None:
    """Whoever is saved and loaded after every split finds what the one finds that goes on."""
    with tempfile.TemporaryDirectory() as place:
        work = written(random.Random(seed), Path(place))
        one = other = work.new_progress()
        other = again(other)
        for split in work.splits(one):
            stepped = work.step(one, split)
            assert stepped == work.step(other, split)
            if stepped is not None:
                decoded, stitched = stepped
                assert saved.load(saved.dump(decoded), Decoded, "it") == decoded
                assert saved.load(saved.dump(stitched), Stitched, "it") == stitched
            assert saved.dump(again(one)) == saved.dump(again(other))
            other = again(other)
        assert one.stitcher.close() == other.stitcher.close()
        assert one.totals == other.totals


@pytest.mark.parametrize("resolution", [0, 9, 0x7F, 0x80, 0xFF])
def test_times_of_any_resolution(resolution: int, tmp_path: Path) -> None:
    """A unit of time may be 10^-127 seconds: that takes more than 64 bits."""
    options = (
        option("<", 9, bytes([resolution])) + option("<", 14, b"\xff" * 7 + b"\x7f") + option("<", 0, b"")
    )
    blocks = section() + interface(options=options)
    for time_ns, _, data, length in captured(Tcp().whole(conversation([b"x" * 90] * 9))):
        blocks += enhanced(time_ns or START_NS, data, length)
    (tmp_path / "a.pcapng").write_bytes(blocks)
    work = Work([str(tmp_path / "a.pcapng")], tmp_path, Options(len(blocks) // 3))
    progress = work.new_progress()
    work.step(progress, next(work.splits(progress)))
    assert again(progress).end == progress.end
    work.rest(again(progress))


def test_integers_and_texts_of_all_kinds() -> None:
    layout = Layout(True, ">", (Interface(1, 2**32 - 1, 0xFF, -(2**63), 2**64 - 1),))
    stitcher = TableStitcher(Settings(""))
    progress = Progress([], Options(2**63, 2**64 - 1), end=(2**52, layout), stitcher=stitcher)
    progress.totals.problems.append(("\0é\U0001f4a1.pcap", "is damaged", True))
    found = again(progress)
    assert (found.end, found.totals, found.options) == (progress.end, progress.totals, progress.options)


def test_a_number_that_cannot_be_saved_is_said_so() -> None:
    with pytest.raises(CaptureError, match="a number of more than 64 bits cannot be saved"):
        saved.dump(Options(2**64))


def test_names_that_are_not_utf8_are_saved(half_done: Work) -> None:
    progress = again(progress_of := saved.load_progress(half_done.good, "progress/all"))
    progress.totals.problems.append(("\udcff é.pcap", "is damaged", True))
    found = again(progress)
    assert found.totals == progress.totals
    assert found.stitcher.state() == progress_of.stitcher.state()
    assert saved.load_outline(saved.dump(progress), "it").inputs == progress.inputs
    assert _refused(sealed(b"\xc1" + b"\x91" * 5_000))
    assert _refused(sealed(b"\xc1\x92\xa2\xc3\xbf\x90"))


# ---- What others wrote ----


@pytest.mark.parametrize("name", ["all", "before-last"])
@pytest.mark.parametrize("protocol", [0, 5])
def test_a_pickle_is_not_executed(name: str, protocol: int, tmp_path: Path) -> None:
    (tmp_path / "a.pcap").write_bytes(pcap(captured(Tcp().whole(conversation()))))
    paths, out, made = [str(tmp_path / "a.pcap")], tmp_path / "out", tmp_path / "made"
    run(paths, out, OPTIONS)
    (out / "progress" / name).write_bytes(pickle.dumps(Trap(made), protocol))
    again = Run(find_inputs(paths), str(out), options=OPTIONS)
    (note,) = again.notes
    assert note.startswith(f"progress/{name} ")
    assert ": the run goes on from what was saved before; " in note
    again.run(Pool(Now()))
    assert not made.exists()
    assert stored(out, "frames") == alone(paths, OPTIONS).frames


@pytest.fixture(scope="module")
def half_done(tmp_path_factory: pytest.TempPathFactory) -> Work:
    """Work in the middle of many connections, and what is saved of it."""
    for seed in range(100):
        directory = tmp_path_factory.mktemp("work")
        work = written(random.Random(seed), directory)
        progress = work.new_progress()
        for split in list(work.splits(progress))[:-3]:
            work.step(progress, split)
        work.good = saved.dump(progress)
        if len(work.good) > 3_000:
            return work
    raise AssertionError("no such capture")


def _refused(data: bytes) -> bool:
    try:
        saved.load_progress(data, "progress/all")
    except CaptureError as error:
        return str(error).startswith("progress/all ") and str(error).endswith("--out")
    return False


def test_progress_of_an_older_version_is_refused(half_done: Work) -> None:
    older = b"pwire progress 12\n" + half_done.good[len(saved.HEAD) :]
    with pytest.raises(CaptureError, match=r"progress/all was written by another version of pwire; .*--out"):
        saved.load_progress(older, "progress/all")


@settings(max_examples=100)
@given(data=st.data())
def test_damaged_bytes_are_refused(half_done: Work, data: st.DataObject) -> None:
    good = half_done.good
    at = data.draw(st.integers(0, len(good) - 1))
    assert _refused(good[:at])
    changed = data.draw(st.binary(min_size=1, max_size=4).filter(lambda new: good[at : at + len(new)] != new))
    assert _refused(good[:at] + changed + good[at + len(changed) :])


@given(data=st.binary(max_size=200), is_checked=st.booleans())
def test_any_bytes_are_refused(data: bytes, is_checked: bool) -> None:
    assert _refused(sealed(data) if is_checked else data)
    assert _refused(saved.HEAD + data)


@pytest.mark.parametrize(
    "data",
    [
        b"\xdd\xff\xff\xff\xff",  # an array of 2^32 - 1
        b"\xdf\xff\xff\xff\xff\xc0",
        b"\xc6\xff\xff\xff\xff",
        b"\x91" * 500_000,
        b"\x81" * 5_000,
        b"\x81\x90\x90",
        b"\xc7\xff\x01" + b"\xff" * 255,
        b"\xd4\x00\x00",
    ],
)
def test_sizes_and_depths_that_are_not_there(data: bytes) -> None:
    assert _refused(sealed(data))


@pytest.mark.parametrize("end", [None, (50, Layout(False, "<", ()))])
def test_a_part_that_cannot_be_read_is_refused(end: Any) -> None:
    progress = Progress([], OPTIONS, part=1, end=end, stitcher=TableStitcher(Settings("")))
    assert _refused(saved.dump(progress))


@pytest.mark.parametrize("at", ["packet", "packets", "sources", "nowhere"])
def test_places_in_files_without_names_are_refused(half_done: Work, at: str) -> None:
    """Rows name the files of what connections still hold."""
    progress = saved.load_progress(half_done.good, "progress/all")
    waiting, state, names = progress.stitcher.state()
    tcp = state.known[0]
    one, other = tcp.state.streams
    elsewhere = max(names) + 1 << PACKET_OFFSET_BITS
    changes: dict[str, dict[str, Any]] = {
        "packets": {"lost": (*one.lost[:4], [elsewhere], one.lost[5])},
        "sources": {"sources": [(1, elsewhere, None)]},
        "nowhere": {"held": b"x", "source": -1},
    }
    if at == "packet":
        tcp = tcp._replace(packet=elsewhere)
    else:
        tcp = tcp._replace(state=tcp.state._replace(streams=(one._replace(**changes[at]), other)))
    forged = waiting, state._replace(known=[tcp, *state.known[1:]]), names
    progress.stitcher = SimpleNamespace(state=lambda: forged)
    assert _refused(saved.dump(progress))


def sealed(data: bytes) -> bytes:
    return saved.HEAD + crc32c(data).to_bytes(4, "big") + data


_EXTREMES = [
    -(2**63),
    -(2**53),
    -2,
    -1,
    0,
    1,
    2,
    255,
    2**16,
    2**31,
    2**32 - 1,
    2**44,
    2**53 - 1,
    2**62,
    2**64 - 1,
]


def _changed(value: Any, draw: Any) -> Any:
    """`value` with something in it that is something else."""
    if isinstance(value, (list, dict)) and value and draw(st.integers(0, 9)):
        if isinstance(value, dict):
            key = draw(st.sampled_from(sorted(value, key=repr)))
            return {**value, key: _changed(value[key], draw)}
        at = draw(st.integers(0, len(value) - 1))
        return [*value[:at], _changed(value[at], draw), *value[at + 1 :]]
    if isinstance(value, list):
        return draw(st.sampled_from([value * 2, value[1:], value[::-1], []]))
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        near = st.integers(-70_000, 70_000).map(lambda more: value + more)
        return draw(st.one_of(st.sampled_from(_EXTREMES), near.filter(lambda number: number < 2**64)))
    if isinstance(value, bytes):
        return draw(st.sampled_from([b"", value * 3, value[:-1], value[1:], bytes(len(value))]))
    if value is None:
        return draw(st.sampled_from([0, "", b"", (), (0, None)]))
    return draw(st.sampled_from([None, "", 0, "lookup", (), {}]))


def test_a_file_that_cannot_be_read_from_a_start_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "1.pcap"
    path.touch()
    with pytest.raises(CaptureError, match="Invalid argument"), open_input(str(path), 2**63 - 1):
        pass


@settings(max_examples=100)
@given(data=st.data())
def test_what_others_made_up_is_refused_or_gone_on_with(half_done: Work, data: st.DataObject) -> None:
    """Whoever forges the checksum too gets wrong rows at most."""
    value = msgpack.decode(half_done.good[len(saved.HEAD) + 4 :])
    for _ in range(data.draw(st.integers(1, 4))):
        value = _changed(value, data.draw)
    forged = sealed(msgpack.encode(value))
    try:
        progress = saved.load_progress(forged, "progress/all")
    except CaptureError:
        return
    progress.inputs, progress.options = half_done.inputs, half_done.options  # a run goes on only with these
    half_done.rest(progress)
