"""Inputs and the splits that they are decoded in: which bytes of which file, and how to begin there.

Inputs are files, glob patterns, directories and URIs of all that pyarrow.fs opens, in the order of time (see
`capture.series`). Of the files in a directory those are taken whose contents are a capture's. An input is
what is read in a turn: a file alone, which may be cut into splits, or what several files hold of some time.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from fnmatch import fnmatchcase
from itertools import compress
from typing import Any, BinaryIO, Final, NamedTuple, cast

from pyarrow import ArrowException, fs

from pulsarctl_wire.capture import files
from pulsarctl_wire.capture.compression import Read, reader
from pulsarctl_wire.capture.files import Layout, PacketReader
from pulsarctl_wire.capture.packets import Waiting
from pulsarctl_wire.capture.series import Span, arrange, natural, span_of
from pulsarctl_wire.capture.sources import holds_packets, peel
from pulsarctl_wire.errors import CaptureError

SPLIT_SIZE: Final = 128 * 1024 * 1024
"""Bytes of a split, but for compressed files, which are one each."""

_WINDOW: Final = 4 * 1024 * 1024  # bytes in which the beginning of a record is looked for
_PEEKING: Final = 16  # files that are looked into at a time
_NAMED: Final = 3  # of the files that are left out
_SAVED: Final = "/progress/all"  # which every table's directory has, see store.py
_TABLE: Final = ("/progress/", "/frames/", "/gaps/", "/manifest.json")  # what is in it
_PATTERN: Final = re.compile(r"[*?\[]")


class Side(NamedTuple):
    """A file that is read side by side with others.

    Its number, name and path, and which of its packets are read: from the first one at `since` to the first
    one at `until` (ns; None: there is no such bound).
    """

    file: int
    name: str
    path: str
    since: int | None
    until: int | None


class Input(NamedTuple):
    """A file: its path or URI as it was named, its size in bytes, and when it was modified (ns).

    `path` is the same from any directory. `sides`: it is read together with others, a part of each.
    """

    name: str
    size: int
    modified_ns: int
    path: str = ""
    sides: tuple[Side, ...] = ()


class Split(NamedTuple):
    """A part of an input.

    `file` and `part` are the numbers of the input and of the split in it, from 0. The packets whose records
    begin at byte `start` or later and before `stop` belong to it. `layout` is the file's there (None at its
    beginning). `exact`: a record begins at `start`; else the first one after it is looked for. `waiting`
    are the IP fragments that wait, where that matters.
    """

    file: int
    part: int
    input: Input
    start: int = 0
    stop: int = sys.maxsize
    layout: Layout | None = None
    exact: bool = True
    waiting: Waiting | None = None

    @property
    def name(self) -> str:
        """A name for files made of this split; in the order of splits."""
        return f"{self.file:06d}-{self.part:05d}"


def filesystem(path: str) -> tuple[Any, str]:
    """The pyarrow filesystem of a path or URI, and the path in it; CaptureError if there is none."""
    try:
        if _is_uri(path):
            found, inside = fs.FileSystem.from_uri(arrow_uri(path))
            return found, str(inside)
        return fs.LocalFileSystem(), path
    except (ArrowException, OSError, ValueError) as error:
        raise CaptureError(f"{path}: {reason(error)}") from error


def arrow_uri(uri: str) -> str:
    """A URI as pyarrow is to be told it: what Hadoop calls s3a is s3."""
    return re.sub(r"^s3[an]://", "s3://", uri)


def reason(error: Exception) -> str:
    """What an error of pyarrow or the operating system says, on one line."""
    text = getattr(error, "strerror", None) or str(error)
    return re.sub(r"^\[Errno \d+\]\s*", "", " ".join(str(text).split()))


def is_capture(input_: Input) -> bool:
    """Whether a file is a capture; one that cannot be read may be one."""
    try:
        with opened(input_.path) as stream:
            return holds_packets(stream)
    except CaptureError:
        return True  # decoding it will say so


def list_inputs(
    arguments: Iterable[str],
    say: Callable[[str], object] = lambda note: None,
    wanted: Callable[[Input], bool] = is_capture,
) -> list[Input]:
    """The files that arguments name, each by itself; CaptureError if one of them names none.

    Of those in a directory they are the `wanted` ones. `say` is called with what is left out.
    """
    found: list[Input] = []
    for argument in arguments:
        try:
            some, is_directory = _find(argument)
        except (ArrowException, OSError) as error:
            raise CaptureError(f"{argument}: {reason(error)}") from error
        if is_directory:
            with ThreadPoolExecutor(_PEEKING) as executor:
                captures = list(compress(some, executor.map(wanted, some)))
            if len(captures) < len(some):
                say(_left_out(argument, sorted({*some} - {*captures}, key=lambda each: natural(each.name))))
            some = captures
        if not some:
            raise CaptureError(f"{argument}: no capture files there")
        found += some
    return list(dict.fromkeys(found))


def _left_out(directory: str, others: list[Input]) -> str:
    """What is to be said of files in a directory that are no captures."""
    names = [each.name.removeprefix(directory).lstrip("/") for each in others[:_NAMED]]
    more = ", …" if len(others) > _NAMED else ""
    what = "file is not a capture" if len(others) == 1 else "files are not captures"
    return f"{directory}: {len(others)} {what}: {', '.join(names)}{more}"


def find_inputs(arguments: Iterable[str], say: Callable[[str], object] = lambda note: None) -> list[Input]:
    """The files that arguments name, in the order of time; CaptureError if one of them names none.

    `say` is called with what people should know of that order, and with what is left out.
    """
    found = list_inputs(arguments, say)
    if len(found) == 1:
        return found
    with ThreadPoolExecutor(_PEEKING) as executor:
        order = arrange([each.name for each in found], list(executor.map(span, found)))
    for note in order.notes:
        say(note)
    ordered = [found[turn.given] for turn in order.turns]
    return [
        each._replace(
            sides=tuple(
                Side(part.file, ordered[part.file].name, ordered[part.file].path, part.since, part.until)
                for part in turn.parts
            )
        )
        for each, turn in zip(ordered, order.turns, strict=True)
    ]


def span(input_: Input) -> Span | None:
    """When what an input holds was captured; None if that cannot be told."""
    try:
        with opened(input_.path) as stream:
            return span_of(stream, input_.size)
    except CaptureError:
        return None  # decoding it will say so


def _find(argument: str) -> tuple[list[Input], bool]:
    """The files that an argument names, and whether that is a directory, which may hold others too."""
    system, path = filesystem(argument)
    scheme = scheme_of(argument, path)
    info = system.get_file_info(path)
    if info.type == fs.FileType.File:
        return [_input(info, argument)], False
    is_directory = info.type == fs.FileType.Directory
    if is_directory:
        base = path.rstrip("/") or "/"
    elif _PATTERN.search(path):
        base = path[: _PATTERN.search(path).start()].rpartition("/")[0]  # type: ignore[union-attr]
        base = base or ("/" if path.startswith("/") else ".")
    else:
        raise CaptureError(f"{argument}: no such file")
    selector = fs.FileSelector(base, recursive=True)
    inside = [each for each in system.get_file_info(selector) if each.type == fs.FileType.File]
    roots = [each.path.removesuffix(_SAVED) for each in inside if each.path.endswith(_SAVED)]
    tables = tuple(root + name for root in roots for name in _TABLE)
    named = (
        _is_shown(each.path[len(base) :]) and not each.path.startswith(tables)
        if is_directory
        else fnmatchcase(_path(each), path)
        for each in inside
    )
    chosen = [_input(each, scheme + _path(each)) for each in compress(inside, named)]
    return sorted(chosen, key=lambda each: natural(each.name)), is_directory


def _path(info: Any) -> str:
    return str(info.path).removeprefix("./")


def _is_shown(path: str) -> bool:
    """Whether a file in a directory is hidden neither by its name nor by a directory's on the way to it."""
    return not any(name.startswith((".", "_")) for name in path.split("/"))


def _input(info: Any, path: str) -> Input:
    return Input(path, info.size or 0, info.mtime_ns or 0, absolute(path))


def absolute(path: str) -> str:
    """A path or URI that names the same from any directory."""
    return path if _is_uri(path) else os.path.abspath(path)


def scheme_of(uri: str, path: str) -> str:
    """What stands before the path in a URI; nothing if it is a path itself."""
    return uri[: -len(path)] if _is_uri(uri) and uri.endswith(path) else ""


def _is_uri(path: str) -> bool:
    return "://" in path or path.startswith("file:/")


@contextmanager
def opened(path: str, start: int = 0) -> Iterator[BinaryIO]:
    """The file at a path or URI, open to be read from byte `start` on; CaptureError if that cannot be."""
    try:
        system, inside = filesystem(path)
        stream = system.open_input_file(inside)
        stream.seek(start)
    except (ArrowException, OSError) as error:
        raise CaptureError(reason(error)) from error
    with stream:
        yield cast(BinaryIO, stream)


def plan(file: int, input_: Input, size: int = SPLIT_SIZE) -> list[Split]:
    """The splits of an input, of `size` bytes each. What cannot be read is one split, which will say so."""
    whole = [Split(file, 0, input_)]
    if input_.size <= size or input_.sides:
        return whole
    try:
        with opened(input_.path) as stream:
            peeled, head = peel(stream)
            if peeled is not stream or not files.is_capture(head):
                return whole
            layout = _first_layout(files.read_packets(head, reader(stream)))
    except CaptureError:
        return whole
    starts = range(0, input_.size, size)
    splits = [
        Split(file, part, input_, start, start + size, layout, False) for part, start in enumerate(starts)
    ]
    splits[0] = splits[0]._replace(layout=None, exact=True)
    splits[-1] = splits[-1]._replace(stop=sys.maxsize)
    return splits


def _first_layout(reader: PacketReader) -> Layout:
    """The layout of a file at its first packet."""
    next(iter(reader), None)
    return reader.layout


def read_split(split: Split, read: Read) -> PacketReader | None:
    """The packets of a split; `read` reads on from `split.start`. None if no beginning is found.

    Raises CaptureError if the file is no capture.
    """
    if split.layout is None:
        head = b""
        while len(head) < 4 and (more := read()):
            head += more
        if not head:
            raise CaptureError("is empty: no packets, no frames")
        if not files.is_capture(head):
            raise CaptureError("no capture (pcap, pcapng); pwire table reads hex dumps and raw frames")
        return files.read_packets(head, read, split.stop)
    if split.exact:
        return PacketReader(b"", read, split.layout, split.start, split.stop)
    window = bytearray()
    while len(window) < _WINDOW and (more := read()):
        window += more
    data = bytes(window)
    found = files.find_record(data, split.layout, split.start, complete=len(data) < _WINDOW)
    if found is None:
        return None
    return PacketReader(data[found:], read, split.layout, split.start + found, split.stop)
