"""Which consumer a broker chooses, by hashes: Key_Shared and Failover."""

from __future__ import annotations

from collections.abc import Iterable

from pulsarctl_wire.wire.hashing import murmur3_32


def _find_ceiling(points: dict[int, str], slot: int) -> str:
    """Return the name at the lowest point that is not below `slot`, or else at the lowest of all."""
    return points[min((point for point in points if point >= slot), default=min(points))]


def find_consistent_owner(names: Iterable[str], key: str) -> str:
    """Return which consumer gets a key from the default selector of Key_Shared."""
    # the text is the name, NUL, "0", NUL and a number: \000 is one NUL; "0" is the first consumer with
    # this name, and the number that of a point
    points = {
        murmur3_32(f"{name}\0000\0{number}") % 65535 + 1: name for name in names for number in range(100)
    }
    return _find_ceiling(points, murmur3_32(key) % 65535 + 1)


def find_slot(key: str) -> int:
    """Return the slot of a key, for hash ranges. Slot 0 is not used: a hash of 0 counts as 1."""
    return murmur3_32(key) % 65536 or 1


def find_split_owner(names: Iterable[str], key: str) -> str:
    """Return which consumer gets a key from the selector of Key_Shared that halves ranges.

    `names` are in the order in which the consumers have subscribed.
    """
    ends: dict[int, str] = {}
    for name in names:
        ends[_choose_end(ends)] = name
    return _find_ceiling(ends, find_slot(key))


def _choose_end(ends: dict[int, str]) -> int:
    """Return the last slot of the next consumer's range: all at first, then the lower half of the widest."""
    if not ends:
        return 65536
    starts = dict(zip(sorted(ends), [0, *sorted(ends)], strict=False))
    widest = max(sorted(ends), key=lambda end: end - starts[end])
    return (starts[widest] + widest) // 2


def find_active(names: Iterable[str], topic: str) -> str:
    """Return which consumer of a Failover subscription to a topic without partitions is active."""
    points = {murmur3_32(f"{name}{number}"): name for name in names for number in range(100)}
    return _find_ceiling(points, murmur3_32(topic))
