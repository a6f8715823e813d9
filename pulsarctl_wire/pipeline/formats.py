"""The formats as which others can read a table, besides Parquet, and their logs of its files."""

from typing import Any, Final

from pulsarctl_wire.pipeline import delta, iceberg
from pulsarctl_wire.pipeline.logs import delete_log, has_log
from pulsarctl_wire.table import TABLES

FORMATS: Final = {"delta": delta, "iceberg": iceberg}
"""What keeps the logs of a format."""


def logs_of(out: str, format: str | None) -> list[Any]:
    """Return what keeps logs of the table at a path or URI: those it has, and those of `format`."""
    if format == "parquet":
        return []
    folders = [f"{out}/{table}" for table in TABLES]
    return [
        log
        for name, log in FORMATS.items()
        if name == format or any(has_log(folder, log.LOG) for folder in folders)
    ]


def delete_logs(out: str) -> None:
    """Delete all logs of the table at a path or URI. Raises OSError."""
    for table in TABLES:
        for log in FORMATS.values():
            delete_log(f"{out}/{table}", log.LOG)
