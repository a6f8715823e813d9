"""A cursor: the entries that a subscription has acknowledged.

    mark     every entry before this index is acknowledged, this one is not
    blocks   acknowledged entries after the mark, as bits: block b has the entries from b * BLOCK on
    masks    of batches acknowledged in part: the bits of the messages that are still open

Stored as the row LOG/NAME of "cursors", and a row for each block in "acked/LOG/NAME", so that an
acknowledgement changes little.
"""

import struct
from collections.abc import Iterable
from typing import Final

from pulsarctl_wire.broker.storage.journal import Journal, Row
from pulsarctl_wire.broker.storage.log import Position

BLOCK: Final = 1024
"""Entries in a block of bits."""

_WORD: Final = struct.Struct("<q").pack


def words_of(mask: int) -> list[int]:
    """Return a mask as an ack_set: 64 bits a word, signed, no zero words at the end (PIP-54)."""
    size = -(-mask.bit_length() // 64)
    return list(struct.unpack(f"<{size}q", mask.to_bytes(size * 8, "little")))


def mask_of(words: Iterable[int]) -> int:
    """Return an ack_set as one number."""
    return int.from_bytes(b"".join(map(_WORD, words)), "little")


class Cursor:
    """The acknowledged entries of one subscription; `key` is the key of its row, stored only if `durable`."""

    def __init__(self, journal: Journal, key: str, mark: int, *, durable: bool = True) -> None:
        self.key = key
        self.mark = mark
        self.durable = durable
        self.properties: dict[str, str] = {}
        self.replicated = False
        """Whether a consumer asked for replication; without effect."""
        self.count = 0
        """The number of acknowledged entries after `mark`."""
        self.masks: dict[int, int] = {}
        self.deleted_id: Position | None = None
        """The id of the entry before `mark`, if it is deleted."""
        self.last_active_ms = 0
        self._blocks: dict[int, int] = {}
        self._journal = journal
        self._changed_blocks: dict[int, None] = {}
        self._is_closed = not durable
        """Whether `save` does nothing: there are no rows, or another `Cursor` has them."""

    # -- queries

    def is_acked(self, index: int) -> bool:
        """Return whether the entry is acknowledged."""
        return index < self.mark or bool(self._blocks.get(index // BLOCK, 0) >> index % BLOCK & 1)

    def find_open(self, index: int) -> int:
        """Return the first entry from `index` on that is not acknowledged."""
        index = max(index, self.mark)
        while (bits := self._blocks.get(index // BLOCK, 0)) >> index % BLOCK & 1:
            open_bits = ~(bits >> index % BLOCK)
            skip = (open_bits & -open_bits).bit_length() - 1
            index = min(index + skip, (index // BLOCK + 1) * BLOCK)
        return index

    def count_backlog(self, end: int) -> int:
        """Return the number of unacknowledged entries before `end`."""
        return max(end - self.mark - self.count, 0)

    def list_acked(self, end: int) -> list[tuple[int, int]]:
        """Return the acknowledged entries after the mark and before `end`, as ranges (start, stop)."""
        ranges: list[tuple[int, int]] = []
        start = stop = self.mark
        remaining = self.count
        while remaining > 0 and stop < end:
            start = stop + 1
            while start < end and not self.is_acked(start):
                start += 1
            stop = min(self.find_open(start), end)
            if stop > start:
                ranges.append((start, stop))
                remaining -= stop - start
        return ranges

    # -- acknowledgements

    def ack(self, index: int) -> bool:
        """Acknowledge an entry. Returns False if it was acknowledged before."""
        if self.is_acked(index):
            return False
        if self.masks.pop(index, None) is not None:
            self._changed_blocks[index // BLOCK] = None
        if index == self.mark:
            self._move_mark(index + 1)
        else:
            self._set_block(index // BLOCK, self._blocks.get(index // BLOCK, 0) | 1 << index % BLOCK)
            self.count += 1
        self._journal.save_later(self)
        return True

    def ack_before(self, index: int) -> bool:
        """Acknowledge every entry before an index. Returns False if all were acknowledged before."""
        if index <= self.mark:
            return False
        self._move_mark(index)
        self._journal.save_later(self)
        return True

    def ack_some(self, index: int, size: int, open_mask: int) -> int:
        """Acknowledge messages of a batch of `size`: all but those in `open_mask`.

        Returns the number of messages newly acknowledged; the last one acknowledges the entry. Clients need
        not send the batch size: only this number depends on it.
        """
        if self.is_acked(index):
            return 0
        former = self.masks.get(index)
        remaining = open_mask if former is None else former & open_mask
        if not remaining:
            self.ack(index)
        elif remaining != former:
            self._set_mask(index, remaining)
        return max((size if former is None else former.bit_count()) - remaining.bit_count(), 0)

    def _set_mask(self, index: int, mask: int) -> None:
        self.masks[index] = mask
        self._changed_blocks[index // BLOCK] = None
        self._journal.save_later(self)

    def set_open(self, index: int, open_mask: int) -> None:
        """Set which messages of a batch are not acknowledged."""
        self._set_mask(index, open_mask)

    def reset(self, mark: int) -> None:
        """Move the mark to an index, and forget all acknowledgements after it."""
        for block in self._blocks:
            self._changed_blocks[block] = None
        for index in self.masks:
            self._changed_blocks[index // BLOCK] = None
        self._blocks.clear()
        self.masks.clear()
        self.mark, self.count, self.deleted_id = mark, 0, None
        self._journal.save_later(self)

    def keep_id(self, deleted_id: Position) -> None:
        """Keep the id of the entry before `mark`, which is being deleted."""
        self.deleted_id = deleted_id
        self._journal.save_later(self)

    def _set_block(self, block: int, bits: int) -> None:
        if bits:
            self._blocks[block] = bits
        else:
            self._blocks.pop(block, None)
        self._changed_blocks[block] = None

    def _move_mark(self, mark: int) -> None:
        """Move the mark forward, and over the acknowledged entries that follow."""
        mark = self.find_open(mark) if self.count else mark
        self.mark, self.deleted_id = mark, None
        for block in [number for number in self._blocks if number * BLOCK < mark] if self._blocks else ():
            low_bits = (1 << min(mark - block * BLOCK, BLOCK)) - 1
            self.count -= (self._blocks[block] & low_bits).bit_count()
            self._set_block(block, self._blocks[block] & ~low_bits)
        for index in [key for key in self.masks if key < mark] if self.masks else ():
            del self.masks[index]
            self._changed_blocks[index // BLOCK] = None

    # -- storage

    def save(self) -> None:
        """Put the rows (`journal.LazyRows`)."""
        if self._is_closed:
            return
        row: Row = {"mark": self.mark, "properties": self.properties, "active": self.last_active_ms}
        if self.replicated:
            row["replicated"] = True
        if self.deleted_id is not None:
            row["deleted_id"] = self.deleted_id
        self._journal.put("cursors", self.key, row)
        masks: dict[int, dict[str, str]] = {}
        for index, mask in self.masks.items() if self._changed_blocks else ():
            masks.setdefault(index // BLOCK, {})[str(index)] = f"{mask:x}"
        for block in self._changed_blocks:
            bits, block_masks = self._blocks.get(block, 0), masks.get(block)
            if bits or block_masks:
                acked = {"bits": f"{bits:x}", "masks": block_masks or {}}
                self._journal.put(f"acked/{self.key}", str(block), acked)
            else:
                self._journal.delete(f"acked/{self.key}", str(block))
        self._changed_blocks.clear()

    def close(self) -> None:
        """Put the rows for the last time: from now on, they belong to another `Cursor`."""
        self.save()
        self._is_closed = True

    def delete(self) -> None:
        """Delete the rows."""
        self._is_closed = True
        self._journal.delete("cursors", self.key)
        self._journal.delete_table(f"acked/{self.key}")


def load_cursor(journal: Journal, key: str) -> Cursor:
    """Return the cursor of a stored row."""
    row = journal.table("cursors")[key]
    cursor = Cursor(journal, key, row["mark"])
    cursor.properties = row["properties"]
    cursor.last_active_ms = row["active"]
    cursor.replicated = row.get("replicated", False)
    cursor.deleted_id = Position(*row["deleted_id"]) if "deleted_id" in row else None
    for block, acked in journal.table(f"acked/{key}").items():
        cursor._blocks[int(block)] = int(acked["bits"], 16)
        cursor.count += cursor._blocks[int(block)].bit_count()
        cursor.masks.update({int(index): int(mask, 16) for index, mask in acked["masks"].items()})
    cursor._blocks = {block: bits for block, bits in cursor._blocks.items() if bits}
    return cursor
