"""What the official clients, and pwire's own commands, do about the brokers of `pwire conform client`."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from conformance.client_failures import FAILURES
from interop.conftest import Go, Pwire
from interop.releases import program

from pulsarctl_wire.checks.requirement import OBSERVED

HERE = Path(__file__).parent
MODES = ("produce", "consume")
WORDS = ["{mode}", "{url}", "{topic}", "{count}", "{timeout}", "{keepalive}"]
PWIRE = [sys.executable, "-c", "from pulsarctl_wire.cli import main; main()"]
TIMES = ["--timeout", "{timeout}", "--connect-timeout", "{timeout}", "--keep-alive", "{keepalive}"]


def check(pwire: Pwire, client: str, produce: Sequence[str], consume: Sequence[str], *options: str) -> None:
    """Run all cases; those of `FAILURES` fail, and no others.

    The report is kept in the directory `PWIRE_REPORTS`, if there is one.
    """
    commands = ["--produce", shlex.join(produce), "--consume", shlex.join(consume)]
    options = ("--timeout", "6", "--level", OBSERVED, "-o", "json", *options)
    run = pwire("conform", "client", *commands, *options, url="", timeout=300)
    assert run.returncode in (0, 1), run.stderr
    if directory := os.environ.get("PWIRE_REPORTS"):
        (Path(directory) / f"client-{client}.json").write_text(run.stdout)
    cases = {case["id"].removeprefix("client/"): case for case in json.loads(run.stdout)["cases"]}
    failures = {name: case for name, case in cases.items() if case["verdict"] != "passed"}
    assert failures.keys() == FAILURES[client].keys(), json.dumps(failures, indent=1)
    has_broken_must = any(case["level"] == "must" for case in failures.values())
    assert run.returncode == has_broken_must


def both(make: Callable[..., list[str]]) -> tuple[list[str], list[str]]:
    """A command for each mode."""
    produce, consume = (make(*[word.replace("{mode}", mode) for word in WORDS]) for mode in MODES)
    return produce, consume


def test_pwire(pwire: Pwire) -> None:
    produce = [*PWIRE, "produce", "{topic}", "-u", "{url}", "-m", "x", "-n", "{count}", "-db", "-o", "id"]
    consume = [*PWIRE, "consume", "{topic}", "-u", "{url}", "-s", "s", "-p", "Earliest", "-n", "{count}"]
    times = [*TIMES, "--send-timeout", "{timeout}"]
    check(pwire, "pwire", [*produce, *times], [*consume, *TIMES], "--keepalive", "2")


def test_the_wheel(pwire: Pwire) -> None:
    """It has no setting for the time between PINGs."""
    check(pwire, "wheel", *both(lambda *words: [sys.executable, str(HERE / "contract.py"), *words]))


@pytest.mark.usefixtures("obtainable")
def test_java(pwire: Pwire) -> None:
    source = HERE / "java" / "Contract.java"
    check(pwire, "java", *both(lambda *words: program(source, *words)), "--keepalive", "2")


def test_go(pwire: Pwire, go: Go, tmp_path: Path) -> None:
    go("build", "-o", str(tmp_path / "contract"), "./contract")
    check(pwire, "go", *both(lambda *words: [str(tmp_path / "contract"), *words]), "--keepalive", "2")
