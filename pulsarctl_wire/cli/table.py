"""`pwire table`: captured traffic as the frames table, a Parquet file."""

import os
import sys
from contextlib import ExitStack, suppress
from itertools import chain
from typing import Annotated, Any

import typer

from pulsarctl_wire.cli import console


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
    payload: Annotated[
        bool, typer.Option("--payload", help="Keep the payload of each frame, as it was on the wire.")
    ] = False,
    max_frame_size: Annotated[
        int | None,
        typer.Option(
            "--max-frame-size",
            metavar="BYTES",
            min=16,
            help="Largest legal frame, whatever the broker announces.",
            show_default="5 MiB + 10 KiB",
        ),
    ] = None,
) -> None:
    """Write captured traffic as a Parquet table, one row a frame, and a table of its gaps."""
    from pulsarctl_wire.errors import WireError

    try:
        with ExitStack() as stack:
            code = _write(sources, out, stack, payload=payload, max_frame_size=max_frame_size)
    except WireError as error:
        console.fail(str(error), console.EXIT_SOURCE)
    except OSError as error:
        console.fail(f"--out {out}: {error.strerror or error}", console.EXIT_OUTPUT)
    raise SystemExit(code)


def gaps_path(out: str) -> str:
    """Where the gaps table of the frames table at `out` is: frames.parquet has frames.gaps.parquet."""
    stem, dot, ending = out.rpartition(".")
    return f"{stem}.gaps.{ending}" if dot and "/" not in ending else f"{out}.gaps"


def _write(paths: list[str], out: str, stack: ExitStack, *, payload: bool, max_frame_size: int | None) -> int:
    import gc

    from pulsarctl_wire.capture.sources import Decoder
    from pulsarctl_wire.cli.reading import Sources
    from pulsarctl_wire.table import FRAMES, GAPS, TableBuilder
    from pulsarctl_wire.wire.topics import TopicSession

    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
    decoder = Decoder(max_frame_size=max_frame_size, join_chunks=False, places=True, new_session=TopicSession)
    builder = TableBuilder(decoder.sources, payload=payload)
    sources = Sources(paths, stack, bar=console.use_colour(sys.stderr))
    frames, gaps = _Part(out, FRAMES, stack), _Part(gaps_path(out), GAPS, stack)
    for some_frames, some_gaps in builder.batches(chain(sources.read(decoder), decoder.finish())):
        frames.write(some_frames)
        gaps.write(some_gaps)
    if sources.code == console.EXIT_SOURCE and not frames.rows and not gaps.rows:
        return sources.code  # nothing could be read: a table of nothing would hide that
    gaps.close()
    frames.close()
    return sources.code


class _Part:
    """A Parquet file that has its name only once it is whole."""

    def __init__(self, path: str, schema: Any, stack: ExitStack) -> None:
        from pulsarctl_wire.table import writer

        self._path = path
        self._unfinished = f"{path}.unfinished"
        self._writer = writer(self._unfinished, schema)
        self.rows = 0
        stack.callback(self._discard)

    def write(self, batch: Any) -> None:
        """Append a batch."""
        if batch.num_rows:
            self._writer.write_batch(batch)
            self.rows += batch.num_rows

    def close(self) -> None:
        """Finish the file and give it its name."""
        self._writer.close()
        os.replace(self._unfinished, self._path)

    def _discard(self) -> None:
        with suppress(OSError):
            self._writer.close()
        with suppress(FileNotFoundError):
            os.remove(self._unfinished)
