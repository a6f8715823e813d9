"""Sessions on a server of Spark Connect, at a URL like sc://HOST:15002. They need no Java here."""

import os
import socket
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from pulsarctl_wire.errors import require

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PORT: Final = 15002
_PATIENCE: Final = 10.0  # seconds
_MODE: Final = "SPARK_CONNECT_MODE_ENABLED"  # pyspark sets it, and would not start another kind of session


def is_connect(master: str) -> bool:
    """Return whether a master is a server of Spark Connect."""
    return master.startswith("sc://")


def connect(url: str, conf: Mapping[str, str], package: Callable[[Path], Path]) -> "SparkSession":
    """Open a session on the server at `url`, with settings; `package` makes the file for its workers.

    Raises MissingLibrary if libraries that pyspark needs for that are missing, OSError without a server.
    """
    require("grpc", "grpc_status")
    from pyspark.sql import SparkSession

    address = urlsplit(url)
    # pyspark would try for ten minutes.
    socket.create_connection((address.hostname or "", address.port or _PORT), _PATIENCE).close()
    builder = SparkSession.builder.remote(url)
    for key, value in conf.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    with tempfile.TemporaryDirectory(prefix="pwire-") as directory:
        spark.addArtifacts(str(package(Path(directory, "pulsarctl_wire.zip"))), pyfile=True)
    return spark


def disconnect(spark: "SparkSession") -> None:
    """End a session of `connect`."""
    spark.stop()
    os.environ.pop(_MODE, None)
