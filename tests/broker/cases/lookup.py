"""LOOKUP."""

from __future__ import annotations

from typing import Any

from broker.probe import Target, case, frame, host_and_port

from pulsarctl_wire.wire.PulsarApi_pb2 import ServerError


async def looked_up(broker: Target, topic: str, **fields: Any) -> Any:
    probe = await broker.connected()
    return await probe.request("LOOKUP", "LOOKUP_RESPONSE", topic=topic, authoritative=False, **fields)


async def failed(broker: Target, error: ServerError.ValueType, topic: str, **fields: Any) -> None:
    body = await looked_up(broker, topic, **fields)
    assert body.response == body.Failed, body
    assert body.error == error, body


@case("lookup/connect")
async def connect(broker: Target) -> None:
    body = await looked_up(broker, broker.topic())
    assert body.response == body.Connect, body
    assert body.authoritative, body
    assert body.brokerServiceUrl.startswith("pulsar://"), body
    assert host_and_port(body.brokerServiceUrl) == broker.address, body
    assert not body.HasField("error"), body


@case("lookup/proxy_through_loopback")
async def proxy_through(broker: Target) -> None:
    body = await looked_up(broker, broker.topic())
    assert body.proxy_through_service_url, body
    assert not body.HasField("brokerServiceUrlTls"), body


@case("lookup/invalid_name", "foo://public/default/x")
@case("lookup/short_two_parts", "a/b")
async def invalid_name(broker: Target, topic: str) -> None:
    await failed(broker, ServerError.InvalidTopicName, topic)


@case("lookup/does_not_create")
async def does_not_create(broker: Target) -> None:
    topic = broker.topic()
    probe = await broker.connected()
    await probe.lookup(topic)
    assert topic not in (await probe.listing()).topics


@case("lookup/unknown_listener")
async def unknown_listener(broker: Target) -> None:
    await failed(broker, ServerError.ServiceNotReady, broker.topic(), advertised_listener_name="nope")


@case("lookup/blank_listener")
async def blank_listener(broker: Target) -> None:
    probe = await broker.connected()
    fields = {"topic": broker.topic(), "advertised_listener_name": " "}
    body = await probe.request("LOOKUP", "LOOKUP_RESPONSE", **fields)
    assert body.response == body.Connect, body


@case("lookup/old_name_anywhere")
async def old_name_anywhere(broker: Target) -> None:
    probe = await broker.connected()
    await probe.producer(f"persistent://nobody/nowhere/ns/{broker.name()}")


@case("lookup/domain_in_capitals")
async def domain_in_capitals(broker: Target) -> None:
    topic = f"{await broker.namespace()}/{broker.name()}"
    probe = await broker.producing(f"PERSISTENT://{topic}")
    body = await probe.listing(namespace=topic.rpartition("/")[0])
    assert list(body.topics) == [f"persistent://{topic}"]


@case("lookup/too_many")
async def too_many(broker: Target) -> None:
    probe = await broker.connected()
    name, fields = "GET_TOPICS_OF_NAMESPACE", {"namespace": "public/default"}
    probe.send(b"".join(frame(name, request_id=number, **fields) for number in range(20)))
    answers = [await probe.next() for _ in range(20)]
    refused = [each.body for each in answers if each.command == "ERROR"]
    assert 0 < len(refused) < 20
    assert {each.error for each in refused} == {ServerError.TooManyRequests}
    assert {each.message for each in refused} == {"Failed due to too many pending lookup requests"}
    await probe.listing()
