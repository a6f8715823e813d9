"""The pipeline by Spark Connect, where there are no RDDs and no Java of ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("grpc_status", reason="grpcio-status is not installed")

from spark.clusters import connect_server, free_port
from spark.rows import expected, rows

from pulsarctl_wire.spark import SparkError
from pulsarctl_wire.spark.session import start

PWIRE = [sys.executable, "-c", "from pulsarctl_wire.cli import main; main()"]
SAMPLES = Path(__file__).parents[2] / "samples" / "pcaps"
COMPARING = """
import sys
from pulsarctl_wire import data

table, url = sys.argv[1:]
with data.tables(table, master=url) as there, data.tables(table) as here:
    rows = {
        name: [each.report(name, key="a").arrow().to_pylist() for each in (there, here)]
        for name in ("summary", "slow", "topics", "connections", "journey", "findings")
    }
print([name for name, (one, other) in rows.items() if one != other])
"""


@pytest.mark.slow
@pytest.mark.usefixtures("quick_spark")
def test_analyze_and_reports_by_spark_connect(capture: Path, tmp_path: Path) -> None:
    inputs, out = [f"{SAMPLES}/[ns]*.pcap", str(capture)], tmp_path / "out"
    with connect_server(tmp_path) as url:
        command = [*PWIRE, "analyze", *inputs, "--out", str(out), "--split-size", "200000", "--master", url]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        compared = subprocess.run(
            [sys.executable, "-c", COMPARING, str(out), url], capture_output=True, text=True, check=False
        )
    assert "connections" in done.stderr
    assert (compared.stdout, compared.returncode) == ("[]\n", 0), compared.stderr
    found = expected(inputs)
    assert rows(out) == found.tables


def test_a_server_that_is_not_there_is_one_line() -> None:
    url = f"sc://127.0.0.1:{free_port()}"
    with pytest.raises(SparkError, match=rf"^no session at {url}: .*refused"):
        start(f"{url}/;token=it")
