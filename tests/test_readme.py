"""The README says what is true: its library example runs, and its numbers of commands and files hold."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_library_example_lists_slow_publishes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert code is not None
    exec(compile(code[1], "README.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all(re.fullmatch(r"persistent://\S+ \d+ \d+\.\d ms", line) for line in lines)


def test_what_the_readme_names_is_there() -> None:
    for name in re.findall(r"`([a-z_/]+(?:/|\.py|\.md))`", README) + re.findall(r"\]\((docs/\S+?)\)", README):
        assert (ROOT / name).exists(), name
