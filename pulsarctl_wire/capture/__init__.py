"""Captured traffic as events: files, hex dumps, pipes and interfaces in, frames out."""

from collections.abc import Iterator
from os import PathLike, fspath
from typing import BinaryIO

from pulsarctl_wire.capture.sources import Decoder, Source, open_source
from pulsarctl_wire.errors import DamagedCapture
from pulsarctl_wire.wire.frame import Event, Frame

__all__ = ["Decoder", "Source", "open_source", "read_events", "read_frames"]


def read_events(
    *sources: str | PathLike[str] | BinaryIO, max_frame_size: int | None = None
) -> Iterator[Event]:
    """The frames, malformed stretches and gaps of captures, hex dumps or raw frames, in order of capture.

    `sources` are paths or binary streams; several continue each other, as rotated files do. Raises
    CaptureError for a source that cannot be read at once, DamagedCapture for one that breaks off after
    all that came before.
    """
    decoder = Decoder(max_frame_size=max_frame_size)
    damage: DamagedCapture | None = None
    for given in sources:
        source = open_source(fspath(given)) if isinstance(given, (str, PathLike)) else Source("stream", given)
        try:
            for events in decoder.read(source):
                yield from events
        except DamagedCapture as error:
            damage = error
        finally:
            if isinstance(given, (str, PathLike)):
                source.stream.close()
    for events in decoder.finish():
        yield from events
    if damage is not None:
        raise damage


def read_frames(
    *sources: str | PathLike[str] | BinaryIO, max_frame_size: int | None = None
) -> Iterator[Frame]:
    """The frames of captures, hex dumps or raw frames: `read_events` without what is no frame."""
    for event in read_events(*sources, max_frame_size=max_frame_size):
        if isinstance(event, Frame):
            yield event
