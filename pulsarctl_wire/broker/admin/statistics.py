"""Statistics of topics in the admin API."""

from collections.abc import Iterable
from typing import Any, Final

from pulsarctl_wire.broker.admin.base import TOPIC, Answer, Problem, Request, Route
from pulsarctl_wire.broker.admin.messages import when
from pulsarctl_wire.broker.admin.topics import confirmed
from pulsarctl_wire.broker.cluster import counters
from pulsarctl_wire.broker.cluster.cluster import AnyTopic
from pulsarctl_wire.broker.cluster.counters import Counts, Rates
from pulsarctl_wire.broker.delivery.consumer import EXCLUSIVE, FAILOVER, KEY_SHARED, Consumer
from pulsarctl_wire.broker.topics.persistent import PersistentTopic
from pulsarctl_wire.broker.topics.topic import Producer
from pulsarctl_wire.wire.PulsarApi_pb2 import STICKY, CommandSubscribe, ProducerAccessMode

_NO_ACKS: Final = {
    "nonContiguousDeletedMessagesRanges": 0,
    "nonContiguousDeletedMessagesRangesSerializedSize": 0,
    "delayedMessageIndexSizeInBytes": 0,
}
_NO_DRAINING: Final = {
    "drainingHashesCount": 0,
    "drainingHashesClearedTotal": 0,
    "drainingHashesUnackedMessages": 0,
}
_NO_FILTERS: Final = dict.fromkeys(
    (f"filter{kind}MsgCount" for kind in ("Processed", "Accepted", "Rejected", "Rescheduled")), 0
)
_NO_THROTTLING: Final = dict.fromkeys(
    (
        f"dispatchThrottled{what}EventsBy{by}Limit"
        for by in ("Subscription", "Topic", "Broker")
        for what in ("Msg", "Bytes")
    ),
    0,
)
_NO_COMPACTION: Final = {
    "lastCompactionRemovedEventCount": 0,
    "lastCompactionSucceedTimestamp": 0,
    "lastCompactionFailedTimestamp": 0,
    "lastCompactionDurationTimeInMills": 0,
}
_LATEST: Final = frozenset(
    {"oldestBacklogMessageAgeSeconds", "backlogQuotaLimitSize", "backlogQuotaLimitTime"}
)
"""Of several partitions, the largest one counts; times too."""


# -- producers and consumers


def _out(rates: Counts, counts: Counts) -> dict[str, Any]:
    return {
        "msgRateOut": rates.messages_out,
        "msgThroughputOut": rates.bytes_out,
        "bytesOutCounter": counts.bytes_out,
        "msgOutCounter": counts.messages_out,
        "msgRateRedeliver": rates.redelivered,
        "messageAckRate": rates.acked,
        "chunkedMessageRate": 0.0,
    }


def _average(size: float, number: float) -> float:
    return size / number if number else 0.0


def _publisher(producer: Producer, rates: Rates) -> dict[str, Any]:
    rate = rates.of(producer)
    return {
        "accessMode": ProducerAccessMode.Name(producer.mode),  # type: ignore[arg-type]
        "msgRateIn": rate.messages_in,
        "msgThroughputIn": rate.bytes_in,
        "averageMsgSize": _average(rate.bytes_in, rate.messages_in),
        "chunkedMessageRate": 0.0,
        "producerId": producer.id,
        "supportsPartialProducer": producer.connection.features.supports_partial_producer,
        "producerName": producer.name,
        "address": producer.connection.address,
        "connectedSince": when(producer.since_ms),
        "clientVersion": producer.connection.client_version,
        "metadata": producer.metadata,
    }


def _consumer(consumer: Consumer, rates: Rates) -> dict[str, Any]:
    counts = counters.of_consumer(consumer)
    told: dict[str, Any] = {
        **_out(rates.of(consumer), counts),
        "consumerName": consumer.name,
        "availablePermits": consumer.permits,
        "unackedMessages": consumer.unacked,
        "avgMessagesPerEntry": 1 if counts.messages_out else 0,
        "blockedConsumerOnUnackedMsgs": consumer.blocked,
        **_NO_DRAINING,
        "address": consumer.connection.address,
        "connectedSince": when(consumer.since_ms),
        "clientVersion": consumer.connection.client_version,
        "lastAckedTimestamp": consumer.last_acked_ms,
        "lastConsumedTimestamp": consumer.last_sent_ms,
        "lastConsumedFlowTimestamp": consumer.last_flow_ms,
        "metadata": consumer.metadata,
        "lastAckedTime": when(consumer.last_acked_ms),
        "lastConsumedTime": when(consumer.last_sent_ms),
    }
    if consumer.kind == KEY_SHARED:
        told["drainingHashes"] = []
    if consumer.connection.identity.principal:
        told["appId"] = consumer.connection.identity.principal
    return told


# -- subscriptions


def _kind(kind: int | None) -> str:
    return "None" if kind is None else CommandSubscribe.SubType.Name(kind)  # type: ignore[arg-type]


def _last(subscription: Any, name: str) -> int:
    known: list[int] = [getattr(each, name) for each in subscription.consumers]
    gone: int = getattr(subscription, "last_ms", {}).get(name, 0)
    return max([*known, gone])


def _subscription(subscription: Any, rates: Rates, *, durable: bool) -> dict[str, Any]:
    """Return what persistent and other subscriptions have in common."""
    consumers: list[Consumer] = subscription.consumers
    told: dict[str, Any] = {
        **_out(rates.of(subscription), counters.of_subscription(subscription)),
        "msgBacklog": 0,
        "backlogSize": 0,
        "earliestMsgPublishTimeInBacklog": 0,
        "msgBacklogNoDelayed": 0,
        "blockedSubscriptionOnUnackedMsgs": False,
        "msgDelayed": 0,
        "msgInReplay": 0,
        "unackedMessages": sum(each.unacked for each in consumers),
        "type": _kind(subscription.kind),
        "msgRateExpired": rates.of(subscription).expired,
        "totalMsgExpired": 0,
        "lastExpireTimestamp": 0,
        "lastConsumedFlowTimestamp": _last(subscription, "last_flow_ms"),
        "lastConsumedTimestamp": _last(subscription, "last_sent_ms"),
        "lastAckedTimestamp": _last(subscription, "last_acked_ms"),
        "lastMarkDeleteAdvancedTimestamp": 0,
        "consumers": [_consumer(each, rates) for each in consumers],
        "isDurable": durable,
        "isReplicated": False,
        "allowOutOfOrderDelivery": False,
        "consumersAfterMarkDeletePosition": {},
        **_NO_DRAINING,
        **_NO_ACKS,
        "subscriptionProperties": {},
        **_NO_FILTERS,
        **_NO_THROTTLING,
        "durable": durable,
        "replicated": False,
    }
    return told


async def _persistent(subscription: Any, rates: Rates, *, earliest: bool) -> dict[str, Any]:
    """Return a subscription of a persistent topic."""
    topic, cursor = subscription.topic, subscription.cursor
    delayed = getattr(subscription.dispatcher, "delayed_count", 0)
    told = _subscription(subscription, rates, durable=cursor.durable)
    told["isReplicated"] = told["replicated"] = cursor.replicated
    told |= {
        "msgBacklog": subscription.backlog,
        "backlogSize": subscription.backlog_size,
        "msgBacklogNoDelayed": max(subscription.backlog - delayed, 0),
        "msgDelayed": delayed,
        "blockedSubscriptionOnUnackedMsgs": subscription.blocked,
        "totalMsgExpired": subscription.expired_messages,
        "lastExpireTimestamp": subscription.last_expired_ms,
        "lastMarkDeleteAdvancedTimestamp": subscription.last_moved_ms,
        "nonContiguousDeletedMessagesRanges": len(cursor.ranges(topic.log.stored_end)),
        "subscriptionProperties": cursor.properties,
    }
    dispatcher = subscription.dispatcher
    active = getattr(dispatcher, "active", None)
    if subscription.kind in (EXCLUSIVE, FAILOVER) and active is not None:
        told["activeConsumerName"] = active.name
    if subscription.kind == KEY_SHARED and subscription.consumers:
        told["keySharedMode"] = "STICKY" if dispatcher.mode == STICKY else "AUTO_SPLIT"
        told["allowOutOfOrderDelivery"] = dispatcher.out_of_order
    if earliest:
        told["earliestMsgPublishTimeInBacklog"] = -1
    if earliest and subscription.backlog:
        entry = await topic.log.load_entry(cursor.find_open(cursor.mark), topic.scheduler)
        if entry is not None and entry.metadata is not None:
            told["earliestMsgPublishTimeInBacklog"] = entry.metadata.publish_time
    return told


# -- topics


async def topic_stats(topic: AnyTopic, request: Request) -> dict[str, Any]:
    """Return the statistics of a loaded topic."""
    broker, counts = request.cluster.broker_of(topic), counters.of_topic(topic)
    rates = broker.rates
    rate = rates.of(topic)
    told: dict[str, Any] = {
        "msgRateIn": rate.messages_in,
        "msgThroughputIn": rate.bytes_in,
        "msgRateOut": rate.messages_out,
        "msgThroughputOut": rate.bytes_out,
        "bytesInCounter": counts.bytes_in,
        "msgInCounter": counts.messages_in,
        "systemTopicBytesInCounter": 0,
        "bytesOutCounter": counts.bytes_out,
        "msgOutCounter": counts.messages_out,
        "bytesOutInternalCounter": 0,
        "averageMsgSize": _average(rate.bytes_in, rate.messages_in),
        "msgChunkPublished": False,
        "storageSize": 0,
        "backlogSize": 0,
        "backlogQuotaLimitSize": 0,
        "backlogQuotaLimitTime": 0,
        "oldestBacklogMessageAgeSeconds": 0,
        "publishRateLimitedTimes": 0,
        "earliestMsgPublishTimeInBacklogs": 0,
        "offloadedStorageSize": 0,
        "lastOffloadLedgerId": 0,
        "lastOffloadSuccessTimeStamp": 0,
        "lastOffloadFailureTimeStamp": 0,
        "ongoingTxnCount": 0,
        "abortedTxnCount": 0,
        "committedTxnCount": 0,
        "publishers": [],
        "waitingPublishers": len(topic.waiting_producers),
        "subscriptions": {},
        "replication": {},
        **_NO_ACKS,
        "compaction": dict(_NO_COMPACTION),
        "ownerBroker": broker.http_url.partition("://")[2],
    }
    if not request.flag("excludePublishers"):
        told["publishers"] = [_publisher(each, rates) for each in topic.producers.values()]
    if isinstance(topic, PersistentTopic):
        await _add_stored(topic, told, request)
    else:
        told["msgDropRate"] = 0.0
        for name, each in topic.subscriptions.items():
            told["subscriptions"][name] = {**_subscription(each, rates, durable=False), "msgDropRate": 0.0}
    if request.flag("excludeConsumers"):
        for each in told["subscriptions"].values():
            each["consumers"] = []
    return told


def _compaction(topic: PersistentTopic) -> tuple[int, int, int, int]:
    it = topic.compaction
    return it.removed_messages, it.succeeded_ms, it.failed_ms, it.duration_ms


async def _add_stored(topic: PersistentTopic, told: dict[str, Any], request: Request) -> None:
    """Add what only persistent topics have."""
    limits = topic.policies.quotas()
    earliest = request.flag("getEarliestTimeInBacklog")
    subscriptions: dict[str, Any] = told["subscriptions"]
    for name, each in list(topic.subscriptions.items()):
        subscriptions[name] = await _persistent(
            each, request.cluster.broker_of(topic).rates, earliest=earliest
        )
    times = [each["earliestMsgPublishTimeInBacklog"] for each in subscriptions.values()]
    largest = max((each["backlogSize"] for each in subscriptions.values()), default=0)
    if not request.flag("subscriptionBacklogSize", "true"):
        for each in subscriptions.values():
            each["backlogSize"] = -1
    told |= {
        "storageSize": topic.log.size,
        "backlogSize": largest,
        "backlogQuotaLimitSize": max(each.size for each in limits),
        "backlogQuotaLimitTime": max(each.seconds for each in limits),
        "oldestBacklogMessageAgeSeconds": -1,
        "earliestMsgPublishTimeInBacklogs": min((time for time in times if time > 0), default=0),
        "ongoingTxnCount": len(topic.journal.table(f"txn-open/{topic.log.number}")),
        "abortedTxnCount": len(topic.journal.table(f"txn-aborted/{topic.log.number}")),
        "compaction": dict(zip(_NO_COMPACTION, _compaction(topic), strict=True)),
        "deduplicationStatus": "Enabled" if topic.rules.deduplicates else "Disabled",
    }


async def stats(request: Request) -> Answer:
    """Return the statistics of a topic."""
    return Answer(200, await topic_stats(await request.topic(), request))


# -- partitioned topics


def _sum(key: str, one: Any, other: Any) -> Any:
    """Statistics of two partitions as one."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one or other
    if isinstance(one, dict) and isinstance(other, dict):
        return _merge([one, other]) if key != "metadata" else one
    if isinstance(one, list) and isinstance(other, list):
        return _merge_lists(one, other)
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        if key.startswith("earliest"):
            return min(one, other) if one and other else one or other
        return max(one, other) if key in _LATEST or "imestamp" in key else one + other
    return one


def _merge(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            merged[key] = _sum(key, merged[key], value) if key in merged else value
    return merged


def _merge_lists(one: list[Any], other: list[Any]) -> list[Any]:
    """Producers and consumers of the same name are one."""
    merged = {each.get("producerName") or each.get("consumerName"): each for each in one}
    for each in other:
        name = each.get("producerName") or each.get("consumerName")
        merged[name] = _merge([merged[name], each]) if name in merged else each
    return list(merged.values())


def _partitioned(request: Request) -> dict[str, Any]:
    """Return the metadata of the partitioned topic in the path. Raises Problem."""
    _ = request.namespace
    name = request.topic_name
    row = request.namespaces.partitioned.get(name.full)
    if row is None:
        raise Problem(404, f"Partitioned Topic {name.full} not found")
    told = {"partitions": row["partitions"], "deleted": False}
    return told | ({"properties": row["properties"]} if row["properties"] else {})


async def partitioned_stats(request: Request) -> Answer:
    """Return the statistics of all partitions, summed up, and (unless perPartition=false) of each."""
    metadata = _partitioned(request)
    parts: dict[str, Any] = {}
    for name in request.cluster.catalogue.list_partitions(request.topic_name):
        parts[name.full] = await topic_stats(await request.cluster.load(name, request.broker), request)
    merged = _merge(parts.values())
    merged["oldestBacklogMessageAgeSeconds"] = max(merged["oldestBacklogMessageAgeSeconds"], 0)
    for key in ("ownerBroker", "deduplicationStatus"):
        merged.pop(key, None)
    merged["metadata"] = metadata
    merged["partitions"] = parts if request.flag("perPartition", "true") else {}
    return Answer(200, merged)


# -- what is stored


def _internal_cursor(subscription: Any) -> dict[str, Any]:
    """Return the cursor of a subscription."""
    topic, cursor, dispatcher = subscription.topic, subscription.cursor, subscription.dispatcher
    log, mark = topic.log, cursor.mark
    read_at = max(mark if dispatcher is None else dispatcher.read_index, mark)
    ledger = log.position_before(read_at) if read_at >= log.end else log.position(read_at)
    ahead = read_at >= log.end
    ranges = [
        f"({':'.join(map(str, log.position_before(start)))}..{':'.join(map(str, log.position(stop - 1)))}]"
        for start, stop in cursor.ranges(log.stored_end)
    ]
    return {
        "markDeletePosition": ":".join(map(str, log.position_before(mark))),
        "readPosition": f"{ledger.ledger}:{ledger.entry + ahead}",
        "waitingReadOp": bool(subscription.consumers) and ahead,
        "pendingReadOps": 0,
        "messagesConsumedCounter": max(mark - log.first, 0) + cursor.count,
        "cursorLedger": -1,
        "cursorLedgerLastEntry": -1,
        "individuallyDeletedMessages": f"[{','.join(ranges)}]",
        "lastLedgerSwitchTimestamp": when(topic.since_ms),
        "state": "Open" if cursor.durable else "NoLedger",
        "active": bool(subscription.consumers),
        "numberOfEntriesSinceFirstNotAckedMessage": read_at - mark + 1,
        "totalNonContiguousDeletedMessagesRange": len(ranges),
        "subscriptionHavePendingRead": bool(subscription.consumers) and ahead,
        "subscriptionHavePendingReplayRead": False,
        "properties": {},
    }


_NO_LEDGER: Final = {"ledgerId": -1, "entries": -1, "size": -1, "offloaded": False, "underReplicated": False}


def internal(topic: AnyTopic) -> dict[str, Any]:
    """Return what is stored of a topic."""
    if not isinstance(topic, PersistentTopic):
        names = "entriesAddedCounter numberOfEntries totalSize currentLedgerEntries currentLedgerSize"
        told: dict[str, Any] = dict.fromkeys(
            [*names.split(), "waitingCursorsCount", "pendingAddEntriesCount"], 0
        )
        return {**told, "ledgers": [], "cursors": {}, "schemaLedgers": [], "compactedLedger": None}
    log = topic.log
    kept = [each for each in log.ledgers if each.first >= log.first or each is log.ledgers[-1]]
    ends = [(each.first, each.offset) for each in kept[1:]] + [(log.end, log.bytes)]
    ledgers = [
        {
            "ledgerId": ledger.id,
            "entries": 0 if ledger is kept[-1] else stop - ledger.first,
            "size": 0 if ledger is kept[-1] else offset - ledger.offset,
            "offloaded": False,
            "underReplicated": False,
        }
        for ledger, (stop, offset) in zip(kept, ends, strict=True)
    ]
    last = kept[-1]
    cursors = {name: _internal_cursor(each) for name, each in topic.subscriptions.items()}
    return {
        "entriesAddedCounter": log.end - log.first,
        "numberOfEntries": log.end - log.first,
        "totalSize": log.size,
        "currentLedgerEntries": log.end - last.first,
        "currentLedgerSize": log.bytes - last.offset,
        "lastLedgerCreatedTimestamp": when(last.opened_ms),
        "waitingCursorsCount": sum(each["waitingReadOp"] for each in cursors.values()),
        "pendingAddEntriesCount": log.end - log.stored_end,
        "lastConfirmedEntry": ":".join(map(str, confirmed(topic))),
        "state": "Terminated" if topic.terminated else "LedgerOpened",
        "ledgers": ledgers,
        "cursors": cursors,
        "schemaLedgers": [],
        "compactedLedger": dict(_NO_LEDGER),
    }


async def internal_stats(request: Request) -> Answer:
    """Return what is stored of a topic."""
    return Answer(200, internal(await request.topic()))


async def partitioned_internal_stats(request: Request) -> Answer:
    """Return what is stored of each partition."""
    metadata, parts = _partitioned(request), {}
    for name in request.cluster.catalogue.list_partitions(request.topic_name):
        parts[name.full] = internal(await request.cluster.load(name, request.broker))
    return Answer(200, {"metadata": metadata, "partitions": parts})


async def internal_info(request: Request) -> Answer:
    """When a topic was made, and its ledgers."""
    topic = await request.persistent_topic("Internal info")
    log = topic.log
    ledgers = [
        {"ledgerId": each.id, "timestamp": each.opened_ms, "isOffloaded": False} for each in log.ledgers
    ]
    cursors = {}
    for name, each in topic.subscriptions.items():
        mark = log.position_before(each.cursor.mark)
        place = {"ledgerId": mark.ledger, "entryId": mark.entry}
        cursors[name] = {"version": 1, "cursorsLedgerId": -1, "markDelete": place}
    made = when(log.ledgers[0].opened_ms)
    told = {"version": 1, "creationDate": made, "modificationDate": when(log.ledgers[-1].opened_ms)}
    return Answer(200, {**told, "ledgers": ledgers, "cursors": cursors})


ROUTES: Final[tuple[Route, ...]] = (
    ("GET", f"{TOPIC}/stats", stats),
    ("GET", f"{TOPIC}/internalStats", internal_stats),
    ("GET", f"{TOPIC}/internal-info", internal_info),
    ("GET", f"{TOPIC}/partitioned-stats", partitioned_stats),
    ("GET", f"{TOPIC}/partitioned-internalStats", partitioned_internal_stats),
)
