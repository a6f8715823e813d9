"""The documents of the command line name every option and every exit code, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer
from pwire_run import SAMPLES, decode, pwire

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.verbs import NAMES, app, load
from pulsarctl_wire.tui.keys import KEYS

DOCS = Path(__file__).parents[2] / "docs"
DOCUMENT = (DOCS / "cli.md").read_text()
SESSIONS = (DOCS / "sessions.md").read_text()
PROXY = (DOCS / "proxy.md").read_text()
REPLAY = (DOCS / "replay.md").read_text()
BROKER = (DOCS / "broker.md").read_text()
TUI = (DOCS / "tui.md").read_text()
CONFORMANCE = (DOCS / "conformance.md").read_text()


def _section(heading: str, document: str = DOCUMENT) -> str:
    """The text below a heading, up to the next one of its level or above."""
    level = heading.partition(" ")[0]
    text = document.partition(f"\n{heading}\n")[2]
    assert text, heading
    return re.split(rf"\n#{{1,{len(level)}}} ", text)[0]


def _documented(section: str) -> set[str]:
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `-")]
    return {option for row in rows for option in re.findall(r"(?<![\w-])--?[\w-]+", row)}


def _found(command: str) -> Any:
    verb, *words = command.split()
    found = load(verb)
    for word in words:
        found = found.commands[word]
    return found


def _commands(group: str, below: str = "") -> list[str]:
    """The commands of a group, and of the groups in it."""
    names = []
    for name, found in _found(f"{group} {below}").commands.items():
        own = f"{below} {name}".strip()
        names += _commands(group, own) if hasattr(found, "commands") else [own]
    return names


def _options_of_all(group: str) -> set[str]:
    return set[str]().union(*(_options(f"{group} {each}") for each in _commands(group)))


def _options(command: str) -> set[str]:
    found = _found(command)
    shown = [parameter for parameter in found.params if not parameter.hidden]
    return {name for parameter in shown for name in parameter.opts if name.startswith("-")} - {"--help", "-h"}


@pytest.mark.parametrize(
    "command",
    [
        "decode",
        "doctor",
        "capture",
        "sequence",
        "table",
        "analyze",
        "report",
        "sql",
        "extract",
        "explain",
        "permits",
    ],
)
def test_every_option_is_documented(command: str) -> None:
    assert _documented(_section(f"## `pwire {command}`")) == _options(command)


def test_every_option_of_the_proxy_is_documented() -> None:
    assert _documented(_section("## Options of `pwire proxy`", PROXY)) == _options("proxy")
    assert _documented(_section("## `pwire proxy ctl`", PROXY)) == _options_of_all("proxy ctl")


def test_every_option_and_request_of_the_broker_is_documented() -> None:
    assert _documented(_section("## Options of `pwire broker`", BROKER)) == _options("broker")
    assert _documented(_section("## `pwire demo`", BROKER)) == _options("demo")
    requests = re.findall(r"^\| `((?:fault )?[a-z]+)", _section("## Control", BROKER), re.MULTILINE)
    assert requests == _commands("broker ctl")
    assert _documented(_section("### `pwire broker ctl`", BROKER)) == _options_of_all("broker ctl")


def test_every_option_of_the_screen_is_documented() -> None:
    assert _documented(_section("## Options of `pwire tui`", TUI)) == _options("tui")


def test_every_key_of_the_screen_is_documented() -> None:
    documented = re.findall(r"^\| (.+?) \| (.+?) \|$", _section("## Keys", TUI), re.MULTILINE)
    keys = [(key, does) for _, group in KEYS for key, does in group]
    assert [(key.replace("`", ""), does) for key, does in documented[1:]] == keys


@pytest.mark.parametrize("command", ["broker", "client", "compare", "fuzz"])
def test_every_option_of_conform_is_documented(command: str) -> None:
    section = _section(f"## Options of `pwire conform {command}`", CONFORMANCE)
    assert _documented(section) == _options(f"conform {command}")


VERBS = [
    *("produce", "consume", "read", "lookup", "partitions", "topics", "cluster", "watch", "seek"),
    *("unsubscribe", "last-id", "consumer-stats", "schema get", "schema put", "ping", "txn", "send"),
]


@pytest.mark.parametrize("verb", [*VERBS, "replay"])
def test_every_option_of_a_session_is_documented(verb: str) -> None:
    shared = _documented(_section("## Options of every verb", SESSIONS))
    heading, document = (f"## `pwire {verb}`", SESSIONS)
    if verb == "replay":
        heading, document = ("## Options of `pwire replay`", REPLAY)
    own = _documented(_section(heading, document))
    assert own | shared == _options(verb)
    assert not own & shared


def test_every_verb_of_a_session_has_its_options() -> None:
    with_url = {name for name in NAMES if "url" in {one.name for one in load(name).params}}
    assert with_url | {"schema get", "schema put"} == {*VERBS, "replay"}


@pytest.mark.parametrize("verb", NAMES)
def test_the_list_of_verbs_says_what_their_own_help_says(verb: str) -> None:
    listed: Any = typer.main.get_command(app)
    assert listed.commands[verb].help == " ".join(load(verb).help.partition("\n\n")[0].split())


def test_every_exit_code_is_documented() -> None:
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", _section("## Exit codes"), re.MULTILINE)}
    codes = {value for name, value in vars(console).items() if name.startswith("EXIT_")}
    assert documented == codes | {0, 1}


def test_the_lines_shown_are_real() -> None:
    shown = re.findall(r"^ +\d+ \d\d:.*$", _section("### Lines"), re.MULTILINE)
    assert len(shown) == 2
    assert set(shown) <= set(decode("python-simple.pcap").lines)


def test_the_diagram_shown_is_real() -> None:
    shown = _section("## `pwire sequence`").partition("```console\n")[2].partition("```")[0].splitlines()
    command, *lines = shown
    *options, path = command.split()[3:]
    assert pwire("sequence", *options, SAMPLES / Path(path).name).lines == lines


def test_the_finding_shown_is_real() -> None:
    shown = _section("## `pwire doctor`").partition("```console\n")[2].partition("```")[0]
    run = pwire("doctor", "-T", "5", SAMPLES / "permit-leak.pcap")
    assert shown == f"$ pwire doctor -T 5 samples/pcaps/permit-leak.pcap\n{run.out.decode()}{run.err}"


def test_the_connections_shown_are_real() -> None:
    shown = _section("### Connections").partition("```text\n")[2].partition("```")[0].splitlines()
    run = decode("--connections", "advertised-address-silent.pcap")
    assert shown == run.lines
    (line,) = re.findall(r"^  no data .*$", _section("### The summary"), re.MULTILINE)
    assert line in run.err.splitlines()


def test_the_summary_shown_is_real() -> None:
    first, *rest = _section("### The summary").partition("```text\n")[2].partition("```")[0].splitlines()
    real = decode("-q", "python-simple.pcap").err.splitlines()
    assert first == real[0]
    assert rest[0].rstrip("…") == real[1][: len(rest[0]) - 1]
    assert rest[1:3] == real[2:4]
