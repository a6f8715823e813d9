"""`pwire report` and `pwire sql`: captures as they are, what is listed, what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from pwire_run import SAMPLES, pwire
from rich.cells import cell_len

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.data.report import print_table


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("pulsarctl_wire.spark")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)


@pytest.mark.usefixtures("without_spark")
def test_reports_are_listed_and_looked_up_without_spark() -> None:
    run = pwire("report")
    assert run.code == 0
    assert [line.split()[0] for line in run.lines][:3] == ["summary", "publish-latency", "request-latency"]
    assert "did you mean summary?" in pwire("report", "summry", "x").err
    assert "use one of summary, " in pwire("report", "qqq", "x").err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["report", "summry", "x"], 2, "did you mean summary?"),
        (["report", "errors"], 2, "name a SOURCE"),
        (["report", "errors", "x", "--bucket", "5 parsec"], 2, "--bucket 5 parsec: "),
        (["report", "errors", "x", "--conf", "novalue"], 2, "--conf novalue: use KEY=VALUE"),
        (["report", "errors", "/no/such.parquet"], 3, "/no/such.parquet: no such file"),
        (["report", "errors", str(SAMPLES / "README.md")], 3, "is not a frames table"),
        (["report", "errors", "x", "--since", "yesterday"], 2, "--since yesterday: not a time"),
        (["report", str(SAMPLES / "nano.pcap")], 2, f"pwire report summary {SAMPLES / 'nano.pcap'}"),
        (["sql", "select 1", str(SAMPLES / "nano.pcap")], 2, "the query comes last"),
        (["sql", "select 1"], 2, "SOURCE"),
        (["sql", "x", "select 1", "-o", "html"], 2, "table, json, csv or parquet"),
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

    from pulsarctl_wire.table.schema import FRAMES

    path = tmp_path / "old.parquet"
    pq.write_table(FRAMES.empty_table().replace_schema_metadata({"pwire.table": "99"}), path)
    run = pwire("report", "errors", path)
    assert run.code == 3
    assert "version 99" in run.err


def test_a_table_of_version_3_lacks_columns(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    made, path = tmp_path / "new.parquet", tmp_path / "old.parquet"
    assert pwire("table", SAMPLES / "nano.pcap", "--out", made).code == 0
    table = pq.read_table(made)
    new = ["host", "time", "uid", "broker", "request", "tenant", "namespace"]
    pq.write_table(table.drop_columns(new).replace_schema_metadata({"pwire.table": "3"}), path)
    assert len(pwire("sql", path, "SELECT command FROM frames", "-o", "json", "--top", "2").records) == 2
    run = pwire("sql", path, "SELECT count(*) AS n, count(uid) + count(time) AS new FROM frames", "-o", "csv")
    assert run.code == 0
    assert run.out.split() == [b"n,new", b"%d,0" % table.num_rows]


def test_captures_are_read_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    command = ("report", "errors", SAMPLES / "errors.pcap", SAMPLES / "nano.pcap", "-o", "json")
    first = pwire(*command)
    assert json.loads(first.lines[0])["error"] == "ConsumerBusy"
    kept = list((tmp_path / "pwire" / "tables").iterdir())
    assert len(kept) == 1
    assert (tmp_path / "pwire" / "tables").stat().st_mode & 0o777 == 0o700
    made = (kept[0] / "manifest.json").stat().st_mtime_ns
    assert pwire(*command).lines == first.lines
    assert (kept[0] / "manifest.json").stat().st_mtime_ns == made
    assert pwire("report", "--clear-cache").err.startswith("1 kept result deleted, ")
    assert not kept[0].exists()


# -- tables

LONG = "persistent://public/default/" + "orders-of-日本-" * 12
ROWS = [
    {"topic": LONG, "bytes": 1_000_000, "share": 0.5, "error": "TopicNotFound", "count": 1_234_567},
    {"topic": "short", "bytes": 1, "share": 0.5, "error": "x" * 90, "count": 1},
]


@pytest.mark.parametrize("width", [None, 30, 80, 120, 400])
def test_no_value_of_a_table_is_cut(
    width: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "terminal_width", lambda stream: width)
    print_table("", ROWS, list(ROWS[0]))
    lines = capsys.readouterr().out.splitlines()
    assert "…" not in "".join(lines)
    starts = [lines[0].index(name) for name in ("topic", "error")]
    topics = "".join(line.split("  ")[0].strip() for line in lines[1:])
    assert topics == LONG.removeprefix("persistent://") + "short"
    assert starts[0] == 0
    assert "".join(lines).count("x") == 90
    if width is None:
        assert len(lines) == 3
    elif width >= 80:
        assert max(map(cell_len, lines)) <= width
