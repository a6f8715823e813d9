"""Fixtures of tests with Spark: a session, as starting one takes seconds, and a capture."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[1]
MAKING = """
import sys
from pyspark import SparkContext
from pulsarctl_wire.pipeline.decoding.edges import Options
from pulsarctl_wire.spark import FOLLOWING
from pulsarctl_wire.spark.follow import follow
from pulsarctl_wire.spark.session import start

captures, out = sys.argv[1:]
spark = start("local[1]", FOLLOWING, decodes=True)
follow(spark, captures, out, Options(), finish=True)
java = SparkContext._gateway.proc
spark.stop()
java.stdin.close()
java.wait()
"""
"""Has Java write its archive of classes, and waits for it."""


@pytest.fixture(scope="session")
def spark_cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A cache directory with an archive of Spark's classes, which halves the CPU time of a start.

    Workers of pytest-xdist share it, and in CI all steps.
    """
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    is_shared = "PYTEST_XDIST_WORKER" in os.environ
    folder = tmp_path_factory.getbasetemp()
    cache = Path(os.environ.get("PWIRE_CI_SPARK", (folder.parent if is_shared else folder) / "spark-cache"))
    cache.mkdir(exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (cache / "pwire").exists():
            captures = tmp_path_factory.mktemp("captures")
            (captures / "simple.pcap").symlink_to(ROOT / "samples" / "pcaps" / "java-simple.pcap")
            command = [sys.executable, "-c", MAKING, str(captures), str(tmp_path_factory.mktemp("table"))]
            subprocess.run(command, check=True, env=os.environ | {"XDG_CACHE_HOME": str(cache)})
    return str(cache)


@pytest.fixture
def quick_spark(spark_cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive is what all processes of a test start Spark with."""
    monkeypatch.setenv("XDG_CACHE_HOME", spark_cache)


@pytest.fixture(scope="session")
def spark(spark_cache: str) -> Iterator["SparkSession"]:
    from pulsarctl_wire.spark.engine import settings
    from pulsarctl_wire.spark.session import start, stop

    # The second compiler would go on beside the tests.
    conf = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    with mock.patch.dict(os.environ, XDG_CACHE_HOME=spark_cache):
        running = start("local[2]", conf | settings([], "local[2]"))  # as of the command, for small tables
    yield running
    stop(running)


@pytest.fixture(scope="session")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("generated") / "busy.pcap"
    generator = ROOT / "benchmarks" / "generate.py"
    subprocess.run([sys.executable, generator, path, "--frames", "6000"], check=True, capture_output=True)
    return path
