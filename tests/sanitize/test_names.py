"""Pseudonyms: as long as what they replace, different for different names, the same for the same."""

import ipaddress
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pulsarctl_wire.sanitize.names import Kind, Pseudonyms

PSEUDONYMS = Pseudonyms(b"secret")
SAME = Pseudonyms(b"secret")
PRIVATE = [*map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"))]
NAMES = st.from_regex(rb"[a-z]{0,8}[-_./]?[A-Za-z0-9]{1,10}", fullmatch=True)


@given(st.sampled_from(Kind), st.one_of(st.binary(max_size=80), st.text(max_size=40).map(str.encode)))
def test_sizes_separators_and_encodings_stay(kind: Kind, text: bytes) -> None:
    replacement = PSEUDONYMS.replace(kind, text)
    assert len(replacement) == len(text)
    assert replacement == SAME.replace(kind, text)
    for before, after in zip(text, replacement, strict=True):
        if before < 0x80 and not chr(before).isalnum():
            assert after == before
    assert _is_utf8(replacement) == _is_utf8(text)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def shape_of(name: bytes) -> bytes:
    """Return a name with one letter for all of a class."""
    return re.sub(rb"[A-Z]", b"A", re.sub(rb"[a-z]", b"a", re.sub(rb"[0-9]", b"0", name)))


@given(st.lists(NAMES, min_size=2, max_size=30, unique=True))
@example([b"1", b"w"])
def test_different_names_of_a_shape_stay_different(names: list[bytes]) -> None:
    """A digit and a letter may become the same: there are not enough consonants."""
    replaced = {(shape_of(name), PSEUDONYMS.replace(Kind.NAMES, name)) for name in names}
    assert len(replaced) == len(names)


@given(NAMES, st.binary(min_size=1, max_size=8))
def test_another_secret_gives_others(name: bytes, secret: bytes) -> None:
    other = Pseudonyms(b"another" + secret)
    long = name + b"abcdefgh12345678"
    assert other.replace(Kind.KEYS, long) != PSEUDONYMS.replace(Kind.KEYS, long)


@given(st.from_regex(rb"[A-Za-z]{4,20}|[0-9]{4,20}", fullmatch=True))
def test_long_runs_become_no_words(run: bytes) -> None:
    assert not re.search(rb"[aeiouAEIOU0-9]", PSEUDONYMS.replace(Kind.TOPICS, run))


@pytest.mark.parametrize(
    "text",
    [
        *(
            "persistent://public/default/",
            "non-persistent://",
            "-partition-12",
            "-DLQ",
            "-RETRY",
            "standalone-",
        ),
        *("public/default/__change_events", "pulsar/system/transaction_coordinator_assign-partition-3"),
        *("persistent://pulsar/system/__transaction_log_", "127.0.0.1"),
    ],
)
def test_what_means_something_stays(text: str) -> None:
    assert PSEUDONYMS.replace(Kind.TOPICS, text.encode()) == text.encode()


def test_names_stay_together() -> None:
    topic, subscription, both = (
        PSEUDONYMS.replace(Kind.TOPICS, name) for name in (b"orders", b"billing", b"orders-billing-DLQ")
    )
    assert both == topic + b"-" + subscription + b"-DLQ"
    error = PSEUDONYMS.replace(
        Kind.ERRORS,
        b"Producer with name 'billing' is already connected to topic 'persistent://public/default/orders-7'",
    )
    assert error == (
        b"Producer with name '%b' is already connected to topic 'persistent://public/default/%b-%b'"
        % (subscription, topic, PSEUDONYMS.replace(Kind.NAMES, b"7"))
    )


@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)))
@example(ipaddress.IPv6Address("b08a::"))
@example(ipaddress.IPv4Address("172.39.0.0"))
def test_addresses_in_packets_and_texts_agree(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    replacement = ipaddress.ip_address(PSEUDONYMS.addresses.replace(address.packed))
    if address.version == 4 or address.ipv4_mapped is None:  # Python prints those as hex digits
        assert len(str(replacement)) == len(str(address))
    if address.version == 4:
        assert [replacement in network for network in PRIVATE] == [address in network for network in PRIVATE]
        url = f"pulsar+ssl://{address}:6651".encode()
        assert PSEUDONYMS.replace(Kind.ADDRESSES, url) == f"pulsar+ssl://{replacement}:6651".encode()
    assert replacement.is_loopback == address.is_loopback
    assert replacement.is_link_local == address.is_link_local
    assert replacement.is_multicast == address.is_multicast


@given(st.lists(st.ip_addresses(v=4), min_size=2, unique=True))
def test_different_addresses_stay_different(addresses: list[ipaddress.IPv4Address]) -> None:
    assert len({PSEUDONYMS.addresses.replace(address.packed) for address in addresses}) == len(addresses)


def test_kinds_that_are_kept() -> None:
    pseudonyms = Pseudonyms(b"", frozenset({Kind.TOPICS, Kind.ADDRESSES}))
    assert pseudonyms.replace(Kind.TOPICS, b"orders") == b"orders"
    assert pseudonyms.replace(Kind.ADDRESSES, b"pulsar://broker:6650") == b"pulsar://broker:6650"
    assert pseudonyms.addresses.replace(b"\x0a\0\0\1") == b"\x0a\0\0\1"
    assert pseudonyms.replace(Kind.KEYS, b"orders") != b"orders"
