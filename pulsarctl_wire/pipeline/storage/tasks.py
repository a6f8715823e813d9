"""What other processes do for a table. Results go to files beside the drafts, so they pass through no pipe.

NAME.edges       what a split was decoded to; it is written after the draft, and deleted before it
NAME.*.stitched  how to finish a round of splits, of which NAME is the first
"""

from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from secrets import token_hex
from typing import Any, Final, NamedTuple, Protocol

from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline.decoding.edges import Decoded, Settings
from pulsarctl_wire.pipeline.decoding.rows import Stitched, decode_split, delete_draft
from pulsarctl_wire.pipeline.files.filesystems import filesystem, write_file
from pulsarctl_wire.pipeline.files.splits import Split
from pulsarctl_wire.pipeline.storage import saved
from pulsarctl_wire.pipeline.storage.finish import Finished, finish_split

DECODED_SUFFIXES: Final = (".edges", ".arrow")
"""Suffixes of the files that a split is decoded to: its edges and its draft."""
_DELETING: Final = 16  # splits whose files are deleted at a time


class Workers(Protocol):
    """Other processes. `room` is that of `decoded_in_order`."""

    def room(self, submitted: int) -> int:
        """Return how many splits to submit next, while `submitted` earlier ones are not done yet."""

    def submit(
        self, function: Callable[..., Any], calls: list[tuple[Any, ...]], size: int
    ) -> list[Future[Any]]:
        """Call a function with each of these arguments; its results are None or tuples of numbers.

        `size` is how many bytes of captures all calls together are about.
        """


class Pool:
    """The `size` workers of an executor."""

    def __init__(self, executor: Executor, size: int = 1) -> None:
        self._executor = executor
        self._limit = size + 2

    def room(self, submitted: int) -> int:
        """Return so many that no worker waits for this process."""
        return self._limit - submitted

    def submit(
        self, function: Callable[..., Any], calls: list[tuple[Any, ...]], size: int
    ) -> list[Future[Any]]:
        """Submit each call."""
        return [self._executor.submit(function, *call) for call in calls]


def decode_to_file(split: Split, settings: Settings) -> None:
    """Decode a split to files in `settings.drafts`, unless an earlier run did.

    Raises OSError if they cannot be written.
    """
    with suppress(CaptureError, FileNotFoundError):
        load_edges(split, settings)
        return
    delete_decoded(settings.drafts, [split.name])  # of an attempt that began elsewhere
    decoded = decode_split(split, settings)
    system, path = filesystem(_edges_path(settings.drafts, split.name))
    with write_file(system, path) as stream:
        stream.write(saved.dump(decoded))


def load_edges(split: Split, settings: Settings) -> Decoded:
    """Return what a split was decoded to.

    Raises FileNotFoundError if it was not, CaptureError if the file is damaged or that of another split.
    """
    system, path = filesystem(_edges_path(settings.drafts, split.name))
    name = f"progress/{split.name}.edges"
    with system.open_input_file(path) as file:
        decoded = saved.load(file.read(min(file.size(), saved.LARGEST + 1)), Decoded, name)
    if decoded.split != split:
        raise CaptureError(
            f"{name} is that of another split; delete the directory, or name another one by --out"
        )
    return decoded


class StitchedSlice(NamedTuple):
    """Where a file says how to finish the split `name`: `size` bytes at byte `offset`."""

    name: str
    path: str
    offset: int
    size: int


class Round:
    """Splits that are stitched, in a file of their own in the directory `drafts`."""

    def __init__(self, drafts: str) -> None:
        self.size = 0
        """Bytes of captures that the splits have."""
        self._drafts = drafts
        self._file: Any = None
        self.path = ""
        self.places: list[StitchedSlice] = []

    def add(self, name: str, stitched: Stitched, size: int = 0) -> None:
        """Add how to finish the split `name`, of so many bytes. Raises OSError."""
        self.size += size
        if self._file is None:
            self.path = f"{self._drafts}/{name}.{token_hex(8)}.stitched"  # a task may be run twice at a time
            system, path = filesystem(self.path)
            self._file = system.open_output_stream(path)
        data = saved.dump(stitched)
        self.places.append(StitchedSlice(name, self.path, self._file.tell(), len(data)))
        self._file.write(data)

    def close(self) -> None:
        """Complete the file. Raises OSError."""
        if self._file is not None:
            self._file.close()


def finish_at(place: StitchedSlice, settings: Settings, out: str, generation: int) -> Finished:
    """Finish the split that a file of `Round` tells about, as `finish_split` does."""
    system, path = filesystem(place.path)
    with system.open_input_file(path) as file:
        stitched = saved.load(file.read_at(place.size, place.offset), Stitched, place.path)
    return finish_split(place.name, stitched, settings, out, generation)


def delete_decoded(drafts: str, names: Iterable[str]) -> None:
    """Delete the files that the splits of these names were decoded to. Raises OSError."""

    def delete(name: str) -> None:
        delete_file(_edges_path(drafts, name))
        delete_draft(drafts, name)

    with ThreadPoolExecutor(_DELETING) as executor:
        list(executor.map(delete, names))


def delete_file(path: str) -> None:
    """Delete the file at a path or URI if it exists. Raises OSError."""
    system, inside = filesystem(path)
    with suppress(FileNotFoundError):
        system.delete_file(inside)


def _edges_path(drafts: str, name: str) -> str:
    return f"{drafts}/{name}.edges"
