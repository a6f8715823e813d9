"""One Spark session for all tests: to start one takes seconds."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    from pulsarctl_wire.spark.session import ARCHIVE, start, stop

    running = start("local[2]", {ARCHIVE: "false"})  # its making would go on beside the tests
    yield running
    stop(running)
