"""What a consumer does with messages that are damaged, doubled or too many, and at the ends of things."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from net.scripted import (
    LEDGER,
    Entry,
    Peer,
    ScriptedBroker,
    acked,
    answer,
    awaited,
    build,
    close_consumer,
    damaged,
    deliver,
    entry,
    followed_by,
    hang_up,
    payloads,
    places,
    refuse,
    silence,
    subscribed,
    take,
    take_one,
    with_metadata,
)

from pulsarctl_wire.errors import BrokerError, LinkClosed, RequestTimeout
from pulsarctl_wire.net.session.consumer import Consumer
from pulsarctl_wire.net.session.subscription import Subscription
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandAck, CommandSubscribe, CompressionType

SHARED: dict[str, Any] = {"type": CommandSubscribe.Shared}


def only(subscription: Subscription) -> Consumer:
    (consumer,) = subscription.consumers.values()
    return consumer


def refused_entries(broker: ScriptedBroker) -> list[tuple[int, int]]:
    """Entry id and validation_error of what was acknowledged as corrupt."""
    return [
        (body.message_id[0].entryId, body.validation_error)
        for body in broker.bodies("ACK")
        if body.HasField("validation_error")
    ]


def chunk(number: int, index: int, count: int, payload: bytes) -> Entry:
    fields: dict[str, Any] = {"uuid": "u", "chunk_id": index, "num_chunks_from_msg": count}
    return entry(number, payload, total_chunk_msg_size=100, **fields)


# ---- Damaged messages ----


@pytest.mark.parametrize("prefixed", [False, True], ids=["plain", "behind 0e02"])
@awaited
async def test_message_bad_crc(prefixed: bool) -> None:
    """A wrong CRC, also behind broker entry metadata: never shown, acknowledged with validation_error."""
    async with ScriptedBroker() as broker, broker.client() as client:
        bad = damaged(entry(1, b"bad", prefixed=prefixed))
        broker.once("FLOW", deliver(entry(0, b"a", prefixed=prefixed), bad, entry(2, b"c")))
        async with subscribed(client) as subscription:
            assert payloads(await take(subscription, 2)) == [b"a", b"c"]
            assert subscription.counts["corrupt"] == 1
        assert refused_entries(broker) == [(1, CommandAck.ChecksumMismatch)]
        assert broker.warnings("7:1: corrupt, acknowledged with validation_error ChecksumMismatch")


@awaited
async def test_message_bad_metadata() -> None:
    """Metadata that cannot be read: acknowledged with validation_error, the next message is delivered."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(with_metadata(0, b"\xff\xff\xff"), entry(1, b"b")))
        async with subscribed(client) as subscription:
            assert payloads(await take(subscription, 1)) == [b"b"]
        assert refused_entries(broker) == [(0, CommandAck.ChecksumMismatch)]
        assert broker.warnings("the metadata does not parse")
        assert len(broker.peers) == 1


@pytest.mark.parametrize("codec", ["LZ4", "ZLIB", "ZSTD", "SNAPPY"])
@awaited
async def test_message_bad_compression(codec: str) -> None:
    """A payload that does not decompress: acknowledged with validation_error, the next is delivered."""
    async with ScriptedBroker() as broker, broker.client() as client:
        compression: dict[str, Any] = {"compression": CompressionType.Value(codec), "uncompressed_size": 100}
        broker.once("FLOW", deliver(entry(0, b"\xffnothing", **compression), entry(1, b"b")))
        async with subscribed(client) as subscription:
            assert payloads(await take(subscription, 1)) == [b"b"]
        assert refused_entries(broker) == [(0, CommandAck.DecompressionError)]
        assert len(broker.peers) == 1


@awaited
async def test_message_bad_batch() -> None:
    """A batch of which nothing can be read: acknowledged with validation_error, the next is delivered."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(entry(0, b"\xff\xff\xff", num_messages_in_batch=3), entry(1, b"b")))
        async with subscribed(client) as subscription:
            assert payloads(await take(subscription, 1)) == [b"b"]
        assert refused_entries(broker) == [(0, CommandAck.BatchDeSerializeError)]


@awaited
async def test_damaged_messages_cost_permits() -> None:
    """What is corrupt gives its permits back, like what is taken."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(*(damaged(entry(each, b"bad")) for each in range(10))))
        async with subscribed(client, queue_size=10):
            flows = await broker.saw("FLOW", 3)
            assert [body.messagePermits for body in flows] == [10, 5, 5]


@awaited
async def test_message_cut_off() -> None:
    """A message that the connection's end cut off is shown when it comes again, whole."""
    async with ScriptedBroker() as broker, broker.client() as client:

        def cut(peer: Peer, frame: Frame) -> None:
            peer.send(entry(0, b"a whole message")(frame.body.consumer_id)[:-5])
            peer.hang_up()

        whole = deliver(entry(0, b"a whole message"), entry(1, b"b"))
        broker.once("FLOW", cut, followed_by(whole, build("PING")))
        async with subscribed(client) as subscription:
            await broker.saw("PONG")
            assert not subscription.counts["duplicate"]
            assert payloads(await take(subscription, 2)) == [b"a whole message", b"b"]
            assert not subscription.counts["corrupt"]


# ---- Messages that nobody asked for ----


@awaited
async def test_message_unknown_consumer() -> None:
    """A message for a consumer that is none of ours is passed over."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", lambda peer, frame: entry(5, b"no")(99) + entry(0, b"a")(frame.body.consumer_id))
        async with subscribed(client) as subscription:
            assert payloads(await take(subscription, 1)) == [b"a"]
        assert acked(broker) == []


@awaited
async def test_message_twice() -> None:
    """A message that comes again although it was acknowledged: delivered once, acknowledged twice."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(entry(0, b"a")))
        async with subscribed(client) as subscription:
            (delivery,) = await take(subscription, 1)
            consumer = only(subscription)
            consumer.ack(delivery)
            await consumer.flush_acks()
            broker.peers[0].send(entry(0, b"a")(consumer.id), entry(1, b"b")(consumer.id))
            assert payloads(await take(subscription, 1)) == [b"b"]
            assert subscription.counts["duplicate"] == 1
        assert acked(broker) == [(LEDGER, 0), (LEDGER, 0)]


@awaited
async def test_message_twice_without_acknowledgement() -> None:
    """What was not acknowledged is delivered as often as it comes."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(entry(0, b"a"), entry(0, b"a")))
        async with subscribed(client) as subscription:
            assert payloads(await take(subscription, 2)) == [b"a", b"a"]


@awaited
async def test_message_beyond_permits() -> None:
    """Messages beyond the permits are all delivered; permits go back by half a queue."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(*(entry(each, bytes([each])) for each in range(25))))
        async with subscribed(client, queue_size=10) as subscription:
            assert payloads(await take(subscription, 25)) == [bytes([each]) for each in range(25)]
            flows = await broker.saw("FLOW", 6)
            assert [body.messagePermits for body in flows] == [10, 5, 5, 5, 5, 5]


@awaited
async def test_permits_wait_for_whoever_consumes() -> None:
    """As long as nobody takes what was delivered no permits go back: a slow reader slows the broker."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(*(entry(each) for each in range(10))))
        async with subscribed(client, queue_size=10) as subscription:
            broker.peers[0].send(build("PING"))
            await broker.saw("PONG")
            assert len(broker.seen("FLOW")) == 1
            await take(subscription, 10)
            await broker.saw("FLOW", 3)


@awaited
async def test_message_without_checksum() -> None:
    """A message without any CRC is delivered: it is optional."""

    def bare(consumer: int) -> bytes:
        whole = entry(0, b"a")(consumer)
        at = 8 + int.from_bytes(whole[4:8], "big")
        return (len(whole) - 4 - 6).to_bytes(4, "big") + whole[4:at] + whole[at + 6 :]

    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(bare))
        async with subscribed(client) as subscription:
            (delivery,) = await take(subscription, 1)
            assert delivery.frame.checksum == "absent"
            assert payloads([delivery]) == [b"a"]


@awaited
async def test_messages_of_a_topic_without_storage() -> None:
    """All messages of a non-persistent topic have the id 0:0; each is shown, whatever was acknowledged."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(entry(0, b"a", ledger=0)))
        async with subscribed(client, "non-persistent://public/default/t", queue_size=10) as subscription:
            (delivery,) = await take(subscription, 1)
            consumer = only(subscription)
            consumer.ack(delivery)
            await consumer.flush_acks()
            broker.peers[0].send(
                entry(0, b"b", ledger=0)(consumer.id),
                *(entry(0, b"c", ledger=0)(consumer.id) for _ in range(2)),
                build("PING"),
            )
            await broker.saw("PONG")
            assert not subscription.counts["duplicate"]
            assert payloads(await take(subscription, 3)) == [b"b", b"c", b"c"]


@awaited
async def test_reader_of_a_topic_without_storage() -> None:
    """So too for a reader there."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(entry(0, b"a", ledger=0)))
        topic = "non-persistent://public/default/t"
        async with subscribed(client, topic, durable=False, queue_size=2) as subscription:
            await take(subscription, 1)
            await broker.saw("FLOW", 2)
            consumer = only(subscription)
            broker.peers[0].send(entry(0, b"b", ledger=0)(consumer.id), build("PING"))
            await broker.saw("PONG")
            assert subscription.inbox
            assert payloads(await take(subscription, 1)) == [b"b"]


# ---- Refusing messages ----


@awaited
async def test_nack_shared() -> None:
    """A refused message of a Shared subscription is asked for by its id after the delay, and comes again."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(entry(0, b"a"), entry(1, b"b")))
        broker.once("REDELIVER_UNACKNOWLEDGED_MESSAGES", deliver(entry(1, b"b")))
        async with subscribed(client, nack_delay=0.05, **SHARED) as subscription:
            _, second = await take(subscription, 2)
            second.consumer.nack(second)
            assert payloads(await take(subscription, 1)) == [b"b"]
        (asked,) = broker.bodies("REDELIVER_UNACKNOWLEDGED_MESSAGES")
        assert places(asked.message_ids) == [(LEDGER, 1)]


@awaited
async def test_nack_exclusive() -> None:
    """An Exclusive subscription gets again all that is not acknowledged; what was queued is shown once."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(*(entry(each, bytes([each])) for each in range(3))))
        again = deliver(*(entry(each, bytes([each])) for each in (1, 2)))
        broker.once("REDELIVER_UNACKNOWLEDGED_MESSAGES", again)
        async with subscribed(client, nack_delay=0.05, queue_size=10) as subscription:
            taken = [await take_one(subscription) for _ in range(3)]
            consumer = only(subscription)
            for delivery in taken[:2]:
                consumer.release_permits(delivery)
            consumer.ack(taken[0])
            consumer.nack(taken[1])
            assert payloads(await take(subscription, 2)) == [b"\x01", b"\x02"]
        (asked,) = broker.bodies("REDELIVER_UNACKNOWLEDGED_MESSAGES")
        assert not asked.message_ids
        assert asked.consumer_epoch == 1


@awaited
async def test_message_of_an_earlier_epoch() -> None:
    """A message that was on its way when all was asked for again is passed over: it comes once more."""
    async with ScriptedBroker() as broker, broker.client() as client:

        def of_epoch(number: int, epoch: int) -> Entry:
            def whole(consumer: int) -> bytes:
                at = {"ledgerId": LEDGER, "entryId": number}
                fields = {"consumer_id": consumer, "message_id": at, "consumer_epoch": epoch}
                frame = entry(number, b"a")(consumer)
                tail = frame[8 + int.from_bytes(frame[4:8], "big") :]
                head = build("MESSAGE", **fields)
                size = len(head) - 4 + len(tail)
                return size.to_bytes(4, "big") + head[4:] + tail

            return whole

        broker.once("FLOW", deliver(of_epoch(0, 0)))
        broker.once("REDELIVER_UNACKNOWLEDGED_MESSAGES", deliver(of_epoch(1, 0), of_epoch(0, 1)))
        async with subscribed(client, nack_delay=0) as subscription:
            (delivery,) = await take(subscription, 1)
            delivery.consumer.nack(delivery)
            (delivery,) = await take(subscription, 1)
            assert delivery.id == (LEDGER, 0)
            assert not subscription.inbox


@awaited
async def test_nack_keeps_to_the_queue() -> None:
    """However often all is asked for again, the broker never has permits for more than the queue."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(entry(0, b"a")))
        broker.always("REDELIVER_UNACKNOWLEDGED_MESSAGES", deliver(entry(0, b"a")))
        async with subscribed(client, nack_delay=0, queue_size=10) as subscription:
            for _ in range(20):
                (delivery,) = await take(subscription, 1)
                delivery.consumer.nack(delivery)
            await take(subscription, 1)
            given = sum(body.messagePermits for body in broker.bodies("FLOW"))
            assert given - 21 <= 10


@awaited
async def test_nack_of_a_reader() -> None:
    """What a subscription that is not durable refuses comes again too."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(entry(0, b"a"), entry(1, b"b")))
        again = deliver(entry(0, b"a"), entry(1, b"b"))
        broker.once(
            "REDELIVER_UNACKNOWLEDGED_MESSAGES",
            followed_by(again, build("PING")),
        )
        async with subscribed(client, nack_delay=0, durable=False) as subscription:
            first, _ = await take(subscription, 2)
            first.consumer.nack(first)
            await broker.saw("PONG")
            assert subscription.inbox
            assert payloads(await take(subscription, 2)) == [b"a", b"b"]


@awaited
async def test_nack_of_chunks() -> None:
    """A refused message of several chunks is asked for with all of their ids."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(chunk(0, 0, 2, b"a"), chunk(1, 1, 2, b"b")))
        async with subscribed(client, nack_delay=0, **SHARED) as subscription:
            (delivery,) = await take(subscription, 1)
            delivery.consumer.nack(delivery)
            (asked,) = await broker.saw("REDELIVER_UNACKNOWLEDGED_MESSAGES")
            assert places(asked.message_ids) == [(LEDGER, 0), (LEDGER, 1)]


@awaited
async def test_ack_timeout() -> None:
    """What is not acknowledged within the acknowledgement timeout is asked for again."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(entry(0, b"a"), entry(1, b"b")))
        async with subscribed(client, ack_timeout=0.1, **SHARED) as subscription:
            first, _ = await take(subscription, 2)
            first.consumer.ack(first)
            (asked,) = await broker.saw("REDELIVER_UNACKNOWLEDGED_MESSAGES")
            assert places(asked.message_ids) == [(LEDGER, 1)]


# ---- Chunks ----


@awaited
async def test_chunks_joined() -> None:
    """Chunks are delivered as one message, and acknowledged each by its id."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(chunk(0, 0, 3, b"a"), chunk(1, 1, 3, b"b"), chunk(2, 2, 3, b"c")))
        async with subscribed(client) as subscription:
            (delivery,) = await take(subscription, 1)
            assert payloads([delivery]) == [b"abc"]
            assert (delivery.id, delivery.ids) == ((LEDGER, 2), [(LEDGER, each) for each in range(3)])
            delivery.consumer.ack(delivery)
        assert acked(broker) == [(LEDGER, 0), (LEDGER, 1), (LEDGER, 2)]


@awaited
async def test_chunk_missing() -> None:
    """Chunks without those before them are warned of, not shown, and not acknowledged."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(chunk(1, 1, 3, b"b"), chunk(2, 2, 3, b"c"), entry(3, b"d")))
        async with subscribed(client) as subscription:
            assert payloads(await take(subscription, 1)) == [b"d"]
        assert broker.warnings("chunk 2 of message u without chunk 1")
        assert acked(broker) == []


@awaited
async def test_chunks_from_their_beginning_again() -> None:
    """Chunks that come again from the first one on have their own order, whatever came of them before."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(chunk(1, 1, 2, b"b"), chunk(0, 0, 2, b"a"), chunk(1, 1, 2, b"b")))
        async with subscribed(client) as subscription:
            (delivery,) = await take(subscription, 1)
            assert payloads([delivery]) == [b"ab"]
            assert delivery.ids == [(LEDGER, 0), (LEDGER, 1)]


@awaited
async def test_chunks_that_do_not_decompress() -> None:
    """A message of several chunks that does not decompress is acknowledged with the ids of all of them."""
    async with ScriptedBroker() as broker, broker.client() as client:
        codec: dict[str, Any] = {"compression": CompressionType.LZ4, "uncompressed_size": 100, "uuid": "u"}
        parts = [entry(each, b"\xff", chunk_id=each, num_chunks_from_msg=2, **codec) for each in range(2)]
        broker.once("FLOW", deliver(*parts, entry(2, b"c")))
        async with subscribed(client) as subscription:
            assert payloads(await take(subscription, 1)) == [b"c"]
        assert sorted(acked(broker)) == [(LEDGER, 0), (LEDGER, 1)]


# ---- SUBSCRIBE and its answers ----


@pytest.mark.parametrize("code", ["ConsumerBusy", "SubscriptionNotFound", "IncompatibleSchema"])
@awaited
async def test_consumer_refused(code: str) -> None:
    """A refusal that will not pass (another exclusive consumer, no such subscription) is told at once."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.always("SUBSCRIBE", refuse(code, "not you"))
        with pytest.raises(BrokerError, match="not you") as caught:
            async with subscribed(client):
                pass
        assert caught.value.code == code
        assert len(broker.seen("SUBSCRIBE")) == 1


@awaited
async def test_consumer_not_ready() -> None:
    """ServiceNotReady: looked up and asked again."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("SUBSCRIBE", refuse("ServiceNotReady"))
        broker.once("FLOW", deliver(entry(0, b"a")))
        async with subscribed(client) as subscription:
            assert payloads(await take(subscription, 1)) == [b"a"]
        assert len(broker.seen("SUBSCRIBE")) == len(broker.seen("LOOKUP")) == 2


@awaited
async def test_subscribe_never_answered() -> None:
    """SUBSCRIBE never answered: the broker is told that the consumer is not wanted any more."""
    async with ScriptedBroker() as broker, broker.client(timeout=0.05) as client:
        broker.always("SUBSCRIBE", silence)
        with pytest.raises(RequestTimeout, match="SUBSCRIBE was not answered by SUCCESS within"):
            async with subscribed(client):
                pass
        (closed,) = await broker.saw("CLOSE_CONSUMER")
        assert closed.consumer_id == broker.bodies("SUBSCRIBE")[0].consumer_id


@awaited
async def test_consumer_busy_when_opened_again() -> None:
    """A subscription that is busy when it is opened again (by our old connection, perhaps) is tried again."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", hang_up, deliver(entry(0, b"a")))
        async with subscribed(client) as subscription:
            broker.once("SUBSCRIBE", refuse("ConsumerBusy"))
            assert payloads(await take(subscription, 1)) == [b"a"]
            assert len(broker.seen("SUBSCRIBE")) == 3


@awaited
async def test_consumer_refused_when_opened_again() -> None:
    """A refusal for good when it is opened again ends the consumer: who waits for messages gets the error."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", hang_up)
        async with subscribed(client) as subscription:
            broker.always("SUBSCRIBE", refuse("TopicNotFound", "deleted"))
            with pytest.raises(BrokerError, match="deleted"):
                await take(subscription, 1)


# ---- Ends ----


@awaited
async def test_end_of_topic() -> None:
    """REACHED_END_OF_TOPIC: the connection stays; who takes messages gets none once all are taken."""
    async with ScriptedBroker() as broker, broker.client() as client:

        def last(peer: Peer, frame: Frame) -> bytes:
            consumer = frame.body.consumer_id
            return entry(0, b"a")(consumer) + build("REACHED_END_OF_TOPIC", consumer_id=consumer)

        broker.once("FLOW", last)
        async with subscribed(client) as subscription:
            assert payloads(await take(subscription, 1)) == [b"a"]
            assert await subscription.take() is None
            assert only(subscription).queue.ended
            assert broker.peers[0].is_open
        assert len(broker.peers) == len(broker.seen("SUBSCRIBE")) == 1


@awaited
async def test_end_of_one_topic_of_several() -> None:
    """The end of one topic ends nothing while others go on."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.always("PARTITIONED_METADATA", answer("PARTITIONED_METADATA_RESPONSE", partitions=2))
        async with subscribed(client) as subscription:
            one, other = subscription.consumers.values()
            broker.peers[0].send(build("REACHED_END_OF_TOPIC", consumer_id=one.id), entry(0, b"a")(other.id))
            assert payloads(await take(subscription, 1)) == [b"a"]
            waiting = asyncio.ensure_future(subscription.take())
            broker.peers[0].send(build("PING"))
            await broker.saw("PONG")
            assert not waiting.done()
            broker.peers[0].send(build("REACHED_END_OF_TOPIC", consumer_id=other.id))
            assert await waiting is None


@awaited
async def test_sought_back_from_the_end() -> None:
    """Who seeks back from the end of a topic gets its messages again."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once(
            "FLOW", lambda peer, frame: build("REACHED_END_OF_TOPIC", consumer_id=frame.body.consumer_id)
        )
        async with subscribed(client) as subscription:
            assert await subscription.take() is None
            consumer = only(subscription)

            def both(peer: Peer, frame: Frame) -> bytes:
                return close_consumer(frame) + build("SUCCESS", request_id=frame.body.request_id)

            broker.once("SEEK", both)
            broker.once("FLOW", deliver(entry(0, b"a")))
            consumer.queue.ended = False
            await consumer.ask("SEEK", message_publish_time=1)
            assert payloads([await take_one(subscription)]) == [b"a"]


@awaited
async def test_active_consumer_change() -> None:
    """ACTIVE_CONSUMER_CHANGE is remembered, and has no effect on the wire."""
    async with (
        ScriptedBroker() as broker,
        broker.client() as client,
        subscribed(client, type=CommandSubscribe.Failover) as subscription,
    ):
        consumer = only(subscription)
        await broker.saw("FLOW")
        before = list(broker.peers[0].commands)
        for active in (True, False):
            change = build("ACTIVE_CONSUMER_CHANGE", consumer_id=consumer.id, is_active=active)
            broker.peers[0].send(change, build("PING"))
            await broker.until(lambda: broker.peers[0].commands[len(before) :] == ["PONG"])
            assert consumer.queue.active is active
            before.append("PONG")


@awaited
async def test_link_lost_while_consuming() -> None:
    """The connection ends: subscribed again over another one; what was queued and not taken is shown once."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(entry(0, b"a"), entry(1, b"b")))
        async with subscribed(client) as subscription:
            consumer = only(subscription)
            await broker.until(lambda: len(broker.seen("FLOW")) == 1)
            broker.peers[0].send(build("PING"))
            await broker.saw("PONG")  # both are in our queue now
            broker.once("FLOW", deliver(entry(0, b"a"), entry(1, b"b"), entry(2, b"c")))
            broker.peers[0].hang_up()
            await broker.saw("FLOW", 2)
            assert payloads(await take(subscription, 3)) == [b"a", b"b", b"c"]
            assert consumer.queue.generation == 2


@awaited
async def test_reader_goes_on_where_it_was() -> None:
    """A subscription that is not durable goes on behind the last message taken, sent again or not."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(entry(0, b"a"), entry(1, b"b")))
        broker.once("FLOW", deliver(entry(1, b"b"), entry(2, b"c")))
        async with subscribed(client, durable=False, start=(-1, -1, -1)) as subscription:
            assert payloads(await take(subscription, 2)) == [b"a", b"b"]
            broker.peers[0].hang_up()
            assert payloads(await take(subscription, 1)) == [b"c"]
        first, second = broker.bodies("SUBSCRIBE")
        assert first.start_message_id.ledgerId == 2**64 - 1
        assert places([second.start_message_id]) == [(LEDGER, 1)]


@awaited
async def test_no_reconnect_while_consuming() -> None:
    """Without reconnecting a lost connection ends the consumer: who waits for messages gets LinkClosed."""
    async with ScriptedBroker() as broker, broker.client(reconnect=False) as client:
        broker.once("FLOW", hang_up)
        async with subscribed(client) as subscription:
            with pytest.raises(LinkClosed, match="the broker closed the connection"):
                await subscription.take()
        assert len(broker.peers) == 1


@awaited
async def test_broker_gone_for_a_while_when_consuming() -> None:
    """A broker that is gone is tried again, without end, until it is back."""
    async with (
        ScriptedBroker() as broker,
        broker.client(timeout=0.2) as client,
        subscribed(client) as subscription,
    ):
        await broker.saw("FLOW")
        await broker.stop()
        await broker.warned("refused", 2)
        broker.once("FLOW", deliver(entry(0, b"a")))
        await broker.start()
        assert payloads(await take(subscription, 1)) == [b"a"]


@awaited
async def test_close_answered_by_nobody() -> None:
    """A CLOSE_CONSUMER whose connection ends is warned of, no more."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.always("CLOSE_CONSUMER", hang_up)
        async with subscribed(client):
            pass
        assert broker.warnings("CLOSE_CONSUMER has no answer")


@awaited
async def test_close_while_subscribing_again() -> None:
    """A consumer can be closed while there is no connection."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", hang_up)
        async with subscribed(client):
            broker.always("SUBSCRIBE", silence)
            await broker.saw("SUBSCRIBE", 2)
