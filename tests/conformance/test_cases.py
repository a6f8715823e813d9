"""Every case on the embedded broker, whose clock is moved."""

from __future__ import annotations

import pytest
from broker.targets import EmbeddedTarget
from net.scripted import run

from pulsarctl_wire.conformance.catalog import CASES


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    case = CASES[name]

    async def check() -> None:
        async with EmbeddedTarget(*case.needs) as target:
            await case.run(target)

    run(check())
