"""Finds and deletes what other formats keep of a table's files, in a hidden directory beside them."""

from pyarrow import fs

from pulsarctl_wire.pipeline.inputs import filesystem


def has_log(folder: str, name: str) -> bool:
    """Whether the directory `name` is in the one at a path or URI. Raises OSError."""
    system, path = filesystem(f"{folder}/{name}")
    return bool(system.get_file_info(path).type == fs.FileType.Directory)


def delete_log(folder: str, name: str) -> None:
    """Delete the directory `name` in the one at a path or URI, if it is there. Raises OSError."""
    system, path = filesystem(f"{folder}/{name}")
    if has_log(folder, name):
        system.delete_dir(path)
