"""Chunks of messages, joined by uuid: their payloads, and the seals of those that are encrypted.

The chunks of all incomplete messages are bounded by `ChunkJoiner.MAX_BYTES`.
"""

from collections.abc import Iterable
from typing import Final

from pulsarctl_wire.wire.encryption import Seal, read_seal
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.frame import Connection, Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import MessageMetadata

_CHUNK_COST: Final = 192  # bytes that a stored chunk takes in addition to its payload and its seal


class _Chunks:
    """The chunks of one message that arrived so far. `expected` is the id of the next chunk."""

    __slots__ = ("expected", "parts", "places", "seals", "size")

    def __init__(self) -> None:
        self.expected = 0
        self.places: list[tuple[int, int]] = []
        self.parts: list[bytes] = []
        self.seals: list[Seal | None] = []
        self.size = 0


ChunkKey = tuple[Connection, bool, int, str]
"""Connection, direction, owner and uuid of a message."""


def _key(frame: Frame, metadata: MessageMetadata, owner: int) -> ChunkKey:
    return frame.connection, frame.to_broker, owner, as_text(metadata.uuid[:256])


class ChunkJoiner:
    """A joiner of chunks. Messages are identified by connection, direction, owner and uuid.

    With `keep` False it keeps no payloads, for callers that only count: then `joined` is b"".
    """

    MAX_BYTES: Final = 64 * 1024 * 1024
    MAX_MESSAGES: Final = 4_096

    def __init__(self, *, keep: bool = True) -> None:
        self._keep = keep
        self._incomplete: dict[ChunkKey, _Chunks] = {}
        self._bytes = 0

    def add(
        self, frame: Frame, metadata: MessageMetadata, owner: int, place: tuple[int, int] | None = None
    ) -> list[tuple[int, int]]:
        """Add the chunk in `frame` of producer or consumer `owner`. With the last one, set `frame.joined`.

        `place` is the chunk's (ledger, entry), if the caller needs places. Returns the places of all chunks
        once the last one is added, and an empty list before.
        """
        nothing: list[tuple[int, int]] = []
        chunk, count = metadata.chunk_id, metadata.num_chunks_from_msg
        key = _key(frame, metadata, owner)
        chunks = self._incomplete.get(key)
        if chunk == 0:
            self._drop(key)
            chunks = self._incomplete[key] = _Chunks()
        if chunks is None or chunk > chunks.expected:
            expected = chunks.expected if chunks else 0
            uuid = as_text(metadata.uuid)
            frame.note(f"chunk {chunk + 1} of message {uuid} without chunk {expected + 1}")
            self._drop(key)
            return nothing
        if chunk < chunks.expected:
            frame.note(f"chunk {chunk + 1} of message {as_text(metadata.uuid)} once more")
            return nothing
        chunks.expected += 1
        if place is not None:
            chunks.places.append(place)
        if self._keep:
            seal = read_seal(metadata) if metadata.encryption_keys else None
            size = len(frame.payload) + _CHUNK_COST + (seal.size if seal is not None else 0)
            chunks.parts.append(frame.payload)
            chunks.seals.append(seal)
            chunks.size += size
            self._bytes += size
        if chunks.expected == count:
            frame.joined = b"".join(chunks.parts)
            if any(chunks.seals):
                frame.seals = [
                    (seal, len(part)) for seal, part in zip(chunks.seals, chunks.parts, strict=True)
                ]
            self._drop(key)
        while self._bytes > self.MAX_BYTES or len(self._incomplete) > self.MAX_MESSAGES:
            frame.note("too many chunks wait for more: the oldest message is given up")
            self._drop(next(iter(self._incomplete)))
        return nothing if frame.joined is None else chunks.places

    def has_begun(self, frame: Frame, metadata: MessageMetadata, owner: int) -> bool:
        """Return whether earlier chunks of this frame's message have arrived."""
        return _key(frame, metadata, owner) in self._incomplete

    def incomplete(self, connection: Connection) -> list[tuple[bool, int, str, int]]:
        """List a connection's incomplete messages: direction, owner, uuid, and number of chunks so far."""
        items = self._incomplete.items()
        return [(*key[1:], chunks.expected) for key, chunks in items if key[0] is connection]

    def resume(self, connection: Connection, incomplete: Iterable[tuple[bool, int, str, int]]) -> None:
        """Continue from what another joiner's `incomplete` returned, without the payloads so far."""
        for to_broker, owner, uuid, expected in incomplete:
            chunks = self._incomplete[connection, to_broker, owner, uuid] = _Chunks()
            chunks.expected = expected

    def _drop(self, key: ChunkKey) -> None:
        chunks = self._incomplete.pop(key, None)
        if chunks is not None:
            self._bytes -= chunks.size
