"""Spark's servers on this machine, as processes of their own."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from pulsarctl_wire.pipeline.files.paths import cache_directory
from pulsarctl_wire.spark.java import find_java
from pulsarctl_wire.spark.session import _archive

HOME = Path(pyspark.__path__[0])
CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def java_options() -> list[str]:
    """Options for servers, which do not live long enough for the second compiler."""
    archive, being_made = _archive(find_java(), str(HOME), cache_directory())
    use = [archive] if archive and not being_made else []
    # Java is silent about an archive that does not fit, as that of the launcher: its output is a command.
    return ["-XX:TieredStopAtLevel=1", "-Xlog:disable", *use]


@contextmanager
def serving(directory: Path, *command: str, ready: str) -> Iterator[str]:
    """A server that runs until the block ends; the line of its log that matches `ready`, once it is there."""
    environment = os.environ | {
        "SPARK_HOME": str(HOME),
        "JAVA_HOME": str(find_java().home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(directory),
        "PYSPARK_PYTHON": sys.executable,
        "JDK_JAVA_OPTIONS": " ".join(java_options()),
    }
    process = subprocess.Popen(
        [str(HOME / "bin" / command[0]), *command[1:]],
        cwd=directory,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    try:
        said = []
        for line in process.stderr:
            said.append(line)
            if re.search(ready, line):
                break
        else:
            raise AssertionError("".join(said))
        drain = subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
        yield line
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stderr.close()
    drain.wait()


@contextmanager
def connect_server(directory: Path) -> Iterator[str]:
    """The URL of a server of Spark Connect."""
    port = free_port()
    conf = [f"spark.connect.grpc.binding.port={port}", "spark.connect.grpc.binding.address=127.0.0.1"]
    conf += [
        "spark.ui.enabled=false",
        "spark.driver.host=127.0.0.1",
        "spark.sql.catalogImplementation=in-memory",
    ]
    words = [word for each in conf for word in ("--conf", each)]
    command = ["spark-submit", "--class", CONNECT, "--master", "local[2]", *words]
    with serving(directory, *command, ready="Spark Connect server started"):
        yield f"sc://127.0.0.1:{port}"


@contextmanager
def standalone_master(directory: Path) -> Iterator[str]:
    """The URL of a master without workers."""
    port = free_port()
    command = ["spark-class", MASTER, "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
    with serving(directory, *command, ready="I have been elected leader"):
        yield f"spark://127.0.0.1:{port}"


@contextmanager
def standalone_worker(directory: Path, master: str) -> Iterator[str]:
    """A worker with one core."""
    command = ["spark-class", WORKER, "--host", "127.0.0.1", "--webui-port", "0", "--cores", "1"]
    with serving(directory, *command, "--memory", "1g", master, ready="Successfully registered") as said:
        yield said
