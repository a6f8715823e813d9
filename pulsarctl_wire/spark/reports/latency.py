"""Reports latencies of publishes and other requests, and the slowest of both, from the rows of answers."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pulsarctl_wire.spark.reports.base import Options, Tables, bucket, percentiles

_SAME = ("connection", "topic", "subscription", "producer", "request_id", "producer_id", "sequence_id")
_OF_ANSWER = ("latency_ns", "messages", "error", "ledger_id", "entry_id", "file", "packet_offset")


def exchanges(frames: DataFrame, *also: str) -> DataFrame:
    """A row per answer whose request was seen; `also` are more columns of the answer.

    `time_ns` and `command` are the request's, `answered_ns` and `answer` the answer's; `bytes` and `messages`
    are those of the SEND, if it is one.
    """
    return frames.where("answers is not null").select(
        (F.col("time_ns") - F.col("latency_ns")).alias("time_ns"),
        F.col("answers").alias("command"),
        *_SAME,
        F.col("sent_size").alias("bytes"),
        F.col("time_ns").alias("answered_ns"),
        F.col("command").alias("answer"),
        *_OF_ANSWER,
        *also,
    )


def publishes(frames: DataFrame, *also: str) -> DataFrame:
    """The exchanges that are publishes: a SEND with its SEND_RECEIPT."""
    return exchanges(frames, *also).where("answer = 'SEND_RECEIPT'")


def publish_latency(tables: Tables, options: Options) -> DataFrame:
    """From SEND to its SEND_RECEIPT, by topic and producer, and by bucket if given."""
    return publish_percentiles(publishes(tables.frames), options)


def publish_percentiles(received: DataFrame, options: Options) -> DataFrame:
    """`publish_latency`, from `publishes`. The bucket is that of the SEND."""
    timed = received.where("latency_ns is not null").select(
        *bucket(options), "topic", "producer", "latency_ns"
    )
    by = [name for name in timed.columns if name != "latency_ns"]
    return percentiles(timed, by).orderBy(*_first(by))


def _first(by: list[str]) -> list[Column]:
    """The order: by bucket, if any, then the largest count first."""
    times = ["time_ns"] if "time_ns" in by else []
    return [*map(F.col, times), F.desc("count"), *(F.col(name) for name in by if name != "time_ns")]


def request_latency(tables: Tables, options: Options) -> DataFrame:
    """From a request to its answer, by the request's command. For SEND only those answered by SEND_ERROR."""
    return request_percentiles(exchanges(tables.frames), options)


def request_percentiles(answered: DataFrame, options: Options) -> DataFrame:
    """`request_latency`, from `exchanges`."""
    failed = F.col("error").isNotNull() | F.col("answer").isin("ERROR", "SEND_ERROR")
    requests = answered.where("latency_ns is not null and answer <> 'SEND_RECEIPT'")
    timed = requests.select(*bucket(options), "command", "latency_ns", failed.alias("failed"))
    by = [name for name in timed.columns if name in ("time_ns", "command")]
    return percentiles(timed, by, {"errors": F.count_if("failed")}).orderBy(*_first(by))


def slowest(tables: Tables, options: Options) -> DataFrame:
    """The requests and publishes that took longest, and where their answers are."""
    return slowest_of(exchanges(tables.frames), options)


def slowest_of(answered: DataFrame, options: Options) -> DataFrame:
    """`slowest`, from `exchanges`."""
    columns = (
        *("latency_ns", "time_ns", "command", "answer", "error", "topic", "subscription", "producer"),
        *("connection", "request_id", "producer_id", "sequence_id", "bytes", "messages"),
        *("ledger_id", "entry_id", "file", "packet_offset"),
    )
    longest = [F.desc("latency_ns"), *map(F.col, ("time_ns", "connection", "packet_offset"))]
    known = [name for name in columns if name in answered.columns]
    return answered.where("latency_ns is not null").select(*known).orderBy(*longest).limit(options.top or 20)
