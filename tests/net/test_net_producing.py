"""What a producer does when receipts are odd, sends are refused, or it may not produce at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from net.scripted import (
    TOPIC,
    Peer,
    Results,
    ScriptedBroker,
    answer,
    awaited,
    build,
    close_producer,
    hang_up,
    producing,
    receipt,
    refuse,
    send,
    send_error,
    silence,
    stored,
)

from pulsarctl_wire.errors import BrokerError, LinkClosed, LocalProtocolError, RequestTimeout
from pulsarctl_wire.net.session.producer import Producer, Publisher
from pulsarctl_wire.net.session.send_queue import ProducerOptions
from pulsarctl_wire.wire.entry import Outgoing
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import MessageIdData, ProducerAccessMode


def sequence_ids(broker: ScriptedBroker) -> list[int]:
    return [body.sequence_id for body in broker.bodies("SEND")]


def pieces(broker: ScriptedBroker) -> list[tuple[int, int]]:
    """Sequence id and number of the chunk of each SEND."""
    return [
        (frame.metadata.sequence_id, frame.metadata.chunk_id)
        for frame in broker.seen("SEND")
        if frame.metadata
    ]


# ---- Receipts ----


@awaited
async def test_receipt_dropped() -> None:
    """A receipt that leaves sends out: the link is dropped and all pending is sent again; nothing is lost."""
    async with (
        ScriptedBroker() as broker,
        broker.client() as client,
        producing(broker, client) as (producer, results),
    ):
        broker.once("SEND", silence)
        await send(producer, b"a", b"b", b"c")
        await producer.flush()
        assert results.stored == [0, 1, 2]
        assert sequence_ids(broker) == [0, 1, 2, 0, 1, 2]
        assert [body.epoch for body in broker.bodies("PRODUCER")] == [0, 1]
        assert broker.warnings("a receipt for sequence id 1, none for 0")
        assert broker.peers[1].commands[:2] == ["CONNECT", "LOOKUP"]


@awaited
async def test_receipt_out_of_order() -> None:
    """A receipt before that of an earlier send is one that leaves it out."""
    async with (
        ScriptedBroker() as broker,
        broker.client() as client,
        producing(broker, client) as (producer, results),
    ):
        held: list[Frame] = []
        broker.once("SEND", lambda peer, frame: held.append(frame))
        broker.once("SEND", lambda peer, frame: receipt(frame) + receipt(held[0]))
        await send(producer, b"a", b"b")
        await producer.flush()
        assert results.stored == [0, 1]
        assert len(broker.peers) == 2


@awaited
async def test_receipt_none() -> None:
    """A send without a receipt fails after the send timeout; the producer and the connection go on."""
    async with (
        ScriptedBroker() as broker,
        broker.client() as client,
        producing(broker, client, send_timeout=0.1) as (producer, results),
    ):
        broker.once("SEND", silence, silence)
        await send(producer, b"a", b"b")
        await producer.flush()
        assert results.failed == [0, 1]
        assert isinstance(results[0].error, RequestTimeout)
        assert "SEND of sequence id 0 was not answered by SEND_RECEIPT" in str(results[0].error)
        await send(producer, b"c")
        await producer.flush()
        assert results.stored == [2]
        assert len(broker.peers) == len(broker.seen("PRODUCER")) == 1


@awaited
async def test_receipt_too_late() -> None:
    """A receipt for a send that has failed meanwhile is passed over."""
    async with (
        ScriptedBroker() as broker,
        broker.client() as client,
        producing(broker, client, send_timeout=0.1) as (producer, results),
    ):
        broker.once("SEND", silence)
        await send(producer, b"a")
        await producer.flush()
        broker.once("SEND", lambda peer, frame: receipt(broker.seen("SEND")[0]) + receipt(frame))
        await send(producer, b"b")
        await producer.flush()
        assert (results.failed, results.stored) == ([0], [1])
        assert len(broker.peers) == 1


@awaited
async def test_receipt_twice() -> None:
    """The same receipt once more is passed over."""
    async with (
        ScriptedBroker() as broker,
        broker.client() as client,
        producing(broker, client) as (producer, results),
    ):
        broker.always("SEND", lambda peer, frame: receipt(frame) * 2)
        await send(producer, b"a", b"b", b"c")
        await producer.flush()
        await send(producer, b"d")
        await producer.flush()
        assert results.stored == [0, 1, 2, 3]
        assert len(broker.peers) == 1


@awaited
async def test_receipt_unknown_producer() -> None:
    """A receipt for a producer that is none of ours is passed over."""
    async with (
        ScriptedBroker() as broker,
        broker.client() as client,
        producing(broker, client) as (producer, results),
    ):
        place = {"ledgerId": 1, "entryId": 1}
        stray = build("SEND_RECEIPT", producer_id=99, sequence_id=0, message_id=place)
        broker.once("SEND", lambda peer, frame: stray + receipt(frame, 5))
        await send(producer, b"a")
        await producer.flush()
        assert [(each.ledger, each.entry) for each in results] == [(7, 5)]


@awaited
async def test_receipt_of_a_duplicate() -> None:
    """A receipt without a place (both -1) tells of a duplicate that was not stored again: no error."""
    async with (
        ScriptedBroker() as broker,
        broker.client() as client,
        producing(broker, client) as (producer, results),
    ):

        def nowhere(peer: Peer, frame: Frame) -> bytes:
            at = MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)
            body = frame.body
            return build(
                "SEND_RECEIPT", producer_id=body.producer_id, sequence_id=body.sequence_id, message_id=at
            )

        broker.once("SEND", nowhere)
        await send(producer, b"a")
        await producer.flush()
        assert [(each.ledger, each.entry, each.error) for each in results] == [(-1, -1, None)]


@pytest.mark.parametrize("last", [False, True])
@awaited
async def test_receipt_of_a_batch(last: bool) -> None:
    """A receipt for a batch may carry its first sequence id or its last."""
    async with (
        ScriptedBroker() as broker,
        broker.client() as client,
        producing(broker, client, batch_count=3) as (producer, results),
    ):

        def either(peer: Peer, frame: Frame) -> bytes:
            body = frame.body
            return build(
                "SEND_RECEIPT",
                producer_id=body.producer_id,
                sequence_id=body.highest_sequence_id if last else body.sequence_id,
                message_id={"ledgerId": 7, "entryId": 0},
            )

        broker.always("SEND", either)
        await send(producer, b"a", b"b", b"c", b"d", b"e", b"f")
        await producer.flush()
        assert [(each.sequence_id, each.highest, each.count) for each in results] == [(0, 2, 3), (3, 5, 3)]


# ---- SEND_ERROR ----


@awaited
async def test_send_error_checksum() -> None:
    """ChecksumError: our copy is checked and intact, so all pending is sent again, on that connection."""
    async with (
        ScriptedBroker() as broker,
        broker.client() as client,
        producing(broker, client) as (producer, results),
    ):
        broker.once("SEND", send_error("ChecksumError"))
        await send(producer, b"a")
        await producer.flush()
        assert results.stored == [0]
        assert sequence_ids(broker) == [0, 0]
        assert len(broker.peers) == len(broker.seen("PRODUCER")) == 1
        assert broker.warnings("our copy is intact")


@awaited
async def test_send_error_checksum_of_a_broken_copy() -> None:
    """ChecksumError where our copy is broken too: that send fails, it cannot be mended; the others go on."""
    async with (
        ScriptedBroker() as broker,
        broker.client() as client,
        producing(broker, client) as (producer, results),
    ):
        broker.once("SEND", silence, silence)
        await send(producer, b"aaa", b"b")
        head = producer.queue.pending[0]
        head.frame = head.frame[:-1] + b"x"
        first, second = broker.seen("SEND") or await _both(broker)
        refused = send_error("ChecksumError")(broker.peers[0], first)
        assert isinstance(refused, bytes)
        broker.peers[0].send(refused, receipt(second))
        await producer.flush()
        assert (results.failed, results.stored) == ([0], [1])
        assert len(broker.peers) == 1


async def _both(broker: ScriptedBroker) -> list[Frame]:
    await broker.saw("SEND", 2)
    return broker.seen("SEND")


@awaited
async def test_send_error_terminated() -> None:
    """TopicTerminatedError: all pending fails and the producer ends; the connection stays."""
    async with (
        ScriptedBroker() as broker,
        broker.client() as client,
        producing(broker, client) as (producer, results),
    ):
        broker.once("SEND", silence, send_error("TopicTerminatedError", "ended for good"))
        await send(producer, b"a", b"b", b"c")
        await producer.flush()
        assert results.failed == [0, 1, 2]
        with pytest.raises(BrokerError, match="ended for good"):
            await send(producer, b"d")
        assert broker.peers[0].is_open
        assert len(broker.peers) == len(broker.seen("PRODUCER")) == 1


@awaited
async def test_send_error_not_allowed() -> None:
    """NotAllowedError: that send fails, the others go on, also where earlier ones have no receipt yet."""
    async with (
        ScriptedBroker() as broker,
        broker.client() as client,
        producing(broker, client) as (producer, results),
    ):
        held: list[Frame] = []
        broker.once("SEND", lambda peer, frame: held.append(frame), send_error("NotAllowedError", "no"))
        broker.once("SEND", lambda peer, frame: receipt(held[0], 0) + receipt(frame, 1))
        await send(producer, b"a", b"b", b"c")
        await producer.flush()
        assert (results.failed, results.stored) == ([1], [0, 2])
        error = next(each.error for each in results if each.error)
        assert isinstance(error, BrokerError)
        assert (error.code, error.detail, error.request) == ("NotAllowedError", "no", "SEND")
        assert len(broker.peers) == len(broker.seen("PRODUCER")) == 1


@awaited
async def test_send_error_of_a_batch() -> None:
    """A batch is refused by its highest sequence id, and fails as a whole."""
    async with (
        ScriptedBroker() as broker,
        broker.client() as client,
        producing(broker, client, batch_count=3) as (producer, results),
    ):
        broker.once("SEND", send_error("NotAllowedError"))
        await send(producer, b"a", b"b", b"c", b"d")
        await producer.flush()
        assert [(each.sequence_id, each.count, each.error is None) for each in results] == [
            (0, 3, False),
            (3, 1, True),
        ]


CHUNKED: dict[str, Any] = {"chunking": True, "chunk_bytes": 2}


@awaited
async def test_send_error_of_a_chunk() -> None:
    """A refused chunk lets its whole message fail, once, also where earlier sends have no receipt yet."""
    async with (
        ScriptedBroker() as broker,
        broker.client() as client,
        producing(broker, client, **CHUNKED) as (producer, results),
    ):
        held: list[Frame] = []
        broker.once("SEND", lambda peer, frame: held.append(frame), send_error("NotAllowedError"))
        broker.once("SEND", send_error("NotAllowedError"))
        broker.once("SEND", lambda peer, frame: receipt(held[0]) + receipt(frame))
        await send(producer, b"a", b"bbbb", b"c")
        await producer.flush()
        assert (results.failed, results.stored) == ([1], [0, 2])
        assert len(broker.peers) == 1


@awaited
async def test_chunks() -> None:
    """A chunked message is stored when all of its chunks are; its place is that of the last."""
    async with (
        ScriptedBroker() as broker,
        broker.client() as client,
        producing(broker, client, **CHUNKED) as (producer, results),
    ):
        await send(producer, b"aaaaa", b"b")
        await producer.flush()
        assert pieces(broker) == [(0, 0), (0, 1), (0, 2), (1, 0)]
        assert [(each.first, each.entry, each.count) for each in results] == [((7, 0), 2, 1), (None, 3, 1)]
        assert producer.queue.pending_messages == 0


@awaited
async def test_link_lost_between_chunks() -> None:
    """Of a chunked message those chunks are sent again that have no receipt yet."""
    async with (
        ScriptedBroker() as broker,
        broker.client() as client,
        producing(broker, client, **CHUNKED) as (producer, results),
    ):
        broker.once("SEND", stored, hang_up, silence)
        await send(producer, b"aaaaa")
        await producer.flush()
        assert results.stored == [0]
        assert pieces(broker)[-2:] == [(0, 1), (0, 2)]
        assert results[0].first == (7, 0)


OTHER_CODES = (
    *("PersistenceError", "MetadataError", "ProducerFenced"),
    *("ProducerBlockedQuotaExceededError", "AuthorizationError", "UnknownError"),
)


@pytest.mark.parametrize("code", OTHER_CODES)
@awaited
async def test_send_error_other(code: str) -> None:
    """Any other code: the connection is dropped, the producer opened again and all pending sent again."""
    async with (
        ScriptedBroker() as broker,
        broker.client() as client,
        producing(broker, client) as (producer, results),
    ):
        broker.once("SEND", send_error(code), silence)
        await send(producer, b"a", b"b")
        await producer.flush()
        assert results.stored == [0, 1]
        assert len(broker.peers) == 2
        assert [body.epoch for body in broker.bodies("PRODUCER")] == [0, 1]
        assert broker.warnings(code)


# ---- PRODUCER and its answers ----


@pytest.mark.parametrize("code", ["TopicTerminatedError", "ProducerBusy", "AuthorizationError"])
@awaited
async def test_producer_refused(code: str) -> None:
    """A refusal that will not pass (the topic terminated, the name taken) is told at once."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.always("PRODUCER", refuse(code, "not you"))
        with pytest.raises(BrokerError, match="not you") as caught:
            async with producing(broker, client):
                pass
        assert caught.value.code == code
        assert len(broker.seen("PRODUCER")) == 1


@awaited
async def test_producer_not_ready() -> None:
    """ServiceNotReady: looked up and asked again, with the next epoch, over the same connection."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("PRODUCER", refuse("ServiceNotReady"))
        async with producing(broker, client) as (producer, results):
            await send(producer, b"a")
            await producer.flush()
            assert results.stored == [0]
        assert [body.epoch for body in broker.bodies("PRODUCER")] == [0, 1]
        assert len(broker.seen("LOOKUP")) == 2
        assert len(broker.peers) == 1


@awaited
async def test_producer_never_ready() -> None:
    """A broker that never gets ready is given up after the timeout, with its own reason."""
    async with ScriptedBroker() as broker, broker.client(timeout=0.25) as client:
        broker.always("PRODUCER", refuse("ServiceNotReady", "still loading"))
        with pytest.raises(BrokerError, match="ServiceNotReady: still loading"):
            async with producing(broker, client):
                pass
        assert len(broker.seen("PRODUCER")) > 1


@awaited
async def test_producer_never_answered() -> None:
    """PRODUCER never answered: the broker is told that the producer is not wanted any more."""
    async with ScriptedBroker() as broker, broker.client(timeout=0.05) as client:
        broker.always("PRODUCER", silence)
        with pytest.raises(RequestTimeout, match="PRODUCER was not answered by PRODUCER_SUCCESS within"):
            async with producing(broker, client):
                pass
        (closed,) = await broker.saw("CLOSE_PRODUCER")
        assert closed.producer_id == broker.bodies("PRODUCER")[0].producer_id


@awaited
async def test_producer_ready_false() -> None:
    """A producer that has to wait for its turn does so beyond the timeout, until the broker says ready."""
    async with ScriptedBroker() as broker, broker.client(timeout=0.05) as client:

        async def later(peer: Peer, frame: Frame) -> None:
            fields = {"request_id": frame.body.request_id, "producer_name": "p"}
            peer.send(build("PRODUCER_SUCCESS", producer_ready=False, **fields))
            await broker.warned("waiting for exclusive access")
            await asyncio.sleep(0.1)  # longer than the timeout
            peer.send(build("PRODUCER_SUCCESS", producer_ready=True, topic_epoch=3, **fields))

        broker.once("PRODUCER", later)
        access = {"access": ProducerAccessMode.WaitForExclusive}
        async with producing(broker, client, **access) as (producer, results):
            broker.once("SEND", lambda peer, frame: close_producer(frame))
            await send(producer, b"a")
            await producer.flush()
            assert results.stored == [0]
        assert [body.topic_epoch for body in broker.bodies("PRODUCER")] == [0, 3]


@pytest.mark.parametrize("version", [{"schema_version": b""}, {}], ids=["minimal", "no schema version"])
@awaited
async def test_producer_minimal_success(version: dict[str, bytes]) -> None:
    """PRODUCER_SUCCESS needs nothing but a name, not even a schema version."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("PRODUCER", answer("PRODUCER_SUCCESS", producer_name="p", **version))
        async with producing(broker, client) as (producer, results):
            await send(producer, b"a")
            await producer.flush()
            assert results.stored == [0]
            assert producer.queue.schema_version == b""


@awaited
async def test_producer_last_sequence_id() -> None:
    """Sequence ids go on behind the last that the broker has of this producer, as it says the first time."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.always("PRODUCER", answer("PRODUCER_SUCCESS", producer_name="p", last_sequence_id=7))
        async with producing(broker, client) as (producer, results):
            broker.once("SEND", stored, hang_up)
            await send(producer, b"a", b"b")
            await producer.flush()
            await send(producer, b"c")
            await producer.flush()
            assert results.stored == [8, 9, 10]


@awaited
async def test_initial_sequence_id() -> None:
    """A first sequence id that the user gave goes before the broker's."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.always("PRODUCER", answer("PRODUCER_SUCCESS", producer_name="p", last_sequence_id=7))
        async with producing(broker, client, initial_sequence_id=99) as (producer, results):
            await send(producer, b"a")
            await producer.flush()
            assert results.stored == [100]


@awaited
async def test_name_is_kept() -> None:
    """A producer that the broker has named keeps that name when it is opened again."""
    async with ScriptedBroker() as broker, broker.client() as client:
        async with producing(broker, client) as (producer, results):
            broker.once("SEND", hang_up)
            await send(producer, b"a")
            await producer.flush()
        first, second = broker.bodies("PRODUCER")
        assert (first.producer_name, second.producer_name) == ("", "scripted-1")
        assert not second.user_provided_producer_name
        assert results.stored == [0]


# ---- Losing the connection ----


@awaited
async def test_link_lost_amid_sends() -> None:
    """The connection ends amid sends: those without receipt go again, same sequence ids; nothing is lost."""
    async with (
        ScriptedBroker() as broker,
        broker.client() as client,
        producing(broker, client) as (producer, results),
    ):
        broker.once("SEND", stored, stored, hang_up)
        broker.once("SEND", *[silence] * 2)  # on their way already
        await send(producer, *(bytes([each]) for each in range(5)))
        await broker.warned("opening it again")
        await send(producer, b"later")  # while there is no connection
        await producer.flush()
        assert results.stored == [0, 1, 2, 3, 4, 5]
        again = [frame.body.sequence_id for frame in broker.peers[1].frames if frame.command == "SEND"]
        assert again == [2, 3, 4, 5]
        payloads = {frame.body.sequence_id: frame.payload for frame in broker.seen("SEND")}
        assert payloads == {**{each: bytes([each]) for each in range(5)}, 5: b"later"}
        assert producer.queue.pending_messages == 0


@awaited
async def test_broker_gone_for_a_while() -> None:
    """A broker that is gone is tried again, without end, until it is back; then all pending is sent."""
    async with (
        ScriptedBroker() as broker,
        broker.client(timeout=0.2) as client,
        producing(broker, client) as (producer, results),
    ):
        broker.once("SEND", silence)
        await send(producer, b"a")
        await broker.saw("SEND")
        await broker.stop()
        await broker.warned("refused", 3)
        await broker.start()
        await producer.flush()
        assert results.stored == [0]
        assert sequence_ids(broker) == [0, 0]


@awaited
async def test_link_lost_while_registering() -> None:
    """A connection that ends before PRODUCER is answered is made again, the first time and later."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("PRODUCER", hang_up)
        async with producing(broker, client) as (producer, results):
            broker.once("PRODUCER", hang_up)
            broker.once("SEND", hang_up)
            await send(producer, b"a")
            await producer.flush()
            assert results.stored == [0]
            assert len(broker.peers) == 4


@awaited
async def test_no_reconnect() -> None:
    """Without reconnecting a lost connection ends the producer with LinkClosed: all pending fails."""
    async with ScriptedBroker() as broker, broker.client(reconnect=False) as client:
        async with producing(broker, client) as (producer, results):
            broker.once("SEND", hang_up)
            await send(producer, b"a")
            await producer.flush()
            assert results.failed == [0]
            assert isinstance(results[0].error, LinkClosed)
            with pytest.raises(LinkClosed, match="the broker closed the connection"):
                await send(producer, b"b")
        assert len(broker.peers) == 1


@awaited
async def test_no_reconnect_with_a_receipt_dropped() -> None:
    """Nor is anything sent again then where a receipt leaves sends out: they fail, and the error says why."""
    async with (
        ScriptedBroker() as broker,
        broker.client(reconnect=False) as client,
        producing(broker, client) as (producer, results),
    ):
        broker.once("SEND", silence)
        await send(producer, b"a", b"b")
        await producer.flush()
        assert results.failed == [0, 1]
        assert "a receipt for sequence id 1, none for 0" in str(results[0].error)


@pytest.mark.parametrize("code", ["TopicTerminatedError", "ProducerFenced", "TopicNotFound"])
@awaited
async def test_refused_when_opened_again(code: str) -> None:
    """A refusal for good when it is opened again ends the producer: all pending fails for that reason."""
    async with (
        ScriptedBroker() as broker,
        broker.client() as client,
        producing(broker, client) as (producer, results),
    ):
        broker.always("PRODUCER", refuse(code, "over"))
        broker.once("SEND", lambda peer, frame: close_producer(frame))
        await send(producer, b"a", b"b")
        await producer.flush()
        assert results.failed == [0, 1]
        assert isinstance(results[0].error, BrokerError)
        assert results[0].error.code == code


@pytest.mark.parametrize("code", ["ProducerBusy", "ServiceNotReady", "NotAllowedError"])
@awaited
async def test_refused_for_a_while_when_opened_again(code: str) -> None:
    """Other refusals may pass then (our old connection may keep the name busy): it is tried again."""
    async with (
        ScriptedBroker() as broker,
        broker.client() as client,
        producing(broker, client) as (producer, results),
    ):
        broker.once("PRODUCER", refuse(code))
        broker.once("SEND", hang_up)
        await send(producer, b"a")
        await producer.flush()
        assert results.stored == [0]


@awaited
async def test_batched_when_the_producer_ends() -> None:
    """Messages that wait in a batch when the producer ends fail too: every message has its fate."""
    async with (
        ScriptedBroker() as broker,
        broker.client() as client,
        producing(broker, client, batch_count=100, batch_delay=60) as (producer, results),
    ):
        broker.always("PRODUCER", refuse("TopicTerminatedError"))
        broker.once("SEND", silence)
        await producer.send(Outgoing(b"alone", deliver_at=1))
        await send(producer, b"a", b"b", b"c")
        broker.peers[0].send(close_producer(broker.seen("PRODUCER")[0]))
        await broker.until(lambda: results)
        await producer.flush()
        assert sum(each.count for each in results if each.error is not None) == 4


# ---- Limits ----


@awaited
async def test_message_too_large() -> None:
    """A message larger than the broker takes is refused before it is sent; the producer goes on."""
    async with (
        ScriptedBroker(max_message_size=10) as broker,
        broker.client() as client,
        producing(broker, client) as (producer, results),
    ):
        with pytest.raises(LocalProtocolError, match="the broker's limit is 10"):
            await send(producer, bytes(11))
        await send(producer, bytes(10))
        await producer.flush()
        assert len(results.stored) == 1
        assert len(broker.seen("SEND")) == 1


@awaited
async def test_too_much_pending() -> None:
    """While as much is pending as may be, `send` waits."""
    async with (
        ScriptedBroker() as broker,
        broker.client() as client,
        producing(broker, client, max_pending=2) as (producer, results),
    ):
        broker.once("SEND", silence, silence)
        sending = asyncio.ensure_future(send(producer, b"a", b"b", b"c"))
        await broker.saw("SEND", 2)
        broker.peers[0].send(build("PING"))
        await broker.saw("PONG")
        assert not sending.done()
        assert len(broker.seen("SEND")) == 2
        broker.peers[0].send(*map(receipt, broker.seen("SEND")))
        await sending
        await producer.flush()
        assert results.stored == [0, 1, 2]


@awaited
async def test_too_much_pending_when_the_producer_ends() -> None:
    """A `send` that waits is let go when the producer ends."""
    async with (
        ScriptedBroker() as broker,
        broker.client() as client,
        producing(broker, client, max_pending=1) as (producer, results),
    ):
        broker.once("SEND", send_error("TopicTerminatedError"))
        with pytest.raises(BrokerError):
            await send(producer, b"a", b"b")
        assert results.failed == [0]


# ---- Closing ----


@pytest.mark.parametrize("reaction", [hang_up, silence], ids=["hang up", "silence"])
@awaited
async def test_close_not_answered(reaction: Any) -> None:
    """A CLOSE_PRODUCER that is not answered is warned of, no more."""
    async with ScriptedBroker() as broker, broker.client(timeout=0.1) as client:
        broker.always("CLOSE_PRODUCER", reaction)
        async with producing(broker, client):
            pass
        assert broker.warnings("CLOSE_PRODUCER")


@awaited
async def test_close_refused() -> None:
    """So is one that is refused."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.always("CLOSE_PRODUCER", refuse("UnknownError", "cannot close"))
        async with producing(broker, client):
            pass
        assert broker.warnings("cannot close")


@awaited
async def test_close_while_being_opened_again() -> None:
    """A producer can be closed while there is no connection."""
    async with (
        ScriptedBroker() as broker,
        broker.client() as client,
        producing(broker, client) as (producer, _),
    ):
        broker.always("PRODUCER", silence)
        broker.once("SEND", hang_up)
        await send(producer, b"a")
        await broker.saw("PRODUCER", 2)


# ---- Partitions ----


@awaited
async def test_partitions_in_turn() -> None:
    """Messages without a key go to the partitions in turn; a producer is opened when it is first used."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.always("PARTITIONED_METADATA", answer("PARTITIONED_METADATA_RESPONSE", partitions=3))
        results = Results(broker.bell)
        publisher = Publisher(client, TOPIC, ProducerOptions(batch_count=1), results.add)
        await publisher.open()
        assert len(broker.seen("PRODUCER")) == 1
        for _ in range(6):
            await publisher.send(Outgoing(b"a"))
        await publisher.flush()
        await publisher.close()
        topics = [each.topic for each in results]
        assert sorted(topics) == sorted([f"{TOPIC}-partition-{each}" for each in range(3)] * 2)
        assert len(broker.seen("PRODUCER")) == len(broker.seen("CLOSE_PRODUCER")) == 3


@awaited
async def test_one_partition_loses_its_link() -> None:
    """Producers share a connection; when one drops it all of them are opened again, and nothing is lost."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.always("PARTITIONED_METADATA", answer("PARTITIONED_METADATA_RESPONSE", partitions=2))
        results = Results(broker.bell)
        publisher = Publisher(client, TOPIC, ProducerOptions(batch_count=1), results.add)
        await publisher.open()
        broker.once("SEND", send_error("PersistenceError"))
        for _ in range(6):
            await publisher.send(Outgoing(b"a"))
        await publisher.flush()
        await publisher.close()
        assert sorted(results.stored) == [0, 0, 1, 1, 2, 2]
        assert len(broker.peers) == 2


@awaited
async def test_producer_that_is_not_opened() -> None:
    """A producer that could not be opened can be closed."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.always("PRODUCER", refuse("ProducerBusy"))
        producer = Producer(client, TOPIC, ProducerOptions(), lambda sent: None)
        with pytest.raises(BrokerError):
            await producer.open()
        await producer.close()
