"""Tables on a server of S3, in all formats: analyze, report, optimize, delete, and other readers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pyarrow.parquet as pq
import pytest
from pipeline.comparing import Row, alone, ordered
from private_cache import cache as cache
from pwire_run import SAMPLES, pwire

from pulsarctl_wire.pipeline.decoding.edges import Options
from pulsarctl_wire.pipeline.files.filesystems import filesystem
from pulsarctl_wire.pipeline.files.inputs import find_inputs
from pulsarctl_wire.pipeline.storage.tables import find
from pulsarctl_wire.table.schema import FRAMES

pytestmark = pytest.mark.slow

NAMES = ["errors.pcap", "snaplen96.pcap"]
BASE = "s3://lake"


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of a server that has captures, which everything else finds by the environment."""
    moto = pytest.importorskip("moto.server", reason="moto is not installed")
    import boto3

    server = moto.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    settings = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket="lake")
    for name in NAMES:
        client.upload_file(str(SAMPLES / name), "lake", f"captures/{name}")
    yield client
    client.close()
    server.stop()


def plain(found: list[Row]) -> list[Row]:
    """Rows by what no directory or reader changes."""
    return ordered(
        [
            {
                **{name: None if row[name] == [] else row[name] for name in FRAMES.names},
                "file": row["file"].rpartition("/")[2],
                "series": None,
            }
            for row in found
        ]
    )


def rows(table: str) -> list[Row]:
    files = [filesystem(path) for path in find([table])[0].files["frames"].paths]
    return plain(
        [row for system, path in files for row in pq.read_table(path, filesystem=system).to_pylist()]
    )


def done(*arguments: str) -> str:
    ran = pwire(*arguments)
    assert ran.code == 0, ran.err
    return ran.out.decode() + ran.err


def read(table: str, format: str) -> list[Row]:
    """The rows that another reader finds."""
    if format == "delta":
        import deltalake

        return plain(deltalake.DeltaTable(f"{table}/frames").to_pyarrow_table().to_pylist())
    from pyiceberg.table import StaticTable

    where = {"s3.endpoint": os.environ["AWS_ENDPOINT_URL"]}
    found = StaticTable.from_metadata(f"{table}/frames/_iceberg", where)
    return plain(found.scan().to_arrow().to_pylist())


@pytest.mark.parametrize("format", ["parquet", "delta", "iceberg"])
def test_a_table_on_s3(client: Any, format: str) -> None:
    table, small = f"{BASE}/{format}", ["--split-size", "30k"]
    first = find_inputs([f"{BASE}/captures"])[0].name
    done("analyze", first, "--out", table, *small, "--format", format)
    assert ", 1 of them before" in done("analyze", f"{BASE}/captures", "--out", table, *small)
    files = [str(SAMPLES / name) for name in NAMES]
    expected = plain(alone(files, Options(), by_time=True).frames)

    def check() -> None:
        assert rows(table) == expected
        if format != "parquet":
            assert read(table, format) == expected

    check()
    report = done("report", "summary", table)
    assert report == done("report", "summary", *files)
    done("table", "optimize", table)
    check()
    done("table", "optimize", table, "--partition-by", "date,tenant")
    check()
    assert done("report", "summary", table) == report
    border = sorted(row["time_ns"] for row in expected)[len(expected) // 2]
    done("table", "delete", table, "--before", str(border // 10**9), "--exact")
    expected = [row for row in expected if row["time_ns"] >= border // 10**9 * 10**9]
    check()
    done("analyze", f"{BASE}/captures", "--out", table, *small)
    names = [each["Key"] for each in client.list_objects_v2(Bucket="lake", Prefix=format)["Contents"]]
    assert not [name for name in names if name.endswith((".unfinished", ".arrow", ".edges", ".stitched"))]


def test_a_bucket_that_there_is_not(client: Any) -> None:
    for arguments in (
        ["analyze", f"{BASE}/captures", "--out", "s3://nowhere/table"],
        ["analyze", "s3://nowhere/captures", "--out", f"{BASE}/table"],
        ["report", "summary", "s3://nowhere/table"],
        ["table", "delete", "s3://nowhere/table", "--before", "7d"],
    ):
        ran = pwire(*arguments)
        assert ran.code in (3, 5)
        assert len(ran.complaints) == 1, ran.err
        assert "s3://nowhere" in ran.complaints[0]
