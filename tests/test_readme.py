"""The README says what is true: its library example runs, what it names is there, and all links work."""

import os
import re
import shlex
from pathlib import Path

import pytest
from documents import as_pattern, shown_commands
from forked import Fork
from proxied import PATIENCE, environment
from pwire_run import pwire

from pulsarctl_wire.testing import Broker

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]

LINK = re.compile(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)$", re.MULTILINE)


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
    for inline, reference in LINK.findall(document.read_text(encoding="utf-8")):
        target = inline or reference
        if "://" not in target:
            name, _, anchor = target.partition("#")
            path = document.parent / name if name else document
            assert path.exists(), target
            assert not anchor or anchor in anchors(path), target


def test_each_document_is_in_the_navigation_of_the_site() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r" (\w+\.md)$", navigation, re.MULTILINE)
    assert sorted(listed) == [path.name for path in DOCUMENTS if path.parent.name == "docs"]


def anchors(document: Path) -> set[str]:
    """What links to the headings of a document are called, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def section(heading: str) -> str:
    """The text below a heading of the README."""
    found = re.search(rf"\n## {heading}\n(.*?)\n## ", README, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_sessions_are_real(tmp_path: Path) -> None:
    """They run against an embedded broker, and print what the README shows."""
    (start, (*_, ready)), *commands = shown_commands(section("Run a broker, and open sessions"))
    settings = dict(each.split("=") for each in shlex.split(start) if "=" in each)
    with Broker(settings=settings) as broker:
        for command, shown in commands:
            text = command.replace("session.pcapng", str(tmp_path / "session.pcapng"))
            text = text.replace("pulsar://localhost:6650", broker.service_url)
            printed = printed_by(shlex.split(text)[1:], tmp_path, broker.service_url)
            assert re.fullmatch(as_pattern(shown), printed), (command, printed)
    assert ready == "pwire: ready; Ctrl-C ends it"
    assert len(commands) > 6


def test_the_findings_are_real(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    commands = shown_commands(section("Find out what is wrong"))
    for command, shown in commands:
        run = pwire(*shlex.split(command)[1:])
        assert run.code == 1
        assert re.fullmatch(as_pattern(shown), run.out.decode() + run.err), command
    assert len(commands) == 2


def printed_by(args: list[str], home: Path, url: str) -> str:
    """What `pwire ARGS` prints on stdout and stderr; it must end with 0."""
    path = home / "printed"
    with path.open("wb") as printed, Path(os.devnull).open("rb") as nothing:
        places = environment(home, PULSAR_URL=url)
        process = Fork(args, places, nothing.fileno(), printed.fileno(), printed.fileno())
        assert process.wait(PATIENCE) == 0, args
    return path.read_text(encoding="utf-8")
