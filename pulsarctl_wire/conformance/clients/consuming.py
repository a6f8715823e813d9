"""Messages as they should be, permits, acknowledgements and the end of consumers."""

from __future__ import annotations

from typing import Any

from pulsarctl_wire.checks.requirement import MUST, SHOULD
from pulsarctl_wire.conformance.basics.checking import equal, require
from pulsarctl_wire.conformance.basics.frames import make_batch, make_frame
from pulsarctl_wire.conformance.clients.messages import (
    Backlog,
    Slot,
    make_entries,
    make_numbered_entry,
    make_texts,
)
from pulsarctl_wire.conformance.clients.scripted import (
    Peer,
    append,
    ignore,
    make_close_consumer,
    refuse,
)
from pulsarctl_wire.conformance.clients.stage import (
    CONSUME,
    COUNT,
    Stage,
    client_case,
    expect_acked,
    expect_consumed,
    expect_texts,
    require_feature,
)
from pulsarctl_wire.wire.entry import Stamp, chunk
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import CompressionType

_NEEDS = (CONSUME,)
_MANY = 3_000
"""More messages than clients ask for at once."""


# -- messages


@client_case(MUST, needs=_NEEDS)
async def batches(stage: Stage) -> None:
    """Two entries, with three messages each.

    Expected: All six are printed, and both entries acknowledged.

    Source: Protocol: Batch messages.
    """
    broker = await stage.open_broker()
    texts = make_texts(6)
    halves = [[text.encode() for text in texts[start : start + 3]] for start in (0, 3)]
    entries = [
        Slot(make_numbered_entry(number, make_batch(*half), num_messages_in_batch=3), 3)
        for number, half in enumerate(halves)
    ]
    backlog = Backlog(broker, *entries)
    await expect_consumed(stage, await stage.consume(broker.url, 6), backlog, texts)


@client_case(SHOULD, needs=_NEEDS)
async def compression(stage: Stage) -> None:
    """Messages compressed by LZ4, ZLIB, ZSTD and SNAPPY.

    Expected: All are printed.

    Source: Protocol: Payload commands, compression.
    """
    broker = await stage.open_broker()
    texts = make_texts(4)
    entries = []
    for number, codec in enumerate(("LZ4", "ZLIB", "ZSTD", "SNAPPY")):
        metadata = Stamp("p", codec=CompressionType.Value(codec)).metadata(number, 1_700_000_000_000)
        payload = Stamp("p", codec=CompressionType.Value(codec)).compress(metadata, texts[number].encode())
        fields: dict[str, Any] = {
            "compression": metadata.compression,
            "uncompressed_size": metadata.uncompressed_size,
        }
        entries.append(make_numbered_entry(number, payload, **fields))
    backlog = Backlog(broker, *entries)
    await expect_consumed(stage, await stage.consume(broker.url, 4), backlog, texts)


@client_case(SHOULD, needs=_NEEDS)
async def chunks(stage: Stage) -> None:
    """A message in three chunks.

    Expected: It is printed once, and all three entries are acknowledged.

    Source: PIP-37.
    """
    broker = await stage.open_broker()
    texts = make_texts(1)
    metadata = Stamp("p").metadata(0, 1_700_000_000_000)
    parts = [part for _, part in chunk(metadata, texts[0].encode(), 6)]
    fields: dict[str, Any] = {
        **{"uuid": "p-0", "num_chunks_from_msg": len(parts), "total_chunk_msg_size": len(texts[0])},
        **{"sequence_id": 0, "uncompressed_size": len(texts[0])},
    }
    backlog = Backlog(
        broker,
        *(make_numbered_entry(number, part, chunk_id=number, **fields) for number, part in enumerate(parts)),
    )
    await expect_consumed(stage, await stage.consume(broker.url, 1), backlog, texts)


@client_case(MUST, needs=_NEEDS)
async def broker_entry_metadata(stage: Stage) -> None:
    """Messages behind broker entry metadata, which the client has said that it reads.

    Expected: All are printed.

    Source: PIP-70.
    """
    broker = await stage.open_broker()
    texts = make_texts(COUNT)
    backlog = Backlog(broker, *make_entries(texts, prefixed=True))
    run = await stage.consume(broker.url)
    await require_feature(stage, broker, "supports_broker_entry_metadata")
    await expect_consumed(stage, run, backlog, texts)


@client_case(SHOULD, needs=_NEEDS)
async def redelivery_count_big(stage: Stage) -> None:
    """MESSAGE with redelivery_count 10, for a consumer without a policy for dead letters.

    Expected: It is printed as any other.

    Source: Protocol: Consumer.
    """
    broker = await stage.open_broker()
    texts = make_texts(COUNT)
    backlog = Backlog(broker, *make_entries(texts, command={"redelivery_count": 10}))
    await expect_consumed(stage, await stage.consume(broker.url), backlog, texts)


# -- permits


@client_case(MUST, needs=_NEEDS)
async def permits(stage: Stage) -> None:
    """3,000 messages, delivered as permits allow.

    Expected: The client asks for more before it has none, and prints all.

    Source: Protocol: Flow control.
    """
    broker = await stage.open_broker()
    texts = make_texts(_MANY)
    backlog = Backlog(broker, *make_entries(texts))
    await expect_consumed(stage, await stage.consume(broker.url, _MANY), backlog, texts)


@client_case(MUST, needs=_NEEDS)
async def permits_of_batches(stage: Stage) -> None:
    """3,000 messages in 30 entries, delivered as permits allow: each message of a batch takes one.

    Expected: The client asks for more by the number of messages, and prints all.

    Source: Protocol: Flow control.
    """
    broker = await stage.open_broker()
    texts = make_texts(_MANY)
    groups = [[text.encode() for text in texts[start : start + 100]] for start in range(0, _MANY, 100)]
    entries = [
        Slot(make_numbered_entry(number, make_batch(*group), num_messages_in_batch=100), 100)
        for number, group in enumerate(groups)
    ]
    backlog = Backlog(broker, *entries)
    await expect_consumed(stage, await stage.consume(broker.url, _MANY), backlog, texts)


@client_case(SHOULD, needs=_NEEDS)
async def message_beyond_permits(stage: Stage) -> None:
    """All of 3,000 messages come at the first FLOW, whatever its permits are.

    Expected: All are printed.

    Source: Client: ConsumerBase, incoming queue.
    """
    broker = await stage.open_broker()
    texts = make_texts(_MANY)
    backlog = Backlog(broker, *make_entries(texts))

    def flood(peer: Peer, frame: Frame) -> bytes | None:
        backlog.permits = max(backlog.permits, _MANY)
        return backlog.flow(peer, frame)

    broker.always("FLOW", flood)
    await expect_consumed(stage, await stage.consume(broker.url, _MANY), backlog, texts)


# -- subscribing, and the end of a consumer


@client_case(SHOULD, needs=_NEEDS)
async def consumer_busy(stage: Stage) -> None:
    """SUBSCRIBE is answered by ERROR ConsumerBusy.

    Expected: The client fails, without another attempt.

    Source: Client: ConsumerImpl.connectionOpened.
    """
    broker = await stage.open_broker()
    broker.always("SUBSCRIBE", refuse("ConsumerBusy"))
    await (await stage.consume(broker.url)).fail()
    equal(len(broker.list_frames("SUBSCRIBE")), 1, "SUBSCRIBEs")


@client_case(MUST, needs=_NEEDS, waits=("timeout", 1))
async def subscribe_never_answered(stage: Stage) -> None:
    """SUBSCRIBE is not answered.

    Expected: The client fails when its operation timeout is over.

    Source: Client: ConsumerImpl, operationTimeout.
    """
    broker = await stage.open_broker()
    broker.always("SUBSCRIBE", ignore)
    await (await stage.consume(broker.url)).fail()
    await stage.wait_for(broker, "SUBSCRIBE")


@client_case(MUST, needs=_NEEDS)
async def close_consumer(stage: Stage) -> None:
    """CLOSE_CONSUMER of the broker comes behind the first message, as when a topic is unloaded.

    Expected: LOOKUP, SUBSCRIBE and FLOW again; all is printed.

    Source: Protocol: Consumer; Client: ConsumerImpl.connectionClosed.
    """
    broker = await stage.open_broker()
    texts = make_texts(COUNT)
    backlog = Backlog(broker, *make_entries(texts))

    def close(peer: Peer, frame: Frame) -> bytes:
        backlog.permits = 1 - frame.body.messagePermits  # with those of this FLOW, one is left
        return (backlog.flow(peer, frame) or b"") + make_close_consumer(frame)

    broker.once("FLOW", close)
    await expect_texts(stage, await stage.consume(broker.url, 2 * COUNT), texts)
    await expect_acked(stage, backlog, range(COUNT))
    require(len(broker.list_frames("LOOKUP")) > 1, "LOOKUP before the second SUBSCRIBE", "none came")


@client_case(SHOULD, needs=_NEEDS)
async def end_of_topic(stage: Stage) -> None:
    """REACHED_END_OF_TOPIC comes when all messages are acknowledged, to a client that waits for more.

    Expected: It does not subscribe again.

    Source: Protocol: Consumer.
    """
    broker = await stage.open_broker()
    texts = make_texts(COUNT)
    backlog = Backlog(broker, *make_entries(texts))
    run = await stage.consume(broker.url, 2 * COUNT)
    await expect_texts(stage, run, texts)
    await expect_acked(stage, backlog, range(COUNT))
    backlog.send("REACHED_END_OF_TOPIC")
    await stage.settle(1.0)
    equal(len(broker.list_frames("SUBSCRIBE")), 1, "SUBSCRIBEs")


@client_case(SHOULD, needs=_NEEDS)
async def active_consumer_change(stage: Stage) -> None:
    """ACTIVE_CONSUMER_CHANGE, true and then false, comes before the messages.

    Expected: The connection stays, and all is printed.

    Source: Protocol: Consumer.
    """
    broker = await stage.open_broker()
    texts = make_texts(COUNT)
    backlog = Backlog(broker, *make_entries(texts))

    def tell(peer: Peer, frame: Frame) -> bytes:
        consumer = frame.body.consumer_id
        changes = [
            make_frame("ACTIVE_CONSUMER_CHANGE", consumer_id=consumer, is_active=value)
            for value in (True, False)
        ]
        return b"".join([*changes, backlog.flow(peer, frame) or b""])

    broker.once("FLOW", tell)
    await expect_consumed(stage, await stage.consume(broker.url), backlog, texts)
    equal(len(broker.list_frames("SUBSCRIBE")), 1, "SUBSCRIBEs")


@client_case(MUST, needs=_NEEDS)
async def cut_message(stage: Stage) -> None:
    """The connection ends in the middle of the second message.

    Expected: The client connects again, and prints all.

    Source: Protocol: Consumer.
    """
    broker = await stage.open_broker()
    texts = make_texts(COUNT)
    backlog = Backlog(broker, *make_entries(texts))

    def cut(peer: Peer, frame: Frame) -> None:
        consumer = frame.body.consumer_id
        peer.send(backlog.entries[0].entry(consumer), backlog.entries[1].entry(consumer)[:-3])
        peer.hang_up()

    broker.once("FLOW", cut)
    await expect_texts(stage, await stage.consume(broker.url, 2 * COUNT), texts)
    await expect_acked(stage, backlog, range(COUNT))


@client_case(MUST, needs=_NEEDS)
async def message_without_delay(stage: Stage) -> None:
    """The messages that the first FLOW allows come at once, in one piece with a PING behind them.

    Expected: All are printed, and PING is answered.

    Source: Protocol: Framing.
    """
    broker = await stage.open_broker()
    texts = make_texts(COUNT)
    backlog = Backlog(broker, *make_entries(texts))
    broker.once("FLOW", append(backlog.flow, make_frame("PING")))
    run = await stage.consume(broker.url)
    await expect_consumed(stage, run, backlog, texts)
    await stage.wait_for(broker, "PONG")
