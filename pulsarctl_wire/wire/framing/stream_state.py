"""The state of a `FrameStream` as plain data: another process, or a later run, continues from it."""

from typing import NamedTuple

from pulsarctl_wire.wire.framing.lost import LostState, Source
from pulsarctl_wire.wire.ranges import Count, LastPlace, Nanoseconds, Offset, UInt64, Wrapped


class StreamState(NamedTuple):
    """What a stream continues from, as plain data.

    `limit`, `protocol`, `position` and `spoke` are the attributes of the stream. The others:

    held                       the bytes that are not in an event yet
    need                       how many bytes must be held before anything is done
    sources                    where the held bytes came from
    source, source_ns          packet and time of the last bytes taken
    packet, time_ns            those that events get
    approved                   TOTAL_SIZE of a frame over the limit that is accepted, or -1
    skip                       how many bytes of a dropped frame are still to come
    is_searching, is_fresh     whether it is out of step; whether nothing was recognised yet
    search, lost               the states of its search and of its lost bytes
    """

    limit: UInt64
    protocol: str
    position: Count
    held: bytes
    need: Count
    sources: list[Source]
    source: LastPlace
    source_ns: Nanoseconds | None
    time_ns: Nanoseconds | None
    packet: LastPlace
    approved: Wrapped
    skip: Count
    is_searching: bool
    spoke: bool
    is_fresh: bool
    search: tuple[Offset, Count, Count]
    lost: LostState
