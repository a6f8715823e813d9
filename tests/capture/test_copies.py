"""Connections that NAT shows twice in a capture: one connection, no frame twice, and copies counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from io import BytesIO
from pathlib import Path

import pytest

from pulsarctl_wire.capture.copies import MAX_COPIES, MAX_OPENINGS
from pulsarctl_wire.capture.files import RawPacket, read_packets
from pulsarctl_wire.capture.packets import SYN
from pulsarctl_wire.capture.sources import Decoder
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.session.ending import EndedConnection

SAMPLES = Path(__file__).parents[2] / "samples" / "pcaps"
INPUTS = Path(__file__).parent / "inputs"

A, B, C = b"\x0a\0\0\1", b"\x0a\0\0\2", b"\x0a\0\0\3"
Ends = tuple[bytes, int, bytes, int]
"""Address and port of the client and of the server."""
HERE: Ends = (A, 50_000, B, 6650)


def packets_of(name: str) -> list[RawPacket]:
    stream = BytesIO((SAMPLES / name).read_bytes())
    return list(read_packets(stream.read(24), lambda: stream.read(65_536)))


PLAIN = packets_of("python-simple.pcap")
TO_SERVER = [packet[2][36:38] == b"\x21\xca" for packet in PLAIN]


def session(ends: Ends, late_ns: int = 0, options: bool = True) -> list[RawPacket]:
    """The packets of the session between other addresses."""
    client, client_port, server, server_port = ends
    made: list[RawPacket] = []
    for (time_ns, link, data, length), to_server in zip(PLAIN, TO_SERVER, strict=True):
        ports = [client_port.to_bytes(2, "big"), server_port.to_bytes(2, "big")]
        addresses = [client, server]
        if not to_server:
            ports.reverse()
            addresses.reverse()
        data = data[:26] + b"".join((*addresses, *ports)) + data[38:]
        if not options and data[47] & SYN:
            data = data[:54] + b"\1" * 20 + data[74:]
        assert time_ns is not None
        made.append((time_ns + late_ns, link, data, length))
    return made


def decode(
    packets: Iterable[RawPacket], *, keep: bool = False
) -> tuple[Decoder, list[bytes], list[EndedConnection]]:
    endings: list[EndedConnection] = []
    decoder = Decoder(on_end=endings.append)
    decoder.reassembler.copies.keep = keep
    frames = [
        event.raw
        for events in (*decoder.read_packets(packets), *decoder.finish())
        for event in events
        if isinstance(event, Frame) and not event.partial
    ]
    return decoder, frames, endings


FRAMES = decode(PLAIN)[1]


def one_by_one(first: list[RawPacket], second: list[RawPacket]) -> list[RawPacket]:
    return [packet for pair in zip(first, second, strict=True) for packet in pair]


def by_way(inside: list[RawPacket], outside: list[RawPacket]) -> list[RawPacket]:
    """What a host that does NAT sees: answers come from outside."""
    pairs = zip(inside, outside, TO_SERVER, strict=True)
    return [packet for one, other, way in pairs for packet in ((one, other) if way else (other, one))]


def in_bursts(first: list[RawPacket], second: list[RawPacket]) -> list[RawPacket]:
    mixed: list[RawPacket] = []
    for start in range(0, len(first), 7):
        mixed += first[start : start + 7] + second[start : start + 7]
    return mixed


ORDERS: dict[str, Callable[[list[RawPacket], list[RawPacket]], list[RawPacket]]] = {
    "one by one": one_by_one,
    "by way": by_way,
    "in bursts": in_bursts,
}
CHANGED: dict[str, Ends] = {
    "the client's address": (C, 50_000, B, 6650),
    "the server's address": (A, 50_000, C, 6650),
    "both addresses": (C, 50_000, b"\x0a\0\0\4", 6650),
    "the server's port": (A, 50_000, B, 16_650),
    "the client's port": (A, 61_234, B, 6650),
    "everything": (C, 61_234, b"\x0a\0\0\4", 16_650),
}


def test_the_addresses_of_a_session() -> None:
    assert decode(session(HERE))[1] == FRAMES
    assert len(FRAMES) == 50


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("changed", CHANGED)
def test_a_connection_before_and_after_nat(changed: str, order: str) -> None:
    packets = ORDERS[order](session(HERE), session(CHANGED[changed], 3_000))
    decoder, frames, endings = decode(packets)
    assert frames == FRAMES
    assert decoder.reassembler.copies.total == 59
    (ending,) = endings
    client, client_port, server, server_port = CHANGED[changed]
    assert ending.also == (
        (
            f"{'.'.join(map(str, client))}:{client_port}",
            f"{'.'.join(map(str, server))}:{server_port}",
        ),
    )
    assert decode(packets, keep=True)[0].reassembler.connections == 2


def test_without_timestamps_the_port_of_the_client_must_be_the_same() -> None:
    first = session(HERE, options=False)
    for changed, count in (("both addresses", 1), ("the client's port", 2)):
        packets = one_by_one(first, session(CHANGED[changed], 3_000, options=False))
        assert decode(packets)[0].reassembler.connections == count


@pytest.mark.parametrize("order", ["one by one", "by way"])
@pytest.mark.parametrize("changed", CHANGED)
def test_connections_joined_midway(changed: str, order: str) -> None:
    mixed = ORDERS[order](session(HERE), session(CHANGED[changed], 3_000))
    is_sure = CHANGED[changed][1] == HERE[1]  # that an answer to a SYN that was not captured is one
    for start in range(1 if is_sure else 2, 110):
        packets = mixed[start:]
        decoder, frames, _ = decode(packets)
        assert decoder.reassembler.connections == 1, start
        originals = [packet for packet in packets if ends_of(packet) == ends_of(packets[0])]
        assert frames == decode(originals)[1]
        assert decoder.reassembler.copies.total == len(packets) - len(originals)


def ends_of(packet: RawPacket) -> frozenset[bytes]:
    data = packet[2]
    return frozenset((data[26:30] + data[34:36], data[30:34] + data[36:38]))


def test_bursts_joined_midway() -> None:
    mixed = in_bursts(session(HERE), session(CHANGED["both addresses"], 3_000))
    for start in range(14, 100):
        assert decode(mixed[start:])[0].reassembler.connections == 1, start


def test_a_copy_that_goes_on_is_said() -> None:
    """Of the original the capture has only the beginning."""
    copy = session(CHANGED["both addresses"], 3_000)
    late = session(CHANGED["both addresses"], 2_000_000_000)[40:]
    packets = [*one_by_one(session(HERE)[:40], copy[:40]), *late]
    decoder, _, (ending,) = decode(packets)
    assert ending.has_longer_copy
    assert decoder.reassembler.copies.longer == 1
    assert not decode(one_by_one(session(HERE), copy))[0].reassembler.copies.longer


def test_two_copies() -> None:
    others = [session(CHANGED[name], 3_000) for name in ("both addresses", "everything")]
    packets = [packet for row in zip(session(HERE), *others, strict=True) for packet in row]
    decoder, frames, (ending,) = decode(packets)
    assert (frames, decoder.reassembler.copies.total, len(ending.also)) == (FRAMES, 118, 2)


def test_more_copies_than_anybody_has() -> None:
    copies = [session((bytes((10, 1, 0, number)), 50_000, B, 6650), 3_000) for number in range(12)]
    decoder, frames, _ = decode([packet for row in zip(*copies, strict=True) for packet in row])
    assert decoder.reassembler.connections == 2  # the second one is the first one that is too many
    assert len(frames) == 100
    assert MAX_COPIES == 8


def test_an_address_of_nat_is_used_again() -> None:
    """By another client: its connection is no copy, though the old one is still remembered."""
    first = one_by_one(session(HERE), session((C, 50_000, B, 6650), 3_000))
    moved = [
        (time_ns, link, data[:38] + renumbered(data), length)
        for time_ns, link, data, length in session((C, 50_000, B, 6650), 500_000_000)
    ]
    decoder, frames, _ = decode([*first, *moved])
    assert frames == FRAMES * 2
    assert decoder.reassembler.connections == 2
    assert decoder.reassembler.copies.total == 59


def renumbered(data: bytes) -> bytes:
    """The TCP header, from the sequence number on, of a connection with other ones."""
    numbers = (
        (int.from_bytes(data[at : at + 4], "big") + 0x50000000) % 2**32 if at < 42 or data[47] & 0x10 else 0
        for at in (38, 42)
    )
    return b"".join(number.to_bytes(4, "big") for number in numbers) + data[46:]


def test_both_sides_use_their_addresses_again() -> None:
    first = by_way(session(HERE), session(CHANGED["both addresses"], 3_000))
    again = by_way(
        *(
            [(time_ns, link, data[:38] + renumbered(data), length) for time_ns, link, data, length in packets]
            for packets in (session(HERE, 10**9), session(CHANGED["both addresses"], 10**9 + 3_000))
        )
    )
    for packets in ([*first, *again], [*first, again[1], again[0], *again[2:]]):
        decoder, frames, _ = decode(packets)
        assert frames == FRAMES * 2
        assert (decoder.reassembler.connections, decoder.reassembler.copies.total) == (2, 118)


def test_connections_with_other_numbers_are_none() -> None:
    other = [
        (time_ns, link, data[:38] + renumbered(data), length)
        for time_ns, link, data, length in session(CHANGED["the client's address"], 3_000)
    ]
    decoder, frames, _ = decode(one_by_one(session(HERE), other))
    assert (decoder.reassembler.connections, len(frames)) == (2, 100)
    assert not decoder.reassembler.copies.total


def test_a_connection_that_begins_much_later_is_none() -> None:
    packets = [*session(HERE), *session(CHANGED["both addresses"], 2_000_000_000)]
    assert decode(packets)[0].reassembler.connections == 2


def test_numbers_that_count_from_0_are_no_evidence() -> None:
    """Of made-up packets, as of text2pcap, all connections begin with the same number."""

    def made_up(packets: list[RawPacket]) -> list[RawPacket]:
        isn = [int.from_bytes(PLAIN[index][2][38:42], "big") for index in (0, 1)]
        made = []
        for (time_ns, link, data, length), way in zip(packets, TO_SERVER, strict=True):
            mine, other = isn if way else isn[::-1]
            sequence = (int.from_bytes(data[38:42], "big") - mine) % 2**32
            acknowledged = (int.from_bytes(data[42:46], "big") - other) % 2**32 if data[47] & 0x10 else 0
            numbers = sequence.to_bytes(4, "big") + acknowledged.to_bytes(4, "big")
            made.append((time_ns, link, data[:38] + numbers + data[46:], length))
        return made

    packets = one_by_one(made_up(session(HERE)), made_up(session(CHANGED["the client's address"], 3_000)))
    for start in (0, 1, 20, 21):
        assert decode(packets[start:])[0].reassembler.connections == 2


def test_packets_that_a_bridge_shows_twice() -> None:
    decoder, frames, (ending,) = decode(one_by_one(session(HERE), session(HERE, 3_000)))
    assert frames == FRAMES
    assert decoder.reassembler.copies.total == ending.copies == 44  # those with bytes
    assert ending.also == ()
    assert not decode(one_by_one(session(HERE), session(HERE, 3_000_000)))[0].reassembler.copies.total


def test_connections_that_are_remembered_are_bounded() -> None:
    syn = session(HERE)[0]
    decoder = Decoder()
    count = 2 * MAX_OPENINGS
    for number in range(count):
        data = (
            syn[2][:34] + number.to_bytes(2, "big") + syn[2][36:38] + number.to_bytes(4, "big") + syn[2][42:]
        )
        list(decoder.read_packets([(syn[0], syn[1], data, syn[3])]))
    assert decoder.reassembler.connections == count
    assert len(decoder.reassembler.copies.openings) == MAX_OPENINGS


def test_nothing_of_forgotten_connections_stays() -> None:
    decoder, _, _ = decode(one_by_one(session(HERE), session(CHANGED["both addresses"], 3_000)))
    reassembler = decoder.reassembler
    (tcp,) = {tcp for _, tcp in reassembler.copies.openings}
    reassembler.forget(tcp)
    assert not reassembler.copies.openings
    assert not reassembler.copies.originals
