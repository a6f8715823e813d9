"""What depends on the protocol version in CONNECT, and what does not."""

from __future__ import annotations

from broker.cases.schema import avro
from broker.probe import Target, admin_path, case, id_of, payloads


@case("version/newer_commands_on_v0")
async def newer_commands(broker: Target) -> None:
    topic = broker.topic()
    probe = await broker.connected(protocol_version=None)
    await probe.producer(topic)
    await probe.publish_all(b"a", b"b")
    await probe.subscribe(topic, "Shared")
    probe.flow(10)
    first, second = await probe.messages(2)
    await probe.acked(first.body.message_id)
    last = await probe.request("GET_LAST_MESSAGE_ID", "GET_LAST_MESSAGE_ID_RESPONSE", consumer_id=1)
    assert id_of(last.last_message_id) == id_of(second.body.message_id)
    schema = {"topic": topic, "schema": avro("int")}
    created = await probe.request("GET_OR_CREATE_SCHEMA", "GET_OR_CREATE_SCHEMA_RESPONSE", **schema)
    assert not created.HasField("error_code"), created
    assert topic in (await probe.listing()).topics
    probe.command("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1)
    assert payloads(await probe.messages(1)) == [b"b"]


@case("version/send_v5_without_checksum")
async def no_checksum(broker: Target) -> None:
    probe = await broker.connected(protocol_version=5)
    await probe.producer(broker.topic())
    probe.publish(checksum=False)
    await probe.expect("SEND_RECEIPT", producer_id=1, sequence_id=0)


@case("version/close_from_5")
async def close_producer(broker: Target) -> None:
    topic = broker.topic()
    probe = await broker.connected(protocol_version=5)
    await probe.producer(topic)
    await broker.rest("PUT", f"{admin_path(topic)}/unload")
    await probe.expect("CLOSE_PRODUCER", producer_id=1)
    await probe.stays_open()


@case("version/checksum_from_11")
async def checksum(broker: Target) -> None:
    topic = await broker.filled(1)
    probe = await broker.connected(protocol_version=11)
    await probe.subscribe(topic)
    probe.flow(10)
    (message,) = await probe.messages(1)
    assert message.checksum == "valid"


@case("version/active_change_from_12")
async def active_change(broker: Target) -> None:
    probe = await broker.connected(protocol_version=12)
    await probe.subscribe(broker.topic(), "Failover")
    await broker.advance(2)
    await probe.expect("ACTIVE_CONSUMER_CHANGE", consumer_id=1, is_active=True)
