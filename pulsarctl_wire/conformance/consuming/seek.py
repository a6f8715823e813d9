"""SEEK."""

from __future__ import annotations

from typing import Any

from pulsarctl_wire.checks.requirement import MUST, OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.checking import equal
from pulsarctl_wire.conformance.basics.frames import (
    EARLIEST,
    LATEST,
    id_of,
    make_batch,
    make_frame,
    make_subscription,
    payloads,
)
from pulsarctl_wire.conformance.basics.probe import Probe
from pulsarctl_wire.conformance.basics.target import Target, admin_path
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSubscribe
from pulsarctl_wire.wire.session.state import NO_REQUEST


async def _seek(consumer: Probe, **target: Any) -> None:
    """Send SEEK, with its `target` as fields; require CLOSE_CONSUMER, then SUCCESS."""
    number = consumer.start("SEEK", consumer_id=1, **target)
    await consumer.expect("CLOSE_CONSUMER", consumer_id=1, request_id=NO_REQUEST)
    await consumer.expect("SUCCESS", request_id=number)


async def _expect_again(consumer: Probe, topic: str, *expected: bytes) -> None:
    """Send SUBSCRIBE and FLOW; require that they bring exactly these messages."""
    await consumer.subscribe(topic)
    consumer.flow(10)
    equal(payloads(await consumer.messages(len(expected))), list(expected), "payloads")
    await consumer.expect_nothing()


@case(MUST)
async def earliest(broker: Target) -> None:
    """All messages are acknowledged; SEEK to -1:-1, then SUBSCRIBE and FLOW.

    Expected: CLOSE_CONSUMER, SUCCESS; then all messages, entry 0 first.

    Source: Broker: ServerCnx.handleSeek; broker: PersistentSubscription.resetCursor.
    """
    consumer = await broker.subscribe(topic := await broker.fill(3), permits=10)
    messages = await consumer.messages(3)
    await consumer.confirm_ack(messages[2].body.message_id, kind="Cumulative")
    await _seek(consumer, message_id=EARLIEST)
    await _expect_again(consumer, topic, b"m0", b"m1", b"m2")


async def _seek_end(broker: Target, message_id: dict[str, int]) -> None:
    consumer = await broker.subscribe(topic := await broker.fill(3))
    await _seek(consumer, message_id=message_id)
    await _expect_again(consumer, topic)


@case(MUST)
async def latest(broker: Target) -> None:
    """SEEK to 2^63-1:2^63-1 on unread messages.

    Expected: Nothing old after SUBSCRIBE and FLOW.

    Source: Broker: ServerCnx.handleSeek; broker: PersistentSubscription.resetCursor.
    """
    await _seek_end(broker, LATEST)


@case(OBSERVED)
async def unknown_ledger(broker: Target) -> None:
    """3 messages unread; SEEK message_id=999999:0 (ledger beyond the topic's).

    Expected: CLOSE_CONSUMER, SUCCESS; after SUBSCRIBE again nothing old (lands at the end).

    Source: Broker: ServerCnx.handleSeek; broker: PersistentSubscription.resetCursor.
    """
    await _seek_end(broker, {"ledgerId": 999999, "entryId": 0})


@case(SHOULD)
async def time_zero(broker: Target) -> None:
    """SEEK message_publish_time=0 with all messages acknowledged.

    Expected: CLOSE_CONSUMER, SUCCESS; all messages again.

    Source: Broker: ServerCnx.handleSeek; broker: PersistentSubscription.resetCursor.
    """
    consumer = await broker.subscribe(topic := await broker.fill(3), permits=10)
    ids = [item.body.message_id for item in await consumer.messages(3)]
    await consumer.confirm_ack(*ids)
    await _seek(consumer, message_publish_time=0)
    await _expect_again(consumer, topic, b"m0", b"m1", b"m2")


@case(SHOULD)
async def everyone_closed(broker: Target) -> None:
    """Shared subscription with consumers on two connections; one SEEKs.

    Expected: Both get CLOSE_CONSUMER {request_id=-1}; only the requester gets SUCCESS.

    Source: Broker: ServerCnx.handleSeek; broker: PersistentSubscription.resetCursor.
    """
    one = await broker.subscribe(topic := await broker.fill(1), "Shared")
    other = await broker.subscribe(topic, "Shared")
    await _seek(one, message_id=EARLIEST)
    await other.expect("CLOSE_CONSUMER", consumer_id=1, request_id=NO_REQUEST)
    await other.expect_nothing()


@case(OBSERVED)
async def without_target(broker: Target) -> None:
    """SEEK with neither message_id nor time.

    Expected: ERROR MetadataError.

    Source: Broker: ServerCnx.handleSeek; broker: PersistentSubscription.resetCursor.
    """
    consumer = await broker.subscribe(broker.topic())
    await consumer.expect_error("MetadataError", "SEEK", consumer_id=1)


@case(OBSERVED)
async def unknown_consumer(broker: Target) -> None:
    """SEEK consumer_id=99.

    Expected: ERROR MetadataError.

    Source: Broker: ServerCnx.handleSeek.
    """
    consumer = await broker.connect()
    await consumer.expect_error("MetadataError", "SEEK", consumer_id=99, message_id=EARLIEST)


@case(OBSERVED, needs=("batchack",))
async def batch_ack_set(broker: Target) -> None:
    """Acknowledgement of batch indexes is on: a batch of 4 is stored; SEEK message_id with ack_set=[0b1100].

    Expected: After SUBSCRIBE again MESSAGE.ack_set=[12].

    Source: Broker: ServerCnx.handleSeek; broker: PersistentSubscription.resetCursor.
    """
    producer = await broker.produce(topic := broker.topic())
    entry = await producer.publish_batch(b"0", b"1", b"2", b"3")
    consumer = await broker.subscribe(topic)
    await _seek(consumer, message_id={**id_of(entry), "ack_set": [0b1100]})
    await consumer.subscribe(topic)
    consumer.flow(10)
    (message,) = await consumer.messages(1)
    equal(message.payload, make_batch(b"0", b"1", b"2", b"3"), "payload")
    equal(list(message.body.ack_set), [12], "ack_set")


@case(OBSERVED, since="3.3")
async def resubscribe_at_once(broker: Target) -> None:
    """SEEK and SUBSCRIBE (same consumer_id) written together.

    Expected: CLOSE_CONSUMER, then both SUCCESS in either order (seen: the SUBSCRIBE's first).

    Source: Broker: ServerCnx.handleSeek; broker: PersistentSubscription.resetCursor.
    """
    consumer = await broker.subscribe(topic := await broker.fill(1))
    request = make_frame("SEEK", consumer_id=1, request_id=51, message_id=EARLIEST)
    consumer.send(request + make_frame("SUBSCRIBE", request_id=52, **make_subscription(topic)))
    await consumer.expect("CLOSE_CONSUMER", consumer_id=1, request_id=NO_REQUEST)
    answers = [await consumer.expect("SUCCESS") for _ in range(2)]
    equal(sorted(item.body.request_id for item in answers), [51, 52], "request_id")


_AT_LATEST: dict[str, Any] = {"start_message_id": LATEST, "initialPosition": CommandSubscribe.Latest}


_READER = {"durable": False, **_AT_LATEST}


async def _seek_nondurable(broker: Target, fields: dict[str, Any]) -> None:
    consumer = await broker.subscribe(topic := await broker.fill(3), permits=10, **_READER)
    await _seek(consumer, message_id=EARLIEST)
    equal(await broker.rest("GET", f"{admin_path(topic)}/subscriptions"), [], "subscriptions")
    await consumer.subscribe(topic, **fields)
    consumer.flow(10)
    equal(payloads(await consumer.messages(3)), [b"m0", b"m1", b"m2"], "payloads")
    await consumer.expect_nothing()


@case(MUST, needs=("admin",))
async def nondurable(broker: Target) -> None:
    """3 messages; durable=false at Latest; SEEK to Earliest; the list of subscriptions; SUBSCRIBE as before.

    Expected: The list is empty; all 3 are delivered: the new SUBSCRIBE starts at the target of SEEK, not at
    its own start_message_id.

    Source: Broker: PersistentSubscription.resetCursor.
    """
    await _seek_nondurable(broker, _READER)


@case(OBSERVED, needs=("admin",))
async def nondurable_then_durable(broker: Target) -> None:
    """3 messages; durable=false at Latest; SEEK to Earliest; the list of subscriptions; SUBSCRIBE with
    durable=true at Latest.

    Expected: All 3 are delivered.

    Source: Broker: PersistentSubscription.resetCursor.
    """
    await _seek_nondurable(broker, {"durable": True, **_AT_LATEST})


@case(SHOULD, without=("subscribing",))
async def nondurable_closed(broker: Target) -> None:
    """3 messages; durable=false at Latest; SEEK to Earliest; SUBSCRIBE as before; then CLOSE_CONSUMER and
    SUBSCRIBE as before.

    Expected: No frame.

    Source: Broker: PersistentSubscription.removeConsumer.
    """
    consumer = await broker.subscribe(topic := await broker.fill(3), permits=10, **_READER)
    await _seek(consumer, message_id=EARLIEST)
    await broker.settle()  # the broker may still close consumers for a moment
    await consumer.subscribe(topic, **_READER)
    await consumer.resubscribe(topic, **_READER)
    await consumer.expect_nothing()


@case(OBSERVED)
async def before_entry_0(broker: Target) -> None:
    """SEEK to entry -1 of the ledger, with all messages acknowledged.

    Expected: All messages again.

    Source: Managed ledger: ManagedCursorImpl.
    """
    consumer = await broker.subscribe(topic := await broker.fill(2), permits=10)
    ids = [id_of(item.body.message_id) for item in await consumer.messages(2)]
    await consumer.confirm_ack(*ids)
    await _seek(consumer, message_id={**ids[0], "entryId": 2**64 - 1})
    await _expect_again(consumer, topic, b"m0", b"m1")


@case(OBSERVED, needs=("admin",), without=("subscribing",))
async def failover_standby(broker: Target) -> None:
    """Partition 0 of a partitioned topic: Failover consumers a (active) and b; SEEK by b.

    Expected: CLOSE_CONSUMER only for a; SUCCESS for b, which stays.

    Source: Broker: AbstractDispatcherSingleActiveConsumer.disconnectActiveConsumers.
    """
    topic = f"{await broker.create_partitions(1)}-partition-0"
    await broker.fill(1, topic)
    active = await broker.subscribe(topic, "Failover", 10, consumer_name="a")
    await broker.advance(1.5)
    await active.expect("ACTIVE_CONSUMER_CHANGE", is_active=True)
    await active.messages(1)
    standby = await broker.connect()
    number = standby.start("SUBSCRIBE", **make_subscription(topic, "Failover", consumer_name="b"))
    await standby.expect("ACTIVE_CONSUMER_CHANGE", is_active=False)
    await standby.expect("SUCCESS", request_id=number)
    await standby.request("SEEK", "SUCCESS", consumer_id=1, message_id=EARLIEST)
    await active.expect("CLOSE_CONSUMER", consumer_id=1, request_id=NO_REQUEST)
    await standby.expect_nothing()


@case(OBSERVED, without=("bem",))
async def time_out_of_order(broker: Target) -> None:
    """Messages published at 5, 1, 7, 2, 9 s by their metadata; SEEK message_publish_time=6 s.

    Expected: The third message and all after it: the middle one is looked at, then the one before.

    Source: Managed ledger: OpFindNewest.
    """
    producer = await broker.produce(topic := broker.topic())
    for number, second in enumerate((5, 1, 7, 2, 9)):
        await producer.publish_all(b"%d" % second, first=number, meta_publish_time=second * 1000)
    consumer = await broker.subscribe(topic)
    await _seek(consumer, message_publish_time=6_000)
    await _expect_again(consumer, topic, b"7", b"2", b"9")


@case(OBSERVED, needs=("admin",), without=("dedup",))
async def acked_ledger(broker: Target) -> None:
    """2 messages, unload, 2 more; all acknowledged; SEEK to the 2nd.

    Expected: The last two: the first ledger went with the acknowledgement.

    Source: Managed ledger: ManagedLedgerImpl.
    """
    topic = await broker.fill(2)
    await broker.subscribe(topic, subscription="s")
    await broker.rest("PUT", f"{admin_path(topic)}/unload")
    await broker.fill(2, topic)
    consumer = await broker.subscribe(topic, permits=10)
    ids = [id_of(item.body.message_id) for item in await consumer.messages(4)]
    await consumer.confirm_ack(*ids)
    await broker.settle()
    await _seek(consumer, message_id=ids[1])
    await _expect_again(consumer, topic, b"m0", b"m1")
