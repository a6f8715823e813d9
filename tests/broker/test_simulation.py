"""A thousand schedules that must keep the rules; `simulation.py --minutes N` tries others."""

from __future__ import annotations

import pytest
from broker.simulation import Simulation, try_seed

SEEDS = 1000
CHUNK = 100


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_seeds(first: int) -> None:
    for seed in range(first, first + CHUNK):
        found = try_seed(seed)
        assert not found, found


def test_a_seed_decides_everything() -> None:
    traces = []
    for _ in range(2):
        simulation = Simulation(7)
        simulation.verbose = True
        simulation.run()
        traces.append(simulation.trace)
    assert traces[0] == traces[1]
    assert any("MESSAGE" in line for line in traces[0])
