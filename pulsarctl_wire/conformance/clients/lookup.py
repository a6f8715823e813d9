"""Lookups, redirects and partitions."""

from __future__ import annotations

from pulsarctl_wire.checks.requirement import MUST, SHOULD
from pulsarctl_wire.conformance.basics.checking import equal, require
from pulsarctl_wire.conformance.clients.scripted import (
    answer,
    connect_to,
    ignore,
    refuse_lookup,
)
from pulsarctl_wire.conformance.clients.stage import PRODUCE, Stage, client_case, expect_stored
from pulsarctl_wire.wire.PulsarApi_pb2 import (
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadataResponse,
)

_NEEDS = (PRODUCE,)
_LOOKUP_LIMIT = 1_000  # fewer are enough for a client that waits between its attempts
_REDIRECT = CommandLookupTopicResponse.Redirect


@client_case(MUST, needs=_NEEDS)
async def lookup_elsewhere(stage: Stage) -> None:
    """LOOKUP is answered by Connect to another broker.

    Expected: PRODUCER goes to that one.

    Source: Protocol: Topic lookup.
    """
    broker, other = await stage.open_broker(), await stage.open_broker()
    broker.always("LOOKUP", connect_to(other))
    await expect_stored(await stage.produce(broker.url), other)
    equal(len(broker.list_frames("PRODUCER")), 0, "PRODUCERs at the first broker")


@client_case(MUST, needs=_NEEDS)
async def lookup_redirect(stage: Stage) -> None:
    """LOOKUP is answered by Redirect to another broker, with authoritative true.

    Expected: LOOKUP at that one, with authoritative true, and PRODUCER there.

    Source: Protocol: Topic lookup.
    """
    broker, other = await stage.open_broker(), await stage.open_broker()
    broker.always("LOOKUP", connect_to(other, response=_REDIRECT))
    await expect_stored(await stage.produce(broker.url), other)
    values = [body.authoritative for body in other.list_bodies("LOOKUP")]
    require(values and all(values), "LOOKUP with authoritative true at the second broker", values)


@client_case(MUST, needs=_NEEDS, waits=("timeout", 1))
async def lookup_redirect_loop(stage: Stage) -> None:
    """Each LOOKUP is answered by Redirect to the same address.

    Expected: The client gives up, after less than 1,000 LOOKUPs.

    Source: Client: BinaryProtoLookupService.
    """
    broker = await stage.open_broker()
    broker.always("LOOKUP", connect_to(response=_REDIRECT))
    await (await stage.produce(broker.url)).fail()
    number = len(broker.list_frames("LOOKUP"))
    require(0 < number < _LOOKUP_LIMIT, f"less than {_LOOKUP_LIMIT:,} LOOKUPs", f"{number:,} LOOKUPs")


@client_case(SHOULD, needs=_NEEDS)
async def lookup_not_found(stage: Stage) -> None:
    """LOOKUP is answered by Failed, TopicNotFound.

    Expected: The client fails, without another attempt.

    Source: Client: BinaryProtoLookupService.
    """
    broker = await stage.open_broker()
    broker.always("LOOKUP", refuse_lookup("TopicNotFound"))
    await (await stage.produce(broker.url)).fail()
    equal(len(broker.list_frames("LOOKUP")), 1, "LOOKUPs")


@client_case(SHOULD, needs=_NEEDS)
async def lookup_not_ready(stage: Stage) -> None:
    """LOOKUP is answered by Failed, ServiceNotReady, once.

    Expected: The client asks again, and succeeds.

    Source: Client: PulsarClientImpl, retries of lookups.
    """
    broker = await stage.open_broker()
    broker.once("LOOKUP", refuse_lookup("ServiceNotReady"))
    await expect_stored(await stage.produce(broker.url), broker)


@client_case(MUST, needs=_NEEDS, waits=("timeout", 1))
async def lookup_never_answered(stage: Stage) -> None:
    """LOOKUP is not answered.

    Expected: The client fails when its timeouts are over.

    Source: Client: operationTimeout, lookupTimeout.
    """
    broker = await stage.open_broker()
    broker.always("LOOKUP", ignore)
    await (await stage.produce(broker.url)).fail()
    require(broker.list_frames("LOOKUP"), "LOOKUP", "none came")


@client_case(MUST, needs=_NEEDS)
async def lookup_through_proxy(stage: Stage) -> None:
    """LOOKUP is answered by Connect with proxy_through_service_url, and a broker that only a proxy can reach.

    Expected: PRODUCER comes on a connection to the service URL whose CONNECT has proxy_to_broker_url.

    Source: Protocol: Topic lookup.
    """
    broker = await stage.open_broker()
    url = "pulsar://broker-1.invalid:6650"
    broker.always("LOOKUP", connect_to(brokerServiceUrl=url, proxy_through_service_url=True))
    await expect_stored(await stage.produce(broker.url), broker)
    (peer,) = (peer for peer in broker.peers if "PRODUCER" in peer.commands)
    target = peer.frames[0].body.proxy_to_broker_url
    equal(target.removeprefix("pulsar://"), "broker-1.invalid:6650", "proxy_to_broker_url")


@client_case(MUST, needs=_NEEDS)
async def partitions(stage: Stage) -> None:
    """PARTITIONED_METADATA_RESPONSE says that the topic has one partition.

    Expected: LOOKUP and PRODUCER name the partition, TOPIC-partition-0, and never the topic itself.

    Source: Protocol: Partitioned topics.
    """
    broker = await stage.open_broker()
    success = CommandPartitionedTopicMetadataResponse.Success
    broker.always(
        "PARTITIONED_METADATA", answer("PARTITIONED_METADATA_RESPONSE", partitions=1, response=success)
    )
    await expect_stored(await stage.produce(broker.url), broker)
    bodies = [*broker.list_bodies("LOOKUP"), *broker.list_bodies("PRODUCER")]
    equal({body.topic for body in bodies}, {f"{stage.topic}-partition-0"}, "topics of LOOKUP and PRODUCER")
