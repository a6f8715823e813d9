"""Captures and tables in file systems of fsspec."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pyarrow.parquet as pq
import pytest
from pipeline.comparing import Now, Row, alone, ordered
from private_cache import cache as cache
from pwire_run import SAMPLES, pwire

from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline.decoding.edges import Options
from pulsarctl_wire.pipeline.files.filesystems import filesystem
from pulsarctl_wire.pipeline.files.inputs import find_inputs
from pulsarctl_wire.pipeline.run import Run
from pulsarctl_wire.pipeline.storage.tables import find
from pulsarctl_wire.pipeline.storage.tasks import Pool

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")

NAMES = ["errors.pcap", "python-simple.pcap", "snaplen96.pcap"]


@pytest.fixture(params=["local", "memory"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A URI below which captures are."""
    uri = f"{request.param}://{tmp_path}"
    system, path = fsspec.core.url_to_fs(uri)
    for name in NAMES:
        system.makedirs(f"{path}/captures", exist_ok=True)
        system.pipe_file(f"{path}/captures/{name}", (SAMPLES / name).read_bytes())
    yield uri
    system.rm(path, recursive=True)


def rows(table: str) -> list[Row]:
    (found,) = find([table])
    files = [filesystem(path) for path in found.files["frames"].paths]
    return ordered(
        [
            {**row, "file": Path(row["file"]).name, "series": None}
            for system, path in files
            for row in pq.read_table(path, filesystem=system).to_pylist()
        ]
    )


def expected(names: list[str]) -> list[Row]:
    found = alone([str(SAMPLES / name) for name in names], Options(), by_time=True).frames
    return ordered([{**row, "file": Path(row["file"]).name, "series": None} for row in found])


def test_a_run_continues_where_the_last_one_ended(base: str) -> None:
    inputs, out = find_inputs([f"{base}/captures"]), f"{base}/table"
    assert len(inputs) == len(NAMES)
    for count in (2, 3):
        run = Run(inputs[:count], out, options=Options(split_size=20_000))
        run.run(Pool(Now()))
        assert rows(out) == expected([Path(each.name).name for each in inputs[:count]])
    assert run.done_count == 2


def test_analyze_and_report(base: str) -> None:
    made = pwire("analyze", f"{base}/captures/*.pcap", "--out", f"{base}/table")
    assert "3 files" in made.err, made.err
    assert rows(f"{base}/table") == expected(NAMES)
    local = [str(SAMPLES / name) for name in NAMES]
    assert pwire("report", "summary", f"{base}/table").out == pwire("report", "summary", *local).out


def test_captures_on_a_web_server(tmp_path: Path) -> None:
    handler = partial(_Quiet, directory=str(SAMPLES))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever).start()
        address = f"http://127.0.0.1:{server.server_port}"
        made = pwire("analyze", *[f"{address}/{name}" for name in NAMES], "--out", tmp_path / "table")
        missing = pwire("analyze", f"{address}/none.pcap", "--out", tmp_path / "other")
        server.shutdown()
    assert "3 files" in made.err, made.err
    assert rows(str(tmp_path / "table")) == expected(NAMES)
    assert missing.complaints == [f"pwire: {address}/none.pcap: no such file"]


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.parametrize(
    ("uri", "says"),
    [("box://a", "install boxfs"), ("nosuch://a", "Protocol not known: nosuch"), ("sftp://a/b", "paramiko")],
)
def test_a_file_system_that_there_is_not_is_one_line(uri: str, says: str) -> None:
    with pytest.raises(CaptureError, match=rf"^{uri}: .*{says}") as error:
        filesystem(uri)
    assert "\n" not in str(error.value)


def test_without_fsspec_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(CaptureError, match=r"^oss://a: pyarrow has no such file system: pip install fsspec$"):
        filesystem("oss://a")
