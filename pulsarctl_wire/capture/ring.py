"""Captures packets of a Linux interface through a ring buffer shared with the kernel: TPACKET_V3.

The kernel fills block after block and hands each over when it is full, or `_RETIRE` after its first packet. A
block is copied and handed back at once. Packets that arrive while no block is free are dropped and counted.
Sources: Linux's Documentation/networking/packet_mmap.rst; include/uapi/linux/if_packet.h, if_arp.h, filter.h.
"""

import errno
import fcntl
import mmap
import os
import select
import socket
import struct
from ctypes import addressof, create_string_buffer
from typing import Final

from pulsarctl_wire.capture.files import RawPacket
from pulsarctl_wire.capture.links import ETHERNET, RAW_IP

BLOCK: Final = 512 * 1024
"""Bytes of a block. A longer packet is cut; TCP segments are captured before the interface splits them."""

_RETIRE: Final = 50  # ms
_ARPHRD_ETHER, _ARPHRD_LOOPBACK = 1, 772
_ETH_P_ALL: Final = 3
_SIOCGIFHWADDR: Final = 0x8927
_SO_ATTACH_FILTER: Final = 26
_SOL_PACKET: Final = 263
_ADD_MEMBERSHIP, _RX_RING, _STATISTICS, _VERSION, _IGNORE_OUTGOING = 1, 5, 6, 10, 23
_TPACKET_V3, _MR_PROMISC = 2, 1
_USER, _VLAN, _VLAN_TYPE = 1, 0x10, 0x40  # bits of tp_status
_NOTHING: Final = struct.pack("=HBBI", 6, 0, 0, 0)  # BPF: take 0 bytes
_ETH_P_8021Q: Final = 0x8100

_block_at: Final = struct.Struct("=8x4I").unpack_from  # block status, packets, where the first is, bytes used
_packet_at: Final = struct.Struct("=6IH").unpack_from  # of tpacket3_hdr, from tp_next_offset to tp_mac
_tag_at: Final = struct.Struct("=32xIH").unpack_from  # of tpacket3_hdr: tp_vlan_tci, tp_vlan_tpid
_tag: Final = struct.Struct(">HH").pack


def link_type(interface: str) -> int:
    """Return the link type of the packets of `interface`. Raises OSError."""
    return ETHERNET if _hardware(interface) in (_ARPHRD_ETHER, _ARPHRD_LOOPBACK) else RAW_IP


def _hardware(interface: str) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        answer = fcntl.ioctl(control, _SIOCGIFHWADDR, struct.pack("40s", os.fsencode(interface)))
    return int(struct.unpack_from("=H", answer, 16)[0])


class Ring:
    """The packets of `interface` from now on.

    `program` is a BPF program for the interface's `link_type` that selects packets; empty: all. `size` is the
    memory for waiting packets, in bytes. `dropped` counts the packets dropped because it was full,
    `received` all packets, including those; both as of the last `count`. All methods raise OSError.
    """

    def __init__(self, interface: str, program: bytes, size: int) -> None:
        self.received = 0
        self.dropped = 0
        self.link = link_type(interface)
        self._pos = 0  # in the ring, of the block that is taken next
        kind = socket.SOCK_RAW if self.link == ETHERNET else socket.SOCK_DGRAM
        self._socket = socket.socket(socket.AF_PACKET, kind, 0)
        try:
            count = max(2, -(-size // BLOCK))
            if count * BLOCK >= 2**32:  # more than the kernel can count
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
            self._set(_VERSION, _TPACKET_V3)
            self._set(_RX_RING, struct.pack("7I", BLOCK, count, BLOCK, count, _RETIRE, 0, 0))
            self._map = mmap.mmap(self._socket.fileno(), BLOCK * count)
            self._start(interface, program)
        except OSError:
            self._socket.close()
            raise
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    def _start(self, interface: str, program: bytes) -> None:
        if program:
            self._filter(program)
        if _hardware(interface) == _ARPHRD_LOOPBACK:  # it shows each packet both going out and coming in
            self._set(_IGNORE_OUTGOING, 1)
        else:
            index = socket.if_nametoindex(interface)
            self._set(_ADD_MEMBERSHIP, struct.pack("iHH8x", index, _MR_PROMISC, 0))
        self._socket.bind((interface, _ETH_P_ALL))

    def take(self) -> list[RawPacket]:
        """Return the packets of the next block; empty if it is not ready."""
        status, count, offset, size = _block_at(self._map, self._pos)
        if not status & _USER:
            return []
        block = self._map[self._pos : self._pos + size]
        self._map[self._pos + 8 : self._pos + 12] = bytes(4)  # hand the block back to the kernel
        self._pos = (self._pos + BLOCK) % len(self._map)
        link = self.link
        packets: list[RawPacket] = []
        for _ in range(count):
            step, seconds, fraction, extent, length, status, start = _packet_at(block, offset)
            data = block[offset + start : offset + start + extent]
            if status & _VLAN and link == ETHERNET:  # the kernel has removed the tag
                tag, kind = _tag_at(block, offset)
                data = data[:12] + _tag(kind if status & _VLAN_TYPE else _ETH_P_8021Q, tag) + data[12:]
                length += 4
            packets.append((seconds * 1_000_000_000 + fraction, link, data, length))
            offset += step
        return packets

    def wait(self, seconds: float) -> bool:
        """Wait for a block, but no longer than this; return whether one is ready."""
        for _, events in self._poll.poll(seconds * 1000):
            if events & select.POLLERR:
                number = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                raise OSError(number, os.strerror(number))
            return True
        return False

    def count(self) -> int:
        """Update the counters; return how many packets were dropped since the last call."""
        received, dropped, _ = struct.unpack("=3I", self._socket.getsockopt(_SOL_PACKET, _STATISTICS, 12))
        self.received += received
        self.dropped += dropped
        return int(dropped)

    def stop(self) -> None:
        """Stop capturing; packets that are in the ring can still be taken."""
        self._filter(_NOTHING)

    def close(self) -> None:
        """Release the ring."""
        self._map.close()
        self._socket.close()

    def _filter(self, program: bytes) -> None:
        buffer = create_string_buffer(program)
        self._socket.setsockopt(
            socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(program) // 8, addressof(buffer))
        )

    def _set(self, option: int, value: "int | bytes") -> None:
        self._socket.setsockopt(_SOL_PACKET, option, value)
