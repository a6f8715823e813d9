"""Which files of a directory are taken up when: each once, when it is complete."""

from __future__ import annotations

import json
import struct
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pulsarctl_wire.capture import series
from pulsarctl_wire.cli.metrics import FollowCollector, serve
from pulsarctl_wire.pipeline.decoding.edges import Decoded, Options, Settings
from pulsarctl_wire.pipeline.decoding.progress import Totals
from pulsarctl_wire.pipeline.files.splits import Input
from pulsarctl_wire.pipeline.storage import saved
from pulsarctl_wire.spark.follow import IDLE, QUIET, RotatedReader, Status, _left_out

SAMPLES = Path(__file__).parents[2] / "samples" / "pcaps"


def pieces(count: int, sample: str = "auth-token.pcap") -> list[bytes]:
    """A capture cut into `count` files."""
    data = (SAMPLES / sample).read_bytes()
    starts, at = [], 24
    while at < len(data):
        starts.append(at)
        at += 16 + struct.unpack_from("<I", data, at + 8)[0]
    cuts = [*starts[:: -(-len(starts) // count)], len(data)]
    return [data[:24] + data[start:stop] for start, stop in pairwise(cuts)]


class Following:
    """A reader, with a clock of ours; offsets go through JSON, as in Spark's checkpoint."""

    def __init__(self, directory: Path, start: dict[str, Any] | None = None) -> None:
        self.now = 0.0
        (directory / "drafts").mkdir(exist_ok=True)
        self.reader = RotatedReader(
            str(directory), Settings(str(directory / "drafts"), Options(10**9)), lambda: self.now
        )
        self.offset = start or self.reader.initialOffset()

    def look(self, after: float = 0.0) -> list[str]:
        """The names of the files that are taken up `after` so many seconds."""
        return [Path(each.name).name for part in self.parts(after) for each in part.split.inputs]

    def parts(self, after: float = 0.0) -> list[Any]:
        self.now += after
        limit = self.reader.getDefaultReadLimit()
        end = json.loads(json.dumps(self.reader.latestOffset(self.offset, limit)))
        if end == self.offset:
            return []
        parts = self.reader.partitions(self.offset, end)
        numbers = [file for part in parts for file in range(part.split.file, part.split.next_file)]
        assert numbers == list(range(self.offset["files"], end["files"]))
        self.offset = end
        return parts

    def decoded(self, part: Any) -> Any:
        ((_, _, data),) = self.reader.read(part)
        return saved.load(data, Decoded, "a row")


def test_a_file_is_taken_once_another_of_its_series_follows(tmp_path: Path) -> None:
    following, files = Following(tmp_path), pieces(4)
    assert not following.look()
    (tmp_path / "x.pcap").write_bytes(files[0])
    assert not following.look()
    assert not following.look(QUIET)
    (tmp_path / "x.pcap1").write_bytes(files[1])
    assert following.look(1) == ["x.pcap"]
    assert not following.look(QUIET)
    (tmp_path / "x.pcap2").write_bytes(files[2])
    assert following.look() == ["x.pcap1"]


def test_a_file_that_still_grows_is_waited_for(tmp_path: Path) -> None:
    following, files = Following(tmp_path), pieces(4)
    path = tmp_path / "x.pcap"
    (tmp_path / "x.pcap1").write_bytes(files[1])
    for size in range(1_000, len(files[0]), 1_000):
        path.write_bytes(files[0][:size])
        assert not following.look(QUIET - 1)
    path.write_bytes(files[0])
    assert not following.look()
    assert following.look(QUIET) == ["x.pcap"]


def test_hosts_in_one_directory_wait_for_their_own_files_only(tmp_path: Path) -> None:
    following, files = Following(tmp_path), pieces(6)
    for name, data in zip(("b_1.pcap", "a_1.pcap", "a_2.pcap", "a_3.pcap"), files, strict=False):
        (tmp_path / name).write_bytes(data)
    following.look()
    assert following.look(QUIET) == ["a_1.pcap", "a_2.pcap"]
    (tmp_path / "b_2.pcap").write_bytes(files[4])
    assert following.look() == ["b_1.pcap"]
    assert following.look(IDLE) == ["a_3.pcap", "b_2.pcap"]
    assert not following.look(IDLE)


def test_hosts_that_differ_by_a_number_do_not_end_each_other(tmp_path: Path) -> None:
    """Their files overlap in time, so that none follows the other."""
    following, files = Following(tmp_path), pieces(3)
    (tmp_path / "broker-0.pcap").write_bytes(files[0] + files[2][24:])
    (tmp_path / "broker-1.pcap").write_bytes(files[1])
    following.look()
    assert not following.look(QUIET)
    assert following.look(IDLE) == ["broker-0.pcap", "broker-1.pcap"]


def test_a_ring_of_names(tmp_path: Path) -> None:
    """tcpdump -W 3: names come again with other contents, and each is taken up every time."""
    following, files = Following(tmp_path), pieces(9)
    taken = []
    for number, data in enumerate(files):
        (tmp_path / f"x.pcap{number % 3}").write_bytes(data)
        taken += following.look()
        taken += following.look(QUIET)
    assert taken == [f"x.pcap{number % 3}" for number in range(8)]


def test_renamed_and_compressed_files_are_not_taken_again(tmp_path: Path) -> None:
    import gzip

    following, files = Following(tmp_path), pieces(3)
    for number, data in enumerate(files):
        (tmp_path / f"x.pcap{number}").write_bytes(data)
    following.look()
    assert following.look(QUIET) == ["x.pcap0", "x.pcap1"]
    (tmp_path / "x.pcap0").rename(tmp_path / "x.pcap7")
    (tmp_path / "x.pcap1.gz").write_bytes(gzip.compress(files[1]))
    (tmp_path / "x.pcap1").unlink()
    assert not following.look()
    assert not following.look(QUIET)


def test_files_are_captures_by_their_contents(tmp_path: Path) -> None:
    following, files = Following(tmp_path), pieces(2)
    (tmp_path / "ring3").write_bytes(files[0])
    (tmp_path / "x.pcap").write_bytes(b"")
    following.reader.prepareForTriggerAvailableNow()
    assert following.look() == ["ring3"]
    notes: list[str] = []
    with _left_out(str(tmp_path), notes.append):
        (tmp_path / "x.pcap").write_bytes(files[1])
        (tmp_path / "words").write_bytes(b"words")
    assert notes == [f"{tmp_path}: 1 file is not a capture: {name}" for name in ("x.pcap", "words")]


def test_a_file_that_was_empty_at_first(tmp_path: Path) -> None:
    following, files = Following(tmp_path), pieces(1)
    (tmp_path / "x.pcap").write_bytes(b"")
    assert not following.look(IDLE)
    (tmp_path / "x.pcap").write_bytes(files[0])
    assert not following.look(IDLE)
    assert following.look(IDLE) == ["x.pcap"]


def test_files_that_begin_with_the_same_packet_are_taken_each(tmp_path: Path) -> None:
    """Two tcpdumps on one host: one takes more than the other, and both see the same packet first."""
    following, (data,) = Following(tmp_path), pieces(1)
    first = 24 + 16 + struct.unpack_from("<I", data, 24 + 8)[0]
    second = first + 16 + struct.unpack_from("<I", data, first + 8)[0]
    (tmp_path / "dump1.pcap").write_bytes(data)
    (tmp_path / "dump2.pcap").write_bytes(data[:first] + data[second:])
    (tmp_path / "dump3.pcap").write_bytes(data[:first])
    following.reader.prepareForTriggerAvailableNow()
    assert sorted(following.look()) == ["dump1.pcap", "dump2.pcap", "dump3.pcap"]
    (tmp_path / "dump2.pcap").rename(tmp_path / "dump4.pcap")
    (tmp_path / "dump3.pcap").rename(tmp_path / "dump2.pcap")
    assert not following.look()
    with (tmp_path / "dump1.pcap").open("ab") as file:
        file.write(data[first:second])
    (part,) = following.parts()
    assert "has grown by" in following.decoded(part).problems[0][1]
    assert not following.look(IDLE)


def test_files_that_begin_with_many_packets_in_common(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gzip

    monkeypatch.setattr(series, "_HEAD", 200)
    following, files = Following(tmp_path), pieces(2)
    contents = {"dump1.pcap": files[0], "dump2.pcap": files[0] + files[1][24:]}
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    following.look()
    assert following.look(IDLE) == list(contents)
    (tmp_path / "dump2.pcap").rename(tmp_path / "dump3.pcap")
    assert not following.look(IDLE)
    (tmp_path / "dump1.pcap.gz").write_bytes(gzip.compress(files[0]))
    assert not following.look(IDLE)
    (tmp_path / "dump1.pcap").unlink()
    assert not following.look(IDLE)


def test_a_file_that_grows_while_the_last_ones_are_taken(tmp_path: Path) -> None:
    following, files = Following(tmp_path), pieces(2)
    path = tmp_path / "x.pcap"
    path.write_bytes(files[0])
    following.reader.prepareForTriggerAvailableNow()
    path.write_bytes(files[0] + files[1][24:])
    assert following.look() == ["x.pcap"]


def test_it_goes_on_where_it_ended(tmp_path: Path) -> None:
    first, files = Following(tmp_path), pieces(5)
    for number, data in enumerate(files[:3]):
        (tmp_path / f"x.pcap{number}").write_bytes(data)
    first.look()
    assert first.look(QUIET) == ["x.pcap0", "x.pcap1"]
    (tmp_path / "x.pcap3").write_bytes(files[3])
    again = Following(tmp_path, first.offset)
    again.reader.prepareForTriggerAvailableNow()
    (tmp_path / "x.pcap4").write_bytes(files[4])  # too late to be taken up with --finish
    assert again.look() == ["x.pcap2", "x.pcap3"]
    assert not again.look(IDLE)


def test_what_comes_too_late_is_said(tmp_path: Path) -> None:
    following, files = Following(tmp_path), pieces(3)
    path = tmp_path / "x.pcap"
    path.write_bytes(files[0])
    following.look()
    assert following.look(IDLE) == ["x.pcap"]
    path.write_bytes(files[0] + files[1][24:])
    (part,) = following.parts()
    ((name, what, damaged),) = following.decoded(part).problems
    assert (name, damaged) == (str(path), True)
    assert f"has grown by {len(files[1]) - 24} bytes since it was added" in what
    assert not following.parts(IDLE)


def test_a_file_that_is_overwritten_before_it_is_read(tmp_path: Path) -> None:
    following, files = Following(tmp_path), pieces(3)
    for number, data in enumerate(files[:2]):
        (tmp_path / f"x.pcap{number}").write_bytes(data)
    following.look()
    (part,) = following.parts(QUIET)
    (tmp_path / "x.pcap0").write_bytes(files[2])
    decoded = following.decoded(part)
    assert decoded.packets == 0
    assert "was overwritten" in decoded.problems[0][1]


def test_files_that_wait_are_those_that_the_next_batch_takes(tmp_path: Path) -> None:
    following, files = Following(tmp_path), pieces(4)
    for number in range(3):
        (tmp_path / f"x_{number}.pcap").write_bytes(files[number])

    def waiting() -> list[str]:
        return [Path(each.name).name for each in following.reader.waiting(following.offset)]

    assert waiting() == []  # they may still grow
    following.now += QUIET
    assert waiting() == ["x_0.pcap", "x_1.pcap"]
    following.look()
    assert waiting() == []


def test_metrics_say_how_far_it_is(tmp_path: Path) -> None:
    file = Input("x.pcap", 1, int((time.time() - 90) * 1e9))
    status = Status(Totals(read=10, problems=[("x", "is damaged", True)]), files=3, waiting=lambda: [file])
    status.count(5, 1, 100)
    status.end_batch(2.5)
    with ExitStack() as stack, urlopen(serve(":0", FollowCollector(status), stack)) as answer:
        text = answer.read().decode()
    values = {
        each.name: each.value for family in text_string_to_metric_families(text) for each in family.samples
    }
    assert 90 <= values["pwire_follow_lag_seconds"] < 150
    assert values["pwire_follow_last_batch_timestamp_seconds"] <= time.time()
    assert {
        "pwire_follow_waiting_files": 1,
        "pwire_follow_last_batch_seconds": 2.5,
        "pwire_follow_batches_total": 1,
        "pwire_follow_files_total": 3,
        "pwire_follow_read_bytes_total": 10,
        "pwire_follow_frames_total": 5,
        "pwire_follow_gaps_total": 1,
        "pwire_follow_problems_total": 1,
    }.items() <= values.items()
