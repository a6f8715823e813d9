"""Keeps Iceberg's metadata of a table's files, so that others read it with pyiceberg, Spark, DuckDB or Trino.

Each of our tables is one of Iceberg, without a catalog: `frames/_iceberg/metadata` names the files in
`frames/`. (In `frames/metadata` it would get in the way of those who read all of `frames/`.) No rows are
written for it. Whoever changes the table says which files it has then, and what differs from the metadata
is committed as a snapshot, which takes the place of the one before.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from pulsarctl_wire.errors import CaptureError, WireError, require
from pulsarctl_wire.pipeline.files.filesystems import arrow_uri, filesystem
from pulsarctl_wire.pipeline.files.paths import reason

LOG: Final = "_iceberg"
"""The directory of the metadata, which other readers open."""


def library() -> Any:
    """Return the package pyiceberg. Raises MissingLibrary if it is not installed."""
    require("pyiceberg")
    import pyiceberg

    return pyiceberg


def commit(
    folder: str, schema: Any, partition_by: Sequence[str], files: Sequence[Any], *, is_new: bool = True
) -> None:
    """Have the metadata in a directory name exactly these `files`, which are as pyarrow lists them.

    Their columns are those of `schema`, and they are partitioned by those in `partition_by`; Iceberg does not
    ask for `is_new`. Raises OSError, CaptureError if the metadata cannot be read, MissingLibrary as `library`
    does.
    """
    library()
    from pulsarctl_wire.pipeline.storage.iceberg_table import change_files, list_files, open_table

    (system, path), base = filesystem(folder), arrow_uri(folder)
    with _errors(folder):
        system.create_dir(f"{path}/{LOG}/metadata")
        table = open_table(f"{base}/{LOG}", schema, partition_by)
        listed = {f"{base}/{file.path.removeprefix(f'{path}/')}": file for file in files}
        logged = {file.file_path: file for file in list_files(table)}
        unchanged = {
            name
            for name, file in listed.items()
            if name in logged
            and logged[name].file_size_in_bytes == file.size
            and (file.mtime_ns or 0) // 1_000_000 <= table.metadata.last_updated_ms
        }
        if unchanged != {*listed} or unchanged != {*logged} or not table.current_snapshot():
            removals = [file for name, file in logged.items() if name not in unchanged]
            change_files(table, [name for name in listed if name not in unchanged], removals)


@contextmanager
def _errors(folder: str) -> Iterator[None]:
    try:
        yield
    except (OSError, WireError):
        raise
    except Exception as error:  # pyiceberg raises all kinds if metadata are damaged
        name = f"{folder.rpartition('/')[2]}/{LOG}"
        raise CaptureError(f"{name}: {reason(error)}; if it is deleted, it is made anew") from error
