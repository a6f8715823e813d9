"""Topics in the admin API: creation, deletion and operations on whole topics."""

from typing import Any, Final

from pulsarctl_wire.broker.admin.base import TOPIC, Answer, Problem, Request, Route
from pulsarctl_wire.broker.admin.shapes import read_scalar
from pulsarctl_wire.broker.basics.names import TopicName
from pulsarctl_wire.broker.basics.refusal import Refused
from pulsarctl_wire.broker.storage.log import Position
from pulsarctl_wire.broker.topics.persistent import PersistentTopic

_EXISTS: Final = "This topic already exists"
_MAX_PARTITIONS: Final = 10_000
_TOO_FEW: Final = "Number of partitions should be more than 0"


def id_fields(position: Position, partition: int = -1) -> dict[str, int]:
    """Return a message id, as JSON."""
    ids = {"ledgerId": position.ledger, "entryId": position.entry, "partitionIndex": partition}
    return {**ids, "batchIndex": -1, "batchSize": 0}


def last_confirmed(topic: PersistentTopic) -> Position:
    """Return the id of the last entry in the last ledger; entry -1 if it has none."""
    ledger = topic.log.ledgers[-1]
    return Position(ledger.id, max(topic.log.stored_end - ledger.first, 0) - 1)


# -- creating and deleting


def _check_new(request: Request, name: TopicName) -> None:
    """Raise Problem if a topic exists, or must not be created."""
    request.require_namespace()
    parent, partitions = name.parent, request.namespaces.count_partitions(name.parent)
    if name.partition >= 0 and name.partition >= partitions:
        text = f'Can\'t create topic {name.local} with "-partition-" followed by '
        if partitions:
            text += f"a number smaller than number of partition of partitioned topic {parent.local}"
        else:
            text += f"numeric value if there isn't a partitioned topic {parent.local} created."
        raise Problem(412, text)
    if request.cluster.exists(name) or request.namespaces.count_partitions(name):
        raise Problem(409, _EXISTS)
    _check_topic_limit(request, name, 1)


def _check_topic_limit(request: Request, name: TopicName, number: int) -> None:
    """Raise Problem if the namespace cannot have `number` more topics."""
    try:
        request.cluster.catalogue.check_topic_limit(name, number)
    except Refused as refused:
        raise Problem(412, str(refused)) from None


async def create(request: Request) -> Answer:
    """Create a topic that is not partitioned."""
    name = request.topic_name
    _check_new(request, name)
    properties = request.read_strings() if isinstance(request.body, dict) else {}
    if name.is_persistent:
        request.namespaces.check_partition(name)
        await request.cluster.catalogue.create_topic(name, properties)
    else:
        await request.cluster.acquire(request.broker, name).get_topic(name, create=True)
    return Answer()


async def create_partitioned(request: Request) -> Answer:
    """Create a partitioned topic."""
    name = request.topic_name
    partitions, properties = _partitions(request)
    request.require_namespace()
    if request.namespaces.count_partitions(name) or request.cluster.exists(name):
        raise Problem(409, _EXISTS)
    _check_topic_limit(request, name, partitions)
    await request.cluster.catalogue.create_partitioned(name, partitions, properties)
    return Answer()


def _partitions(request: Request) -> tuple[int, dict[str, str]]:
    fields = request.body if isinstance(request.body, dict) else {"partitions": request.body}
    partitions, properties = fields.get("partitions"), fields.get("properties") or {}
    if partitions is None:
        raise Problem(400, "The request entity cannot be empty.")
    partitions = read_scalar(partitions, int)
    if not isinstance(properties, dict):
        raise Problem(400, "properties must be an object")
    if partitions <= 0:
        raise Problem(406, _TOO_FEW)
    limit = request.cluster.settings.maxNumPartitionsPerPartitionedTopic or _MAX_PARTITIONS
    if partitions > limit:
        raise Problem(406, f"Number of partitions should be less than or equal to {limit}")
    return partitions, properties


async def add_partitions(request: Request) -> Answer:
    """Add partitions to a partitioned topic."""
    name = request.topic_name
    partitions, _ = _partitions(request)
    current = request.namespaces.count_partitions(name)
    if not current:
        raise Problem(409, f"Topic {name.full} is not the partitioned topic.")
    if partitions < current:
        text = f"Desired partitions {partitions} can't be less than the current partitions {current}."
        raise Problem(422, text)
    await request.cluster.add_partitions(name, partitions)
    return Answer()


async def create_missing(request: Request) -> Answer:
    """Create the partitions that a partitioned topic lacks."""
    name = request.get_known_topic()
    row = request.namespaces.partitioned.get(name.full)
    if row is not None:
        await request.cluster.catalogue.create_partitioned(name, row["partitions"], row["properties"])
    return Answer()


async def get_partitioned_metadata(request: Request) -> Answer:
    """Return the number of partitions.

    With checkAllowAutoCreation=true, a missing topic is created, if new topics are partitioned.
    """
    request.require_namespace()
    name, namespaces = request.topic_name, request.namespaces
    row = namespaces.partitioned.get(name.full)
    if row is None and not request.cluster.exists(name):
        if not request.get_flag("checkAllowAutoCreation") or not request.cluster.catalogue.can_create(name):
            raise Problem(404, f"Topic {name.full} not found")
        namespaces.check_partition(name)
        partitions = request.cluster.catalogue.default_partitions(name) if name.partition < 0 else 0
        if partitions:
            await request.cluster.catalogue.create_partitioned(name, partitions)
        row = namespaces.partitioned.get(name.full)
    fields: dict[str, Any] = {"partitions": row["partitions"] if row else 0, "deleted": False}
    return Answer(200, fields | ({"properties": row["properties"]} if row and row["properties"] else {}))


async def delete(request: Request) -> Answer:
    """Delete a topic; with force=true, even if it has clients."""
    name = request.topic_name
    if request.namespaces.count_partitions(name):
        raise Problem(
            409,
            f"{name.full} is a partitioned topic, instead of calling delete topic, "
            "please call delete-partitioned-topic.",
        )
    await request.load_topic()
    await _check_idle(request, [name])
    await request.cluster.delete_topic(name)
    return Answer()


async def delete_partitioned(request: Request) -> Answer:
    """Delete a partitioned topic with its partitions; with force=true, even if they have clients."""
    name = request.topic_name
    if not request.namespaces.count_partitions(name):
        if request.cluster.exists(name):
            raise Problem(
                409,
                f"{name.full} is a non-partitioned topic. "
                "Instead of calling delete-partitioned-topic please call delete.",
            )
        raise Problem(404, f"Topic {name.full} not found.")
    await _check_idle(request, request.cluster.catalogue.list_partitions(name))
    await request.cluster.delete_partitioned(name)
    return Answer()


async def _check_idle(request: Request, names: list[TopicName]) -> None:
    """Raise Problem if a topic has clients, unless force=true."""
    for name in names if not request.get_flag("force") else ():
        if request.cluster.exists(name):
            topic = await request.cluster.load(name, request.broker)
            if clients := len(topic.producers) + len(topic.consumers):
                raise Problem(412, f"Topic has {clients} connected producers/consumers")


# -- closing and ending


async def unload(request: Request) -> Answer:
    """Close a topic, or all partitions of one; clients connect again."""
    name = request.topic_name
    if not request.namespaces.count_partitions(name):
        topic = await request.load_topic()
        await request.cluster.broker_of(topic).unload(topic)
        return Answer()
    for part in request.cluster.catalogue.list_partitions(name):
        for broker in request.cluster.brokers:
            if part.full in broker.topics:
                await broker.unload(broker.topics[part.full])
    return Answer()


async def terminate(request: Request) -> Answer:
    """Make a topic accept no more messages."""
    if not request.topic_name.is_persistent:
        raise Problem(406, "Need to provide a persistent topic name")
    request.refuse_partitioned("Termination of a partitioned topic is not allowed")
    topic = await request.load_persistent_topic()
    await topic.terminate()
    return Answer(200, id_fields(last_confirmed(topic)))


async def terminate_partitions(request: Request) -> Answer:
    """Make a partitioned topic accept no more messages."""
    if not request.namespaces.count_partitions(request.get_known_topic()):
        raise Problem(
            405,
            "Termination of a non-partitioned topic is not allowed using partitioned-terminate, "
            "please use terminate commands",
        )
    topics = await request.load_partitions("Termination")
    for topic in topics:
        await topic.terminate()
    return Answer(200, {str(topic.partition): id_fields(last_confirmed(topic)) for topic in topics})


async def truncate(request: Request) -> Answer:
    """Acknowledge all messages, and delete those that are not in the last ledger."""
    for topic in await request.load_partitions("Truncate"):
        for subscription in topic.subscriptions.values():
            subscription.skip_before(topic.log.stored_end)
        topic.trim(retains=False)
        topic.save()
    return await request.finish()


async def trim(request: Request) -> Answer:
    """Delete what neither a subscription needs nor retention keeps."""
    for topic in await request.load_partitions("Trim"):
        topic.trim()
        topic.save()
    return await request.finish(200)


# -- compaction


async def compact(request: Request) -> Answer:
    """Start compaction."""
    for topic in await request.load_partitions("Compaction"):
        if topic.compaction.status == "RUNNING":
            raise Problem(409, "Compaction already in progress")
        topic.scheduler.start(topic.compaction.run())
    return Answer()


async def get_compaction_status(request: Request) -> Answer:
    """Return the state of compaction."""
    compaction = (await request.load_persistent_topic("Compaction")).compaction
    return Answer(200, {"status": compaction.status, "lastError": compaction.error})


# -- properties


async def _load_properties(request: Request) -> tuple[dict[str, str], PersistentTopic | None]:
    """Return the properties of a topic, and the topic itself unless it is partitioned."""
    name = request.get_known_topic()
    row = request.namespaces.partitioned.get(name.full)
    if row is not None:
        return row["properties"], None
    topic = await request.load_persistent_topic("Properties")
    return topic.properties, topic


async def _save_properties(
    request: Request, topic: PersistentTopic | None, properties: dict[str, str]
) -> Answer:
    name = request.topic_name
    if topic is None:
        request.namespaces.create_partitioned(name, request.namespaces.count_partitions(name), properties)
    else:
        topic.properties = properties
        topic.save()
    return await request.finish()


async def get_properties(request: Request) -> Answer:
    """Return the properties of a topic."""
    return Answer(200, (await _load_properties(request))[0])


async def set_properties(request: Request) -> Answer:
    """Set some properties of a topic."""
    current, topic = await _load_properties(request)
    return await _save_properties(request, topic, {**current, **request.read_strings()})


async def remove_property(request: Request) -> Answer:
    """Remove a property of a topic."""
    current, topic = await _load_properties(request)
    key = request.query.get("key")
    return await _save_properties(
        request, topic, {name: value for name, value in current.items() if name != key}
    )


ROUTES: Final[tuple[Route, ...]] = (
    ("PUT", TOPIC, create),
    ("DELETE", TOPIC, delete),
    ("GET", f"{TOPIC}/partitions", get_partitioned_metadata),
    ("PUT", f"{TOPIC}/partitions", create_partitioned),
    ("POST", f"{TOPIC}/partitions", add_partitions),
    ("DELETE", f"{TOPIC}/partitions", delete_partitioned),
    ("POST", f"{TOPIC}/createMissedPartitions", create_missing),
    ("PUT", f"{TOPIC}/unload", unload),
    ("POST", f"{TOPIC}/terminate", terminate),
    ("POST", f"{TOPIC}/terminate/partitions", terminate_partitions),
    ("DELETE", f"{TOPIC}/truncate", truncate),
    ("POST", f"{TOPIC}/trim", trim),
    ("PUT", f"{TOPIC}/compaction", compact),
    ("GET", f"{TOPIC}/compaction", get_compaction_status),
    ("GET", f"{TOPIC}/properties", get_properties),
    ("PUT", f"{TOPIC}/properties", set_properties),
    ("DELETE", f"{TOPIC}/properties", remove_property),
)
