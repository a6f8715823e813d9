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
from pulsarctl_wire.pipeline.decoding.counting import SPLIT, cores, pool
from pulsarctl_wire.pipeline.decoding.edges import Options
from pulsarctl_wire.pipeline.files.inputs import find_inputs
from pulsarctl_wire.pipeline.files.paths import reason
from pulsarctl_wire.pipeline.files.private import cache_directory
from pulsarctl_wire.pipeline.files.splits import Input
from pulsarctl_wire.pipeline.run import Run
from pulsarctl_wire.pipeline.storage.tasks import Pool
from pulsarctl_wire.table import VERSION

MAX_CACHE_BYTES: Final = 4 * 1024**3
"""Bytes of all that is kept; beyond that, what was not used for the longest time is deleted."""
_MANIFEST: Final = "manifest.json"
_FINDINGS: Final = "findings.parquet"


def directory() -> Path:
    """Return the directory of what is kept; only its owner can read it."""
    path = cache_directory() / "tables"
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def clear() -> tuple[int, int]:
    """Delete all that is kept; returns how many tables and findings they were, and their bytes."""
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
    """Return the directory of a table of `captures`, made if need be. `say` gets notes about problems.

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
    """Return the findings in tables of local files, kept or made by `make`; `how` says how they are read.

    They are made anew if a file or the rules have changed, or if they cannot be kept.
    """
    try:
        status = [(os.path.abspath(path), os.stat(path)) for path in files]
        about = [*how, *([path, each.st_size, each.st_ctime_ns] for path, each in status)]
        found = directory() / _name([__version__, _rules_changed_ns(), *about])
    except (OSError, RuntimeError):  # no home
        return make()
    with suppress(OSError, pa.ArrowException):  # not kept, or damaged
        kept = pq.read_table(found / _FINDINGS, page_checksum_verification=True)
        os.utime(found)
        return kept
    shutil.rmtree(found, ignore_errors=True)
    made = make()
    with suppress(OSError), _put(found, files) as out:
        out.mkdir()
        pq.write_table(made, out / _FINDINGS, write_page_checksum=True)
    return made


def _rules_changed_ns() -> int:
    """Return when a file of the rules, or of what they rely on, was last changed (ns)."""
    package = Path(__file__).parents[1]
    files = [file for name in ("checks", "wire") for file in (package / name).iterdir() if file.is_file()]
    return max(file.stat().st_mtime_ns for file in files)


def _key(inputs: Sequence[Input], options: Options) -> str:
    """Return a name for the table that is made so of these captures."""
    files = [[each.name, each.path, each.size, each.modified_ns, each.sides] for each in inputs]
    return _name([VERSION, astuple(options), *files])


def _name(about: list[Any]) -> str:
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:32]


@contextmanager
def _put(found: Path, used: Sequence[str] = ()) -> Iterator[Path]:
    """Gives the path of a directory to be made, which then becomes `found`. Files that are `used` stay."""
    _make_room(directory(), {parent for path in used for parent in Path(path).absolute().parents})
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
            try:
                totals = Run(inputs, str(out), options=options).run(Pool(executor, jobs))
            except OSError as error:
                raise OSError(error.errno, f"{found.parent}: {reason(error)}") from error
        if not totals.frames and not totals.gaps and totals.problems:
            name, problem, _ = totals.problems[0]
            raise CaptureError(f"{name}: {problem}")


def _make_room(directory: Path, used: set[Path]) -> None:
    """Delete what was not used for the longest time if all takes too much, but nothing that is `used` now."""
    kept = {each: _size(each) for each in directory.iterdir() if not each.name.startswith(".")}
    for oldest in sorted(kept.keys() - used, key=_used_ns):
        if sum(kept.values()) <= MAX_CACHE_BYTES:
            break
        del kept[oldest]
        shutil.rmtree(oldest, ignore_errors=True)


def _used_ns(kept: Path) -> int:
    with suppress(OSError):  # another process deleted it
        return kept.stat().st_mtime_ns
    return 0


def _size(kept: Path) -> int:
    with suppress(OSError):  # another process deletes it
        return sum(each.stat().st_size for each in kept.rglob("*") if each.is_file())
    return 0
