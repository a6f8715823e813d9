"""The package as a file: who imports it from there, and who what is compiled in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("grpc_status", reason="grpcio-status is not installed")

from spark.clusters import connect_server, standalone_master, standalone_worker
from spark.rows import expected, rows

import pulsarctl_wire

PACKAGE = Path(pulsarctl_wire.__file__).parent
PACK = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from pulsarctl_wire.shipping import pack
pack(Path(sys.argv[2]))
"""
IMPORT = """
import sys
sys.path.insert(0, sys.argv[1])
from pulsarctl_wire.errors import __file__ as imported
print(imported.removeprefix(sys.argv[1]))
"""


def shipped(directory: Path, *libraries: str) -> Path:
    """The package as a file, from an installation that has these files beside it, with nothing in them."""
    for name in libraries:
        (directory / name).touch()
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(PACKAGE, directory / PACKAGE.name, ignore=ignored)
    path = directory / "sent" / "package.zip"
    path.parent.mkdir()
    subprocess.run([sys.executable, "-c", PACK, directory, path], check=True)
    return path


def importing(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", IMPORT, path], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    "libraries",
    [
        [],
        ["pulsarctl_wire__mypyc.cpython-999-sparc.so"],  # of another machine
        [f"pulsarctl_wire__mypyc{EXTENSION_SUFFIXES[0]}"],  # what does not load, as with another C library
    ],
)
def test_without_what_fits_it_is_imported_from_the_file(libraries: list[str], tmp_path: Path) -> None:
    path = shipped(tmp_path, *libraries)
    with importing(path) as process:
        assert process.stdout is not None
        assert process.stdout.read() == f"/{PACKAGE.name}/errors.py\n"


def test_what_fits_is_unpacked_once_for_all_processes(tmp_path: Path) -> None:
    path = shipped(tmp_path, "pulsarctl_wire__mypyc.py")
    processes = [importing(path) for _ in range(3)]
    assert {process.communicate()[0] for process in processes} == {f".unpacked/{PACKAGE.name}/errors.py\n"}
    assert {each.name for each in path.parent.iterdir()} == {path.name, f"{path.name}.unpacked"}


WORK = """
import sys
from pulsarctl_wire.pipeline.files.inputs import find_inputs
from pulsarctl_wire.pipeline.decoding.edges import Options
from pulsarctl_wire.pipeline.run import Run
from pulsarctl_wire.spark.executor import SparkWorkers
from pulsarctl_wire.spark.session import session

def where():
    from pulsarctl_wire.pipeline.decoding import decode
    from pulsarctl_wire.wire import frame
    return [decode.__file__, frame.__file__]

with session(sys.argv[1]) as spark:
    workers = SparkWorkers(spark)
    print(*workers.submit(where, [()], 0)[0].result(), sep="\\n")
    Run(find_inputs([sys.argv[2]]), sys.argv[3], options=Options(split_size=50_000)).run(workers)
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that has what a wheel installs: the one that CI has made, or a new one."""
    if made := os.environ.get("PWIRE_CI_WHEEL"):
        return Path(made)
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(directory)]
    subprocess.run([*command, str(PACKAGE.parent)], check=True)
    (wheel,) = directory.iterdir()
    with zipfile.ZipFile(wheel) as file:
        file.extractall(directory)
    return directory


@contextmanager
def cluster(directory: Path) -> Iterator[str]:
    with standalone_master(directory) as master, standalone_worker(directory, master):
        yield master


@pytest.mark.slow
@pytest.mark.usefixtures("quick_spark")
@pytest.mark.timeout(900)  # compiling takes minutes
@pytest.mark.parametrize("serving", [cluster, connect_server])
def test_workers_run_what_is_compiled(
    serving: Callable[[Path], AbstractContextManager[str]], compiled: Path, capture: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with serving(tmp_path) as master:
        done = subprocess.run(
            [sys.executable, "-c", WORK, master, capture, out],
            cwd=tmp_path,  # not where the sources are
            env=os.environ | {"PYTHONPATH": str(compiled)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    imported = done.stdout.split()
    assert [Path(each).suffix for each in imported] == [".so", ".so"]
    assert all(".zip.unpacked/" in each for each in imported)
    found = expected([str(capture)])
    assert rows(out) == found.tables
