"""Finds the inputs that a command line names: files, glob patterns, directories, and URIs.

In a directory, only files whose contents are a capture are inputs.
"""

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from itertools import compress
from typing import Any, Final, NoReturn

from pulsarctl_wire.capture.series import Span, name_key, span_of
from pulsarctl_wire.capture.sources import holds_packets
from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline.files.paths import PATTERN, Entry, absolute, is_uri, reason, scheme_of
from pulsarctl_wire.pipeline.files.splits import Input, Say, in_order, open_input
from pulsarctl_wire.wire.detail import TABLE_NAMES

_PEEKING: Final = 16  # files that are opened at a time
_NAMED: Final = 3  # how many of the files left out are named in a note
_SAVED: Final = "/progress/all"  # every table's directory has this file, see store.py
_TABLE: Final = ("/progress/", "/manifest.json", *(f"/{name}/" for name in TABLE_NAMES))
"""What the directory of a table contains."""


def find_inputs(
    arguments: Iterable[str], say: Say = lambda note: None, earlier: Iterable[Input] = ()
) -> list[Input]:
    """Return the files that arguments name, in time order; raises CaptureError if an argument names none.

    `say` is called with notes for the user about the order, and about files that are left out. Files that are
    among `earlier` inputs are not opened, if they have not changed.
    """
    unchanged = {
        _identity(input_): input_.span
        for input_ in earlier
        if input_.first_ns is not None and input_.modified_ns
    }

    def look(input_: Input) -> Span | None:
        return unchanged.get(_identity(input_)) or span(input_)

    inputs = list_inputs(arguments, say, lambda input_: _identity(input_) in unchanged or is_capture(input_))
    with ThreadPoolExecutor(_PEEKING) as executor:
        spans = list(executor.map(look, inputs))
    inputs = [
        input_._replace(first_ns=times.first, mark=times.mark, last_ns=times.last) if times else input_
        for input_, times in zip(inputs, spans, strict=True)
    ]
    return in_order(inputs, spans, say) if len(inputs) > 1 else inputs


def _identity(input_: Input) -> tuple[str, int, int]:
    return input_.path, input_.size, input_.modified_ns


def is_capture(input_: Input) -> bool:
    """Return whether a file is a capture; True if it cannot be read."""
    try:
        with open_input(input_.path) as stream:
            return holds_packets(stream)
    except CaptureError:
        return True  # decoding it reports why


def list_inputs(
    arguments: Iterable[str],
    say: Say = lambda note: None,
    is_wanted: Callable[[Input], bool] = is_capture,
) -> list[Input]:
    """List the files that arguments name, an input for each. Raises CaptureError if an argument names none.

    From a directory, only files are taken that `is_wanted` accepts; `say` gets a note about the others.
    """
    inputs: list[Input] = []
    for argument in arguments:
        try:
            files, is_directory = _find(argument)
        except (OSError, ValueError) as error:
            raise CaptureError(f"{argument}: {reason(error)}") from error
        if is_directory:
            with ThreadPoolExecutor(_PEEKING) as executor:
                captures = list(compress(files, executor.map(is_wanted, files)))
            if len(captures) < len(files):
                say(_left_out(argument, sorted({*files} - {*captures}, key=lambda file: name_key(file.name))))
            files = captures
        if not files:
            raise CaptureError(f"{argument}: no capture files there")
        inputs += files
    return list(dict.fromkeys(inputs))


def _left_out(directory: str, files: list[Input]) -> str:
    """Return a note about the files in a directory that are not captures."""
    names = [file.name.removeprefix(directory).lstrip("/") for file in files[:_NAMED]]
    ellipsis = ", …" if len(files) > _NAMED else ""
    reason_text = "file is not a capture" if len(files) == 1 else "files are not captures"
    return f"{directory}: {len(files)} {reason_text}: {', '.join(names)}{ellipsis}"


def span(input_: Input) -> Span | None:
    """Return the times of the first and last packets of an input; None if they are unknown."""
    try:
        with open_input(input_.path) as stream:
            return span_of(stream, input_.size)
    except CaptureError:
        return None  # decoding it reports why


def _find(argument: str) -> tuple[list[Input], bool]:
    """Return the files that an argument names, captures or not, and whether the argument is a directory."""
    system, path = _system_of(argument)
    scheme = scheme_of(argument, path)
    entry = system.look(path)
    if entry and not entry.is_directory:
        return [_input(entry, argument)], False
    is_directory = entry is not None
    if is_directory:
        base = path.rstrip("/") or "/"
    elif PATTERN.search(path):
        base = path[: PATTERN.search(path).start()].rpartition("/")[0]  # type: ignore[union-attr]
        base = base or ("/" if path.startswith("/") else ".")
    else:
        raise CaptureError(f"{argument}: no such file")
    inside = list(system.files_below(base))
    roots = [item.path.removesuffix(_SAVED) for item in inside if item.path.endswith(_SAVED)]
    tables = tuple(root + name for root in roots for name in _TABLE)
    is_named = (
        _is_shown(item.path[len(base) :]) and not item.path.startswith(tables)
        if is_directory
        else fnmatchcase(_path(item), path)
        for item in inside
    )
    inputs = [_input(item, scheme + _path(item)) for item in compress(inside, is_named)]
    return sorted(inputs, key=lambda item: name_key(item.name)), is_directory


def _system_of(argument: str) -> tuple[Any, str]:
    """Return what lists the files of a path or URI, and the path in it."""
    if not is_uri(argument):
        return _Local, argument
    from pulsarctl_wire.pipeline.files.filesystems import Listing, filesystem

    system, path = filesystem(argument)
    return _Local if system.type_name == "local" else Listing(system), path


class _Local:
    """Lists files of this machine, as `Listing` does others. It needs no pyarrow."""

    @staticmethod
    def look(path: str) -> Entry | None:
        """Return what is at a path; None if it is neither a file nor a directory."""
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        is_directory = stat.S_ISDIR(status.st_mode)
        if not is_directory and not stat.S_ISREG(status.st_mode):
            return None
        return Entry(path, status.st_size, status.st_mtime_ns, is_directory)

    @staticmethod
    def files_below(base: str) -> Iterator[Entry]:
        """Return the files below a directory. Where links lead to a directory again, it is left out."""

        def fail(error: OSError) -> NoReturn:
            raise CaptureError(f"{error.filename}: {reason(error)}") from error

        visited: set[str] = set()
        for directory, folders, names in os.walk(base, onerror=fail, followlinks=True):
            real_path = os.path.realpath(directory)
            if real_path in visited:
                folders.clear()
                continue
            visited.add(real_path)
            # Links come last, so that a directory beside a link to it is listed by its own name.
            folders.sort(key=lambda name: (os.path.islink(os.path.join(directory, name)), name_key(name)))
            yield from filter(None, (_Local.look(os.path.join(directory, name)) for name in names))


def _path(entry: Entry) -> str:
    return entry.path.removeprefix("./")


def _is_shown(path: str) -> bool:
    """Return whether no name in a path begins with a dot or an underscore, which would hide it."""
    return not any(name.startswith((".", "_")) for name in path.split("/"))


def _input(entry: Entry, path: str) -> Input:
    return Input(path, entry.size, entry.modified_ns, absolute(path))
