"""CONNECT and CONNECTED, and commands that come before them."""

from __future__ import annotations

from broker.probe import NO_REQUEST, SOON, Target, case, frame, raw, sent, subscription

from pulsarctl_wire.wire.PulsarApi_pb2 import ServerError

MESSAGE_ID = {"ledgerId": 1, "entryId": 0}


@case("connect/basic")
async def basic(broker: Target) -> None:
    probe = await broker.connection()
    probe.command("CONNECT", client_version="probe", protocol_version=21)
    body = (await probe.expect("CONNECTED", SOON, protocol_version=21, max_message_size=5242880)).body
    assert body.server_version
    flags = body.feature_flags
    assert flags.supports_topic_watchers
    assert flags.supports_get_partitioned_metadata_without_auto_creation
    assert flags.supports_repl_dedup_by_lid_and_eid


@case("connect/no_protocol_version")
async def no_version(broker: Target) -> None:
    probe = await broker.connection()
    probe.command("CONNECT", client_version="probe")
    answer = await probe.expect("CONNECTED", protocol_version=0)
    assert answer.body.HasField("max_message_size"), answer.body


@case("connect/negative_version")
async def negative_version(broker: Target) -> None:
    probe = await broker.connection()
    probe.command("CONNECT", client_version="probe", protocol_version=-1)
    await probe.expect("CONNECTED", protocol_version=-1)


@case("connect/missing_client_version")
async def no_client_version(broker: Target) -> None:
    probe = await broker.connection()
    probe.send(raw("CONNECT", protocol_version=21))
    await probe.closes(SOON)


@case("connect/auth_ignored_when_off")
async def auth_ignored(broker: Target) -> None:
    await broker.connected(auth_method_name="token", auth_data=b"junk")


@case("connect/proxy_to_broker_url")
async def proxy_to_broker_url(broker: Target) -> None:
    await broker.connected(proxy_to_broker_url="127.0.0.1:1")


@case("connect/ping_first")
async def ping_first(broker: Target) -> None:
    probe = await broker.connection()
    probe.command("PING")
    await probe.expect("PONG")
    await probe.connect()


@case("connect/pong_first")
async def pong_first(broker: Target) -> None:
    probe = await broker.connection()
    probe.command("PONG")
    probe.command("PING")
    await probe.expect("PONG")


@case("connect/auth_response_first")
async def auth_response_first(broker: Target) -> None:
    probe = await broker.connection()
    probe.command("AUTH_RESPONSE", response={"auth_method_name": "none", "auth_data": b"x"})
    answer = await probe.expect("ERROR", request_id=NO_REQUEST)
    assert answer.body.error == ServerError.AuthenticationError, answer.body
    await probe.closes(SOON)


@case("connect/first_is_producer", frame("PRODUCER", topic="t", producer_id=1, request_id=1))
@case("connect/first_is_subscribe", frame("SUBSCRIBE", **subscription("t"), request_id=1))
@case("connect/first_is_lookup", frame("LOOKUP", topic="t", request_id=1, authoritative=False))
@case("connect/first_is_flow", frame("FLOW", consumer_id=1, messagePermits=1))
@case("connect/first_is_send", sent())
@case(
    "connect/first_is_ack",
    frame("ACK", consumer_id=1, ack_type=0, message_id=[MESSAGE_ID]),
)
async def not_connected(broker: Target, data: bytes) -> None:
    probe = await broker.connection()
    probe.send(data)
    await probe.closes(SOON)


@case("connect/pipelined")
async def pipelined(broker: Target) -> None:
    probe = await broker.connection()
    hello = frame("CONNECT", client_version="probe", protocol_version=21)
    probe.send(hello + frame("LOOKUP", topic=broker.topic(), request_id=1, authoritative=False))
    await probe.expect("CONNECTED")
    await probe.expect("LOOKUP_RESPONSE", request_id=1)


@case("connect/auth_response_incomplete")
async def incomplete_auth_response(broker: Target) -> None:
    for fields in ({}, {"response": {"auth_data": b"x"}}, {"response": {"auth_method_name": "none"}}):
        probe = await broker.connection()
        probe.send(raw("AUTH_RESPONSE", **fields))
        await probe.closes()
