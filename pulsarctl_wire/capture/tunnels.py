"""Finds the packets that tunnels carry in IP packets.

Sources: RFC 2784, 2890, 1701 (GRE), 2637 (PPTP), 7348 (VXLAN), 8926 (Geneve), 7510 (MPLS in UDP), 4023 (MPLS
in IP), 3378 (EtherIP), 2661 (L2TP), 8086 (GRE in UDP), 3948 (ESP in UDP), 9300 (LISP), the drafts of ERSPAN
and VXLAN-GPE, 3GPP TS 29.281 (GTP-U).
"""

from typing import Final

from pulsarctl_wire.capture.links import (
    BRIDGED,
    ENCRYPTED,
    INVALID,
    IP,
    MPLS,
    NO_TUNNEL,
    NOT_IP,
    PPP,
    UNKNOWN_VERSION,
    WIFI,
    Header,
    next_protocol,
)
from pulsarctl_wire.wire.fixed import u16_at, u32_at

UDP: Final = 17
_GRE: Final = 47
_TUNNELS: Final = {4: (IP, 0), 41: (IP, 0), 137: (MPLS, 0), 97: (BRIDGED, 2), 50: (ENCRYPTED, 0)}
"""IP protocol (IPv4, IPv6, MPLS, EtherIP, ESP) -> what it carries, and where."""

_VXLAN_GPE: Final = 4790
_VXLAN: Final = {4789, 8472, _VXLAN_GPE}  # 8472: of old Linux
_GENEVE: Final = 6081
_MPLS_IN_UDP: Final = 6635
_GRE_IN_UDP: Final = 4754
_GTP_U: Final = 2152
_L2TP: Final = 1701
_TZSP: Final = 37_008
_LISP: Final = 4341
_IPSEC: Final = 4500

_PPTP: Final = 0x880B
_ERSPAN: Final = 0x88BE
_ERSPAN_III: Final = 0x22EB
_WCCP: Final = 0x883E


def inner_header(protocol: int, data: bytes, pos: int) -> Header:
    """Return what is inside the payload, at `pos`, of an IP packet of this protocol.

    Raises IndexError if a header is cut.
    """
    if protocol == UDP:
        return _in_udp(u16_at(data, pos + 2), data, pos + 8)
    if protocol == _GRE:
        return _in_gre(data, pos)
    if protocol in _TUNNELS:
        kind, size = _TUNNELS[protocol]
        return kind, pos + size
    return NO_TUNNEL, pos


def _in_gre(data: bytes, pos: int) -> Header:
    flags, kind = u16_at(data, pos), u16_at(data, pos + 2)
    if flags & 7 == 1 and kind == _PPTP:
        return PPP, pos + 8 + (flags >> 12 & 1) * 4 + (flags >> 7 & 1) * 4  # sequence, acknowledgement
    if flags & 7:
        return UNKNOWN_VERSION, pos
    pos += 8 if flags & 0xC000 else 4  # checksum, or offset of a route
    pos += (flags >> 13 & 1) * 4 + (flags >> 12 & 1) * 4  # key, sequence number
    if flags & 0x4000:
        while u32_at(data, pos) != 0:  # entries of a route
            pos += 4 + data[pos + 3]
        pos += 4
    if kind == _ERSPAN and not flags & 0x1000:
        return BRIDGED, pos  # type I has no header
    if kind in (_ERSPAN, _ERSPAN_III):
        return _in_erspan(data, pos)
    if kind == _WCCP:
        return IP, pos if data[pos] >> 4 == 4 else pos + 4
    return kind, pos


def _in_erspan(data: bytes, pos: int) -> Header:
    version = data[pos] >> 4
    if version == 1:
        return BRIDGED, pos + 8
    if version != 2:
        return UNKNOWN_VERSION, pos
    flags = u16_at(data, pos + 10)
    kind = {0: BRIDGED, 2: IP}.get(flags >> 10 & 0x1F, NOT_IP)
    return kind, pos + 12 + (flags & 1) * 8  # the subheader of the platform


def _in_udp(port: int, data: bytes, pos: int) -> Header:
    """Return what is inside a UDP datagram to `port`, whose payload begins at `pos`."""
    if port in _VXLAN:
        if port == _VXLAN_GPE and data[pos] & 0x30:
            return UNKNOWN_VERSION, pos
        return next_protocol(data[pos + 3]) if data[pos] & 4 else BRIDGED, pos + 8
    if port == _GENEVE:
        if data[pos] >> 6:
            return UNKNOWN_VERSION, pos
        return u16_at(data, pos + 2), pos + 8 + (data[pos] & 0x3F) * 4
    if port == _GTP_U:
        return _in_gtp(data, pos)
    if port == _L2TP:
        return _in_l2tp(data, pos)
    if port == _TZSP:
        return _in_tzsp(data, pos)
    if port == _MPLS_IN_UDP:
        return MPLS, pos
    if port == _GRE_IN_UDP:
        return _in_gre(data, pos)
    if port == _LISP:
        return IP, pos + 8
    if port == _IPSEC and u32_at(data, pos):  # 0 marks the exchange of keys
        return ENCRYPTED, pos
    return NO_TUNNEL, pos


def _in_gtp(data: bytes, pos: int) -> Header:
    flags = data[pos]
    if flags >> 4 != 3:
        return UNKNOWN_VERSION, pos
    if data[pos + 1] != 0xFF:  # about the tunnel itself
        return NO_TUNNEL, pos
    pos += 12 if flags & 7 else 8
    if flags & 4:
        while data[pos - 1]:  # an extension header follows
            if not data[pos]:
                return INVALID, pos
            pos += data[pos] * 4
    return IP, pos


def _in_l2tp(data: bytes, pos: int) -> Header:
    flags = u16_at(data, pos)
    if flags & 0x8000:  # about the tunnel itself
        return NO_TUNNEL, pos
    if flags & 15 != 2:
        return UNKNOWN_VERSION, pos
    pos += 6 + (flags >> 14 & 1) * 2 + (flags >> 11 & 1) * 4  # length, sequence numbers
    if flags & 0x0200:
        pos += 2 + u16_at(data, pos)
    return PPP, pos


def _in_tzsp(data: bytes, pos: int) -> Header:
    if data[pos] != 1:
        return UNKNOWN_VERSION, pos
    kind = {1: BRIDGED, 18: WIFI}.get(u16_at(data, pos + 2), NO_TUNNEL)
    pos += 4
    while data[pos] != 1:  # the last tag
        pos += 2 + data[pos + 1] if data[pos] else 1
    return kind, pos + 1
