"""Parses what Wireshark's and tshark's "follow TCP stream" writes: YAML, C arrays, a hex dump, hex lines.

The stream has two peers: 0, who sent the first packet that Wireshark saw of it, and 1.
"""

import binascii
import re
from collections.abc import Iterable, Iterator
from typing import Final

from pulsarctl_wire.capture.text.dump import PIECE, Dump, LogConnection
from pulsarctl_wire.capture.text.lines import Line
from pulsarctl_wire.errors import CaptureError

_PEER: Final = re.compile(r"\s*(?:- )?peer: ([01])\s*$")
_FIELD: Final = re.compile(r"\s*(?:- )?(packet|host|port|timestamp|data): ?(.*?)\s*$")
_OLD_ENTRY: Final = re.compile(r"peer([01])_[0-9]+: !!binary \|")
_BASE64: Final = re.compile(r"\s+([A-Za-z0-9+/]+={0,2})\s*$")
_SECONDS: Final = re.compile(r"([0-9]{1,11})(?:\.([0-9]{1,9}))?$")
_NODE: Final = re.compile(r"Node ([01]): (\S+)$")
_ARRAY: Final = re.compile(r"\s*char peer([01])_[0-9]+\[\] = \{")
_NUMBER: Final = re.compile(r"0x([0-9a-f]{2})\b")
_ROW: Final = re.compile(r"(\t| {4})?([0-9A-Fa-f]{8})  ((?:[0-9a-f]{2}  ?){1,16})")
_HEX_LINE: Final = re.compile(r"(\t?)((?:[0-9a-f]{2})+)$")
_MAX_HELD: Final = 65_536  # rows of the first peer before the second one answers


class _Peers:
    """The addresses of the two peers, from the lines before the first packet."""

    def __init__(self) -> None:
        self.addresses = ["", ""]

    def dump(self, peer: int, data: bytes, line: int, time_ns: int | None = None) -> Dump:
        """Return bytes that a peer sent."""
        connection = LogConnection("", *self.addresses)
        return Dump(data, time_ns, connection=connection, is_inbound=peer == 1, line=line)


def parse_follow_yaml(lines: Iterable[Line]) -> Iterator[Dump]:
    """Parse a stream as YAML; the form of Wireshark before 4.0, too.

    Raises CaptureError if its base64 is broken.
    """
    peers = _Peers()
    hosts = ["", ""]
    peer, time_ns, begin, indent = 0, None, 0, 0
    digits: list[str] = []
    for number, line in lines:
        if begin and (match := _BASE64.match(line)):
            digits.append(match[1])
            continue
        if digits and len(line) - len(line.lstrip()) > indent:
            raise CaptureError(f"line {number}: this is not base64")
        if digits:
            yield peers.dump(peer, _decode(digits, begin), begin, time_ns)
        digits, begin = [], 0
        if match := _PEER.match(line):
            peer = int(match[1])
        elif match := _OLD_ENTRY.match(line):
            peer, begin, indent = int(match[1]), number, 0
        elif match := _FIELD.match(line):
            name, value = match.groups()
            if name == "host":
                hosts[peer] = value
            elif name == "port":
                host = f"[{hosts[peer]}]" if ":" in hosts[peer] else hosts[peer]
                peers.addresses[peer] = f"{host}:{value}"
            elif name == "timestamp":
                time_ns = _time_of(value)
            elif name == "data" and value.startswith("!!binary"):
                begin, indent = number, match.start(1)
    if digits:
        yield peers.dump(peer, _decode(digits, begin), begin, time_ns)


def _decode(digits: list[str], line: int) -> bytes:
    try:
        return binascii.a2b_base64("".join(digits))
    except binascii.Error as error:
        raise CaptureError(f"line {line}: the base64 that begins here is broken") from error


def _time_of(value: str) -> int | None:
    match = _SECONDS.match(value)
    return None if match is None else int(match[1]) * 10**9 + int((match[2] or "0").ljust(9, "0"))


def parse_follow_arrays(lines: Iterable[Line]) -> Iterator[Dump]:
    """Parse a stream as C arrays."""
    peers = _Peers()
    peer, begin = 0, 0
    data = bytearray()
    for number, line in lines:
        if match := _ARRAY.match(line):
            peer, begin = int(match[1]), number
            line = line[match.end() :]
        if begin:
            data += bytes.fromhex("".join(_NUMBER.findall(line.partition("}")[0])))
            if "}" in line or len(data) > PIECE:
                yield peers.dump(peer, bytes(data), begin)
                data.clear()
            begin = 0 if "}" in line else begin


def parse_follow_dump(lines: Iterable[Line]) -> Iterator[Dump]:
    """Parse a stream as a hex dump or hex lines, where what the second peer sent is indented.

    The offsets of a hex dump count the bytes of each peer. Raises CaptureError if they do not, or if the
    stream is shown as ASCII. Yields nothing for another hex dump.
    """
    peers = _Peers()
    sizes = [0, 0]
    has_nodes = False
    held: list[Dump] = []  # until it is certain that there are two peers
    for number, line in lines:
        if match := _NODE.match(line):
            peers.addresses[int(match[1])] = match[2]
            has_nodes = True
        elif match := _ROW.match(line):
            peer = int(bool(match[1]))
            if int(match[2], 16) != sizes[peer] & 0xFFFFFFFF:
                if not has_nodes and not all(sizes):
                    return  # some other hex dump
                raise CaptureError(f"line {number}: the offset is {match[2]}, expected {sizes[peer]:08X}")
            data = bytes.fromhex(match[3])
            sizes[peer] += len(data)
            held.append(peers.dump(peer, data, number))
            if has_nodes or all(sizes):
                yield from held
                held.clear()
            elif len(held) > _MAX_HELD:
                return
        elif has_nodes and (match := _HEX_LINE.match(line)):
            yield peers.dump(int(bool(match[1])), bytes.fromhex(match[2]), number)
        elif line.startswith("Follow: tcp,ascii"):
            raise CaptureError(
                f"line {number}: ASCII leaves bytes out; follow the stream as yaml, raw or hex"
            )
