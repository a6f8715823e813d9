"""Topic names in all their spellings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsarctl_wire.wire.names import MAX_NAME_LENGTH, full_topic, without_partition


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("t", "persistent://public/default/t"),
        ("a/b/t", "persistent://a/b/t"),
        ("t-partition-0", "persistent://public/default/t-partition-0"),
        ("persistent://a/b/t", "persistent://a/b/t"),
        ("non-persistent://a/b/t", "non-persistent://a/b/t"),
        ("topic://a/b/t", "topic://a/b/t"),
        ("segment://a/b/t/0000-7fff-12", "segment://a/b/t/0000-7fff-12"),
        ("persistent://property/cluster/namespace/t", "persistent://property/cluster/namespace/t"),
        ("property/cluster/namespace/t", "property/cluster/namespace/t"),  # no short spelling of anything
        ("a/t", "a/t"),
        ("", ""),
        ("déjà vu", "persistent://public/default/déjà vu"),
        ("a:b", "persistent://public/default/a:b"),
        (" ", "persistent://public/default/ "),
    ],
)
def test_full_names(name: str, full: str) -> None:
    assert full_topic(name) == full
    assert full_topic(name.encode()) == full


@pytest.mark.parametrize(
    ("name", "full"),
    [
        (b"caf\xe9", r"persistent://public/default/caf\xe9"),
        (b"a/\xff/t", r"persistent://a/\xff/t"),
        (b"persistent://a/b/\x80", r"persistent://a/b/\x80"),
        (b"", ""),
    ],
)
def test_names_that_are_not_utf8(name: bytes, full: str) -> None:
    assert full_topic(name) == full


@given(st.text() | st.binary())
def test_a_full_name_is_its_own(name: str | bytes) -> None:
    assert full_topic(full_topic(name)) == full_topic(name)


@given(st.text())
def test_a_full_name_ends_like_the_short_one(name: str) -> None:
    assert full_topic(name).endswith(name)


@given(st.text(alphabet="abct-/.:é 0", min_size=1), st.integers(0, 2**31 - 1))
def test_a_partition_belongs_to_its_topic(topic: str, partition: int) -> None:
    assert without_partition(f"{topic}-partition-{partition}") == topic
    assert full_topic(without_partition(topic)) == without_partition(full_topic(topic))


@pytest.mark.parametrize(
    ("topic", "parent"),
    [
        ("t", "t"),
        ("", ""),
        ("t-partition-0", "t"),
        ("t-partition-10", "t"),
        ("persistent://a/b/t-partition-3", "persistent://a/b/t"),
        ("t-partition-1-partition-2", "t-partition-1"),
        ("t-partition-01", "t-partition-01"),
        ("t-partition-00", "t-partition-00"),
        ("t-partition-", "t-partition-"),
        ("t-partition--1", "t-partition--1"),
        ("t-partition-x", "t-partition-x"),
        ("t-partition-1x", "t-partition-1x"),
        ("t-partition-\u0661", "t-partition-\u0661"),  # a digit, but not 0 to 9
        ("t-partition-1-DLQ", "t-partition-1-DLQ"),
        ("t-partition-1/u", "t-partition-1/u"),
        ("t-Partition-1", "t-Partition-1"),
        ("t-partition-1 ", "t-partition-1 "),
    ],
)
def test_partitions(topic: str, parent: str) -> None:
    assert without_partition(topic) == parent


def test_a_line_end_is_part_of_the_name() -> None:
    assert without_partition("t-partition-1\n") == "t-partition-1\n"


def test_long_names_are_cut() -> None:
    long = "t" * (MAX_NAME_LENGTH + 1)
    assert full_topic(long) == full_topic(long[:-1]) == f"persistent://public/default/{long[:-1]}"
    assert full_topic(b"\xff" + long.encode()) == "persistent://public/default/\\xff" + long[:-2]
