"""Subscriptions in the admin API."""

from typing import Any, Final

from pulsarctl_wire.broker.admin.base import MAX_LONG, TOPIC, Answer, Problem, Request, Route
from pulsarctl_wire.broker.cluster.cluster import AnyTopic
from pulsarctl_wire.broker.topics.persistent import PersistentTopic
from pulsarctl_wire.broker.topics.subscription import Subscription

_FEW: Final = 1000
"""Messages of a backlog that are left alone when consumers are about to get them."""

_START: Final = {"ledgerId": -1, "entryId": -1, "excluded": False}
_END: Final = {"ledgerId": MAX_LONG, "entryId": MAX_LONG, "excluded": False}


def _message_id(request: Request) -> dict[str, Any]:
    """Return the message id in the body: an object, "earliest", or "latest" (the default)."""
    body = request.body
    if body in ("earliest", "latest", None):
        return _START if body == "earliest" else _END
    told = {**_END, **request.fields()}
    if any(isinstance(told[key], bool) or not isinstance(told[key], int) for key in ("ledgerId", "entryId")):
        raise Problem(400, "A message id is expected")
    return told


def _index(topic: PersistentTopic, told: dict[str, Any]) -> int:
    """Return the index that a message id means."""
    if told["ledgerId"] == _END["ledgerId"]:
        return topic.log.end
    index, there = topic.log.locate(told["ledgerId"], told["entryId"])
    return max(index + 1 if there and told.get("excluded") else index, topic.log.first)


# -- creating and deleting


async def names(request: Request) -> Answer:
    """Return the subscriptions of a topic, or of all its partitions."""
    name = request.known_topic()
    found: dict[str, None] = {}
    if request.namespaces.partitions(name):
        topics: list[AnyTopic] = [
            await request.cluster.load(part, request.broker)
            for part in request.cluster.catalogue.list_partitions(name)
        ]
    else:
        topics = [await request.topic()]
    for topic in topics:
        found.update(dict.fromkeys(topic.subscriptions))
    return Answer(200, list(found))


async def create(request: Request) -> Answer:
    """Create a subscription; the topic is made if there is none and that is allowed."""
    _ = request.namespace
    name, subscription, told = request.topic_name, request.named["subscription"], _message_id(request)
    cluster = request.cluster
    properties = told.get("properties") or {}
    if not isinstance(properties, dict):
        raise Problem(400, "Properties are an object")
    if not name.is_persistent:
        raise Problem(400, "Create subscription on non-persistent topic can only be done through client")
    if not cluster.exists(name) and not request.namespaces.partitions(name):
        if not cluster.catalogue.can_create(name):
            raise Problem(412, "Topic does not exist and cannot be auto-created")
        request.namespaces.check_partition(name)
        await cluster.catalogue.create_topic(name)
    topics = await request.all_parts("Create subscription")
    new = [topic for topic in topics if subscription not in topic.subscriptions]
    if not new:
        raise Problem(409, "Subscription already exists for topic")
    for topic in new:
        made = topic.create_subscription(subscription, _index(topic, told))
        made.set_properties({key: str(value) for key, value in properties.items()})
    return await request.done()


async def delete(request: Request) -> Answer:
    """Delete a subscription; with force=true, or of a non-persistent topic, though it has consumers."""
    durable = request.topic_name.is_persistent
    topics: list[Any] = await request.all_parts("Unsubscribe") if durable else [await request.topic()]
    found = [topic for topic in topics if request.named["subscription"] in topic.subscriptions]
    if not found:
        request.subscription(topics[0])
    for subscription in map(request.subscription, found):
        if subscription.consumers and durable and not request.flag("force"):
            raise Problem(412, "Subscription has active connected consumers")
        await subscription.delete(requester=None, force=True)
    return await request.done()


# -- skipping


async def skip(request: Request) -> Answer:
    """Skip the next messages."""
    request.refuse_partitioned("Skip messages on a partitioned topic is not allowed")
    subscription = request.subscription(await request.persistent_topic("Skip messages"))
    subscription.skip_entries(max(request.number("number"), 0))
    return await request.done()


async def skip_all(request: Request) -> Answer:
    """Skip all messages."""
    for topic in await request.all_parts("Skip all messages"):
        request.subscription(topic).skip_before(topic.log.stored_end)
    return await request.done()


async def _expire(request: Request, topic: PersistentTopic, subscription: Subscription) -> Problem | None:
    """Expire messages that are older than the path says. Returns why not."""
    before = topic.scheduler.time_ms - request.number("seconds") * 1000
    index = await topic.find_index_at(before)
    quiet = subscription.consumers and subscription.backlog < _FEW and index <= subscription.cursor.mark
    if not subscription.backlog or quiet:
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
    for topic in await request.all_parts("Expire messages"):
        _raise_one([await _expire(request, topic, request.subscription(topic))])
    return await request.done()


async def expire_all(request: Request) -> Answer:
    """Skip messages that are older than some seconds, in all subscriptions."""
    topics = await request.all_parts("Expire messages")
    subscriptions = [(topic, each) for topic in topics for each in topic.subscriptions.values()]
    _raise_one([await _expire(request, *each) for each in subscriptions])
    return await request.done()


def _raise_one(problems: list[Problem | None]) -> None:
    for problem in filter(None, problems):
        raise problem


async def expire_at(request: Request) -> Answer:
    """Skip messages up to one."""
    request.refuse_partitioned("Expire message at position is not supported for partitioned-topic")
    topic = await request.persistent_topic("Expire messages")
    subscription, told = request.subscription(topic), _message_id(request)
    index, there = topic.log.locate(told["ledgerId"], told["entryId"])
    if not subscription.backlog:
        raise Problem(
            409,
            f"Expire message by position not issued on topic {topic.name.full} for subscription "
            f"{subscription.name} due to ongoing message expiration not finished or invalid message "
            "position provided.",
        )
    subscription.expire(index + 1 if there and not told["excluded"] else index)
    return await request.done()


# -- going to another place


async def reset_to_time(request: Request) -> Answer:
    """Go to the first message that is not older than a time."""
    for topic in await request.all_parts("Reset cursor"):
        subscription = request.subscription(topic)
        await subscription.reset(await topic.find_index_at(request.number("timestamp")))
    return await request.done()


async def reset_to_message(request: Request) -> Answer:
    """Go to a message."""
    request.refuse_partitioned("Reset-cursor at position is not allowed for partitioned-topic")
    topic = await request.persistent_topic("Reset cursor")
    await request.subscription(topic).reset(_index(topic, _message_id(request)))
    return await request.done()


# -- looking at it


async def properties(request: Request) -> Answer:
    """Return the properties of a subscription."""
    return Answer(200, request.subscription((await request.all_parts())[0]).cursor.properties)


async def set_properties(request: Request) -> Answer:
    """Set the properties of a subscription."""
    for topic in await request.all_parts():
        request.subscription(topic).set_properties(request.strings())
    return await request.done()


async def analyze(request: Request) -> Answer:
    """Count the messages of a backlog, or from a position on: then acknowledged ones before it too."""
    request.refuse_partitioned("Analyze backlog on a partitioned topic is not allowed")
    topic = await request.persistent_topic("Analyze backlog")
    cursor = request.subscription(topic).cursor
    start = cursor.mark if request.body is None else _index(topic, _message_id(request))
    found = []
    messages = 0
    for index in range(start, topic.log.stored_end):
        if index < cursor.mark or not cursor.is_acked(index):
            entry = await topic.log.load_entry(index, topic.scheduler)
            found.append(index)
            messages += 1 if entry is None else entry.count
    counted: dict[str, Any] = {"entries": len(found), "messages": messages, "aborted": False}
    for kind in ("Rejected", "Accepted", "Rescheduled"):
        counted[f"filter{kind}Entries"] = len(found) if kind == "Accepted" else 0
        counted[f"filter{kind}Messages"] = messages if kind == "Accepted" else 0
    if found:
        for key, index in (("firstMessageId", found[0]), ("lastMessageId", found[-1])):
            counted[key] = ":".join(map(str, topic.log.position(index)))
    return Answer(200, counted)


async def replicated(request: Request) -> Answer:
    """Return whether a consumer asked for a replicated subscription."""
    topics = await request.all_parts()
    return Answer(200, {topic.name.full: request.subscription(topic).cursor.replicated for topic in topics})


_ONE: Final = f"{TOPIC}/subscription/{{subscription}}"

ROUTES: Final[tuple[Route, ...]] = (
    ("GET", f"{TOPIC}/subscriptions", names),
    ("PUT", _ONE, create),
    ("DELETE", _ONE, delete),
    ("POST", f"{_ONE}/skip/{{number}}", skip),
    ("POST", f"{_ONE}/skip_all", skip_all),
    ("POST", f"{_ONE}/expireMessages/{{seconds}}", expire),
    ("POST", f"{_ONE}/expireMessages", expire_at),
    ("POST", f"{TOPIC}/all_subscription/expireMessages/{{seconds}}", expire_all),
    ("POST", f"{_ONE}/resetcursor/{{timestamp}}", reset_to_time),
    ("POST", f"{_ONE}/resetcursor", reset_to_message),
    ("GET", f"{_ONE}/properties", properties),
    ("PUT", f"{_ONE}/properties", set_properties),
    ("POST", f"{_ONE}/analyzeBacklog", analyze),
    ("GET", f"{_ONE}/replicatedSubscriptionStatus", replicated),
)
