"""The hash functions that choose a partition for a message key, and the one that identifies connections.

Sources: Pulsar's JavaStringHash and Murmur3_32Hash. Keys are hashed as they are sent: binary keys as their
base64 text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pulsarctl_wire.wire.frame import Connection


def java_string_hash(key: str) -> int:
    """Java's String.hashCode of `key` without the sign bit: 31 bits, computed over UTF-16 units."""
    value = 0
    units = key.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = 31 * value + (units[at] << 8 | units[at + 1]) & 0xFFFFFFFF
    return value & 0x7FFFFFFF


def murmur3_32(key: str) -> int:
    """Murmur3 (x86, 32 bits, seed 0) of `key` in UTF-8, without the sign bit."""
    import mmh3

    return mmh3.hash(key.encode("utf-8", "surrogatepass"), 0, signed=False) & 0x7FFFFFFF


def uid_of(connection: Connection) -> str | None:
    """Return what identifies a connection in all captures; None if it has no packets.

    It is made of its addresses, and the time of its first packet or, without times, its place.
    """
    from base64 import b32encode
    from hashlib import blake2b

    if connection.since is None:
        return None
    one, other = sorted((connection.client, connection.server))
    text = f"{one} {other} {connection.since}"
    return b32encode(blake2b(text.encode(), digest_size=10).digest()).decode().lower()
