"""How long things took: publishes, other requests, and the slowest of both."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pulsarctl_wire.spark.reports.base import Options, Tables, bucket, percentiles
from pulsarctl_wire.spark.reports.pairing import publishes, requests


def publish_latency(tables: Tables, options: Options) -> DataFrame:
    """From SEND to its SEND_RECEIPT, by topic and producer, and by bucket if one is asked for."""
    return publish_percentiles(publishes(tables.frames), options)


def publish_percentiles(pairs: DataFrame, options: Options) -> DataFrame:
    """`publish_latency` of `publishes`. The bucket is that of the SEND."""
    received = pairs.where("answer = 'SEND_RECEIPT' and latency_ns is not null").select(
        *bucket(options), "topic", "producer", "latency_ns"
    )
    by = [name for name in received.columns if name != "latency_ns"]
    return percentiles(received, by).orderBy(*_first(by))


def _first(by: list[str]) -> list[Column]:
    """Buckets in order of time, within them and without them the largest first."""
    times = ["time_ns"] if "time_ns" in by else []
    return [*map(F.col, times), F.desc("count"), *(F.col(name) for name in by if name != "time_ns")]


def request_latency(tables: Tables, options: Options) -> DataFrame:
    """From a request to its answer, by the request's command. SEND: those answered by SEND_ERROR."""
    failed = publishes(tables.frames).where("answer = 'SEND_ERROR'")
    return request_percentiles(requests(tables.frames).unionByName(failed), options)


def request_percentiles(pairs: DataFrame, options: Options) -> DataFrame:
    """`request_latency` of `requests` and of failed publishes."""
    failed = F.col("error").isNotNull() | F.col("answer").isin("ERROR", "SEND_ERROR")
    timed = pairs.where("latency_ns is not null").select(
        *bucket(options), "command", "latency_ns", failed.alias("failed")
    )
    by = [name for name in timed.columns if name in ("time_ns", "command")]
    return percentiles(timed, by, {"errors": F.count_if("failed")}).orderBy(*_first(by))


def slowest(tables: Tables, options: Options) -> DataFrame:
    """The requests that took longest, publishes among them, and where they are."""
    answered = publishes(tables.frames).unionByName(requests(tables.frames))
    return slowest_of(answered, options)


def slowest_of(pairs: DataFrame, options: Options) -> DataFrame:
    """`slowest` of `publishes` and `requests`."""
    columns = (
        *("latency_ns", "time_ns", "command", "answer", "error", "topic", "subscription", "producer"),
        *("connection", "request_id", "producer_id", "sequence_id", "bytes", "messages"),
        *("ledger_id", "entry_id", "file", "packet_offset"),
    )
    longest = [F.desc("latency_ns"), *map(F.col, ("time_ns", "connection", "packet_offset"))]
    known = [name for name in columns if name in pairs.columns]
    return pairs.where("latency_ns is not null").select(*known).orderBy(*longest).limit(options.top or 20)
