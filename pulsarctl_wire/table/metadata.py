"""The fields of MessageMetadata that few messages have, and the hash of a message's key."""

from base64 import b64decode
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

from mmh3 import hash as murmur3

from pulsarctl_wire.wire.fields import as_base64, as_text, to_signed
from pulsarctl_wire.wire.PulsarApi_pb2 import MessageMetadata

_NUMBERS_OF_METADATA: Final = (
    *("event_time", "deliver_at_time", "num_chunks_from_msg", "chunk_id", "total_chunk_msg_size"),
    *("txnid_least_bits", "txnid_most_bits", "marker_type", "uncompressed_size"),
)
_LONGEST_KEY: Final = 256  # bytes of a key whose hash is cached


def unusual_fields(metadata: MessageMetadata) -> dict[str, Any]:
    """Column -> value, of the fields that metadata has besides the usual ones."""
    has = metadata.HasField
    found: dict[str, Any] = {
        name: to_signed(getattr(metadata, name)) for name in _NUMBERS_OF_METADATA if has(name)
    }
    if metadata.encryption_keys:
        found["encrypted"] = True
    if has("null_value"):
        found["null_value"] = metadata.null_value
    if has("replicated_from"):
        found["replicated_from"] = as_text(metadata.replicated_from)
    if has("schema_version"):
        found["schema_version"] = as_base64(metadata.schema_version)
    if has("uuid"):
        found["uuid"] = as_text(metadata.uuid)
    if has_key(metadata):
        found["key_hash"] = key_hash(metadata)
    return found


def has_key(metadata: Any) -> bool:
    """Whether the metadata of an entry, or of a message in a batch, has a key."""
    return bool(metadata.HasField("partition_key") or metadata.HasField("ordering_key"))


def key_hash(metadata: Any) -> int:
    """The hash of a message's ordering key, or else of its key."""
    ordering, key = metadata.ordering_key, metadata.partition_key
    is_ordered = metadata.HasField("ordering_key")  # though it may be empty
    chosen_key = ordering if is_ordered else key
    data = chosen_key if isinstance(chosen_key, bytes) else chosen_key.encode()
    return hash_of(data, is_base64=not is_ordered and metadata.partition_key_b64_encoded)


def hash_of(key: bytes, *, is_base64: bool = False) -> int:
    """The hash of a key (in Base64 or not) that Key_Shared subscriptions and their ranges use: Murmur3."""
    hashed: int = (_hash if len(key) <= _LONGEST_KEY else _hash.__wrapped__)(key, is_base64)
    return hashed


@lru_cache(65_536)
def _hash(data: bytes, is_base64: bool) -> int:
    if is_base64:
        with suppress(ValueError):
            data = b64decode(data, validate=True)
    return murmur3(data, signed=False) & 0x7FFFFFFF
