"""`pwire table`: writes captured traffic as the frames table, a Parquet file."""

from contextlib import ExitStack
from dataclasses import dataclass

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.options import JOBS, RowOptions
from pulsarctl_wire.cli.signature import argument, group, option
from pulsarctl_wire.errors import WireError


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """The command line of `table`."""

    sources: list[str] = argument(
        "SOURCE...",
        "pcap or pcapng files (also .gz, .zst), hex dumps, raw frames; - is stdin. "
        "Several sources are read as one capture.",
    )
    out: str = option(
        "--out FILE.parquet",
        "The file of frames; beside it are FILE.gaps.parquet and FILE.connections.parquet.",
        default=...,
    )
    rows: RowOptions = group(RowOptions)
    jobs: int | None = JOBS()


def table(options: TableOptions) -> int:
    """Write captured traffic as Parquet tables: of frames, gaps and connections."""
    from pulsarctl_wire.cli.capture.table_job import TableJob

    try:
        with ExitStack() as stack:
            return TableJob(options, stack).run()
    except WireError as error:
        console.fail(str(error), console.EXIT_SOURCE)
    except OSError as error:
        console.fail(f"--out {options.out}: {error.strerror or error}", console.EXIT_OUTPUT)
