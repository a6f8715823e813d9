"""Mutants of captures, many to a limited process: each is read, and told what is wrong with it, in
bounded memory and time.

Others are tried by `.ci/explore`.
"""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from limited import Runs, limited
from mutants import MANY, try_some

SEED = 14
HERE = Path(__file__).parent
SAMPLE = HERE.parent.parent / "samples" / "pcaps" / "python-simple.pcap"
LONG = HERE / "hex-40MB.txt.gz"


@pytest.fixture(scope="module")
def pwire() -> Iterator[Runs]:
    with limited() as runs:
        yield runs


def test_runs_of_one_process_are_told_apart(pwire: Runs) -> None:
    runs = pwire(["decode", "--no-such-option"], ["decode", str(SAMPLE)], ["stats", str(SAMPLE)])
    assert [run.code for run in runs] == [2, 0, 0]
    assert [run.broken() for run in runs] == ["exit code 2", "", ""]


def test_the_run_that_ends_the_process_is_the_last(pwire: Runs) -> None:
    runs = pwire(["decode", str(SAMPLE)], ["decode", str(LONG)], ["decode", str(SAMPLE)], seconds=1)
    assert [run.code for run in runs] == [0, -signal.SIGXCPU]


@pytest.mark.parametrize("first", range(0, 100, MANY))
def test_mutants(first: int, pwire: Runs, tmp_path: Path) -> None:
    finds = try_some(pwire, SEED, range(first, first + MANY), tmp_path)
    assert not finds, "\n".join(map(str, finds))
