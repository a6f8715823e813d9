"""Pulsar conversations cut into TCP segments, packets and capture files: what these tests are made of."""

from __future__ import annotations

import ipaddress
import random
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pulsarctl_wire.capture.files import RawPacket
from pulsarctl_wire.capture.packets import ACK, FIN, RST, SYN, Segment
from pulsarctl_wire.capture.reassembly import Reassembler
from pulsarctl_wire.wire.commands import BODIES, NUMBERS
from pulsarctl_wire.wire.frame import Event, Frame, Gap, Malformed, build_frame
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, MessageMetadata
from pulsarctl_wire.wire.session.knowledge import Knowledge

ETHERNET = 1
START_NS = 1_700_000_000_123_456_000

# ---- Frames ----

Turn = tuple[bool, bytes]
"""(whether it goes to the broker, the bytes of a frame)."""


def build(
    kind: str, metadata: MessageMetadata | None = None, payload: bytes = b"", /, **fields: object
) -> bytes:
    base = BaseCommand()
    base.type = NUMBERS[kind]  # type: ignore[assignment]
    body: Any = getattr(base, BODIES[base.type])
    body.SetInParent()
    body.MergeFrom(type(body)(**fields))
    return build_frame(base, metadata, payload)


PING = build("PING")
PONG = build("PONG")


def send(payload: bytes, sequence: int = 0) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=sequence, publish_time=1_700_000_000_000)
    return build("SEND", metadata, payload, producer_id=1, sequence_id=sequence)


def receipt(sequence: int = 0) -> bytes:
    at = {"ledgerId": 7, "entryId": sequence}
    return build("SEND_RECEIPT", producer_id=1, sequence_id=sequence, message_id=at)


def message(payload: bytes, sequence: int = 0) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=sequence, publish_time=1_700_000_000_000)
    at = {"ledgerId": 7, "entryId": sequence}
    return build("MESSAGE", metadata, payload, consumer_id=2, message_id=at)


def acknowledge(sequence: int = 0) -> bytes:
    at = {"ledgerId": 7, "entryId": sequence}
    return build("ACK", consumer_id=2, ack_type=0, message_id=[at])


def conversation(payloads: Sequence[bytes] = (b"one", b"two")) -> list[Turn]:
    """All that a client and a broker say to each other to publish and consume `payloads`."""
    turns = [
        (True, build("CONNECT", client_version="test", protocol_version=21)),
        (False, build("CONNECTED", server_version="broker", protocol_version=21)),
        (True, build("PRODUCER", topic="t", producer_id=1, request_id=1)),
        (False, build("PRODUCER_SUCCESS", request_id=1, producer_name="p")),
        (True, build("SUBSCRIBE", topic="t", subscription="s", subType=1, consumer_id=2, request_id=2)),
        (False, build("SUCCESS", request_id=2)),
        (True, build("FLOW", consumer_id=2, messagePermits=1000)),
    ]
    for sequence, payload in enumerate(payloads):
        turns += [
            (True, send(payload, sequence)),
            (False, receipt(sequence)),
            (False, message(payload, sequence)),
            (True, acknowledge(sequence)),
        ]
    return [*turns, (False, PING), (True, PONG)]


def stream(turns: Iterable[Turn], to_broker: bool) -> bytes:
    return b"".join(raw for direction, raw in turns if direction is to_broker)


def placed(turns: Iterable[Turn], to_broker: bool) -> list[tuple[int, bytes]]:
    """The frames of a direction, each with the offset of its first byte."""
    frames: list[tuple[int, bytes]] = []
    at = 0
    for direction, raw in turns:
        if direction is to_broker:
            frames.append((at, raw))
            at += len(raw)
    return frames


# ---- Segments ----


@dataclass
class Tcp:
    """A TCP connection: makes its segments, with the acknowledgements that fit what was made so far."""

    client: tuple[str, int] = ("10.0.0.1", 50_000)
    server: tuple[str, int] = ("10.0.0.2", 6650)
    isn: tuple[int, int] = (1_000, 2_000)
    """Initial sequence numbers of the client and of the server."""
    sent: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})
    """Bytes sent so far, by direction (True: to the broker)."""

    def segment(
        self,
        to_broker: bool,
        offset: int,
        payload: bytes = b"",
        *,
        flags: int = ACK,
        missing: int = 0,
        acknowledged: int | None = None,
    ) -> Segment:
        """A segment whose first byte is at `offset` of its direction; it acknowledges all sent the other way,
        or up to the offset `acknowledged`.
        """
        ends = (self.client, self.server) if to_broker else (self.server, self.client)
        addresses = b"".join(ipaddress.ip_address(address).packed for address, _ in ends)
        ports = b"".join(port.to_bytes(2, "big") for _, port in ends)
        mine, other = self.isn if to_broker else self.isn[::-1]
        seen = self.sent[not to_broker] if acknowledged is None else acknowledged
        self.sent[to_broker] = max(self.sent[to_broker], offset + len(payload) + missing)
        sequence, acknowledgement = mine + 1 + offset, other + 1 + seen if flags & ACK else 0
        return addresses + ports, sequence % 2**32, acknowledgement % 2**32, flags, payload, missing

    def syn(self, payload: bytes = b"") -> Segment:
        made = self.segment(True, -1, payload, flags=SYN)
        self.sent[True] = len(payload)
        return made

    def syn_ack(self) -> Segment:
        return self.segment(False, -1, flags=SYN | ACK)

    def handshake(self) -> list[Segment]:
        return [self.syn(), self.syn_ack(), self.segment(True, 0)]

    def send(self, to_broker: bool, payload: bytes, *, flags: int = ACK, missing: int = 0) -> Segment:
        """A segment with the next bytes of its direction."""
        return self.segment(to_broker, self.sent[to_broker], payload, flags=flags, missing=missing)

    def say(self, turns: Iterable[Turn], most: int = 1448) -> list[Segment]:
        """The segments, of `most` bytes at most, in which frames travel one after the other."""
        return [
            self.send(to_broker, raw[at : at + most])
            for to_broker, raw in turns
            for at in range(0, len(raw), most)
        ]

    def fin(self, to_broker: bool, payload: bytes = b"") -> Segment:
        made = self.send(to_broker, payload, flags=FIN | ACK)
        self.sent[to_broker] += 1
        return made

    def rst(self, to_broker: bool) -> Segment:
        return self.send(to_broker, b"", flags=RST | ACK)

    def goodbye(self) -> list[Segment]:
        """FIN, FIN and the last ACK."""
        return [self.fin(True), self.fin(False), self.segment(True, self.sent[True])]

    def whole(self, turns: Iterable[Turn], most: int = 1448) -> list[Segment]:
        return [*self.handshake(), *self.say(turns, most), *self.goodbye()]


def reassembler() -> Reassembler:
    return Reassembler(Knowledge())


def decode(segments: Iterable[Segment], into: Reassembler | None = None) -> list[Event]:
    """The events of a capture that holds `segments`: packet n was captured n microseconds after START_NS."""
    into = into or reassembler()
    events: list[Event] = []
    for number, segment in enumerate(segments, 1):
        events += added(into, segment, START_NS + number * 1000, number)
    return events + closed(into)


def added(into: Reassembler, segment: Segment, time_ns: int | None, packet: int) -> list[Event]:
    """All events that a segment completes."""
    events: list[Event] = []
    some = into.add(segment, time_ns, packet)
    while some:
        events += some
        some = into.take_more()
    return events


def closed(reassembler: Reassembler) -> list[Event]:
    """The events that are left when the capture ends."""
    return [event for events in reassembler.close() for event in events]


def frames_of(events: Iterable[Event]) -> list[Frame]:
    """The whole frames."""
    return [event for event in events if isinstance(event, Frame) and not event.partial]


def raws(events: Iterable[Event], to_broker: bool | None = None) -> list[bytes]:
    """The bytes of the whole frames, of one direction or both."""
    return [frame.raw for frame in frames_of(events) if to_broker in (None, frame.to_broker)]


def troubles(events: Iterable[Event]) -> list[Event]:
    """All events that are no whole frame without notes."""
    return [event for event in events if not isinstance(event, Frame) or event.partial or event.notes]


def gaps(events: Iterable[Event], to_broker: bool) -> list[tuple[int, int]]:
    """(offset, size) of the gaps in one direction."""
    return [(gap.offset, gap.size) for gap in events if isinstance(gap, Gap) and gap.to_broker is to_broker]


def malformed(events: Iterable[Event]) -> list[Malformed]:
    return [event for event in events if isinstance(event, Malformed)]


class Seen(NamedTuple):
    """What a test compares of a frame; `request` is the request's place in its direction."""

    type: int
    raw: bytes
    offset: int
    topic: str | None
    request: tuple[bool, int] | None


def story(events: Iterable[Event]) -> dict[bool, list[Seen]]:
    """The frames of each direction in order, with the requests that they answer."""
    frames = [event for event in events if isinstance(event, Frame)]
    place: dict[int, tuple[bool, int]] = {}
    counts = {True: 0, False: 0}
    for frame in frames:
        place[frame.number] = (frame.to_broker, counts[frame.to_broker])
        counts[frame.to_broker] += 1
    told: dict[bool, list[Seen]] = {True: [], False: []}
    for frame in frames_of(frames):
        request = None if frame.request is None else place[frame.request]
        told[frame.to_broker].append(Seen(frame.type, frame.raw, frame.offset, frame.topic, request))
    return told


# ---- Packets ----


def ipv4(segment: Segment) -> bytes:
    """The IP packet of a segment; bytes said to be missing are left out."""
    key, sequence, acknowledged, flags, payload, missing = segment
    size = 40 + len(payload) + missing
    ip = struct.pack(">BBHHHBBH", 0x45, 0, size, 0, 0x4000, 64, 6, 0) + key[:8]
    return ip + key[8:] + struct.pack(">IIBBHHH", sequence, acknowledged, 0x50, flags, 65_535, 0, 0) + payload


def ethernet(segment: Segment) -> bytes:
    return bytes(range(12)) + b"\x08\x00" + ipv4(segment)


def captured(segments: Iterable[Segment], step_ns: int = 1000) -> list[RawPacket]:
    """Segments as captured Ethernet packets, `step_ns` apart."""
    return [
        (START_NS + number * step_ns, ETHERNET, data, len(data) + segment[5])
        for number, segment in enumerate(segments, 1)
        for data in [ethernet(segment)]
    ]


# ---- Capture files ----

PCAP_MAGICS = {
    (order, nanoseconds): struct.pack(order + "I", 0xA1B23C4D if nanoseconds else 0xA1B2C3D4)
    for order in "<>"
    for nanoseconds in (False, True)
}


def pcap_header(order: str = "<", nanoseconds: bool = False, link: int = ETHERNET) -> bytes:
    return PCAP_MAGICS[order, nanoseconds] + struct.pack(order + "HHiIII", 2, 4, 0, 0, 262_144, link)


def pcap_record(packet: RawPacket, order: str = "<", nanoseconds: bool = False) -> bytes:
    time_ns, _, data, length = packet
    seconds, fraction = divmod(time_ns or 0, 1_000_000_000)
    fraction = fraction if nanoseconds else fraction // 1000
    return struct.pack(order + "IIII", seconds, fraction, len(data), length) + data


def pcap(packets: Iterable[RawPacket], order: str = "<", nanoseconds: bool = False) -> bytes:
    records = b"".join(pcap_record(packet, order, nanoseconds) for packet in packets)
    return pcap_header(order, nanoseconds) + records


def block(order: str, kind: int, body: bytes) -> bytes:
    body += bytes(-len(body) % 4)
    size = 12 + len(body)
    return struct.pack(order + "II", kind, size) + body + struct.pack(order + "I", size)


def option(order: str, code: int, value: bytes) -> bytes:
    return struct.pack(order + "HH", code, len(value)) + value + bytes(-len(value) % 4)


def section(order: str = "<", options: bytes = b"") -> bytes:
    return block(order, 0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1) + options)


def interface(order: str = "<", link: int = ETHERNET, snap: int = 0, options: bytes = b"") -> bytes:
    return block(order, 1, struct.pack(order + "HHI", link, 0, snap) + options)


def enhanced(
    ticks: int, data: bytes, length: int, number: int = 0, order: str = "<", options: bytes = b""
) -> bytes:
    head = struct.pack(order + "IIIII", number, ticks >> 32, ticks & 0xFFFFFFFF, len(data), length)
    return block(order, 6, head + data + bytes(-len(data) % 4) + options)


def statistics(dropped: int, number: int = 0, order: str = "<", code: int = 5) -> bytes:
    """An interface statistics block; `code` is that of isb_ifdrop, or 7 of isb_osdrop."""
    options = option(order, 4, struct.pack(order + "Q", 1_000_000)) if code == 5 else b""
    counted = option(order, code, struct.pack(order + "Q", dropped))
    return block(order, 5, struct.pack(order + "III", number, 0, 0) + options + counted)


def old_packet(ticks: int, data: bytes, length: int, number: int = 0, order: str = "<") -> bytes:
    head = struct.pack(order + "HHIIII", number, 3, ticks >> 32, ticks & 0xFFFFFFFF, len(data), length)
    return block(order, 2, head + data)


def simple(data: bytes, length: int, order: str = "<") -> bytes:
    return block(order, 3, struct.pack(order + "I", length) + data)


# ---- Cutting and shuffling ----


def pieces(data: bytes, sizes: Sequence[int]) -> Callable[[], bytes]:
    """Give `data` on in pieces of `sizes` (the last of which repeats), then nothing."""
    at, count = 0, 0

    def read() -> bytes:
        nonlocal at, count
        size = sizes[min(count, len(sizes) - 1)]
        piece = data[at : at + size]
        at, count = at + len(piece), count + 1
        return piece

    return read


def bursts(turns: Iterable[Turn]) -> list[Turn]:
    """What each side says before the other does."""
    joined: list[Turn] = []
    for to_broker, raw in turns:
        if joined and joined[-1][0] is to_broker:
            joined[-1] = (to_broker, joined[-1][1] + raw)
        else:
            joined.append((to_broker, raw))
    return joined


def slices(size: int, rng: random.Random, forbidden: frozenset[int] = frozenset()) -> list[tuple[int, int]]:
    """A random cutting of `size` bytes, at none of the `forbidden` places."""
    places = [place for place in range(1, size) if place not in forbidden]
    cuts = sorted(rng.sample(places, min(len(places), rng.choice((0, 1, 2, 3, 8)))))
    return list(zip([0, *cuts], [*cuts, size], strict=True))


def pcapng_options(data: bytes) -> list[tuple[int, list[tuple[int, str]]]]:
    """The blocks of a pcapng file of ours: kind, and codes and texts of its options."""
    heads = {0x0A0D0D0A: 16, 1: 8, 6: 20}
    blocks, at = [], 0
    while at < len(data):
        kind, size = struct.unpack_from("<II", data, at)
        body, pos = data[at + 8 : at + size - 4], heads[kind]
        if kind == 6:
            captured_size = int.from_bytes(body[12:16], "little")
            pos += captured_size + -captured_size % 4
        options = []
        while pos < len(body):
            code, length = struct.unpack_from("<HH", body, pos)
            if code == 0:
                assert pos + 4 == len(body)
                break
            options.append((code, body[pos + 4 : pos + 4 + length].decode("utf-8", "backslashreplace")))
            pos += 4 + length + -length % 4
        blocks.append((kind, options))
        at += size
    return blocks


def packet_comments(data: bytes) -> list[list[str]]:
    """The comments on the packets of a pcapng file of ours."""
    found = [options for kind, options in pcapng_options(data) if kind == 6]
    assert all(code == 1 for options in found for code, _ in options)
    return [[text for _, text in options] for options in found]
