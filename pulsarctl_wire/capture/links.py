"""Finds what follows the headers of link layers, by EtherType. Tunnels carry the same headers.

Sources: IEEE 802.1Q, 802.1AE, 802.1ah, 802.2, 802.11, the LINKTYPE_ registry, RFC 1661 (PPP), 2516 (PPPoE),
3032, 4385 (MPLS), 8300 (NSH).
"""

from collections.abc import Callable
from typing import Final

from pulsarctl_wire.wire.fixed import little_u32_at, u16_at, u32_at

Header = tuple[int, int]
"""What comes next in a packet, as an EtherType or one of the kinds below, and where it begins."""

IP: Final = 0x0800
IP_TYPES: Final = {IP, 0x86DD}
"""EtherTypes of IP packets, whose first byte shows their version."""
MPLS: Final = 0x8847
PPP: Final = 0x880B
BRIDGED: Final = 0x6558
"""The EtherType of Ethernet frames inside others."""
NSH: Final = 0x894F
WIFI: Final = 0x10000
"""A frame of IEEE 802.11, which has no EtherType."""

NO_TUNNEL: Final = -1
NOT_IP: Final = -2
ENCRYPTED: Final = -3
UNKNOWN_LINK: Final = -4
UNKNOWN_VERSION: Final = -5
INVALID: Final = -6
"""Kinds of what cannot be followed any further."""

ETHERNET: Final = 1
RAW_IP: Final = 101
EXPORTED: Final = 252
"""The link type of PDUs that Wireshark exports."""

_TYPED: Final = {ETHERNET: (12, 14), 113: (14, 16), 276: (0, 20), 138: (16, 18)}
"""Link type (Ethernet, Linux cooked v1 and v2, FireWire) -> where the EtherType is, and the header's end."""
_FIXED: Final = {
    **dict.fromkeys((14, RAW_IP, 228, 229), (IP, 0)),
    **dict.fromkeys((0, 108), (IP, 4)),  # loopback of BSD, macOS, and Npcap on Windows
    109: (IP, 12),  # OpenBSD's IPsec interface
    226: (IP, 24),  # Solaris
    **dict.fromkeys((9, 50, 104), (PPP, 0)),
    204: (PPP, 1),
    51: (0x8864, 0),
    219: (MPLS, 0),
    105: (WIFI, 0),
    119: (WIFI, 144),  # Prism
    240: (BRIDGED, 4),  # netANALYZER
    241: (BRIDGED, 12),
    274: (BRIDGED, 8),  # with preamble
}
"""Link type with a header of fixed size -> the kind of its payload, and where that begins."""

_TAGS: Final = {0x8100: 2, 0x88A8: 2, 0x9100: 2, 0x9200: 2, 0x8926: 4, 0x893F: 6, 0x8909: 6}
"""EtherType of a tag (VLAN, VN, 802.1BR, Cisco's metadata) -> its bytes before the next EtherType."""
_PPP_TYPES: Final = {0x0021: IP, 0x0057: IP, 0x0281: MPLS, 0x0283: MPLS, 0x0053: ENCRYPTED, 0x00FD: ENCRYPTED}
_NSH_TYPES: Final = {1: IP, 2: IP, 3: BRIDGED, 4: NSH, 5: MPLS}
"""Next protocol of NSH and VXLAN-GPE -> kind."""
_SNAP: Final = b"\xaa\xaa\x03"
_LARGEST_FRAME: Final = 0x5FF  # a larger number in the place of an 802.3 length is an EtherType
_LARGEST_HEADER: Final = 4096  # of PKTAP, PPI


def first_header(link: int, data: bytes) -> Header:
    """Return what follows the header of a packet of this link type. Raises IndexError if it is cut."""
    if link in _TYPED:
        kind_at, pos = _TYPED[link]
        return u16_at(data, kind_at), pos
    if link in _FIXED:
        return _FIXED[link]
    find = _FINDERS.get(link)
    return (UNKNOWN_LINK, 0) if find is None else find(data)


def next_header(kind: int, data: bytes, pos: int) -> Header:
    """Return what follows a header of `kind`, neither IP nor negative. Raises IndexError if it is cut."""
    if kind in _TAGS:
        pos += _TAGS[kind]
        return u16_at(data, pos), pos + 2
    if kind == BRIDGED:
        return u16_at(data, pos + 12), pos + 14
    if kind in (MPLS, 0x8848):
        return _after_labels(data, pos)
    if kind == PPP:
        return _after_ppp(data, pos)
    if kind == 0x8864:  # PPPoE
        return PPP, pos + 6
    if kind <= _LARGEST_FRAME:
        return _after_llc(data, pos)
    if kind == WIFI:
        return _after_wifi(data, pos)
    if kind == NSH:
        return next_protocol(data[pos + 3]), pos + (data[pos + 1] & 0x3F) * 4
    if kind == 0x88E7:  # 802.1ah
        return BRIDGED, pos + 4
    if kind == 0x88E5:  # 802.1AE
        if data[pos] & 0x0C:
            return ENCRYPTED, pos
        pos += 14 if data[pos] & 0x20 else 6
        return u16_at(data, pos), pos + 2
    return NOT_IP, pos


def next_protocol(number: int) -> int:
    """Return the kind of a next protocol in NSH or VXLAN-GPE."""
    return _NSH_TYPES.get(number, NOT_IP)


def _after_labels(data: bytes, pos: int) -> Header:
    while not data[pos + 2] & 1:  # the bit marks the last label
        pos += 4
    version = data[pos + 4] >> 4
    if version in (4, 6):
        return IP, pos + 4
    return BRIDGED, pos + 4 if version else pos + 8  # behind a control word


def _after_ppp(data: bytes, pos: int) -> Header:
    """Return what is in a frame of Cisco's HDLC or of PPP, whose address and protocol may be compressed."""
    if data[pos] in (0x0F, 0x8F) and data[pos + 1] == 0:
        return u16_at(data, pos + 2), pos + 4
    if data[pos] == 0xFF and data[pos + 1] == 3:
        pos += 2
    protocol, pos = (data[pos], pos + 1) if data[pos] & 1 else (u16_at(data, pos), pos + 2)
    return _PPP_TYPES.get(protocol, NOT_IP), pos


def _after_llc(data: bytes, pos: int) -> Header:
    if data[pos : pos + 3] == _SNAP:
        return u16_at(data, pos + 6), pos + 8
    return NOT_IP, pos


def _after_wifi(data: bytes, pos: int) -> Header:
    control, flags = data[pos], data[pos + 1]
    if control & 0x4C != 0x08:  # no data
        return NOT_IP, pos
    if flags & 0x40:
        return ENCRYPTED, pos
    pos += 30 if flags & 3 == 3 else 24
    if control & 0x80:  # QoS
        is_aggregated = data[pos] & 0x80
        pos += 6 if flags & 0x80 else 2
        if is_aggregated:
            return BRIDGED, pos
    if data[pos : pos + 3] != _SNAP and data[pos + 2 : pos + 5] == _SNAP:  # padded by the hardware
        pos += 2
    return 0, pos  # 0: LLC follows, as after the length of an 802.3 frame


# -- link types whose headers vary in size


def _find_in_raw(data: bytes) -> Header:
    """Return the IP packet of raw IP, or of loopback on OpenBSD, where it has the same link type, 12."""
    return IP, 0 if data[0] >> 4 else 4


def _find_in_pppd(data: bytes) -> Header:
    return PPP, 2 if data[1] == 3 else 1  # the direction takes the place of the address


def _find_in_pflog(data: bytes) -> Header:
    return IP, data[0] + 3 & ~3


def _find_in_radiotap(data: bytes) -> Header:
    return WIFI, data[2] | data[3] << 8


def _find_in_avs(data: bytes) -> Header:
    return WIFI, u32_at(data, 4)


def _find_in_ppi(data: bytes) -> Header:
    return _find_inside(little_u32_at(data, 4), data, data[2] | data[3] << 8)


def _find_in_pktap(data: bytes) -> Header:
    if little_u32_at(data, 4) != 1:
        return NOT_IP, 0
    return _find_inside(little_u32_at(data, 8), data, little_u32_at(data, 0))


def _find_inside(link: int, data: bytes, size: int) -> Header:
    """Return what follows the header of link type `link` behind another one of `size` bytes."""
    if link in _WRAPPERS or not 8 <= size <= _LARGEST_HEADER:
        return UNKNOWN_LINK, 0
    kind, pos = first_header(link, data[size:])
    return kind, pos + size


def _find_in_nflog(data: bytes) -> Header:
    """Return the payload among the attributes of an NFLOG packet, which are in the writer's byte order."""
    is_little, pos = data[4] != 0, 4
    while True:
        size, kind = u16_at(data, pos), u16_at(data, pos + 2)
        if is_little:
            size, kind = (size & 0xFF) << 8 | size >> 8, (kind & 0xFF) << 8 | kind >> 8
        if kind & 0x7FFF == 9:
            return IP, pos + 4
        if size < 4:
            return INVALID, pos
        pos += size + 3 & ~3


_FINDERS: Final[dict[int, Callable[[bytes], Header]]] = {
    12: _find_in_raw,
    117: _find_in_pflog,
    127: _find_in_radiotap,
    149: _find_in_pktap,  # the number that macOS has for it, which others are free to use
    163: _find_in_avs,
    166: _find_in_pppd,
    192: _find_in_ppi,
    239: _find_in_nflog,
    258: _find_in_pktap,
}
_WRAPPERS: Final = {149, 192, 258}
