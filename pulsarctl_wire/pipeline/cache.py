"""Keeps tables of captures, and findings in large tables, in a private directory that is limited in size.

Each is found by how it was made, and by what its files are: their paths, sizes and times. So it is made anew
when one changes.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import astuple
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pulsarctl_wire import __version__
from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline.counting import SPLIT, cores, pool
from pulsarctl_wire.pipeline.inputs import find_inputs
from pulsarctl_wire.pipeline.private import cache_directory
from pulsarctl_wire.pipeline.progress import Options
from pulsarctl_wire.pipeline.run import Run
from pulsarctl_wire.pipeline.splits import Input
from pulsarctl_wire.pipeline.tasks import Pool
from pulsarctl_wire.table import VERSION

MOST_KEPT: Final = 4 * 1024**3
"""Bytes of all that is kept; beyond that, what was not used for the longest time is deleted."""
_MANIFEST: Final = "manifest.json"
_FINDINGS: Final = "findings.parquet"


def directory() -> Path:
    """The directory of the tables; only its owner can read it."""
    path = cache_directory() / "tables"
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def clear() -> tuple[int, int]:
    """Delete all tables; returns how many they were, and their bytes."""
    kept = list(directory().iterdir())
    size = sum(map(_size, kept))
    for each in kept:
        shutil.rmtree(each, ignore_errors=True)
    return len(kept), size


def table_of(
    captures: Sequence[str],
    say: Callable[[str], object],
    *,
    max_frame_size: int | None = None,
    payload: bool = False,
) -> str:
    """The directory of a table of `captures`, made if need be. `say` gets notes about problems with them.

    `max_frame_size` is in bytes; with `payload` the table has payloads. Raises CaptureError if nothing of the
    captures can be read, OSError if the table cannot be written.
    """
    inputs, options = find_inputs(captures, say), Options(SPLIT, max_frame_size, payload)
    found = directory() / _key(inputs, options)
    if (found / _MANIFEST).exists():
        os.utime(found)
    else:
        _make(inputs, options, found)
    with open(found / _MANIFEST, "rb") as file:
        totals = json.load(file)["totals"]
    for name, problem, _ in totals["problems"]:
        say(f"{name}: {problem}")
    if totals["dropped"]:
        say(f"packets dropped by the kernel while capturing: {totals['dropped']:,}")
    return str(found)


def findings_in(files: Sequence[str], how: Sequence[Any], make: Callable[[], pa.Table]) -> pa.Table:
    """What the doctor finds in tables of local files, kept or made by `make`; `how` says how they are read.

    They depend on the rules as well; a new version of pwire makes them anew.
    """
    status = [(os.path.abspath(path), os.stat(path)) for path in files]
    rules = (Path(__file__).parents[1] / "checks").stat().st_mtime_ns
    about = [__version__, rules, *how, *([path, each.st_size, each.st_mtime_ns] for path, each in status)]
    found = directory() / _name(about)
    with suppress(OSError, pa.ArrowException):  # not kept, or damaged
        kept = pq.read_table(found / _FINDINGS)
        os.utime(found)
        return kept
    shutil.rmtree(found, ignore_errors=True)
    made = make()
    with suppress(OSError), _put(found) as out:
        out.mkdir()
        pq.write_table(made, out / _FINDINGS)
    return made


def _key(inputs: Sequence[Input], options: Options) -> str:
    """A name for the table that is made so of these captures."""
    files = [[each.name, each.path, each.size, each.modified_ns, each.sides] for each in inputs]
    return _name([VERSION, astuple(options), *files])


def _name(about: list[Any]) -> str:
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:32]


@contextmanager
def _put(found: Path) -> Iterator[Path]:
    """Gives the path of a directory to be made, which then becomes `found`."""
    _make_room(directory())
    with tempfile.TemporaryDirectory(prefix=".", dir=found.parent) as beside:
        out = Path(beside, "table")
        yield out
        with suppress(OSError):  # another process was faster
            out.rename(found)


def _make(inputs: list[Input], options: Options, found: Path) -> None:
    jobs = cores()
    with _put(found) as out:
        is_small = sum(each.size for each in inputs) <= SPLIT
        with ThreadPoolExecutor(1) if is_small else pool(jobs) as executor:
            totals = Run(inputs, str(out), options=options).run(Pool(executor, jobs))
        if not totals.frames and not totals.gaps and totals.problems:
            name, problem, _ = totals.problems[0]
            raise CaptureError(f"{name}: {problem}")


def _make_room(tables: Path) -> None:
    kept = sorted((each.stat().st_mtime, each) for each in tables.iterdir() if not each.name.startswith("."))
    sizes = {each: _size(each) for _, each in kept}
    for _, oldest in kept:
        if sum(sizes.values()) <= MOST_KEPT:
            break
        del sizes[oldest]
        shutil.rmtree(oldest, ignore_errors=True)


def _size(table: Path) -> int:
    return sum(each.stat().st_size for each in table.rglob("*") if each.is_file())
