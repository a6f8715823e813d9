"""Tables of captures whose TLS is opened: they have the frames that one process reads."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard
from pipeline.comparing import Now, alone, decoding, rows_in, run, stored, together
from pipeline.test_pipeline_run import OPTIONS, parts, put
from pwire_run import SAMPLES, pwire
from tls_samples import TLS_SAMPLES, Recorded

from pulsarctl_wire import data
from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline.files.inputs import find_inputs
from pulsarctl_wire.pipeline.files.splits import NO_CAPTURE
from pulsarctl_wire.pipeline.run import Run
from pulsarctl_wire.pipeline.storage.tasks import Pool

OPENED = replace(OPTIONS, keylog=())
TLS_12, TLS_13 = (TLS_SAMPLES / f"tls{version}.pcapng" for version in (12, 13))
FRAMES = 31  # of each


def taken_apart(sample: Path, directory: Path) -> tuple[list[str], str]:
    """The packets of a sample in two files without secrets, and its key log."""
    recorded = Recorded(sample.stem)
    keys = directory / "keys.txt"
    keys.write_bytes(recorded.keys)
    parts = recorded.packets[:25], recorded.packets[25:]
    paths = [
        recorded.write(directory / f"{number}.pcapng", packets=part) for number, part in enumerate(parts)
    ]
    return list(map(str, paths)), str(keys)


def test_secrets_inside_captures(tmp_path: Path) -> None:
    paths = [str(TLS_12), str(TLS_13)]
    found = together(paths, tmp_path / "out", OPENED)
    assert found == alone(paths, OPENED, by_time=True)
    assert len(found.frames) == 2 * FRAMES


def test_partitions(tmp_path: Path) -> None:
    run([str(TLS_13)], tmp_path, replace(OPENED, partition_by=("date",)))
    (path,) = tmp_path.glob("frames/date=*/*.parquet")
    assert len(rows_in(path)) == FRAMES


@pytest.mark.parametrize("sample", [TLS_12, TLS_13])
def test_a_key_log_opens_what_goes_on_in_the_next_file(sample: Path, tmp_path: Path) -> None:
    paths, keys = taken_apart(sample, tmp_path)
    out = tmp_path / "out"
    totals = run(paths, out, replace(OPENED, keylog=(keys,)))
    assert Counter(row["command"] for row in stored(out, "frames")) == Counter(
        row["command"] for row in alone([str(sample)], OPENED).frames
    )
    assert totals.frames == FRAMES
    assert [note for note in totals.notes if "TLS" in note] == ["TLS: 2 of 2 connections opened"]


def test_other_traffic_is_what_it_is_otherwise(tmp_path: Path) -> None:
    paths = put(tmp_path, parts())
    assert together(paths, tmp_path / "opened", OPENED) == alone(paths, OPTIONS)
    large = replace(OPENED, payload=True)
    assert together(paths, tmp_path / "payloads", large) == alone(paths, large)


def test_captures_that_cannot_be_read(tmp_path: Path) -> None:
    cut, gone = tmp_path / "a: cut.pcapng", tmp_path / "b.pcapng"
    cut.write_bytes(TLS_12.read_bytes()[:-30])
    gone.write_bytes(TLS_12.read_bytes())
    inputs = find_inputs([str(cut), str(gone), str(TLS_13)])
    gone.unlink()
    totals = run(inputs, tmp_path / "out", OPENED)
    problems = {name: (text, is_damaged) for name, text, is_damaged in totals.problems}
    assert problems.keys() == {str(cut), str(gone)}
    assert problems[str(gone)] == ("No such file or directory", False)
    assert problems[str(cut)][1]
    assert len(stored(tmp_path / "out", "frames")) == 2 * FRAMES


def test_nothing_is_decoded_again_until_there_are_other_captures(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run([str(TLS_12)], out, OPENED)
    again = Run(find_inputs([str(TLS_12)]), str(out), options=OPENED)
    assert (again.rebuild, again.done_count) == (None, 1)
    again.run(Pool(Now(most=1)))  # it is only the end that is written once more
    both = Run(find_inputs([str(TLS_12), str(TLS_13)]), str(out), options=OPENED)
    assert both.rebuild is not None
    assert "TLS is opened in all of them in one go" in both.rebuild.reason
    both.run(Pool(Now()))
    assert len(stored(out, "frames")) == 2 * FRAMES
    assert Counter(row["connection"] for row in stored(out, "frames")).keys() == {0, 1, 2, 3}


def test_a_run_that_was_broken_off_begins_again(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(InterruptedError):
        run([str(TLS_12)], out, OPENED, Now(most=0))
    run([str(TLS_12)], out, OPENED)
    assert len(stored(out, "frames")) == FRAMES


def test_splits_say_that_there_are_secrets(tmp_path: Path) -> None:
    with decoding() as names:
        totals = run([str(TLS_13)], tmp_path / "out", OPTIONS)
    assert len(names) > 1
    assert totals.notes == [
        "captures hold secrets of TLS, which stays closed: --keylog FILE opens it, in one process",
        "TLS: 0 of 2 connections opened; read in splits, where none is opened; --keylog FILE opens it "
        "(and 1 more)",
    ]


def test_what_was_saved_before_a_rebuild_is_not_believed(tmp_path: Path) -> None:
    """Otherwise the table could not go on without the captures of before."""
    paths, keys = taken_apart(TLS_13, tmp_path)
    out, opened = tmp_path / "out", replace(OPENED, keylog=(keys,))
    run([*put(tmp_path, parts()), *paths], out, OPTIONS)
    run(paths, out, opened, rebuild=True)
    again = Run(find_inputs(paths), str(out), options=opened)
    assert (again.rebuild, again.done_count) == (None, 2)
    (out / "progress" / "all").write_bytes(b"garbage")
    run(paths, out, opened)
    assert len(stored(out, "frames")) == FRAMES
    assert len(stored(out, "connections")) == 2


def test_texts_are_refused_as_they_are_in_splits(tmp_path: Path) -> None:
    text, sizes = tmp_path / "text.txt", list[int]()
    text.write_text(TLS_12.read_bytes().hex())
    for options in (OPTIONS, OPENED):
        totals = run([str(text), str(TLS_13)], tmp_path / f"out{len(sizes)}", options)
        assert [problem for _, problem, _ in totals.problems] == [NO_CAPTURE]
        sizes.append(totals.read)
    assert sizes[1] == TLS_13.stat().st_size  # only what was read of captures


# ---- Commands ----


def test_analyze_opens_tls(tmp_path: Path) -> None:
    paths, keys = taken_apart(TLS_13, tmp_path)
    out = tmp_path / "out"
    closed = pwire("analyze", *paths, "--out", out)
    assert (closed.code, len(stored(out, "frames"))) == (0, 0)
    assert "0 of 2 connections opened; read in splits" in closed.err
    opened = pwire("analyze", *paths, "--out", out, "--keylog", keys)
    assert "is made again: --keylog was not given before" in opened.err
    assert len(stored(out, "frames")) == FRAMES
    later = pwire("analyze", *paths, "--out", out)  # without the option, it stays as it is
    assert (later.code, "is made again" in later.err, len(stored(out, "frames"))) == (0, False, FRAMES)
    both = pwire("analyze", *paths, TLS_12, "--out", out)  # as before, with the key log of before
    assert (both.code, len(stored(out, "frames"))) == (0, 2 * FRAMES)
    asked = pwire("analyze", *paths, TLS_12, "--out", out, "--rebuild", "--keylog", keys)
    assert "is made again: --rebuild was given." in asked.err
    Path(keys).unlink()
    gone = pwire("analyze", *paths, TLS_12, SAMPLES / "python-simple.pcap", "--out", out)
    assert gone.complaints == [f"pwire: --keylog {keys}: no such file"]
    pipe = pwire("analyze", *paths, "--out", out, "--keylog", tmp_path)
    assert pipe.complaints == [
        f"pwire: analyze: --keylog {tmp_path}: is not a file, so later runs could not read it"
    ]
    refused = pwire("analyze", tmp_path, "--out", tmp_path / "other", "--follow", "--keylog", keys)
    assert refused.complaints == [
        "pwire: analyze: --keylog cannot be combined with --follow: TLS is opened in one go"
    ]


def test_secrets_in_captures_need_no_option(tmp_path: Path) -> None:
    run = pwire("analyze", TLS_12, TLS_13, "--out", tmp_path / "out")
    assert len(stored(tmp_path / "out", "frames")) == 2 * FRAMES
    assert "TLS: 4 of 4 connections opened" in run.err


def test_queries_open_tls(tmp_path: Path) -> None:
    paths, keys = taken_apart(TLS_12, tmp_path)
    query = "SELECT count(*) AS n FROM frames"
    assert pwire("sql", "--keylog", keys, *paths, query, "-o", "json").records == [{"n": FRAMES}]
    assert pwire("sql", *paths, query, "-o", "json").records == [{"n": 0}]
    run = pwire("report", "producers", "--keylog", keys, *paths, "-o", "json")
    assert [row["messages"] for row in run.records] == [3]
    assert "TLS: 2 of 2 connections opened" in run.err
    with data.tables(*paths, keylogs=[Path(keys)]) as tables:
        assert tables.sql(query).rows() == [{"n": FRAMES}]
    with Path(keys).open("a") as stream:
        stream.write("no key\n")  # the table is made again
    again = pwire("sql", "--keylog", keys, *paths, query, "-o", "json")
    assert again.records == [{"n": FRAMES}]
    assert "1 line" in again.err
    missing = pwire("sql", "--keylog", tmp_path / "none", *paths, query)
    assert missing.complaints == [f"pwire: --keylog {tmp_path / 'none'}: no such file"]


def test_later_key_logs_are_used_beside_earlier_ones(tmp_path: Path) -> None:
    days = [tmp_path / "1", tmp_path / "2"]
    captures: list[str] = []
    for day, sample in zip(days, (TLS_12, TLS_13), strict=True):
        day.mkdir()
        paths, keys = taken_apart(sample, day)
        captures += paths
        run = pwire("analyze", *captures, "--out", tmp_path / "out", "--keylog", keys)
        assert run.code == 0, run.err
    assert len(stored(tmp_path / "out", "frames")) == 2 * FRAMES


def test_queries_open_compressed_captures(tmp_path: Path) -> None:
    packed = tmp_path / "packed.pcapng.zst"
    packed.write_bytes(zstandard.compress(TLS_13.read_bytes(), 19))
    with data.tables(packed) as tables:
        assert tables.sql("SELECT count(*) AS n FROM frames").rows() == [{"n": FRAMES}]


def test_a_key_log_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="no such file"):
        run([str(TLS_12)], tmp_path / "out", replace(OPENED, keylog=(str(tmp_path / "none"),)))


def test_extract_writes_the_secrets(tmp_path: Path) -> None:
    paths, keys = taken_apart(TLS_13, tmp_path)
    table, out = tmp_path / "t.parquet", tmp_path / "out.pcapng"
    pwire("table", *paths, "--keylog", keys, "--out", table)
    where = ("--where", "true", "--connections", "-w", out)
    opened = pwire("extract", table, *where, "--keylog", keys)
    assert (opened.code, opened.complaints) == (0, [])
    assert len(pwire("decode", out).lines) == FRAMES
    closed = pwire("extract", table, *where)
    assert closed.complaints == [f"pwire: {FRAMES} frames cannot be decoded from these packets"]
    packed = tmp_path / "packed.pcapng.zst"
    packed.write_bytes(zstandard.compress(TLS_13.read_bytes(), 19))
    for capture in (TLS_13, packed):
        pwire("table", capture, "--out", table)
        assert pwire("extract", table, *where).complaints == []  # the secrets are in the capture
        assert len(pwire("decode", out).lines) == FRAMES
