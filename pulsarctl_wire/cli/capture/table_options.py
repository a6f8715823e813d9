"""The options of `pwire table`."""

from dataclasses import dataclass

from pulsarctl_wire.cli.options import JOBS, RowOptions
from pulsarctl_wire.cli.signature import argument, flag, group, option


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """The command line of `table`."""

    sources: list[str] = argument(
        "SOURCE...",
        "pcap or pcapng files (also .gz, .zst), directories of them, hex dumps, logs and other text that "
        "shows bytes, raw frames; - is stdin. "
        "Several sources are read as one capture. "
        "Or: optimize TABLE, to merge the small files of a table of pwire analyze, or the row groups of a "
        "FILE.parquet; delete TABLE --before TIME, of a table of pwire analyze.",
    )
    out: str | None = option(
        "--out FILE.parquet",
        "The file of frames; beside it are FILE.gaps.parquet and FILE.connections.parquet.",
    )
    size: str | None = option("--size SIZE", "With optimize: bytes of a file.", show_default="128MiB")
    partition_by: str | None = option(
        "--partition-by COLUMNS", "With optimize: move the files into directories by other columns."
    )
    before: str | None = option(
        "--before TIME", "With delete: rows older than 7d, or than a date or time (ISO 8601)."
    )
    exact: bool = flag("--exact", "With delete: also from files that have newer rows, which are rewritten.")
    dry_run: bool = flag("--dry-run", "With delete: say what would be deleted.")
    rows: RowOptions = group(RowOptions)
    findings: bool = flag(
        "--findings",
        "Also look for findings, as doctor does: FILE.findings.parquet, for the report findings.",
    )
    jobs: int | None = JOBS()
