"""Everything at once: the totals of a table."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pulsarctl_wire.spark.reports.base import Options, Tables
from pulsarctl_wire.spark.reports.traffic import alike

_NUMBERS: Final = ("frames", "bytes", "published", "delivered", "errors", "bad_checksums")
_KINDS: Final = {"gap": "gaps", "malformed": "malformed"}


def summary(tables: Tables, options: Options) -> DataFrame:
    """One row: how much there is of everything."""
    return totals_of(alike(tables.frames), tables.gaps)


def totals_of(alike: DataFrame, gaps: DataFrame) -> DataFrame:
    """`summary` of what is `alike`, and of gaps."""
    partial = F.col("partial")
    subscription = F.when(F.col("subscription").isNotNull(), F.struct("topic", "subscription"))
    totals = alike.agg(
        F.min("first_ns").alias("first_ns"),
        F.max("last_ns").alias("last_ns"),
        *(_sum(~partial, name).alias(name) for name in _NUMBERS),
        _sum(partial, "frames").alias("partial"),
        *(F.size(F.collect_set(name)).alias(f"{name}s") for name in ("connection", "topic", "producer")),
        F.size(F.collect_set(subscription)).alias("subscriptions"),
    )
    holes = gaps.agg(
        *(F.count_if(F.col("kind") == kind).alias(plural) for kind, plural in _KINDS.items()),
        *(_sum(F.col("kind") == kind, "size").alias(f"{kind}_bytes") for kind in _KINDS),
    )
    return totals.crossJoin(F.broadcast(holes))


def _sum(condition: Column, name: str) -> Column:
    return F.coalesce(F.sum(F.when(condition, F.col(name))), F.lit(0))
