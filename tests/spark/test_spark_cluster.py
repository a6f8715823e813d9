"""A standalone cluster that grows while it works: the machines that join it get work, of the same job."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from spark.clusters import standalone_master, standalone_worker
from spark.rows import expected, rows

PROGRAM = """
import os, sys, threading
from pathlib import Path
from pulsarctl_wire.pipeline.files.inputs import find_inputs
from pulsarctl_wire.pipeline.decoding.edges import Options
from pulsarctl_wire.pipeline.run import Run
from pulsarctl_wire.spark.executor import SparkWorkers
from pulsarctl_wire.spark.session import session

master, seen, capture, out = sys.argv[1:]

def meet(seen):
    executor = Path.cwd()
    Path(seen, executor.name).touch()
    while len(os.listdir(seen)) < 2:
        threading.Event().wait(0.05)
    return executor.name

with session(master, {"spark.executor.memory": "512m"}) as spark:
    workers = SparkWorkers(spark)
    futures = workers.submit(meet, [(seen,)] * 20, 0)
    print(len({each.result() for each in futures}), flush=True)
    Run(find_inputs([capture]), out, options=Options(split_size=50_000)).run(workers)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("quick_spark")
def test_a_worker_that_joins_later_works_too(capture: Path, tmp_path: Path) -> None:
    seen, out = tmp_path / "seen", tmp_path / "out"
    seen.mkdir()
    with standalone_master(tmp_path) as master, standalone_worker(tmp_path, master):
        command = [sys.executable, "-c", PROGRAM, master, str(seen), str(capture), str(out)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as program:
            while not any(seen.iterdir()):
                with suppress(subprocess.TimeoutExpired):
                    program.wait(0.05)
                    pytest.fail("it ended")
            with standalone_worker(tmp_path, master):
                said, _ = program.communicate()
    assert said == b"2\n"
    found = expected([str(capture)])
    assert rows(out) == found.tables
