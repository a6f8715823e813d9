"""Reports about traffic: throughput, topics, keys, connections, errors, checksums, gaps."""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pulsarctl_wire.spark.reports.base import CAPTURED, Options, Tables, bucket, messages, size, whole
from pulsarctl_wire.wire.commands import NAMES, REQUESTS

_SENT: Final = "command = 'SEND'"
_DELIVERED: Final = "command = 'MESSAGE'"
_NUMBERS: Final = ("frames", "bytes", "published", "delivered", "errors", "bad_checksums")
_KINDS: Final = {"gap": "gaps", "malformed": "malformed"}

COUNTS: Final = ("frames", "bytes", "published", "delivered", "published_bytes", "delivered_bytes")
"""The columns of `counts`."""


def counts() -> list[Column]:
    """Frames, their bytes, and the messages in them."""
    payload = F.coalesce(F.col("payload_size"), F.lit(0))
    return [
        F.count("*").alias("frames"),
        F.sum(size()).alias("bytes"),
        _sum_if(F.expr(_SENT), messages()).alias("published"),
        _sum_if(F.expr(_DELIVERED), messages()).alias("delivered"),
        _sum_if(F.expr(_SENT), payload).alias("published_bytes"),
        _sum_if(F.expr(_DELIVERED), payload).alias("delivered_bytes"),
    ]


def _sum_if(condition: Column, value: Column) -> Column:
    return F.coalesce(F.sum(F.when(condition, value)), F.lit(0))


def throughput(tables: Tables, options: Options) -> DataFrame:
    """Frames, bytes and messages of each topic, by second or by the given bucket."""
    width = options.bucket_ns or 1_000_000_000
    rate = F.lit(1e9 / width)
    by_topic = (
        whole(tables.frames)
        .where("topic is not null and time_ns is not null")
        .groupBy(*bucket(Options(width)), "topic")
        .agg(*counts())
    )
    per_second = {f"{name}_per_s": F.col(name) * rate for name in ("bytes", "published", "delivered")}
    return by_topic.withColumns(per_second).orderBy("time_ns", F.desc("bytes"), "topic")


def topics(tables: Tables, options: Options) -> DataFrame:
    """Topics by bytes, with the numbers of their producers, subscriptions and errors."""
    return topics_of(alike(tables.frames))


def alike(frames: DataFrame, *more: Column) -> DataFrame:
    """Counts for each group of frames with the same connection, topic, subscription, producer (and `more`).

    Each group has only numbers, so that reports computed from the groups cost little.
    """
    producer = F.when(F.expr(_SENT), F.col("metadata.producer_name"))
    return frames.groupBy(
        "partial", "connection", "topic", "subscription", producer.alias("producer"), *more
    ).agg(
        *counts(),
        F.count_if(F.expr(IS_ERROR)).alias("errors"),
        F.count_if(~F.col("checksum_valid")).alias("bad_checksums"),
        F.min("time_ns").alias("first_ns"),
        F.max("time_ns").alias("last_ns"),
    )


def summary(tables: Tables, options: Options) -> DataFrame:
    """One row with the totals of everything."""
    return totals_of(alike(tables.frames), tables.gaps)


def totals_of(alike: DataFrame, gaps: DataFrame) -> DataFrame:
    """`summary`, from the groups of `alike` and from gaps."""
    partial = F.col("partial")
    subscription = F.when(F.col("subscription").isNotNull(), F.struct("topic", "subscription"))
    totals = alike.agg(
        F.min("first_ns").alias("first_ns"),
        F.max("last_ns").alias("last_ns"),
        *(_sum_if(~partial, F.col(name)).alias(name) for name in _NUMBERS),
        _sum_if(partial, F.col("frames")).alias("partial"),
        *(F.size(F.collect_set(name)).alias(f"{name}s") for name in ("connection", "topic", "producer")),
        F.size(F.collect_set(subscription)).alias("subscriptions"),
    )
    holes = gaps.agg(
        *(F.count_if(F.col("kind") == kind).alias(plural) for kind, plural in _KINDS.items()),
        *(_sum_if(F.col("kind") == kind, F.col("size")).alias(f"{kind}_bytes") for kind in _KINDS),
    )
    return totals.crossJoin(F.broadcast(holes))


def topics_of(alike: DataFrame) -> DataFrame:
    """`topics`, from the groups of `alike`."""
    complete = whole(alike)
    by_topic = (
        complete.where("topic is not null")
        .groupBy("topic")
        .agg(
            *(F.sum(name).alias(name) for name in (*COUNTS, "errors", "bad_checksums")),
            F.size(F.collect_set("producer")).alias("producers"),
            F.size(F.collect_set("subscription")).alias("subscriptions"),
        )
    )
    all_bytes = complete.agg(F.sum("bytes").alias("all_bytes"))
    share = (F.col("bytes") / F.col("all_bytes")).alias("share")
    ranked = by_topic.crossJoin(F.broadcast(all_bytes))
    first, *rest = by_topic.columns
    return ranked.select(first, share, *rest).orderBy(F.desc("bytes"), "topic")


def hot_keys(tables: Tables, options: Options) -> DataFrame:
    """The most frequent keys of each topic, by their hash, as Key_Shared subscriptions see them."""
    topic = Window.partitionBy("topic")
    keyed = whole(tables.frames).where(f"{_SENT} and metadata.key_hash is not null")
    by_key = keyed.groupBy("topic", F.col("metadata.key_hash").alias("key_hash")).agg(
        F.sum(messages()).alias("messages"),
        F.sum("payload_size").alias("bytes"),
        F.size(F.collect_set("metadata.producer_name")).alias("producers"),
    )
    share = F.col("messages") / F.sum("messages").over(topic)
    return by_key.withColumn("share", share).orderBy(F.desc("messages"), "topic", "key_hash")


IS_ERROR: Final = "(error is not null or command in ('ERROR', 'SEND_ERROR'))"
"""Whether a frame reports an error."""


def errors(tables: Tables, options: Options) -> DataFrame:
    """Errors that brokers report, by code, command, topic and client."""
    client = F.when(F.col("to_broker"), F.col("src_ip")).otherwise(F.col("dst_ip"))
    found = whole(tables.frames).where(IS_ERROR)
    return (
        found.groupBy("error", "command", "topic", client.alias("client"))
        .agg(
            F.count("*").alias("count"),
            F.size(F.collect_set("connection")).alias("connections"),
            F.min("time_ns").alias("first_ns"),
            F.max("time_ns").alias("last_ns"),
            F.max(F.get_json_object("command_json", "$.message")).alias("example"),
        )
        .orderBy(F.desc("count"), "error", "command", "topic", "client")
    )


def checksums(tables: Tables, options: Options) -> DataFrame:
    """SEND and MESSAGE frames whose checksum is wrong."""
    return (
        whole(tables.frames)
        .where("checksum_valid = false")
        .select(
            *("time_ns", "command", "topic", "subscription", "connection"),
            *(address("src").alias("src"), address("dst").alias("dst")),
            *("producer_id", "consumer_id", "sequence_id", "ledger_id", "entry_id"),
            *(size().alias("bytes"), "file", "packet_offset", "stream_offset"),
        )
        .orderBy(*CAPTURED)
    )


def gaps(tables: Tables, options: Options) -> DataFrame:
    """Stretches that were never captured, or are not frames."""
    order = ("time_ns", "file", "packet_offset", "stream_offset")
    return tables.gaps.select(
        *("time_ns", "kind", "size", "reason", "connection", "to_broker"),
        *(address("src").alias("src"), address("dst").alias("dst")),
        *("file", "packet_offset", "stream_offset"),
    ).orderBy(*order)


def connections(tables: Tables, options: Options) -> DataFrame:
    """TCP connections: client, server, duration, amounts, and how they ended, by their frames."""
    holes = tables.gaps.groupBy("connection").agg(
        F.count("*").alias("gaps"), F.sum("size").alias("gap_bytes")
    )
    return (
        _seen(tables.frames)
        .withColumns(
            {
                "client": F.coalesce("client", "_client"),
                "server": F.coalesce("_server", "server"),
                "life_ns": F.col("last_ns") - F.col("first_ns"),
                "ended": _ended(),
            }
        )
        .join(holes, "connection", "left")
        .fillna(0, ["gaps", "gap_bytes"])
        .select(
            *("connection", "client", "server", "client_version", "server_version", "first_ns", "last_ns"),
            *("life_ns", "frames_to_broker", "frames_from_broker", "bytes_to_broker", "bytes_from_broker"),
            *("published", "delivered", "errors", "gaps", "gap_bytes", "last_command", "ended"),
        )
        .orderBy("first_ns", "connection")
    )


def _seen(frames: DataFrame) -> DataFrame:
    """What the frames of each connection show."""
    to_broker, command = F.col("to_broker"), F.col("command")
    version = F.when(command == "CONNECT", F.get_json_object("command_json", "$.client_version")).when(
        command == "CONNECTED", F.get_json_object("command_json", "$.server_version")
    )
    ends = ("src_ip", "src_port", "dst_ip", "dst_port")
    # first group equal frames, with only numbers for each: then texts cost little
    alike = (
        whole(frames)
        .groupBy("connection", "to_broker", "command", version.alias("version"), *ends)
        .agg(
            *counts()[:4],
            F.count_if(F.expr(IS_ERROR)).alias("errors"),
            *(F.max(name).alias(f"last_{name}") for name in CAPTURED),
            F.min("time_ns").alias("first_ns"),
        )
        .withColumn("keeps_alive", command.isin("PING", "PONG"))
    )
    last = F.struct("last_time_ns", "last_packet_offset", "last_stream_offset")
    place = F.when(~F.col("keeps_alive"), last)
    one_way = {"to_broker": to_broker, "from_broker": ~to_broker}
    return alike.groupBy("connection").agg(
        F.max(F.when(to_broker, address("src"))).alias("client"),
        F.max(F.when(to_broker, address("dst"))).alias("_server"),
        F.max(F.when(~to_broker, address("dst"))).alias("_client"),
        F.max(F.when(~to_broker, address("src"))).alias("server"),
        F.max(F.when(command == "CONNECT", F.col("version"))).alias("client_version"),
        F.max(F.when(command == "CONNECTED", F.col("version"))).alias("server_version"),
        F.min("first_ns").alias("first_ns"),
        F.max("last_time_ns").alias("last_ns"),
        *(
            F.sum(F.when(way, F.col(name)).otherwise(0)).alias(f"{name}_{side}")
            for side, way in one_way.items()
            for name in ("frames", "bytes")
        ),
        *(F.sum(name).alias(name) for name in ("published", "delivered", "errors")),
        F.max_by("command", place).alias("last_command"),
        F.max_by("command", F.when(to_broker, place)).alias("last_request"),
        F.max(command == "CONNECTED").alias("connected"),
    )


_CLOSING: Final = ("CLOSE_PRODUCER", "CLOSE_CONSUMER", "UNSUBSCRIBE")


def _ended() -> Column:
    """How a connection ended, from its last frames other than PING and PONG; see docs/reports.md."""
    last, asked = F.col("last_command"), F.col("last_request")
    waits = [*(NAMES[number] for number in REQUESTS if number != _ACK), "SEND", "CONNECT", "AUTH_RESPONSE"]
    return (
        F.when((last == "ERROR") & ~F.col("connected"), "refused")
        .when(last.isin("ERROR", "SEND_ERROR"), "error")
        .when((last == "SUCCESS") & asked.isin(*_CLOSING), "closed")
        .when((last == asked) & last.isin(waits), "unanswered")
        .otherwise("open")
    )


_ACK: Final = 10  # most clients do not request an answer to it


def address(end: str) -> Column:
    """The address of a frame's "src" or "dst": 10.0.0.7:43118, [::1]:6650; null if it has none."""
    host, port = F.col(f"{end}_ip"), F.col(f"{end}_port")
    return F.when(host.contains(":"), F.concat(F.lit("["), host, F.lit("]:"), port)).otherwise(
        F.concat(host, F.lit(":"), port)
    )
