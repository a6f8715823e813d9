"""Compares two tables: what became slower, which errors are new, which topics came and went."""

from pulsarctl_wire.reports.latency import PUBLISHES, REQUESTS
from pulsarctl_wire.reports.sql import Options, percentiles
from pulsarctl_wire.reports.views import IS_ERROR, text_of


def compare(options: Options) -> str:
    """What differs between the first table and the others, by kind, the largest change first."""
    side = f"CASE WHEN connection < {options.first} THEN 'before' ELSE 'after' END"
    counted = {
        "topic": f"SELECT topic AS name, {side} AS side FROM whole WHERE topic IS NOT NULL",
        "error": f"SELECT error AS name, {side} AS side FROM whole WHERE {IS_ERROR}",
        "client": f"""
            SELECT {text_of("client_version")} AS name, {side} AS side
            FROM whole WHERE command = 'CONNECT'""",
    }
    timed = {
        "publish p99_ns": ("topic", PUBLISHES),
        "request p99_ns": ("command", REQUESTS),
    }
    rows = [
        f"SELECT '{kind}' AS kind, name, side, count(*) AS value FROM ({sql}) {kind}s GROUP BY 2, 3"
        for kind, sql in counted.items()
    ] + [
        f"SELECT '{kind}' AS kind, name, side, p99_ns AS value "
        f"FROM ({percentiles(source, {'name': name, 'side': side}, order='name')}) timed"
        for kind, (name, source) in timed.items()
    ]
    return f"""
        SELECT *, CASE WHEN before > 0 THEN (after - before) / before END AS change FROM (
            SELECT kind, name, sum(CASE WHEN side = 'before' THEN value END) AS before,
                sum(CASE WHEN side = 'after' THEN value END) AS after
            FROM ({" UNION ALL ".join(rows)}) sides GROUP BY kind, name
        ) both_sides
        WHERE before IS DISTINCT FROM after
        ORDER BY kind, CASE WHEN before IS NULL OR after IS NULL THEN 0 ELSE 1 END,
            abs(coalesce((after - before) / before, 0)) DESC, name"""
