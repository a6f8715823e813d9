"""`pwire extract`: from rows of a table back to the packets, in the captures that the table was made of."""

from dataclasses import dataclass
from typing import Literal

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.data.report import SourceOptions, has_row_choice, open_tables
from pulsarctl_wire.cli.signature import argument, flag, option, several

TableName = Literal["frames", "messages", "gaps", "connections"]
"""The tables whose rows can be chosen."""


@dataclass(frozen=True, kw_only=True)
class ExtractOptions(SourceOptions):
    """The command line of `extract`."""

    sources: list[str] = argument("TABLE...", "Tables, as written by pwire table or pwire analyze.")
    where: str | None = option("--where SQL", "A condition on the columns of the rows, as in pwire sql.")
    table: TableName = option(
        "--table NAME", "The rows are frames, messages, gaps or connections.", default="frames"
    )
    whole: bool = flag("--connections", "All packets of the rows' connections, not only those of the frames.")
    captures: list[str] = several("--captures PATH", "Where the captures are now: directories, files, URIs.")
    write: str = option("-w --write FILE", "The pcapng file; - is stdout.", default=...)


def extract(options: ExtractOptions) -> int:
    """Write the packets of frames in a table as pcapng, from the captures that it was made of."""
    if options.where is None and not has_row_choice(options):
        console.fail("extract: say which frames: --where \"command = 'SEND'\", --topic, --since, --until")
    if options.table in ("gaps", "connections") and not options.whole:
        console.fail(f"extract: --table {options.table} needs --connections: these rows are no frames")
    with open_tables(options.sources, options) as tables:
        from pulsarctl_wire.cli.data.extract_job import ExtractJob, Selection

        selection = Selection(**{name: getattr(options, name) for name in Selection._fields})
        return ExtractJob(selection, tables.engine).run()
