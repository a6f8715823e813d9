"""docs/samples.md tells the story of each sample; it and the guides show what pwire really prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from documents import NOTHING, as_pattern, shown_commands
from pwire_run import SAMPLES, pwire

ROOT = Path(__file__).parents[1]
STORIES, *GUIDES = (
    (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("samples", "debug", "analysing")
)


@pytest.mark.parametrize(("command", "shown"), shown_commands("".join([STORIES, *GUIDES])))
def test_commands_print_what_is_shown(
    command: str, shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    run = pwire(*shlex.split(command)[1:])
    printed = "".join(f"{line.rstrip()}\n" for line in [*run.lines, *run.err.splitlines()])
    assert re.fullmatch(as_pattern(shown, NOTHING), printed), printed


def test_each_sample_has_a_story_and_a_command() -> None:
    commands = " ".join(command for command, _ in shown_commands(STORIES))
    for path in SAMPLES.glob("*.pcap*"):
        assert f"`{path.name}` " in STORIES
        assert f"samples/pcaps/{path.name}" in commands
