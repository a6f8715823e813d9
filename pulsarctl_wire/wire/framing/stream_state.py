"""The state of a `FrameStream` as plain data: another process, or a later run, continues from it."""

from typing import NamedTuple

from pulsarctl_wire.wire.framing.lost import LostState, Source


class StreamState(NamedTuple):
    """What a stream continues from, as plain data; `limit`, `protocol`, `position`, `spoke` are its own.

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

    limit: int
    protocol: str
    position: int
    held: bytes
    need: int
    sources: list[Source]
    source: int
    source_ns: int | None
    time_ns: int | None
    packet: int
    approved: int
    skip: int
    is_searching: bool
    spoke: bool
    is_fresh: bool
    search: tuple[int, int, int]
    lost: LostState
