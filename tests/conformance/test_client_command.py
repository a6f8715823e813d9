"""`pwire conform client`, with pwire's own commands and others as the client."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from pwire_run import pwire

from pulsarctl_wire.conformance.basics.settings import COMMANDS
from pulsarctl_wire.conformance.catalog import list_requirements, load_client_cases
from pulsarctl_wire.conformance.clients.command import ProcessRun
from pulsarctl_wire.conformance.clients.stage import Stage

PWIRE = [sys.executable, "-c", "from pulsarctl_wire.cli import main; main()"]
PRODUCE = shlex.join(
    [
        *(*PWIRE, "produce", "{topic}", "-u", "{url}", "-n", "{count}", "-m", "x", "-db", "-o", "id"),
        *("--timeout", "{timeout}", "--send-timeout", "{timeout}"),
    ]
)
CONSUME = shlex.join(
    [*PWIRE, "consume", "{topic}", "-u", "{url}", "-n", "{count}", "-s", "s", "-p", "Earliest"]
)
SLEEPER = shlex.join(
    [
        *(sys.executable, "-c", "import subprocess, sys; subprocess.run(['sleep', '600'])"),
        *("{url}", "{topic}", "{count}"),
    ]
)


def report_of(*args: Any, code: int = 0) -> dict[str, Any]:
    run = pwire("conform", "client", "-o", "json", *args)
    assert run.code == code, run.err
    (report,) = run.records
    return dict(report)


def test_a_client_that_conforms() -> None:
    cases = ["client/receipt_dropped", "client/close_consumer"]
    report = report_of("--produce", PRODUCE, "--consume", CONSUME, *cases)
    assert {case["id"]: case["verdict"] for case in report["cases"]} == dict.fromkeys(cases, "passed")
    assert report["settings"] == ["consume", "produce"]
    assert report["server"].startswith("pulsarctl-wire")
    assert report["target"] == f"{PRODUCE} · {CONSUME}"


def test_one_command_for_both() -> None:
    script = "import sys; sys.exit(sys.argv[1] not in ('produce', 'consume'))"
    words = [sys.executable, "-c", script, "{mode}", "{url}", "{topic}", "{count}"]
    report = report_of("client/connect_never_answered", "--", *words, code=1)
    ((case),) = report["cases"]
    assert case["actual"] == "0"
    assert case["output"] == ["exit code 0"]
    assert report["target"].count("{mode}") == 0


def test_what_a_client_cannot_do_is_not_applicable() -> None:
    report = report_of("--produce", PRODUCE, "client/ping", "client/batches")
    assert [case["verdict"] for case in report["cases"]] == ["passed", "not applicable"]
    assert report["cases"][1]["reason"] == f"needs {COMMANDS['consume']}"


def test_a_client_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stage, "patience", 0.5)
    junit = tmp_path / "junit.xml"
    run = pwire(
        *("conform", "client", "--produce", SLEEPER, "client/ping", "--timeout", "0.1", "--frames"),
        *("--junit", junit),
    )
    assert run.code == 1
    assert "    actual    nothing like it within 0.5 s" in run.lines
    assert ElementTree.parse(junit).getroot()[0].attrib["failures"] == "1"
    processes = [Path(f"/proc/{pid}/cmdline") for pid in os.listdir("/proc") if pid.isdigit()]
    texts = [path.read_bytes() for path in processes if path.exists()]
    assert not [text for text in texts if b"sleep\x00600" in text]


def test_lines_that_are_too_long_are_left_out_whole() -> None:
    script = "print('a'); print('x' * 3_000_000 + 'b'); print('c', end='')"

    async def run_script() -> list[str]:
        run = ProcessRun(Stage())
        await run.launch([sys.executable, "-c", script], lambda line: None)
        await run.succeed()
        return run.lines

    assert asyncio.run(run_script()) == ["a", "c"]


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ([], "name the client"),
        (["--produce", "true"], "the command needs {url} and {topic} and {count}"),
        (["--produce", "no-such-command {url} {topic} {count}"], "is no command that can be found"),
        (["--consume", "'"], "No closing quotation"),
        (["--", "true"], "needs {mode}"),
        (["client/nothing", "--produce", PRODUCE], "no case is called client/nothing"),
    ],
)
def test_usage_errors(args: list[str], text: str) -> None:
    run = pwire("conform", "client", *args)
    assert run.code == 2
    assert text in run.err


def test_the_documents_are_right() -> None:
    docs = Path(__file__).parents[2] / "docs"
    number = len(load_client_cases())
    assert f"It has {number} cases." in (docs / "conformance.md").read_text()
    assert f"more: {number} cases" in (docs / "clients.md").read_text()


def test_cases_are_listed_and_explained() -> None:
    run = pwire("conform", "client", "--list", "--level", "observed", "-o", "json")
    records = [json.loads(line) for line in run.lines]
    assert [record["id"] for record in records] == list(load_client_cases())
    assert all(record["what"] and record["expected"] and record["source"] for record in records)
    assert "Expected" not in "".join(record["what"] for record in records)
    assert "never taken as stored" in " ".join(pwire("explain", "client/receipt_dropped").lines)
    assert {record["id"] for record in records} <= {requirement.id for requirement in list_requirements()}
