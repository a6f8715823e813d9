"""Keeps what other formats need to know of a table's files: logs of Delta Lake, metadata of Iceberg."""

from types import ModuleType
from typing import Final

from pulsarctl_wire.pipeline.files.filesystems import delete_directory, has_directory
from pulsarctl_wire.pipeline.storage import delta, iceberg
from pulsarctl_wire.table.schema import TABLES

_FORMATS: Final = {"delta": delta, "iceberg": iceberg}


class Logs:
    """The logs of the table at a path or URI.

    A `format` of "delta" or "iceberg" adds logs, and "parquet" is for none; with None, the table keeps those
    that it has. Raises MissingLibrary if `format` needs a package that is not installed.
    """

    def __init__(self, out: str, format: str | None) -> None:
        if format in _FORMATS:
            _FORMATS[format].library()
        self._out = out
        self._format = format
        self.is_unwanted = format == "parquet"
        """Whether the table is to have no logs: others read its Parquet files directly."""

    def require_libraries(self) -> None:
        """Raise MissingLibrary if a package that the table needs is not installed. Raises OSError."""
        for kind in self.kinds():
            kind.library()

    def kinds(self) -> list[ModuleType]:
        """Return the modules of the logs that the table has, or gets. Raises OSError."""
        return [kind for name, kind in _FORMATS.items() if not self.is_unwanted and self._has(name)]

    def _has(self, name: str) -> bool:
        return name == self._format or any(map(has_directory, self._folders(_FORMATS[name])))

    def _folders(self, kind: ModuleType) -> list[str]:
        return [f"{self._out}/{table}/{kind.LOG}" for table in TABLES]

    def delete(self) -> None:
        """Delete all logs. Raises OSError."""
        for kind in _FORMATS.values():
            for folder in self._folders(kind):
                delete_directory(folder)
