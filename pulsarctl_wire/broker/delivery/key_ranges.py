"""The key ranges of Key_Shared consumers: a key's hash is a slot, and each slot has an owner.

Sources: b/ConsistentHashingStickyKeyConsumerSelector, b/HashRangeAutoSplitStickyKeyConsumerSelector,
b/HashRangeExclusiveStickyKeyConsumerSelector, Commands.resolveStickyKey (4.0.8).
"""

from base64 import b64decode
from bisect import bisect_left, insort
from collections.abc import Callable
from itertools import pairwise
from typing import Final

import mmh3

from pulsarctl_wire.broker.basics.refusal import Refused
from pulsarctl_wire.broker.delivery.consumer import Consumer
from pulsarctl_wire.wire.PulsarApi_pb2 import STICKY, MessageMetadata

_SLOTS: Final = 65_536

Range = tuple[int, int, Consumer]
"""The first and last slot of a range, and its owner."""


def murmur(data: bytes) -> int:
    """Return the 32-bit Murmur3 hash without the sign, as Pulsar uses it."""
    return mmh3.hash(data, signed=False) & 0x7FFFFFFF


def sticky_key(metadata: MessageMetadata | None) -> bytes:
    """Return the key that chooses the consumer of an entry."""
    if metadata is None:
        return b""
    if metadata.HasField("ordering_key"):
        return metadata.ordering_key
    if metadata.HasField("partition_key"):
        key = _to_bytes(metadata.partition_key)
        if not metadata.partition_key_b64_encoded:
            return key
        try:
            return b64decode(key)
        except ValueError:
            return key
    return b"%s-%d" % (_to_bytes(metadata.producer_name), metadata.sequence_id)


def _to_bytes(text: str | bytes) -> bytes:  # protobuf gives bytes if a string is not UTF-8
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text


class KeyRanges:
    """Assigns slots to consumers. Slot 0 is not used: a hash of 0 counts as 1."""

    def add(self, consumer: Consumer) -> None:
        """Add a consumer. Raises Refused."""

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer."""

    def get_slot(self, key: bytes) -> int:
        """Return the slot of a key."""
        return murmur(key) % _SLOTS or 1

    def get_owner(self, slot: int) -> Consumer | None:
        """Return the owner of a slot; None if there is none."""
        raise NotImplementedError

    def list_ranges(self) -> list[Range]:
        """Return the ranges that have an owner, in order."""
        raise NotImplementedError


class ConsistentHashing(KeyRanges):
    """Each consumer has `points` points on a ring; a slot belongs to the owner of the next point."""

    def __init__(self, points: int = 100) -> None:
        self._count = points
        self._ring: list[int] = []
        self._owners: dict[int, list[Consumer]] = {}
        self._numbers: dict[Consumer, int] = {}  # consumers of one name have different numbers

    def _find_points(self, consumer: Consumer) -> list[int]:
        name, number = consumer.name, self._numbers[consumer]
        return [self.get_slot(f"{name}\0{number}\0{point}".encode()) for point in range(self._count)]

    def add(self, consumer: Consumer) -> None:
        """Add a consumer."""
        used_numbers = {number for other, number in self._numbers.items() if other.name == consumer.name}
        self._numbers[consumer] = next(
            number for number in range(len(used_numbers) + 1) if number not in used_numbers
        )
        for point in self._find_points(consumer):
            if point not in self._owners:
                self._owners[point] = []
                insort(self._ring, point)
            self._owners[point].append(consumer)

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer."""
        for point in self._find_points(consumer):
            owners = self._owners.get(point, [])
            if consumer in owners:
                owners.remove(consumer)
            if not owners and self._owners.pop(point, None) is not None:
                self._ring.remove(point)
        del self._numbers[consumer]

    def get_slot(self, key: bytes) -> int:
        """Return the slot of a key."""
        return murmur(key) % (_SLOTS - 1) + 1

    def get_owner(self, slot: int) -> Consumer | None:
        """Return the owner of a slot; None if there is none."""
        if not self._ring:
            return None
        position = bisect_left(self._ring, slot)
        return self._owners[self._ring[position % len(self._ring)]][0]

    def list_ranges(self) -> list[Range]:
        """Return the ranges of all slots, in order."""
        return _join_ranges([*self._ring, _SLOTS - 1], self.get_owner)


class AutoSplit(KeyRanges):
    """A newcomer takes the lower half of the widest range."""

    def __init__(self) -> None:
        self._ends: list[int] = []  # the last slot of each range, in order; the last one is _SLOTS
        self._owners: list[Consumer] = []

    def add(self, consumer: Consumer) -> None:
        """Add a consumer."""
        if not self._ends:
            self._ends, self._owners = [_SLOTS], [consumer]
            return
        starts = [0, *self._ends]
        widths = [end - start for start, end in zip(starts, self._ends, strict=False)]
        position = widths.index(max(widths))
        self._ends.insert(position, starts[position] + widths[position] // 2)
        self._owners.insert(position, consumer)

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer; its range joins the one above it, or else the one below it."""
        position = self._owners.index(consumer)
        del self._owners[position]
        if position == len(self._ends) - 1 and position:
            del self._ends[position - 1]
        else:
            del self._ends[position]

    def get_owner(self, slot: int) -> Consumer | None:
        """Return the owner of a slot; None if there is none."""
        return self._owners[bisect_left(self._ends, slot)] if self._ends else None

    def list_ranges(self) -> list[Range]:
        """Return the ranges of all slots, in order."""
        return _join_ranges([min(end, _SLOTS - 1) for end in self._ends], self.get_owner)


class Sticky(KeyRanges):
    """Consumers claim the ranges in their SUBSCRIBE."""

    def __init__(self) -> None:
        self._ranges: list[Range] = []

    def add(self, consumer: Consumer) -> None:
        """Add a consumer. Raises Refused."""
        ranges = [(hash_range.start, hash_range.end) for hash_range in consumer.key_shared.hashRanges]
        if not ranges:
            raise Refused("ConsumerAssignError", "Ranges for KeyShared policy must not be empty.")
        for (start, end), (next_start, next_end) in pairwise([*sorted(ranges), (1 << 31, 1 << 31)]):
            if start > end:
                text = f"Fixed hash range start > end for range: [{start},{end}]"
                raise Refused("ConsumerAssignError", text)
            if next_start <= end:
                text = (
                    f"Consumer's own ranges conflict: [{start},{end}] overlaps with [{next_start},{next_end}]"
                )
                raise Refused("ConsumerAssignError", text)
        for start, end in ranges:
            for low, high, other in self._ranges:
                if start <= high and low <= end:
                    raise Refused("ConsumerAssignError", f"Range conflict with consumer {other.name}")
        self._ranges += [(start, end, consumer) for start, end in ranges]

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer."""
        self._ranges = [hash_range for hash_range in self._ranges if hash_range[2] is not consumer]

    def get_owner(self, slot: int) -> Consumer | None:
        """Return the owner of a slot; None if no consumer claims it."""
        return next((consumer for start, end, consumer in self._ranges if start <= slot <= end), None)

    def list_ranges(self) -> list[Range]:
        """Return the ranges that have an owner, in order."""
        return sorted(self._ranges, key=lambda item: item[0])


def _join_ranges(ends: list[int], get_owner: Callable[[int], Consumer | None]) -> list[Range]:
    """Return the ranges that end at `ends`; neighbours with the same owner are joined."""
    ranges: list[Range] = []
    start = 1
    for end in ends:
        consumer = get_owner(end)
        if consumer is not None and start <= end:
            if ranges and ranges[-1][2] is consumer:
                start = ranges.pop()[0]
            ranges.append((start, end, consumer))
            start = end + 1
    return ranges


def make_key_ranges(consumer: Consumer) -> KeyRanges:
    """Make the key ranges that the KeySharedMeta of a subscription's first consumer asks for."""
    settings = consumer.connection.settings
    if consumer.key_shared.keySharedMode == STICKY:
        return Sticky()
    if settings.subscriptionKeySharedUseConsistentHashing:
        return ConsistentHashing(settings.subscriptionKeySharedConsistentHashingReplicaPoints)
    return AutoSplit()
