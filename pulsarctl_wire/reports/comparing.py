"""Compares two tables, or two windows of time of one; and a window with what is usual on other days."""

from typing import Final

from pulsarctl_wire.errors import QueryError
from pulsarctl_wire.reports.latency import PUBLISHES, REQUESTS
from pulsarctl_wire.reports.sql import DAY, HOUR, Options, Window, bucket, percentiles
from pulsarctl_wire.reports.views import COUNTS, IS_ERROR, text_of

MIN_TIMED: Final = {"p99": 100, "p50": 20}
"""Latencies that a percentile needs before a difference in it is clear."""
_SIGMAS: Final = 3
"""How many standard deviations of a count (its square root) chance explains."""
_CHANGE: Final = 0.1
"""The least change of a latency that is clear, as a share of the earlier one."""


def compare(options: Options) -> str:
    """Select what differs between the first table and the others, or two windows.

    Of each kind, clear differences come first. Counts are clear if they differ by more than chance, latencies
    if there are enough of them, and they differ by a share of `_CHANGE` or more.
    """
    window, scale = options.window, 1.0
    if window:
        against = options.against or Window(2 * window.since - window.until, window.since)
        side_sql = f"CASE WHEN {window.has()} THEN 'after' WHEN {against.has()} THEN 'before' END"
        scale = (window.until - window.since) / (against.until - against.since)
    else:
        side_sql = f"CASE WHEN connection < {options.first} THEN 'before' ELSE 'after' END"
    count_sources = {
        "topic": f"SELECT topic AS name, {side_sql} AS side FROM whole WHERE topic IS NOT NULL",
        "error": f"SELECT error AS name, {side_sql} AS side FROM whole WHERE {IS_ERROR}",
        "client": f"""
            SELECT {text_of("client_version")} AS name, {side_sql} AS side
            FROM whole WHERE command = 'CONNECT'""",
    }
    latency_sources = {
        "publish p99_ns": ("topic", PUBLISHES),
        "request p99_ns": ("command", REQUESTS),
    }
    rows = [
        f"""SELECT '{kind}' AS kind, name, side, count(*) AS value, CAST(NULL AS BIGINT) AS number
        FROM ({sql}) {kind}s GROUP BY 2, 3"""
        for kind, sql in count_sources.items()
    ] + [
        f"SELECT '{kind}' AS kind, name, side, p99_ns AS value, count AS number "
        f"FROM ({percentiles(source, {'name': name, 'side': side_sql}, order='name')}) timed"
        for kind, (name, source) in latency_sources.items()
    ]
    sides = ", ".join(
        f"sum(CASE WHEN side = '{side}' THEN {column} END) AS {side}{ending}"
        for column, ending in (("value", ""), ("number", "_count"))
        for side in ("before", "after")
    )
    is_timed = "kind LIKE '%_ns'"
    expected = f"before * CASE WHEN {is_timed} THEN 1.0 ELSE {scale:.17e} END"
    noise = f"{_SIGMAS} * sqrt(coalesce(after, 0) + coalesce(before, 0) * {scale * scale:.17e})"
    return f"""
        SELECT kind, name, before, after, change, before_count, after_count,
            CASE WHEN {is_timed} THEN
                coalesce(least(before_count, after_count) >= {MIN_TIMED["p99"]} AND abs(change) >= {_CHANGE},
                    false)
            ELSE abs(coalesce(after, 0) - coalesce(expected, 0)) > {noise} END AS clear
        FROM (
            SELECT *, CASE WHEN before > 0 THEN (after - expected) / expected END AS change FROM (
                SELECT *, {expected} AS expected FROM (
                    SELECT kind, name, {sides} FROM ({" UNION ALL ".join(rows)}) sides
                    WHERE side IS NOT NULL GROUP BY kind, name
                ) both_sides
            ) scaled
        ) changed
        WHERE expected IS DISTINCT FROM CAST(after AS DOUBLE)
        ORDER BY kind, clear DESC,
            CASE WHEN before IS NULL OR after IS NULL THEN 0 ELSE 1 END,
            abs(coalesce(change, 0)) DESC, name"""


_COUNTED: Final = {"published": 10, "delivered": 10, "bytes": 10_000, "errors": 3}
"""Measure -> what is added to both sides of a quotient, so that small numbers do not stand out."""
_TIMED: Final = ("p50", "p99")
_TIMED_ADDED: Final = 1_000_000  # ns: the same for latencies
_DAYS: Final = 3
"""The fewer days a baseline has, the more a value must differ: by a factor of 1 + `_DAYS` / days."""


def unusual(options: Options) -> str:
    """Select what is unusual at this time of day, by topic and hour, the largest factor first.

    Each bucket that lies wholly in the window is compared with those of other days at the same time. Without
    `options.against`, the first and the last bucket of the table are no part of the baseline, as they may be
    incomplete. Raises QueryError without a window, and if a day is no multiple of the bucket.
    """
    if options.window is None:
        raise QueryError("report unusual: name the time to look at: --window FROM..TO")
    width = options.bucket_ns or HOUR
    if DAY % width:
        raise QueryError("report unusual: a day must be a multiple of the bucket")
    added_sql = " ".join(f"WHEN '{name}' THEN {added}" for name, added in _COUNTED.items())
    columns = "topic, slot, measure"
    noise = f"{_SIGMAS} * sqrt(CASE WHEN value > high THEN high ELSE low END + 1)"
    return f"""
        WITH {_measured(options.window, options.against, width)},
        placed AS (SELECT m.*, slot, role, at_edge FROM measured m JOIN buckets b ON m.start_ns = b.start_ns),
        baseline AS (
            SELECT {columns}, max(days) AS days, min(CASE WHEN place * 20 >= days THEN value END) AS low,
                min(CASE WHEN place * 2 >= days THEN value END) AS middle,
                min(CASE WHEN place * 20 >= days * 19 THEN value END) AS high
            FROM (
                SELECT {columns}, value, count(*) OVER (PARTITION BY {columns}) AS days,
                    row_number() OVER (PARTITION BY {columns} ORDER BY value) AS place
                FROM placed WHERE role = 'usual'
            ) ranked GROUP BY {columns}
        ),
        compared AS (
            SELECT *, greatest((value + added) / (high + added),
                (low + added) / (value + added)) AS factor
            FROM (
                SELECT p.start_ns, p.topic, p.measure, value, low, middle, high, days, count, at_edge,
                    CASE p.measure {added_sql} ELSE {_TIMED_ADDED} END AS added
                FROM placed p JOIN baseline b
                    ON p.topic = b.topic AND p.slot = b.slot AND p.measure = b.measure
                WHERE role = 'now'
            ) beside
        )
        SELECT * FROM (
            SELECT start_ns AS time_ns, topic, measure, value, low, middle, high, factor, days, count
            FROM compared
            WHERE factor > 1 + {_DAYS} / days AND (value > high OR (value < low AND NOT at_edge))
                AND (measure NOT IN ('published', 'delivered', 'errors')
                    OR abs(value - CASE WHEN value > high THEN high ELSE low END) > {noise})
            UNION ALL SELECT start_ns, NULL, 'no baseline', NULL, NULL, NULL, NULL, NULL, 0, NULL FROM buckets
            WHERE role = 'now' AND slot NOT IN (SELECT slot FROM buckets WHERE role = 'usual')
        ) unusual
        ORDER BY CASE WHEN factor IS NULL THEN 1 ELSE 0 END, factor DESC, time_ns, topic, measure"""


def _measured(window: Window, against: Window | None, width: int) -> str:
    """Return views for WITH: the `buckets` of window and baseline, and what is `measured` in each."""
    bounds = "start_ns >= {0.since} AND start_ns + {1} <= {0.until}"
    inside = bounds.format(window, width)
    outside = f"(start_ns + {width} <= {window.since} OR start_ns >= {window.until})"
    is_usual = f"{outside} AND {bounds.format(against, width) if against else 'NOT at_edge'}"
    start = bucket(width)
    counts = ", ".join(f"{COUNTS[name]} AS {name}" for name in _COUNTED)
    values = " ".join(f"WHEN '{name}' THEN coalesce(c.{name}, 0)" for name in _COUNTED)
    latencies = " UNION ALL ".join(
        f"SELECT topic, start_ns, '{name}_ns' AS measure, {name}_ns AS value, count FROM timed "
        f"WHERE count >= {MIN_TIMED[name]}"
        for name in _TIMED
    )
    return f"""
        counts AS (
            SELECT topic, {start} AS start_ns, {counts}
            FROM whole WHERE topic IS NOT NULL AND time_ns IS NOT NULL GROUP BY 1, 2
        ),
        timed AS (
            SELECT start_ns, topic, p50_ns, p99_ns, count
            FROM ({percentiles(PUBLISHES, {"start_ns": start, "topic": "topic"}, order="topic")}) p
            WHERE topic IS NOT NULL
        ),
        starts AS (SELECT DISTINCT {start} AS start_ns FROM frames WHERE time_ns IS NOT NULL),
        buckets AS (
            SELECT *, pmod(start_ns, {DAY}) AS slot,
                CASE WHEN {inside} THEN 'now' WHEN {is_usual} THEN 'usual' END AS role
            FROM (
                SELECT start_ns, start_ns = first_ns OR start_ns = last_ns AS at_edge FROM starts
                    CROSS JOIN (SELECT min(start_ns) AS first_ns, max(start_ns) AS last_ns FROM starts) ends
            ) placed
        ),
        measured AS (
            SELECT t.topic, b.start_ns, measure, CASE measure {values} END AS value,
                CAST(NULL AS BIGINT) AS count
            FROM (SELECT DISTINCT topic FROM counts) t CROSS JOIN buckets b
                CROSS JOIN (VALUES {", ".join(f"('{name}')" for name in _COUNTED)}) AS measures(measure)
                LEFT JOIN counts c ON c.topic = t.topic AND c.start_ns = b.start_ns
            WHERE role IS NOT NULL
            UNION ALL {latencies}
        )"""
