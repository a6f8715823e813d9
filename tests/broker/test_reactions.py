"""Every row of reactions.tsv on the embedded broker."""

from __future__ import annotations

import pytest
from broker.cases import CASES
from broker.probe import ROWS, setting_of
from broker.targets import EmbeddedTarget
from net.scripted import run


@pytest.mark.parametrize("row", CASES)
def test_case(row: str) -> None:
    async def check() -> None:
        async with EmbeddedTarget(setting_of(ROWS[row])) as target:
            await CASES[row](target)

    run(check())


def test_every_row_has_a_case() -> None:
    assert set(CASES) == set(ROWS)
