"""A set of numbers, a bit each."""

import sys

from hypothesis import given
from hypothesis import strategies as st

from pulsarctl_wire.wire.numbers import Numbers

some = st.lists(st.integers(0, 5_000))


def numbers(values: list[int]) -> Numbers:
    seen = Numbers()
    for value in values:
        seen.add(value)
    return seen


@given(some, some)
def test_it_is_a_set(one: list[int], other: list[int]) -> None:
    seen = numbers(one)
    assert (list(seen), len(seen)) == (sorted({*one}), len({*one}))
    seen.merge(numbers(other))
    assert list(seen) == sorted({*one, *other})


@given(some)
def test_numbers_get_others(values: list[int]) -> None:
    seen = numbers(values)
    seen.rename({number: number + 5_001 for number in range(100)})
    assert list(seen) == sorted({value + 5_001 if value < 100 else value for value in values})


def test_a_million_take_a_bit_each() -> None:
    seen = numbers(list(range(1_000_000)))
    assert len(seen) == 1_000_000
    assert sys.getsizeof(seen._bits) < 150_000
