"""Subscriptions in the admin API."""

from typing import Any, Final

from pulsarctl_wire.broker.admin.base import MAX_LONG, TOPIC, Answer, Problem, Request, Route
from pulsarctl_wire.broker.cluster.cluster import AnyTopic
from pulsarctl_wire.broker.topics.persistent import PersistentTopic
from pulsarctl_wire.broker.topics.subscription import Subscription

_MIN_EXPIRED_BACKLOG: Final = 1000
"""With consumers and a smaller backlog, a request by which nothing would expire is refused."""

_START: Final = {"ledgerId": -1, "entryId": -1, "excluded": False}
_END: Final = {"ledgerId": MAX_LONG, "entryId": MAX_LONG, "excluded": False}


def _message_id(request: Request) -> dict[str, Any]:
    """Return the message id in the body: an object, "earliest", or "latest" (the default)."""
    body = request.body
    if body in ("earliest", "latest", None):
        return _START if body == "earliest" else _END
    fields = {**_END, **request.read_fields()}
    if any(
        isinstance(fields[key], bool) or not isinstance(fields[key], int) for key in ("ledgerId", "entryId")
    ):
        raise Problem(400, "A message id is expected")
    return fields


def _find_index(topic: PersistentTopic, message_id: dict[str, Any]) -> int:
    """Return the index that a message id means."""
    if message_id["ledgerId"] == _END["ledgerId"]:
        return topic.log.end
    index, is_stored = topic.log.locate(message_id["ledgerId"], message_id["entryId"])
    return max(index + 1 if is_stored and message_id.get("excluded") else index, topic.log.first)


# -- creating and deleting


async def list_names(request: Request) -> Answer:
    """Return the subscriptions of a topic, or of all its partitions."""
    name = request.get_known_topic()
    names: dict[str, None] = {}
    if request.namespaces.count_partitions(name):
        topics: list[AnyTopic] = [
            await request.cluster.load(part, request.broker)
            for part in request.cluster.catalogue.list_partitions(name)
        ]
    else:
        topics = [await request.load_topic()]
    for topic in topics:
        names.update(dict.fromkeys(topic.subscriptions))
    return Answer(200, list(names))


async def create(request: Request) -> Answer:
    """Create a subscription, and its topic if that is missing and allowed."""
    request.require_namespace()
    name, subscription, message_id = request.topic_name, request.parts["subscription"], _message_id(request)
    cluster = request.cluster
    properties = message_id.get("properties") or {}
    if not isinstance(properties, dict):
        raise Problem(400, "properties must be an object")
    if not name.is_persistent:
        raise Problem(400, "Create subscription on non-persistent topic can only be done through client")
    if not cluster.exists(name) and not request.namespaces.count_partitions(name):
        if not cluster.catalogue.can_create(name):
            raise Problem(412, "Topic does not exist and cannot be auto-created")
        request.namespaces.check_partition(name)
        await cluster.catalogue.create_topic(name)
    topics = await request.load_partitions("Create subscription")
    missing = [topic for topic in topics if subscription not in topic.subscriptions]
    if not missing:
        raise Problem(409, "Subscription already exists for topic")
    for topic in missing:
        created = topic.create_subscription(subscription, _find_index(topic, message_id))
        created.set_properties({key: str(value) for key, value in properties.items()})
    return await request.finish()


async def delete(request: Request) -> Answer:
    """Delete a subscription; with force=true, or of a non-persistent topic, even if it has consumers."""
    is_persistent = request.topic_name.is_persistent
    topics: list[Any] = (
        await request.load_partitions("Unsubscribe") if is_persistent else [await request.load_topic()]
    )
    holders = [topic for topic in topics if request.parts["subscription"] in topic.subscriptions]
    if not holders:
        request.get_subscription(topics[0])  # raises Problem
    for subscription in map(request.get_subscription, holders):
        if subscription.consumers and is_persistent and not request.get_flag("force"):
            raise Problem(412, "Subscription has active connected consumers")
        await subscription.delete(requester=None, force=True)
    return await request.finish()


# -- skipping


async def skip(request: Request) -> Answer:
    """Skip the next messages; as in Pulsar, a batch counts as one."""
    request.refuse_partitioned("Skip messages on a partitioned topic is not allowed")
    subscription = request.get_subscription(await request.load_persistent_topic("Skip messages"))
    subscription.skip_entries(max(request.get_number("number"), 0))
    return await request.finish()


async def skip_all(request: Request) -> Answer:
    """Skip all messages."""
    for topic in await request.load_partitions("Skip all messages"):
        request.get_subscription(topic).skip_before(topic.log.stored_end)
    return await request.finish()


async def _expire(request: Request, topic: PersistentTopic, subscription: Subscription) -> Problem | None:
    """Expire messages older than the path says. Returns why not, if refused."""
    time_ms = topic.scheduler.time_ms - request.get_number("seconds") * 1000
    index = await topic.find_index_at(time_ms)
    is_caught_up = (
        subscription.consumers
        and subscription.backlog < _MIN_EXPIRED_BACKLOG
        and index <= subscription.cursor.mark
    )
    if not subscription.backlog or is_caught_up:
        return Problem(
            409,
            f"Expire message by timestamp not issued on topic {topic.name.full} for subscription "
            f"{subscription.name} due to ongoing message expiration not finished or subscription almost "
            "catch  up. If it's performed on a partitioned topic operation might succeeded on other "
            "partitions, please check stats of individual partition.",
        )
    subscription.expire(index)
    return None


async def expire(request: Request) -> Answer:
    """Skip messages that are older than some seconds."""
    for topic in await request.load_partitions("Expire messages"):
        _raise_first([await _expire(request, topic, request.get_subscription(topic))])
    return await request.finish()


async def expire_all(request: Request) -> Answer:
    """Skip messages that are older than some seconds, in all subscriptions."""
    topics = await request.load_partitions("Expire messages")
    subscriptions = [(topic, item) for topic in topics for item in topic.subscriptions.values()]
    _raise_first([await _expire(request, *pair) for pair in subscriptions])
    return await request.finish()


def _raise_first(problems: list[Problem | None]) -> None:
    for problem in filter(None, problems):
        raise problem


async def expire_at(request: Request) -> Answer:
    """Skip messages up to a message."""
    request.refuse_partitioned("Expire message at position is not supported for partitioned-topic")
    topic = await request.load_persistent_topic("Expire messages")
    subscription, message_id = request.get_subscription(topic), _message_id(request)
    index, is_stored = topic.log.locate(message_id["ledgerId"], message_id["entryId"])
    if not subscription.backlog:
        raise Problem(
            409,
            f"Expire message by position not issued on topic {topic.name.full} for subscription "
            f"{subscription.name} due to ongoing message expiration not finished or invalid message "
            "position provided.",
        )
    subscription.expire(index + 1 if is_stored and not message_id["excluded"] else index)
    return await request.finish()


# -- moving the cursor


async def reset_to_time(request: Request) -> Answer:
    """Move the cursor to the first message that is not older than a time."""
    for topic in await request.load_partitions("Reset cursor"):
        subscription = request.get_subscription(topic)
        await subscription.reset(await topic.find_index_at(request.get_number("timestamp")))
    return await request.finish()


async def reset_to_message(request: Request) -> Answer:
    """Move the cursor to a message."""
    request.refuse_partitioned("Reset-cursor at position is not allowed for partitioned-topic")
    topic = await request.load_persistent_topic("Reset cursor")
    await request.get_subscription(topic).reset(_find_index(topic, _message_id(request)))
    return await request.finish()


# -- inspection


async def get_properties(request: Request) -> Answer:
    """Return the properties of a subscription."""
    return Answer(200, request.get_subscription((await request.load_partitions())[0]).cursor.properties)


async def set_properties(request: Request) -> Answer:
    """Set the properties of a subscription."""
    for topic in await request.load_partitions():
        request.get_subscription(topic).set_properties(request.read_strings())
    return await request.finish()


async def analyze_backlog(request: Request) -> Answer:
    """Count the unacknowledged messages of a subscription.

    With a position in the body, count from there; before the mark-delete position, acknowledged messages
    count as well.
    """
    request.refuse_partitioned("Analyze backlog on a partitioned topic is not allowed")
    topic = await request.load_persistent_topic("Analyze backlog")
    cursor = request.get_subscription(topic).cursor
    start = cursor.mark if request.body is None else _find_index(topic, _message_id(request))
    indexes = []
    messages = 0
    for index in range(start, topic.log.stored_end):
        if index < cursor.mark or not cursor.is_acked(index):
            entry = await topic.log.load_entry(index, topic.scheduler)
            indexes.append(index)
            messages += 1 if entry is None else entry.count
    result: dict[str, Any] = {"entries": len(indexes), "messages": messages, "aborted": False}
    for kind in ("Rejected", "Accepted", "Rescheduled"):
        result[f"filter{kind}Entries"] = len(indexes) if kind == "Accepted" else 0
        result[f"filter{kind}Messages"] = messages if kind == "Accepted" else 0
    if indexes:
        for key, index in (("firstMessageId", indexes[0]), ("lastMessageId", indexes[-1])):
            result[key] = ":".join(map(str, topic.log.position(index)))
    return Answer(200, result)


async def get_replication_status(request: Request) -> Answer:
    """Return whether a consumer asked for a replicated subscription."""
    topics = await request.load_partitions()
    return Answer(
        200, {topic.name.full: request.get_subscription(topic).cursor.replicated for topic in topics}
    )


_ONE: Final = f"{TOPIC}/subscription/{{subscription}}"

ROUTES: Final[tuple[Route, ...]] = (
    ("GET", f"{TOPIC}/subscriptions", list_names),
    ("PUT", _ONE, create),
    ("DELETE", _ONE, delete),
    ("POST", f"{_ONE}/skip/{{number}}", skip),
    ("POST", f"{_ONE}/skip_all", skip_all),
    ("POST", f"{_ONE}/expireMessages/{{seconds}}", expire),
    ("POST", f"{_ONE}/expireMessages", expire_at),
    ("POST", f"{TOPIC}/all_subscription/expireMessages/{{seconds}}", expire_all),
    ("POST", f"{_ONE}/resetcursor/{{timestamp}}", reset_to_time),
    ("POST", f"{_ONE}/resetcursor", reset_to_message),
    ("GET", f"{_ONE}/properties", get_properties),
    ("PUT", f"{_ONE}/properties", set_properties),
    ("POST", f"{_ONE}/analyzeBacklog", analyze_backlog),
    ("GET", f"{_ONE}/replicatedSubscriptionStatus", get_replication_status),
)
