"""What the frames table says of entries that are wrong, so that `pwire report findings` can tell it."""

from collections.abc import Iterator
from typing import Final

from crc32c import crc32c

from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.payload import Budget, find_misstated_size
from pulsarctl_wire.wire.session.knowledge import bound

_MAX_ENTRIES: Final = 16_384  # whose payloads are known to decompress


class Examiner:
    """Looks at entries: it decompresses what is compressed."""

    def __init__(self) -> None:
        self._budget = Budget()
        self._right: dict[bytes, None] = {}  # checksums of the last payloads that decompress

    def look(self, frame: Frame) -> Iterator[tuple[str, int]]:
        """The columns `unpacked_size` and `head_crc` of a SEND or MESSAGE that is not cut; mostly none."""
        metadata, is_valid = frame.metadata, frame.checksum == "valid"
        size = self._misstated(frame) if metadata is not None and metadata.compression and is_valid else None
        if size is not None:
            yield "unpacked_size", size
        if metadata is None or frame.checksum == "invalid" or size is not None:
            yield "head_crc", crc32c(frame.raw[frame.entry_at : frame.payload_at or len(frame.raw)])

    def _misstated(self, frame: Frame) -> int | None:
        """What the payload's size is, if not uncompressed_size (see `find_misstated_size`)."""
        metadata, key = frame.metadata, frame.stored_checksum
        if metadata is None or metadata.num_chunks_from_msg > 1 or metadata.encryption_keys:
            return None
        if key in self._right:
            return None
        size = find_misstated_size(metadata, frame.payload, self._budget)
        if size is None:
            self._right[key] = None
            bound(self._right, _MAX_ENTRIES)
        return size
