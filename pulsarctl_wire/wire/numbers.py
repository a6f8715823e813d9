"""A compact set of numbers: one bit for each."""

from collections.abc import Iterator, Mapping


class Numbers:
    """A set of numbers from 0 up. Every number up to the largest takes one bit, whether in the set or not."""

    def __init__(self) -> None:
        self._bits = bytearray()

    def __len__(self) -> int:
        """Return how many numbers are in the set."""
        return int.from_bytes(self._bits, "little").bit_count()

    def __contains__(self, number: int) -> bool:
        """Return whether `number` is in the set."""
        index = number // 8
        return index < len(self._bits) and bool(self._bits[index] >> number % 8 & 1)

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers in order."""
        for index, bits in enumerate(self._bits):
            if bits:
                yield from (8 * index + bit for bit in range(8) if bits >> bit & 1)

    def add(self, number: int) -> None:
        """Add `number`."""
        index = number // 8
        if index >= len(self._bits):
            self._bits.extend(bytes(index + 64 - len(self._bits)))
        self._bits[index] |= 1 << number % 8

    def rename(self, numbers: Mapping[int, int]) -> None:
        """Replace each number that is a key of `numbers` by its value there."""
        numbers_before = list(self)
        self._bits.clear()
        for number in numbers_before:
            self.add(numbers.get(number, number))

    def merge(self, other: "Numbers") -> None:
        """Add all numbers of `other`."""
        size = max(len(self._bits), len(other._bits))
        bits = int.from_bytes(self._bits, "little") | int.from_bytes(other._bits, "little")
        self._bits = bytearray(bits.to_bytes(size, "little"))
