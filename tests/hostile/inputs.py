"""Inputs of a size that ask for as much work and memory as they can.

INPUTS["batches of zeros"](SIZE)    the bytes of a file of at most 1 MB
"""

import base64
import gzip
import io
import json
import random
import struct
import zlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import segments
import zstandard

from pulsarctl_wire.capture.links import RAW_IP
from pulsarctl_wire.capture.packets import SYN
from pulsarctl_wire.capture.recording import SessionWriter
from pulsarctl_wire.capture.text.hex_dump import MAX_REPEATED, MAX_ZEROS
from pulsarctl_wire.wire.commands import BODIES
from pulsarctl_wire.wire.frame import Connection
from pulsarctl_wire.wire.frame_layout import MAGIC_CHECKSUM
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, CompressionType, MessageMetadata, Schema

SIZE: Final = 1_000_000
"""Bytes of an input: what is promised is promised of so many."""

SMALL: Final = SIZE // 32
"""Bytes of an input whose work is a small part of that."""

MIB: Final = 1024 * 1024
EMOJI: Final = "\N{GRINNING FACE}".encode()
"""It makes a text take four bytes a character."""

FIRST_ENTRY: Final = {"ledgerId": 7, "entryId": 0}

START_NS: Final = 1_700_000_000_000_000_000


def frame(base: BaseCommand, metadata: MessageMetadata | None = None, payload: bytes = b"") -> bytes:
    """A frame whatever it lacks, without checksum."""
    command = base.SerializePartialToString()
    entry = b""
    if metadata is not None:
        head = metadata.SerializePartialToString()
        entry = b"".join((len(head).to_bytes(4, "big"), head, payload))
    size = len(command).to_bytes(4, "big")
    return b"".join(((4 + len(command) + len(entry)).to_bytes(4, "big"), size, command, entry))


def capture(size: int, frames: Iterable[bytes]) -> bytes:
    """A capture of a client that sends these frames, as many as `size` bytes of file have room for."""
    file = io.BytesIO()
    writer = SessionWriter(file)
    connection = Connection(0, "10.0.0.1:40000", "10.0.0.2:6650")
    writer.opened(connection, START_NS)
    for number, each in enumerate(frames):
        if file.tell() + len(each) > size - 4096:
            break
        writer.carried(connection, True, each, START_NS + number * 1000)
    return file.getvalue()


def command(name: str, **fields: Any) -> BaseCommand:
    """A command with these fields and no others, required or not."""
    number = next(number for number, body in BODIES.items() if body == name)
    base = BaseCommand(type=number)  # type: ignore[arg-type]
    body = getattr(base, name)
    body.SetInParent()
    for field, value in fields.items():
        setattr(body, field, value)
    return base


def repeat(size: int, piece: bytes) -> bytes:
    """As many times `piece` as fit into `size` bytes; at least once."""
    return piece * max(size // len(piece), 1)


def endless(make: Callable[[int], bytes]) -> Iterable[bytes]:
    """`make` called with 0, 1, 2 …"""
    number = 0
    while True:
        yield make(number)
        number += 1


# -- one frame with as many items as it has room for


def of_items(body: str, field: str, size: int) -> bytes:
    """A frame whose repeated `field` is full of the smallest items."""
    base = command(body)
    items = getattr(getattr(base, body), field)
    kind = getattr(base, body).DESCRIPTOR.fields_by_name[field]
    for _ in range(size // 2 - 100):
        if kind.message_type is not None:
            items.add()
        else:
            items.append("" if kind.cpp_type == kind.CPPTYPE_STRING else 0)
    return frame(base)


REPEATED: Final = [
    (body.name, field.name)
    for body in BaseCommand.DESCRIPTOR.fields
    if body.message_type is not None
    for field in body.message_type.fields
    if field.is_repeated
]


def unknown_fields(size: int) -> bytes:
    """PING full of unknown fields, no two alike in a row."""
    fields = (b"\xc0\x3e\x00" + b"\xc8\x3e\x00") * (size // 6 - 10)
    inside = b"\x08\x12\x92\x01" + _varint(len(fields)) + fields
    return (4 + len(inside)).to_bytes(4, "big") + len(inside).to_bytes(4, "big") + inside


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*digits, value))


def credentials(size: int, piece: bytes) -> bytes:
    """AUTH_RESPONSE whose sub-message comes in many pieces, which protobuf merges."""
    inside = b"\x08\x25" + (b"\xaa\x02" + _varint(len(piece)) + piece) * (size // (len(piece) + 3) - 10)
    return (4 + len(inside)).to_bytes(4, "big") + len(inside).to_bytes(4, "big") + inside


def properties(size: int) -> bytes:
    """SEND whose metadata is full of properties without key and value."""
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    for _ in range(size // 2 - 100):
        metadata.properties.add()
    return frame(command("send", producer_id=0, sequence_id=0), metadata)


# -- entries that grow when they are opened

ZSTD: Final = zstandard.ZstdCompressor()


def entry(
    payload: bytes,
    codec: int = CompressionType.ZSTD,
    batch: int | None = None,
    base: BaseCommand | None = None,
) -> bytes:
    """A SEND, or another command, of a compressed payload, which may be a batch of so many messages."""
    metadata = MessageMetadata(
        producer_name="p",
        sequence_id=0,
        publish_time=1,
        compression=codec,  # type: ignore[arg-type]
        uncompressed_size=len(payload),
    )
    if batch is not None:
        metadata.num_messages_in_batch = batch
    packed = zlib.compress(payload, 9) if codec == CompressionType.ZLIB else ZSTD.compress(payload)
    return frame(base or command("send", producer_id=0, sequence_id=0), metadata, packed)


def opening(size: int, payload: bytes, **how: Any) -> bytes:
    """A capture full of such entries."""
    each = entry(payload, **how)
    return capture(size, [each] * (size // len(each)))


def of_metadata(piece: bytes) -> bytes:
    """A batch whose messages have metadata full of `piece`."""
    head = b"\x18\x00" + piece * (500_000 // len(piece))
    message = len(head).to_bytes(4, "big") + head
    return message * (16 * MIB // len(message))


def of_heads(head: bytes) -> bytes:
    """A batch of 63 messages without payload, with this metadata of up to 1 MiB beside the size of that."""
    metadata = b"\x18\x00" + head
    return (len(metadata).to_bytes(4, "big") + metadata) * 63


def of_text(piece: bytes, last: bytes, size: int) -> bytes:
    """Text of so many bytes that ends in another character, which may be wide."""
    return (piece * (size // len(piece)))[: size - len(last)] + last


def keys(piece: bytes, last: bytes = b"", field: bytes = b"\x12") -> bytes:
    """Such a batch with long keys, or another field of text."""
    text = of_text(piece, last, MIB - 16)
    return of_heads(field + _varint(len(text)) + text)


def values(piece: bytes, last: bytes = b"") -> bytes:
    """Such a batch with a property each."""
    text = of_text(piece, last, MIB - 40)
    pair = b"\x0a\x01a\x12" + _varint(len(text)) + text
    return of_heads(b"\x0a" + _varint(len(pair)) + pair)


def texts(piece: bytes, last: bytes, count: int, size: int) -> bytes:
    """A batch of so many messages with such a text as key and as payload."""
    text = of_text(piece, last, size)
    key = b"\x12" + _varint(len(text)) + text
    metadata = b"\x18" + _varint(len(text)) + key
    return (len(metadata).to_bytes(4, "big") + metadata + text) * count


def by_schema(size: int, kind: int, data: bytes, payload: bytes, **how: Any) -> bytes:
    """The bytes of a consumer with a schema, and of entries full of `payload` that it shows."""
    consumer = command("subscribe", topic="persistent://public/default/t", consumer_id=0, request_id=1)
    consumer.subscribe.subscription, consumer.subscribe.subType = "s", 0  # type: ignore[assignment]
    consumer.subscribe.schema.CopyFrom(Schema(name="s", schema_data=data, type=kind))  # type: ignore[arg-type]
    message = command("message", consumer_id=0)
    message.message.message_id.ledgerId = message.message.message_id.entryId = 1
    head, each = frame(consumer), entry(payload, base=message, **how)
    return head + each * max((size - len(head)) // len(each), 1)


def batch_of(payload: bytes, count: int) -> bytes:
    """A batch of so many messages with the same payload."""
    metadata = b"\x18" + _varint(len(payload))
    return (len(metadata).to_bytes(4, "big") + metadata + payload) * count


def zigzag(number: int) -> bytes:
    """A long as Avro has it."""
    return _varint(number << 1)


def items(size: int, schema: Any, item: bytes, count: int) -> bytes:
    """A consumer of Avro arrays that are full of `item`, and batches of five of them."""
    data = json.dumps({"type": "array", "items": schema}).encode()
    array = zigzag(count) + item * count + zigzag(0)
    return by_schema(size, Schema.Avro, data, batch_of(array, 5), batch=5)


def strings(size: int, piece: bytes, last: bytes) -> bytes:
    """A consumer of long Avro strings."""
    text = of_text(piece, last, 8 * MIB - 64)
    return by_schema(size, Schema.Avro, b'"string"', zigzag(len(text)) + text)


def nested_json(depth: int) -> bytes:
    """Lists in lists."""
    return b"[" * depth + b"]" * depth


WIDE_RECORD: Final = json.dumps(
    {
        "type": "record",
        "name": "r",
        "fields": [{"name": "n" * 250 + str(number), "type": "null"} for number in range(1000)],
    }
).encode()

ONE_FIELD: Final = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}]}
NATIVE_SCHEMA: Final = json.dumps(
    {"fileDescriptorSet": base64.b64encode(b"\x0a\x05\x22\x03\x0a\x01r").decode(), "rootMessageTypeName": "r"}
).encode()
"""Of a message r without fields."""


def large_schema(size: int) -> bytes:
    """An Avro schema of nine tenths of `size`."""
    fields = [{"name": "a", "type": "null"}]
    return json.dumps(
        {"type": "record", "name": "r", "doc": "x" * (size * 9 // 10), "fields": fields}
    ).encode()


# -- many small ones


def requests(number: int) -> bytes:
    """A LOOKUP that nobody answers, of a topic of its own."""
    return frame(command("lookupTopic", topic=f"persistent://a/b/{number:>400}", request_id=number))


def producers(number: int) -> bytes:
    """A PRODUCER of its own."""
    return frame(
        command("producer", topic=f"persistent://a/b/{number}", producer_id=number, request_id=number)
    )


def chunks(number: int) -> bytes:
    """The first chunk of a message of its own."""
    metadata = MessageMetadata(
        producer_name="p", sequence_id=number, publish_time=1, uuid=f"{number:x}", num_chunks_from_msg=2
    )
    metadata.chunk_id = 0
    return frame(command("send", producer_id=0, sequence_id=number), metadata, b"x")


def connections(size: int) -> bytes:
    """As many connections as there is room for, each with a frame."""
    file = io.BytesIO()
    writer = SessionWriter(file)
    ping = frame(command("ping"))
    for number in range(size):
        writer.carried(Connection(number), True, ping, START_NS)
        if file.tell() > size - 4096:
            break
    return file.getvalue()


def silent_consumers(size: int) -> bytes:
    """Consumers without permits, messages that wait for them, and then PINGs, some every 8 s."""
    build, metadata = segments.build, MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    turns = [(True, build("PRODUCER", topic="t", producer_id=1, request_id=1))]
    turns.append((False, build("PRODUCER_SUCCESS", request_id=1, producer_name="p")))
    for number in range(2, size // 500):
        ids = {"consumer_id": number, "request_id": number}
        turns += [
            (True, build("SUBSCRIBE", topic="t", subscription="s", subType=1, **ids)),
            (True, build("FLOW", consumer_id=number, messagePermits=1)),
            (False, build("SUCCESS", request_id=number)),
            (False, build("MESSAGE", metadata, b"x", consumer_id=number, message_id=FIRST_ENTRY)),
        ]
    for sequence in range(1, 257):
        turns += [(True, segments.send(b"x", sequence)), (False, segments.receipt(sequence))]
    file, connection = io.BytesIO(), Connection(0)
    writer = SessionWriter(file)
    for to_broker in (True, False):
        writer.carried(connection, to_broker, segments.stream(turns, to_broker), START_NS)
    time_ns = START_NS
    while file.tell() < size - 8192:
        time_ns += 8_000_000_000
        writer.carried(connection, True, segments.PING * 257, time_ns)
    return file.getvalue()


def unanswered(count: int) -> bytes:
    """So many SYNs, each of a connection of its own that nobody answers: 70 bytes each."""
    packets = [segments.pcap_header()]
    for number in range(count):
        client, server = b"\x0a" + number.to_bytes(3, "big"), b"\x0b\0\0\x01"
        key = client + server + struct.pack(">HH", 40_000, 6650)
        data = segments.ethernet((key, number, 0, SYN, b"", 0))
        packets.append(segments.pcap_record((START_NS + number, segments.ETHERNET, data, len(data))))
    return b"".join(packets)


def fragments(size: int) -> bytes:
    """IP fragments of a datagram that lacks its last eight bytes, and then the same one again and again."""
    packets = [segments.pcap_header(link=RAW_IP)]
    for number in range(size // 45):
        offset = 8190 if not number else min(number - 1, 8188)
        head = struct.pack(">BBHHHBBH", 0x45, 0, 28, 1, offset | 0x2000 * bool(number), 64, 6, 0) + bytes(8)
        packets.append(segments.pcap_record((START_NS + number, RAW_IP, head + b"abcdefgh", 28)))
    return b"".join(packets)


PING: Final = frame(command("ping"))
SEND: Final = command("send", producer_id=0, sequence_id=0).SerializePartialToString()


def segments_of(streams: Iterable[bytes], length: int) -> bytes:
    """A capture of connections that carry these streams in segments of `length` bytes; all begin midway."""
    packets = [segments.pcap_header()]
    for number, data in enumerate(streams):
        key = b"\x0a\0\0\1\x0b\0\0\1" + struct.pack(">HH", 10_000 + number, 6650)
        for at in range(0, len(data), length):
            packet = segments.ethernet((key, 1 + at, 0, 0, data[at : at + length], 0))
            packets.append(segments.pcap_record((START_NS + at, segments.ETHERNET, packet, len(packet))))
    return b"".join(packets)


def candidates(heads: int, rest: int) -> bytes:
    """Commands inside one another, all with the same end and as many unknown fields before it."""
    tail = b"\xc0\x3e\x00" * rest
    whole, made = heads * 16 + len(tail), b""
    for at in range(11, heads * 16, 16):
        size = whole - at
        made += b"\xc2\x3e\x0a" + struct.pack(">II", size + 4, size) + b"\x08\x12\x92\x01\x00"
    return made + tail


def chains(heads: int, rest: int) -> bytes:
    """Frames that break, and such candidates behind each."""
    return PING * 2 + b"\0\0\0\x09\0\0\0\x05\xff\xff\xff\xff\xff" + candidates(heads, rest)


def second_frames() -> bytes:
    """Right frames inside of unknown fields, each followed by the head of a large wrong one."""
    unit = 40
    rest = b"\xc0\x3e\x00" * 15_000
    made = b""
    for at in range(0, 450 * unit, unit):
        size = 450 * unit + len(rest) - (at + 3 + 13 + 8)
        head = struct.pack(">II", size + 4, size) + b"\x08\x12\x92\x01\x00"
        inside = PING + head
        made += b"\xc2\x3e" + bytes([unit - 3]) + inside + bytes(unit - 3 - len(inside))
    return PING * 2 + b"\0\0\0\x09\0\0\0\x05\xff\xff\xff\xff\xff" + made + rest


def claims(size: int) -> bytes:
    """Frames that break and claim to end where a SEND begins whose metadata is as large as all the rest."""
    entry = _varint(2 << 3 | 0) + b"\x00"
    large = (len(entry) * (size // 7)).to_bytes(4, "big") + entry * (size // 7)
    send = (4 + len(SEND) + len(large)).to_bytes(4, "big") + len(SEND).to_bytes(4, "big") + SEND + large
    count, made = size // 67, []
    for number in range(count):
        left = (count - number) * 39 - 4
        made.append(left.to_bytes(4, "big") + b"\0\0\0\x05\xff\xff\xff\xff\xff" + PING * 2)
    return b"".join(made) + send


def wrong_metadata(size: int) -> bytes:
    """A SEND with metadata that does not parse, as large as all of the stream, which is full of PINGs."""
    rest = PING * (size // 29)
    total = 4 + len(SEND) + 4 + len(rest)
    return total.to_bytes(4, "big") + len(SEND).to_bytes(4, "big") + SEND + b"\0\0\0\4\xff\xff\xff\xff" + rest


def tunnels(size: int, heads: bytes, link: int = RAW_IP) -> bytes:
    """A capture of packets that begin with `heads`, with a PING each."""
    packets = [segments.pcap_header(link=link)]
    packet = segments.ethernet((b"\x0a\0\0\1\x0b\0\0\1\x9c\x40\x1a\x0a", 1, 0, 0, PING, 0))
    packet = heads + packet[14:]
    packets += [segments.pcap_record((START_NS, link, packet, len(packet)))] * max(
        size // (len(packet) + 16), 1
    )
    return b"".join(packets)


def ip_heads(count: int, protocol: int, behind: bytes) -> bytes:
    """IP headers in one another, each with these bytes behind it."""
    size, made = 20 + len(behind), b""
    for number in range(count):
        left = min((count - number) * size + 53, 65_535)
        made += struct.pack(">BBHHHBBH", 0x45, 0, left, 1, 0, 64, protocol, 0) + bytes(8) + behind
    return made


def breaking(fields: int) -> bytes:
    """PINGs, and one with so many fields that breaks at its end."""
    inside = b"\x08\x12" + b"\x92\x01\x00" * fields + b"\xff"
    size = len(inside).to_bytes(4, "big")
    return PING * 2 + (4 + len(inside)).to_bytes(4, "big") + size + inside


def odd_connect() -> bytes:
    """A CONNECT that says its type nearly as often as fields are looked at for credentials."""
    connect = command("connect", client_version="x", auth_method_name="token", auth_data=b"secret")
    inside = b"\x08\x02" * 980 + connect.SerializePartialToString()
    return (4 + len(inside)).to_bytes(4, "big") + len(inside).to_bytes(4, "big") + inside


def small_send(count: int) -> bytes:
    """A SEND of a byte, with so many properties without key and value."""
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    for _ in range(count):
        metadata.properties.add()
    return frame(command("send", producer_id=0, sequence_id=0), metadata, b"x")


def broken(number: int) -> bytes:
    """A SEND with a wrong checksum and metadata that does not parse."""
    body = MAGIC_CHECKSUM + bytes(4) + b"\x00\x00\x00\x04" + b"\xff\xff\xff\xff" + b"payload"
    base = command("send", producer_id=number, sequence_id=0).SerializeToString()
    return (4 + len(base) + len(body)).to_bytes(4, "big") + len(base).to_bytes(4, "big") + base + body


def behind_a_hole(times: int, *, filled: bool) -> bytes:
    """Connections, of each of which 8 MB of pings wait for one missing ping, which comes last if `filled`."""
    packets = [segments.pcap_header()]
    for number in range(times):
        tcp = segments.Tcp(client=("10.0.0.1", 10_000 + number))
        data = PING * 3000
        behind = [tcp.segment(True, len(PING) + at, data) for at in range(0, 8_000_000, len(data))]
        missing = [tcp.segment(True, 0, PING)] * filled
        for each in [*tcp.handshake(), *behind, *missing]:
            packet = segments.ethernet(each)
            packets.append(segments.pcap_record((START_NS, segments.ETHERNET, packet, len(packet))))
    return b"".join(packets)


def inside_a_candidate() -> bytes:
    """After damage: the head of a large frame, and small ones where its entry should be."""
    pings = PING * (5 * MIB // len(PING))
    head = struct.pack(">II", 4 + len(SEND) + len(pings), len(SEND)) + SEND
    return PING * 2 + b"\0\0\0\x09\0\0\0\x05\xff\xff\xff\xff\xff" + head + pings + bytes(8)


def many(size: int, make: Callable[[int], bytes]) -> bytes:
    """A capture of what `make` gives for 0, 1, 2 …"""
    return capture(size, endless(make))


def repeated_row(row: bytes) -> bytes:
    """A hex dump whose `*` lines stand for as much as they may."""
    most = MAX_REPEATED if any(row) else MAX_ZEROS
    return f"00000000: {row.hex(' ')}\n*\n{most:08x}: 00\n".encode()


INPUTS: Final[dict[str, Callable[[int], bytes]]] = {
    **{f"items of {body}.{field}": partial(of_items, body, field) for body, field in REPEATED},
    "unknown fields": unknown_fields,
    "properties": properties,
    "credentials": lambda size: credentials(size, b"\x12\x06\x12\x04abcd"),
    "empty credentials": lambda size: credentials(size, b""),
    "batches of zeros": lambda size: opening(size, bytes(64 * MIB), batch=65_536),
    "batches of metadata": lambda size: opening(size, of_metadata(b"\x0a\x00"), batch=65_536),
    "batches of unknown fields": lambda size: opening(size, of_metadata(b"\xc0\x3e\x00"), batch=65_536),
    "small batches": lambda size: opening(size, b"\x00\x00\x00\x02\x18\x00" * 1000, batch=1000),
    "text": lambda size: opening(size, b"x" * 5 * MIB),
    "DEL": lambda size: opening(size, b"\x7f" * 16 * MIB),
    "C1": lambda size: opening(size, "\x9b".encode() * 8 * MIB),
    "quotes": lambda size: opening(size, b'"' * 16 * MIB, codec=CompressionType.ZLIB),
    "line ends": lambda size: opening(size, b"\n" * 16 * MIB),
    "bytes": lambda size: opening(size, b"\x01" * 16 * MIB),
    "wide text": lambda size: opening(size, of_text(b"\x7f", EMOJI, 16 * MIB)),
    "keys that are no UTF-8": lambda size: opening(size, keys(b"\xff"), batch=63),
    "wide keys that are no UTF-8": lambda size: opening(size, keys(b"\xff", EMOJI), batch=63),
    "wide keys": lambda size: opening(size, keys(b"\x7f", EMOJI), batch=63),
    "ordering keys that are no UTF-8": lambda size: opening(size, keys(b"\xff", EMOJI, b"\x3a"), batch=63),
    "properties that are no UTF-8": lambda size: opening(size, values(b"\xff", EMOJI), batch=63),
    "wide properties": lambda size: opening(size, values(b"\x7f", EMOJI), batch=63),
    "short texts": lambda size: opening(size, texts(b"\x7f", b"", 5_000, 2_000), batch=5_000),
    "short wide texts": lambda size: opening(size, texts("\x9b".encode(), EMOJI, 2_000, 2_000), batch=2_000),
    "longer texts": lambda size: opening(size, texts(b"\x7f", b"", 100, 60_000), batch=100),
    "longer wide texts": lambda size: opening(size, texts("\x9b".encode(), EMOJI, 60, 60_000), batch=60),
    "64 MiB each": lambda size: opening(size, bytes(64 * MIB)),
    "JSON of lists": lambda size: by_schema(size, Schema.Json, b"", b"[" + b"[]," * 49_000 + b"[]]"),
    "JSON of text": lambda size: by_schema(size, Schema.Json, b"", b'"' + b"x" * (16 * MIB - 2) + b'"'),
    "nested JSON": lambda size: by_schema(size, Schema.Json, b"", nested_json(50_000)),
    "wide records": lambda size: by_schema(
        size, Schema.Avro, b'{"type":"array","items":%s}' % WIDE_RECORD, b"\xfe\xff\xff\xff\x0f" * 1000
    ),
    "protobuf by number": lambda size: by_schema(
        size, Schema.ProtobufNative, NATIVE_SCHEMA, b"\x08\x00" * 99_000
    ),
    "a large Avro schema": lambda size: by_schema(
        size, Schema.Avro, large_schema(size), batch_of(b"", 65_536), batch=65_536
    ),
    "a large schema that is refused": lambda size: by_schema(
        size, Schema.ProtobufNative, b"x" * (size * 9 // 10), batch_of(b"", 65_536), batch=65_536
    ),
    "a large pair of schemas": lambda size: by_schema(
        size, Schema.KeyValue, b"x" * (size * 9 // 10), batch_of(b"", 65_536), batch=65_536
    ),
    "strings that are no UTF-8": lambda size: strings(size, b"\xff", EMOJI),
    "wide strings": lambda size: strings(size, b"\x7f", EMOJI),
    "short strings that are no UTF-8": lambda size: items(
        size, "string", zigzag(20) + b"\xff" * 16 + EMOJI, 90_000
    ),
    "moments": lambda size: items(
        size, {"type": "long", "logicalType": "timestamp-nanos"}, zigzag(1_700_000_000_123_456_789), 99_000
    ),
    "lists in a list": lambda size: items(size, {"type": "array", "items": "int"}, zigzag(0), 99_000),
    "maps in a list": lambda size: items(
        size, {"type": "map", "values": "int"}, zigzag(1) + zigzag(0) * 3, 49_000
    ),
    "records in a list": lambda size: items(size, ONE_FIELD, zigzag(0), 49_000),
    "floats": lambda size: items(size, "float", b"\x12\x34\x56\x47", 99_000),
    "requests": lambda size: many(size, requests),
    "producers": lambda size: many(size, producers),
    "chunks": lambda size: many(size, chunks),
    "broken entries": lambda size: many(size, broken),
    "connections": connections,
    "silent consumers": silent_consumers,
    "SYNs": lambda size: unanswered(size // 71),
    "fragments": fragments,
    "GRE": lambda size: tunnels(size, ip_heads(7, 47, b"\0\0\x08\0")),
    "GRE without end": lambda size: tunnels(size, ip_heads(2000, 47, b"\0\0\x08\0")),
    "IP in IP": lambda size: tunnels(size, ip_heads(1, 4, b"")),
    "MPLS": lambda size: tunnels(
        size, bytes(12) + b"\x88\x47" + bytes(4 * 200) + b"\0\0\1\0", segments.ETHERNET
    ),
    "PPP": lambda size: tunnels(size, b"\xff\x03\0\x21" + ip_heads(20, 4, b""), 9),
    "candidates in a row": lambda size: repeat(size, chains(1000, 5300)),
    "candidates of many connections": lambda size: segments_of([chains(300, 2000)] * (size // 11_000), 1400),
    "candidates of small frames": lambda size: repeat(size, chains(14, 10)),
    "second frames": lambda size: repeat(size, second_frames()),
    "frames that claim where they end": claims,
    "small segments": lambda size: segments_of([wrong_metadata(size)], 58),
    "pings": lambda size: repeat(size, PING),
    "noise": lambda size: random.Random(5).randbytes(size),
    "heads": lambda size: repeat(size, b"\x00\x00\x00\x20\x00\x00\x00\x10\x08"),
    "hexadecimal digits": lambda size: b"0a\n" * (size // 3),
    "rows of hexadecimal digits": lambda size: b"00000000: 00\n" * (size // 13),
    "a row that repeats": lambda _: repeated_row(PING),
    "zeros that repeat": lambda _: repeated_row(bytes(16)),
    "odd commands with credentials": lambda size: repeat(size, odd_connect()),
    "frames that break late": lambda size: repeat(size, breaking(300)),
    "frames that break soon": lambda size: repeat(size, breaking(1)),
    "small frames with payloads": lambda size: repeat(size, small_send(0)),
    "small frames with properties": lambda size: repeat(size, small_send(20)),
    "gzip of zeros": lambda _: gzip.compress(bytes(64 * MIB)),
}
"""By what they are made of."""

LARGE: Final[dict[str, Callable[[], bytes]]] = {
    "behind a hole that is filled": lambda: behind_a_hole(1, filled=True),
    "behind a hole that stays": lambda: behind_a_hole(1, filled=False),
    "behind holes": lambda: behind_a_hole(3, filled=True),
    "inside a candidate": inside_a_candidate,
    "inside a candidate that is cut": lambda: inside_a_candidate()[:-9],
}
"""Inputs of several MB of which much is decoded at once."""
