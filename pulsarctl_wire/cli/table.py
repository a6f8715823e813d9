"""`pwire table`: captured traffic as the frames table, a Parquet file."""

from contextlib import ExitStack
from typing import Annotated

import typer

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.options import JOBS, MAX_FRAME_SIZE, PAYLOAD


def table(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="pcap or pcapng files (also .gz, .zst), hex dumps, raw frames; - is stdin. "
            "Several continue each other.",
            show_default=False,
        ),
    ],
    out: Annotated[
        str,
        typer.Option(
            "--out", metavar="FILE.parquet", help="The table's file; FILE.gaps.parquet comes beside it."
        ),
    ],
    payload: Annotated[bool, PAYLOAD] = False,
    jobs: Annotated[int, JOBS] = 2,
    max_frame_size: Annotated[int | None, MAX_FRAME_SIZE] = None,
) -> None:
    """Write captured traffic as a Parquet table, one row a frame, and a table of its gaps."""
    from pulsarctl_wire.cli.table_job import TableJob
    from pulsarctl_wire.errors import WireError

    try:
        with ExitStack() as stack:
            job = TableJob(sources, out, stack, payload=payload, max_frame_size=max_frame_size)
            code = job.run(twice=jobs > 1)
    except WireError as error:
        console.fail(str(error), console.EXIT_SOURCE)
    except OSError as error:
        console.fail(f"--out {out}: {error.strerror or error}", console.EXIT_OUTPUT)
    raise SystemExit(code)
