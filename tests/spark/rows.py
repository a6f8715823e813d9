"""The rows of a table that Spark wrote, and those of one process."""

from pathlib import Path

from pipeline.comparing import Outcome, Row, alone, stored

from pulsarctl_wire.pipeline.decoding.edges import Options
from pulsarctl_wire.pipeline.files.inputs import find_inputs
from pulsarctl_wire.table.schema import TABLES


def rows(out: Path) -> dict[str, list[Row]]:
    return {name: stored(out, name) for name in TABLES}


def expected(paths: list[str]) -> Outcome:
    return alone([each.name for each in find_inputs(paths)], Options(), by_time=True)
