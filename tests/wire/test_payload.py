"""An entry opens to its messages, whatever codec, batch or chunks it came in, and stays bounded."""

import random
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import cramjam
import lz4.block
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pulsarctl_wire.wire import chunks as chunks_module
from pulsarctl_wire.wire import payload as payload_module
from pulsarctl_wire.wire.chunks import ChunkJoiner
from pulsarctl_wire.wire.frame import Connection, Frame, build_frame
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.payload import (
    MAX_MESSAGES,
    MAX_PAYLOAD,
    Entry,
    Message,
    PayloadError,
    decompress,
    decompress_all,
    open_entry,
)
from pulsarctl_wire.wire.PulsarApi_pb2 import (
    BaseCommand,
    BrokerEntryMetadata,
    CompressionType,
    EncryptionKeys,
    MessageMetadata,
    SingleMessageMetadata,
)

MIB: Final = 1024 * 1024
CODEC_NAMES: Final[dict[int, str]] = {number: name for name, number in CompressionType.items()}
NONE, LZ4, ZLIB, ZSTD, SNAPPY = sorted(CODEC_NAMES)


def flush_ended(data: bytes) -> bytes:
    """A zlib stream as Java clients end theirs: no final block, no checksum."""
    stream = zlib.compressobj()
    return stream.compress(data) + stream.flush(zlib.Z_SYNC_FLUSH)


def block(data: bytes) -> bytes:
    return bytes(lz4.block.compress(data, store_size=False))


def sizeless(data: bytes) -> bytes:
    """A ZSTD frame that does not say how large its content is."""
    return zstandard.ZstdCompressor(write_content_size=False).compress(data)


def raw_snappy(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


CODECS: Final[dict[str, tuple[int, Callable[[bytes], bytes]]]] = {
    "LZ4": (LZ4, block),
    "ZLIB": (ZLIB, zlib.compress),
    "ZLIB of Java": (ZLIB, flush_ended),
    "ZSTD": (ZSTD, zstandard.ZstdCompressor().compress),
    "ZSTD without size": (ZSTD, sizeless),
    "SNAPPY": (SNAPPY, raw_snappy),
}
each_codec = pytest.mark.parametrize(("codec", "compress"), CODECS.values(), ids=CODECS)
each_number = pytest.mark.parametrize("codec", [LZ4, ZLIB, ZSTD, SNAPPY])


CONNECTION: Final = Connection(0)


def metadata_of(**fields: Any) -> MessageMetadata:
    return MessageMetadata(**{"producer_name": "p", "sequence_id": 0, "publish_time": 1000, **fields})


def received(data: bytes, to_broker: bool = True, connection: Connection | None = None) -> Frame:
    (frame,) = FrameStream(connection or CONNECTION, to_broker).feed(data)
    assert isinstance(frame, Frame)
    return frame


def sent(payload: bytes, **fields: Any) -> Frame:
    """A SEND of an entry; `fields` are those of its metadata."""
    base = BaseCommand(type=BaseCommand.SEND)
    base.send.producer_id = base.send.sequence_id = 1
    return received(build_frame(base, metadata_of(**fields), payload))


def delivered(payload: bytes, ack_set: list[int], **fields: Any) -> Frame:
    """A MESSAGE of an entry; `fields` are those of its metadata."""
    base = BaseCommand(type=BaseCommand.MESSAGE)
    base.message.consumer_id = 1
    base.message.message_id.ledgerId = base.message.message_id.entryId = 1
    base.message.ack_set.extend(ack_set)
    return received(build_frame(base, metadata_of(**fields), payload), to_broker=False)


def only(entry: Entry) -> Message:
    (message,) = entry.messages
    return message


@contextmanager
def memory_below(limit: int) -> Iterator[None]:
    """What runs inside takes less than `limit` bytes at any time."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limit


# -- single messages


def test_a_plain_message() -> None:
    frame = sent(b"hello", uncompressed_size=5)
    entry = open_entry(frame)
    assert entry == Entry([Message(None, frame.metadata, b"hello")], [])
    assert only(entry).skipped is False


def test_the_vector_of_a_send() -> None:
    metadata = "0a0170100018e8074805"
    data = bytes.fromhex(f"000000250000000808063204080110000e01c633c1950000000a{metadata}68656c6c6f")
    frame = received(data)
    assert only(open_entry(frame)).payload == b"hello"
    assert (frame.checksum, frame.notes) == ("valid", ())


def test_the_vector_of_a_message_after_broker_metadata() -> None:
    head = "000000340000000c08094a0808011204080510090e020000000508d00f1007"
    entry = "0e01c633c1950000000a0a0170100018e807480568656c6c6f"
    frame = received(bytes.fromhex(head + entry), to_broker=False)
    assert only(open_entry(frame)).payload == b"hello"
    assert frame.broker_entry_metadata == BrokerEntryMetadata(broker_timestamp=2000, index=7)


def test_an_empty_message() -> None:
    assert only(open_entry(sent(b""))).payload == b""


def test_a_null_value() -> None:
    message = only(open_entry(sent(b"", null_value=True)))
    assert (message.payload, message.metadata.null_value) == (b"", True)


def test_commands_without_entry() -> None:
    ping = BaseCommand(type=BaseCommand.PING)
    ping.ping.SetInParent()
    assert open_entry(received(build_frame(ping))) == Entry([], [])


def test_a_send_without_metadata() -> None:
    base = BaseCommand(type=BaseCommand.SEND)
    base.send.producer_id = base.send.sequence_id = 1
    assert open_entry(received(build_frame(base))) == Entry([], [])


@pytest.mark.parametrize("damaged", [slice(-13, -5), slice(-17, -5)])
def test_metadata_that_does_not_parse(damaged: slice) -> None:
    """Its bytes, or its size too."""
    data = bytearray(sent(b"hello").raw)
    data[damaged] = b"\xff" * len(data[damaged])
    frame = received(bytes(data))
    assert (len(frame.notes), frame.metadata) == (1, None)
    assert open_entry(frame) == Entry([], [])


def test_frames_that_are_cut_have_no_messages() -> None:
    data = sent(b"hello").raw
    for cut in range(8, len(data)):
        stream = FrameStream(Connection(0), True)
        stream.feed(data[:cut])
        (frame,) = stream.close()
        assert isinstance(frame, Frame)
        assert open_entry(frame) == Entry([], [])


# -- codecs

TEXT: Final = b"hello pulsar " * 4


@pytest.mark.parametrize(
    ("codec", "vector"),
    [
        (ZLIB, "789cca48cdc9c9572828cd294e2c52c8208e03000000ffff"),
        (LZ4, "df68656c6c6f2070756c736172200d000f506c73617220"),
        (SNAPPY, "343068656c6c6f2070756c736172209a0d00"),
        (ZSTD, "28b52ffd2034a10100" + TEXT.hex()),  # RFC 8878: of one segment, one raw block
    ],
)
def test_the_vectors_of_the_codecs(codec: int, vector: str) -> None:
    data = bytes.fromhex(vector)
    assert decompress(codec, data, len(TEXT)) == TEXT
    entry = open_entry(sent(data, compression=codec, uncompressed_size=len(TEXT)))
    assert (only(entry).payload, entry.notes) == (TEXT, [])


def test_the_size_of_snappy_in_its_framing_format() -> None:
    for size in (1, 895, 896, 200_000, 3 * MIB):
        for data in (bytes(size), random.Random(size).randbytes(size)):
            assert decompress_all(SNAPPY, bytes(cramjam.snappy.compress(data))) == data


def test_snappy_in_its_framing_format() -> None:
    """As the Rust client writes it."""
    framed = bytes(cramjam.snappy.compress(TEXT))
    assert framed.startswith(b"\xff\x06\x00\x00sNaPpY")
    entry = open_entry(sent(framed, compression=SNAPPY, uncompressed_size=len(TEXT)))
    assert only(entry).payload == TEXT
    assert entry.notes == ["SNAPPY in its framing format; the Java and C++ clients use the raw one"]
    large = bytes(cramjam.snappy.compress(bytes(64 * MIB)))
    for data, size in (
        (framed, len(TEXT) - 1),
        (framed, len(TEXT) + 1),
        (framed[:-1], len(TEXT)),
        (large, 10),
    ):
        with memory_below(16 * MIB):
            entry = open_entry(sent(data, compression=SNAPPY, uncompressed_size=size))
        assert only(entry).payload is None
        assert len(entry.notes) == 2


@pytest.mark.parametrize(("window", "opens"), [(0x88, True), (0x90, False), (0xF8, False)])
def test_windows_of_zstd(window: int, opens: bool) -> None:
    """128 MiB, 256 MiB, 2 TiB: what a decoder would have to set aside for a frame of 14 bytes."""
    data = bytes.fromhex(f"28b52ffd00{window:02x}290000") + b"hello"
    with memory_below(16 * MIB):
        entry = open_entry(sent(data, compression=ZSTD, uncompressed_size=5))
    assert only(entry).payload == (b"hello" if opens else None)
    assert len(entry.notes) == (0 if opens else 1)


@each_codec
@settings(deadline=None, max_examples=60)
@given(data=st.binary(max_size=3000) | st.binary(max_size=20).map(lambda data: data * 500))
@example(data=b"")
def test_what_was_compressed_is_found_again(
    codec: int, compress: Callable[[bytes], bytes], data: bytes
) -> None:
    entry = open_entry(sent(compress(data), compression=codec, uncompressed_size=len(data)))
    assert (only(entry).payload, entry.notes) == (data, [])


@each_codec
def test_large_payloads(codec: int, compress: Callable[[bytes], bytes]) -> None:
    data = bytes(range(256)) * 20_000 + TEXT
    assert decompress(codec, compress(data), len(data)) == data


@each_codec
@pytest.mark.parametrize("size", [0, 1, 51, 53, 1000, MIB, MAX_PAYLOAD + 1, 2**31, 2**32 - 1])
def test_a_wrong_uncompressed_size(codec: int, compress: Callable[[bytes], bytes], size: int) -> None:
    frame = sent(compress(TEXT), compression=codec, uncompressed_size=size)
    with memory_below(16 * MIB):
        entry = open_entry(frame)
    message = only(entry)
    assert (message.index, message.metadata, message.payload) == (None, frame.metadata, None)
    assert len(entry.notes) == 1
    assert CODEC_NAMES[codec] in entry.notes[0]


@each_codec
@pytest.mark.parametrize("count", [None, 1, 3])
def test_nothing_is_guessed_of_what_does_not_decompress(
    codec: int, compress: Callable[[bytes], bytes], count: int | None
) -> None:
    batch = {} if count is None else {"num_messages_in_batch": count}
    entry = open_entry(sent(compress(TEXT)[:-9], compression=codec, uncompressed_size=len(TEXT), **batch))
    assert only(entry).payload is None
    assert len(entry.notes) == 1


@each_codec
def test_compressed_data_cut_anywhere(codec: int, compress: Callable[[bytes], bytes]) -> None:
    """Behind its last byte of content a stream may be cut (Java's are); before, it is told."""
    data = compress(TEXT)
    for cut in range(len(data)):
        entry = open_entry(sent(data[:cut], compression=codec, uncompressed_size=len(TEXT)))
        assert (only(entry).payload, len(entry.notes)) in [(TEXT, 0), (None, 1)]
    assert only(open_entry(sent(data[:5], compression=codec, uncompressed_size=len(TEXT)))).payload is None


@pytest.mark.parametrize("codec", [ZLIB, ZSTD])
def test_a_checksum_of_the_codec_counts(codec: int) -> None:
    if codec == ZLIB:
        data = zlib.compress(TEXT)
    else:
        data = zstandard.ZstdCompressor(write_checksum=True).compress(TEXT)
    data = data[:-1] + bytes([data[-1] ^ 1])
    entry = open_entry(sent(data, compression=codec, uncompressed_size=len(TEXT)))
    assert only(entry).payload is None
    assert len(entry.notes) == 1


FRAMING: Final = b"\xff\x06\x00\x00sNaPpY"
HEADS: Final = {LZ4: b"\x1f\x00", ZLIB: b"\x78\x9c", ZSTD: b"\x28\xb5\x2f\xfd", SNAPPY: b"\x64"}


@each_number
@settings(deadline=None, max_examples=150)
@given(data=st.binary(max_size=200), head=st.booleans(), size=st.sampled_from([0, 1, 100, 100_000]))
@example(data=FRAMING, head=False, size=1)
def test_garbage_is_told(codec: int, data: bytes, head: bool, size: int) -> None:
    entry = open_entry(sent(HEADS[codec] * head + data, compression=codec, uncompressed_size=size))
    payload = only(entry).payload
    framing = codec == SNAPPY and not head and data.startswith(FRAMING)
    assert len(entry.notes) == framing + (payload is None)
    assert all(note and "\n" not in note for note in entry.notes)
    assert payload is None or len(payload) == size


def test_codecs_do_not_take_each_other() -> None:
    for codec, compress in CODECS.values():
        for other in {LZ4, ZLIB, ZSTD, SNAPPY} - {codec}:
            with pytest.raises(PayloadError):
                decompress(other, compress(TEXT), len(TEXT))


@each_codec
def test_the_largest_payload(
    monkeypatch: pytest.MonkeyPatch, codec: int, compress: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setattr(payload_module, "MAX_PAYLOAD", 5200)
    data = TEXT * 100
    assert decompress(codec, compress(data), 5200) == data
    with pytest.raises(PayloadError, match="5201 bytes: more than 5200 are not decompressed"):
        decompress(codec, compress(data + b"!"), 5201)


BOMB: Final = 96 * MIB


@cache
def bomb(codec: int) -> bytes:
    """`BOMB` zero bytes compressed."""
    compress: dict[int, Callable[[bytes], bytes]] = {
        LZ4: block,
        ZLIB: lambda data: zlib.compress(data, 1),
        ZSTD: zstandard.ZstdCompressor().compress,
        SNAPPY: raw_snappy,
    }
    return compress[codec](bytes(BOMB))


@each_number
@pytest.mark.parametrize("size", [0, 1000])
def test_a_bomb_puts_out_no_more_than_it_says(codec: int, size: int) -> None:
    frame = sent(bomb(codec), compression=codec, uncompressed_size=size)
    with memory_below(16 * MIB):
        entry = open_entry(frame)
    assert only(entry).payload is None
    assert len(entry.notes) == 1


@each_number
def test_a_bomb_that_says_how_large_it_is(codec: int) -> None:
    frame = sent(bomb(codec), compression=codec, uncompressed_size=BOMB)
    with memory_below(16 * MIB):
        entry = open_entry(frame)
    assert only(entry).payload is None
    assert not entry.corrupt  # for all we know
    name = CODEC_NAMES[codec]
    assert entry.notes == [f"{name} payload of {BOMB} bytes: more than {MAX_PAYLOAD} are not decompressed"]


@each_number
@pytest.mark.parametrize("room", [1, 20, 66], ids="{} MiB".format)
def test_too_little_memory_is_no_corruption(codec: int, room: int) -> None:
    """In a process that may take `room` MiB more, for a payload of 64 MiB."""
    program = """
import resource, sys
from pulsarctl_wire.wire.frame import Connection
from pulsarctl_wire.wire.payload import decompress, open_entry
from pulsarctl_wire.wire.framing.stream import FrameStream
codec, room, head = int(sys.argv[1]), int(sys.argv[2]), bytes.fromhex(sys.argv[3])
(frame,) = FrameStream(Connection(0), True).feed(sys.stdin.buffer.read())
decompress(codec, head, 1)  # its library is loaded
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + room * 2**20,) * 2)
entry = open_entry(frame)
print(entry.messages[0].payload is None, entry.corrupt, *entry.notes)
"""
    compress = dict(CODECS.values())[codec]
    frame = sent(compress(bytes(MAX_PAYLOAD)), compression=codec, uncompressed_size=MAX_PAYLOAD)
    arguments = [str(codec), str(room), compress(b"a").hex()]
    said = subprocess.run(
        [sys.executable, "-c", program, *arguments], input=frame.raw, stdout=subprocess.PIPE, check=True
    )
    opened = b"False False" if (codec, room) == (ZSTD, 66) else b""
    assert said.stdout.strip() in (b"True False too little memory to open the payload", opened)


@each_codec
def test_a_tiny_payload_that_claims_the_most(codec: int, compress: Callable[[bytes], bytes]) -> None:
    data = compress(TEXT)
    if codec == SNAPPY:
        data = b"\x80\x80\x80\x20" + data[1:]  # its own header says 64 MiB too
    frame = sent(data, compression=codec, uncompressed_size=MAX_PAYLOAD)
    with memory_below(3 * MAX_PAYLOAD):
        entry = open_entry(frame)
    assert only(entry).payload is None
    assert len(entry.notes) == 1


@pytest.mark.parametrize(
    "head", [b"", b"\x80", b"\x80" * 5, b"\xff\xff\xff\xff\x0f", b"\xff" * 10, b"\x80\x80\x80\x80\x80\x01"]
)
def test_snappy_sizes_that_are_none(head: bytes) -> None:
    for size in (0, 52, MAX_PAYLOAD):
        with memory_below(16 * MIB):
            entry = open_entry(sent(head, compression=SNAPPY, uncompressed_size=size))
        assert only(entry).payload is None
        assert len(entry.notes) == 1


# -- encryption

KEYS: Final = [EncryptionKeys(key="red", value=b"wrapped"), EncryptionKeys(key="blue", value=b"wrapped")]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"num_messages_in_batch": 3},
        {"compression": LZ4, "uncompressed_size": 52},
        {"compression": ZSTD, "uncompressed_size": 2**32 - 1, "num_messages_in_batch": 3},
    ],
)
def test_an_encrypted_entry_stays_as_it_is(fields: dict[str, Any]) -> None:
    frame = sent(b"sealed", encryption_keys=KEYS, encryption_param=bytes(12), **fields)
    entry = open_entry(frame)
    assert entry == Entry([Message(None, frame.metadata, b"sealed")], [])


def test_a_key_whose_name_is_not_utf8() -> None:
    frame = sent(b"sealed", encryption_keys=[EncryptionKeys(key="cafe", value=b"")])
    frame.metadata = MessageMetadata.FromString(
        metadata_of(encryption_keys=[EncryptionKeys(key="cafe", value=b"")])
        .SerializeToString()
        .replace(b"cafe", b"caf\xe9")
    )
    assert open_entry(frame) == Entry([Message(None, frame.metadata, b"sealed")], [])


# -- batches


def in_batch(payload: bytes, **fields: Any) -> bytes:
    single = SingleMessageMetadata(**{"payload_size": len(payload), **fields}).SerializeToString()
    return len(single).to_bytes(4, "big") + single + payload


def batch_of(payloads: list[bytes]) -> bytes:
    return b"".join(in_batch(each, sequence_id=at) for at, each in enumerate(payloads))


def payloads(entry: Entry) -> list[bytes | None]:
    return [message.payload for message in entry.messages]


def test_the_vector_of_a_batch() -> None:
    data = (
        "000000410000000c080632080801100a1802300b0e01bfd4dbb60000000d0a0170100a18e8075802c0010b"
        "000000041803400a6f6e650000000712016b1804400b74776f21"
    )
    entry = open_entry(received(bytes.fromhex(data)))
    assert payloads(entry) == [b"one", b"two!"]
    assert [message.index for message in entry.messages] == [0, 1]
    assert [message.metadata.sequence_id for message in entry.messages] == [10, 11]
    assert [message.metadata.partition_key for message in entry.messages] == ["", "k"]
    assert [message.skipped for message in entry.messages] == [False, False]
    assert entry.notes == []


def test_a_batch_is_told_by_the_presence_of_its_count() -> None:
    """Go sends batches of one; Java sends one message as a plain one, and the field's default is 1."""
    data = batch_of([b"alone"])
    assert payloads(open_entry(sent(data, num_messages_in_batch=1))) == [b"alone"]
    assert payloads(open_entry(sent(data))) == [data]
    assert open_entry(sent(data, num_messages_in_batch=1)).messages[0].index == 0


def test_null_values_in_a_batch() -> None:
    data = in_batch(b"", null_value=True) + in_batch(b"") + in_batch(b"x", compacted_out=True)
    entry = open_entry(sent(data, num_messages_in_batch=3))
    assert payloads(entry) == [b"", b"", b"x"]
    assert [message.metadata.null_value for message in entry.messages] == [True, False, False]
    assert [message.metadata.compacted_out for message in entry.messages] == [False, False, True]
    assert entry.notes == []


@settings(deadline=None, max_examples=100)
@given(
    contents=st.lists(st.binary(max_size=100), min_size=1, max_size=20),
    name=st.sampled_from(["plain", *CODECS]),
)
def test_any_batch_opens(contents: list[bytes], name: str) -> None:
    data = batch_of(contents)
    fields: dict[str, Any] = {"num_messages_in_batch": len(contents), "uncompressed_size": len(data)}
    if name != "plain":
        fields["compression"], compress = CODECS[name]
        data = compress(data)
    entry = open_entry(sent(data, **fields))
    assert payloads(entry) == contents
    assert [message.metadata.sequence_id for message in entry.messages] == list(range(len(contents)))
    assert entry.notes == []


@pytest.mark.parametrize("codec", [NONE, ZLIB])
def test_a_batch_cut_at_every_byte(codec: int) -> None:
    contents = [b"one", b"", b"three" * 30, b"x"]
    data = batch_of(contents)
    for cut in range(len(data)):
        part = zlib.compress(data[:cut]) if codec else data[:cut]
        size = {"compression": codec, "uncompressed_size": cut} if codec else {}
        entry = open_entry(sent(part, num_messages_in_batch=4, **size))
        got = payloads(entry)
        assert got[:-1] == contents[: len(got)][:-1]
        if got:
            assert got[-1] is not None
            assert contents[len(got) - 1].startswith(got[-1])
        assert entry.notes
    assert open_entry(sent(data, num_messages_in_batch=4)).notes == []


def test_a_batch_cut_in_a_payload_shows_what_is_there() -> None:
    entry = open_entry(sent(batch_of([b"one", b"three"])[:-2], num_messages_in_batch=2))
    assert payloads(entry) == [b"one", b"thr"]
    assert entry.notes == ["message 1 of the batch: its payload runs beyond the batch"]


@pytest.mark.parametrize("count", [3, 4, 2**31 - 1])
def test_a_count_too_high(count: int) -> None:
    entry = open_entry(sent(batch_of([b"one", b"two"]), num_messages_in_batch=count))
    assert payloads(entry) == [b"one", b"two"]
    assert entry.notes == [f"2 messages in a batch that says {count}"]


@pytest.mark.parametrize("count", [1, 0])
def test_a_count_too_low(count: int) -> None:
    data = batch_of([b"one", b"two"])
    entry = open_entry(sent(data, num_messages_in_batch=count))
    assert payloads(entry) == [b"one"][:count]
    rest = len(data) - count * len(data) // 2
    assert entry.notes == [f"{rest} bytes after the last message of the batch"]


@pytest.mark.parametrize("count", [-1, -(2**31)])
def test_a_negative_count(count: int) -> None:
    entry = open_entry(sent(batch_of([b"one", b"two"]), num_messages_in_batch=count))
    assert entry.messages == []
    assert entry.notes == [f"0 messages in a batch that says {count}"]


def test_an_empty_batch() -> None:
    assert open_entry(sent(b"", num_messages_in_batch=0)) == Entry([], [])
    noted = ["0 messages in a batch that says 2"]
    assert open_entry(sent(b"", num_messages_in_batch=2)) == Entry([], noted, corrupt=True)


@pytest.mark.parametrize("size", [-1, -4, -(2**31)])
def test_a_negative_payload_size_takes_nothing_back(size: int) -> None:
    """It ends, and what follows is read as the next message."""
    data = in_batch(b"", payload_size=size) + in_batch(b"two")
    entry = open_entry(sent(data, num_messages_in_batch=2))
    assert payloads(entry)[1:] == [b"two"]
    assert payloads(entry)[0] in (b"", None)


@pytest.mark.parametrize("size", [-1, -(2**31)])
def test_a_negative_payload_size_is_noted(size: int) -> None:
    assert open_entry(sent(in_batch(b"", payload_size=size), num_messages_in_batch=1)).notes


def test_a_missing_payload_size_is_noted() -> None:
    assert open_entry(sent(bytes(4), num_messages_in_batch=1)).notes


@pytest.mark.parametrize("size", [100, 2**31 - 1])
def test_a_payload_size_too_large(size: int) -> None:
    data = in_batch(b"one") + in_batch(b"two", payload_size=size) + in_batch(b"three")
    entry = open_entry(sent(data, num_messages_in_batch=3))
    assert payloads(entry) == [b"one", b"two" + in_batch(b"three")]
    assert "message 1 of the batch: its payload runs beyond the batch" in entry.notes


@pytest.mark.parametrize("bad", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x02\xff\xff", b"\x00\x00\x00\x02\x18"])
def test_single_metadata_that_does_not_parse(bad: bytes) -> None:
    entry = open_entry(sent(in_batch(b"one") + bad, num_messages_in_batch=2))
    assert payloads(entry) == [b"one"]
    (note,) = entry.notes
    assert note.startswith("message 1 of the batch: ")


@settings(deadline=None, max_examples=200)
@given(data=st.binary(max_size=100), count=st.integers(-(2**31), 2**31 - 1) | st.integers(0, 5))
def test_garbage_as_a_batch(data: bytes, count: int) -> None:
    entry = open_entry(sent(data, num_messages_in_batch=count))
    assert len(entry.messages) <= max(count, 0)
    assert [message.index for message in entry.messages] == list(range(len(entry.messages)))
    assert sum(len(message.payload or b"") for message in entry.messages) <= len(data)
    if len(entry.messages) != count:
        assert entry.notes


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_a_damaged_batch(data: st.DataObject) -> None:
    whole = bytearray(batch_of([b"one", b"two" * 10, b"three"]))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    entry = open_entry(sent(bytes(whole), num_messages_in_batch=3))
    assert len(entry.messages) <= 3
    assert len(entry.messages) == 3 or entry.notes


def test_a_batch_of_nothings_is_bounded() -> None:
    """A frame of 300 bytes shall not cost hundreds of MiB: six bytes make a Message of several hundred."""
    count = 2**18
    data = in_batch(b"") * count
    packed = zstandard.ZstdCompressor().compress(data)
    assert len(packed) < 300
    fields = {"compression": ZSTD, "uncompressed_size": len(data), "num_messages_in_batch": 2**31 - 1}
    entry = open_entry(sent(packed, **fields))
    assert len(entry.messages) == MAX_MESSAGES < count
    assert entry.notes == [f"{MAX_MESSAGES} messages in a batch that says {2**31 - 1}"]


# -- ack_set: what of a batch was acknowledged before


def skipped(ack_set: list[int], count: int) -> list[int]:
    """The batch indexes that `ack_set` masks, of `count` messages."""
    frame = delivered(batch_of([b"x"] * count), ack_set, num_messages_in_batch=count)
    entry = open_entry(frame)
    assert len(entry.messages) == count
    assert entry.notes == []
    return [message.index or 0 for message in entry.messages if message.skipped]


@pytest.mark.parametrize(
    ("ack_set", "count", "expected"),
    [
        ([], 3, []),  # all acknowledged would be no delivery at all
        ([5], 3, [1]),
        ([7], 3, []),
        ([1022], 10, [0]),
        ([1014], 10, [0, 3]),
        ([982], 10, [0, 3, 5]),
        ([0], 3, [0, 1, 2]),
        ([-4, 30], 70, [0, 1, 64, 69]),
        ([-1, 0b100000], 70, [64, 65, 66, 67, 68]),
        ([0, 63], 70, list(range(64))),
        ([-1], 70, [64, 65, 66, 67, 68, 69]),  # trailing words of zeros are left out
        ([-(2**63)], 64, list(range(63))),
        ([2**63 - 1], 64, [63]),
        ([-1, -1, -1, -1], 3, []),
    ],
)
def test_a_set_bit_is_still_to_deliver(ack_set: list[int], count: int, expected: list[int]) -> None:
    assert skipped(ack_set, count) == expected


@settings(deadline=None, max_examples=50)
@given(st.lists(st.booleans(), min_size=1, max_size=200))
def test_any_mask(open_indexes: list[bool]) -> None:
    bits = sum(1 << at for at, still_open in enumerate(open_indexes) if still_open)
    words = [
        int.from_bytes((bits >> shift & 2**64 - 1).to_bytes(8, "big"), "big", signed=True)
        for shift in range(0, max(bits.bit_length(), 1), 64)
    ]
    expected = [at for at, still_open in enumerate(open_indexes) if not still_open]
    assert skipped(words, len(open_indexes)) == expected


def test_a_mask_concerns_batches_alone() -> None:
    assert only(open_entry(delivered(b"hello", [2]))).skipped is False


# -- chunks


def chunk(
    at: int,
    payload: bytes = b"?",
    *,
    of: int = 3,
    uuid: str = "p-1",
    connection: Connection | None = None,
    to_broker: bool = True,
    **fields: Any,
) -> Frame:
    base = BaseCommand(type=BaseCommand.SEND)
    base.send.producer_id = base.send.sequence_id = 1
    metadata = metadata_of(uuid=uuid, chunk_id=at, num_chunks_from_msg=of, **fields)
    return received(build_frame(base, metadata, payload), to_broker, connection)


def add(joiner: ChunkJoiner, frame: Frame, owner: int = 1) -> Frame:
    assert frame.metadata is not None
    joiner.add(frame, frame.metadata, owner)
    return frame


def joined(joiner: ChunkJoiner, *frames: Frame) -> list[bytes | None]:
    return [add(joiner, frame).joined for frame in frames]


def notes(frames: list[Frame]) -> list[list[str]]:
    return [list(frame.notes) for frame in frames]


def test_chunks_are_joined() -> None:
    frames = [chunk(0, b"ab"), chunk(1, b"cd"), chunk(2, b"e")]
    assert joined(ChunkJoiner(), *frames) == [None, None, b"abcde"]
    assert notes(frames) == [[], [], []]
    entries = [open_entry(frame) for frame in frames]
    assert entries[:2] == [Entry([], []), Entry([], [])]
    assert entries[2] == Entry([Message(None, frames[2].metadata, b"abcde")], [])


def test_a_chunk_alone_has_no_message() -> None:
    assert open_entry(chunk(2)) == Entry([], [])


def test_a_message_in_one_chunk_is_a_plain_one() -> None:
    assert only(open_entry(chunk(0, b"whole", of=1))).payload == b"whole"


@each_codec
def test_chunks_are_compressed_as_one(codec: int, compress: Callable[[bytes], bytes]) -> None:
    data = bytes(range(256)) * 3
    packed = compress(data)
    cuts = [0, 7, len(packed) // 2, len(packed)]
    fields: dict[str, Any] = {"compression": codec, "uncompressed_size": len(data)}
    frames = [chunk(at, packed[cuts[at] : cuts[at + 1]], **fields) for at in range(3)]
    joined(ChunkJoiner(), *frames)
    entry = open_entry(frames[-1])
    assert (only(entry).payload, entry.notes) == (data, [])


def test_encrypted_chunks() -> None:
    """Each is sealed on its own, with a tag of its own: together they exceed total_chunk_msg_size."""
    fields: dict[str, Any] = {
        "encryption_keys": KEYS,
        "compression": LZ4,
        "total_chunk_msg_size": 4,
        "uncompressed_size": 9,
    }
    frames = [chunk(at, b"ab" + bytes(16), of=2, **fields) for at in range(2)]
    joined(ChunkJoiner(), *frames)
    assert [open_entry(frame).messages for frame in frames] == [
        [],
        [Message(None, frames[1].metadata, (b"ab" + bytes(16)) * 2)],
    ]
    assert [open_entry(frame).notes for frame in frames] == [[], []]


@pytest.mark.parametrize("total", [0, 1, 1000, -1, 2**31 - 1])
def test_a_wrong_total_size_matters_not(total: int) -> None:
    frames = [chunk(at, b"ab", of=2, total_chunk_msg_size=total) for at in range(2)]
    assert joined(ChunkJoiner(), *frames) == [None, b"abab"]


def test_chunks_of_several_messages_may_mix() -> None:
    joiner = ChunkJoiner()
    frames = [
        chunk(0, b"a", uuid="x"),
        chunk(0, b"1", uuid="y", of=2),
        chunk(1, b"b", uuid="x"),
        chunk(1, b"2", uuid="y", of=2),
        chunk(2, b"c", uuid="x"),
    ]
    assert joined(joiner, *frames) == [None, None, None, b"12", b"abc"]
    assert notes(frames) == [[]] * 5


def test_messages_are_apart_by_connection_direction_and_owner() -> None:
    joiner = ChunkJoiner()
    ways: list[dict[str, Any]] = [{}, {"connection": Connection(1)}, {"to_broker": False}, {}]
    results: list[list[bytes | None]] = [[], [], [], []]
    for at in range(3):
        for number, way in enumerate(ways):
            frame = chunk(at, f"{number}{at}".encode(), **way)
            results[number].append(add(joiner, frame, owner=2 if number == 3 else 1).joined)
            assert frame.notes == ()
    assert results == [[None, None, f"{n}0{n}1{n}2".encode()] for n in range(4)]


def test_a_chunk_sent_again() -> None:
    frames = [chunk(0, b"a"), chunk(1, b"b"), chunk(1, b"B"), chunk(2, b"c")]
    assert joined(ChunkJoiner(), *frames) == [None, None, None, b"abc"]
    assert notes(frames) == [[], [], ["chunk 2 of message p-1 once more"], []]


def test_a_message_sent_again() -> None:
    """From its first chunk, as after a reconnection or a redelivery; the older start is forgotten."""
    frames = [chunk(0, b"a"), chunk(1, b"b"), chunk(0, b"A"), chunk(1, b"B"), chunk(2, b"C")]
    assert joined(ChunkJoiner(), *frames) == [None] * 4 + [b"ABC"]
    assert notes(frames) == [[]] * 5


def test_a_message_that_was_whole_comes_again() -> None:
    joiner = ChunkJoiner()
    for _ in range(2):
        assert joined(joiner, chunk(0, b"a"), chunk(1, b"b"), chunk(2, b"c")) == [None, None, b"abc"]
    late = add(joiner, chunk(2, b"c"))
    assert (late.joined, list(late.notes)) == (None, ["chunk 3 of message p-1 without chunk 1"])


def test_the_first_chunk_is_missing() -> None:
    frames = [chunk(1), chunk(2)]
    assert joined(ChunkJoiner(), *frames) == [None, None]
    assert notes(frames) == [[f"chunk {at} of message p-1 without chunk 1"] for at in (2, 3)]


def test_a_chunk_in_the_middle_is_missing() -> None:
    frames = [chunk(0, of=4), chunk(2, of=4), chunk(3, of=4)]
    assert joined(ChunkJoiner(), *frames) == [None] * 3
    assert notes(frames) == [
        [],
        ["chunk 3 of message p-1 without chunk 2"],
        ["chunk 4 of message p-1 without chunk 1"],
    ]


def test_the_uuid_is_not_utf8() -> None:
    frame = chunk(1, uuid="cafe")
    assert frame.metadata is not None
    metadata = MessageMetadata.FromString(frame.metadata.SerializeToString().replace(b"cafe", b"caf\xe9"))
    ChunkJoiner().add(frame, metadata, 1)
    assert frame.notes == [r"chunk 2 of message caf\xe9 without chunk 1"]


@pytest.mark.parametrize("at", [-1, -(2**31), 3, 2**31 - 1])
def test_a_chunk_that_cannot_be(at: int) -> None:
    joiner = ChunkJoiner()
    first, odd = add(joiner, chunk(0)), add(joiner, chunk(at))
    assert (first.joined, odd.joined) == (None, None)
    assert len(odd.notes) == 1
    assert joined(joiner, chunk(0, b"a"), chunk(1, b"b"), chunk(2, b"c")) == [None, None, b"abc"]


@settings(deadline=None, max_examples=150)
@given(
    st.lists(
        st.tuples(
            st.integers(-1, 4), st.sampled_from([2, 3, 4]), st.sampled_from("ab"), st.sampled_from([1, 2])
        ),
        max_size=40,
    )
)
def test_any_order_of_chunks(said: list[tuple[int, int, str, int]]) -> None:
    """What is joined is the chunks from 0 on in their order, for any mixture."""
    joiner = ChunkJoiner()
    for at, count, uuid, owner in said:
        frame = add(joiner, chunk(at, f"{uuid}{owner}{at}.".encode(), of=count, uuid=uuid), owner)
        if frame.joined is not None:
            assert frame.joined == b"".join(f"{uuid}{owner}{each}.".encode() for each in range(count))
            assert (at, frame.notes) == (count - 1, ())


CHUNK_COST: Final = chunks_module._CHUNK_COST
"""Bytes that a chunk counts beside its payload."""

GIVEN_UP: Final = "too many chunks wait for more: the oldest message is given up"


def test_the_bytes_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChunkJoiner, "MAX_BYTES", 100 + 2 * CHUNK_COST)
    joiner = ChunkJoiner()
    frames = [
        chunk(0, bytes(60), uuid="a", of=2),
        chunk(0, bytes(60), uuid="b", of=2),
        chunk(1, bytes(30), uuid="a", of=2),
        chunk(1, bytes(30), uuid="b", of=2),
    ]
    assert joined(joiner, *frames) == [None, None, None, bytes(90)]
    assert notes(frames) == [[], [GIVEN_UP], ["chunk 2 of message a without chunk 1"], []]


def test_whole_messages_do_not_count_as_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChunkJoiner, "MAX_BYTES", 100 + 2 * CHUNK_COST)
    joiner = ChunkJoiner()
    first = add(joiner, chunk(0, bytes(10), uuid="first", of=2))
    for number in range(20):
        frames = [chunk(at, bytes(30), uuid=f"{number}", of=2) for at in range(2)]
        assert joined(joiner, *frames)[1] == bytes(60)
    for _ in range(20):  # a start that is started anew counts once
        add(joiner, chunk(0, bytes(30), uuid="again", of=2))
    last = add(joiner, chunk(1, b"x", uuid="first", of=2))
    assert (first.notes, last.joined) == ((), bytes(10) + b"x")


def test_a_message_larger_than_what_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChunkJoiner, "MAX_BYTES", 100 + 2 * CHUNK_COST)
    joiner = ChunkJoiner()
    frames = [chunk(at, bytes(40), of=5) for at in range(5)]
    assert joined(joiner, *frames) == [None] * 5
    assert notes(frames)[:4] == [[], [], [GIVEN_UP], ["chunk 4 of message p-1 without chunk 1"]]


def test_chunks_of_nothing_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChunkJoiner, "MAX_BYTES", 3 * CHUNK_COST)
    frames = [chunk(at, b"", of=100) for at in range(5)]
    assert joined(ChunkJoiner(), *frames) == [None] * 5
    assert notes(frames) == [[], [], [], [GIVEN_UP], ["chunk 5 of message p-1 without chunk 1"]]


def test_the_messages_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChunkJoiner, "MAX_MESSAGES", 3)
    joiner = ChunkJoiner()
    starts = [add(joiner, chunk(0, b"a", uuid=f"{number}", of=2)) for number in range(5)]
    assert notes(starts) == [[], [], [], [GIVEN_UP], [GIVEN_UP]]
    ends = [add(joiner, chunk(1, b"b", uuid=f"{number}", of=2)) for number in range(5)]
    assert [frame.joined for frame in ends] == [None, None, b"ab", b"ab", b"ab"]


def test_chunks_that_never_end_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChunkJoiner, "MAX_BYTES", 4 * MIB)
    joiner = ChunkJoiner()
    frame = chunk(0, bytes(MIB), of=2**31 - 1)
    metadata = frame.metadata
    assert metadata is not None
    with memory_below(8 * MIB):
        for number in range(100):
            metadata.uuid = f"{number // 10}"
            metadata.chunk_id = number % 10
            frame.notes = ()
            joiner.add(frame, metadata, 1)
    assert frame.joined is None


def test_counting_keeps_no_bytes() -> None:
    joiner = ChunkJoiner(keep=False)
    with memory_below(10 * MIB):
        results = [add(joiner, chunk(at, bytes(MIB), of=30)).joined for at in range(30)]
    assert results == [None] * 29 + [b""]
    odd = [chunk(0), chunk(2), chunk(0), chunk(1), chunk(1)]
    joined(joiner, *odd)
    assert [len(frame.notes) for frame in odd] == [0, 1, 0, 0, 1]
