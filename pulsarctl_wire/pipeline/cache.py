"""Keeps tables of captures, and findings in large tables, in a private directory that is limited in size.

Each is found by how it was made, and by the paths, sizes and times of the files it was made from. So it is
made anew when one of these changes.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pulsarctl_wire import __version__
from pulsarctl_wire.capture.secrets import has_secrets, may_have_secrets, require_keylogs
from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline.decoding.counting import SPLIT, cores, pool
from pulsarctl_wire.pipeline.decoding.edges import Options
from pulsarctl_wire.pipeline.files.inputs import find_inputs, is_capture
from pulsarctl_wire.pipeline.files.paths import cache_directory, reason
from pulsarctl_wire.pipeline.files.splits import Input
from pulsarctl_wire.pipeline.run import Run
from pulsarctl_wire.pipeline.storage.tasks import Pool
from pulsarctl_wire.table.schema import VERSION

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
    entries = list(directory().iterdir())
    size = sum(map(_size, entries))
    for entry in entries:
        shutil.rmtree(entry, ignore_errors=True)
    return len(entries), size


def table_of(
    captures: Sequence[str],
    say: Callable[[str], object],
    *,
    max_frame_size: int | None = None,
    payload: bool = False,
    keylogs: Sequence[str] = (),
) -> str:
    """Return the directory of a table of `captures`, made if need be. `say` gets notes about problems.

    `max_frame_size` is in bytes; with `payload` the table has payloads. TLS is opened by the `keylogs`, and
    by secrets in the captures. Raises CaptureError if nothing of the captures can be read, OSError if the
    table cannot be written.
    """
    require_keylogs(keylogs)
    inputs = find_inputs(captures, say)
    options = Options(SPLIT, max_frame_size, payload, keylog=tuple(keylogs) or None)
    table = directory() / _key(inputs, options)
    if not keylogs and not (table / _MANIFEST).exists() and _hold_secrets(inputs):
        options = replace(options, keylog=())
        table = directory() / _key(inputs, options)
    if (table / _MANIFEST).exists():
        os.utime(table)
    else:
        _make(inputs, options, table)
    with open(table / _MANIFEST, "rb") as file:
        totals = json.load(file)["totals"]
    for name, problem, _ in totals["problems"]:
        say(f"{name}: {problem}")
    for note in totals["notes"]:
        say(note)
    if totals["dropped"]:
        say(f"packets dropped by the kernel while capturing: {totals['dropped']:,}")
    return str(table)


def _hold_secrets(inputs: Sequence[Input]) -> bool:
    """Return whether captures hold secrets of TLS; if they are small, whether they may."""
    is_small = sum(input_.size for input_ in inputs) <= SPLIT  # one process would decode them anyway
    holds = may_have_secrets if is_small else has_secrets
    return any(holds(input_.path) and is_capture(input_) for input_ in inputs)


def findings_in(files: Sequence[str], reading: Sequence[Any], make: Callable[[], pa.Table]) -> pa.Table:
    """Return the findings in tables of local files, kept or made by `make`; `reading` says how they are read.

    They are made anew if a file or the rules have changed, or if they cannot be kept.
    """
    try:
        statuses = [(os.path.abspath(path), os.stat(path)) for path in files]
        key_values = [*reading, *([path, stat.st_size, stat.st_ctime_ns] for path, stat in statuses)]
        entry = directory() / _name([__version__, _rules_changed_ns(), *key_values])
    except (OSError, RuntimeError):  # no home
        return make()
    with suppress(OSError, pa.ArrowException):  # not kept, or damaged
        rows = pq.read_table(entry / _FINDINGS, page_checksum_verification=True)
        os.utime(entry)
        return rows
    shutil.rmtree(entry, ignore_errors=True)
    new_rows = make()
    with suppress(OSError), _put(entry, files) as out:
        out.mkdir()
        pq.write_table(new_rows, out / _FINDINGS, write_page_checksum=True)
    return new_rows


def _rules_changed_ns() -> int:
    """Return when a file of the rules, or of what they rely on, was last changed (ns)."""
    package = Path(__file__).parents[1]
    paths = [path for name in ("checks", "wire") for path in (package / name).rglob("*")]
    return max(
        path.stat().st_mtime_ns for path in paths if path.is_file() and "__pycache__" not in path.parts
    )


def _key(inputs: Sequence[Input], options: Options) -> str:
    """Return a name for the table that is made from these captures with these options."""
    files = [[input_.name, input_.path, input_.size, input_.modified_ns, input_.sides] for input_ in inputs]
    logs = [(os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in options.keylog or ()]
    return _name([VERSION, astuple(options), logs, *files])


def _name(key_values: list[Any]) -> str:
    return hashlib.sha256(json.dumps(key_values).encode()).hexdigest()[:32]


@contextmanager
def _put(entry: Path, files: Sequence[str] = ()) -> Iterator[Path]:
    """Yield the path of a directory to make, which then becomes `entry`. Entries that have `files` stay."""
    _make_room(directory(), {parent for path in files for parent in Path(path).absolute().parents})
    with tempfile.TemporaryDirectory(prefix=".", dir=entry.parent) as temporary:
        out = Path(temporary, "table")
        yield out
        with suppress(OSError):  # another process was faster
            out.rename(entry)


def _make(inputs: list[Input], options: Options, entry: Path) -> None:
    jobs = cores()
    with _put(entry) as out:
        is_small = sum(input_.size for input_ in inputs) <= SPLIT
        with ThreadPoolExecutor(1) if is_small else pool(jobs) as executor:
            try:
                totals = Run(inputs, str(out), options=options).run(Pool(executor, jobs))
            except OSError as error:
                raise OSError(error.errno, f"{entry.parent}: {reason(error)}") from error
        if not totals.frames and not totals.gaps and totals.problems:
            name, problem, _ = totals.problems[0]
            raise CaptureError(f"{name}: {problem}")


def _make_room(directory: Path, in_use: set[Path]) -> None:
    """Delete what was not used for the longest time if all takes too much, but nothing that is in use."""
    sizes = {entry: _size(entry) for entry in directory.iterdir() if not entry.name.startswith(".")}
    for oldest in sorted(sizes.keys() - in_use, key=_used_ns):
        if sum(sizes.values()) <= MAX_CACHE_BYTES:
            break
        del sizes[oldest]
        shutil.rmtree(oldest, ignore_errors=True)


def _used_ns(entry: Path) -> int:
    with suppress(OSError):  # another process deleted it
        return entry.stat().st_mtime_ns
    return 0


def _size(entry: Path) -> int:
    with suppress(OSError):  # another process deletes it
        return sum(file.stat().st_size for file in entry.rglob("*") if file.is_file())
    return 0
