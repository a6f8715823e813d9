"""Write a capture of busy Pulsar connections: `python benchmarks/generate.py OUT.pcap --frames 1000000`.

Each connection opens, creates a producer and a consumer for each of its topics, then publishes in bursts
to one topic after another and consumes what it published:

    client  SEND..                       ACK.. [FLOW]
    broker         SEND_RECEIPT.. MESSAGE..

A line of frames above is one write to the socket; a write is cut into segments of at most `MSS` bytes, so
that most packets hold one or two frames and some frames span packets. Connections take turns at random;
if there are more connections than topics, several have a producer and a consumer on the same topic.

Ids, sequence numbers, permits, checksums of entries and TCP's counters are correct. IP and TCP checksums
are 0, as in a capture from a host that leaves them to its network card; readers do not verify them.
The same arguments give the same bytes (with the same versions of the compression libraries). Memory does not
grow: entries come from a pool made once, and packets are written as they are made.
"""

import random
import struct
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, NamedTuple

import cramjam
import lz4.block
import typer
import zstandard
from crc32c import crc32c

from pulsarctl_wire.wire import PulsarApi_pb2 as api
from pulsarctl_wire.wire.commands import build_command

PORT: Final = 6650
MSS: Final = 1448
"""Bytes of TCP payload in an Ethernet packet of 1500, with TCP's timestamp option."""

TOPICS: Final = 200
MAX_CONNECTIONS: Final = 25_000
"""The most connections: each has its own port, from 40,000 on."""
ENTRIES: Final = 2000
"""Entries in the pool."""
BATCHES: Final = 0.2
"""Share of the entries that are batches."""
BURSTS: Final = (1, 1, 2, 2, 3)
"""Entries published at once; one of these numbers is drawn."""
QUEUE: Final = 200
"""Permits of a consumer; it grants half as many again whenever it has used half."""
LEDGER: Final = 50_000
"""Entries of a topic before its next ledger begins."""

NO_SEQUENCE: Final = 2**64 - 1
"""The broker's value for the highest sequence id of a single message."""

PURE_ACKS: Final = 0.125
"""Share of the writes that the peer acknowledges with an empty packet."""
DUPLICATED: Final = 0.003
SWAPPED: Final = 0.005
START_US: Final = 1_767_225_600_000_000
MEAN_GAP_US: Final = 20

SYN: Final = 0x02
PSH: Final = 0x08
ACK: Final = 0x10

CODECS: Final["dict[api.CompressionType.ValueType, Callable[[bytes], bytes]]"] = {
    api.NONE: bytes,
    api.LZ4: lambda data: bytes(lz4.block.compress(data, store_size=False)),
    api.ZLIB: zlib.compress,
    api.ZSTD: lambda data: zstandard.ZstdCompressor().compress(data),
    api.SNAPPY: lambda data: bytes(cramjam.snappy.compress_raw(data)),
}
NAMES: Final = ("order", "price", "region", "status", "customer", "created", "amount", "sensor", "reading")

_U32: Final = struct.Struct(">I")
_FRAME: Final = struct.Struct(">II")
_RECORD: Final = struct.Struct("<IIII")
_IP_TCP: Final = struct.Struct(">HHHHBBH4s4s HHIIHHHH III")

Write = tuple[bool, list[bytes]]
"""One write to a socket: whether it goes to the broker, and its frames."""


class Entry(NamedTuple):
    """An entry to publish: serialized metadata, except for the producer's name, sequence ids and time."""

    metadata: bytes
    payload: bytes
    messages: int


class Log:
    """A topic's ledgers at the broker: the id of the last entry."""

    def __init__(self, number: int) -> None:
        self.ledger = 1000 + number
        self.entry = -1

    def advance(self) -> None:
        """Move on to the next entry."""
        self.entry += 1
        if self.entry == LEDGER:
            self.ledger, self.entry = self.ledger + TOPICS, 0


class Topic:
    """A topic on one connection: its producer and consumer, and their positions.

    `log` is the same for all connections of the topic; `producer` makes the producer's name.
    """

    def __init__(self, number: int, local: int, log: Log, producer: int) -> None:
        self.name = f"persistent://public/default/topic-{number:03}"
        self.id = local
        self.producer_name = f"standalone-0-{producer}"
        self.log = log
        self.sequence = -1
        self.taken = 0

    def advance(self, messages: int) -> None:
        """Move on to the next entry, which has this number of messages."""
        self.sequence += messages
        self.taken += messages
        self.log.advance()


class Side:
    """One end of a TCP connection: its address, and the sequence number of its next byte."""

    def __init__(self, address: bytes, port: int, sequence: int) -> None:
        self.address = address
        self.mac = b"\x02\x42" + address
        self.port = port
        self.sequence = sequence
        self.packets = 0


class Link:
    """A TCP connection: makes packets.

    If `unreliable`, its packets may be duplicated and swapped once it has `settled`; `held` is a packet that
    will be written after the next one.
    """

    def __init__(self, index: int, rng: random.Random, *, unreliable: bool) -> None:
        self.client = Side(bytes((10, 1, *divmod(1 + index, 256))), 40_000 + index, rng.getrandbits(32))
        self.broker = Side(bytes((10, 0, 0, 1)), PORT, rng.getrandbits(32))
        self.settled = False
        self.unreliable = unreliable
        self.held: bytes | None = None

    def packet(self, to_broker: bool, time_us: int, data: bytes = b"", flags: int = ACK) -> bytes:
        """The next packet of one side, as Ethernet carries it."""
        side, peer = (self.client, self.broker) if to_broker else (self.broker, self.client)
        side.packets += 1
        clock = time_us // 1000 & 0xFFFFFFFF
        headers = _IP_TCP.pack(
            *(0x4500, 52 + len(data), side.packets & 0xFFFF, 0x4000, 64, 6, 0, side.address, peer.address),
            *(side.port, peer.port, side.sequence, peer.sequence if flags & ACK else 0),
            *(0x8000 | flags, 0xFFFF, 0, 0),
            *(0x0101080A, clock, clock),  # two NOPs and the timestamp option
        )
        side.sequence = (side.sequence + len(data) + (flags >> 1 & 1)) & 0xFFFFFFFF
        return b"".join((peer.mac, side.mac, b"\x08\x00", headers, data))


class Capture:
    """Writes packets to `out` as a classic pcap until it holds `frames` frames."""

    def __init__(self, out: BinaryIO, frames: int, rng: random.Random) -> None:
        self.out = out
        self.missing = frames
        self.packets = 0
        self.time_us = START_US
        self.rng = rng
        self._random = rng.random
        out.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262_144, 1))

    def open(self, link: Link) -> None:
        """Write the handshake."""
        for to_broker, flags in ((True, SYN), (False, SYN | ACK), (True, ACK)):
            self._pass(link, link.packet(to_broker, self.time_us, flags=flags))

    def send(self, link: Link, to_broker: bool, frames: list[bytes]) -> None:
        """Write frames in segments, and now and then an empty packet of the peer."""
        frames = frames[: self.missing]
        self.missing -= len(frames)
        data = b"".join(frames)
        for at in range(0, len(data), MSS):
            flags = ACK if at + MSS < len(data) else ACK | PSH
            self._pass(link, link.packet(to_broker, self.time_us, data[at : at + MSS], flags))
        if self._random() < PURE_ACKS:
            self._pass(link, link.packet(not to_broker, self.time_us))

    def _pass(self, link: Link, packet: bytes) -> None:
        """Write a packet, once or twice, at once or after its successor."""
        if link.held is not None:
            self._record(packet)
            self._record(link.held)
            link.held = None
            return
        chance = self._random() if link.settled and link.unreliable else 1.0
        if chance < SWAPPED:
            link.held = packet
            return
        self._record(packet)
        if chance < SWAPPED + DUPLICATED:
            self._record(packet)

    def _record(self, packet: bytes) -> None:
        self.packets += 1
        self.time_us += 1 + int(self._random() * 2 * MEAN_GAP_US)
        seconds, micros = divmod(self.time_us, 1_000_000)
        self.out.write(_RECORD.pack(seconds, micros, len(packet), len(packet)))
        self.out.write(packet)

    def close(self, links: list[Link]) -> None:
        """Write the packets that are still held."""
        for link in links:
            if link.held is not None:
                self._record(link.held)


class Client:
    """The traffic between a client and the broker on one connection."""

    def __init__(self, link: Link, topics: list[Topic], pool: list[Entry], capture: Capture) -> None:
        self.link = link
        self.topics = topics
        self.pool = pool
        self.capture = capture
        self._choose = capture.rng.choice
        self._send = api.BaseCommand(type=api.BaseCommand.SEND)
        self._receipt = api.BaseCommand(type=api.BaseCommand.SEND_RECEIPT)
        self._message = api.BaseCommand(type=api.BaseCommand.MESSAGE)
        self._message.message.message_id.partition = -1

    def conversation(self) -> Iterator[Write]:
        """All writes of both sides, endlessly."""
        yield from self._connect()
        for topic in self.topics:
            yield from self._attach(topic)
        self.link.settled = True
        while True:
            yield from self._burst(self._choose(self.topics))

    def _connect(self) -> Iterator[Write]:
        client = {"client_version": "Pulsar-Java-v4.0.8", "auth_method_name": "none"}
        yield (
            True,
            [build("CONNECT", **client, protocol_version=21, feature_flags={"supports_auth_refresh": True})],
        )
        limit = {"max_message_size": 5 * 1024 * 1024}
        yield False, [build("CONNECTED", server_version="Pulsar Server4.0.8", protocol_version=21, **limit)]

    def _attach(self, topic: Topic) -> Iterator[Write]:
        """Create the topic's producer and its consumer, and give the consumer its first permits."""
        request = 2 * topic.id
        yield True, [build("PRODUCER", topic=topic.name, producer_id=topic.id, request_id=request)]
        answer = {"producer_name": topic.producer_name, "schema_version": b""}
        yield False, [build("PRODUCER_SUCCESS", request_id=request, **answer)]
        consumer = {"consumer_id": topic.id, "consumer_name": f"consumer-{topic.id}"}
        kind = {"subscription": "benchmark", "subType": api.CommandSubscribe.Shared}
        yield True, [build("SUBSCRIBE", topic=topic.name, request_id=request + 1, **kind, **consumer)]
        yield False, [build("SUCCESS", request_id=request + 1)]
        yield True, [flow(topic, QUEUE)]

    def _burst(self, topic: Topic) -> Iterator[Write]:
        """Publish some entries, which are confirmed, delivered and acknowledged."""
        sends, receipts, messages, ids = [], [], [], []
        for _ in range(self._choose(BURSTS)):
            entry = self._choose(self.pool)
            topic.advance(entry.messages)
            body = self._body(topic, entry)
            sends.append(self._sent(topic, entry, body))
            receipts.append(self._confirmed(topic, entry))
            messages.append(self._delivered(topic, body))
            ids.append((topic.log.ledger, topic.log.entry))
        yield True, sends
        yield False, receipts
        yield False, messages
        answers = acknowledged(topic, ids, together=self.capture.rng.random() < 0.5)
        if topic.taken >= QUEUE // 2:
            answers.append(flow(topic, topic.taken))
            topic.taken = 0
        yield True, answers

    def _body(self, topic: Topic, entry: Entry) -> bytes:
        """An entry with its checksum; SEND carries the same bytes as MESSAGE."""
        metadata = api.MessageMetadata(producer_name=topic.producer_name)
        metadata.sequence_id = topic.sequence - entry.messages + 1
        if entry.messages > 1:
            metadata.highest_sequence_id = topic.sequence
        metadata.publish_time = self.capture.time_us // 1000
        head = metadata.SerializeToString() + entry.metadata  # serialized messages merge
        covered = b"".join((_U32.pack(len(head)), head, entry.payload))
        return b"".join((b"\x0e\x01", _U32.pack(crc32c(covered)), covered))

    def _sent(self, topic: Topic, entry: Entry, body: bytes) -> bytes:
        send = self._send.send
        send.producer_id = topic.id
        send.sequence_id = topic.sequence - entry.messages + 1
        if entry.messages > 1:
            send.num_messages = entry.messages
            send.highest_sequence_id = topic.sequence
        else:
            send.ClearField("num_messages")
            send.ClearField("highest_sequence_id")
        return framed(self._send, body)

    def _confirmed(self, topic: Topic, entry: Entry) -> bytes:
        receipt = self._receipt.send_receipt
        receipt.producer_id = topic.id
        receipt.sequence_id = topic.sequence - entry.messages + 1
        receipt.highest_sequence_id = topic.sequence if entry.messages > 1 else NO_SEQUENCE
        receipt.message_id.ledgerId = topic.log.ledger
        receipt.message_id.entryId = topic.log.entry
        return framed(self._receipt)

    def _delivered(self, topic: Topic, body: bytes) -> bytes:
        message = self._message.message
        message.consumer_id = topic.id
        message.message_id.ledgerId = topic.log.ledger
        message.message_id.entryId = topic.log.entry
        return framed(self._message, body)


def framed(base: api.BaseCommand, body: bytes = b"") -> bytes:
    """A frame: the command, then the entry."""
    command = base.SerializeToString()
    return b"".join((_FRAME.pack(4 + len(command) + len(body), len(command)), command, body))


def build(command: str, **fields: Any) -> bytes:
    """Return the frame of a command with these fields."""
    return framed(build_command(command, **fields))


def flow(topic: Topic, permits: int) -> bytes:
    """Return a FLOW frame."""
    return build("FLOW", consumer_id=topic.id, messagePermits=permits)


def acknowledged(topic: Topic, ids: list[tuple[int, int]], *, together: bool) -> list[bytes]:
    """Return ACK frames for (ledger, entry) ids: one for all ids, or one for each."""
    groups = [ids] if together else [[position] for position in ids]
    fields = {"consumer_id": topic.id, "ack_type": api.CommandAck.Individual}
    return [
        build("ACK", **fields, message_id=[{"ledgerId": ledger, "entryId": entry} for ledger, entry in group])
        for group in groups
    ]


def make_entry(rng: random.Random) -> Entry:
    """An entry of a random kind and size: a single message, or every fifth time a batch."""
    if rng.random() < BATCHES:
        return make_batch(rng)
    metadata = api.MessageMetadata()
    payload = make_payload(rng, min(16_000, int(rng.lognormvariate(6.05, 0.8))))
    metadata.uncompressed_size = len(payload)
    if rng.random() < 0.3:
        metadata.partition_key = f"key-{rng.randrange(1000)}"
    if rng.random() < 0.2:
        metadata.properties.add(key="trace", value=f"{rng.getrandbits(64):016x}")
    return Entry(metadata.SerializePartialToString(), payload, 1)


def make_batch(rng: random.Random) -> Entry:
    """A batch of 2-20 small messages in a random codec."""
    count = rng.randint(2, 20)
    parts = []
    for _ in range(count):
        payload = make_payload(rng, rng.randint(40, 200))
        head = api.SingleMessageMetadata(payload_size=len(payload))
        if rng.random() < 0.3:
            head.partition_key = f"key-{rng.randrange(1000)}"
        raw = head.SerializeToString()
        parts += [_U32.pack(len(raw)), raw, payload]
    plain = b"".join(parts)
    codec = rng.choice(list(CODECS))
    metadata = api.MessageMetadata(uncompressed_size=len(plain), num_messages_in_batch=count)
    if codec != api.NONE:
        metadata.compression = codec
    return Entry(metadata.SerializePartialToString(), CODECS[codec](plain), count)


def make_payload(rng: random.Random, size: int) -> bytes:
    """About `size` bytes of JSON that compress like real records."""
    fields = []
    while size > 0:
        fields.append(f'"{rng.choice(NAMES)}":"{rng.getrandbits(40):x}"')
        size -= len(fields[-1]) + 1
    return f"{{{','.join(fields)}}}".encode()


def generate(out: BinaryIO, frames: int, connections: int = 8, seed: int = 1, *, clean: bool = False) -> int:
    """Write a capture of exactly `frames` frames to `out`; returns its number of packets.

    Unless `clean`, some packets are duplicated and some are swapped with their connection's next.
    """
    rng = random.Random(seed)
    pool = [make_entry(rng) for _ in range(ENTRIES)]
    capture = Capture(out, frames, rng)
    logs = [Log(number) for number in range(TOPICS)]
    talks = []
    for index in range(connections):
        if index < TOPICS:
            numbers = range(index, TOPICS, connections)
            topics = [Topic(number, local, logs[number], number) for local, number in enumerate(numbers)]
        else:
            number = index % TOPICS
            topics = [Topic(number, 0, logs[number], index)]
        link = Link(index, rng, unreliable=not clean)
        capture.open(link)
        talks.append((link, Client(link, topics, pool, capture).conversation()))
    while capture.missing:
        link, conversation = rng.choice(talks)
        to_broker, written = next(conversation)
        capture.send(link, to_broker, written)
    capture.close([link for link, _ in talks])
    return capture.packets


def main(
    out: Annotated[Path, typer.Argument(help="File to write.")],
    frames: Annotated[int, typer.Option(min=0)] = 1_000_000,
    connections: Annotated[
        int, typer.Option(min=1, max=MAX_CONNECTIONS, help=f"They share {TOPICS} topics.")
    ] = 8,
    seed: int = 1,
    clean: Annotated[bool, typer.Option("--clean", help="No duplicated and no swapped packets.")] = False,
) -> None:
    """Write a capture of busy Pulsar connections."""
    started = time.perf_counter()
    with out.open("wb", buffering=1 << 20) as target:
        packets = generate(target, frames, connections, seed, clean=clean)
    seconds = time.perf_counter() - started
    print(
        f"{frames} frames, {packets} packets, {out.stat().st_size} bytes in {seconds:.1f} s", file=sys.stderr
    )


if __name__ == "__main__":
    typer.run(main)
