"""Hashes of keys, against vectors of Pulsar's own tests."""

import pytest

from pulsarctl_wire.wire.hashing import java_string_hash, murmur3_32


@pytest.mark.parametrize(
    ("key", "java"),
    [("keykeykeykeykey1", 434058482), ("keykeykey2", 42978643), ("my-key", 1086286526), ("é", 233), ("", 0)],
)
def test_java_string_hash(key: str, java: int) -> None:
    assert java_string_hash(key) == java


@pytest.mark.parametrize(
    ("key", "murmur3"),
    [("k1", 2110152746), ("k2", 1479966664), ("key1", 462881061), ("key01", 39696932), ("é", 269551495)],
)
def test_murmur3(key: str, murmur3: int) -> None:
    assert murmur3_32(key) == murmur3
