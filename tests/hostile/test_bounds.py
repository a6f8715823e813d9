"""Whatever a file of up to 1 MB holds, each form of output takes less than 400 MiB and a few seconds."""

import json
import os
import subprocess
import sys
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from inputs import INPUTS

SECONDS: Final = 10
"""CPU time of a run. The promise is 5 s; machines differ."""

MEMORY: Final = 400
"""MiB that may be resident."""

HERE: Final = Path(__file__).parent
LONG: Final = "hex-40MB.txt.gz"
KINDS: Final = (".pcapng", ".bin", ".hex", ".gz", ".zst")
FILES: Final = sorted(path for path in HERE.iterdir() if path.suffix in KINDS and path.name != LONG)
FORMS: Final = {
    "line": ["decode", "-o", "line"],
    "tree": ["decode", "-o", "tree"],
    "json": ["decode", "-o", "json"],
    "hex": ["decode", "-o", "hex"],
    "first error": ["decode", "--first-error"],
    "stats": ["stats"],
    "table": ["table", "--out"],
}
ENDS: Final = (0, 3, 4)
"""Exit codes: done, no source that pwire reads, a damaged one."""

QUICK: Final = (
    *("batches of zeros", "batches of unknown fields", "DEL", "C1", "64 MiB each", "wide records"),
    *("unknown fields", "items of ack.message_id", "chunks"),
)


class Runs:
    """Runs `pwire` in limited processes."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def __call__(self, arguments: list[str], seconds: int) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([seconds, *arguments]) + "\n")
        self._process.stdin.flush()
        result: dict[str, Any] = json.loads(self._process.stdout.readline())
        return result


@contextmanager
def limited() -> Iterator[Runs]:
    with subprocess.Popen(
        [sys.executable, HERE / "limited.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        yield Runs(process)
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture(scope="module")
def pwire() -> Iterator[Runs]:
    with limited() as runs:
        yield runs


def check(pwire: Runs, source: Path, form: str, tmp_path: Path, seconds: int = SECONDS) -> None:
    """One run holds what is promised."""
    out = [str(tmp_path / "table.parquet")] if form == "table" else []
    result = pwire([*FORMS[form], *out, str(source)], seconds)
    holds(result, ENDS, f"{form} of {source.name}")


def holds(result: dict[str, Any], ends: Container[int], what: str) -> None:
    """A run took no more than it may, and ended with one of the exit codes `ends`."""
    told = f"{what}: {result}"
    assert "Traceback" not in result["stderr"], told
    assert result["code"] in ends, told
    assert result["mib"] < MEMORY, told
    assert result["stderr_size"] < 10_000, told


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("source", FILES, ids=lambda path: path.name)
def test_files_that_broke_promises(source: Path, form: str, pwire: Runs, tmp_path: Path) -> None:
    check(pwire, source, form, tmp_path)


@pytest.mark.slow
def test_a_long_hex_dump(pwire: Runs, tmp_path: Path) -> None:
    check(pwire, HERE / LONG, "line", tmp_path, seconds=120)


@pytest.mark.parametrize("form", ["tree", "json"])
@pytest.mark.parametrize("name", QUICK)
def test_the_worst_inputs(name: str, form: str, pwire: Runs, tmp_path: Path) -> None:
    source = tmp_path / "input"
    source.write_bytes(INPUTS[name]())
    check(pwire, source, form, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", INPUTS)
def test_inputs(name: str, form: str, pwire: Runs, tmp_path: Path) -> None:
    source = tmp_path / "input"
    source.write_bytes(INPUTS[name]())
    check(pwire, source, form, tmp_path)
