"""Common parts of all reports: their input, their options, the order of frames, time buckets, percentiles."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pulsarctl_wire.wire.names import full_topic


class Tables(NamedTuple):
    """A frames table and its gaps table.

    `lacks` names the columns that some or all of their files do not have, such as `error`,
    `metadata.key_hash`, `gaps.size`. They are null there.
    """

    frames: DataFrame
    gaps: DataFrame
    lacks: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Options:
    """Options of a report. None: the report's default."""

    bucket_ns: int | None = None
    """Width of a time bucket in ns; buckets are counted from the epoch."""
    top: int | None = None
    """The maximum number of rows, for reports that are sorted by size."""


CAPTURED: Final = ("time_ns", "packet_offset", "stream_offset")
"""Columns that sort the frames of a connection in the order in which they were captured."""

PERCENTILES: Final = {"p50": 500, "p90": 900, "p99": 990, "p999": 999}
"""Name -> rank in thousandths, as in `pwire stats`."""


def whole(frames: DataFrame) -> DataFrame:
    """The frames that were captured completely; the others are counted only in `summary`."""
    return frames.where(~F.col("partial"))


def about(tables: Tables, pattern: str) -> Tables:
    """The frames about one topic: a name in any spelling (with its partitions), or a pattern with * and ?.

    Gaps have no topic; those of the connections that carry the topic are kept.
    """
    topic = F.col("topic")
    if re.search(r"[*?\[]", pattern):
        glob = pattern if "://" in pattern else f"*://*{pattern}"
        chosen = topic.rlike(f"^(?s:{_regex(glob)})$")
    else:
        chosen = topic.rlike(f"^{_quoted(full_topic(pattern))}(-partition-(0|[1-9][0-9]*))?$")
    frames = tables.frames.where(chosen)
    carrying = frames.select("connection").distinct()
    gaps = tables.gaps.join(F.broadcast(carrying), "connection", "left_semi")
    return tables._replace(frames=frames, gaps=gaps)


def _regex(glob: str) -> str:
    """A shell pattern as a Java regular expression."""
    parts = re.split(r"(\*|\?|\[[^\]]+\])", glob)
    special = {"*": ".*", "?": "."}
    return "".join(
        special.get(part) or (part.replace("[!", "[^") if part[:1] == "[" else _quoted(part))
        for part in parts
    )


def _quoted(text: str) -> str:
    return re.sub(r"([^\w/:-])", r"\\\1", text)


def bucket(options: Options, of: str = "time_ns") -> list[Column]:
    """The column `time_ns` with the start of the bucket, or no column if `options` has no bucket."""
    if options.bucket_ns is None:
        return []
    width = F.lit(options.bucket_ns)
    return [(F.col(of) - F.pmod(F.col(of), width)).alias("time_ns")]


def messages() -> Column:
    """Application messages in the entry of a SEND or MESSAGE."""
    return F.coalesce("messages", F.lit(0))


def size() -> Column:
    """Bytes of a frame, including its length prefix."""
    return F.col("total_size") + 4


def percentiles(values: DataFrame, by: Sequence[str], also: Mapping[str, Column] | None = None) -> DataFrame:
    """Exact percentiles of each group's `latency_ns`, by nearest rank: the smallest with enough at or below.

    Nulls are not counted. `also` are more columns: aggregates that can be summed. Equal values are counted
    first, so that fewer rows are sorted.
    """
    value, number = F.col("latency_ns"), F.col("_number")
    also = also or {}
    counts = values.groupBy(*by, value).agg(
        F.count(value).alias("_number"), *(column.alias(name) for name, column in also.items())
    )
    group = Window.partitionBy(*by)
    up_to = F.sum(number).over(group.orderBy(value).rowsBetween(Window.unboundedPreceding, 0))
    ranked = counts.withColumns({"_up_to": up_to, "_all": F.sum(number).over(group)})
    return ranked.groupBy(*by).agg(
        F.max("_all").alias("count"),
        *(
            F.min(F.when(F.col("_up_to") * 1000 >= F.col("_all") * part, value)).alias(f"{name}_ns")
            for name, part in PERCENTILES.items()
        ),
        F.max(value).alias("max_ns"),
        *(F.sum(name).alias(name) for name in also),
    )
