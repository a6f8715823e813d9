"""Writes files that have their names only once they are complete."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from secrets import token_hex
from typing import Any

from pyarrow import ArrowException


def unfinished(path: str) -> str:
    """A name for the file at `path` until it is complete.

    No other process has the same: Spark may run a task twice at a time.
    """
    return f"{path}.{token_hex(8)}.unfinished"


@contextmanager
def written(system: Any, path: str) -> Iterator[Any]:
    """A stream to write a file of a pyarrow filesystem; if the block raises, there is no file.

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
