"""`pwire table`: writes captured traffic as Parquet; changes tables of `pwire analyze`."""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import fields, replace
from datetime import datetime, timezone
from functools import partial
from typing import Final

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.capture.table_options import TableOptions
from pulsarctl_wire.cli.options import parse_partition_columns, parse_size, parse_time
from pulsarctl_wire.errors import TABLE_LIBRARIES, WireError
from pulsarctl_wire.render.text import clean, count_of, human_bytes

_VERBS: Final = {"optimize": {"size", "partition_by"}, "delete": {"before", "exact", "dry_run"}}
"""Verbs that change a table instead of writing one -> the options of each."""


def table(options: TableOptions) -> int:
    """Write captured traffic as Parquet tables: of frames, gaps and connections."""
    console.require(*TABLE_LIBRARIES)
    verb, *tables = options.sources
    defaults = TableOptions(sources=options.sources)
    flags = {
        field.name
        for field in fields(options)
        if getattr(options, field.name) != getattr(defaults, field.name)
    }
    if verb in _VERBS:
        if len(tables) != 1 or flags - _VERBS[verb]:
            flag_names = " and ".join(map(_flag, sorted(_VERBS[verb])))
            console.fail(f"table {verb}: takes one TABLE, {flag_names}; ./{verb} is a capture of that name")
        return _change(tables[0], partial(_optimize if verb == "optimize" else _delete, tables[0], options))
    for action, names in _VERBS.items():
        for name in sorted(flags & names):
            console.fail(f"table: {_flag(name)} needs {action}")
    if options.out is None:
        console.fail("table: missing option --out (pwire table --help)")
    if options.findings and "-" in options.sources:
        console.fail(
            "--findings: reads the sources twice, and stdin can be read once; save it to a file first"
        )
    from pulsarctl_wire.cli.capture.reading import find_captures
    from pulsarctl_wire.cli.capture.table_job import TableJob

    table_options = replace(options, sources=find_captures(options.sources))
    try:
        with ExitStack() as stack:
            return TableJob(table_options, options.out, stack).run()
    except WireError as error:
        console.fail(str(error), console.EXIT_SOURCE)
    except OSError as error:
        console.fail(f"--out {options.out}: {error.strerror or error}", console.EXIT_OUTPUT)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _change(table: str, change: Callable[[], str]) -> int:
    """Change a table, and say what was done."""
    try:
        result = change()
    except WireError as error:
        console.fail(str(error), console.find_code(error))
    except OSError as error:
        console.fail(f"{table}: {error.strerror or error}", console.EXIT_OUTPUT)
    sys.stderr.write(f"{clean(table)}: {result}\n")
    return 0


def _optimize(table: str, options: TableOptions) -> str:
    """Move the files of a table as `--partition-by` says, then merge the small ones; return a summary."""
    size = parse_size("--size", options.size or "128MiB")
    if not size:
        console.fail(f"--size {options.size}: must be at least 1 byte")
    from pulsarctl_wire.pipeline.files.filesystems import is_file
    from pulsarctl_wire.pipeline.upkeep.optimize import optimize, rewrite
    from pulsarctl_wire.pipeline.upkeep.repartition import repartition

    if is_file(table):
        if options.size or options.partition_by:
            reason = "is a file; --size and --partition-by are for directories"
            console.fail(f"table optimize: {clean(table)} {reason}")
        previous, current = rewrite(table)
        # here `files` counts row groups
        return (
            f"{count_of(previous.files, 'row group')} ({human_bytes(previous.size)}) before, "
            f"{current.files:,} ({human_bytes(current.size)}) now"
        )
    moved = (
        repartition(table, parse_partition_columns(options.partition_by)) if options.partition_by else None
    )
    previous, current = optimize(table, size)
    previous = moved or previous
    return (
        f"{count_of(previous.files, 'file')} ({human_bytes(previous.size)}) before, "
        f"{current.files:,} ({human_bytes(current.size)}) now"
    )


def _delete(table: str, options: TableOptions) -> str:
    """Delete old rows; return a summary."""
    if options.before is None:
        console.fail("table delete: missing option --before (pwire table --help)")
    limit_ns = parse_time(options.before)
    from pulsarctl_wire.pipeline.upkeep.retention import delete

    result = delete(table, limit_ns, exact=options.exact, dry_run=options.dry_run)
    verb = "would be deleted" if options.dry_run else "deleted"
    moment = datetime.fromtimestamp(limit_ns // 10**9, timezone.utc)
    text = (
        f"{count_of(result.rows, 'row')} before {moment:%Y-%m-%dT%H:%M:%SZ} {verb}: "
        f"{count_of(result.files, 'file')}, {human_bytes(result.size)}"
    )
    if result.rewritten:
        text += f", and {count_of(result.rewritten, 'file')} rewritten"
    if result.left:
        text += f"; {count_of(result.left, 'older row')} stay in files with newer ones (--exact deletes them)"
    if result.untimed:
        text += f"; {count_of(result.untimed, 'row')} have no time, and stay"
    return text
