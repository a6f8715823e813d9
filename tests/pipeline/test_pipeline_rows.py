"""However a capture is split, its rows are those that one process has."""

from __future__ import annotations

import io
import random
import runpy
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pipeline.comparing import alone, first_difference, together, together_in_memory
from pipeline.traffic import capture

from pulsarctl_wire.pipeline.decoding.edges import Options
from pulsarctl_wire.pipeline.files import splits
from pulsarctl_wire.wire.detail import JSON, MessageOptions

SAMPLES = Path(__file__).parents[2] / "samples" / "pcaps"
CAPTURES = sorted(path.name for path in SAMPLES.glob("*.pcap*"))
FAST = Path("/dev/shm")
generate = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "generate.py"))["generate"]


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """A directory in memory, where there is one."""
    with tempfile.TemporaryDirectory(dir=FAST if FAST.is_dir() else None) as path:
        yield Path(path)


def check(paths: list[str], out: Path, options: Options) -> int:
    """Compare; gives the number of connections that were read again."""
    found, totals = together_in_memory(paths, out, options)
    one = replace(options, split_size=Options().split_size)
    assert not first_difference(alone(paths, one), found)
    return totals.read_again


@pytest.mark.parametrize("parts", [2, 12, 5])
@pytest.mark.parametrize("name", CAPTURES)
def test_samples_in_splits(name: str, parts: int, tmp_path: Path) -> None:
    path = SAMPLES / name
    messages = MessageOptions(JSON) if parts == 5 else None
    options = Options(path.stat().st_size // parts + 1, payload=parts == 5, messages=messages)
    check([str(path)], tmp_path / "out", options)


@pytest.mark.parametrize("name", ["java-keyshared.pcap", "errors.pcap", "snaplen96.pcap"])
def test_samples_in_files_of_parquet(name: str, tmp_path: Path) -> None:
    options = Options(split_size=3_000, payload=True)
    paths = [str(SAMPLES / name)]
    assert not first_difference(alone(paths, options), together(paths, tmp_path / "out", options))


def test_all_samples_one_after_the_other(tmp_path: Path) -> None:
    options = Options(split_size=20_000)
    check([str(SAMPLES / name) for name in CAPTURES], tmp_path / "out", options)


@settings(max_examples=10)
@given(seed=st.integers(0, 2**64 - 1))
@example(seed=346666)  # who resends was read again later than who only seemed to
@example(seed=2000883)  # resent in a part, sent before another connection was synchronized
@example(seed=2002154)  # resent before the end of the connection that left it, in the same split
@example(seed=6002982)  # sent in frames that the split could not decode
@example(seed=6000053)  # sent behind a hole, in an earlier split
@example(seed=2000389)  # a frame behind a hole is no resend of what was sent later
@example(seed=4001794)  # what a connection holds at the end of the capture is no resend
@example(seed=2002173)  # connections end in order at the end of the capture
@example(seed=1000648)  # a producer that was closed before anything else was seen of it
@example(seed=1000816)  # a deferred answer that was cut
@example(seed=3002152)  # an answer without a request, after its consumer was opened
@example(seed=239)  # what begins like TLS, and is not
@example(seed=26564)  # the same: bytes that waited are reported in the usual case, too
def test_random_captures(seed: int, directory: Path) -> None:
    made = capture(random.Random(seed))
    with tempfile.TemporaryDirectory(dir=directory) as place:
        paths = []
        for file in made.files:
            (Path(place) / file.name).write_bytes(file.data)
            paths.append(str(Path(place) / file.name))
        with mock.patch.object(splits, "MAX_GROUP", 1):  # a file is a split, or several
            check(paths, Path(place) / "out", Options(made.split_size, made.max_frame_size))


@pytest.mark.parametrize(("seed", "size"), [(1, 100_000), (2, 45_000)])
@pytest.mark.parametrize("lost", [0.0, 0.001])
def test_busy_connections(seed: int, size: int, lost: float, directory: Path) -> None:
    """Duplicated and swapped packets come with the generator; here some are lost too."""
    made = io.BytesIO()
    generate(made, 4_000, 4, seed)
    path = directory / f"busy{seed}.pcap"
    path.write_bytes(without(made.getvalue(), lost, random.Random(seed)))
    read_again = check([str(path)], directory / f"out{seed}{lost}", Options(split_size=size))
    assert lost or read_again < 4  # reading again is for the unusual


def without(data: bytes, share: float, rng: random.Random) -> bytes:
    """A capture less a share of its packets."""
    kept, at = [data[:24]], 24
    while at < len(data):
        stop = at + 16 + int(struct.unpack_from("<I", data, at + 8)[0])
        if rng.random() >= share:
            kept.append(data[at:stop])
        at = stop
    return b"".join(kept)
