"""`pwire analyze`: what it says, and which options it refuses."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pwire_run import SAMPLES, pwire

from pulsarctl_wire.pipeline.decoding.edges import PARTITIONS


def test_rows_of_captures_that_are_gone(tmp_path: Path) -> None:
    captures, out = tmp_path / "captures", tmp_path / "out"
    captures.mkdir()
    shutil.copy(SAMPLES / "errors.pcap", captures / "1.pcap")
    assert pwire("analyze", captures, "--out", out).err.startswith("1 file (")
    (captures / "1.pcap").unlink()
    shutil.copy(SAMPLES / "python-simple.pcap", captures / "2.pcap")
    added = pwire("analyze", captures, "--out", out)
    assert (added.code, len(added.complaints)) == (0, 1)
    assert "2.pcap came late" in added.complaints[0]
    assert "\n2 files (" in added.err
    again = pwire("analyze", captures, "--out", out, "--split-size", "1Mi")
    assert (again.code, again.complaints) == (
        3,
        [
            f"pwire: {out}: {captures}/1.pcap is gone or has changed, and --split-size was 134217728 before; "
            "--rebuild makes the table without its rows"
        ],
    )
    mirrored = pwire("analyze", captures, "--out", out, "--split-size", "1Mi", "--mirror")
    assert mirrored.code == 0
    assert "\n1 file (" in mirrored.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--follow", "--mirror"], "analyze: --mirror cannot be combined with --follow"),
        *(
            (
                ["--partition-by", text],
                f"--partition-by {text}: use {', '.join(PARTITIONS)} (as date,hour), or none",
            )
            for text in ("", "day", "date,date", "date,")
        ),
    ],
)
def test_options_that_are_refused(tmp_path: Path, options: list[str], said: str) -> None:
    ran = pwire("analyze", tmp_path, "--out", tmp_path / "out", *options)
    assert (ran.code, ran.complaints) == (2, [f"pwire: {said}"])
    assert not list(tmp_path.iterdir())
