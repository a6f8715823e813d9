"""Addresses replaced by others of their kind, the same in the headers of packets and in texts.

An IPv4 address keeps the number of digits of each part, so that its text has the same size, and an IPv6
address those of each group. Loopback, unspecified, broadcast and multicast addresses stay; a private or
link-local address stays one. Addresses of one network stay together.
"""

from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

_DIGITS: Final = (range(10), range(10, 100), range(100, 256))
"""Parts of an IPv4 address, by the number of their digits."""
_PUBLIC: Final = (
    range(1, 10),
    range(11, 100),
    [part for part in range(101, 224) if part not in (127, 169, 172, 192, 198, 203)],
)
"""First parts of public IPv4 addresses, by the number of their digits."""
_PRIVATE: Final = {169: range(254, 255), 172: range(16, 32), 192: range(168, 169)}
"""First part of an IPv4 address -> second parts of private and link-local ones."""
_GROUPS: Final = (range(1), range(1, 16), range(16, 256), range(256, 4096), range(4096, 65_536))
"""Groups of an IPv6 address, by the number of their digits."""
_KINDS: Final = (
    range(0x1000, 0x2000),
    range(0x2000, 0x4000),  # global unicast
    range(0x4000, 0xFC00),
    range(0xFC00, 0xFE00),  # unique local
)
"""First groups of four digits, by what such addresses are for; those of other kinds stay."""
_MAPPED: Final = bytes(10) + b"\xff\xff"
_LOCAL_BIT: Final = 0x02  # of an Ethernet address that no manufacturer has given
_GROUP_BIT: Final = 0x01


class AddressMap:
    """Replaces addresses; `draw` returns a number for a text. With `keep` they all stay.

    `on_replaced` is told of each address, as text, and of what replaces it.
    """

    def __init__(
        self, draw: Callable[[bytes], int], *, keep: bool, on_replaced: Callable[[bytes, bytes], object]
    ) -> None:
        self._draw = draw
        self._keep = keep
        self._on_replaced = on_replaced
        self._replacements: dict[bytes, bytes] = {}

    def replace(self, packed: bytes) -> bytes:
        """Return what replaces an IPv4 or IPv6 address in its binary form."""
        if self._keep:
            return packed
        replacement = self._replacements.get(packed)
        if replacement is None:
            if len(self._replacements) > 1_000_000:
                self._replacements.clear()  # it is a cache
            replacement = self._make4(packed) if len(packed) == 4 else self._make6(packed)
            self._replacements[packed] = replacement
            self._on_replaced(*(str(ip_address(address)).encode() for address in (packed, replacement)))
        return replacement

    def replace_text(self, text: bytes) -> bytes | None:
        """Return what replaces an address in text; None if it is none, or is written in an unusual way."""
        try:
            address = ip_address(text.decode())
        except ValueError:
            return None
        replacement = str(ip_address(self.replace(address.packed))).encode()
        return replacement if len(replacement) == len(text) else None

    def replace_mac(self, mac: bytes) -> bytes:
        """Return what replaces the address of a network card; group addresses and zeros stay."""
        if self._keep or not any(mac) or mac[0] & _GROUP_BIT:
            return mac
        random_mac = self._draw(b"mac" + mac).to_bytes(8, "big")[: len(mac)]
        return bytes([random_mac[0] & ~_GROUP_BIT | _LOCAL_BIT]) + random_mac[1:]

    def _make4(self, packed: bytes) -> bytes:
        address = IPv4Address(packed)
        if address.is_loopback or address.is_unspecified or packed[0] >= 224:
            return packed
        first, second = packed[:2]
        private = _PRIVATE.get(first)
        if private is not None:
            digits = _DIGITS[len(str(second)) - 1]
            choice = private if second in private else [part for part in digits if part not in private]
            return bytes((first, self._move(second, choice, packed[:1]), *self._move_parts(packed, 2)))
        public = _PUBLIC[len(str(first)) - 1]
        if first in public:
            first = self._move(first, public, b"")
        return bytes((first, *self._move_parts(packed, 1)))

    def _move_parts(self, packed: bytes, start: int) -> list[int]:
        return [
            self._move(packed[index], _DIGITS[len(str(packed[index])) - 1], packed[:index])
            for index in range(start, 4)
        ]

    def _make6(self, packed: bytes) -> bytes:
        if packed.startswith(_MAPPED):
            return _MAPPED + self._make4(packed[12:])
        address = IPv6Address(packed)
        if address.is_loopback or address.is_unspecified or address.is_multicast:
            return packed
        out = b""
        for index in range(0, 16, 2):
            group = int.from_bytes(packed[index : index + 2], "big")
            choice = _GROUPS[len(f"{group:x}") if group else 0]
            if not index and group >= 0x1000:
                choice = next((kind for kind in _KINDS if group in kind), range(group, group + 1))
            out += self._move(group, choice, packed[:index]).to_bytes(2, "big")
        return out

    def _move(self, value: int, choice: "range | list[int]", before: bytes) -> int:
        """Return another value of `choice`, if any, drawn by the bytes `before` it in the address."""
        if len(choice) == 1:
            return choice[0]
        return choice[(choice.index(value) + 1 + self._draw(before + b"/") % (len(choice) - 1)) % len(choice)]
