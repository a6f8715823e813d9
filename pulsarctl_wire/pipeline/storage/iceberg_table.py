"""A table of Iceberg in a directory, without a catalog: its file `version-hint.text` has the version.

Imports pyiceberg; see iceberg.py.
"""

import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from pyarrow import fs
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO, parquet_file_to_data_file
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import assign_fresh_schema_ids
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import RemoveSnapshotsUpdate, update_table_metadata
from pyiceberg.transforms import IdentityTransform

from pulsarctl_wire.pipeline.files.filesystems import filesystem, write_file

_HINT: Final = "version-hint.text"
_SKIPPED_BY: Final = ("time_ns", "connection")
"""Columns whose lowest and highest values in each file are kept, besides those of partitions."""
_MAX_SNAPSHOTS: Final = 10
_KEPT: Final = 3_600.0  # seconds that earlier metadata stay for those who are reading them

logging.getLogger("pyiceberg.io.pyarrow").setLevel(logging.ERROR)  # it warns of each dictionary


def open_table(location: str, schema: Any, by: Sequence[str]) -> Table:
    """Open the table at a path or URI; make a new one, not yet written, if there is none or it cannot go on.

    It is partitioned `by` these columns of `schema`. Raises OSError, and whatever pyiceberg raises if its
    metadata are damaged.
    """
    columns = assign_fresh_schema_ids(Catalog._convert_schema_if_needed(schema))
    fields = [columns.find_field(name) for name in by]
    spec = PartitionSpec(
        *(
            PartitionField(column.field_id, 1000 + number, IdentityTransform(), column.name)
            for number, column in enumerate(fields)
        )
    )
    properties = {
        "schema.name-mapping.default": columns.name_mapping.model_dump_json(),
        "write.metadata.metrics.default": "none",
        "commit.manifest-merge.enabled": "true",
        **{f"write.metadata.metrics.column.{name}": "full" for name in {*by, *_SKIPPED_BY} & {*schema.names}},
    }
    new_metadata = new_table_metadata(columns, spec, UNSORTED_SORT_ORDER, location, properties)
    version = _version(location)
    if version is not None:
        metadata = FromInputFile.table_metadata(_Files().new_input(_metadata_path(location, version)))
        if _identify(metadata) == _identify(new_metadata):
            return _table(location, version, metadata)
    return _table(location, version or 0, new_metadata)


def _identify(metadata: Any) -> tuple[Any, ...]:
    """Return what must be unchanged for a table to go on; its location too, as others write files there."""
    return metadata.location, metadata.properties, metadata.schema().fields, metadata.spec().fields


def list_files(table: Table) -> list[DataFile]:
    """Return the files that a table has."""
    snapshot = table.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot else []
    return [entry.data_file for manifest in manifests for entry in manifest.fetch_manifest_entry(table.io)]


def change_files(table: Table, additions: Sequence[str], removals: Sequence[DataFile]) -> None:
    """Commit a snapshot with files added, by their paths or URIs, and removed; delete earlier metadata."""
    with table.transaction() as transaction:
        update = transaction.update_snapshot()
        with update.overwrite() if removals else update.merge_append() as snapshot:
            for path in additions:
                snapshot.append_data_file(parquet_file_to_data_file(table.io, table.metadata, path))
            for file in removals:
                snapshot.delete_data_file(file)
    _delete_earlier(table)


def _table(location: str, version: int, metadata: Any) -> Table:
    return Table(("pwire",), metadata, _metadata_path(location, version), _Files(), _Directory(location))


def _metadata_path(location: str, version: int) -> str:
    return f"{location}/metadata/v{version}.metadata.json"


def _version(location: str) -> int | None:
    """Return the version of the table at a path or URI, or None."""
    system, path = filesystem(f"{location}/metadata/{_HINT}")
    with suppress(FileNotFoundError), system.open_input_file(path) as file:
        return int(file.read(32))
    return None


def _delete_earlier(table: Table) -> None:
    """Delete metadata files that the table does not use, unless they are recent."""
    used_names = {_HINT, *_names([table.metadata_location])}
    for snapshot in table.metadata.snapshots:
        used_names |= _names(
            [snapshot.manifest_list, *(entry.manifest_path for entry in snapshot.manifests(table.io))]
        )
    system, path = filesystem(f"{table.metadata.location}/metadata")
    for entry in system.get_file_info(fs.FileSelector(path)):
        if entry.base_name not in used_names and time.time() - (entry.mtime_ns or 0) / 1e9 > _KEPT:
            system.delete_file(entry.path)


def _names(paths: Iterable[str]) -> set[str]:
    return {path.rpartition("/")[2] for path in paths}


class _Files(PyArrowFileIO):
    """Lets pyiceberg use the same file systems as the other modules: those of `filesystem`."""

    def new_input(self, location: str) -> PyArrowFile:
        """Return a file to read."""
        system, path = filesystem(location)
        return PyArrowFile(location, path, system)

    def new_output(self, location: str) -> PyArrowFile:
        """Return a file to write."""
        return self.new_input(location)

    def delete(self, location: Any) -> None:
        """Delete a file."""
        system, path = filesystem(getattr(location, "location", location))
        system.delete_file(path)


class _Directory(NoopCatalog):
    """The catalog of one table: the directory at `location`."""

    def __init__(self, location: str) -> None:
        super().__init__("pwire")
        self._location = location

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        """Write the next version of the metadata, with the newest snapshots."""
        metadata = update_table_metadata(table.metadata, updates)
        earlier = [snapshot.snapshot_id for snapshot in metadata.snapshots[:-_MAX_SNAPSHOTS]]
        if earlier:
            metadata = update_table_metadata(
                metadata, (RemoveSnapshotsUpdate.model_validate({"snapshot-ids": earlier}),)
            )
        version = (_version(self._location) or 0) + 1
        for name, text in ((f"v{version}.metadata.json", metadata.model_dump_json()), (_HINT, str(version))):
            system, path = filesystem(f"{self._location}/metadata/{name}")
            with write_file(system, path) as stream:
                stream.write(text.encode())
        location = {"metadata-location": _metadata_path(self._location, version)}
        return CommitTableResponse.model_validate({"metadata": metadata, **location})
