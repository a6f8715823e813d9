"""`pwire report` and `pwire sql` as far as they get without Spark: what is listed, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pwire_run import SAMPLES, pwire

pytest.importorskip("pyspark", reason="pyspark is not installed")


def test_without_a_name_the_reports_are_listed() -> None:
    run = pwire("report")
    assert run.code == 0
    assert [line.split()[0] for line in run.lines][:3] == ["summary", "publish-latency", "request-latency"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["report", "summry", "x"], 2, "did you mean summary?"),
        (["report", "errors"], 2, "name a TABLE"),
        (["report", "errors", "x", "--bucket", "5 parsec"], 2, "--bucket 5 parsec: "),
        (["report", "errors", "x", "--conf", "novalue"], 2, "--conf novalue: KEY=VALUE"),
        (["report", "errors", "/no/such.parquet"], 3, "/no/such.parquet: no such file"),
        (["report", "errors", str(SAMPLES / "README.md")], 3, "is no frames table"),
        (
            ["report", "errors", str(SAMPLES / "nano.pcap")],
            3,
            "nano.pcap is a capture, no table: pwire table",
        ),
        (
            ["report", "errors", f"file://{SAMPLES / 'nano.pcap'}"],
            3,
            "is a capture, no table: pwire table file://",
        ),
        (["report", "errors", str(SAMPLES)], 3, "no frames table in there"),
        (["sql", "select 1"], 2, "TABLE"),
        (["sql", "x", "select 1", "-o", "html"], 2, "table, json or csv"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(arguments: list[str], code: int, said: str) -> None:
    run = pwire(*arguments)
    assert run.code == code
    (line,) = run.err.splitlines()
    assert line.startswith("pwire: ")
    assert said in line


def test_a_table_of_another_version_is_refused(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    from pulsarctl_wire.table import FRAMES

    path = tmp_path / "old.parquet"
    pq.write_table(FRAMES.empty_table().replace_schema_metadata({"pwire.table": "99"}), path)
    run = pwire("report", "errors", path)
    assert run.code == 3
    assert "version 99" in run.err


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("pulsarctl_wire.spark")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    run = pwire("report", "errors", "x.parquet")
    assert run.code == 2
    assert run.err == "pwire: Spark is not installed: pip install 'pulsarctl-wire[spark]'\n"
