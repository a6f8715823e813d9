"""Topics in the admin API."""

from typing import Final

from pulsarctl_wire.broker.admin.base import Answer, Problem, Request, Route


async def create(request: Request) -> Answer:
    """Create a topic that is not partitioned."""
    cluster, name = request.broker.cluster, request.topic_name
    _ = request.namespace
    if name.full in cluster.namespaces.topics or cluster.namespaces.partitions(name):
        raise Problem(409, "This topic already exists")
    properties = request.body if isinstance(request.body, dict) else {}
    await cluster.create_topic(name, properties)
    return Answer()


async def create_partitioned(request: Request) -> Answer:
    """Create a partitioned topic."""
    cluster, name = request.broker.cluster, request.topic_name
    _ = request.namespace
    if cluster.namespaces.partitions(name) or name.full in cluster.namespaces.topics:
        raise Problem(409, "This topic already exists")
    partitions, properties = _partitions(request)
    await cluster.create_partitioned(name, partitions, properties)
    return Answer()


def _partitions(request: Request) -> tuple[int, dict[str, str]]:
    fields = request.body if isinstance(request.body, dict) else {"partitions": request.body}
    partitions = fields.get("partitions")
    if not isinstance(partitions, int) or partitions <= 0:
        raise Problem(406, "Number of partitions should be more than 0")
    return partitions, fields.get("properties") or {}


async def unload(request: Request) -> Answer:
    """Close a topic; clients connect again."""
    topic = await request.topic()
    await topic.broker.unload(topic)
    return Answer()


async def terminate(request: Request) -> Answer:
    """Let a topic take no more messages."""
    topic = await request.persistent_topic()
    ledger, entry = await topic.terminate()
    return Answer(200, {"ledgerId": ledger, "entryId": entry, "partitionIndex": topic.partition})


_TOPIC: Final = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"

ROUTES: Final[tuple[Route, ...]] = (
    ("PUT", _TOPIC, create),
    ("PUT", f"{_TOPIC}/partitions", create_partitioned),
    ("PUT", f"{_TOPIC}/unload", unload),
    ("POST", f"{_TOPIC}/terminate", terminate),
)
