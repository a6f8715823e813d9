"""Serializes progress for a table's directory, for Spark's checkpoint, and for the rows of a stream.

Such a directory may be shared, so its contents are not trusted: only values that the annotations of our own
classes allow are read, with the ranges of `wire/ranges.py`. The format is

    HEAD (with the version)   CRC32-C of the rest (4, big-endian)   one MessagePack value

A file's name need not be valid UTF-8. If a text is not, a byte C1 precedes the value, and each text in it
stands for its bytes, decoded as Latin-1.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeVar

from crc32c import crc32c
from msgspec import MsgspecError, Raw, Struct, convert, to_builtins
from msgspec.msgpack import decode, encode

from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline.decoding.edges import Options, Settings
from pulsarctl_wire.pipeline.decoding.progress import Progress
from pulsarctl_wire.pipeline.decoding.rows import TableStitcher
from pulsarctl_wire.pipeline.decoding.stitch import StitcherState
from pulsarctl_wire.pipeline.files.splits import Input

T = TypeVar("T")

HEAD: Final = b"pwire progress 18\n"
"""What saved data begins with. Increase the number when a field changes."""

LARGEST: Final = 1024 * 1024 * 1024
"""Maximum bytes of saved data; more are refused."""

_DATA_AT: Final = len(HEAD) + 4  # bytes before the data that the checksum covers
_PICKLED: Final = b"\x80"  # what earlier versions saved begins with it
_ESCAPED: Final = b"\xc1"  # nothing begins with it in MessagePack


class Outline(Struct):
    """The part of a `Progress` that takes little time to load."""

    inputs: list[Input]
    options: Options


def dump(value: Any) -> bytes:
    """Serialize a `Progress` or other plain data. Raises CaptureError for what cannot be saved."""
    if isinstance(value, Progress):
        value = replace(value, stitcher=None), value.stitcher.state()
    try:
        try:
            data = encode(value)
        except UnicodeEncodeError:
            data = _ESCAPED + encode(_map_texts(to_builtins(value, builtin_types=(bytes,)), _escape))
    except OverflowError as error:
        raise CaptureError("a number of more than 64 bits cannot be saved: use a smaller one") from error
    return HEAD + crc32c(data).to_bytes(4, "big") + data


def load_progress(data: bytes, name: str) -> Progress:
    """Load the `Progress` that `dump` made `data` from. Raises CaptureError as `load` does."""
    progress, state = load(data, tuple[Progress, StitcherState], name)
    progress.stitcher = TableStitcher(Settings(options=progress.options))
    try:
        layout = progress.end and progress.end[1]
        if (progress.part and not progress.end) or (layout and not layout.blocks and not layout.interfaces):
            raise ValueError("nothing says how the next part is read")
        progress.stitcher.resume(state)
    except (ValueError, LookupError) as error:
        raise _error(name) from error
    return progress


def load_outline(data: bytes, name: str) -> Outline:
    """Load only the inputs and options of the `Progress` that `dump` made `data` from.

    Raises CaptureError as `load` does.
    """
    if data.startswith(_ESCAPED, _DATA_AT):
        return load(data, tuple[Outline, Any], name)[0]
    return load(data, tuple[Outline, Raw], name)[0]


def load(data: bytes, kind: type[T], name: str) -> T:
    """Load the value of type `kind` that `dump` made `data` from.

    Raises CaptureError if `data` is damaged or something else; the error's text begins with `name`.
    """
    if len(data) > LARGEST:
        raise _error(name, f"is larger than {LARGEST} bytes")
    if not data.startswith(HEAD):
        if data.startswith((_PICKLED, HEAD[: HEAD.rindex(b" ")])):
            raise _error(name, "was written by another version of pwire")
        raise _error(name)
    if crc32c(data[_DATA_AT:]) != int.from_bytes(data[len(HEAD) : _DATA_AT], "big"):
        raise _error(name)
    body = memoryview(data)[_DATA_AT:]
    try:
        if data.startswith(_ESCAPED, _DATA_AT):
            return convert(_map_texts(decode(body[1:]), _unescape), kind)
        return decode(body, type=kind)
    except (MsgspecError, ValueError, TypeError, RecursionError) as error:
        raise _error(name) from error


def check(value: Any, kind: Any, name: str) -> Any:
    """Convert plain values to type `kind`. Raises CaptureError as `load` does."""
    try:
        return convert(value, kind)
    except (MsgspecError, ValueError) as error:
        raise _error(name) from error


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return plain values with all their texts changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)([_map_texts(item, change) for item in value])
    if isinstance(value, dict):
        return {_map_texts(key, change): _map_texts(item, change) for key, item in value.items()}
    return value


def _escape(text: str) -> str:
    return text.encode("utf-8", "surrogatepass").decode("latin-1")


def _unescape(text: str) -> str:
    return text.encode("latin-1").decode("utf-8", "surrogatepass")


def _error(name: str, reason: str = "is damaged, or was not written by pwire") -> CaptureError:
    return CaptureError(f"{name} {reason}; delete the directory, or name another one by --out")
