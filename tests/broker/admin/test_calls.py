"""Every case of the admin API on the embedded broker, without HTTP."""

from __future__ import annotations

import pytest
from broker.admin.cases import CALLS
from broker.targets import EmbeddedTarget
from net.scripted import run


@pytest.mark.parametrize("name", CALLS)
def test_call(name: str) -> None:
    async def check() -> None:
        async with EmbeddedTarget(CALLS[name].setting) as target:
            await CALLS[name].run(target)

    run(check())
