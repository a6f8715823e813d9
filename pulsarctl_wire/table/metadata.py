"""Rare columns of entries: fields of MessageMetadata, the hash of a key, and what is wrong with an entry."""

from base64 import b64decode
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

from crc32c import crc32c
from mmh3 import hash as murmur3

from pulsarctl_wire.wire.fields import as_base64, as_text, to_signed
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.inspection import Inspection, inspect_entry
from pulsarctl_wire.wire.payload import Budget
from pulsarctl_wire.wire.PulsarApi_pb2 import MessageMetadata
from pulsarctl_wire.wire.session.knowledge import bound

_NUMBERS_OF_METADATA: Final = (
    *("event_time", "deliver_at_time", "num_chunks_from_msg", "chunk_id", "total_chunk_msg_size"),
    *("txnid_least_bits", "txnid_most_bits", "marker_type", "uncompressed_size"),
)
_MAX_CACHED_KEY: Final = 256  # bytes of a key whose hash is cached
_MAX_INTACT: Final = 16_384  # entries that are remembered as intact


def find_unusual_fields(metadata: MessageMetadata) -> dict[str, Any]:
    """Return column -> value of the fields that metadata has besides the usual ones."""
    has = metadata.HasField
    columns: dict[str, Any] = {
        name: to_signed(getattr(metadata, name)) for name in _NUMBERS_OF_METADATA if has(name)
    }
    if metadata.encryption_keys:
        columns["encrypted"] = True
    if has("null_value"):
        columns["null_value"] = metadata.null_value
    if has("replicated_from"):
        columns["replicated_from"] = as_text(metadata.replicated_from)
    if has("schema_version"):
        columns["schema_version"] = as_base64(metadata.schema_version)
    if has("uuid"):
        columns["uuid"] = as_text(metadata.uuid)
    if has_key(metadata):
        columns["key_hash"] = hash_message_key(metadata)
    return columns


def has_key(metadata: Any) -> bool:
    """Return whether the metadata of an entry, or of a message in a batch, has a key."""
    return bool(metadata.HasField("partition_key") or metadata.HasField("ordering_key"))


def hash_message_key(metadata: Any) -> int:
    """Return the hash of a message's ordering key, or else of its key."""
    ordering, key = metadata.ordering_key, metadata.partition_key
    is_ordered = metadata.HasField("ordering_key")  # though it may be empty
    chosen_key = ordering if is_ordered else key
    data = chosen_key if isinstance(chosen_key, bytes) else chosen_key.encode()
    return hash_key(data, is_base64=not is_ordered and metadata.partition_key_b64_encoded)


def hash_key(key: bytes, *, is_base64: bool = False) -> int:
    """Return the hash of a key (in Base64 or not) that Key_Shared subscriptions use: Murmur3."""
    hashed: int = (_hash if len(key) <= _MAX_CACHED_KEY else _hash.__wrapped__)(key, is_base64)
    return hashed


@lru_cache(65_536)
def _hash(data: bytes, is_base64: bool) -> int:
    if is_base64:
        with suppress(ValueError):
            data = b64decode(data, validate=True)
    return murmur3(data, signed=False) & 0x7FFFFFFF


class Examiner:
    """Looks for damaged entries, and decompresses compressed ones for that."""

    def __init__(self) -> None:
        self._budget = Budget()
        self._intact: dict[bytes, None] = {}  # checksums of the last entries whose sizes are right

    def examine(self, frame: Frame) -> Iterator[tuple[str, int]]:
        """Yield the columns about damage of a SEND or MESSAGE that is not cut, if any."""
        metadata = frame.metadata
        size, count = self._inspect(frame, metadata)
        if size is not None:
            yield "unpacked_size", size
        if count is not None:
            yield "batch_messages", count
        if metadata is None or frame.checksum == "invalid" or size is not None or count is not None:
            yield "head_crc", crc32c(frame.raw[frame.entry_at : frame.payload_at or len(frame.raw)])

    def _inspect(self, frame: Frame, metadata: MessageMetadata | None) -> Inspection:
        """Return what is wrong with the sizes of an entry with a right checksum."""
        if metadata is None or metadata.num_chunks_from_msg > 1 or metadata.encryption_keys:
            return _NO_DAMAGE
        key = frame.stored_checksum
        if frame.checksum != "valid" or key in self._intact:
            return _NO_DAMAGE
        inspection = inspect_entry(metadata, frame.payload, self._budget)
        if inspection == _NO_DAMAGE:
            self._intact[key] = None
            bound(self._intact, _MAX_INTACT)
        return inspection


_NO_DAMAGE: Final = Inspection()
