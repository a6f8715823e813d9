"""Random captures: a few dozen packets of connections that do all that connections do, written in any way.

Each capture draws how often things happen, so that some are nearly whole and others are mostly damage.
"""

from __future__ import annotations

import gzip
import random
import struct
from collections.abc import Iterator
from typing import NamedTuple

import zstandard
from segments import (
    START_NS,
    Tcp,
    block,
    build,
    enhanced,
    interface,
    old_packet,
    option,
    pcap_header,
    pcap_record,
    section,
    simple,
)

from pulsarctl_wire.capture.files import RawPacket
from pulsarctl_wire.capture.packets import ACK, FIN, RST, SYN, Segment
from pulsarctl_wire.wire.frame import build_frame
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, BrokerEntryMetadata, MessageMetadata, ServerError

ETHERNET, SLL, RAW = 1, 113, 101
FOREIGN = (
    b"GET /admin/v2/clusters HTTP/1.1\r\nHost: broker\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    b"PROXY TCP4 10.0.0.1 10.0.0.2 50000 6650\r\n",
    b"\x16\x03\x01\x00\x20" + bytes(32),
    b"SSH-2.0-OpenSSH_9.6\r\n",
)


class Odds(NamedTuple):
    """How often things happen in a capture."""

    lost: float
    doubled: float
    swapped: float
    late: float
    garbage: float
    foreign: float
    midway: float
    one_sided: float
    ended: float
    again: float
    fragmented: float
    snapped: float
    nested: float
    large: float


def odds(rng: random.Random) -> Odds:
    def some(chance: float, most: float) -> float:
        return rng.random() * most if rng.random() < chance else 0.0

    return Odds(
        lost=some(0.4, 0.2),
        doubled=some(0.4, 0.2),
        swapped=some(0.4, 0.2),
        late=some(0.2, 0.1),
        garbage=some(0.3, 0.2),
        foreign=some(0.2, 0.5),
        midway=some(0.7, 1.0),
        one_sided=some(0.3, 0.7),
        ended=some(0.7, 1.0),
        again=some(0.5, 0.7),
        fragmented=some(0.2, 0.3),
        snapped=some(0.2, 0.2),
        nested=some(0.5, 1.0),
        large=some(0.2, 0.2),
    )


# ---- What is said ----


class Talk:
    """The frames of a connection: (to_broker, bytes), many of them about what was opened before."""

    def __init__(self, rng: random.Random, chances: Odds) -> None:
        self.rng = rng
        self.chances = chances
        self.requests = {True: 0, False: 0}
        self.is_cpp = rng.random() < 0.5
        self.waiting: list[tuple[str, int, int]] = []

    def frames(self, count: int) -> Iterator[tuple[bool, bytes]]:
        rng = self.rng
        if rng.random() < 0.7:
            yield True, build("CONNECT", client_version="c", auth_data=b"secret")
            yield False, self._connected()
        for _ in range(count):
            if rng.random() < self.chances.garbage:
                yield rng.random() < 0.5, rng.randbytes(rng.randrange(1, 60))
            else:
                yield self._frame()

    def _connected(self) -> bytes:
        limit = self.rng.choice((0, 0, 1, 1_000, 3_000, 6_000_000))
        return build("CONNECTED", server_version="b", max_message_size=limit)

    def _frame(self) -> tuple[bool, bytes]:
        rng = self.rng
        number, consumer = rng.randrange(3), rng.randrange(3)
        kind = rng.randrange(20)
        if kind < 4:
            return True, build(
                "SEND", self._metadata(), self._payload(), producer_id=number, sequence_id=kind
            )
        if kind < 6:
            at = {"ledgerId": rng.choice((7, 2**64 - 1)), "entryId": rng.randrange(300)}
            return False, build("SEND_RECEIPT", producer_id=number, sequence_id=kind, message_id=at)
        if kind < 10:
            return False, self._message(consumer)
        if kind < 12:
            ids = [{"ledgerId": 7, "entryId": n} for n in range(rng.randrange(4))]
            extra = {"request_id": self._ask("ACK", consumer)} if rng.random() < 0.5 else {}
            return True, build("ACK", consumer_id=consumer, ack_type=kind - 10, message_id=ids, **extra)
        if kind == 12:
            return True, build("FLOW", consumer_id=consumer, messagePermits=rng.choice((1, 1000, 2**32 - 1)))
        if kind < 16:
            return True, self._asking(number, consumer)
        if kind < 18 and self.waiting:
            return False, self._answer()
        if kind == 18:
            name = rng.choice(("PING", "PONG", "CONNECTED", "TOPIC_MIGRATED", "ACTIVE_CONSUMER_CHANGE"))
            if name == "CONNECTED":
                return False, self._connected()
            if name == "TOPIC_MIGRATED":
                return False, build(name, resource_id=number, resource_type=rng.randrange(2))
            if name == "ACTIVE_CONSUMER_CHANGE":
                return False, build(name, consumer_id=consumer, is_active=True)
            return rng.random() < 0.5, build(name)
        return rng.random() < 0.5, self._strange()

    def _strange(self) -> bytes:
        """Frames that parse, but nobody sends."""
        command = self.rng.choice(
            (
                b"\x08\x06",  # SEND without its sub-message
                b"\x08\x09",
                b"\x08\x63",  # a type that nobody knows
                b"\x08\x0b\x92\x01\x00",  # FLOW that carries a PING
                b"\x08\x12\x92\x01\x00\x98\x06\x01",  # PING and an unknown field
            )
        )
        behind = self.rng.choice((b"", b"", b"behind"))
        return struct.pack(">II", 4 + len(command) + len(behind), len(command)) + command + behind

    def _message(self, consumer: int) -> bytes:
        rng = self.rng
        base = BaseCommand(type=BaseCommand.MESSAGE)
        base.message.consumer_id = consumer
        base.message.message_id.ledgerId, base.message.message_id.entryId = 7, rng.randrange(300)
        if rng.random() < 0.2:
            base.message.redelivery_count = rng.randrange(2**32)
        entry = BrokerEntryMetadata(broker_timestamp=1, index=2) if rng.random() < 0.2 else None
        checksum = rng.random() < 0.9
        return build_frame(
            base,
            self._metadata(),
            self._payload(),
            checksum=checksum,
            broker_entry=entry if checksum else None,
        )

    def _metadata(self) -> MessageMetadata:
        rng = self.rng
        metadata = MessageMetadata(producer_name="p", sequence_id=rng.randrange(300), publish_time=2**40)
        if rng.random() < 0.2:
            metadata.partition_key = rng.choice(("k", "key"))
        if rng.random() < 0.2:
            metadata.num_chunks_from_msg, metadata.chunk_id, metadata.uuid = 2, rng.randrange(2), "u"
        return metadata

    def _payload(self) -> bytes:
        rng = self.rng
        if rng.random() < self.chances.large:
            return rng.randbytes(rng.choice((2_000, 10_100, 12_000, 14_000)))
        if rng.random() < self.chances.nested:
            return self._nested()
        return rng.randbytes(rng.randrange(80))

    def _nested(self) -> bytes:
        """A payload that looks like what is around it."""
        rng = self.rng
        packets = [
            (START_NS, ETHERNET, rng.randbytes(rng.randrange(1, 9)), 9) for _ in range(rng.randrange(1, 20))
        ]
        kind = rng.randrange(4)
        if kind == 0:
            return build("PING") * rng.randrange(1, 4) + build("FLOW", consumer_id=1, messagePermits=1)
        if kind == 1:
            return b"".join(pcap_record(packet) for packet in packets)
        if kind == 2:
            return b"".join(enhanced(1, packet[2], packet[3]) for packet in packets)
        return pcap_header() + b"".join(map(pcap_record, packets))

    def _ask(self, name: str, owner: int = 0) -> int:
        """The id of a new request; C++ clients count their lookups apart."""
        is_lookup = self.is_cpp and name == "LOOKUP"
        self.requests[is_lookup] += 1
        self.waiting.append((name, self.requests[is_lookup], owner))
        return self.requests[is_lookup]

    def _asking(self, number: int, consumer: int) -> bytes:
        rng = self.rng
        topic = rng.choice(("t", "u", "persistent://a/b/c"))
        kind = rng.randrange(9)
        if kind < 2:
            return build("PRODUCER", topic=topic, producer_id=number, request_id=self._ask("PRODUCER"))
        if kind < 4:
            return build(
                "SUBSCRIBE",
                topic=topic,
                subscription=rng.choice("sv"),
                subType=1,
                consumer_id=consumer,
                request_id=self._ask("SUBSCRIBE"),
            )
        if kind == 4:
            return build("LOOKUP", topic=topic, request_id=self._ask("LOOKUP"))
        if kind == 5:
            return build("CLOSE_PRODUCER", producer_id=number, request_id=self._ask("CLOSE_PRODUCER"))
        if kind == 6:
            return build("CLOSE_CONSUMER", consumer_id=consumer, request_id=self._ask("CLOSE_CONSUMER"))
        if kind == 7:
            return build("GET_LAST_MESSAGE_ID", consumer_id=consumer, request_id=self._ask("GET_LAST"))
        return build("SEEK", consumer_id=consumer, request_id=self._ask("SEEK"), message_publish_time=1)

    def _answer(self) -> bytes:
        rng = self.rng
        name, request, owner = self.waiting.pop(rng.randrange(len(self.waiting)))
        if rng.random() < 0.2:
            return build("ERROR", request_id=request, error=ServerError.ConsumerBusy, message="no")
        if name == "ACK":
            return build("ACK_RESPONSE", consumer_id=owner, request_id=request)
        if name == "PRODUCER":
            ready = rng.random() < 0.8
            if not ready:
                self.waiting.append((name, request, owner))
            return build("PRODUCER_SUCCESS", request_id=request, producer_name="p", producer_ready=ready)
        if name == "LOOKUP":
            return build(
                "LOOKUP_RESPONSE", request_id=request, brokerServiceUrl="pulsar://b:6650", response=1
            )
        if name == "GET_LAST":
            at = {"ledgerId": 7, "entryId": 1}
            return build("GET_LAST_MESSAGE_ID_RESPONSE", request_id=request, last_message_id=at)
        return build("SUCCESS", request_id=request)


# ---- How it travels ----


def flow(rng: random.Random, chances: Odds, ends: Tcp | None = None) -> tuple[Tcp, list[Segment]]:
    """The segments of a connection, of new addresses or of those of `ends`."""
    isn = (rng.choice((1_000, 2**32 - 400, rng.randrange(2**32))), rng.randrange(2**32))
    if ends is not None:
        tcp = Tcp(ends.client, ends.server, isn if rng.random() < 0.8 else ends.isn)
    elif rng.random() < 0.2:
        tcp = Tcp((f"fd00::{rng.randrange(1, 9):x}", rng.randrange(1, 2**16)), ("fd00::ff", 6650), isn)
    else:
        server = ("10.0.0.2", rng.choice((6650, 6650, 7000, 60_000)))
        tcp = Tcp((f"10.0.1.{rng.randrange(9)}", rng.randrange(1_024, 65_536)), server, isn)
    segments: list[Segment] = []
    if rng.random() >= chances.midway:
        segments += tcp.handshake()[rng.choice((0, 0, 0, 1)) :][: rng.choice((1, 2, 3, 3, 3))]
    data = list(Talk(rng, chances).frames(rng.choice((0, 2, 10, 30))))
    if rng.random() < chances.foreign:
        data.insert(0, (rng.random() < 0.5, rng.choice(FOREIGN)))
    segments += _segments(rng, tcp, data)
    if rng.random() < chances.ended:
        how = rng.randrange(6)
        if how < 3:
            segments += tcp.goodbye()[: rng.randrange(1, 4)]
        elif how == 3:
            segments.append(tcp.fin(rng.random() < 0.5, rng.randbytes(rng.randrange(20))))
        else:
            segments.append(tcp.rst(rng.random() < 0.5))
    if rng.random() < chances.one_sided:
        only = rng.random() < 0.5
        port = (tcp.client if only else tcp.server)[1].to_bytes(2, "big")
        segments = [segment for segment in segments if segment[0][-4:-2] == port]
    return tcp, segments


def _segments(rng: random.Random, tcp: Tcp, data: list[tuple[bool, bytes]]) -> list[Segment]:
    segments = []
    most = rng.choice((5, 40, 200, 1448))
    together = rng.random() * 0.9
    left = {True: b"", False: b""}
    for to_broker, raw in data:
        left[to_broker] += raw
        size = most if len(raw) < 500 else 1448
        while left[to_broker] and (len(left[to_broker]) > size or rng.random() > together):
            cut = rng.randrange(1, size + 1) if rng.random() < 0.5 else size
            segments.append(tcp.send(to_broker, left[to_broker][:cut]))
            left[to_broker] = left[to_broker][cut:]
        if rng.random() < 0.1:
            side = rng.random() < 0.5
            segments.append(tcp.segment(side, tcp.sent[side]))
    segments += [tcp.send(to_broker, rest) for to_broker, rest in left.items() if rest]
    return segments


def segments_of(rng: random.Random, chances: Odds) -> list[Segment]:
    """The segments of a capture: of several connections, some on the addresses of earlier ones."""
    queues: list[list[Segment]] = []
    for _ in range(rng.randrange(1, 6)):
        tcp, queue = flow(rng, chances)
        while rng.random() < chances.again:
            queue += flow(rng, chances, tcp)[1]
        if queue:
            queues.append(queue[rng.randrange(len(queue)) if rng.random() < chances.midway / 2 else 0 :])
    mixed: list[Segment] = []
    while queues := [queue for queue in queues if queue]:
        queue = rng.choice(queues)
        count = rng.randrange(1, 8)
        mixed += queue[:count]
        del queue[:count]
    return _mangled(rng, chances, mixed)


def _mangled(rng: random.Random, chances: Odds, segments: list[Segment]) -> list[Segment]:
    places = []
    for number, segment in enumerate(segments):
        if rng.random() < chances.lost:
            continue
        place = float(number)
        if rng.random() < chances.swapped:
            place += rng.randrange(1, 4) + 0.5
        if rng.random() < chances.late:
            place += rng.randrange(200)
        places.append((place, segment))
        if rng.random() < chances.doubled:
            places.append((place + rng.choice((0, 2, 20)), segment))
    places.sort(key=lambda each: each[0])
    return [segment for _, segment in places]


# ---- How it is captured ----


def _ip(segment: Segment, number: int) -> tuple[bytes, int]:
    """The IP packet of a segment, and its EtherType."""
    key, sequence, acknowledged, flags, payload, missing = segment
    tcp = key[-4:] + struct.pack(">IIBBHHH", sequence, acknowledged, 0x50, flags, 65_535, 0, 0) + payload
    if len(key) == 36:
        return struct.pack(">IHBB", 6 << 28, len(tcp) + missing, 6, 64) + key[:32] + tcp, 0x86DD
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp) + missing, number & 0xFFFF, 0x4000, 64, 6, 0)
    return head + key[:8] + tcp, 0x0800


def _fragments(rng: random.Random, packet: bytes) -> list[bytes]:
    head, body = packet[:20], packet[20:]
    cut = rng.randrange(8, max(len(body), 9), 8)
    pieces = [(0, body[:cut], 0x2000), (cut, body[cut:], 0)]
    return [
        head[:2]
        + struct.pack(">H", 20 + len(piece))
        + head[4:6]
        + struct.pack(">H", at // 8 | more)
        + head[8:]
        + piece
        for at, piece, more in rng.sample(pieces, 2)
    ]


def _framed(rng: random.Random, link: int, packet: bytes, kind: int) -> bytes:
    if link == RAW:
        return packet
    if link == SLL:
        return bytes(14) + kind.to_bytes(2, "big") + packet
    tag = b"\x81\x00\x00\x07" if rng.random() < 0.1 else b""
    return bytes(range(12)) + tag + kind.to_bytes(2, "big") + packet


def packets_of(
    rng: random.Random, chances: Odds, segments: list[Segment], links: list[int]
) -> list[RawPacket]:
    """Captured packets, of links of these types."""
    waiting: list[RawPacket] = []
    packets: list[RawPacket] = []
    time_ns = START_NS
    hop = rng.choice((1_000, 1_000_000, 1_000_000_000, 10**14))
    for number, segment in enumerate(segments):
        packet, kind = _ip(segment, number)
        length = len(packet) + segment[5]
        pieces = [packet]
        if kind == 0x0800 and len(packet) > 48 and rng.random() < chances.fragmented:
            pieces = _fragments(rng, packet)
        for piece in pieces:
            time_ns += rng.randrange(hop) if rng.random() < 0.97 else -rng.randrange(hop)
            link = rng.choice(links)
            data = _framed(rng, link, piece, kind)
            full = len(data) + (segment[5] if len(pieces) == 1 else 0)
            if rng.random() < chances.snapped:
                data = data[: rng.choice((60, 70, 96, 120))]
            made = (time_ns, link, data, max(full, len(data)))
            if len(pieces) > 1 and rng.random() < 0.5:
                waiting.append(made)
            else:
                packets.append(made)
        if waiting and rng.random() < 0.3:
            packets.append(waiting.pop(0))
        if rng.random() < 0.03:
            packets.append((time_ns, links[0], rng.randbytes(rng.randrange(0, 80)), 80))
        assert length
    return packets + waiting


class File(NamedTuple):
    name: str
    data: bytes


def _pcap(rng: random.Random, packets: list[RawPacket], link: int) -> bytes:
    order, nanoseconds = rng.choice("<>"), rng.random() < 0.5
    records = b"".join(pcap_record(packet, order, nanoseconds) for packet in packets)
    return pcap_header(order, nanoseconds, link) + records


def _pcapng(rng: random.Random, packets: list[RawPacket], links: list[int]) -> bytes:
    """Blocks: interfaces and sections begin anywhere, and nobody knows all kinds of blocks."""
    order, out = "", b""
    interfaces: list[tuple[int, int]] = []
    for packet in packets:
        time_ns, link, data, length = packet
        if not order or rng.random() < 0.03:
            order = rng.choice("<>")
            out += section(order)
            interfaces = []
        known = [number for number, (each, _) in enumerate(interfaces) if each == link]
        if not known or rng.random() < 0.05:
            power = rng.choice((6, 9, 9, 3))
            options = option(order, 9, bytes([power])) + option(order, 0, b"") if power != 6 else b""
            known.append(len(interfaces))
            interfaces.append((link, 10 ** (9 - power)))
            out += interface(order, link, 0, options)
        if rng.random() < 0.05:
            out += block(order, rng.choice((4, 5, 0x0BAD)), rng.randbytes(8))
        number = rng.choice(known)
        ticks = (time_ns or 0) // interfaces[number][1]
        kind = rng.random()
        if kind < 0.1:
            out += old_packet(ticks, data + bytes(-len(data) % 4), length + -len(data) % 4, number, order)
        elif kind < 0.15 and interfaces[0][0] == link and length == len(data):
            out += simple(data, length, order)
        else:
            out += enhanced(ticks, data, length, number, order)
    return out


class Capture(NamedTuple):
    """Files that continue each other, and how to take them: bytes of a split, of the largest frame."""

    files: list[File]
    split_size: int
    max_frame_size: int | None


def capture(rng: random.Random) -> Capture:
    """A random capture."""
    chances = odds(rng)
    segments = segments_of(rng, chances)
    blocks = rng.random() < 0.3
    links = (
        rng.sample((ETHERNET, SLL, RAW), rng.choice((1, 1, 2))) if blocks else [rng.choice((1, 1, SLL, RAW))]
    )
    packets = packets_of(rng, chances, segments, links)
    return written(rng, packets, blocks, links)


def written(rng: random.Random, packets: list[RawPacket], blocks: bool, links: list[int]) -> Capture:
    """The packets in one file or several, some compressed, now and then cut."""
    cuts = sorted(rng.randrange(len(packets) + 1) for _ in range(rng.choice((0, 0, 0, 1, 2, 4))))
    files: list[File] = []
    total = 0
    for start, stop in zip([0, *cuts], [*cuts, len(packets)], strict=True):
        some = packets[start:stop]
        data = _pcapng(rng, some, links) if blocks and some else _pcap(rng, some, links[0])
        if rng.random() < 0.03:
            data = data[: rng.choice((0, rng.randrange(4, len(data) + 1)))]
        total += len(data)
        name = f"{len(files)}.pcap"
        if rng.random() < 0.1:
            data, name = gzip.compress(data, 1, mtime=0), name + ".gz"
        elif rng.random() < 0.1:
            data, name = zstandard.compress(data, 1), name + ".zst"
        files.append(File(name, data))
    split_size = max(100, total // rng.randrange(2, 20))
    if rng.random() < 0.2:
        split_size = rng.randrange(100, 5_000)
    limit = rng.choice((None, None, None, 200, 2_000, 20_000))
    return Capture(files, max(split_size, total // 60), limit)


__all__ = ["ACK", "FIN", "RST", "SYN", "Capture", "File", "Odds", "capture", "written"]
