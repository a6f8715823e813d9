"""Acknowledgements: when they go, what confirms them, and what becomes of those that nothing confirms."""

from __future__ import annotations

import asyncio
from typing import Any

from net.scripted import (
    LEDGER,
    Entry,
    Peer,
    ScriptedBroker,
    acked,
    awaited,
    build,
    close_consumer,
    deliver,
    entry,
    hang_up,
    payloads,
    places,
    refuse,
    silence,
    subscribed,
    take,
)

from pulsarctl_wire.net.session.consumer import Consumer
from pulsarctl_wire.net.session.subscription import Subscription
from pulsarctl_wire.wire.entry import Batch, Outgoing, Stamp
from pulsarctl_wire.wire.frame import Frame, build_frame
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, CommandAck, CommandSubscribe, ServerError

SHARED: dict[str, Any] = {"type": CommandSubscribe.Shared}


def only(subscription: Subscription) -> Consumer:
    (consumer,) = subscription.consumers.values()
    return consumer


def batch(number: int, *payloads: bytes) -> Entry:
    """An entry of several messages."""
    gathered = Batch()
    for index, payload in enumerate(payloads):
        gathered.add(Outgoing(payload), index)
    metadata, payload = gathered.entry(Stamp("p"), 1)

    def whole(consumer: int) -> bytes:
        command = BaseCommand(type=BaseCommand.MESSAGE)
        command.message.consumer_id = consumer
        command.message.message_id.ledgerId, command.message.message_id.entryId = LEDGER, number
        return build_frame(command, metadata, payload)

    return whole


@awaited
async def test_gathered() -> None:
    """Acknowledgements are gathered into one ACK, which asks to be confirmed."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(*(entry(each) for each in range(3))))
        async with subscribed(client) as subscription:
            for delivery in await take(subscription, 3):
                delivery.consumer.ack(delivery)
            assert not broker.seen("ACK")
            (body,) = await broker.saw("ACK")
        assert places(body.message_id) == [(LEDGER, each) for each in range(3)]
        assert body.HasField("request_id")
        assert not body.HasField("validation_error")


@awaited
async def test_closing_sends_what_waits() -> None:
    """Acknowledgements that wait go before CLOSE_CONSUMER, and are waited for."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(entry(0)))
        async with subscribed(client) as subscription:
            (delivery,) = await take(subscription, 1)
            delivery.consumer.ack(delivery)
        assert broker.peers[0].commands[-2:] == ["ACK", "CLOSE_CONSUMER"]


@awaited
async def test_unconfirmed_at_a_lost_link() -> None:
    """Acknowledgements that nothing has confirmed when the link is lost are sent again over the next one."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(entry(0, b"a"), entry(1, b"b")))
        broker.once("ACK", hang_up)
        async with subscribed(client) as subscription:
            for delivery in await take(subscription, 2):
                delivery.consumer.ack(delivery)
            first, again = await broker.saw("ACK", 2)
            assert places(first.message_id) == places(again.message_id) == [(LEDGER, 0), (LEDGER, 1)]
        assert broker.peers[1].commands[:5] == ["CONNECT", "LOOKUP", "SUBSCRIBE", "FLOW", "ACK"]


@awaited
async def test_unconfirmed_and_delivered_again() -> None:
    """What comes again over the next link although acknowledged is acknowledged again and not shown."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(entry(0, b"a")))
        broker.once("FLOW", deliver(entry(0, b"a"), entry(1, b"b")))
        broker.once("ACK", hang_up)
        async with subscribed(client) as subscription:
            (delivery,) = await take(subscription, 1)
            delivery.consumer.ack(delivery)
            assert payloads(await take(subscription, 1)) == [b"b"]
        assert acked(broker).count((LEDGER, 0)) == 3  # lost, sent again, delivered again


@awaited
async def test_acknowledged_without_a_link() -> None:
    """What is acknowledged while there is no connection is acknowledged over the next one."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(entry(0)))
        async with subscribed(client) as subscription:
            (delivery,) = await take(subscription, 1)
            await broker.stop()
            await broker.warned("refused")
            delivery.consumer.ack(delivery)
            await broker.start()
            (body,) = await broker.saw("ACK")
            assert places(body.message_id) == [(LEDGER, 0)]


@awaited
async def test_acknowledged_while_subscribing_again() -> None:
    """What is acknowledged while SUBSCRIBE waits for its answer goes when that has come, not to get lost."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(entry(0)))
        early: list[tuple[int, int]] = []
        confirmed = asyncio.Event()
        async with subscribed(client) as subscription:
            (delivery,) = await take(subscription, 1)
            consumer = only(subscription)

            async def late(peer: Peer, frame: Frame) -> None:
                consumer.ack(delivery)
                flushing = asyncio.ensure_future(consumer.flush_acks())
                await asyncio.sleep(0)
                peer.send(build("PING"))
                await broker.saw("PONG")  # what went before the PONG has come
                early.extend(acked(broker))
                peer.send(build("SUCCESS", request_id=frame.body.request_id))
                await flushing
                confirmed.set()

            broker.once("SUBSCRIBE", late)
            broker.peers[0].hang_up()
            await confirmed.wait()
            assert acked(broker) == [(LEDGER, 0)]
            assert not early


@awaited
async def test_ack_refused() -> None:
    """A refused acknowledgement is warned of with the broker's reason."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(entry(0)))
        fields = {"error": ServerError.TransactionConflict, "message": "acknowledged elsewhere"}

        def refused(peer: Peer, frame: Frame) -> bytes:
            ids = {"consumer_id": frame.body.consumer_id, "request_id": frame.body.request_id}
            return build("ACK_RESPONSE", **ids, **fields)

        broker.once("ACK", refused)
        async with subscribed(client) as subscription:
            (delivery,) = await take(subscription, 1)
            delivery.consumer.ack(delivery)
            await delivery.consumer.flush_acks()
            assert broker.warnings("TransactionConflict: acknowledged elsewhere")


@awaited
async def test_ack_never_answered() -> None:
    """An acknowledgement that is never confirmed is warned of after the timeout; the consumer goes on."""
    async with ScriptedBroker() as broker, broker.client(timeout=0.1) as client:
        broker.once("FLOW", deliver(entry(0)))
        broker.once("ACK", silence)
        async with subscribed(client) as subscription:
            (delivery,) = await take(subscription, 1)
            delivery.consumer.ack(delivery)
            await delivery.consumer.flush_acks()
            assert broker.warnings("ACK was not answered by ACK_RESPONSE")
            broker.peers[0].send(entry(1, b"b")(delivery.consumer.id))
            assert payloads(await take(subscription, 1)) == [b"b"]


@awaited
async def test_batch_message_by_message() -> None:
    """A batch is acknowledged when all of its messages are."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(batch(0, b"a", b"b", b"c")))
        async with subscribed(client, **SHARED) as subscription:
            (delivery,) = await take(subscription, 1)
            for message in delivery.messages:
                assert not broker.seen("ACK")
                delivery.consumer.ack(delivery, message)
                await delivery.consumer.flush_acks()
            assert acked(broker) == [(LEDGER, 0)]


@awaited
async def test_batch_index_acknowledgement() -> None:
    """By batch index what is left of a batch is said bit by bit, each time."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(batch(0, b"a", b"b", b"c")))
        async with subscribed(client, batch_index_ack=True, **SHARED) as subscription:
            (delivery,) = await take(subscription, 1)
            for message in delivery.messages:
                delivery.consumer.ack(delivery, message)
                await delivery.consumer.flush_acks()
        ids = [body.message_id[0] for body in broker.bodies("ACK")]
        assert [(list(each.ack_set), each.batch_size) for each in ids] == [([6], 3), ([4], 3), ([], 0)]


@awaited
async def test_batch_partly_acknowledged_and_delivered_again() -> None:
    """Of a batch that comes again those messages are shown that were not acknowledged."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", *[deliver(batch(0, b"a", b"b", b"c"))] * 2)
        async with subscribed(client, **SHARED) as subscription:
            (delivery,) = await take(subscription, 1)
            delivery.consumer.ack(delivery, delivery.messages[1])
            broker.peers[0].hang_up()
            (again,) = await take(subscription, 1)
            assert payloads([again]) == [b"a", b"c"]
            for message in again.messages:
                again.consumer.ack(again, message)
        assert acked(broker) == [(LEDGER, 0)]


@awaited
async def test_cumulative() -> None:
    """All up to a message is acknowledged by its id alone; of a batch, when its last message is meant."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(entry(0), batch(1, b"a", b"b")))
        async with subscribed(client) as subscription:
            _, second = await take(subscription, 2)
            consumer = only(subscription)
            consumer.ack_cumulatively(second, second.messages[0])
            await consumer.flush_acks()
            assert not broker.seen("ACK")
            consumer.ack_cumulatively(second, second.messages[1])
            await consumer.flush_acks()
        (body,) = broker.bodies("ACK")
        assert (body.ack_type, places(body.message_id)) == (CommandAck.Cumulative, [(LEDGER, 1)])


@awaited
async def test_cumulative_unconfirmed_at_a_lost_link() -> None:
    """A cumulative acknowledgement that nothing has confirmed when the link is lost is sent again too."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(entry(0), entry(1)))
        broker.once("FLOW", lambda peer, frame: None)
        broker.once("ACK", hang_up)
        async with subscribed(client) as subscription:
            _, second = await take(subscription, 2)
            only(subscription).ack_cumulatively(second, second.messages[0])
            await broker.saw("FLOW", 2)
            await only(subscription).flush_acks()
        assert [body.ack_type for body in broker.bodies("ACK")] == [CommandAck.Cumulative] * 2


@awaited
async def test_sought_back_by_somebody() -> None:
    """What was acknowledged is shown again after CLOSE_CONSUMER: somebody may have sought back."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(entry(0, b"a")), deliver(entry(0, b"a")))
        async with subscribed(client) as subscription:
            (delivery,) = await take(subscription, 1)
            delivery.consumer.ack(delivery)
            await delivery.consumer.flush_acks()
            broker.peers[0].send(close_consumer(broker.seen("FLOW")[0]))
            assert payloads(await take(subscription, 1)) == [b"a"]


@awaited
async def test_sought_back_while_acknowledgements_wait() -> None:
    """Acknowledgements that wait at a CLOSE_CONSUMER are dropped: they would undo what somebody sought."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(entry(0, b"a")), deliver(entry(0, b"a"), entry(1, b"b")))
        async with subscribed(client) as subscription:
            (delivery,) = await take(subscription, 1)
            delivery.consumer.ack(delivery)
            broker.peers[0].send(close_consumer(broker.seen("FLOW")[0]))
            assert payloads(await take(subscription, 2)) == [b"a", b"b"]
            await only(subscription).flush_acks()
        assert acked(broker) == []


@awaited
async def test_closing_refused() -> None:
    """A CLOSE_CONSUMER that is refused is warned of, no more."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.always("CLOSE_CONSUMER", refuse("UnknownError", "cannot close"))
        async with subscribed(client):
            pass
        assert broker.warnings("cannot close")
