"""What depends on the protocol version in CONNECT, and what does not."""

from __future__ import annotations

from pulsarctl_wire.checks.requirement import OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.checking import absent, equal, require
from pulsarctl_wire.conformance.basics.frames import id_of, make_avro_schema, payloads
from pulsarctl_wire.conformance.basics.target import Target, admin_path


@case(OBSERVED)
async def newer_commands_on_v0(broker: Target) -> None:
    """CONNECT without protocol_version; LOOKUP, PRODUCER, SEND, SUBSCRIBE, FLOW, ACK with request_id,
    GET_LAST_MESSAGE_ID, GET_OR_CREATE_SCHEMA, GET_TOPICS, REDELIVER.

    Expected: All are answered as for version 21: the broker does not gate requests by version.

    Source: Broker: ServerCnx.
    """
    topic = broker.topic()
    probe = await broker.connect(protocol_version=None)
    await probe.create_producer(topic)
    await probe.publish_all(b"a", b"b")
    await probe.subscribe(topic, "Shared")
    probe.flow(10)
    first, second = await probe.messages(2)
    await probe.confirm_ack(first.body.message_id)
    last = await probe.request("GET_LAST_MESSAGE_ID", "GET_LAST_MESSAGE_ID_RESPONSE", consumer_id=1)
    equal(id_of(last.last_message_id), id_of(second.body.message_id), "last_message_id")
    schema = {"topic": topic, "schema": make_avro_schema("int")}
    answer = await probe.request("GET_OR_CREATE_SCHEMA", "GET_OR_CREATE_SCHEMA_RESPONSE", **schema)
    absent(answer, "error_code")
    topics = (await probe.list_topics()).topics
    require(topic in topics, f"{topic} among the topics", topics)
    probe.redeliver()
    equal(payloads(await probe.messages(1)), [b"b"], "payloads")


@case(SHOULD)
async def send_v5_without_checksum(broker: Target) -> None:
    """protocol_version=5: SEND without magic and CRC.

    Expected: SEND_RECEIPT.

    Source: Broker: Producer (from protocol version 6 on).
    """
    probe = await broker.connect(protocol_version=5)
    await probe.create_producer(broker.topic())
    probe.publish(checksum=False)
    await probe.expect("SEND_RECEIPT", producer_id=1, sequence_id=0)


@case(OBSERVED, needs=("admin",))
async def close_from_5(broker: Target) -> None:
    """Topic unloaded by the admin API; producer connected as protocol_version=5.

    Expected: CLOSE_PRODUCER; the connection stays open.

    Source: Broker: ServerCnx (from protocol version 5 on).
    """
    topic = broker.topic()
    probe = await broker.connect(protocol_version=5)
    await probe.create_producer(topic)
    await broker.rest("PUT", f"{admin_path(topic)}/unload")
    await probe.expect("CLOSE_PRODUCER", producer_id=1)
    await probe.expect_pong()


@case(OBSERVED)
async def checksum_from_11(broker: Target) -> None:
    """Message stored with CRC; consumer connected as protocol_version=11.

    Expected: MESSAGE with 0x0e01 and CRC.

    Source: Broker: PulsarCommandSenderImpl (from protocol version 11 on).
    """
    topic = await broker.fill(1)
    probe = await broker.connect(protocol_version=11)
    await probe.subscribe(topic)
    probe.flow(10)
    (message,) = await probe.messages(1)
    equal(message.checksum, "valid", "checksum")


@case(OBSERVED)
async def active_change_from_12(broker: Target) -> None:
    """Failover consumer with protocol_version=12.

    Expected: ACTIVE_CONSUMER_CHANGE {true}.

    Source: Common: Commands (from protocol version 12 on).
    """
    probe = await broker.connect(protocol_version=12)
    await probe.subscribe(broker.topic(), "Failover")
    await broker.advance(2)
    await probe.expect("ACTIVE_CONSUMER_CHANGE", consumer_id=1, is_active=True)
