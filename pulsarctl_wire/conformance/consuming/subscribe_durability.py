"""SUBSCRIBE with durable=false: where such a consumer starts, and what is left of it."""

from __future__ import annotations

from typing import Any

from pulsarctl_wire.checks.requirement import OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.checking import equal, require
from pulsarctl_wire.conformance.basics.frames import (
    EARLIEST,
    LATEST,
    id_of,
    make_batch,
    make_subscription,
    payloads,
)
from pulsarctl_wire.conformance.basics.target import Target, admin_path
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSubscribe

_PAYLOADS = [b"m0", b"m1", b"m2", b"m3", b"m4"]


async def _start_at(broker: Target, start: Any, expected: list[bytes], initial: int | None = None) -> None:
    """Require that a reader gets `expected`, and what is published later.

    It starts at `start`, a message id or the index of a message; `initial` is its initialPosition.
    """
    producer = await broker.produce(topic := broker.topic())
    ids = await producer.publish_all(*_PAYLOADS)
    start_id = start if isinstance(start, dict) else id_of(ids[start])
    fields = {"durable": False, "start_message_id": start_id, "initialPosition": initial}
    consumer = await broker.subscribe(topic, "Exclusive", 10, **fields)
    equal(payloads(await consumer.messages(len(expected))), expected, "payloads")
    await consumer.expect_nothing()
    await producer.publish_all(b"later", first=5)
    equal(payloads(await consumer.messages(1)), [b"later"], "payloads")


@case(SHOULD)
async def nondurable_start_id(broker: Target) -> None:
    """durable=false, start_message_id = third of five (ledger L, entry 2).

    Expected: First MESSAGE is entry 2 itself: a client that does not want the start drops it.

    Source: Broker: PersistentTopic.getNonDurableSubscription.
    """
    await _start_at(broker, 2, _PAYLOADS[2:])


@case(SHOULD)
async def nondurable_earliest(broker: Target) -> None:
    """durable=false, start_message_id = -1:-1.

    Expected: Everything from entry 0.

    Source: Broker: PersistentTopic.getNonDurableSubscription.
    """
    await _start_at(broker, EARLIEST, _PAYLOADS)


@case(SHOULD)
async def nondurable_latest(broker: Target) -> None:
    """durable=false, start_message_id = 2^63-1:2^63-1.

    Expected: Only messages published afterwards.

    Source: Broker: PersistentTopic.getNonDurableSubscription.
    """
    await _start_at(broker, LATEST, [])


@case(OBSERVED)
async def nondurable_latest_earliest(broker: Target) -> None:
    """5 messages; SUBSCRIBE durable=false, start_message_id = 2^63-1:2^63-1, initialPosition=Earliest.

    Expected: All 5.

    Source: Managed ledger: NonDurableCursorImpl.
    """
    await _start_at(broker, LATEST, _PAYLOADS, CommandSubscribe.Earliest)


@case(OBSERVED)
async def nondurable_batch_index(broker: Target) -> None:
    """Batch of 5 in entry 0; durable=false, start_message_id entry 0 batch_index 2.

    Expected: The whole entry 0 with ack_set=empty, then entry 1 (the client skips up to the index).

    Source: Broker: PersistentTopic.getNonDurableSubscription.
    """
    producer = await broker.produce(topic := broker.topic())
    message_id = await producer.publish_batch(*_PAYLOADS)
    await producer.publish_all(b"single", first=5)
    start = {**id_of(message_id), "batch_index": 2}
    fields = {"durable": False, "start_message_id": start, "initialPosition": None}
    consumer = await broker.subscribe(topic, "Exclusive", 10, **fields)
    first, second = await consumer.messages(2)
    equal(first.payload, make_batch(*_PAYLOADS), "payload")
    require(not first.body.ack_set, "no ack_set", first.body.ack_set)
    equal(second.payload, b"single", "payload")


@case(SHOULD)
async def nondurable_gone_after_close(broker: Target) -> None:
    """durable=false consumer closes; SUBSCRIBE durable=true same name.

    Expected: SUCCESS (subscription vanished, no clash).

    Source: Broker: PersistentTopic.
    """
    consumer = await broker.subscribe(topic := broker.topic(), durable=False)
    await consumer.resubscribe(topic, durable=True)


@case(OBSERVED)
async def durability_clash(broker: Target) -> None:
    """A durable consumer of s is live (Shared); SUBSCRIBE to s with durable=false, Shared.

    Expected: ERROR NotAllowedError.

    Source: Broker: PersistentTopic.
    """
    await broker.subscribe(topic := broker.topic(), "Shared")
    second = await broker.connect()
    await second.look_up(topic)
    await second.expect_error(
        "NotAllowedError", "SUBSCRIBE", **make_subscription(topic, "Shared", durable=False)
    )


async def _start_nowhere(broker: Target, entry: int) -> None:
    """Start at an entry that does not exist, with Earliest: require all messages.

    `entry` is 50, or -1 as an unsigned number; from 50 with Latest, require none.
    """
    producer = await broker.produce(topic := broker.topic())
    ids = await producer.publish_all(b"0", b"1", b"2")
    start = {"ledgerId": ids[0].ledgerId, "entryId": entry}
    reader: dict[str, Any] = {"durable": False, "start_message_id": start}
    consumer = await broker.subscribe(topic, permits=10, **reader)
    equal(payloads(await consumer.messages(3)), [b"0", b"1", b"2"], "payloads")
    if entry == 50:
        other = await broker.subscribe(topic, permits=10, subscription="t", initialPosition=0, **reader)
        await other.expect_nothing()


@case(OBSERVED)
async def nondurable_beyond_end(broker: Target) -> None:
    """3 messages; SUBSCRIBE durable=false, start_message_id = entry 50 of their ledger; initialPosition
    Earliest, and Latest.

    Expected: All 3; nothing.

    Source: Managed ledger: NonDurableCursorImpl.
    """
    await _start_nowhere(broker, 50)


@case(OBSERVED)
async def nondurable_before_entry_0(broker: Target) -> None:
    """3 messages; SUBSCRIBE durable=false, start_message_id = entry -1 of their ledger.

    Expected: All 3.

    Source: Managed ledger: NonDurableCursorImpl.
    """
    await _start_nowhere(broker, 2**64 - 1)


@case(OBSERVED, needs=("admin",), since="3.3")
async def nondurable_keeps_ledgers(broker: Target) -> None:
    """Messages in two ledgers, no durable subscription; a consumer with durable=false acknowledges into the
    second ledger; another one with durable=false at -1:-1.

    Expected: It gets everything: acknowledgements of such consumers delete nothing.

    Source: Broker: PersistentTopic.
    """
    topic = await broker.fill(2)
    await broker.rest("PUT", f"{admin_path(topic)}/unload")
    await broker.fill(1, topic)
    start: dict[str, Any] = {"durable": False, "start_message_id": EARLIEST}
    reader = await broker.subscribe(topic, permits=10, **start)
    last = (await reader.messages(3))[-1]
    reader.ack(id_of(last.body.message_id), kind="Cumulative")
    await broker.settle()
    other = await broker.subscribe(topic, permits=10, subscription="other", **start)
    equal(payloads(await other.messages(3)), [b"m0", b"m1", b"m0"], "payloads")
