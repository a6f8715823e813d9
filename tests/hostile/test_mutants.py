"""A thousand mutants of captures, many to a limited process: each is read, and told what is wrong with it, in
bounded memory and time.

Others are tried by `.ci/explore`.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from limited import Runs, limited
from mutants import try_some

SEED = 14
MANY = 25
"""Mutants that a process tries."""


@pytest.fixture(scope="module")
def pwire() -> Iterator[Runs]:
    with limited() as runs:
        yield runs


@pytest.mark.parametrize("first", range(0, 100, MANY))
def test_mutants(first: int, pwire: Runs, tmp_path: Path) -> None:
    finds = try_some(pwire, SEED, range(first, first + MANY), tmp_path)
    assert not finds, "\n".join(map(str, finds))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 1000, MANY))
def test_a_thousand_mutants(first: int, pwire: Runs, tmp_path: Path) -> None:
    finds = try_some(pwire, SEED, range(first, first + MANY), tmp_path)
    assert not finds, "\n".join(map(str, finds))
