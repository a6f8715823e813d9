"""No line that people edit is longer than 300 characters; for Python, ruff has a lower limit."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_CHARACTERS = 300
TEXTS = [
    *ROOT.glob("*.*"),
    *ROOT.glob(".*.yaml"),
    *(ROOT / ".ci").glob("*"),
    *(ROOT / ".github").rglob("*.yml"),
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "docs" / "assets").iterdir(),
    *(ROOT / "samples").rglob("*.md"),
    *(ROOT / "tests").rglob("*.md"),
]
"""Left out is what is recorded, generated or drawn: samples, golden output, *_pb2.py, docs/pictures."""


@pytest.mark.parametrize("path", [path for path in TEXTS if path.is_file()], ids=lambda path: path.name)
def test_lines_are_short(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    long = [line for line in lines if len(line) > MAX_CHARACTERS]
    rows = [line for line in long if line.startswith("| ")]  # a row of a table is one line
    assert long == rows
