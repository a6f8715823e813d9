"""Reads the PDUs that Wireshark exports (link type 252): tags that describe one, and then its bytes.

There is no TCP: the PDUs of a connection's direction are its next bytes, unless Wireshark tells their
sequence numbers. Source: the format as Wireshark documents it for its users (LINKTYPE_WIRESHARK_UPPER_PDU).
"""

from typing import Final, NamedTuple

from pulsarctl_wire.wire.fixed import u16_at, u32_at

_DISSECTOR: Final = 12
_SOURCES: Final = {20, 22}  # IPv4, IPv6
_TARGETS: Final = {21, 23}
_PORT_KIND, _SOURCE_PORT, _TARGET_PORT = 24, 25, 26
_TCP_DETAILS: Final = 34
_TCP: Final = 2
_DETAILS_SIZE: Final = 19  # bytes, in version 1


class Exported(NamedTuple):
    """The tags of a PDU: the name of the next dissector, the key of its segment, and what is known of TCP.

    The key is as in `Segment`; it is empty if the PDU is of no TCP connection, or its addresses are missing.
    `details`: sequence and acknowledgement number, flags; empty if not known. The PDU begins at `pos`.
    """

    dissector: bytes
    key: bytes
    details: tuple[int, ...]
    pos: int


def read_tags(data: bytes) -> Exported:
    """Read the tags before a PDU. Raises IndexError if they are cut."""
    dissector = source = target = b""
    port_kind, ports = 0, [0, 0]
    details: tuple[int, ...] = ()
    pos = 0
    while tag := u16_at(data, pos):
        size = u16_at(data, pos + 2)
        start, pos = pos + 4, pos + 4 + size
        if tag == _DISSECTOR:
            dissector = data[start:pos].rstrip(b"\0")
        elif tag in _SOURCES:
            source = data[start:pos]
        elif tag in _TARGETS:
            target = data[start:pos]
        elif tag == _PORT_KIND:
            port_kind = u32_at(data, start)
        elif tag in (_SOURCE_PORT, _TARGET_PORT):
            ports[tag - _SOURCE_PORT] = u32_at(data, start) & 0xFFFF
        elif tag == _TCP_DETAILS and size >= _DETAILS_SIZE and u16_at(data, start) == 1:
            details = u32_at(data, start + 2), u32_at(data, start + 10), u16_at(data, start + 15)
    has_addresses = len(source) == len(target) and len(source) in (4, 16)
    key = b""
    if has_addresses and port_kind == _TCP and (source, ports[0]) != (target, ports[1]):
        key = source + target + ports[0].to_bytes(2, "big") + ports[1].to_bytes(2, "big")
    return Exported(dissector, key, details, pos + 4)
