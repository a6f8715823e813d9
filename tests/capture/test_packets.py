"""Packets of every link layer and tunnel, whole or cut, built by scapy or by hand -> TCP segments."""

# scapy builds packets from whatever fields they have
# mypy: disable-error-code="arg-type, no-untyped-call"

from __future__ import annotations

import ipaddress
import logging
import random
import struct
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scapy.contrib.geneve import GENEVE
from scapy.contrib.mpls import MPLS
from scapy.layers.inet import ICMP, IP, TCP, UDP, IPOption_NOP, IPOption_Timestamp, fragment
from scapy.layers.inet6 import (
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
    IPv6ExtHdrHopByHop,
    IPv6ExtHdrRouting,
    fragment6,
)
from scapy.layers.l2 import ARP, GRE, CookedLinux, Dot1AD, Dot1Q, Ether
from scapy.layers.ppp import PPP, PPPoE
from scapy.layers.vxlan import VXLAN

from pulsarctl_wire.capture import packets
from pulsarctl_wire.capture.links import _FINDERS, _FIXED, RAW_IP
from pulsarctl_wire.capture.packets import CUT, FRAGMENTS, MAX_OFFLOADED, TOO_DEEP, Dissector, Segment

logging.getLogger("scapy").setLevel(logging.ERROR)

Packet = Any

ETHERNET, COOKED, COOKED2 = 1, 113, 276
NULL, LOOP, ENC = 0, 108, 109
UNKNOWN_VERSION = "unknown version of a tunnel"
PAYLOAD = b"\x00\x00\x00\x09\x00\x00\x00\x05\x08\x12\x92\x01\x00"
SEQUENCE, ACKNOWLEDGED, FLAGS = 0xFEDCBA98, 0x12345678, 0x18


def key(source: str, target: str, ports: tuple[int, int] = (50_000, 6650)) -> bytes:
    addresses = b"".join(ipaddress.ip_address(address).packed for address in (source, target))
    return addresses + struct.pack(">HH", *ports)


KEY4 = key("10.0.0.1", "10.0.0.2")
KEY6 = key("fd00::1", "fd00::2")


def whole(kind: bytes, payload: bytes = PAYLOAD) -> Segment:
    return kind, SEQUENCE, ACKNOWLEDGED, FLAGS, payload, 0


def ether(**fields: object) -> Packet:
    return Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02", **fields)


def cooked(**fields: object) -> Packet:
    return CookedLinux(lladdrlen=6, src=b"\x02\x00\x00\x00\x00\x01", **fields)


def cooked2(kind: int) -> bytes:
    return struct.pack(">HHIHBB8s", kind, 0, 2, 1, 4, 6, b"\x02\x00\x00\x00\x00\x01")


def ip(**fields: object) -> Packet:
    return IP(src="10.0.0.1", dst="10.0.0.2", **fields)


def ip6(**fields: object) -> Packet:
    return IPv6(src="fd00::1", dst="fd00::2", **fields)


def outer(**fields: object) -> Packet:
    return IP(src="192.168.0.1", dst="192.168.0.2", **fields)


def outer6() -> Packet:
    return IPv6(src="fd01::1", dst="fd01::2")


def tcp(payload: bytes = PAYLOAD, **fields: object) -> Packet:
    head = {"sport": 50_000, "dport": 6650, "seq": SEQUENCE, "ack": ACKNOWLEDGED, "flags": "PA", **fields}
    return TCP(**head) / payload if payload else TCP(**head)


def dissect(link: int, data: bytes, length: int | None = None) -> Segment | None:
    return Dissector().segment(link, data, len(data) if length is None else length)


# ---- link layers ----

IP4, IP6 = bytes(ip() / tcp()), bytes(ip6() / tcp())

SNAP = b"\xaa\xaa\x03\0\0\0\x08\x00"
"""Of LLC and SNAP, before IP."""

RADIOTAP = struct.pack("<BBHI", 0, 0, 8, 0)

LINKS: dict[str, tuple[int, bytes, bytes]] = {
    "Ethernet": (ETHERNET, bytes(ether() / ip() / tcp()), KEY4),
    "Ethernet, IPv6": (ETHERNET, bytes(ether() / ip6() / tcp()), KEY6),
    "VLAN": (ETHERNET, bytes(ether() / Dot1Q(vlan=7, prio=3) / ip() / tcp()), KEY4),
    "VLAN, IPv6": (ETHERNET, bytes(ether() / Dot1Q(vlan=7) / ip6() / tcp()), KEY6),
    "QinQ": (ETHERNET, bytes(ether() / Dot1AD(vlan=7) / Dot1Q(vlan=8) / ip() / tcp()), KEY4),
    "QinQ of old": (ETHERNET, bytes(ether(type=0x9100) / Dot1Q(vlan=7) / Dot1Q(vlan=8) / ip() / tcp()), KEY4),
    "three tags": (
        ETHERNET,
        bytes(ether() / Dot1AD(vlan=1) / Dot1AD(vlan=2) / Dot1Q(vlan=3) / ip() / tcp()),
        KEY4,
    ),
    "Linux cooked": (COOKED, bytes(cooked() / ip() / tcp()), KEY4),
    "Linux cooked, IPv6": (COOKED, bytes(cooked(proto=0x86DD) / ip6() / tcp()), KEY6),
    "Linux cooked, VLAN": (COOKED, bytes(cooked(proto=0x8100) / Dot1Q(vlan=7) / ip() / tcp()), KEY4),
    "Linux cooked v2": (COOKED2, cooked2(0x0800) + IP4, KEY4),
    "Linux cooked v2, IPv6": (COOKED2, cooked2(0x86DD) + IP6, KEY6),
    "Linux cooked v2, VLAN": (COOKED2, cooked2(0x8100) + b"\x00\x07\x08\x00" + IP4, KEY4),
    **{
        f"loopback, {order} family {family}": (NULL, struct.pack(order + "I", family) + data, kind)
        for order in "<>"
        for family, data, kind in [(2, IP4, KEY4), (10, IP6, KEY6), (24, IP6, KEY6), (30, IP6, KEY6)]
    },
    "OpenBSD loopback": (LOOP, struct.pack(">I", 2) + IP4, KEY4),
    "OpenBSD loopback, IPv6": (LOOP, struct.pack(">I", 24) + IP6, KEY6),
    **{f"raw {link}": (link, IP4, KEY4) for link in (12, 14, RAW_IP, 228)},
    **{f"raw {link}, IPv6": (link, IP6, KEY6) for link in (12, 14, RAW_IP, 229)},
    "OpenBSD loopback of old": (12, struct.pack(">I", 2) + IP4, KEY4),
    "802.3 with SNAP": (ETHERNET, bytes(ether(type=62)) + SNAP + IP4, KEY4),
    "Linux cooked, SNAP": (COOKED, bytes(cooked(proto=4)) + SNAP + IP4, KEY4),
    "VN tag": (ETHERNET, bytes(ether(type=0x8926)) + bytes(4) + b"\x08\x00" + IP4, KEY4),
    "802.1ah": (ETHERNET, bytes(ether(type=0x88E7)) + bytes(4) + bytes(ether(type=0x0800)) + IP4, KEY4),
    "802.1AE, not encrypted": (
        ETHERNET,
        bytes(ether(type=0x88E5)) + bytes(6) + b"\x08\x00" + IP4,
        KEY4,
    ),
    "NSH": (ETHERNET, bytes(ether(type=0x894F)) + bytes.fromhex("00020201") + bytes(4) + IP4, KEY4),
    **{f"PPP in {link}": (link, b"\xff\x03\x00\x21" + IP4, KEY4) for link in (9, 50)},
    **{f"PPP in {link}, IPv6": (link, b"\x00\x57" + IP6, KEY6) for link in (9, 50)},
    "PPP, compressed": (9, b"\x21" + IP4, KEY4),
    "PPP with direction": (204, b"\x01\xff\x03\x00\x21" + IP4, KEY4),
    "PPP of pppd": (166, b"\x01\x03\x00\x21" + IP4, KEY4),
    "PPP of MPLS": (9, b"\xff\x03\x02\x81" + bytes(MPLS(label=5, s=1)) + IP4, KEY4),
    **{f"HDLC of Cisco in {link}": (link, b"\x0f\x00\x08\x00" + IP4, KEY4) for link in (50, 104)},
    "PPPoE alone": (51, bytes(PPPoE(sessionid=1) / PPP()) + IP4, KEY4),
    "MPLS alone": (219, bytes(MPLS(label=5, s=1)) + IP4, KEY4),
    "FireWire": (138, bytes(16) + b"\x08\x00" + IP4, KEY4),
    "Solaris": (226, bytes(24) + IP4, KEY4),
    "pflog": (117, b"\x3d" + bytes(63) + IP4, KEY4),
    "Ethernet with preamble": (274, bytes(8) + bytes(ether(type=0x0800)) + IP4, KEY4),
    "netANALYZER": (240, bytes(4) + bytes(ether(type=0x0800)) + IP4, KEY4),
    **{
        f"NFLOG, {order}": (
            239,
            struct.pack(">BBH", 2, 0, 5)
            + struct.pack(f"{order}HH4xHH3sx", 8, 1, 7, 10, b"in\0")
            + struct.pack(f"{order}HH", 4 + len(data), 9)
            + data,
            kind,
        )
        for order in "<>"
        for data, kind in [(IP4, KEY4), (IP6, KEY6)]
    },
    **{
        f"PKTAP {link} of {inner}": (link, struct.pack("<III", 108, 1, inner) + bytes(96) + head + IP4, KEY4)
        for link in (149, 258)
        for inner, head in [(1, bytes(ether(type=0x0800))), (0, b"\2\0\0\0"), (12, b"")]
    },
    "PPI of Ethernet": (192, struct.pack("<BBHI", 0, 0, 8, 1) + bytes(ether(type=0x0800)) + IP4, KEY4),
    "802.11": (105, b"\x08\x01" + bytes(22) + SNAP + IP4, KEY4),
    "802.11 with QoS": (105, b"\x88\x02" + bytes(24) + SNAP + IP4, KEY4),
    "802.11 between access points": (105, b"\x08\x03" + bytes(28) + SNAP + IP4, KEY4),
    "radiotap": (127, RADIOTAP + b"\x88\x02" + bytes(24) + SNAP + IP4, KEY4),
    "radiotap with padding": (
        127,
        RADIOTAP + b"\x88\x02" + bytes(26) + SNAP + IP4,
        KEY4,
    ),
    "radiotap with aggregation": (
        127,
        RADIOTAP + b"\x88\x02" + bytes(22) + b"\x80\0" + bytes(ether(type=8 + len(IP4))) + SNAP + IP4,
        KEY4,
    ),
}


@pytest.mark.parametrize("name", LINKS)
def test_link_layers(name: str) -> None:
    link, data, kind = LINKS[name]
    assert dissect(link, data) == whole(kind)


def test_openbsd_enc() -> None:
    assert dissect(ENC, struct.pack(">III", 2, 0x1000, 0) + IP4) == whole(KEY4)


@pytest.mark.parametrize("name", LINKS)
def test_padding_is_no_payload(name: str) -> None:
    link, data, kind = LINKS[name]
    assert dissect(link, data + bytes(6)) == whole(kind)
    assert dissect(link, data + b"\xde\xad\xbe\xef", 4 + len(data)) == whole(kind)


def test_padding_of_a_short_packet_is_no_payload() -> None:
    data = bytes(ether() / ip() / tcp(b""))
    assert dissect(ETHERNET, data.ljust(60, b"\0")) == whole(KEY4, b"")


@pytest.mark.parametrize(
    "flags", [0x02, 0x12, 0x10, 0x11, 0x14, 0x18, 0xC2, 0xFF], ids=lambda flags: f"{flags:#04x}"
)
def test_flags(flags: int) -> None:
    found = dissect(RAW_IP, bytes(ip() / tcp(flags=flags)))
    assert found is not None
    assert found[3] == flags


def test_tcp_options() -> None:
    options = [("MSS", 1460), ("SAckOK", b""), ("Timestamp", (1, 2)), ("NOP", None), ("WScale", 7)]
    assert dissect(RAW_IP, bytes(ip() / tcp(options=options))) == whole(KEY4)
    assert dissect(RAW_IP, bytes(ip6() / tcp(options=options))) == whole(KEY6)


def test_ip_options() -> None:
    options = [IPOption_Timestamp(), IPOption_NOP()]
    packet = bytes(ip(options=options) / tcp())
    assert packet[0] > 0x45
    assert dissect(RAW_IP, packet) == whole(KEY4)
    assert dissect(ETHERNET, bytes(ether()) + b"\x08\x00" + packet) is None  # no such Ethernet type
    assert dissect(ETHERNET, bytes(ether(type=0x0800)) + packet) == whole(KEY4)


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param(IPv6ExtHdrHopByHop(), id="hop by hop"),
        pytest.param(IPv6ExtHdrRouting(addresses=["fd00::3", "fd00::4"]), id="routing"),
        pytest.param(IPv6ExtHdrDestOpt(), id="destination"),
        pytest.param(
            IPv6ExtHdrHopByHop() / IPv6ExtHdrDestOpt() / IPv6ExtHdrRouting(addresses=["fd00::3"])
            / IPv6ExtHdrDestOpt(),
            id="all of them",
        ),
        pytest.param(IPv6ExtHdrFragment(id=7), id="a fragment that is all"),
    ],
)  # fmt: skip
def test_ipv6_extension_headers(headers: Packet) -> None:
    assert dissect(RAW_IP, bytes(ip6() / headers.copy() / tcp())) == whole(KEY6)


def test_ipv6_authentication_header() -> None:
    segment = bytes(ip6() / tcp())[40:]
    header = struct.pack(">BBHII12s", 6, 4, 0, 1, 2, b"checksum")
    packet = bytes(ip6(nh=51, plen=len(header) + len(segment))) + header + segment
    assert dissect(RAW_IP, packet) == whole(KEY6)


# ---- lengths ----


@pytest.mark.parametrize("name", LINKS)
def test_cut_by_every_snap_length(name: str) -> None:
    link, data, kind = LINKS[name]
    payload_at = len(data) - len(PAYLOAD)
    needed = payload_at - 6  # the window, the checksum and the urgent pointer are not
    for cut in range(len(data) + 1):
        dissector = Dissector()
        found = dissector.segment(link, data[:cut], len(data))
        if cut < needed:
            assert found is None
            assert sum(dissector.skipped.values()) == 1
        else:
            payload = data[payload_at:cut]
            missing = len(PAYLOAD) - len(payload)
            assert found == (kind, SEQUENCE, ACKNOWLEDGED, FLAGS, payload, missing)
            assert not dissector.skipped


def test_cut_inside_tcp_options() -> None:
    data = bytes(ip() / tcp(options=[("Timestamp", (1, 2))]))
    payload_at = len(data) - len(PAYLOAD)
    for cut in range(payload_at - 16, payload_at + 1):
        assert dissect(RAW_IP, data[:cut], len(data)) == (*whole(KEY4)[:4], b"", len(PAYLOAD))


@pytest.mark.parametrize("name", [name for name, (_, _, kind) in LINKS.items() if kind == KEY4])
def test_offloaded_packet_has_ip_length_0(name: str) -> None:
    link, data, kind = LINKS[name]
    at = data.index(IP4)
    payload = PAYLOAD * 6000  # more than the length field could say
    offloaded = data[: at + 2] + b"\0\0" + data[at + 4 : -len(PAYLOAD)] + payload
    assert dissect(link, offloaded) == whole(kind, payload)
    found = dissect(link, offloaded[:-1000], len(offloaded))
    assert found == (*whole(kind)[:4], payload[:-1000], 1000)


@pytest.mark.parametrize("jumbo", [False, True])
def test_offloaded_ipv6_packet_has_length_0(jumbo: bool) -> None:
    payload = PAYLOAD * 6000
    segment = bytes(ip6() / tcp())[40 : -len(PAYLOAD)] + payload
    option = b"\x06\x00\xc2\x04" + struct.pack(">I", 8 + len(segment)) if jumbo else b""
    packet = bytes(ip6(plen=0, nh=0 if jumbo else 6)) + option + segment
    assert dissect(RAW_IP, packet) == whole(KEY6, payload)
    found = dissect(RAW_IP, packet[:-1000], len(packet))
    assert found == (*whole(KEY6)[:4], payload[:-1000], 1000)


@pytest.mark.parametrize(("size", "taken"), [(MAX_OFFLOADED, True), (MAX_OFFLOADED + 1, False)])
def test_no_offloaded_packet_is_this_large(size: int, taken: bool) -> None:
    dissector = Dissector()
    for version, packet in ((KEY4, ip(len=0)), (KEY6, ip6(plen=0))):
        head = bytes(packet / tcp(b""))
        if version == KEY4:
            head = head[:2] + bytes(2) + head[4:]
        found = dissector.segment(RAW_IP, head + bytes(size), len(head) + size)
        assert found == (whole(version, bytes(size)) if taken else None)
    assert dissector.skipped == ({} if taken else {"invalid headers": 2})


@pytest.mark.parametrize("size", [1, 19, 20, 39])
def test_ip_length_that_leaves_no_room_for_tcp(size: int) -> None:
    assert dissect(RAW_IP, bytes(ip(len=size) / tcp())) is None


@pytest.mark.parametrize("words", range(5))
def test_headers_too_short(words: int) -> None:
    assert dissect(RAW_IP, bytes(ip() / tcp(dataofs=words))) is None
    assert dissect(RAW_IP, bytes([0x40 + words]) + IP4[1:]) is None


# ---- fragments ----

LONG = bytes(range(256)) * 12


def fragments4(size: int = 512, number: int = 77, payload: bytes = LONG) -> list[bytes]:
    packet = IP(bytes(ip(id=number) / tcp(payload)))
    return [bytes(ether(type=0x0800) / part) for part in fragment(packet, size)]


def fragments6(size: int = 640, number: int = 77, payload: bytes = LONG) -> list[bytes]:
    packet = ip6() / IPv6ExtHdrFragment(id=number) / tcp(payload)
    return [bytes(ether(type=0x86DD) / part) for part in fragment6(packet, size)]


def take(dissector: Dissector, parts: list[bytes]) -> list[Segment | None]:
    return [dissector.segment(ETHERNET, part, len(part)) for part in parts]


@pytest.mark.parametrize(("parts", "kind"), [(fragments4(), KEY4), (fragments6(), KEY6)])
@given(rng=st.randoms(use_true_random=False), duplicates=st.integers(0, 5))
@example(rng=random.Random(0), duplicates=0)
@settings(max_examples=60)
def test_fragments_in_any_order(parts: list[bytes], kind: bytes, rng: random.Random, duplicates: int) -> None:
    assert len(parts) > 4
    order = parts + [rng.choice(parts) for _ in range(duplicates)]
    rng.shuffle(order)
    last = max(order.index(part) for part in parts)  # completes it
    found = take(Dissector(), order)
    assert found[:last] == [None] * last
    assert found[last] == whole(kind, LONG)
    assert all(again in (None, whole(kind, LONG)) for again in found[last + 1 :])


def test_fragments_in_order_and_backwards() -> None:
    for make, kind in ((fragments4, KEY4), (fragments6, KEY6)):
        for parts in (make(), make()[::-1]):
            assert take(Dissector(), parts) == [None] * (len(parts) - 1) + [whole(kind, LONG)]


@pytest.mark.parametrize("make", [fragments4, fragments6])
def test_datagrams_do_not_mix(make: Any) -> None:
    one, two = make(number=1), make(number=2, payload=LONG[::-1])
    mixed = [part for pair in zip(one, two, strict=True) for part in pair]
    found = [segment for segment in take(Dissector(), mixed) if segment is not None]
    assert [segment[4] for segment in found] == [LONG, LONG[::-1]]


def test_fragments_of_other_addresses_do_not_mix() -> None:
    one = [bytes(IP(src="10.0.0.1", dst="10.0.0.2", id=5, flags="MF") / tcp()[TCP])[:36]]
    other = bytes(IP(src="10.0.0.3", dst="10.0.0.2", id=5, frag=2, proto=6) / PAYLOAD)
    dissector = Dissector()
    assert dissector.segment(RAW_IP, one[0], len(one[0])) is None
    assert dissector.segment(RAW_IP, other, len(other)) is None


def test_overlapping_fragments() -> None:
    segment = bytes(ip() / tcp(LONG))[20:]
    wide = [(0, 800), (400, 1200), (1200, 2000), (800, len(segment)), (0, 80)]
    parts = [
        bytes(
            ip(id=9, proto=6, frag=start // 8, flags="MF" if stop < len(segment) else 0) / segment[start:stop]
        )
        for start, stop in wide
    ]
    dissector = Dissector()
    found = [dissector.segment(RAW_IP, part, len(part)) for part in parts]
    assert found == [None, None, None, whole(KEY4, LONG), None]


def test_fragment_without_the_rest_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packets, "MAX_DATAGRAMS", 4)
    dissector = Dissector()
    parts = {number: fragments4(number=number) for number in range(10)}
    for number in range(10):
        take(dissector, parts[number][:-1])
    completed = [dissector.segment(ETHERNET, parts[n][-1], 9999) is not None for n in (9, 8, 7, 6)]
    assert completed == [True] * 4
    take(dissector, parts[0][-1:])
    assert all(segment is None for segment in take(dissector, parts[0][1:-1]))


def test_fragments_of_a_datagram_take_64_kib_at_most() -> None:
    head = bytes(ip(id=9, proto=6))
    body = bytes(60_000)
    dissector = Dissector()
    tracemalloc.start()
    try:
        for offset in range(1, 200):
            part = head[:2] + struct.pack(">HHH", 60_020, 9, 0x2000 | offset) + head[8:] + body
            assert dissector.segment(RAW_IP, part, len(part)) is None
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1_000_000


def test_fragments_take_time_in_proportion_to_their_number() -> None:
    """Of a datagram that never ends; the last fragment and all but one of the others are there."""
    dissector = Dissector()
    start = time.process_time()
    for _ in range(3):
        for offset in range(8190, 0, -1):
            more = 0x2000 if offset < 8190 else 0
            head = struct.pack(">BBHHHBBH", 0x45, 0, 28, 1, more | offset, 64, 6, 0) + bytes(8)
            assert dissector.segment(RAW_IP, head + bytes(8), 28) is None
    assert dissector.skipped == {FRAGMENTS: 3 * 8190}
    assert time.process_time() - start < 3


def test_fragments_cut_by_the_snap_length_give_no_wrong_bytes() -> None:
    for make, kind in ((fragments4, KEY4), (fragments6, KEY6)):
        parts = make()
        for cut in range(0, 700, 50):
            dissector = Dissector()
            for part in parts:
                found = dissector.segment(ETHERNET, part[:cut], len(part))
                assert found is None or (found[0] == kind and LONG.startswith(found[4]))


# ---- tunnels ----


def vxlan(port: int = 4789) -> Packet:
    return UDP(sport=40_000, dport=port) / VXLAN(vni=5)


def in_gre(header: str) -> Packet:
    return ether() / outer(proto=47) / bytes.fromhex(header)


def in_udp(port: int, header: str = "") -> Packet:
    return ether() / outer() / UDP(sport=1, dport=port) / bytes.fromhex(header)


def inner() -> Packet:
    return ip() / tcp()


TUNNELS: dict[str, tuple[int, Packet, bytes]] = {
    "VXLAN": (ETHERNET, ether() / outer() / vxlan() / ether() / ip() / tcp(), KEY4),
    "VXLAN as Linux had it": (ETHERNET, ether() / outer() / vxlan(8472) / ether() / ip() / tcp(), KEY4),
    "VXLAN over IPv6": (ETHERNET, ether() / outer6() / vxlan() / ether() / ip6() / tcp(), KEY6),
    "VXLAN with VLANs": (
        ETHERNET,
        ether() / Dot1Q(vlan=1) / outer() / vxlan() / ether() / Dot1Q(vlan=2) / ip() / tcp(),
        KEY4,
    ),
    "VXLAN in Linux cooked": (COOKED, cooked() / outer() / vxlan() / ether() / ip() / tcp(), KEY4),
    "VXLAN of IPv6 with extensions": (
        ETHERNET,
        ether() / outer() / vxlan() / ether() / ip6() / IPv6ExtHdrDestOpt() / tcp(),
        KEY6,
    ),
    "Geneve": (
        ETHERNET,
        ether() / outer() / UDP(sport=40_000, dport=6081) / GENEVE(proto=0x6558) / ether() / ip() / tcp(),
        KEY4,
    ),
    "GRE with IP": (ETHERNET, ether() / outer() / GRE() / ip() / tcp(), KEY4),
    "GRE with IPv6": (ETHERNET, ether() / outer() / GRE(proto=0x86DD) / ip6() / tcp(), KEY6),
    "GRE with Ethernet": (ETHERNET, ether() / outer() / GRE(proto=0x6558) / ether() / ip() / tcp(), KEY4),
    "GRE with QinQ": (
        ETHERNET,
        ether() / outer() / GRE(proto=0x6558) / ether() / Dot1AD(vlan=1) / Dot1Q(vlan=2) / ip() / tcp(),
        KEY4,
    ),
    "GRE with key and sequence number": (
        ETHERNET,
        ether() / outer() / GRE(key_present=1, key=7, seqnum_present=1, sequence_number=4) / ip() / tcp(),
        KEY4,
    ),
    "GRE with checksum": (ETHERNET, ether() / outer() / GRE(chksum_present=1) / ip() / tcp(), KEY4),
    "MPLS of Ethernet": (
        ETHERNET,
        ether() / MPLS(label=5, s=1) / b"\0\0\0\0" / ether() / ip() / tcp(),
        KEY4,
    ),
    "Geneve with options": (
        ETHERNET,
        ether()
        / outer()
        / UDP(sport=1, dport=6081)
        / bytes.fromhex("0200080000000500")
        / bytes(8)
        / ip()
        / tcp(),
        KEY4,
    ),
    "GRE over IPv6": (ETHERNET, ether() / outer6() / GRE() / ip() / tcp(), KEY4),
    "IP in IP": (ETHERNET, ether() / outer() / ip() / tcp(), KEY4),
    "IP in raw IP": (RAW_IP, outer() / ip() / tcp(), KEY4),
    "IP in IP in VXLAN": (ETHERNET, ether() / outer() / vxlan() / ether() / outer() / ip() / tcp(), KEY4),
    "6in4": (ETHERNET, ether() / outer() / ip6() / tcp(), KEY6),
    "4in6": (ETHERNET, ether() / outer6() / ip() / tcp(), KEY4),
    "6in6": (ETHERNET, ether() / outer6() / ip6() / tcp(), KEY6),
    "4in6 behind options": (ETHERNET, ether() / outer6() / IPv6ExtHdrDestOpt() / ip() / tcp(), KEY4),
    "MPLS": (ETHERNET, ether() / MPLS(label=5, s=1) / ip() / tcp(), KEY4),
    "MPLS of two labels": (ETHERNET, ether() / MPLS(label=5, s=0) / MPLS(label=6, s=1) / ip6() / tcp(), KEY6),
    "MPLS in a VLAN": (ETHERNET, ether() / Dot1Q(vlan=7) / MPLS(label=5, s=1) / ip() / tcp(), KEY4),
    "PPPoE": (ETHERNET, ether() / PPPoE(sessionid=1) / PPP() / ip() / tcp(), KEY4),
    "PPPoE of IPv6": (ETHERNET, ether() / PPPoE(sessionid=1) / PPP(proto=0x57) / ip6() / tcp(), KEY6),
    "PPPoE, compressed": (ETHERNET, ether(type=0x8864) / bytes(6) / b"\x21" / inner(), KEY4),
    **{
        f"ERSPAN {name}": (
            ETHERNET,
            in_gre(head) / ether() / inner(),
            KEY4,
        )
        for name, head in {
            "I": "000088be",
            "I with key": "200088be 00000007",
            "II": "100088be 00000001 1064000a 00000001",
            "III": "100022eb 00000001 20640000 00000000 00000000",
            "III without sequence number": "000022eb 20640000 00000000 00000000",
            "III with platform": "100022eb 00000001 20640000 00000000 00000001 0000000000000000",
            "III as II": "100088be 00000001 20640000 00000000 00000000",
        }.items()
    },
    "ERSPAN III of IP": (
        ETHERNET,
        ether()
        / outer(proto=47)
        / bytes.fromhex("100022eb 00000001 20640000 00000000 00000800")
        / ip()
        / tcp(),
        KEY4,
    ),
    "ERSPAN II in VLANs": (
        ETHERNET,
        ether()
        / Dot1Q(vlan=1)
        / outer(proto=47)
        / bytes.fromhex("100088be 00000001 1064000a 00000001")
        / ether()
        / Dot1AD(vlan=2)
        / Dot1Q(vlan=3)
        / ip6()
        / tcp(),
        KEY6,
    ),
    **{
        f"VXLAN-GPE of {name}": (
            ETHERNET,
            in_udp(4790, head) / packet,
            kind,
        )
        for name, head, packet, kind in [
            ("IP", "0c000001 00000500", inner(), KEY4),
            ("IPv6", "0c000002 00000500", ip6() / tcp(), KEY6),
            ("Ethernet", "0c000003 00000500", ether() / inner(), KEY4),
            ("NSH", "0c000004 00000500 00020203 00000000", ether() / inner(), KEY4),
            ("MPLS", "0c000005 00000500", MPLS(label=5, s=1) / inner(), KEY4),
            ("what is not said", "08000000 00000500", ether() / inner(), KEY4),
        ]
    },
    "VXLAN with a group": (
        ETHERNET,
        in_udp(4789, "88000001 00000500") / ether() / inner(),
        KEY4,
    ),
    "GRE with a route": (
        ETHERNET,
        ether()
        / outer(proto=47)
        / bytes.fromhex("40000800 00000000 08000404 0a000009 00000000")
        / ip()
        / tcp(),
        KEY4,
    ),
    "GRE of MPLS": (
        ETHERNET,
        ether() / outer() / GRE(proto=0x8847) / MPLS(label=5, s=1) / inner(),
        KEY4,
    ),
    "GRE of WCCP": (ETHERNET, ether() / outer() / GRE(proto=0x883E) / bytes(4) / inner(), KEY4),
    "PPTP": (
        ETHERNET,
        ether()
        / outer(proto=47)
        / bytes.fromhex("3081880b 00000007 00000001 00000001 ff030021")
        / ip()
        / tcp(),
        KEY4,
    ),
    "MPLS in UDP": (ETHERNET, in_udp(6635) / MPLS(label=5, s=1) / inner(), KEY4),
    "MPLS in IP": (ETHERNET, ether() / outer(proto=137) / MPLS(label=5, s=1) / inner(), KEY4),
    "GRE in UDP": (ETHERNET, in_udp(4754) / GRE() / inner(), KEY4),
    "EtherIP": (ETHERNET, ether() / outer(proto=97) / b"\x30\0" / ether() / inner(), KEY4),
    "LISP": (ETHERNET, in_udp(4341) / bytes(8) / inner(), KEY4),
    "AH": (ETHERNET, ether() / ip(proto=51) / struct.pack(">BBHII12s", 6, 4, 0, 1, 2, b"") / tcp(), KEY4),
    "GTP-U": (
        ETHERNET,
        in_udp(2152, "30ff0000 00000001") / inner(),
        KEY4,
    ),
    "GTP-U of 5G": (
        ETHERNET,
        in_udp(2152, "34ff0000 00000001 00000085 01000900") / ip() / tcp(),
        KEY4,
    ),
    "L2TP": (
        ETHERNET,
        in_udp(1701, "0002 0001 0002 ff03 0021") / inner(),
        KEY4,
    ),
    "L2TP with everything": (
        ETHERNET,
        in_udp(1701, "4a02 0064 0001 0002 0001 0001 0002 0000 0021") / ip() / tcp(),
        KEY4,
    ),
    "TZSP": (
        ETHERNET,
        in_udp(37008, "01000001 00 0a01ff 01") / ether() / ip() / tcp(),
        KEY4,
    ),
    "TZSP of 802.11": (
        ETHERNET,
        in_udp(37008, "01000012 01 0801") / bytes(22) / SNAP / ip() / tcp(),
        KEY4,
    ),
}


@pytest.mark.parametrize(("depth", "taken"), [(packets._DEEPEST, True), (packets._DEEPEST + 1, False)])
def test_ip_packets_in_one_another(depth: int, taken: bool) -> None:
    packet = ip() / tcp()
    for _ in range(depth):
        packet = outer() / packet
    assert dissect(RAW_IP, bytes(packet)) == (whole(KEY4) if taken else None)


@pytest.mark.parametrize("name", TUNNELS)
def test_tunnels(name: str) -> None:
    link, packet, kind = TUNNELS[name]
    assert dissect(link, bytes(packet)) == whole(kind)


@pytest.mark.parametrize("name", TUNNELS)
def test_tunnels_cut_by_every_snap_length(name: str) -> None:
    link, packet, kind = TUNNELS[name]
    data = bytes(packet)
    for cut in range(len(data) % 13, len(data), 13):
        found = dissect(link, data[:cut], len(data))
        if found is not None:
            assert found[:4] == whole(kind)[:4]
            assert PAYLOAD.startswith(found[4])
            assert len(found[4]) + found[5] == len(PAYLOAD)
    found = dissect(link, data[:-5], len(data))
    assert found == (*whole(kind)[:4], PAYLOAD[:-5], 5)


def test_fragments_inside_a_tunnel() -> None:
    inner = fragment(IP(bytes(ip(id=77) / tcp(LONG))), 512)
    found = take(
        Dissector(), [bytes(ether() / outer() / vxlan() / ether(type=0x0800) / part) for part in inner]
    )
    assert found == [None] * (len(inner) - 1) + [whole(KEY4, LONG)]


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param(
            [
                bytes(ether(type=0x0800) / part)
                for part in fragment(IP(bytes(outer(id=3) / vxlan() / ether() / ip() / tcp(LONG))), 1480)
            ],
            id="IPv4",
        ),
        pytest.param(
            [
                bytes(ether(type=0x86DD) / part)
                for part in fragment6(
                    outer6() / IPv6ExtHdrFragment(id=3) / vxlan() / ether() / ip() / tcp(LONG), 1480
                )
            ],
            id="IPv6",
        ),
        pytest.param(
            [
                bytes(ether(type=0x0800) / part)
                for part in fragment(IP(bytes(outer(id=3) / GRE() / ip() / tcp(LONG))), 1480)
            ],
            id="GRE",
        ),
    ],
)
def test_fragments_of_a_tunnel(parts: list[bytes]) -> None:
    found = take(Dissector(), parts)
    assert found == [None] * (len(parts) - 1) + [whole(KEY4, LONG)]


def test_ipv6_extensions_inside_fragments() -> None:
    packet = ip6() / IPv6ExtHdrFragment(id=3) / IPv6ExtHdrDestOpt() / tcp(LONG)
    parts = [bytes(ether(type=0x86DD) / part) for part in fragment6(packet, 640)]
    assert take(Dissector(), parts) == [None] * (len(parts) - 1) + [whole(KEY6, LONG)]


# ---- what is no TCP ----


def of_udp(port: int, payload: str) -> bytes:
    return bytes(
        ether() / outer() / UDP(sport=1, dport=port) / bytes.fromhex(payload) / ether() / ip() / tcp()
    )


SKIPPED: dict[str, tuple[int, bytes, str]] = {
    "nothing": (ETHERNET, b"", CUT),
    "ARP": (ETHERNET, bytes(ether() / ARP(hwsrc="02:00:00:00:00:01", psrc="10.0.0.1")), "not IP"),
    "LLC": (ETHERNET, bytes(ether(type=38)) + bytes(46), "not IP"),
    "PPPoE without IP": (ETHERNET, bytes(ether(type=0x8864)) + bytes(6) + b"\xc0\x21" + IP4, "not IP"),
    "UDP": (ETHERNET, bytes(ether() / ip() / UDP(sport=6650, dport=6650) / PAYLOAD), "UDP"),
    "UDP over IPv6": (ETHERNET, bytes(ether() / ip6() / UDP(sport=6650, dport=6650) / PAYLOAD), "UDP"),
    "ICMP that quotes TCP": (ETHERNET, bytes(ether() / ip() / ICMP() / ip() / tcp()), "ICMP"),
    "ICMPv6": (ETHERNET, bytes(ether() / ip6(nh=58) / PAYLOAD), "ICMPv6"),
    "IP protocol 103": (ETHERNET, bytes(ether() / ip(proto=103) / PAYLOAD), "IP protocol 103"),
    "IP of version 1": (ETHERNET, bytes(ether(type=0x0800)) + b"\x15" + IP4[1:], "not IP"),
    "IP header of 16 bytes": (ETHERNET, bytes(ether(type=0x0800)) + b"\x44" + IP4[1:], "invalid headers"),
    "UDP in VXLAN": (ETHERNET, bytes(ether() / outer() / vxlan() / ether() / ip() / UDP() / PAYLOAD), "UDP"),
    "VXLAN of nothing": (ETHERNET, bytes(ether() / outer() / vxlan()), CUT),
    "IPv6 of nothing": (ETHERNET, bytes(ether() / outer6() / IPv6ExtHdrHopByHop(nh=59)), "IP protocol 59"),
    "fragment": (ETHERNET, bytes(ether() / ip(flags="MF") / tcp()), FRAGMENTS),
    "ESP": (ETHERNET, bytes(ether() / ip(proto=50) / PAYLOAD), "encrypted"),
    "ESP over IPv6": (ETHERNET, bytes(ether() / ip6(nh=50) / PAYLOAD), "encrypted"),
    "ESP in UDP": (ETHERNET, of_udp(4500, "00000007"), "encrypted"),
    "IKE in UDP": (ETHERNET, of_udp(4500, "00000000"), "UDP"),
    "802.1AE": (ETHERNET, bytes(ether(type=0x88E5)) + b"\x0c" + bytes(60), "encrypted"),
    "802.11, encrypted": (105, b"\x08\x41" + bytes(80), "encrypted"),
    "802.11 beacon": (105, b"\x80\0" + bytes(80), "not IP"),
    "PPP, encrypted": (9, b"\xff\x03\x00\x53" + bytes(80), "encrypted"),
    "GRE of version 3": (ETHERNET, bytes(ether() / outer(proto=47)) + b"\0\3\x08\0" + IP4, UNKNOWN_VERSION),
    "ERSPAN of version 5": (
        ETHERNET,
        bytes(in_gre("100088be 00000001 50000000")) + IP4,
        UNKNOWN_VERSION,
    ),
    "Geneve of version 1": (ETHERNET, of_udp(6081, "4000655800000500"), UNKNOWN_VERSION),
    "VXLAN-GPE of version 1": (ETHERNET, of_udp(4790, "1c00000300000500"), UNKNOWN_VERSION),
    "VXLAN-GPE of something": (ETHERNET, of_udp(4790, "0c00000900000500"), "not IP"),
    "GTP of version 2": (ETHERNET, of_udp(2152, "50ff000000000001"), UNKNOWN_VERSION),
    "GTP-U echo": (ETHERNET, of_udp(2152, "3001000000000001"), "UDP"),
    "GTP-U with an empty extension": (
        ETHERNET,
        of_udp(2152, "34ff00000000000100000085 00"),
        "invalid headers",
    ),
    "L2TP of version 3": (ETHERNET, of_udp(1701, "0003000100020021"), UNKNOWN_VERSION),
    "L2TP control": (ETHERNET, of_udp(1701, "c802000100020021"), "UDP"),
    "TZSP of version 2": (ETHERNET, of_udp(37008, "0200000101"), UNKNOWN_VERSION),
    "NFLOG without payload": (239, struct.pack("<BBHHH4x", 2, 0, 5, 8, 1), CUT),
    "NFLOG with an empty attribute": (239, struct.pack("<BBHHH4xHH", 2, 0, 5, 8, 1, 0, 2), "invalid headers"),
    "PKTAP of PKTAP": (258, struct.pack("<III", 108, 1, 258) + bytes(500), "link type 258"),
    "PKTAP of another version": (258, struct.pack("<III", 108, 2, 1) + bytes(500), "not IP"),
    "link type 147": (147, bytes(ether() / ip() / tcp()), "link type 147"),
    "link type 65535": (65_535, IP4, "other link types"),
}


@pytest.mark.parametrize("name", SKIPPED)
def test_packets_without_tcp_are_skipped(name: str) -> None:
    link, data, reason = SKIPPED[name]
    dissector = Dissector()
    assert dissector.segment(link, data, len(data)) is None
    assert dissector.skipped == {reason: 1}


@pytest.mark.parametrize(
    ("number", "link", "data"),
    [
        pytest.param(100, RAW_IP, bytes(outer(proto=4)), id="IP in IP"),
        pytest.param(100, RAW_IP, bytes(outer() / vxlan() / ether(type=0x0800)), id="VXLAN"),
        pytest.param(100, RAW_IP, bytes(outer(proto=47)) + b"\0\0\x08\0", id="GRE"),
        pytest.param(5000, 219, b"\0\0\1\0" + bytes(4) + bytes(ether(type=0x8847)), id="MPLS of Ethernet"),
        pytest.param(5000, 0, bytes(4), id="loopback"),
    ],
)
def test_tunnels_in_one_another_without_end(number: int, link: int, data: bytes) -> None:
    dissector = Dissector()
    nested = data * number
    assert dissector.segment(link, nested, len(nested)) is None
    assert dissector.skipped == {"not IP" if link == 0 else TOO_DEEP: 1}


@pytest.mark.parametrize("parts", [fragments4(), fragments6()])
def test_fragments_of_a_complete_datagram_are_not_skipped(parts: list[bytes]) -> None:
    dissector = Dissector()
    take(dissector, parts[:-1])
    assert dissector.skipped == {FRAGMENTS: len(parts) - 1}
    again = Dissector(dissector.waiting)
    assert take(again, parts[-1:]) != [None]
    assert dissector.skipped[FRAGMENTS] + again.skipped[FRAGMENTS] == 0


def test_fragments_of_udp_are_udp() -> None:
    packet = IP(bytes(ip(id=77) / UDP(sport=1, dport=2) / LONG))
    dissector = Dissector()
    parts = [bytes(part) for part in fragment(packet, 512)]
    for part in parts:
        assert dissector.segment(RAW_IP, part, len(part)) is None
    assert {name: count for name, count in dissector.skipped.items() if count} == {"UDP": len(parts)}


links = st.sampled_from([*_FIXED, *_FINDERS, 1, 113, 252, 276, 65_535])
heads = st.sampled_from(
    [
        b"",
        bytes(ether(type=0x0800)),
        bytes(ether(type=0x86DD)),
        bytes(ether(type=0x8847)),
        bytes(ether(type=0x8864)),
        bytes(ether() / Dot1Q(type=0x0800)),
        bytes(ether() / outer(proto=6)),
        bytes(ether() / outer(proto=47)),
        bytes(ether() / outer(proto=6, flags="MF")),
        bytes(ether() / outer(proto=6, frag=3)),
        bytes(ether() / outer() / vxlan()),
        *(bytes(ether() / IPv6(src="fd01::1", dst="fd01::2", nh=nh)) for nh in (0, 6, 43, 44, 47, 51, 60)),
    ]
)


@given(link=links, head=heads, rest=st.binary(max_size=120), more=st.integers(0, 2000))
@settings(max_examples=100)
def test_random_bytes_raise_nothing(link: int, head: bytes, rest: bytes, more: int) -> None:
    data = head + rest
    dissector = Dissector()
    found = dissector.segment(link, data, len(data) + more)
    if found is None:
        assert sum(dissector.skipped.values()) == 1
    else:
        kind, sequence, acknowledged, flags, payload, missing = found
        assert len(kind) in (12, 36)
        assert max(sequence, acknowledged) < 2**32
        assert flags < 256
        assert payload in data
        assert missing >= 0


MUTATED = {name: (link, bytes(packet)) for name, (link, packet, _) in (TUNNELS | LINKS).items()}


@given(
    name=st.sampled_from(sorted(MUTATED)),
    changes=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=6),
)
@settings(max_examples=250, deadline=None)
def test_mutated_packets_raise_nothing(name: str, changes: list[tuple[int, int]]) -> None:
    link, packet = MUTATED[name]
    data = bytearray(packet)
    for at, byte in changes:
        data[at % len(data)] = byte
    dissector = Dissector()
    found = dissector.segment(link, bytes(data), len(data))
    assert (found is None) == (sum(dissector.skipped.values()) == 1)
    assert found is None or found[4] in bytes(data)


def test_random_fragments_raise_nothing() -> None:
    rng = random.Random(1)
    dissector = Dissector()
    head = bytes(ip(proto=6))
    for _ in range(3000):
        word = rng.choice((0, 0x2000)) | rng.randrange(6)
        body = rng.randbytes(rng.randrange(60))
        middle = struct.pack(">HHH", 20 + len(body), rng.randrange(3), word)
        data = head[:2] + middle + head[8:] + body
        found = dissector.segment(RAW_IP, data, len(data))
        assert found is None or len(found[4]) < 200
    assert dissector.skipped[FRAGMENTS] <= 3000


def test_packets_in_packets_without_end() -> None:
    headers = b"".join(b"\x2c\0\0\0" + number.to_bytes(4, "big") for number in range(4000))
    nested = bytes(IPv6(nh=44, plen=len(headers)))[:40] + headers  # fragments that are whole
    assert dissect(RAW_IP, nested) is None
    tunnels = b"".join(bytes(IP(proto=4, len=20 * left)) for left in range(3000, 0, -1))
    assert dissect(RAW_IP, tunnels) is None


@pytest.mark.parametrize("size", [1_452, 1_453, 1_460])
def test_full_size_packets_in_aggregated_wifi_frames(size: int) -> None:
    packet: Packet = IP(dst="10.0.0.2")
    packet = packet / TCP(dport=6650) / bytes(size)
    llc = b"\xaa\xaa\x03\0\0\0\x08\x00" + bytes(packet)
    data = b"\x88\x01" + bytes(22) + b"\x80\0" + bytes(12) + len(llc).to_bytes(2, "big") + llc
    dissector = Dissector()
    segment = dissector.segment(105, data, len(data))
    assert segment is not None
    assert (len(segment[4]), dissector.skipped) == (size, {})
