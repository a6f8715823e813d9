"""Messages from producer to consumer: SEND, SEND_RECEIPT, MESSAGE and ACK joined by the message's id.

Ids are ledger and entry: a batch is one entry, a chunk too. An id of negative parts (non-persistent topics,
sends that were duplicates) is none. Deliveries and acknowledgements are looked at per subscription; a
cumulative ACK covers everything up to its id on its subscription.
"""

from functools import reduce
from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from pulsarctl_wire.spark.reports.base import CAPTURED, Options, Tables, bucket, messages, percentiles, whole
from pulsarctl_wire.spark.reports.pairing import publishes

_ID: Final = ("topic", "ledger_id", "entry_id")
_SUBSCRIPTION: Final = ("topic", "subscription")
_IS_ID: Final = "ledger_id >= 0 and entry_id >= 0"


def _published(frames: DataFrame) -> DataFrame:
    """One row an entry that got an id: when it was first sent, and its receipt."""
    received = publishes(frames).where(f"answer = 'SEND_RECEIPT' and {_IS_ID}")
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
    """One row an entry and subscription: when it was first delivered, how often, when first acknowledged.

    Entries that were only acknowledged have no `delivered_ns`.
    """
    own = F.array(F.struct("ledger_id", "entry_id"))
    said = (
        whole(frames)
        .where("command = 'MESSAGE' or (command = 'ACK' and ack_count > 0)")
        .select(
            *_SUBSCRIPTION,
            *("time_ns", "ack_type", "redelivery_count"),
            messages().alias("delivered_messages"),
            F.inline(F.coalesce("acked", own)),
        )
    )
    is_message = F.col("ack_type").isNull()
    single = said.where("ack_type is null or ack_type = 'Individual'").where(_IS_ID)
    entries = single.groupBy(*_SUBSCRIPTION, "ledger_id", "entry_id").agg(
        F.min(F.when(is_message, F.col("time_ns"))).alias("delivered_ns"),
        F.count(F.when(is_message, 1)).alias("deliveries"),
        F.max("redelivery_count").alias("redelivery_count"),
        F.max("delivered_messages").alias("delivered_messages"),
        F.min(F.when(~is_message, F.col("time_ns"))).alias("single_ns"),
    )
    cumulative = said.where("ack_type = 'Cumulative'").select(
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
    """Each entry's way through each subscription: sent, received, first delivered, acknowledged."""
    sent = _published(tables.frames).alias("sent")
    delivered = _delivered(tables.frames).where("delivered_ns is not null").alias("delivered")
    # where a capture begins amid a connection, its topic is not known
    same_topic = F.expr("coalesce(sent.topic = delivered.topic, true)")
    same_id = [F.col(f"sent.{name}") == F.col(f"delivered.{name}") for name in ("ledger_id", "entry_id")]
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
    """What delivery (SEND to first MESSAGE) and acknowledging (to first ACK) took, by topic and subscription.

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
    """Entries not acknowledged yet, and messages that consumers have still room for, over time.

    All start at 0 where the capture starts: what was there before is not known. Only buckets in which
    something changed have a row.
    """
    width = Options(options.bucket_ns or 1_000_000_000)
    frames = tables.frames
    entries = _delivered(frames)
    published = (
        whole(frames)
        .where(f"command = 'SEND_RECEIPT' and {_IS_ID}")
        .groupBy(*_ID)
        .agg(F.min("time_ns").alias("time_ns"))
        .groupBy("topic", *bucket(width))
        .agg(F.count("*").alias("published"))
    )
    subscriptions = frames.where("subscription is not null").select(*_SUBSCRIPTION).distinct()
    changes = [
        published.join(subscriptions, "topic"),
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
    until = Window.partitionBy(*_SUBSCRIPTION).orderBy("time_ns").rowsBetween(Window.unboundedPreceding, 0)
    return summed.select(
        *("time_ns", *_SUBSCRIPTION, "published", "delivered", "acked"),
        F.sum(F.col("published") - F.col("acked")).over(until).alias("backlog"),
        F.sum(F.col("delivered") - F.col("acked")).over(until).alias("unacked"),
        F.sum("permits").over(until).alias("permits"),
    ).orderBy("time_ns", *_SUBSCRIPTION)


def _counted(entries: DataFrame, time: str, name: str, width: Options) -> DataFrame:
    """How many entries have `time` in each bucket, as column `name`."""
    return entries.groupBy(*_SUBSCRIPTION, *bucket(width, time)).agg(F.count("*").alias(name))


def _permits(frames: DataFrame) -> DataFrame:
    """Changes of the messages that a subscription's consumers have room for.

    FLOW adds, MESSAGE takes; what a consumer had left is gone when it is closed or subscribes anew.
    """
    rows = frames.where("command in ('FLOW', 'MESSAGE', 'SUBSCRIBE', 'CLOSE_CONSUMER')")
    anew = F.col("command").isin("SUBSCRIBE", "CLOSE_CONSUMER")
    consumer = Window.partitionBy("connection", "consumer_id").orderBy(*CAPTURED)
    life = F.count(F.when(anew, 1)).over(consumer.rowsBetween(Window.unboundedPreceding, 0))
    taken = F.when(F.col("command") == "MESSAGE", -F.coalesce("num_messages", F.lit(1)))
    change = F.coalesce("permits", taken.cast("bigint"), F.lit(0))
    one_life = Window.partitionBy("connection", "consumer_id", "life").orderBy(*CAPTURED)
    held = F.sum("change").over(one_life.rowsBetween(Window.unboundedPreceding, 0))
    rows = rows.withColumns({"life": life, "change": change}).withColumn("held", held)
    lost = -F.coalesce(F.lag("held").over(consumer), F.lit(0))
    return rows.select(
        *("time_ns", *_SUBSCRIPTION), F.when(anew, lost).otherwise(F.col("change")).alias("change")
    ).where("subscription is not null")
