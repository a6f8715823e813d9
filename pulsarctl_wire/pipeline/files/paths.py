"""Paths and URIs as text, errors about them as text, the cache directory. Imports no pyarrow."""

import atexit
import os
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

PATTERN: Final = re.compile(r"[*?\[]")
"""Matches the characters of a glob pattern."""


class Entry(NamedTuple):
    """A file or a directory: its path, its size in bytes, and when it was modified (ns)."""

    path: str
    size: int
    modified_ns: int
    is_directory: bool


def is_uri(path: str) -> bool:
    """Return whether a path is a URI."""
    return "://" in path or path.startswith("file:/")


def absolute(path: str) -> str:
    """Return a path or URI that does not depend on the working directory."""
    return path if is_uri(path) else os.path.abspath(path)


def is_pattern(path: str) -> bool:
    """Return whether a path has characters of a glob pattern."""
    return PATTERN.search(path) is not None


def scheme_of(uri: str, path: str) -> str:
    """Return the part of a URI in front of its path; empty for a plain path."""
    return uri[: -len(path)] if is_uri(uri) and uri.endswith(path) else ""


def reason(error: Exception) -> str:
    """Return the text of an error of pyarrow or the operating system, on one line."""
    text = getattr(error, "strerror", None) or str(error)
    return re.sub(r"^\[Errno \d+\]\s*", "", " ".join(str(text).split()))


def cache_directory() -> Path:
    """Return a private directory that outlives this process, or a temporary one if that is not possible."""
    path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pwire"
    with suppress(OSError):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
        # Files in it are executed, so nobody else may be able to write to it.
        if status.st_uid == os.getuid() and not status.st_mode & 0o022 and os.access(path, os.W_OK):
            return path
    path = Path(tempfile.mkdtemp(prefix="pwire-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path
