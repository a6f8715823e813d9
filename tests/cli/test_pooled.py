"""What several processes find in captures that they share is what one finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pwire_run import SAMPLES, pwire

from pulsarctl_wire.cli.capture import pool

BUSY = [str(SAMPLES / name) for name in ("java-nack-dlq.pcap", "java-simple.pcap", "errors.pcap")]


@pytest.fixture(autouse=True)
def small_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "SPLIT", 10_000)


def jobs(number: int) -> list[str]:
    return ["--jobs", str(number)]


def test_several_jobs_share_a_file() -> None:
    assert pool.plan_inputs(BUSY, 2)
    assert not pool.plan_inputs(BUSY, 1)
    assert not pool.plan_inputs(["-"], 2)


@pytest.mark.parametrize("sources", [BUSY[:1], BUSY], ids=["one", "several"])
@pytest.mark.parametrize("verb", [["decode", "-q"], ["stats", "-o", "json", "--top", "0"]], ids=" ".join)
def test_counts_are_the_same(verb: list[str], sources: list[str]) -> None:
    one, several = (pwire(*verb, *jobs(number), *sources) for number in (1, 3))
    assert (several.code, several.out, several.err) == (one.code, one.out, one.err)


def rows(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return sorted(found, key=repr)


def test_tables_are_the_same(tmp_path: Path) -> None:
    one, several = tmp_path / "one.parquet", tmp_path / "several.parquet"
    for number, out in ((1, one), (3, several)):
        assert pwire("table", *BUSY, *jobs(number), "--out", out).code == 0
    assert rows(several) == rows(one)
    for name in ("gaps", "connections"):
        assert rows(tmp_path / f"several.{name}.parquet") == rows(tmp_path / f"one.{name}.parquet")
    assert [path.suffix for path in tmp_path.iterdir()] == [".parquet"] * 6  # and no drafts


@pytest.mark.parametrize("verb", [["decode", "-q"], ["stats"]], ids=" ".join)
def test_what_is_wrong_with_a_file_is_said(verb: list[str], tmp_path: Path) -> None:
    cut = tmp_path / "cut.pcap"
    cut.write_bytes(Path(BUSY[0]).read_bytes()[:-7])
    one, several = (pwire(*verb, *jobs(number), cut) for number in (1, 3))
    assert one.code == 4
    assert (several.code, several.out, several.err) == (one.code, one.out, one.err)


def test_texts_are_read_by_one_process(tmp_path: Path) -> None:
    texts = [tmp_path / "one.txt", tmp_path / "two.txt"]
    for text in texts:
        text.write_text(Path(BUSY[0]).read_bytes().hex())
    one, several = (pwire("stats", "-o", "json", *jobs(number), *texts) for number in (1, 3))
    assert one.code == 0
    assert b'"forms":["hex digits"]' in one.out
    assert (several.code, several.out, several.err) == (one.code, one.out, one.err)
