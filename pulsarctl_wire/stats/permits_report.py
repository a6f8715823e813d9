"""The consumers of `Permits` as plain records (docs/json.md): what all outputs of `pwire permits` show."""

from collections.abc import Iterable
from typing import Any

from pulsarctl_wire.stats.permits import Consumer, Row
from pulsarctl_wire.stats.report import Figures


def ordered(consumers: Iterable[Consumer]) -> list[Consumer]:
    """Sort by subscription and topic, unknown ones last; of one subscription in the order of opening."""
    return sorted(consumers, key=lambda each: (not each.is_known, each.subscription, each.topic))


def consumer_records(consumer: Consumer, end_ns: int, limit: int, width: int) -> list[Figures]:
    """Return a consumer's totals, then its rows: at most `limit`, at least `width` ns wide if possible.

    `end_ns` is when the capture ends, in ns since the epoch.
    """
    rows, width = consumer.rows(limit, width)
    return [_total(consumer, end_ns, width), *(_row(consumer, row) for row in rows)]


def _total(consumer: Consumer, end_ns: int, width: int) -> Figures:
    total, timed = consumer.total, consumer.timed
    until = consumer.closed if consumer.closed is not None else max(end_ns, total.last)
    moved = [time for time in (consumer.last_flow, consumer.last_message) if time is not None]
    ends = consumer.connection
    return {
        "kind": "consumer",
        **_names(consumer),
        "type": consumer.kind or None,
        "consumer_name": consumer.name or None,
        "client": ends.client,
        "server": ends.server,
        "time_ns": total.first if timed else None,
        "last_ns": until if timed else None,
        "is_open": consumer.closed is None,
        "how": consumer.how,
        "subscribe_seen": consumer.is_known,
        "first_grant": consumer.first_grant,
        **_figures(total, timed),
        "empty_ns": _since(consumer.empty_since, until, timed and total.exact),
        "quiet_ns": _since(max(moved, default=total.first), until, timed),
        "row_ns": width if timed and width > 1 else None,
    }


def _row(consumer: Consumer, row: Row) -> Figures:
    return {
        "kind": "row",
        **_names(consumer),
        "time_ns": row.first if consumer.timed else None,
        "last_ns": row.last if consumer.timed else None,
        **_figures(row, consumer.timed),
    }


def _names(consumer: Consumer) -> dict[str, Any]:
    return {
        "subscription": consumer.subscription if consumer.is_known else None,
        "topic": consumer.topic or None,
        "connection": consumer.connection.index,
        "consumer_id": consumer.consumer_id,
    }


def _figures(row: Row, timed: bool) -> dict[str, Any]:
    return {
        "flows": row.flows,
        "granted": row.granted,
        "used": row.used,
        "delivered": row.delivered,
        "acked": row.acked,
        "asked": row.asked,
        "redelivered": row.redelivered,
        "permits": row.permits,
        "lowest_permits": row.lowest,
        "highest_permits": row.highest,
        "unacked": row.unacked,
        "pending": row.pending,
        "exact": row.exact,
        "stalled_ns": row.stalled if timed else None,
        "moments": row.moments,
    }


def _since(start: int | None, until: int, timed: bool) -> int | None:
    return until - start if timed and start is not None else None
