"""Programs of clients on the embedded broker: it answers as a real one did (differential.jsonl)."""

from __future__ import annotations

import pytest
from broker.differential import Told, difference, on_embedded, recorded
from broker.programs import Program, random_programs
from net.scripted import run

RECORDED = recorded()


@pytest.mark.parametrize("name", RECORDED)
def test_told_as_recorded(name: str) -> None:
    program, theirs = RECORDED[name]
    ours = run(on_embedded(program))
    number = difference(program, ours, theirs)
    assert number is None, (program.steps[number], ours[number], theirs[number])


def test_any_program_is_answered_twice_alike() -> None:
    """Nothing goes wrong in random programs, and what is compared depends on nothing else."""

    async def twice(program: Program) -> tuple[Told, Told]:
        return await on_embedded(program), await on_embedded(program)

    for setting in ("default", "batchack"):
        for program in random_programs(20, 1, setting):
            first, second = run(twice(program))
            assert first == second
