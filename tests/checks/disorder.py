"""Captures whose packets come in another order, twice, or not at all."""

import random
from functools import cache
from itertools import chain, pairwise
from typing import Final

from pulsarctl_wire.capture import files
from pulsarctl_wire.capture.compression import reader
from pulsarctl_wire.capture.files import RawPacket
from pulsarctl_wire.capture.packets import RST, SYN, Dissector, Segment, reverse
from pulsarctl_wire.capture.sources import Decoder, open_source, peel
from pulsarctl_wire.wire.frame import Gap

Packets = list[RawPacket]

_AT_ONCE: Final = 300_000_000
"""Packets pass each other on the way if there are at most so many ns between them."""

_NEAR: Final = 1_000_000
"""Segments take each other's place if there are at most so many ns between them."""


@cache
def packets_of(path: str) -> Packets:
    """The packets of a capture."""
    with open_source(path).stream as stream:
        stream, head = peel(stream)
        return list(files.read_packets(head, reader(stream)))


def moved(packets: Packets, chance: random.Random, window: int) -> Packets:
    """Packets are moved in the file, with their times."""
    order = sorted(range(len(packets)), key=lambda place: place + chance.uniform(0, window))
    return [packets[place] for place in order]


def delayed(packets: Packets, chance: random.Random, window: int) -> Packets:
    """Packets are captured later, at other times: others of their connection have passed them on the way.

    None passes the acknowledgement of its bytes.
    """
    segments = [Dissector().segment(*packet[1:]) for packet in packets]
    order = list(range(len(packets)))
    for _ in range(window):
        for place in range(len(order) - 1):
            first, second = order[place : place + 2]
            is_near = max(place + 1 - first, second - place) < window
            is_soon = abs((packets[second][0] or 0) - (packets[first][0] or 0)) < _AT_ONCE
            if chance.random() < 0.5 and is_near and is_soon and _may_pass(segments[first], segments[second]):
                order[place : place + 2] = second, first
    times = sorted(packet[0] or 0 for packet in packets)
    return [(time_ns, *packets[place][1:]) for time_ns, place in zip(times, order, strict=True)]


def _may_pass(first: Segment | None, second: Segment | None) -> bool:
    """Whether the second of two segments may come first."""
    if first is None or second is None or first[0] not in (second[0], reverse(second[0])):
        return first is None or second is None
    if (first[3] | second[3]) & (SYN | RST):
        return False
    return first[0] == second[0] or (second[2] - first[1] - 1) % 2**32 >= 2**31


def exchanged(packets: Packets, chance: random.Random, window: int) -> Packets:
    """Segments with bytes take each other's place and time, whatever the other direction acknowledges.

    The first one of each direction stays: it shows where a connection begins that was joined midway.
    """
    segments = [Dissector().segment(*packet[1:]) for packet in packets]
    ways: dict[bytes, list[int]] = {}
    for place, segment in enumerate(segments):
        if segment is not None and segment[4] and not segment[3] & (SYN | RST):
            ways.setdefault(segment[0], []).append(place)
    times = [packet[0] or 0 for packet in packets]
    order = list(range(len(packets)))
    for way in ways.values():
        for one, other in pairwise(way[1:]):
            first, second = order[one], order[other]
            is_near = other - first < window and times[other] - times[first] < _NEAR
            if is_near and chance.random() < 0.5:
                order[one], order[other] = second, first
    return [(time_ns, *packets[place][1:]) for time_ns, place in zip(times, order, strict=True)]


def repeated(packets: Packets, chance: random.Random, window: int) -> Packets:
    """Packets are captured again soon after, as retransmissions are."""
    copies: list[list[RawPacket]] = [[] for _ in packets]
    for place, packet in enumerate(packets):
        if chance.random() < 0.3:
            copies[min(place + chance.randrange(window), len(packets) - 1)].append(packet)
    return [
        (packet[0], *each[1:])
        for packet, again in zip(packets, copies, strict=True)
        for each in (packet, *again)
    ]


def dropped(packets: Packets, chance: random.Random) -> Packets:
    """One packet is missing, or some, or many of those in a row."""
    share, first = chance.choice([0, 0.02, 0.1, 0.7]), chance.randrange(len(packets))
    burst = range(first, first + chance.randint(1, 16)) if share == 0.7 else range(len(packets))
    if not share:
        return packets[:first] + packets[first + 1 :]
    return [each for place, each in enumerate(packets) if place not in burst or chance.random() >= share]


def has_hole(packets: Packets) -> bool:
    """Whether a capture shows that bytes are missing."""
    decoder = Decoder(join_chunks=False)
    batches = chain(decoder.read_packets(packets), decoder.finish())
    return any(isinstance(event, Gap) for events in batches for event in events)
