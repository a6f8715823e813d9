"""The order of files: series by their names, turns by their times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsarctl_wire.capture.series import MAX_OPEN_FILES, Part, Span, Turn, arrange, series_of


@pytest.mark.parametrize(
    ("names", "number"),
    [
        (["x.pcap", "x.pcap0", "x.pcap1", "x.pcap10", "x.pcap2.gz"], 1),
        (["x-2025-11-22_10:00:00.pcap", "x-2025-11-22_11:00:00.pcap", "x-2025-12-01.pcap.zst"], 1),
        (["x_00001_20251122093000.pcapng", "x_00002_20251122094000.pcapng"], 1),
        (["22Nov2025.pcap", "1Dec2025.pcap"], 1),
        (["2025-11-22/x.pcap1", "2025-11-23/x.pcap1", "20251124/x.pcap"], 1),
        (["/d/2025/11/22/x.pcap1", "/d/2025/12/01/x.pcap9"], 1),
        (["hostA_1.pcap", "hostB_1.pcap"], 2),
        (["host1/x.pcap1", "host2/x.pcap1"], 2),
        (["decoded.pcap", "october.pcap"], 2),
    ],
)
def test_names_of_a_series(names: list[str], number: int) -> None:
    assert len(set(map(series_of, names))) == number


def test_what_does_not_overlap_is_read_alone() -> None:
    order = arrange(["c", "a", "b"], [Span(50, 60), Span(10, 20), Span(20, 40)])
    assert order.turns == [Turn(1), Turn(2), Turn(0)]
    assert not order.notes


def test_overlapping_files_are_cut_where_others_begin() -> None:
    turns = arrange(["a", "b", "c"], [Span(0, 100), Span(50, 150), Span(120, 130)]).turns
    assert turns == [
        Turn(0, (Part(0, None, 50),)),
        Turn(1, (Part(0, 50, None), Part(1, None, 120))),
        Turn(2, (Part(1, 120, None), Part(2, None, None))),
    ]


def test_a_compressed_file_ends_where_its_series_goes_on() -> None:
    names = ["a1.gz", "b1.gz", "a2.gz"]
    turns = arrange(names, [Span(0, None), Span(10, None), Span(20, None)]).turns
    assert [[part.file for part in turn.parts] for turn in turns] == [[0], [0, 1], [1, 2]]


def test_a_clock_that_was_set_back_is_said() -> None:
    (note,) = arrange(["a", "b"], [Span(10, 5), Span(20, 30)]).notes
    assert note.startswith("a ends at an earlier time than it begins")


spans = st.one_of(
    st.none(),
    st.tuples(st.integers(0, 99), st.one_of(st.none(), st.integers(0, 99))).map(lambda pair: Span(*pair)),
)


@given(st.lists(st.tuples(st.sampled_from(["a1", "a2", "b1", "b2.gz", "c"]), spans), max_size=12))
def test_all_of_each_file_is_read_once(given_: list[tuple[str, Span | None]]) -> None:
    turns = arrange([name for name, _ in given_], [span for _, span in given_]).turns
    assert sorted(turn.given for turn in turns) == list(range(len(given_)))
    times = [span.first for turn in turns if (span := given_[turn.given][1])]
    assert times == sorted(times)
    for file, turn in enumerate(turns):
        if given_[turn.given][1] is None:
            assert turn == Turn(file)  # it keeps its place
        parts = [part for each in turns for part in each.parts if part.file == file]
        if parts:
            bounds = [(part.since, part.until) for part in parts]
            assert [since for since, _ in bounds] == [None, *(until for _, until in bounds[:-1])]
            assert bounds[-1][1] is None


def test_no_more_files_are_open_than_may_be() -> None:
    count = 3 * MAX_OPEN_FILES
    order = arrange(
        [f"{number}{number * 'x'}" for number in range(count)], [Span(n, 1000) for n in range(count)]
    )
    assert max(len(turn.parts) for turn in order.turns) == MAX_OPEN_FILES
    assert "files or more overlap" in order.notes[-1]
