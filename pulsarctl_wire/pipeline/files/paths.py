"""Paths and URIs as text, and the texts of errors about them. Imports no pyarrow."""

import os
import re
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
