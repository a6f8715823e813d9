"""The data source's reader, as Spark's workers run it: damaged files, several paths, other directories."""

from __future__ import annotations

import json
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest
from pipeline.comparing import alone, ordered

from pulsarctl_wire.pipeline.progress import Options

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pulsarctl_wire.spark.datasource import Captures

SAMPLES = Path(__file__).parents[2] / "samples" / "pcaps"


def rows(elsewhere: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[dict[str, Any]]:
    """The frames, read where Spark may read them: in another process, whose directory is another one."""
    source = Captures(options)
    reader = pickle.loads(pickle.dumps(source.reader(source.schema())))
    with monkeypatch.context() as context:
        context.chdir(elsewhere)
        found = [row for batch in reader.read(None) for row in batch.to_pylist()]
    return ordered(found)


def test_a_list_of_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(SAMPLES)
    names = ["python-simple.pcap", "errors.pcap"]
    found = rows(tmp_path, monkeypatch, paths=json.dumps([f"file://{SAMPLES}/{names[0]}", names[1]]))
    expected = alone([names[1], f"{SAMPLES}/{names[0]}"], Options(), by_time=True).frames
    names_only = [
        [{**row, "file": Path(row["file"]).name, "series": None} for row in some]
        for some in (found, expected)
    ]
    assert ordered(names_only[0]) == ordered(names_only[1])


@pytest.mark.parametrize(("cut", "name"), [(20, "errors.pcap"), (10**9, "no-capture.pcap")])
def test_a_damaged_file_gives_its_rows_and_a_warning(
    cut: int, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data = (SAMPLES / "errors.pcap").read_bytes()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / name).write_bytes(data[:-cut] or b"no capture, but words " * 99)
    (tmp_path / "a" / "python-simple.pcap").write_bytes((SAMPLES / "python-simple.pcap").read_bytes())
    with caplog.at_level(logging.WARNING):
        found = rows(tmp_path, monkeypatch, path=f"{tmp_path}/a/*")
    outcome = alone([str(path) for path in sorted((tmp_path / "a").iterdir())], Options(), by_time=True)
    assert found == outcome.frames
    assert [record.getMessage() for record in caplog.records] == outcome.problems
    assert name in outcome.problems[0]


def test_files_that_are_no_captures_are_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "dump-20231231").write_bytes((SAMPLES / "python-simple.pcap").read_bytes())
    (tmp_path / "notes.pcap").write_bytes(b"words")
    with caplog.at_level(logging.WARNING):
        assert rows(tmp_path, monkeypatch, path=str(tmp_path))
    assert [each.getMessage() for each in caplog.records] == [
        f"{tmp_path}: 1 file is not a capture: notes.pcap"
    ]
