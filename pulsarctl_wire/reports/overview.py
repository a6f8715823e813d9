"""Collects everything that the summary shows. Unlike other reports, it runs its queries itself."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pulsarctl_wire.reports import latency, traffic
from pulsarctl_wire.reports.engine import Engine, Row
from pulsarctl_wire.reports.sql import Options, bucket, literal, percentiles
from pulsarctl_wire.reports.views import IS_ERROR, VIEWS, cells

BUCKETS: Final = 120
"""Maximum number of time buckets of a plot."""
BINS: Final = 10
"""Bins of the heat map for each power of ten of latency."""
SERIES: Final = 10
"""Topics with a series of their own; all others share one."""
LINES: Final = 60
"""Maximum number of connections of the timeline."""

WIDTHS: Final[list[int]] = [
    *(step * 10**power for power in range(3, 9) for step in (1, 2, 5)),
    *(seconds * 10**9 for seconds in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600)),
    *(hours * 3600 * 10**9 for hours in (2, 3, 6, 12, 24)),
]
"""Round spans of time, in ns."""

_TIMED: Final = "time_ns, command, answer, latency_ns, error, topic, producer"
"""The columns of `answered` that statistics of latency read."""


@dataclass
class Overview:
    """The contents of the summary: rows of the reports of the same names, without buckets."""

    totals: dict[str, Any]
    bucket_ns: int
    """Width of the buckets of all series."""
    topics: list[Row] = field(default_factory=list)
    publish_latency: list[Row] = field(default_factory=list)
    publish_over_time: list[Row] = field(default_factory=list)
    heat: list[Row] = field(default_factory=list)
    """`count` of publishes by `time_ns` and `bin`: their latency is at least 10 ** (bin / BINS) ns."""
    request_latency: list[Row] = field(default_factory=list)
    slowest: list[Row] = field(default_factory=list)
    throughput: list[Row] = field(default_factory=list)
    """Bytes by `time_ns` and `topic` (null: all others)."""
    errors: list[Row] = field(default_factory=list)
    errors_over_time: list[Row] = field(default_factory=list)
    connections: list[Row] = field(default_factory=list)
    checksums: list[Row] = field(default_factory=list)
    gaps: list[Row] = field(default_factory=list)


def bucket_width(span_ns: int) -> int:
    """Return a round width in ns that gives about `BUCKETS` buckets for a span of time, or fewer."""
    widths = (width for width in WIDTHS if span_ns < width * BUCKETS)
    return next(widths, -(-span_ns // (WIDTHS[-1] * BUCKETS)) * WIDTHS[-1])


def collect(engine: Engine, options: Options, *, plots: bool = True) -> Overview:
    """Run the queries of the summary, with `plots` also those of its plots; return their rows."""
    top, defaults = options.top or 10, Options()
    span = engine.rows("SELECT min(time_ns) AS first_ns, max(time_ns) AS last_ns FROM frames")[0]
    width = options.bucket_ns or bucket_width((span["last_ns"] or 0) - (span["first_ns"] or 0))
    engine.keep("cells", cells(bucket(width)))
    # before `answered` loses the columns that only this reads
    slowest = engine.rows(latency.slowest(Options(top=top)))
    engine.keep("answered", f"SELECT {_TIMED} FROM ({VIEWS['answered']}) a")
    totals = engine.rows(traffic.summary(defaults))[0]
    overview = Overview(totals, width, slowest=slowest)
    overview.topics = engine.rows(traffic.topics(defaults), top)
    _add_publishes(overview, engine, top, plots)
    overview.request_latency = engine.rows(latency.request_latency(defaults))
    # skip reports that would be empty
    if totals["errors"]:
        overview.errors = engine.rows(traffic.errors(defaults), top)
    if totals["bad_checksums"]:
        overview.checksums = engine.rows(traffic.checksums(defaults), top)
    if totals["gaps"] or totals["malformed"]:
        overview.gaps = engine.rows(traffic.gaps(defaults), top)
    if not plots:
        return overview
    if totals["errors"]:
        overview.errors_over_time = engine.rows(
            f"SELECT {bucket(width)} AS time_ns, error, count(*) AS count FROM whole "
            f"WHERE time_ns IS NOT NULL AND {IS_ERROR} GROUP BY 1, 2 ORDER BY 1, 2"
        )
    overview.throughput = engine.rows(_by_topic([row["topic"] for row in overview.topics[:SERIES]]))
    largest = (
        f"SELECT * FROM ({traffic.connections(defaults)}) ORDER BY bytes_to_broker + bytes_from_broker DESC"
    )
    overview.connections = sorted(
        engine.rows(largest, LINES), key=lambda row: (row["first_ns"] or 0, row["connection"])
    )
    return overview


def _add_publishes(overview: Overview, engine: Engine, top: int, plots: bool) -> None:
    # only for rows that are shown: percentiles of thousands of producers would take seconds
    largest = engine.rows(
        "SELECT topic, producer, count(*) AS count FROM publishes GROUP BY 1, 2 ORDER BY count DESC, topic",
        top,
    )
    names = _listed([row["topic"] for row in largest])
    source = f"{latency.PUBLISHES} AND coalesce(topic, '') IN ({names})"
    overview.publish_latency = engine.rows(latency.publish_latency(Options(), source), top)
    if not plots:
        return
    timed = f"{latency.PUBLISHES} AND time_ns IS NOT NULL"
    start = bucket(overview.bucket_ns)
    overview.publish_over_time = engine.rows(percentiles(timed, {"time_ns": start}, order="time_ns"))
    overview.heat = engine.rows(
        f"SELECT {start} AS time_ns, CAST(floor(log10(greatest(latency_ns, 1)) * {BINS}) AS INT) AS bin, "
        f"count(*) AS count FROM {timed} GROUP BY 1, 2 ORDER BY 1, 2"
    )


def _by_topic(largest: list[str]) -> str:
    return f"""
        SELECT time_ns, CASE WHEN topic IN ({_listed(largest)}) THEN topic END AS topic, sum(bytes) AS bytes
        FROM cells WHERE NOT partial AND topic IS NOT NULL AND time_ns IS NOT NULL GROUP BY 1, 2
            ORDER BY 1, 2"""


def _listed(names: Sequence[str | None]) -> str:
    """Return names as a list in SQL; the empty text stands for null, and for no names."""
    return ", ".join(literal(name or "") for name in names or [None])
