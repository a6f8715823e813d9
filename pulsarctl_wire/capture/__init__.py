"""Decodes captured traffic: files, hex dumps, pipes and interfaces in, frames out."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from os import PathLike, fspath
from typing import BinaryIO

from pulsarctl_wire.capture.series import arrange, read_all, spans_of
from pulsarctl_wire.capture.sources import Decoder, Reading, Source, open_source
from pulsarctl_wire.errors import CaptureError, DamagedCapture
from pulsarctl_wire.wire.frame import Event, Frame

__all__ = ["Decoder", "Source", "open_source", "read_events", "read_frames"]


def read_events(
    *sources: str | PathLike[str] | BinaryIO,
    max_frame_size: int | None = None,
    keylogs: Iterable[str | PathLike[str]] = (),
) -> Iterator[Event]:
    """Yield the frames, malformed stretches, gaps and lookups over HTTP of captures, hex dumps or raw frames.

    `sources` are paths or binary streams; several are read one after the other or merged, by the times in
    them (see `series`). `keylogs` are files with secrets of TLS. Raises CaptureError at once for a source
    that cannot be read, DamagedCapture for one that breaks off, after all events.
    """
    decoder = Decoder(Reading(max_frame_size, tuple([fspath(path) for path in keylogs])))
    damage: list[DamagedCapture] = []

    def problem(error: CaptureError) -> None:
        if not isinstance(error, DamagedCapture):
            raise error
        damage.append(error)

    @contextmanager
    def open_file(index: int) -> Iterator[Source]:
        item = sources[index]
        if isinstance(item, (str, PathLike)):
            source = open_source(fspath(item))
            with source.stream:
                yield source
        else:
            yield Source("stream", item)

    names = [fspath(item) if isinstance(item, (str, PathLike)) else "" for item in sources]
    for events in chain(
        read_all(decoder, arrange(names, spans_of(names)).turns, open_file, problem), decoder.finish()
    ):
        yield from events
    if damage:
        raise damage[-1]


def read_frames(
    *sources: str | PathLike[str] | BinaryIO,
    max_frame_size: int | None = None,
    keylogs: Iterable[str | PathLike[str]] = (),
) -> Iterator[Frame]:
    """Yield the frames of captures, hex dumps or raw frames: `read_events` without other events."""
    for event in read_events(*sources, max_frame_size=max_frame_size, keylogs=keylogs):
        if isinstance(event, Frame):
            yield event
