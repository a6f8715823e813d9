"""GET_LAST_MESSAGE_ID."""

from __future__ import annotations

from typing import Any

from broker.entries import entry
from broker.probe import Probe, Target, case, sent_raw

NONE = 2**64 - 1


async def last(consumer: Probe) -> Any:
    return await consumer.request("GET_LAST_MESSAGE_ID", "GET_LAST_MESSAGE_ID_RESPONSE", consumer_id=1)


@case("lastid/empty_topic")
async def empty_topic(broker: Target) -> None:
    body = await last(await broker.subscribed(broker.topic()))
    found = body.last_message_id
    assert found.HasField("partition")
    assert found.HasField("batch_index")
    assert (found.ledgerId, found.entryId, found.partition, found.batch_index) == (NONE, NONE, -1, -1)
    assert body.HasField("consumer_mark_delete_position")
    assert body.consumer_mark_delete_position.ledgerId < 2**63
    assert body.consumer_mark_delete_position.entryId == NONE


@case("lastid/single")
async def single(broker: Target) -> None:
    body = await last(await broker.subscribed(await broker.filled(3), initialPosition=0))
    assert body.last_message_id.entryId == 2
    assert body.last_message_id.batch_index == -1
    assert body.consumer_mark_delete_position.entryId == 2
    assert body.consumer_mark_delete_position.ledgerId == body.last_message_id.ledgerId


@case("lastid/mark_delete")
async def mark_delete(broker: Target) -> None:
    consumer = await broker.subscribed(await broker.filled(3), permits=10)
    messages = await consumer.messages(3)
    await consumer.acked(messages[1].body.message_id, kind="Cumulative")
    body = await last(consumer)
    assert body.consumer_mark_delete_position.entryId == 1


@case("lastid/unknown_consumer")
async def unknown_consumer(broker: Target) -> None:
    consumer = await broker.connected()
    await consumer.refused("MetadataError", "GET_LAST_MESSAGE_ID", consumer_id=99)


@case("lastid/undecodable")
async def undecodable(broker: Target) -> None:
    producer = await broker.producing(topic := broker.topic())
    producer.send(sent_raw(entry(b"\xff" * 4)))
    await producer.expect("SEND_RECEIPT", sequence_id=0)
    consumer = await broker.subscribed(topic)
    await consumer.refused("MetadataError", "GET_LAST_MESSAGE_ID", consumer_id=1)
