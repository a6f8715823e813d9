"""Counts of many splits are those of one process."""

import time
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pipeline.comparing import Deleting, Now
from pipeline.test_pipeline_run import parts, put

from pulsarctl_wire.capture.series import arrange, read_all, spans_of
from pulsarctl_wire.capture.sources import Decoder, Source, open_source
from pulsarctl_wire.cli.capture.summary import Summary
from pulsarctl_wire.pipeline.decoding.counting import CountJob, pool_until
from pulsarctl_wire.pipeline.files.inputs import find_inputs
from pulsarctl_wire.pipeline.files.splits import Input, in_order, plan
from pulsarctl_wire.render.text import Paint
from pulsarctl_wire.stats.counting import Stats
from pulsarctl_wire.stats.report import records, total_record
from pulsarctl_wire.stats.rows import NAMES

TESTS = Path(__file__).parents[1]
FILES = [
    *sorted((TESTS.parent / "samples" / "pcaps").glob("*.pcap*")),
    *sorted((TESTS / "hostile").glob("*.pcapng")),
    *sorted((TESTS / "capture" / "inputs").glob("*.pcap*")),
]


def everything(stats: Stats) -> dict[str, Any]:
    tables = {by: sorted(records(stats, by, 0), key=repr) for by in NAMES}
    return {"total": total_record(stats), **tables}


def summary_of(summary: Summary) -> list[str]:
    return list(summary.lines(Paint(False)))


def alone(paths: list[str]) -> tuple[dict[str, Any], list[str]]:
    stats, summary = Stats(), Summary()

    def end(ending: Any) -> None:
        stats.add_ended_connection(ending)
        summary.add_ended_connection(ending)

    decoder = Decoder(join_chunks=False, on_end=end)
    turns = arrange(paths, spans_of(paths)).turns

    def take(batches: Any) -> None:
        for events in batches:
            stats.add(events)
            summary.add(events)

    @contextmanager
    def opened(given: int) -> Iterator[Source]:
        source = open_source(paths[given])
        with source.stream:
            yield source

    take(read_all(decoder, turns, opened, lambda error: None))
    take(decoder.finish())
    stats.finish(decoder)
    summary.finish(decoder, 0)
    return everything(stats), summary_of(summary)


def together(paths: list[str], size: int) -> tuple[dict[str, Any], list[str]]:
    inputs = [Input(path, (status := Path(path).stat()).st_size, status.st_mtime_ns, path) for path in paths]
    ordered = in_order(inputs, spans_of(paths), lambda note: None)
    found = []
    for new in (Stats, Summary):
        counting = CountJob[Any](ordered, new, split_size=size)
        for _ in counting.run(Now(), 1):
            pass
        found.append(counting)
    stats, summary = found[0].counts, found[1].counts
    stats.finish(found[0])
    summary.finish(found[1], 0)
    return everything(stats), summary_of(summary)


@pytest.mark.parametrize("size", [2_000, 30_000])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_counts_of_a_capture(path: Path, size: int) -> None:
    assert together([str(path)], max(size, path.stat().st_size // 40)) == alone([str(path)])


def test_counts_of_several_captures() -> None:
    paths = [str(path) for path in FILES[:6]]
    assert together(paths, 5_000) == alone(paths)


def test_a_file_that_is_deleted_before_it_is_counted_again(tmp_path: Path) -> None:
    (path,) = put(tmp_path, parts(1))
    (given,) = find_inputs([path])
    splits = len(plan(0, given, 1_500))
    counting = CountJob[Any]([given], Stats, split_size=1_500)
    *_, totals = counting.run(Deleting(path, splits), splits)
    again = "cannot be read again, so rows may be missing: No such file or directory"
    assert totals.problems == [(path, again, True), (path, "No such file or directory", False)]


def test_after_an_error_nobody_waits_for_processes() -> None:
    stack = ExitStack()
    sleeping = pool_until(stack, 1).submit(time.sleep, 3_600)
    error = KeyboardInterrupt()
    stack.__exit__(KeyboardInterrupt, error, None)
    assert isinstance(sleeping.exception(), BrokenProcessPool)
