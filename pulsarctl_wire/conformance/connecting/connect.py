"""CONNECT and CONNECTED, and commands that come before them."""

from __future__ import annotations

from pulsarctl_wire.checks.requirement import MUST, OBSERVED
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.checking import equal, present, require
from pulsarctl_wire.conformance.basics.frames import make_frame, make_raw_frame, make_send, make_subscription
from pulsarctl_wire.conformance.basics.probe import CLIENT, SOON
from pulsarctl_wire.conformance.basics.target import Target
from pulsarctl_wire.wire.PulsarApi_pb2 import ServerError
from pulsarctl_wire.wire.session.state import NO_REQUEST

_MESSAGE_ID = {"ledgerId": 1, "entryId": 0}


@case(MUST, without=("limits",), since="3.3")
async def basic(broker: Target) -> None:
    """CONNECT {client_version=…, protocol_version=21}.

    Expected: CONNECTED {protocol_version=21, max_message_size=5242880, server_version non-empty,
    feature_flags: topic_watchers, get_partitioned_metadata_without_auto_creation, repl_dedup_by_lid_and_eid}
    within 1 s.

    Source: Protocol: Connection establishment.
    """
    probe = await broker.open_connection()
    probe.command("CONNECT", **CLIENT, **broker.credentials)
    body = (await probe.expect("CONNECTED", SOON, protocol_version=21, max_message_size=5242880)).body
    require(body.server_version, "server_version", body.server_version)
    flags = body.feature_flags
    require(flags.supports_topic_watchers, "supports_topic_watchers", flags.supports_topic_watchers)
    require(
        flags.supports_get_partitioned_metadata_without_auto_creation,
        "supports_get_partitioned_metadata_without_auto_creation",
        flags.supports_get_partitioned_metadata_without_auto_creation,
    )
    require(
        flags.supports_repl_dedup_by_lid_and_eid,
        "supports_repl_dedup_by_lid_and_eid",
        flags.supports_repl_dedup_by_lid_and_eid,
    )


@case(OBSERVED)
async def no_protocol_version(broker: Target) -> None:
    """CONNECT {client_version=…} only.

    Expected: CONNECTED.protocol_version=0 (present), max_message_size present.

    Source: Broker: ServerCnx.handleConnect.
    """
    probe = await broker.open_connection()
    probe.command("CONNECT", client_version=CLIENT["client_version"], **broker.credentials)
    answer = await probe.expect("CONNECTED", protocol_version=0)
    present(answer.body, "max_message_size")


@case(OBSERVED)
async def negative_version(broker: Target) -> None:
    """CONNECT protocol_version=-1.

    Expected: CONNECTED.protocol_version=-1.

    Source: Broker: ServerCnx.handleConnect.
    """
    probe = await broker.open_connection()
    probe.command("CONNECT", **{**CLIENT, **broker.credentials, "protocol_version": -1})
    await probe.expect("CONNECTED", protocol_version=-1)


@case(OBSERVED)
async def missing_client_version(broker: Target) -> None:
    """CONNECT {protocol_version=21} without the required client_version.

    Expected: No frame; the broker closes the connection within 1 s.

    Source: lightproto required-field check.
    """
    probe = await broker.open_connection()
    probe.send(make_raw_frame("CONNECT", protocol_version=21))
    await probe.expect_close(SOON)


@case(OBSERVED, without=("auth",))
async def auth_ignored_when_off(broker: Target) -> None:
    """Authentication is off: CONNECT with auth_method_name=token, auth_data=junk.

    Expected: CONNECTED.

    Source: Broker: ServerCnx.handleConnect.
    """
    await broker.connect(auth_method_name="token", auth_data=b"junk")


@case(OBSERVED)
async def proxy_to_broker_url(broker: Target) -> None:
    """CONNECT to the broker itself with proxy_to_broker_url=127.0.0.1:1.

    Expected: CONNECTED (field ignored by brokers).

    Source: Broker: ServerCnx.handleConnect.
    """
    await broker.connect(proxy_to_broker_url="127.0.0.1:1")


@case(OBSERVED)
async def ping_first(broker: Target) -> None:
    """PING before CONNECT.

    Expected: PONG; then CONNECT still works.

    Source: Common: PulsarHandler.handlePing.
    """
    probe = await broker.open_connection()
    probe.command("PING")
    await probe.expect("PONG")
    await probe.connect()


@case(OBSERVED)
async def pong_first(broker: Target) -> None:
    """Unsolicited PONG before CONNECT, then PING.

    Expected: PONG.

    Source: Common: PulsarHandler.handlePong.
    """
    probe = await broker.open_connection()
    probe.command("PONG")
    probe.command("PING")
    await probe.expect("PONG")


@case(OBSERVED, since="3.3")
async def auth_response_first(broker: Target) -> None:
    """AUTH_RESPONSE {none, 'x'} before CONNECT.

    Expected: ERROR {request_id=-1, error=AuthenticationError}; then the broker closes the connection within 1
    s.

    Source: Broker: ServerCnx.handleAuthResponse.
    """
    probe = await broker.open_connection()
    probe.command("AUTH_RESPONSE", response={"auth_method_name": "none", "auth_data": b"x"})
    answer = await probe.expect("ERROR", request_id=NO_REQUEST)
    equal(answer.body.error, ServerError.AuthenticationError, "error")
    await probe.expect_close(SOON)


async def _expect_close_after(broker: Target, data: bytes) -> None:
    probe = await broker.open_connection()
    probe.send(data)
    await probe.expect_close(SOON)


@case(MUST)
async def first_is_producer(broker: Target) -> None:
    """PRODUCER as the first frame, no CONNECT.

    Expected: No frame; the broker closes the connection within 1 s.

    Source: Protocol: Connection establishment.
    """
    await _expect_close_after(broker, make_frame("PRODUCER", topic="t", producer_id=1, request_id=1))


@case(MUST)
async def first_is_subscribe(broker: Target) -> None:
    """SUBSCRIBE as the first frame, no CONNECT.

    Expected: No frame; the broker closes the connection within 1 s.

    Source: Protocol: Connection establishment.
    """
    await _expect_close_after(broker, make_frame("SUBSCRIBE", **make_subscription("t"), request_id=1))


@case(MUST, since="3.3")
async def first_is_lookup(broker: Target) -> None:
    """LOOKUP as the first frame, no CONNECT.

    Expected: No frame; the broker closes the connection within 1 s.

    Source: Protocol: Connection establishment.
    """
    await _expect_close_after(broker, make_frame("LOOKUP", topic="t", request_id=1, authoritative=False))


@case(MUST)
async def first_is_flow(broker: Target) -> None:
    """FLOW as the first frame, no CONNECT.

    Expected: No frame; the broker closes the connection within 1 s.

    Source: Protocol: Connection establishment.
    """
    await _expect_close_after(broker, make_frame("FLOW", consumer_id=1, messagePermits=1))


@case(MUST)
async def first_is_send(broker: Target) -> None:
    """SEND as the first frame, no CONNECT.

    Expected: No frame; the broker closes the connection within 1 s.

    Source: Protocol: Connection establishment.
    """
    await _expect_close_after(broker, make_send())


@case(MUST)
async def first_is_ack(broker: Target) -> None:
    """ACK as the first frame, no CONNECT.

    Expected: No frame; the broker closes the connection within 1 s.

    Source: Protocol: Connection establishment.
    """
    await _expect_close_after(broker, make_frame("ACK", consumer_id=1, ack_type=0, message_id=[_MESSAGE_ID]))


@case(OBSERVED, without=("auth",))
async def pipelined(broker: Target) -> None:
    """CONNECT and LOOKUP written together, before CONNECTED is read.

    Expected: CONNECTED, then LOOKUP_RESPONSE.

    Source: Broker: ServerCnx.
    """
    probe = await broker.open_connection()
    connect = make_frame("CONNECT", **CLIENT, **broker.credentials)
    probe.send(connect + make_frame("LOOKUP", topic=broker.topic(), request_id=1, authoritative=False))
    await probe.expect("CONNECTED")
    await probe.expect("LOOKUP_RESPONSE", request_id=1)


@case(OBSERVED)
async def auth_response_incomplete(broker: Target) -> None:
    """AUTH_RESPONSE without auth_method_name, or without auth_data, or without response.

    Expected: No frame; the broker closes the connection.

    Source: Broker: ServerCnx.handleAuthResponse.
    """
    for fields in ({}, {"response": {"auth_data": b"x"}}, {"response": {"auth_method_name": "none"}}):
        probe = await broker.open_connection()
        probe.send(make_raw_frame("AUTH_RESPONSE", **fields))
        await probe.expect_close()
