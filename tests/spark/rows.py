"""The rows of a table that Spark wrote, and those of one process."""

from pathlib import Path

from pipeline.comparing import Outcome, alone, stored

from pulsarctl_wire.pipeline.inputs import find_inputs
from pulsarctl_wire.pipeline.progress import Options


def rows(out: Path) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    return stored(out, "frames"), stored(out, "gaps")


def expected(paths: list[str]) -> Outcome:
    return alone([each.name for each in find_inputs(paths)], Options(), by_time=True)
