"""A set of numbers, a bit each."""

import sys

from hypothesis import given
from hypothesis import strategies as st

from pulsarctl_wire.wire.numbers import Numbers


@given(st.lists(st.integers(0, 5_000)))
def test_it_is_a_set(numbers: list[int]) -> None:
    seen, expected = Numbers(), set[int]()
    for number in numbers:
        assert seen.add(number) is (number not in expected)
        expected.add(number)


def test_a_million_take_a_bit_each() -> None:
    seen = Numbers()
    assert sum(map(seen.add, range(1_000_000))) == 1_000_000
    assert sys.getsizeof(seen._bits) < 150_000
