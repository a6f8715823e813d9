"""Compressed payloads: other contents, and just as many bytes before and after compression."""

import zlib

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pulsarctl_wire.sanitize.fields import FieldRewriter
from pulsarctl_wire.sanitize.fitting import Content, encoders_like, fit
from pulsarctl_wire.sanitize.names import Pseudonyms
from pulsarctl_wire.sanitize.noise import Noise, is_text
from pulsarctl_wire.sanitize.payloads import PayloadRewriter
from pulsarctl_wire.wire.entry import Batch, Outgoing, Stamp
from pulsarctl_wire.wire.payload import decompress
from pulsarctl_wire.wire.PulsarApi_pb2 import CompressionType, MessageMetadata, SingleMessageMetadata

CODECS = [CompressionType.LZ4, CompressionType.ZLIB, CompressionType.ZSTD, CompressionType.SNAPPY]
CONTENTS = st.one_of(
    st.binary(max_size=200),
    st.lists(st.sampled_from([b"order ", b"customer ", b"amount ", b"17.30 "]), max_size=300).map(b"".join),
    st.builds(lambda part, count: part * count, st.binary(min_size=1, max_size=20), st.integers(1, 400)),
)


def make_rewriter() -> PayloadRewriter:
    pseudonyms = Pseudonyms(b"secret")
    noise = Noise(pseudonyms)
    return PayloadRewriter(pseudonyms, noise, FieldRewriter(pseudonyms, noise))


SHORT = 32
"""Bytes of contents that may have no other of the same size when they are compressed."""


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=25)
@given(data=CONTENTS)
@example(data=b"#534/-%2 #534/-%2 !-/5.4 !-/5.4    !$$%%-.///222245")  # the last literal is short
@example(data=b"\x90\x90\x90\x90\x91\x90\x90\x92\x90\x90\x93\x90")
def test_contents_of_all_kinds_fit(codec: int, data: bytes) -> None:
    block = encoders_like(codec, b"")[0](data)
    fitted = fit(
        Content(data, [(0, len(data))], b"key", is_text(data)), len(block), encoders_like(codec, block)
    )
    if fitted is None:
        assert len(data) <= SHORT
        return
    content, other_block = fitted
    assert len(content) == len(data)
    assert len(other_block) == len(block)
    assert decompress(codec, other_block, len(data)) == content


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_keeps_its_messages(codec: int) -> None:
    batch = Batch()
    for number in range(40):
        batch.add(
            Outgoing(b"a payload %d" % number, key=f"customer-{number}", properties=[("team", "red")]), number
        )
    metadata, payload = batch.entry(Stamp("till", codec), 1_700_000_000_000)
    rewriter = make_rewriter()
    other = rewriter.rewrite(metadata, payload, None, is_cut=False)
    assert rewriter.unfit == 0
    assert len(other) == len(payload)
    before, after = (decompress(codec, block, metadata.uncompressed_size) for block in (payload, other))
    for _ in range(40):
        heads = [
            SingleMessageMetadata.FromString(data[4 : 4 + int.from_bytes(data[:4], "big")])
            for data in (before, after)
        ]
        assert heads[0].payload_size == heads[1].payload_size
        assert heads[0].sequence_id == heads[1].sequence_id
        assert len(heads[0].partition_key) == len(heads[1].partition_key)
        assert heads[0].partition_key != heads[1].partition_key
        size = 4 + int.from_bytes(before[:4], "big") + heads[0].payload_size
        before, after = before[size:], after[size:]
    assert not before
    assert not after
    assert rewriter.rewrite(metadata, payload, None, is_cut=False) == other


def test_streams_of_java_keep_their_end() -> None:
    compressor = zlib.compressobj()
    payload = compressor.compress(b"an order " * 20) + compressor.flush(zlib.Z_SYNC_FLUSH)
    metadata = MessageMetadata(compression=CompressionType.ZLIB, uncompressed_size=180)
    other = make_rewriter().rewrite(metadata, payload, None, is_cut=False)
    assert other.endswith(b"\0\0\xff\xff")
    assert len(decompress(CompressionType.ZLIB, other, 180)) == 180


@pytest.mark.parametrize("codec", CODECS)
def test_the_chunks_of_a_message_make_a_block(codec: int) -> None:
    whole = encoders_like(codec, b"")[0](b"".join(b"line %d of a long text\n" % line for line in range(400)))
    rewriter = make_rewriter()
    chunks = []
    for number in range(3):
        part = len(whole) // 3 + 1
        metadata = MessageMetadata(
            compression=codec,  # type: ignore[arg-type]
            num_chunks_from_msg=3,
            chunk_id=number,
            uuid="u",
            total_chunk_msg_size=len(whole),
        )
        metadata.uncompressed_size = len(b"".join(b"line %d of a long text\n" % line for line in range(400)))
        chunk = whole[number * part : (number + 1) * part]
        chunks.append(rewriter.rewrite(metadata, chunk, "owner", is_cut=False))
        assert len(chunks[-1]) == len(chunk)
    assert decompress(codec, b"".join(chunks), metadata.uncompressed_size)


def test_chunks_in_snappy_are_padded_to_the_size_of_their_message() -> None:
    data = b"".join(b"line %d of a long text\n" % line for line in range(108))
    codec = CompressionType.SNAPPY
    whole = encoders_like(codec, b"")[0](data)
    metadata = MessageMetadata(
        compression=codec,
        num_chunks_from_msg=2,
        chunk_id=0,
        uuid="u",
        total_chunk_msg_size=len(whole),
        uncompressed_size=len(data),
    )
    rewriter = make_rewriter()
    chunks = []
    for metadata.chunk_id, chunk in enumerate((whole[:100], whole[100:])):
        chunks.append(rewriter.rewrite(metadata, chunk, "owner", is_cut=False))
    assert rewriter.unfit == 0
    assert len(decompress(codec, b"".join(chunks), len(data))) == len(data)


def test_what_does_not_decompress_still_does_not() -> None:
    metadata = MessageMetadata(compression=CompressionType.LZ4, uncompressed_size=100)
    other = make_rewriter().rewrite(metadata, b"this is no LZ4", None, is_cut=False)
    assert len(other) == 14
    with pytest.raises(ValueError, match="LZ4"):
        decompress(CompressionType.LZ4, other, 100)
