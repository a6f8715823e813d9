"""Serializes progress for a table's directory, for Spark's checkpoint, and for the rows of a stream.

Such a directory may be shared, so its contents are not trusted: only plain values of the expected types and
ranges are read, and the objects are made from those here. The format is

    HEAD (with the version)   CRC32-C of the rest (4, big-endian)   one msgpack value

Records (the classes of `_RECORDS`) are arrays of their fields. A shape says which values are allowed:

    a class of `_RECORDS`, str, bytes, bool    exactly that
    range                                      an integer in it
    frozenset                                  one of these values
    [X]  (X, ...)  (X, Y)  {K: V}  {X}         a list, tuples, a dict, a set of these shapes
    Maybe(X)                                   X or None
    PLACE                                      the place of a packet in one of the files read
"""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import cache, partial
from typing import Any, Final, NamedTuple, TypeVar

import msgpack
from crc32c import crc32c

from pulsarctl_wire.capture.files import Interface, Layout
from pulsarctl_wire.capture.halves import LifeState
from pulsarctl_wire.capture.handover import (
    FRESH,
    IDLE,
    STEP,
    HalfState,
    HalfSync,
    Handover,
    Lost,
    ReassemblerState,
    SyncPoint,
    TcpState,
)
from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline.decoding.decode import Decoded, Edge, Settings
from pulsarctl_wire.pipeline.decoding.progress import Begun, Options, Progress, Totals
from pulsarctl_wire.pipeline.decoding.rows import Stitched, TableStitcher
from pulsarctl_wire.pipeline.decoding.stitch import Fixup
from pulsarctl_wire.pipeline.files.splits import Input, Side, Split
from pulsarctl_wire.pipeline.storage.partitions import PARTITIONS
from pulsarctl_wire.table import TABLES
from pulsarctl_wire.table.messages import JSON, RAW, MessageOptions
from pulsarctl_wire.wire.commands import BODIES
from pulsarctl_wire.wire.detail import DETAILS
from pulsarctl_wire.wire.frame import PACKET_OFFSET_BITS
from pulsarctl_wire.wire.framing.stream_state import StreamState
from pulsarctl_wire.wire.session.greeting import Greeting
from pulsarctl_wire.wire.session.plain import Deferred, Known, Part, Sends
from pulsarctl_wire.wire.session.state import Asked

T = TypeVar("T")

HEAD: Final = b"pwire progress 14\n"
"""What saved data begins with. Increase the number when a shape changes."""

LARGEST: Final = 1024 * 1024 * 1024
"""Maximum bytes of saved data; more are refused."""

_CHECKED: Final = len(HEAD) + 4
_PICKLED: Final = b"\x80"
_LONG: Final = 1  # msgpack extension: an integer of more than 64 bits, signed, big-endian
_LONGEST: Final = 64  # size of such an integer in bytes


class Outline(NamedTuple):
    """The part of a progress that takes little time to load."""

    inputs: list[Input]
    options: Options


class Maybe(NamedTuple):
    """The shape of a value that may be None."""

    shape: Any


PLACE: Final = Maybe(None)
_PLACES: Final = range(-1, 2**63)
_COUNT: Final = range(2**53)  # also bytes, and offsets in streams
_WISH: Final = range(2**500)  # a size in bytes that a user may give
_ANY_32: Final = range(2**32)
_ANY_64: Final = range(2**64)
_NUMBER: Final = range(-(2**40), 2**53)  # an unwrapped sequence number, or -1 for none
_TIME: Final = Maybe(range(1 - 2**63, 2**63))
_TEXT: Final = Maybe(str)
_RANGES: Final = {str: (_ANY_64, _ANY_64, _COUNT)}  # of sequence ids, by producer name
_PROBLEM: Final = (str, str, bool)
_KEY: Final = bytes
_EARLY: Final = (_NUMBER, PLACE, PLACE, bytes, _ANY_32, _TIME, range(-1, 2**32))
_SEGMENT: Final = (bytes, _ANY_32, _ANY_32, range(256), bytes, _ANY_32)
_WAITING: Final = {bytes: ({range(2**16): bytes}, range(-1, 2**32))}
_SENT: Final = (
    *(_COUNT, _TIME, _COUNT, _TEXT, _ANY_64, str, _ANY_64, range(-(2**31), 2**31)),
    *((_COUNT, _COUNT), range(-1, 2**53)),
)
_OWNER: Final = (bool, _ANY_64)
_IDENTITY: Final = (_TEXT, str, *_SENT[4:5], _SENT[6], _SENT[7])
_SEARCH: Final = (range(-1, 2**53), _COUNT, _COUNT)
_LOST: Final = (str, _COUNT, _COUNT, bytes, [PLACE], (_TIME, PLACE))
_FOUND: Final = Maybe((_COUNT, Maybe(Layout)))
_STITCHER: Final = (_WAITING, ReassemblerState, {_COUNT: str})


_RECORDS: Final[dict[type, tuple[Any, ...]]] = {
    Progress: ([Input], Options, Totals, _COUNT, _COUNT, _FOUND, bool, str, _STITCHER),
    Input: (str, _COUNT, range(-(2**63), 2**64), str, (Side, ...), _TIME, str, _TIME),
    Side: (_COUNT, str, str, _COUNT, range(-(2**63), 2**64), _TIME, _TIME),
    Begun: (str, Settings),
    Settings: (str, Maybe(_WISH), bool, str, _TEXT, Maybe(MessageOptions), _TEXT, frozenset(DETAILS)),
    MessageOptions: (frozenset(("", RAW, JSON)), _WISH, bool),
    Options: (
        *(_WISH, Maybe(_WISH), bool, _TEXT, Maybe(MessageOptions), (frozenset(PARTITIONS), ...)),
        *(_TEXT, frozenset(DETAILS)),
    ),
    Totals: (*[_COUNT] * 7, _WISH, _WISH, _COUNT, [_PROBLEM]),
    Interface: (range(2**16), _ANY_32, _COUNT, range(1, 2**500), range(-(2**100), 2**100), _COUNT),
    Layout: (bool, frozenset("<>"), (Interface, ...)),
    ReassemblerState: (
        *(_COUNT, [TcpState], [range(-1, 2**53)], {bytes}, _COUNT),
        *([(_IDENTITY, _COUNT, _TIME, _COUNT, bool)], _COUNT),
    ),
    TcpState: (_KEY, bool, _COUNT, PLACE, _TIME, bool, bool, ([Lost], [Lost]), Handover),
    Lost: (str, bytes, _COUNT, _COUNT, _TIME, PLACE, [PLACE], str),
    Handover: (
        (HalfState, HalfState),
        (Maybe(StreamState), Maybe(StreamState)),
        *(Known, _WISH, bool, bool, PLACE, LifeState),
    ),
    StreamState: (
        *(_WISH, str, _COUNT, bytes, _COUNT, [(_COUNT, PLACE, _TIME)], PLACE, _TIME, _TIME, PLACE),
        *(range(-1, 2**32), _COUNT, bool, bool, bool, _SEARCH, _LOST),
    ),
    LifeState: (_COUNT, bool, str, _TIME, Maybe(range(2)), bool, _TIME),
    Known: (
        *({_ANY_64: str}, {_ANY_64: (str, str)}, {_OWNER: _COUNT}),
        *({(str, _ANY_64): Asked}, {_ANY_64: Sends}),
        *([(bool, _ANY_64, str, _COUNT)], Maybe(bool), Maybe(Asked), Maybe(Asked), ((bool, Asked), ...)),
        *(Greeting, str),
    ),
    Greeting: (_TEXT, _TEXT, _TEXT, Maybe(range(-(2**31), 2**31))),
    Sends: (_TEXT, str, bool, bool, _COUNT, [(_ANY_64, _SENT)], [(_ANY_64, _COUNT, [_SENT])]),
    HalfState: (bool, bool, bool, PLACE, _NUMBER, *[_NUMBER] * 4, [_EARLY], Maybe(_ANY_32)),
    Asked: (_COUNT, _TIME, _COUNT, frozenset(BODIES), _TEXT, _TEXT, Maybe(_OWNER)),
    # rows of a stream
    Decoded: (
        *(Split, _FOUND, (_COUNT, Maybe(Layout)), [_PROBLEM], _COUNT, _COUNT, _WAITING, [Edge]),
        *(Maybe(PLACE), _WISH, _COUNT, _COUNT, Maybe(bool)),
    ),
    Split: (_COUNT, _COUNT, Input, _COUNT, _ANY_64, Maybe(Layout), bool, Maybe(_WAITING), (Input, ...)),
    Edge: (
        *(_COUNT, _KEY, PLACE, Maybe([(PLACE, PLACE, _TIME, _SEGMENT)]), _COUNT, Maybe(SyncPoint), PLACE),
        *(bool, Maybe(Handover), _COUNT, bool, bool, Maybe(Part), _RANGES),
    ),
    Part: (
        *({_ANY_64: str}, {_ANY_64: (str, str)}, [Deferred], [_ANY_64], {_ANY_64: _PLACES}),
        *([_OWNER], [_OWNER]),
        *([(_IDENTITY, _COUNT, _TIME, bool, _PLACES)], [(str, _ANY_64, _COUNT)], _RANGES),
        *({str: (_ANY_64, _ANY_64)}, [_ANY_64], Maybe(_COUNT), Maybe(_PLACES), bool, bool),
    ),
    Deferred: (bytes, bool, _COUNT, _TIME, _TIME, PLACE, Maybe((_TIME, _COUNT)), _TEXT, _TEXT),
    SyncPoint: ((HalfSync, HalfSync), bool, _WISH),
    HalfSync: (frozenset((FRESH, STEP, IDLE)), bool, _NUMBER, ((_COUNT, PLACE, _TIME), ...), _COUNT),
    Stitched: ({_COUNT: Fixup}, {frozenset(TABLES): bytes}, _COUNT),
    Fixup: (_COUNT, _TEXT, str, (_NUMBER, _NUMBER), {str: _TEXT}),
}


# -- writing


def dump(value: Any) -> bytes:
    """Serialize a `Progress` or another record."""
    if isinstance(value, Progress):
        value = replace(value, stitcher=value.stitcher.state())
    data: bytes = msgpack.packb(value, default=_plain, unicode_errors="surrogatepass")
    return HEAD + crc32c(data).to_bytes(4, "big") + data


def _plain(value: Any) -> Any:
    if isinstance(value, int):
        return msgpack.ExtType(_LONG, value.to_bytes(_LONGEST, "big", signed=True))
    if is_dataclass(value):
        return [getattr(value, each.name) for each in fields(value)]
    return sorted(value)  # a set


# -- reading


def load_progress(data: bytes, name: str) -> Progress:
    """The `Progress` that `dump` made `data` from. Raises CaptureError as `load` does."""
    value = _unpacked(data, name)
    reader = _Reader()
    try:
        progress: Progress = reader.of(Progress)(value)
        waiting, state, names = progress.stitcher
        if any(each.number >= state.connections for each in state.known):
            raise ValueError("a connection too many")
        progress.stitcher = TableStitcher(progress.options.settings(""))
        # Only the files that open connections came from: a table that is followed has ever more.
        progress.stitcher.resume((waiting, state, {file: names[file] for file in sorted(reader.files)}))
    except (ValueError, LookupError) as error:
        raise _refused(name) from error
    return progress


def load_outline(data: bytes, name: str) -> Outline:
    """Load only the inputs and options of the `Progress` that `dump` made `data` from.

    Raises CaptureError as `load` does.
    """
    value = _unpacked(data, name)
    reader = _reader()
    try:
        return Outline(reader.of([Input])(value[0]), reader.of(Options)(value[1]))
    except (ValueError, LookupError, TypeError) as error:
        raise _refused(name) from error


def load(data: bytes, kind: type[T], name: str) -> T:
    """The record of class `kind` that `dump` made `data` from.

    Raises CaptureError if `data` is damaged or something else; the error's text begins with `name`.
    """
    value = _unpacked(data, name)
    try:
        found: T = _reader().of(kind)(value)
    except ValueError as error:
        raise _refused(name) from error
    return found


@cache
def _reader() -> "_Reader":
    """A reader for all records: to make one takes longer than to read a small record."""
    return _Reader()


def checked(value: Any, shape: Any, name: str) -> Any:
    """The plain `value`, converted to what `shape` describes. Raises CaptureError as `load` does."""
    try:
        return _Reader().of(shape)(value)
    except ValueError as error:
        raise _refused(name) from error


def _refused(name: str, why: str = "is damaged, or was not written by pwire") -> CaptureError:
    return CaptureError(f"{name} {why}; delete the directory, or name another one by --out")


def _unpacked(data: bytes, name: str) -> Any:
    if len(data) > LARGEST:
        raise _refused(name, f"is larger than {LARGEST} bytes")
    if not data.startswith(HEAD):
        if data.startswith((_PICKLED, HEAD[: HEAD.rindex(b" ")])):
            raise _refused(name, "was written by another version of pwire")
        raise _refused(name)
    if crc32c(data[_CHECKED:]) != int.from_bytes(data[len(HEAD) : _CHECKED], "big"):
        raise _refused(name)
    try:
        return msgpack.unpackb(
            memoryview(data)[_CHECKED:],
            use_list=False,
            strict_map_key=False,
            ext_hook=_extension,
            unicode_errors="surrogatepass",
        )
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise _refused(name) from error


def _extension(code: int, data: bytes) -> int:
    if code != _LONG or len(data) != _LONGEST:
        raise ValueError("an extension")
    return int.from_bytes(data, "big", signed=True)


_Read = Callable[[Any], Any]


class _Reader:
    """Makes functions that read values of a shape; they raise ValueError for other values."""

    def __init__(self) -> None:
        self.files: set[int] = set()
        """The numbers of the files that places are in."""
        self._records: dict[type, _Read] = {}

    def of(self, shape: Any) -> _Read:
        """The function that reads values of this shape."""
        if shape is PLACE:
            return self._place
        if isinstance(shape, range):
            return partial(_number, shape)
        if isinstance(shape, frozenset):
            return partial(_one_of, shape)
        if isinstance(shape, Maybe):
            return partial(_maybe, self.of(shape.shape))
        if isinstance(shape, list):
            return partial(_several, list, self.of(shape[0]))
        if isinstance(shape, set):
            return partial(_several, set, self.of(*shape))
        if isinstance(shape, tuple) and shape[-1] is ...:
            return partial(_several, tuple, self.of(shape[0]))
        if isinstance(shape, tuple):
            return partial(_each, lambda *values: values, [self.of(each) for each in shape])
        if isinstance(shape, dict):
            ((key, value),) = shape.items()
            return partial(_mapping, self.of(key), self.of(value))
        if shape in _RECORDS:
            if shape not in self._records:
                self._records[shape] = partial(_each, shape, [self.of(each) for each in _RECORDS[shape]])
            return self._records[shape]
        return partial(_exactly, shape)

    def _place(self, value: Any) -> Any:
        _number(_PLACES, value)
        if value >= 0:
            self.files.add(value >> PACKET_OFFSET_BITS)
        return value


def _number(allowed: range, value: Any) -> Any:
    if type(value) is not int or value not in allowed:  # anything but an int is searched for one by one
        raise ValueError("not one of those allowed")
    return value


def _one_of(allowed: frozenset[Any], value: Any) -> Any:
    if type(value) not in (int, str) or value not in allowed:
        raise ValueError("not one of those allowed")
    return value


def _exactly(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{type(value)}, not {kind}")
    return value


def _maybe(read: _Read, value: Any) -> Any:
    return None if value is None else read(value)


def _several(kind: Any, read: _Read, values: Any) -> Any:
    return kind([read(value) for value in _sequence(values)])


def _each(make: Any, readers: list[_Read], values: Any) -> Any:
    return make(*[read(value) for read, value in zip(readers, _sequence(values), strict=True)])


def _mapping(key: _Read, value: _Read, values: Any) -> Any:
    return {key(name): value(each) for name, each in _exactly(dict, values).items()}


def _sequence(values: Any) -> Any:
    if not isinstance(values, tuple | list):
        raise ValueError(f"{type(values)}, no sequence")
    return values
