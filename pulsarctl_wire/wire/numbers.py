"""A compact set of numbers: one bit for each."""

from collections.abc import Iterator, Mapping


class Numbers:
    """A set of numbers from 0 up. Every number up to the largest takes one bit, whether in the set or not."""

    def __init__(self) -> None:
        self._bits = bytearray()

    def __len__(self) -> int:
        """How many numbers are in the set."""
        return int.from_bytes(self._bits, "little").bit_count()

    def __contains__(self, number: int) -> bool:
        """Whether `number` is in the set."""
        at = number // 8
        return at < len(self._bits) and bool(self._bits[at] >> number % 8 & 1)

    def __iter__(self) -> Iterator[int]:
        """The numbers in order."""
        for at, bits in enumerate(self._bits):
            if bits:
                yield from (8 * at + bit for bit in range(8) if bits >> bit & 1)

    def add(self, number: int) -> None:
        """Add `number`."""
        at = number // 8
        if at >= len(self._bits):
            self._bits.extend(bytes(at + 64 - len(self._bits)))
        self._bits[at] |= 1 << number % 8

    def rename(self, numbers: Mapping[int, int]) -> None:
        """Replace each number that is a key of `numbers` by its value there."""
        old = list(self)
        self._bits.clear()
        for number in old:
            self.add(numbers.get(number, number))

    def merge(self, other: "Numbers") -> None:
        """Add all numbers of `other`."""
        size = max(len(self._bits), len(other._bits))
        both = int.from_bytes(self._bits, "little") | int.from_bytes(other._bits, "little")
        self._bits = bytearray(both.to_bytes(size, "little"))
