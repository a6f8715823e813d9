"""`pwire table`: writes captured traffic as the frames table, a Parquet file; merges the files of a table."""

import sys
from contextlib import ExitStack
from dataclasses import dataclass

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.options import JOBS, RowOptions, size_of
from pulsarctl_wire.cli.signature import argument, group, option
from pulsarctl_wire.errors import SettingsError, WireError
from pulsarctl_wire.render.text import clean, count_of, human_bytes


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """The command line of `table`."""

    sources: list[str] = argument(
        "SOURCE...",
        "pcap or pcapng files (also .gz, .zst), hex dumps, raw frames; - is stdin. "
        "Several sources are read as one capture. "
        "Or: optimize TABLE, to merge the small files of a table of pwire analyze.",
    )
    out: str | None = option(
        "--out FILE.parquet",
        "The file of frames; beside it are FILE.gaps.parquet and FILE.connections.parquet.",
    )
    size: str | None = option("--size SIZE", "With optimize: bytes of a file.", show_default="128MiB")
    rows: RowOptions = group(RowOptions)
    jobs: int | None = JOBS()


def table(options: TableOptions) -> int:
    """Write captured traffic as Parquet tables: of frames, gaps and connections."""
    if options.sources[0] == "optimize":
        return _optimize(options)
    if options.out is None:
        console.fail("table: missing option --out (pwire table --help)")
    if options.size is not None:
        console.fail("table: --size needs optimize")
    from pulsarctl_wire.cli.capture.table_job import TableJob

    try:
        with ExitStack() as stack:
            return TableJob(options, options.out, stack).run()
    except WireError as error:
        console.fail(str(error), console.EXIT_SOURCE)
    except OSError as error:
        console.fail(f"--out {options.out}: {error.strerror or error}", console.EXIT_OUTPUT)


def _optimize(options: TableOptions) -> int:
    """Merge the small files of a table."""
    _, *tables = options.sources
    given = options.out is not None or options.jobs is not None or options.rows != RowOptions()
    if len(tables) != 1 or given:
        console.fail("table optimize: takes one TABLE, and --size; ./optimize is a capture of that name")
    size = size_of("--size", options.size or "128MiB")
    if not size:
        console.fail(f"--size {options.size}: must be at least 1 byte")
    from pulsarctl_wire.pipeline.optimize import optimize

    try:
        before, after = optimize(tables[0], size)
    except SettingsError as error:
        console.fail(str(error))
    except WireError as error:
        console.fail(str(error), console.EXIT_SOURCE)
    except OSError as error:
        console.fail(f"{tables[0]}: {error.strerror or error}", console.EXIT_OUTPUT)
    sys.stderr.write(
        f"{clean(tables[0])}: {count_of(before.files, 'file')} ({human_bytes(before.size)}) before, "
        f"{after.files:,} ({human_bytes(after.size)}) now\n"
    )
    return 0
