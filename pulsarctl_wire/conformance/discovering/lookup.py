"""LOOKUP."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from pulsarctl_wire.checks.requirement import MUST, OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.checking import Inapplicable, absent, equal, require
from pulsarctl_wire.conformance.basics.frames import make_frame
from pulsarctl_wire.conformance.basics.target import Target
from pulsarctl_wire.wire.PulsarApi_pb2 import ServerError


async def _ask(broker: Target, topic: str, **fields: Any) -> Any:
    probe = await broker.connect()
    return await probe.request("LOOKUP", "LOOKUP_RESPONSE", topic=topic, authoritative=False, **fields)


async def _expect_failure(broker: Target, error: ServerError.ValueType, topic: str, **fields: Any) -> None:
    body = await _ask(broker, topic, **fields)
    equal(body.response, body.Failed, "response")
    equal(body.error, error, "error")


@case(MUST)
async def connect(broker: Target) -> None:
    """LOOKUP new topic, authoritative=false.

    Expected: LOOKUP_RESPONSE {response=Connect, authoritative=true, brokerServiceUrl=pulsar://host:port (with
    TLS, brokerServiceUrlTls=pulsar+ssl://host:port), request_id; no error}.

    Source: Protocol: Service discovery; broker: TopicLookupBase.
    """
    body = await _ask(broker, broker.topic())
    equal(body.response, body.Connect, "response")
    require(body.authoritative, "authoritative", body)
    # the broker may know itself by another name than we do
    name, scheme = ("brokerServiceUrlTls", "pulsar+ssl") if broker.tls else ("brokerServiceUrl", "pulsar")
    is_url = re.fullmatch(rf"{re.escape(scheme)}://[^/,]+:\d+", getattr(body, name))
    require(is_url, f"{name}={scheme}://host:port", body)
    absent(body, "error")


@case(OBSERVED)
async def proxy_through_loopback(broker: Target) -> None:
    """A standalone broker without TLS (no brokerServiceUrlTls) advertises a loopback address: LOOKUP.

    Expected: proxy_through_service_url=true.

    Source: Broker: TopicLookupBase.
    """
    body = await _ask(broker, broker.topic())
    host = urlsplit(body.brokerServiceUrl).hostname
    if body.HasField("brokerServiceUrlTls") or host not in ("localhost", "127.0.0.1", "::1"):
        raise Inapplicable("needs a broker without TLS that advertises a loopback address")
    require(body.proxy_through_service_url, "proxy_through_service_url", body)


async def _expect_invalid(broker: Target, topic: str) -> None:
    await _expect_failure(broker, ServerError.InvalidTopicName, topic)


@case(SHOULD)
async def invalid_name(broker: Target) -> None:
    """LOOKUP topic='foo://public/default/x'.

    Expected: LOOKUP_RESPONSE {response=Failed, error=InvalidTopicName}.

    Source: Broker: ServerCnx.validateTopicName.
    """
    await _expect_invalid(broker, "foo://public/default/x")


@case(SHOULD)
async def short_two_parts(broker: Target) -> None:
    """LOOKUP topic='a/b'.

    Expected: LOOKUP_RESPONSE {response=Failed, error=InvalidTopicName}.

    Source: Common: TopicName.
    """
    await _expect_invalid(broker, "a/b")


@case(SHOULD)
async def does_not_create(broker: Target) -> None:
    """LOOKUP a new topic, then GET_TOPICS_OF_NAMESPACE.

    Expected: The topic is not listed.

    Source: Protocol: Service discovery; broker: TopicLookupBase.
    """
    topic = broker.topic()
    probe = await broker.connect()
    await probe.look_up(topic)
    topics = (await probe.list_topics()).topics
    require(topic not in topics, f"no {topic} among the topics", topics)


# alone: a real broker may use this listener's name for a LOOKUP of another connection that names none
@case(OBSERVED, alone=True)
async def unknown_listener(broker: Target) -> None:
    """LOOKUP advertised_listener_name='nope'.

    Expected: LOOKUP_RESPONSE {response=Failed, error=ServiceNotReady}.

    Source: Broker: TopicLookupBase.
    """
    await _expect_failure(
        broker, ServerError.ServiceNotReady, broker.topic(), advertised_listener_name="nope"
    )


@case(OBSERVED)
async def blank_listener(broker: Target) -> None:
    """LOOKUP advertised_listener_name=' '.

    Expected: LOOKUP_RESPONSE {Connect}.

    Source: Broker: ServerCnx.handleLookup.
    """
    probe = await broker.connect()
    fields = {"topic": broker.topic(), "advertised_listener_name": " "}
    body = await probe.request("LOOKUP", "LOOKUP_RESPONSE", **fields)
    equal(body.response, body.Connect, "response")


@case(OBSERVED, without=("auth",))
async def old_name_anywhere(broker: Target) -> None:
    """LOOKUP then PRODUCER on persistent://nobody/nowhere/ns/<name>.

    Expected: Connect; PRODUCER_SUCCESS: four parts need neither tenant nor cluster.

    Source: Common: TopicName.
    """
    probe = await broker.connect()
    await probe.create_producer(f"persistent://nobody/nowhere/ns/{broker.name()}")


@case(OBSERVED, needs=("admin",))
async def domain_in_capitals(broker: Target) -> None:
    """LOOKUP PERSISTENT://public/default/<name>, then PRODUCER; GET_TOPICS.

    Expected: Connect; PRODUCER_SUCCESS; the topic is listed as persistent://…

    Source: Common: TopicDomain.
    """
    topic = f"{await broker.create_namespace()}/{broker.name()}"
    probe = await broker.produce(f"PERSISTENT://{topic}")
    body = await probe.list_topics(namespace=topic.rpartition("/")[0])
    equal(list(body.topics), [f"persistent://{topic}"], "topics")


@case(OBSERVED, needs=("lookups",), alone=True)
async def too_many(broker: Target) -> None:
    """maxConcurrentLookupRequest=1: 20 GET_TOPICS in one write, then another.

    Expected: Some ERROR TooManyRequests 'Failed due to too many pending lookup requests', the others
    answered; answered.

    Source: Broker: ServerCnx.
    """
    probe = await broker.connect()
    name, fields = "GET_TOPICS_OF_NAMESPACE", {"namespace": "public/default"}
    probe.send(b"".join(make_frame(name, request_id=number, **fields) for number in range(20)))
    answers = [await probe.next() for _ in range(20)]
    refusals = [item.body for item in answers if item.command == "ERROR"]
    require(0 < len(refusals) < 20, "some of 20 to be refused", len(refusals))
    equal({item.error for item in refusals}, {ServerError.TooManyRequests}, "error")
    equal({item.message for item in refusals}, {"Failed due to too many pending lookup requests"}, "message")
    await probe.list_topics()
