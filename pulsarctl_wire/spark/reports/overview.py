"""Collects everything that the summary shows: the only module of the reports that runs Spark jobs."""

from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pulsarctl_wire.spark.reports.base import Options, Tables, bucket, percentiles, whole
from pulsarctl_wire.spark.reports.latency import (
    exchanges,
    publish_percentiles,
    request_percentiles,
    slowest_of,
)
from pulsarctl_wire.spark.reports.traffic import (
    IS_ERROR,
    alike,
    checksums,
    connections,
    errors,
    gaps,
    topics_of,
    totals_of,
)

Rows = list[dict[str, Any]]
"""Rows of a report: column name -> value."""

BUCKETS: Final = 120
"""The most time buckets of a plot."""
BINS: Final = 10
"""Bins of the heat map for each power of ten of latency."""
SERIES: Final = 10
"""Topics with a series of their own; all others share one."""
LINES: Final = 60
"""The most connections of the timeline."""

WIDTHS: Final[list[int]] = [
    *(step * 10**power for power in range(3, 9) for step in (1, 2, 5)),
    *(seconds * 10**9 for seconds in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600)),
    *(hours * 3600 * 10**9 for hours in (2, 3, 6, 12, 24)),
]
"""Round spans of time, in ns."""


@dataclass
class Overview:
    """The contents of the summary: rows of the reports of the same names, without buckets."""

    totals: dict[str, Any]
    bucket_ns: int
    """Width of the buckets of all series."""
    topics: Rows = field(default_factory=list)
    publish_latency: Rows = field(default_factory=list)
    publish_over_time: Rows = field(default_factory=list)
    heat: Rows = field(default_factory=list)
    """`count` of publishes by `time_ns` and `bin`: their latency is at least 10 ** (bin / BINS) ns."""
    request_latency: Rows = field(default_factory=list)
    slowest: Rows = field(default_factory=list)
    throughput: Rows = field(default_factory=list)
    """Bytes by `time_ns` and `topic` (null: all others)."""
    errors: Rows = field(default_factory=list)
    errors_over_time: Rows = field(default_factory=list)
    connections: Rows = field(default_factory=list)
    checksums: Rows = field(default_factory=list)
    gaps: Rows = field(default_factory=list)


def bucket_width(span_ns: int) -> int:
    """A round width in ns that gives at most `BUCKETS` buckets for a span of time."""
    enough = (width for width in WIDTHS if span_ns < width * BUCKETS)
    return next(enough, -(-span_ns // (WIDTHS[-1] * BUCKETS)) * WIDTHS[-1])


def collect(tables: Tables, options: Options, *, plots: bool = True) -> Overview:
    """Run all jobs. `plots`: also those for plots."""
    top = options.top or 10
    span = tables.frames.agg(F.min("time_ns"), F.max("time_ns")).collect()[0]
    width = options.bucket_ns or bucket_width(span[1] - span[0] if span[0] is not None else 0)
    cells = alike(tables.frames, *bucket(Options(width))).persist()
    try:
        overview = Overview(rows_of(totals_of(cells, tables.gaps))[0], width)
        overview.topics = rows_of(topics_of(cells), top)
        if plots:
            overview.throughput = rows_of(_by_topic(cells, overview.topics))
    finally:
        cells.unpersist()
    answered = exchanges(tables.frames).persist()
    try:
        _add_publishes(overview, answered.where("answer = 'SEND_RECEIPT'"), top, plots)
        overview.request_latency = rows_of(request_percentiles(answered, Options()))
        overview.slowest = rows_of(slowest_of(answered, Options(top=top)))
    finally:
        answered.unpersist()
    totals = overview.totals  # skip reports that would be empty
    if totals["errors"]:
        overview.errors = rows_of(errors(tables, options), top)
    if totals["bad_checksums"]:
        overview.checksums = rows_of(checksums(tables, options), top)
    if totals["gaps"] or totals["malformed"]:
        overview.gaps = rows_of(gaps(tables, options), top)
    if plots and totals["errors"]:
        wrong = whole(tables.frames).where(f"time_ns is not null and {IS_ERROR}")
        counted = wrong.groupBy(*bucket(Options(width)), "error").count()
        overview.errors_over_time = rows_of(counted.orderBy("time_ns", "error"))
    if plots:
        longest = connections(tables, options).orderBy(
            F.desc(F.col("bytes_to_broker") + F.col("bytes_from_broker"))
        )
        overview.connections = sorted(
            rows_of(longest, LINES), key=lambda row: (row["first_ns"] or 0, row["connection"])
        )
    return overview


def rows_of(table: DataFrame, most: int | None = None) -> Rows:
    """The rows of a report, or the first of them."""
    return [row.asDict(recursive=True) for row in (table if most is None else table.limit(most)).collect()]


def _add_publishes(overview: Overview, received: DataFrame, top: int, plots: bool) -> None:
    # only for rows that are shown: percentiles of thousands of producers would take seconds
    largest = rows_of(received.groupBy("topic", "producer").count().orderBy(F.desc("count"), "topic"), top)
    names = {row["topic"] for row in largest}
    chosen = F.col("topic").isin(sorted(names - {None})) | (F.col("topic").isNull() & (None in names))
    overview.publish_latency = rows_of(publish_percentiles(received.where(chosen), Options()), top)
    if not plots:
        return
    timed = received.where("latency_ns is not null").select(
        *bucket(Options(overview.bucket_ns)), "latency_ns"
    )
    overview.publish_over_time = rows_of(percentiles(timed, ["time_ns"]).orderBy("time_ns"))
    power = F.floor(F.log10(F.greatest("latency_ns", F.lit(1))) * BINS).alias("bin")
    overview.heat = rows_of(timed.groupBy("time_ns", power).count())


def _by_topic(cells: DataFrame, largest: Rows) -> DataFrame:
    names = [row["topic"] for row in largest[:SERIES]]
    topic = F.when(F.col("topic").isin(names), F.col("topic")).alias("topic")
    about = whole(cells).where("topic is not null and time_ns is not null")
    return about.groupBy("time_ns", topic).agg(F.sum("bytes").alias("bytes")).orderBy("time_ns", "topic")
