"""Without the libraries of extras, what needs one says in a line which extra brings it; all else works."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pwire_run import SAMPLES, pwire

from pulsarctl_wire.cli.verbs import NAMES
from pulsarctl_wire.errors import EXTRAS, how_to_install
from pulsarctl_wire.reports import REPORTS

SAMPLE = str(SAMPLES / "nano.pcap")

_SCRIPT = """
import json, os, sys
libraries, folder, lines = json.load(sys.stdin)
sys.modules.update(dict.fromkeys(libraries))  # as if they were not installed
sys.path.insert(0, folder)
from pwire_run import pwire
runs = []
for environment, arguments in lines:
    os.environ.update(environment)
    runs.append(pwire(*arguments))
    for name in environment:
        del os.environ[name]
print(json.dumps([(run.code, run.out.decode(), run.err) for run in runs]))
"""

HELP = [["--help"], *([name, "--help"] for name in NAMES)]
WORKING = [
    *(["decode", "-q", *more, str(SAMPLES)] for more in ([], ["-2"], ["--doctor"], ["--connections"])),
    *(["decode", "-o", form, SAMPLE] for form in ("line", "tree", "json", "hex")),
    ["decode", "--filter", "total_size > 100", "--write", "{out}.pcapng", SAMPLE],
    *([verb, SAMPLE] for verb in ("doctor", "stats", "permits", "sequence")),
    ["explain", "SEND"],
    ["report"],
    ["demo", "--record", "{out}-demo.pcapng"],
]
MISSING = [
    ["table", SAMPLE, "--out", "{out}"],
    ["table", "optimize", "{out}"],
    ["analyze", SAMPLE, "--out", "{out}"],
    ["report", "errors", SAMPLE],
    ["report", "--clear-cache"],
    ["sql", SAMPLE, "SELECT 1"],
    ["extract", SAMPLE, "--where", "true", "--write", "{out}"],
]
COMPLETION = {"pwire ": NAMES, "pwire report ": [*REPORTS]}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("light") / "out"


@pytest.fixture(scope="module")
def light(out: Path) -> Any:
    """Runs that were made in a process without the libraries of any extra: a function of the command line."""
    plain = [[each.format(out=out) for each in line] for line in (*HELP, *WORKING, *MISSING)]
    lines: list[Any] = [({}, line) for line in plain]
    tab = {"_PWIRE_COMPLETE": "complete_bash"}
    lines += [(tab | {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}, []) for line in COMPLETION]
    libraries = [name for names in EXTRAS.values() for name in names]
    sent = json.dumps([libraries, str(Path(__file__).parent), lines])
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], input=sent, capture_output=True, text=True, check=True
    )
    runs = dict(zip([*map(tuple, plain), *COMPLETION], json.loads(done.stdout), strict=True))
    return lambda line: runs[line if isinstance(line, str) else tuple(each.format(out=out) for each in line)]


@pytest.mark.parametrize("line", [*HELP, *WORKING], ids=" ".join)
def test_what_needs_no_extra_works(line: list[str], light: Any) -> None:
    code, _, err = light(line)
    assert "not installed" not in err
    assert code in ((0, 1) if line[0] == "doctor" else (0,))


@pytest.mark.parametrize("line", COMPLETION)
def test_everything_is_completed(line: str, light: Any) -> None:
    code, shown, err = light(line)
    assert (code, err) == (0, "")
    assert {each.split()[-1] for each in shown.splitlines()} >= {*COMPLETION[line]}


@pytest.mark.parametrize("line", MISSING, ids=" ".join)
def test_what_needs_data_names_the_extra(line: list[str], light: Any, out: Path) -> None:
    assert light(line) == [11, "", f"pwire: pyarrow is not installed: {how_to_install('data')}\n"]
    assert not out.exists()


@pytest.mark.parametrize(
    ("library", "extra", "line"),
    [
        ("duckdb", "data", ["report", "errors", SAMPLE]),
        ("sqlglot", "sql", ["sql", "--ddl", "trino", SAMPLE]),
        ("deltalake", "delta", ["analyze", SAMPLE, "--out", "{out}", "--format", "delta"]),
        ("pyiceberg", "iceberg", ["analyze", SAMPLE, "--out", "{out}", "--format", "iceberg"]),
        ("pyspark", "spark", ["analyze", SAMPLE, "--out", "{out}", "--master", "local"]),
        ("pyspark", "spark", ["analyze", SAMPLE, "--out", "{out}", "--follow"]),
        ("pyspark", "spark", ["report", "errors", SAMPLE, "--engine", "spark"]),
        ("pyspark", "spark", ["sql", SAMPLE, "SELECT 1", "--master", "local"]),
    ],
)
def test_what_needs_more_than_data_names_that(
    library: str, extra: str, line: list[str], out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    run = pwire(*(each.format(out=out) for each in line))
    assert run == (11, b"", f"pwire: {library} is not installed: {how_to_install(extra)}\n")
    assert not out.exists()


def test_a_table_with_logs_stays_as_it_is_without_their_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ["analyze", SAMPLE, "--out", str(tmp_path)]
    assert pwire(*line, "--format", "delta").code == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.setitem(sys.modules, "deltalake", None)
    assert pwire(*line) == (11, b"", f"pwire: deltalake is not installed: {how_to_install('delta')}\n")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
