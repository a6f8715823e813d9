"""Topic and namespace names in all of Pulsar's spellings."""

import pytest

from pulsarctl_wire.wire.names import (
    check_namespace,
    check_topic,
    namespace_of,
    partition_index,
    partition_name,
    without_partition,
)

FULL = "persistent://public/default/orders"


@pytest.mark.parametrize(
    ("given", "full"),
    [
        ("orders", FULL),
        ("public/default/orders", FULL),
        (FULL, FULL),
        ("orders-partition-3", f"{FULL}-partition-3"),
        ("non-persistent://a/b/c", "non-persistent://a/b/c"),
        ("persistent://tenant/cluster/ns/old", "persistent://tenant/cluster/ns/old"),
    ],
)
def test_a_topic_is_read_as_pulsar_does(given: str, full: str) -> None:
    assert check_topic(given) == full


@pytest.mark.parametrize(
    "given", ["", "a/b", "foo://a/b/c", "persistent://a/b", "persistent://a//c", "x" * 3000]
)
def test_what_is_no_topic_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="is not a valid topic"):
        check_topic(given)


def test_partitions() -> None:
    assert partition_name(FULL, 2) == f"{FULL}-partition-2"
    assert [partition_index(each) for each in (FULL, f"{FULL}-partition-12", f"{FULL}-partition-01")] == [
        -1,
        12,
        -1,
    ]
    assert without_partition(f"{FULL}-partition-0") == FULL
    assert namespace_of(FULL) == "public/default"


def test_namespaces() -> None:
    assert check_namespace("acme/shop") == "acme/shop"
    for wrong in ("", "default", "a/", "persistent://a/b", "a/b/c/d"):
        with pytest.raises(ValueError, match="is not a valid namespace"):
            check_namespace(wrong)
