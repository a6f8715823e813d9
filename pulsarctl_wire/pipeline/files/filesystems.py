"""The file systems of paths and URIs: pyarrow's, or fsspec's where pyarrow has none; files written whole."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from secrets import token_hex
from typing import Any, BinaryIO, cast

from pyarrow import ArrowException, ArrowNotImplementedError, fs

from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline.files.paths import Entry, is_uri, reason


def filesystem(path: str) -> tuple[Any, str]:
    """Return the pyarrow filesystem of a path or URI, and the path in it. Raises CaptureError.

    Where pyarrow has none, it is one of fsspec's, which may need a package of its own.
    """
    try:
        if is_uri(path):
            system, inside = fs.FileSystem.from_uri(arrow_uri(path))
            return system, str(inside)
        return fs.LocalFileSystem(), path
    except (ArrowException, OSError, ValueError) as error:
        if isinstance(error, ArrowNotImplementedError) or "Unrecognized filesystem type" in str(error):
            return _of_fsspec(path)
        raise CaptureError(f"{path}: {reason(error)}") from error


def has_directory(path: str) -> bool:
    """Return whether there is a directory at a path or URI. Raises OSError, CaptureError as `filesystem`."""
    system, inside = filesystem(path)
    return bool(system.get_file_info(inside).type == fs.FileType.Directory)


def delete_directory(path: str) -> None:
    """Delete the directory at a path or URI, if it is there. Raises as `has_directory` does."""
    if has_directory(path):
        system, inside = filesystem(path)
        system.delete_dir(inside)


def is_file(path: str) -> bool:
    """Return whether there is a file at a path or URI. Raises OSError, CaptureError as `filesystem` does."""
    system, inside = filesystem(path)
    return bool(system.get_file_info(inside).type == fs.FileType.File)


def open_uri(uri: str) -> BinaryIO:
    """Open the file at a URI to read it. Raises CaptureError if it has no filesystem, OSError if it fails."""
    system, inside = filesystem(uri)
    try:
        return cast(BinaryIO, system.open_input_file(inside))
    except ArrowException as error:
        raise OSError(reason(error)) from error


def unfinished(path: str) -> str:
    """Return a name for the file at `path` until it is complete.

    No other process has the same: Spark may run a task twice at a time.
    """
    return f"{path}.{token_hex(8)}.unfinished"


@contextmanager
def write_file(system: Any, path: str) -> Iterator[Any]:
    """Open a file of a pyarrow filesystem to write it. If the block raises, what is at `path` stays.

    Raises OSError if it cannot be written.
    """
    temporary = unfinished(path)
    stream = system.open_output_stream(temporary)
    try:
        with stream:
            yield stream
    except BaseException:
        with suppress(ArrowException, OSError):
            system.delete_file(temporary)
        raise
    system.move(temporary, path)


class Listing:
    """Lists files of a pyarrow filesystem. Methods raise OSError."""

    def __init__(self, system: Any) -> None:
        self._system = system

    def look(self, path: str) -> Entry | None:
        """Return what is at a path; None if it is neither a file nor a directory."""
        return next(self._entries([path]), None)

    def files_below(self, base: str) -> Iterator[Entry]:
        """Return the files below a directory."""
        selector = fs.FileSelector(base, recursive=True)
        return (entry for entry in self._entries(selector) if not entry.is_directory)

    def _entries(self, selection: Any) -> Iterator[Entry]:
        try:
            infos = self._system.get_file_info(selection)
        except ArrowException as error:
            raise OSError(reason(error)) from error
        for info in infos:
            if info.type in (fs.FileType.File, fs.FileType.Directory):
                is_directory = info.type == fs.FileType.Directory
                yield Entry(info.path, info.size or 0, info.mtime_ns or 0, is_directory)


def _of_fsspec(uri: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise CaptureError(f"{uri}: pyarrow has no such file system: pip install fsspec") from None
    try:
        system, inside = url_to_fs(uri, use_listings_cache=False)  # other processes write, too
    except (ImportError, OSError, ValueError) as error:  # an ImportError says which package to install
        raise CaptureError(f"{uri}: {reason(error)}") from error
    return fs.PyFileSystem(_Handler(system)), str(inside)


class _Handler(fs.FSSpecHandler):  # type: ignore[misc]
    """A handler whose `move` replaces `dest`, as pyarrow's do: some of fsspec's refuse, or do nothing."""

    def move(self, src: str, dest: str) -> None:
        if self.fs.exists(dest):
            self.fs.rm_file(dest)
        super().move(src, dest)


def arrow_uri(uri: str) -> str:
    """Return a URI as pyarrow expects it: Hadoop's s3a and s3n are s3."""
    return re.sub(r"^s3[an]://", "s3://", uri)
