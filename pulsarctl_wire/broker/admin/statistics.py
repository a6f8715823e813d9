"""Statistics of topics in the admin API."""

from collections.abc import Iterable
from typing import Any, Final

from pulsarctl_wire.broker.admin.base import TOPIC, Answer, Problem, Request, Route
from pulsarctl_wire.broker.admin.messages import format_time
from pulsarctl_wire.broker.admin.topics import last_confirmed
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
        f"dispatchThrottled{unit}EventsBy{level}Limit"
        for level in ("Subscription", "Topic", "Broker")
        for unit in ("Msg", "Bytes")
    ),
    0,
)
_NO_COMPACTION: Final = {
    "lastCompactionRemovedEventCount": 0,
    "lastCompactionSucceedTimestamp": 0,
    "lastCompactionFailedTimestamp": 0,
    "lastCompactionDurationTimeInMills": 0,
}
_MAXIMA: Final = frozenset(
    {"oldestBacklogMessageAgeSeconds", "backlogQuotaLimitSize", "backlogQuotaLimitTime"}
)
"""Statistics of a partitioned topic that, like timestamps, are the largest of its partitions' values."""


# -- producers and consumers


def _collect_rates_out(rates: Counts, counts: Counts) -> dict[str, Any]:
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
        "connectedSince": format_time(producer.since_ms),
        "clientVersion": producer.connection.client_version,
        "metadata": producer.metadata,
    }


def _consumer(consumer: Consumer, rates: Rates) -> dict[str, Any]:
    counts = counters.get_consumer_counts(consumer)
    stats: dict[str, Any] = {
        **_collect_rates_out(rates.of(consumer), counts),
        "consumerName": consumer.name,
        "availablePermits": consumer.permits,
        "unackedMessages": consumer.unacked,
        "avgMessagesPerEntry": 1 if counts.messages_out else 0,
        "blockedConsumerOnUnackedMsgs": consumer.blocked,
        **_NO_DRAINING,
        "address": consumer.connection.address,
        "connectedSince": format_time(consumer.since_ms),
        "clientVersion": consumer.connection.client_version,
        "lastAckedTimestamp": consumer.last_acked_ms,
        "lastConsumedTimestamp": consumer.last_sent_ms,
        "lastConsumedFlowTimestamp": consumer.last_flow_ms,
        "metadata": consumer.metadata,
        "lastAckedTime": format_time(consumer.last_acked_ms),
        "lastConsumedTime": format_time(consumer.last_sent_ms),
    }
    if consumer.kind == KEY_SHARED:
        stats["drainingHashes"] = []
    if consumer.connection.identity.principal:
        stats["appId"] = consumer.connection.identity.principal
    return stats


# -- subscriptions


def _kind(kind: int | None) -> str:
    return "None" if kind is None else CommandSubscribe.SubType.Name(kind)  # type: ignore[arg-type]


def _find_last(subscription: Any, name: str) -> int:
    """Return the latest time `name` (ms) of all consumers, also of those that have left; 0: never."""
    present: list[int] = [getattr(consumer, name) for consumer in subscription.consumers]
    past: int = getattr(subscription, "last_ms", {}).get(name, 0)
    return max([*present, past])


def _subscription(subscription: Any, rates: Rates, *, is_durable: bool) -> dict[str, Any]:
    """Return the statistics that subscriptions of persistent and non-persistent topics have."""
    consumers: list[Consumer] = subscription.consumers
    stats: dict[str, Any] = {
        **_collect_rates_out(rates.of(subscription), counters.get_subscription_counts(subscription)),
        "msgBacklog": 0,
        "backlogSize": 0,
        "earliestMsgPublishTimeInBacklog": 0,
        "msgBacklogNoDelayed": 0,
        "blockedSubscriptionOnUnackedMsgs": False,
        "msgDelayed": 0,
        "msgInReplay": 0,
        "unackedMessages": sum(consumer.unacked for consumer in consumers),
        "type": _kind(subscription.kind),
        "msgRateExpired": rates.of(subscription).expired,
        "totalMsgExpired": 0,
        "lastExpireTimestamp": 0,
        "lastConsumedFlowTimestamp": _find_last(subscription, "last_flow_ms"),
        "lastConsumedTimestamp": _find_last(subscription, "last_sent_ms"),
        "lastAckedTimestamp": _find_last(subscription, "last_acked_ms"),
        "lastMarkDeleteAdvancedTimestamp": 0,
        "consumers": [_consumer(consumer, rates) for consumer in consumers],
        "isDurable": is_durable,
        "isReplicated": False,
        "allowOutOfOrderDelivery": False,
        "consumersAfterMarkDeletePosition": {},
        **_NO_DRAINING,
        **_NO_ACKS,
        "subscriptionProperties": {},
        **_NO_FILTERS,
        **_NO_THROTTLING,
        "durable": is_durable,
        "replicated": False,
    }
    return stats


async def _collect_persistent(subscription: Any, rates: Rates, *, is_earliest_wanted: bool) -> dict[str, Any]:
    """Return the statistics of a subscription of a persistent topic.

    `is_earliest_wanted`: also when the first message of its backlog was published, for which it must be read.
    """
    topic, cursor = subscription.topic, subscription.cursor
    delayed = getattr(subscription.dispatcher, "delayed_count", 0)
    stats = _subscription(subscription, rates, is_durable=cursor.durable)
    stats["isReplicated"] = stats["replicated"] = cursor.replicated
    stats |= {
        "msgBacklog": subscription.backlog,
        "backlogSize": subscription.backlog_size,
        "msgBacklogNoDelayed": max(subscription.backlog - delayed, 0),
        "msgDelayed": delayed,
        "blockedSubscriptionOnUnackedMsgs": subscription.blocked,
        "totalMsgExpired": subscription.expired_messages,
        "lastExpireTimestamp": subscription.last_expired_ms,
        "lastMarkDeleteAdvancedTimestamp": subscription.last_moved_ms,
        "nonContiguousDeletedMessagesRanges": len(cursor.list_acked(topic.log.stored_end)),
        "subscriptionProperties": cursor.properties,
    }
    dispatcher = subscription.dispatcher
    active = getattr(dispatcher, "active", None)
    if subscription.kind in (EXCLUSIVE, FAILOVER) and active is not None:
        stats["activeConsumerName"] = active.name
    if subscription.kind == KEY_SHARED and subscription.consumers:
        stats["keySharedMode"] = "STICKY" if dispatcher.mode == STICKY else "AUTO_SPLIT"
        stats["allowOutOfOrderDelivery"] = dispatcher.out_of_order
    if is_earliest_wanted:
        stats["earliestMsgPublishTimeInBacklog"] = -1
    if is_earliest_wanted and subscription.backlog:
        entry = await topic.log.load_entry(cursor.find_open(cursor.mark), topic.scheduler)
        if entry is not None and entry.metadata is not None:
            stats["earliestMsgPublishTimeInBacklog"] = entry.metadata.publish_time
    return stats


# -- topics


async def collect_stats(topic: AnyTopic, request: Request) -> dict[str, Any]:
    """Return the statistics of a loaded topic."""
    broker, counts = request.cluster.broker_of(topic), counters.get_topic_counts(topic)
    rates = broker.rates
    rate = rates.of(topic)
    stats: dict[str, Any] = {
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
    if not request.get_flag("excludePublishers"):
        stats["publishers"] = [_publisher(producer, rates) for producer in topic.producers.values()]
    if isinstance(topic, PersistentTopic):
        await _add_persistent(topic, stats, request)
    else:
        stats["msgDropRate"] = 0.0
        for name, subscription in topic.subscriptions.items():
            stats["subscriptions"][name] = {
                **_subscription(subscription, rates, is_durable=False),
                "msgDropRate": 0.0,
            }
    if request.get_flag("excludeConsumers"):
        for item in stats["subscriptions"].values():
            item["consumers"] = []
    return stats


def _compaction(topic: PersistentTopic) -> tuple[int, int, int, int]:
    compaction = topic.compaction
    return compaction.removed_messages, compaction.succeeded_ms, compaction.failed_ms, compaction.duration_ms


async def _add_persistent(topic: PersistentTopic, stats: dict[str, Any], request: Request) -> None:
    """Add the statistics that only persistent topics have."""
    quotas = topic.policies.get_quotas()
    is_earliest_wanted = request.get_flag("getEarliestTimeInBacklog")
    subscriptions: dict[str, Any] = stats["subscriptions"]
    for name, subscription in list(topic.subscriptions.items()):
        subscriptions[name] = await _collect_persistent(
            subscription, request.cluster.broker_of(topic).rates, is_earliest_wanted=is_earliest_wanted
        )
    times = [item["earliestMsgPublishTimeInBacklog"] for item in subscriptions.values()]
    largest = max((item["backlogSize"] for item in subscriptions.values()), default=0)
    if not request.get_flag("subscriptionBacklogSize", "true"):
        for item in subscriptions.values():
            item["backlogSize"] = -1
    stats |= {
        "storageSize": topic.log.size,
        "backlogSize": largest,
        "backlogQuotaLimitSize": max(quota.size for quota in quotas),
        "backlogQuotaLimitTime": max(quota.seconds for quota in quotas),
        "oldestBacklogMessageAgeSeconds": -1,
        "earliestMsgPublishTimeInBacklogs": min((time for time in times if time > 0), default=0),
        "ongoingTxnCount": len(topic.journal.table(f"txn-open/{topic.log.number}")),
        "abortedTxnCount": len(topic.journal.table(f"txn-aborted/{topic.log.number}")),
        "compaction": dict(zip(_NO_COMPACTION, _compaction(topic), strict=True)),
        "deduplicationStatus": "Enabled" if topic.rules.deduplicates else "Disabled",
    }


async def get_stats(request: Request) -> Answer:
    """Return the statistics of a topic."""
    return Answer(200, await collect_stats(await request.load_topic(), request))


# -- partitioned topics


def _combine(key: str, left: Any, right: Any) -> Any:
    """Return a statistic of two partitions as one."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left or right
    if isinstance(left, dict) and isinstance(right, dict):
        return _merge([left, right]) if key != "metadata" else left
    if isinstance(left, list) and isinstance(right, list):
        return _merge_lists(left, right)
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        if key.startswith("earliest"):
            return min(left, right) if left and right else left or right
        return max(left, right) if key in _MAXIMA or "imestamp" in key else left + right
    return left


def _merge(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            merged[key] = _combine(key, merged[key], value) if key in merged else value
    return merged


def _merge_lists(left: list[Any], right: list[Any]) -> list[Any]:
    """Merge producers and consumers of the same name."""
    merged = {item.get("producerName") or item.get("consumerName"): item for item in left}
    for item in right:
        name = item.get("producerName") or item.get("consumerName")
        merged[name] = _merge([merged[name], item]) if name in merged else item
    return list(merged.values())


def _get_partitioned_metadata(request: Request) -> dict[str, Any]:
    """Return the metadata of the partitioned topic in the path. Raises Problem."""
    request.require_namespace()
    name = request.topic_name
    row = request.namespaces.partitioned.get(name.full)
    if row is None:
        raise Problem(404, f"Partitioned Topic {name.full} not found")
    metadata = {"partitions": row["partitions"], "deleted": False}
    return metadata | ({"properties": row["properties"]} if row["properties"] else {})


async def get_partitioned_stats(request: Request) -> Answer:
    """Return the statistics of all partitions, summed up, and (unless perPartition=false) of each."""
    metadata = _get_partitioned_metadata(request)
    parts: dict[str, Any] = {}
    for name in request.cluster.catalogue.list_partitions(request.topic_name):
        parts[name.full] = await collect_stats(await request.cluster.load(name, request.broker), request)
    merged = _merge(parts.values())
    merged["oldestBacklogMessageAgeSeconds"] = max(merged["oldestBacklogMessageAgeSeconds"], 0)
    for key in ("ownerBroker", "deduplicationStatus"):
        merged.pop(key, None)
    merged["metadata"] = metadata
    merged["partitions"] = parts if request.get_flag("perPartition", "true") else {}
    return Answer(200, merged)


# -- internal statistics


def _internal_cursor(subscription: Any) -> dict[str, Any]:
    """Return the internal statistics of a subscription's cursor."""
    topic, cursor, dispatcher = subscription.topic, subscription.cursor, subscription.dispatcher
    log, mark = topic.log, cursor.mark
    read_index = max(mark if dispatcher is None else dispatcher.read_index, mark)
    is_at_end = read_index >= log.end
    position = log.position_before(read_index) if is_at_end else log.position(read_index)
    ranges = [
        f"({':'.join(map(str, log.position_before(start)))}..{':'.join(map(str, log.position(stop - 1)))}]"
        for start, stop in cursor.list_acked(log.stored_end)
    ]
    return {
        "markDeletePosition": ":".join(map(str, subscription.mark_id)),
        "readPosition": f"{position.ledger}:{position.entry + is_at_end}",
        "waitingReadOp": bool(subscription.consumers) and is_at_end,
        "pendingReadOps": 0,
        "messagesConsumedCounter": max(mark - log.first, 0) + cursor.count,
        "cursorLedger": -1,
        "cursorLedgerLastEntry": -1,
        "individuallyDeletedMessages": f"[{','.join(ranges)}]",
        "lastLedgerSwitchTimestamp": format_time(topic.since_ms),
        "state": "Open" if cursor.durable else "NoLedger",
        "active": bool(subscription.consumers),
        "numberOfEntriesSinceFirstNotAckedMessage": read_index - mark + 1,
        "totalNonContiguousDeletedMessagesRange": len(ranges),
        "subscriptionHavePendingRead": bool(subscription.consumers) and is_at_end,
        "subscriptionHavePendingReplayRead": False,
        "properties": {},
    }


_NO_LEDGER: Final = {"ledgerId": -1, "entries": -1, "size": -1, "offloaded": False, "underReplicated": False}


def collect_internal(topic: AnyTopic) -> dict[str, Any]:
    """Return the internal statistics of a topic."""
    if not isinstance(topic, PersistentTopic):
        names = "entriesAddedCounter numberOfEntries totalSize currentLedgerEntries currentLedgerSize"
        stats: dict[str, Any] = dict.fromkeys(
            [*names.split(), "waitingCursorsCount", "pendingAddEntriesCount"], 0
        )
        return {**stats, "ledgers": [], "cursors": {}, "schemaLedgers": [], "compactedLedger": None}
    log = topic.log
    ledgers_kept = [item for item in log.ledgers if item.first >= log.first or item is log.ledgers[-1]]
    ends = [(item.first, item.offset) for item in ledgers_kept[1:]] + [(log.end, log.bytes)]
    ledgers = [
        {
            "ledgerId": ledger.id,
            "entries": 0 if ledger is ledgers_kept[-1] else stop - ledger.first,
            "size": 0 if ledger is ledgers_kept[-1] else offset - ledger.offset,
            "offloaded": False,
            "underReplicated": False,
        }
        for ledger, (stop, offset) in zip(ledgers_kept, ends, strict=True)
    ]
    last = ledgers_kept[-1]
    cursors = {name: _internal_cursor(subscription) for name, subscription in topic.subscriptions.items()}
    return {
        "entriesAddedCounter": log.end - log.first,
        "numberOfEntries": log.end - log.first,
        "totalSize": log.size,
        "currentLedgerEntries": log.end - last.first,
        "currentLedgerSize": log.bytes - last.offset,
        "lastLedgerCreatedTimestamp": format_time(last.opened_ms),
        "waitingCursorsCount": sum(cursor["waitingReadOp"] for cursor in cursors.values()),
        "pendingAddEntriesCount": log.end - log.stored_end,
        "lastConfirmedEntry": ":".join(map(str, last_confirmed(topic))),
        "state": "Terminated" if topic.terminated else "LedgerOpened",
        "ledgers": ledgers,
        "cursors": cursors,
        "schemaLedgers": [],
        "compactedLedger": dict(_NO_LEDGER),
    }


async def get_internal_stats(request: Request) -> Answer:
    """Return the internal statistics of a topic."""
    return Answer(200, collect_internal(await request.load_topic()))


async def get_partitioned_internal_stats(request: Request) -> Answer:
    """Return the internal statistics of each partition."""
    metadata, parts = _get_partitioned_metadata(request), {}
    for name in request.cluster.catalogue.list_partitions(request.topic_name):
        parts[name.full] = collect_internal(await request.cluster.load(name, request.broker))
    return Answer(200, {"metadata": metadata, "partitions": parts})


async def get_internal_info(request: Request) -> Answer:
    """Return a topic's creation time, ledgers and cursors."""
    topic = await request.load_persistent_topic("Internal info")
    log = topic.log
    ledgers = [
        {"ledgerId": item.id, "timestamp": item.opened_ms, "isOffloaded": False} for item in log.ledgers
    ]
    cursors = {}
    for name, item in topic.subscriptions.items():
        mark = item.mark_id
        place = {"ledgerId": mark.ledger, "entryId": mark.entry}
        cursors[name] = {"version": 1, "cursorsLedgerId": -1, "markDelete": place}
    created = format_time(log.ledgers[0].opened_ms)
    info = {"version": 1, "creationDate": created, "modificationDate": format_time(log.ledgers[-1].opened_ms)}
    return Answer(200, {**info, "ledgers": ledgers, "cursors": cursors})


ROUTES: Final[tuple[Route, ...]] = (
    ("GET", f"{TOPIC}/stats", get_stats),
    ("GET", f"{TOPIC}/internalStats", get_internal_stats),
    ("GET", f"{TOPIC}/internal-info", get_internal_info),
    ("GET", f"{TOPIC}/partitioned-stats", get_partitioned_stats),
    ("GET", f"{TOPIC}/partitioned-internalStats", get_partitioned_internal_stats),
)
