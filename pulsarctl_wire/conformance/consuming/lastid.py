"""GET_LAST_MESSAGE_ID."""

from __future__ import annotations

from typing import Any

from pulsarctl_wire.checks.requirement import MUST, OBSERVED
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.checking import equal, present, require
from pulsarctl_wire.conformance.basics.frames import make_entry, make_raw_send
from pulsarctl_wire.conformance.basics.probe import Probe
from pulsarctl_wire.conformance.basics.target import Target

_MINUS_ONE = 2**64 - 1  # of ids, which are unsigned


async def _ask(consumer: Probe) -> Any:
    return await consumer.request("GET_LAST_MESSAGE_ID", "GET_LAST_MESSAGE_ID_RESPONSE", consumer_id=1)


@case(OBSERVED)
async def empty_topic(broker: Target) -> None:
    """GET_LAST_MESSAGE_ID on a topic without messages.

    Expected: last_message_id -1:-1, partition -1, batch_index -1 (all present); consumer_mark_delete_position
    = <ledger>:-1.

    Source: Broker: ServerCnx.handleGetLastMessageId.
    """
    body = await _ask(await broker.subscribe(broker.topic()))
    result = body.last_message_id
    present(result, "partition")
    present(result, "batch_index")
    equal(
        (result.ledgerId, result.entryId, result.partition, result.batch_index),
        (_MINUS_ONE, _MINUS_ONE, -1, -1),
        "ledgerId, entryId, partition, batch_index",
    )
    present(body, "consumer_mark_delete_position")
    ledger = body.consumer_mark_delete_position.ledgerId
    require(ledger < 2**63, "a ledger", ledger)
    equal(body.consumer_mark_delete_position.entryId, _MINUS_ONE, "entryId")


@case(MUST)
async def single(broker: Target) -> None:
    """GET_LAST_MESSAGE_ID on a topic with 3 plain messages; the subscription is at Latest.

    Expected: last_message_id entry 2, batch_index=-1; consumer_mark_delete_position entry 2.

    Source: Broker: ServerCnx.handleGetLastMessageId.
    """
    body = await _ask(await broker.subscribe(await broker.fill(3), initialPosition=0))
    equal(body.last_message_id.entryId, 2, "entryId")
    equal(body.last_message_id.batch_index, -1, "batch_index")
    equal(body.consumer_mark_delete_position.entryId, 2, "entryId")
    equal(body.consumer_mark_delete_position.ledgerId, body.last_message_id.ledgerId, "ledgerId")


@case(OBSERVED)
async def mark_delete(broker: Target) -> None:
    """GET_LAST_MESSAGE_ID after 3 messages, and a cumulative ACK of the 2nd.

    Expected: consumer_mark_delete_position = entry 1.

    Source: Broker: ServerCnx.handleGetLastMessageId.
    """
    consumer = await broker.subscribe(await broker.fill(3), permits=10)
    messages = await consumer.messages(3)
    await consumer.confirm_ack(messages[1].body.message_id, kind="Cumulative")
    body = await _ask(consumer)
    equal(body.consumer_mark_delete_position.entryId, 1, "entryId")


@case(OBSERVED)
async def unknown_consumer(broker: Target) -> None:
    """GET_LAST_MESSAGE_ID consumer_id=99.

    Expected: ERROR MetadataError.

    Source: Broker: ServerCnx.handleGetLastMessageId.
    """
    consumer = await broker.connect()
    await consumer.expect_error("MetadataError", "GET_LAST_MESSAGE_ID", consumer_id=99)


@case(OBSERVED)
async def undecodable(broker: Target) -> None:
    """SEND with metadata = 4 bytes ff; GET_LAST_MESSAGE_ID.

    Expected: ERROR MetadataError.

    Source: Broker: ServerCnx.getLargestBatchIndexWhenPossible.
    """
    producer = await broker.produce(topic := broker.topic())
    producer.send(make_raw_send(make_entry(b"\xff" * 4)))
    await producer.expect("SEND_RECEIPT", sequence_id=0)
    consumer = await broker.subscribe(topic)
    await consumer.expect_error("MetadataError", "GET_LAST_MESSAGE_ID", consumer_id=1)
