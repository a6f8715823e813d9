"""The pytest fixture `pulsar_broker`: an embedded broker of its own for each test.

pytest loads this module whenever it starts, so nothing else is imported before the fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pulsarctl_wire.testing import Broker


@pytest.fixture
def pulsar_broker() -> Iterator[Broker]:
    """Yield a fresh Pulsar broker in memory (`pulsarctl_wire.testing.Broker`)."""
    from pulsarctl_wire.testing import Broker

    with Broker() as broker:
        yield broker
