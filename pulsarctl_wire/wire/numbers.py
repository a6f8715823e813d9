"""Numbers that were seen, one bit each."""


class Numbers:
    """A set of numbers from 0 on, for those that come about in order (connections): no hole costs more
    than the bits of it.
    """

    def __init__(self) -> None:
        self._bits = bytearray()

    def add(self, number: int) -> bool:
        """Put `number` in; give whether it is new."""
        at, bit = number // 8, 1 << number % 8
        if at >= len(self._bits):
            self._bits.extend(bytes(at + 64 - len(self._bits)))
        is_new = not self._bits[at] & bit
        self._bits[at] |= bit
        return is_new
