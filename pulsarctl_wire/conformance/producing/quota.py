"""PRODUCER where the backlog exceeds its quota."""

from __future__ import annotations

from pulsarctl_wire.checks.requirement import OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.target import Target


async def _exceed(broker: Target, policy: str, code: str) -> None:
    namespace = await broker.create_namespace()
    topic = f"persistent://{namespace}/t"
    path = f"/admin/v2/namespaces/{namespace}/backlogQuota?backlogQuotaType=destination_storage"
    await broker.rest("POST", path, {"limitSize": 1000, "policy": policy})
    await broker.subscribe(topic)
    producer = await broker.produce(topic)
    await producer.publish_all(bytes(5000))
    await broker.settle()
    await producer.expect_error(code, "PRODUCER", topic=topic, producer_id=2)


@case(SHOULD, needs=("admin",))
async def exception(broker: Target) -> None:
    """Backlog quota of 1000 bytes with producer_exception; subscription with a backlog of 5 kB; PRODUCER.

    Expected: ERROR ProducerBlockedQuotaExceededException.

    Source: Broker: ServerCnx.handleProducer.
    """
    await _exceed(broker, "producer_exception", "ProducerBlockedQuotaExceededException")


@case(SHOULD, needs=("admin",))
async def hold(broker: Target) -> None:
    """A backlog quota of 1000 bytes with producer_request_hold; a subscription with a backlog of 5 kB;
    PRODUCER.

    Expected: ERROR ProducerBlockedQuotaExceededError.

    Source: Broker: ServerCnx.handleProducer.
    """
    await _exceed(broker, "producer_request_hold", "ProducerBlockedQuotaExceededError")


@case(OBSERVED, needs=("admin",))
async def zero(broker: Target) -> None:
    """Backlog quota without limitSize, which counts as 0, with producer_exception; SUBSCRIBE to a new topic,
    PRODUCER.

    Expected: ERROR ProducerBlockedQuotaExceededException.

    Source: Broker: PersistentTopic.isSizeBacklogExceeded.
    """
    namespace = await broker.create_namespace()
    quota = {"limitTime": 10, "policy": "producer_exception"}
    await broker.rest("POST", f"/admin/v2/namespaces/{namespace}/backlogQuota", quota)
    probe = await broker.subscribe(topic := f"persistent://{namespace}/t")
    await probe.expect_error("ProducerBlockedQuotaExceededException", "PRODUCER", topic=topic, producer_id=1)
