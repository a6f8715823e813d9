"""The cookbook is true: its commands print what it shows, and its SQL gives the same rows on both engines."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from documents import NOTHING, as_pattern, shown_commands
from pwire_run import pwire
from reports.test_engines import rounded

from pulsarctl_wire import data

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
COOKBOOK = (ROOT / "docs" / "cookbook.md").read_text(encoding="utf-8")
HEADINGS = re.findall(r"^## (.+)$", COOKBOOK, re.MULTILINE)
COMMANDS = [(shlex.split(command)[1:], shown) for command, shown in shown_commands(COOKBOOK)]
QUERIES = {
    heading: arguments
    for heading, (arguments, _) in zip(HEADINGS, COMMANDS, strict=True)
    if arguments[0] == "sql"
}


def test_each_question_has_a_command() -> None:
    assert len(HEADINGS) == len(COMMANDS) == 15


@pytest.mark.parametrize(("arguments", "shown"), COMMANDS, ids=HEADINGS)
def test_commands_print_what_is_shown(
    arguments: list[str], shown: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "samples").symlink_to(ROOT / "samples")
    monkeypatch.chdir(tmp_path)
    run = pwire(*arguments)
    printed = "".join(f"{line.rstrip()}\n" for line in [*run.lines, *run.err.splitlines()])
    assert run.code == 0
    assert re.fullmatch(as_pattern(shown, NOTHING), printed), printed


@pytest.mark.slow
@pytest.mark.parametrize("arguments", QUERIES.values(), ids=QUERIES)
def test_the_sql_gives_the_same_on_both_engines(
    arguments: list[str], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    _, *sources, query = arguments[: arguments.index("--top")] if "--top" in arguments else arguments
    with data.tables(*sources) as duckdb, data.tables(*sources, spark=spark) as other:
        rows = duckdb.sql(query).rows()
        assert rounded(rows) == rounded(other.sql(query).rows())
        assert rows
