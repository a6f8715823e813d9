"""Follows messages from producer to consumer: SEND, SEND_RECEIPT, MESSAGE and ACK joined by the message's id.

An id is cluster, ledger and entry; a batch is one entry, a chunk too. An id with negative parts
(non-persistent topics, duplicate sends) is ignored. Deliveries and acknowledgements are matched per
subscription; a cumulative ACK covers everything up to its id on its subscription.
"""

from functools import reduce
from typing import Final
from urllib.parse import urlsplit

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from pulsarctl_wire.spark.reports.base import CAPTURED, Options, Tables, bucket, messages, percentiles, whole
from pulsarctl_wire.spark.reports.latency import publishes
from pulsarctl_wire.spark.reports.traffic import address

_ID: Final = ("cluster", "topic", "ledger_id", "entry_id")
_SUBSCRIPTION: Final = ("cluster", "topic", "subscription")
_IS_ID: Final = "ledger_id >= 0 and entry_id >= 0"
_URLS: Final = ("brokerServiceUrl", "brokerServiceUrlTls")


def _with_cluster(frames: DataFrame) -> DataFrame:
    """Frames with `cluster`, a number.

    Brokers that name each other in LOOKUP_RESPONSE form a cluster. If there are not at least two clusters,
    all brokers are one; otherwise the brokers without LOOKUP_RESPONSE form another one.
    """
    server = F.when(F.col("to_broker"), address("dst")).otherwise(address("src"))
    named = frames.where("command = 'LOOKUP_RESPONSE'").select(
        server.alias("server"), *(F.get_json_object("command_json", f"$.{url}").alias(url) for url in _URLS)
    )
    clusters = _clusters([tuple(row) for row in named.distinct().collect()])
    if len(set(clusters.values())) < 2:
        return frames.withColumn("cluster", F.lit(0))
    numbers = F.create_map(*(F.lit(each) for pair in clusters.items() for each in pair))
    return frames.withColumn("cluster", F.coalesce(numbers[server], F.lit(-1)))


def _clusters(named: list[tuple[str | None, ...]]) -> dict[str, int]:
    """Server -> number of its cluster, from rows of (server, URL that it named, …)."""
    groups: list[set[str]] = []
    servers: set[str] = set()
    for server, *urls in named:
        if server is None:
            continue
        servers.add(server)
        group = {server, *(urlsplit(url).netloc for url in urls if url)}
        for each in [each for each in groups if each & group]:
            groups.remove(each)
            group |= each
        groups.append(group)
    return {server: number for number, group in enumerate(groups) for server in group & servers}


def _published(frames: DataFrame) -> DataFrame:
    """One row per entry that got an id: when it was first sent, and its receipt."""
    received = publishes(frames, "cluster").where(_IS_ID)
    first = F.min_by(
        F.struct("producer", "messages", "bytes", "time_ns", "answered_ns", "latency_ns"), "time_ns"
    )
    return (
        received.groupBy(*_ID)
        .agg(first.alias("sent"))
        .select(
            *_ID,
            *("sent.producer", "sent.messages", "sent.bytes"),
            F.col("sent.time_ns").alias("sent_ns"),
            F.col("sent.answered_ns").alias("receipt_ns"),
            F.col("sent.latency_ns").alias("publish_latency_ns"),
        )
    )


def _delivered(frames: DataFrame) -> DataFrame:
    """One row per entry and subscription: when it was first delivered, how often, when first acknowledged.

    Entries that were only acknowledged have no `delivered_ns`.
    """
    own = F.array(F.struct("ledger_id", "entry_id", "left"))
    rows = (
        whole(frames)
        .where("command = 'MESSAGE' or (command = 'ACK' and ack_count > 0)")
        .select(
            *_SUBSCRIPTION,
            *("time_ns", "ack_type", "redelivery_count"),
            messages().alias("delivered_messages"),
            F.inline(F.coalesce("acked", own)),
        )
        .where("coalesce(left, 0) = 0")
    )
    is_message = F.col("ack_type").isNull()
    single = rows.where("ack_type is null or ack_type = 'Individual'").where(_IS_ID)
    entries = single.groupBy(*_SUBSCRIPTION, "ledger_id", "entry_id").agg(
        F.min(F.when(is_message, F.col("time_ns"))).alias("delivered_ns"),
        F.count(F.when(is_message, 1)).alias("deliveries"),
        F.max("redelivery_count").alias("redelivery_count"),
        F.max("delivered_messages").alias("delivered_messages"),
        F.min(F.when(~is_message, F.col("time_ns"))).alias("single_ns"),
    )
    cumulative = rows.where("ack_type = 'Cumulative'").select(
        *_SUBSCRIPTION, "ledger_id", "entry_id", F.col("time_ns").alias("up_to_ns")
    )
    # with the highest ids first, the cumulative ACKs that cover an entry are those before it
    highest = Window.partitionBy(*_SUBSCRIPTION).orderBy(F.desc("ledger_id"), F.desc("entry_id"))
    covered = F.min("up_to_ns").over(highest.rangeBetween(Window.unboundedPreceding, Window.currentRow))
    first_ack = F.least("single_ns", "covered_ns")
    after = F.col("delivered_ns").isNull() | (first_ack >= F.col("delivered_ns"))
    return (
        entries.unionByName(cumulative, allowMissingColumns=True)
        .withColumn("covered_ns", covered)
        .where("up_to_ns is null")
        .withColumn("acked_ns", F.when(after, first_ack))
        .drop("single_ns", "covered_ns", "up_to_ns")
    )


def journey(tables: Tables, options: Options) -> DataFrame:
    """The path of each entry through each subscription: sent, received, first delivered, acknowledged."""
    frames = _with_cluster(tables.frames)
    sent = _published(frames).alias("sent")
    delivered = _delivered(frames).where("delivered_ns is not null").alias("delivered")
    # if a capture begins in the middle of a connection, its topics are unknown
    same_topic = F.expr("coalesce(sent.topic = delivered.topic, true)")
    same_id = [F.col(f"sent.{name}") == F.col(f"delivered.{name}") for name in _ID if name != "topic"]
    both = sent.join(delivered, [*same_id, same_topic], "full_outer")
    return both.select(
        *(F.coalesce(f"sent.{name}", f"delivered.{name}").alias(name) for name in _ID),
        *("subscription", "producer"),
        F.coalesce("messages", "delivered_messages").alias("messages"),
        *("bytes", "sent_ns", "receipt_ns", "delivered_ns", "acked_ns", "publish_latency_ns"),
        (F.col("delivered_ns") - F.col("sent_ns")).alias("delivery_latency_ns"),
        (F.col("acked_ns") - F.col("delivered_ns")).alias("ack_latency_ns"),
        F.coalesce("deliveries", F.lit(0)).alias("deliveries"),
        "redelivery_count",
    ).orderBy(F.coalesce("sent_ns", "delivered_ns"), *_ID, "subscription")


def delivery(tables: Tables, options: Options) -> DataFrame:
    """Times to delivery (SEND to first MESSAGE) and from there to the first ACK, by topic and subscription.

    `missing` are entries whose SEND was not captured, or that were never acknowledged.
    """
    steps = F.array(
        *(
            F.struct(F.lit(step).alias("step"), F.col(f"{step}_latency_ns").alias("latency_ns"))
            for step in ("delivery", "ack")
        )
    )
    rows = journey(tables, options).where("delivered_ns is not null")
    taken = rows.select(*_SUBSCRIPTION, F.inline(steps))
    missing = F.count_if(F.col("latency_ns").isNull())
    return percentiles(taken, (*_SUBSCRIPTION, "step"), {"missing": missing}).orderBy(
        *_SUBSCRIPTION, F.desc("step")
    )


def backlog(tables: Tables, options: Options) -> DataFrame:
    """Entries not acknowledged yet, and permits that consumers have left, over time.

    All start at 0 where a subscription is first seen: earlier entries are unknown. A non-durable reader has
    no backlog, and after a SEEK it is unknown. Only buckets in which something changed have a row.
    """
    width = Options(options.bucket_ns or 1_000_000_000)
    frames = _with_cluster(tables.frames)
    entries = _delivered(frames)
    published = (
        whole(frames)
        .where(f"command = 'SEND_RECEIPT' and {_IS_ID}")
        .groupBy(*_ID)
        .agg(F.min("time_ns").alias("time_ns"))
    )
    subscriptions = _subscriptions(frames)
    changes = [
        published.join(subscriptions, ["cluster", "topic"])
        .where("time_ns >= since_ns")
        .groupBy(*_SUBSCRIPTION, *bucket(width))
        .agg(F.count("*").alias("published")),
        _counted(entries, "delivered_ns", "delivered", width),
        _counted(entries, "acked_ns", "acked", width),
        _permits(frames).groupBy(*_SUBSCRIPTION, *bucket(width)).agg(F.sum("change").alias("permits")),
    ]
    together = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), changes)
    numbers = ("published", "delivered", "acked", "permits")
    summed = (
        together.where("time_ns is not null")
        .groupBy("time_ns", *_SUBSCRIPTION)
        .agg(*(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in numbers))
    )
    known = F.expr("durable and (seek_ns is null or time_ns < seek_ns)")
    until = Window.partitionBy(*_SUBSCRIPTION).orderBy("time_ns").rowsBetween(Window.unboundedPreceding, 0)
    return (
        summed.join(subscriptions, [*_SUBSCRIPTION])
        .select(
            *("time_ns", *_SUBSCRIPTION, "published", "delivered", "acked"),
            F.when(known, F.sum(F.col("published") - F.col("acked")).over(until)).alias("backlog"),
            F.sum(F.col("delivered") - F.col("acked")).over(until).alias("unacked"),
            F.sum("permits").over(until).alias("permits"),
        )
        .orderBy("time_ns", *_SUBSCRIPTION)
    )


def _subscriptions(frames: DataFrame) -> DataFrame:
    """The subscriptions: when first seen, whether they are durable, the time of the first SEEK."""
    is_reader = F.get_json_object("command_json", "$.durable") == "false"
    return (
        frames.where("topic is not null and subscription is not null")
        .groupBy(*_SUBSCRIPTION)
        .agg(
            F.min("time_ns").alias("since_ns"),
            (F.count_if(F.expr("command = 'SUBSCRIBE'") & is_reader) == 0).alias("durable"),
            F.min(F.when(F.expr("command = 'SEEK'"), F.col("time_ns"))).alias("seek_ns"),
        )
    )


def _counted(entries: DataFrame, time: str, name: str, width: Options) -> DataFrame:
    """How many entries have `time` in each bucket, as column `name`."""
    return entries.groupBy(*_SUBSCRIPTION, *bucket(width, time)).agg(F.count("*").alias(name))


def _permits(frames: DataFrame) -> DataFrame:
    """Changes of the permits of a subscription's consumers.

    FLOW adds, MESSAGE subtracts; a consumer loses the rest when it is closed or subscribes again.
    """
    rows = frames.where("command in ('FLOW', 'MESSAGE', 'SUBSCRIBE', 'CLOSE_CONSUMER')")
    resets = F.col("command").isin("SUBSCRIBE", "CLOSE_CONSUMER")
    consumer = Window.partitionBy("connection", "consumer_id").orderBy(*CAPTURED)
    life = F.count(F.when(resets, 1)).over(consumer.rowsBetween(Window.unboundedPreceding, 0))
    permits = F.coalesce("permits", F.lit(0))
    change = F.when(F.col("command") == "MESSAGE", -permits).otherwise(permits)
    one_life = Window.partitionBy("connection", "consumer_id", "life").orderBy(*CAPTURED)
    held = F.sum("change").over(one_life.rowsBetween(Window.unboundedPreceding, 0))
    rows = rows.withColumns({"life": life, "change": change}).withColumn("held", held)
    lost = -F.coalesce(F.lag("held").over(consumer), F.lit(0))
    return rows.select(
        *("time_ns", *_SUBSCRIPTION), F.when(resets, lost).otherwise(F.col("change")).alias("change")
    ).where("subscription is not null")
