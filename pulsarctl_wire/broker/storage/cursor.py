"""What a subscription has acknowledged.

    mark     every entry before this index is acknowledged, the one at it is not
    blocks   those behind it, as bits: block b has the entries from b * BLOCK on
    masks    of batches acknowledged in part: the bits of the messages that are still open

Stored as a row of "cursors", and a row for each block, so that an acknowledgement changes little.
"""

import struct
from collections.abc import Iterable
from typing import Final

from pulsarctl_wire.broker.storage.journal import Journal, Row

BLOCK: Final = 1024
"""Entries in a block of bits."""

_WORD: Final = struct.Struct("<q").pack


def words_of(mask: int) -> list[int]:
    """A mask as ack_set: 64 bits a word, signed, no zero words at the end (PIP-54)."""
    size = -(-mask.bit_length() // 64)
    return list(struct.unpack(f"<{size}q", mask.to_bytes(size * 8, "little")))


def mask_of(words: Iterable[int]) -> int:
    """An ack_set as one number."""
    return int.from_bytes(b"".join(map(_WORD, words)), "little")


class Cursor:
    """The acknowledged entries of one subscription; `key` is that of its row, stored if it is `durable`."""

    def __init__(self, journal: Journal, key: str, mark: int, *, durable: bool = True) -> None:
        self.key = key
        self.mark = mark
        self.durable = durable
        self.properties: dict[str, str] = {}
        self.replicated = False
        """Whether a consumer asked for that; nothing follows from it."""
        self.count = 0
        """The number of acknowledged entries behind `mark`."""
        self.masks: dict[int, int] = {}
        self.last_active_ms = 0
        self._blocks: dict[int, int] = {}
        self._journal = journal
        self._changed: dict[int, None] = {}
        self._ended = not durable

    # -- questions

    def is_acked(self, index: int) -> bool:
        """Whether the entry is acknowledged."""
        return index < self.mark or bool(self._blocks.get(index // BLOCK, 0) >> index % BLOCK & 1)

    def next_open(self, index: int) -> int:
        """The first entry from `index` on that is not acknowledged."""
        index = max(index, self.mark)
        while (bits := self._blocks.get(index // BLOCK, 0)) >> index % BLOCK & 1:
            rest = ~(bits >> index % BLOCK)
            skip = (rest & -rest).bit_length() - 1
            index = min(index + skip, (index // BLOCK + 1) * BLOCK)
        return index

    def backlog(self, end: int) -> int:
        """Entries before `end` that are not acknowledged."""
        return max(end - self.mark - self.count, 0)

    def ranges(self, end: int) -> list[tuple[int, int]]:
        """The acknowledged entries behind the mark, as ranges (start, stop)."""
        found: list[tuple[int, int]] = []
        start = stop = self.mark
        left = self.count
        while left > 0 and stop < end:
            start = stop + 1
            while start < end and not self.is_acked(start):
                start += 1
            stop = min(self.next_open(start), end)
            if stop > start:
                found.append((start, stop))
                left -= stop - start
        return found

    # -- acknowledgements

    def ack(self, index: int) -> bool:
        """Acknowledge an entry. False if it was already."""
        if self.is_acked(index):
            return False
        if self.masks.pop(index, None) is not None:
            self._changed[index // BLOCK] = None
        if index == self.mark:
            self._move(index + 1)
        else:
            self._set(index // BLOCK, self._blocks.get(index // BLOCK, 0) | 1 << index % BLOCK)
            self.count += 1
        self._journal.dirty(self)
        return True

    def ack_before(self, index: int) -> bool:
        """Acknowledge every entry before an index. False if all were already."""
        if index <= self.mark:
            return False
        self._move(index)
        self._journal.dirty(self)
        return True

    def ack_some(self, index: int, size: int, still_open: int) -> int:
        """Acknowledge messages of a batch of `size`: all but those in `still_open`.

        Returns the number of messages that this acknowledged; the last one acknowledges the entry. Clients
        need not say how large the batch is: only this number depends on it.
        """
        if self.is_acked(index):
            return 0
        before = self.masks.get(index)
        after = still_open if before is None else before & still_open
        if not after:
            self.ack(index)
        elif after != before:
            self._mask(index, after)
        return max((size if before is None else before.bit_count()) - after.bit_count(), 0)

    def _mask(self, index: int, mask: int) -> None:
        self.masks[index] = mask
        self._changed[index // BLOCK] = None
        self._journal.dirty(self)

    def set_open(self, index: int, still_open: int) -> None:
        """Say which messages of a batch are not acknowledged."""
        self._mask(index, still_open)

    def reset(self, index: int) -> None:
        """Go to an index: all entries before it are acknowledged, none from it on."""
        for block in self._blocks:
            self._changed[block] = None
        for masked in self.masks:
            self._changed[masked // BLOCK] = None
        self._blocks.clear()
        self.masks.clear()
        self.mark, self.count = index, 0
        self._journal.dirty(self)

    def _set(self, block: int, bits: int) -> None:
        if bits:
            self._blocks[block] = bits
        else:
            self._blocks.pop(block, None)
        self._changed[block] = None

    def _move(self, to: int) -> None:
        """Move the mark forward, and over the acknowledged entries that follow."""
        to = self.next_open(to) if self.count else to
        self.mark = to
        for block in [each for each in self._blocks if each * BLOCK < to] if self._blocks else ():
            low = (1 << min(to - block * BLOCK, BLOCK)) - 1
            self.count -= (self._blocks[block] & low).bit_count()
            self._set(block, self._blocks[block] & ~low)
        for index in [each for each in self.masks if each < to] if self.masks else ():
            del self.masks[index]
            self._changed[index // BLOCK] = None

    # -- storage

    def save(self) -> None:
        """Put its rows (`journal.Dirty`)."""
        if self._ended:
            return
        row: Row = {"mark": self.mark, "properties": self.properties, "active": self.last_active_ms}
        if self.replicated:
            row["replicated"] = True
        self._journal.put("cursors", self.key, row)
        masks: dict[int, dict[str, str]] = {}
        for index, mask in self.masks.items() if self._changed else ():
            masks.setdefault(index // BLOCK, {})[str(index)] = f"{mask:x}"
        for block in self._changed:
            bits, of_block = self._blocks.get(block, 0), masks.get(block)
            if bits or of_block:
                acked = {"bits": f"{bits:x}", "masks": of_block or {}}
                self._journal.put(f"acked/{self.key}", str(block), acked)
            else:
                self._journal.delete(f"acked/{self.key}", str(block))
        self._changed.clear()

    def close(self) -> None:
        """Put its rows for the last time: from now on, they belong to another `Cursor`."""
        self.save()
        self._ended = True

    def delete(self) -> None:
        """Delete its rows."""
        self._ended = True
        self._journal.delete("cursors", self.key)
        self._journal.delete_table(f"acked/{self.key}")


def load_cursor(journal: Journal, key: str) -> Cursor:
    """The cursor of a stored row."""
    row = journal.table("cursors")[key]
    cursor = Cursor(journal, key, row["mark"])
    cursor.properties = row["properties"]
    cursor.last_active_ms = row["active"]
    cursor.replicated = row.get("replicated", False)
    for block, acked in journal.table(f"acked/{key}").items():
        cursor._blocks[int(block)] = int(acked["bits"], 16)
        cursor.count += cursor._blocks[int(block)].bit_count()
        cursor.masks.update({int(index): int(mask, 16) for index, mask in acked["masks"].items()})
    cursor._blocks = {block: bits for block, bits in cursor._blocks.items() if bits}
    return cursor
