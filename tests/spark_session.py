"""Fixtures of tests with Spark: a session, as starting one takes seconds, and a capture."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    from pulsarctl_wire.spark.engine import settings
    from pulsarctl_wire.spark.session import ARCHIVE, start, stop

    # The making of an archive would go on beside the tests, and so would the second compiler.
    conf = {ARCHIVE: "false", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    running = start("local[2]", conf | settings([], "local[2]"))  # those for small tables, as of the command
    yield running
    stop(running)


@pytest.fixture(scope="session")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("generated") / "busy.pcap"
    generator = Path(__file__).parents[1] / "benchmarks" / "generate.py"
    subprocess.run([sys.executable, generator, path, "--frames", "6000"], check=True, capture_output=True)
    return path
