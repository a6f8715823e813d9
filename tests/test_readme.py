"""The README says what is true: its library example runs, what it names is there, and all links work."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


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
    for name in re.findall(r"`([a-z_/]+(?:/|\.py|\.md))`", README):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_a_file_and_a_heading(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8")):
        if "://" not in target:
            name, _, anchor = target.partition("#")
            path = document.parent / name if name else document
            assert path.exists(), target
            assert not anchor or anchor in anchors(path), target


def anchors(document: Path) -> set[str]:
    """What links to the headings of a document are called, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}
