"""Which consumer of a Key_Shared subscription gets which keys, as the slots of their hashes.

Sources: b/ConsistentHashingStickyKeyConsumerSelector, b/HashRangeAutoSplitStickyKeyConsumerSelector,
b/HashRangeExclusiveStickyKeyConsumerSelector, Commands.resolveStickyKey (4.0.8).
"""

from base64 import b64decode
from bisect import bisect_left, insort
from collections.abc import Callable
from itertools import pairwise
from typing import Final, Protocol

import mmh3

from pulsarctl_wire.broker.basics.refusal import Refused
from pulsarctl_wire.broker.delivery.consumer import Consumer
from pulsarctl_wire.wire.PulsarApi_pb2 import STICKY, MessageMetadata

_SLOTS: Final = 65_536

Range = tuple[int, int, Consumer]
"""The first and the last of a range of slots, and whose they are."""


def murmur(data: bytes) -> int:
    """Murmur3, 32 bits, as Pulsar takes it: without the sign."""
    return mmh3.hash(data, signed=False) & 0x7FFFFFFF


def sticky_key(metadata: MessageMetadata | None) -> bytes:
    """The key by which an entry is given to a consumer."""
    if metadata is None:
        return b""
    if metadata.HasField("ordering_key"):
        return metadata.ordering_key
    if metadata.HasField("partition_key"):
        key = _bytes(metadata.partition_key)
        if not metadata.partition_key_b64_encoded:
            return key
        try:
            return b64decode(key)
        except ValueError:
            return key
    return b"%s-%d" % (_bytes(metadata.producer_name), metadata.sequence_id)


def _bytes(text: str | bytes) -> bytes:  # protobuf has bytes where it is not UTF-8
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text


class Selector(Protocol):
    """Gives each slot to a consumer."""

    def add(self, consumer: Consumer) -> None:
        """A consumer joins. Raises Refused."""

    def remove(self, consumer: Consumer) -> None:
        """A consumer leaves."""

    def slot(self, key: bytes) -> int:
        """The slot of a key."""

    def owner(self, slot: int) -> Consumer | None:
        """Whose slot it is; None if nobody's."""

    def ranges(self) -> list[Range]:
        """The slots that have an owner, in order."""


class ConsistentHashing:
    """Each consumer has `points` on a ring; a slot belongs to the next point."""

    def __init__(self, points: int = 100) -> None:
        self._count = points
        self._ring: list[int] = []
        self._owners: dict[int, list[Consumer]] = {}
        self._numbers: dict[Consumer, int] = {}  # consumers of one name have different numbers

    def _points(self, consumer: Consumer) -> list[int]:
        name, number = consumer.name, self._numbers[consumer]
        return [self.slot(f"{name}\0{number}\0{each}".encode()) for each in range(self._count)]

    def add(self, consumer: Consumer) -> None:
        """A consumer joins."""
        taken = {number for other, number in self._numbers.items() if other.name == consumer.name}
        self._numbers[consumer] = next(each for each in range(len(taken) + 1) if each not in taken)
        for point in self._points(consumer):
            if point not in self._owners:
                self._owners[point] = []
                insort(self._ring, point)
            self._owners[point].append(consumer)

    def remove(self, consumer: Consumer) -> None:
        """A consumer leaves."""
        for point in self._points(consumer):
            owners = self._owners.get(point, [])
            if consumer in owners:
                owners.remove(consumer)
            if not owners and self._owners.pop(point, None) is not None:
                self._ring.remove(point)
        del self._numbers[consumer]

    def slot(self, key: bytes) -> int:
        """The slot of a key."""
        return murmur(key) % (_SLOTS - 1) + 1

    def owner(self, slot: int) -> Consumer | None:
        """Whose slot it is."""
        if not self._ring:
            return None
        at = bisect_left(self._ring, slot)
        return self._owners[self._ring[at % len(self._ring)]][0]

    def ranges(self) -> list[Range]:
        """All slots, in order."""
        return _between([*self._ring, _SLOTS - 1], self.owner)


class _Ranges:
    """Slots in ranges; the hash 0 counts as 1."""

    def slot(self, key: bytes) -> int:
        """The slot of a key."""
        return murmur(key) % _SLOTS or 1


class AutoSplit(_Ranges):
    """A newcomer takes the lower half of the widest range."""

    def __init__(self) -> None:
        self._ends: list[int] = []  # the last slot of each range, in order
        self._owners: list[Consumer] = []

    def add(self, consumer: Consumer) -> None:
        """A consumer joins."""
        if not self._ends:
            self._ends, self._owners = [_SLOTS], [consumer]
            return
        starts = [0, *self._ends]
        widths = [end - start for start, end in zip(starts, self._ends, strict=False)]
        at = widths.index(max(widths))
        self._ends.insert(at, starts[at] + widths[at] // 2)
        self._owners.insert(at, consumer)

    def remove(self, consumer: Consumer) -> None:
        """A consumer leaves; its range joins the one above it, or else the one below it."""
        at = self._owners.index(consumer)
        del self._owners[at]
        if at == len(self._ends) - 1 and at:
            del self._ends[at - 1]
        else:
            del self._ends[at]

    def owner(self, slot: int) -> Consumer | None:
        """Whose slot it is."""
        return self._owners[bisect_left(self._ends, slot)] if self._ends else None

    def ranges(self) -> list[Range]:
        """All slots, in order."""
        return _between([min(end, _SLOTS - 1) for end in self._ends], self.owner)


class Sticky(_Ranges):
    """Consumers say which ranges they want."""

    def __init__(self) -> None:
        self._ranges: list[Range] = []

    def add(self, consumer: Consumer) -> None:
        """A consumer joins. Raises Refused."""
        ranges = [(each.start, each.end) for each in consumer.key_shared.hashRanges]
        if not ranges:
            raise Refused("ConsumerAssignError", "Ranges for KeyShared policy must not be empty.")
        for (start, end), (after, last) in pairwise([*sorted(ranges), (1 << 31, 1 << 31)]):
            if start > end:
                text = f"Fixed hash range start > end for range: [{start},{end}]"
                raise Refused("ConsumerAssignError", text)
            if after <= end:
                text = f"Consumer's own ranges conflict: [{start},{end}] overlaps with [{after},{last}]"
                raise Refused("ConsumerAssignError", text)
        for start, end in ranges:
            for low, high, other in self._ranges:
                if start <= high and low <= end:
                    raise Refused("ConsumerAssignError", f"Range conflict with consumer {other.name}")
        self._ranges += [(start, end, consumer) for start, end in ranges]

    def remove(self, consumer: Consumer) -> None:
        """A consumer leaves."""
        self._ranges = [each for each in self._ranges if each[2] is not consumer]

    def owner(self, slot: int) -> Consumer | None:
        """Whose slot it is; None if nobody wants it."""
        return next((it for start, end, it in self._ranges if start <= slot <= end), None)

    def ranges(self) -> list[Range]:
        """The slots that have an owner, in order."""
        return sorted(self._ranges, key=lambda each: each[0])


def _between(ends: list[int], owner: Callable[[int], Consumer | None]) -> list[Range]:
    """The ranges with these last slots, those of one owner joined."""
    found: list[Range] = []
    start = 1
    for end in ends:
        consumer = owner(end)
        if consumer is not None and start <= end:
            if found and found[-1][2] is consumer:
                start = found.pop()[0]
            found.append((start, end, consumer))
            start = end + 1
    return found


def selector_for(consumer: Consumer) -> Selector:
    """The selector of a subscription whose first consumer this is."""
    settings = consumer.connection.settings
    if consumer.key_shared.keySharedMode == STICKY:
        return Sticky()
    if settings.subscriptionKeySharedUseConsistentHashing:
        return ConsistentHashing(settings.subscriptionKeySharedConsistentHashingReplicaPoints)
    return AutoSplit()
