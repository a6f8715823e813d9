"""Turns counts into plain records, which `-o json` prints and the tables show. See docs/cli.md."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from pulsarctl_wire.stats.counting import Stats
from pulsarctl_wire.stats.latencies import Latencies
from pulsarctl_wire.stats.rows import BUCKETS, NAMES, OTHERS, Ended, Key, Row
from pulsarctl_wire.wire.session.ending import PULSAR

Figures = dict[str, Any]


def total_record(stats: Stats) -> Figures:
    """Return the totals; docs/cli.md has names and units."""
    stats.flush()
    first = stats.first_ns
    return {
        "by": "total",
        "forms": stats.forms,
        "packets": stats.packets,
        "cut_packets": stats.cut_packets,
        "dropped_packets": stats.dropped_packets,
        "copied_packets": stats.copies,
        "longer_copies": stats.longer_copies,
        "skipped_packets": {reason: count for reason, count in sorted(stats.skipped.items()) if count},
        "connections": stats.connections,
        "other_connections": stats.all_connections - stats.connections,
        "without_data": stats.without_data.records(),
        "first_ns": first,
        "last_ns": stats.last_ns,
        "seconds": stats.seconds,
        **_counts(stats, stats.total),
        **{name: stats.damage[name] for name in ("malformed", "malformed_bytes", "gaps", "gap_bytes")},
        **_percentiles(stats, [None], 0)[None],
        "series": _series(stats, stats.total),
        "series_start_ns": None if first is None else first >> stats.shift << stats.shift,
        "series_width_ns": None if first is None else 1 << stats.shift,
    }


def records(stats: Stats, by: str, top: int = 0) -> list[Figures]:
    """Return the rows of the kind `by` (a key of `NAMES`): the `top` largest (0: all), then `OTHERS`.

    Rows are ordered by bytes, those of errors by number; equal ones by name.
    """
    stats.flush()
    rows = stats.rows[by]

    def rank(key: Key) -> Any:
        size = rows[key].frames if by == "error" else rows[key].bytes
        return -size, [(isinstance(part, int) and part, str(part or "")) for part in key]

    keys = sorted((key for key in rows if key), key=rank)
    top_keys = keys[: top or None] + [()] * (() in rows)
    percentiles = _percentiles(stats, top_keys, 1 + list(NAMES).index(by))
    return [_record(stats, by, rows[key], percentiles[key]) for key in top_keys]


def _record(stats: Stats, by: str, row: Row, percentiles: Figures) -> Figures:
    first, *rest = NAMES[by]
    names = dict(zip(NAMES[by], row.key, strict=True)) if row.key else {first: OTHERS, **dict.fromkeys(rest)}
    return {
        "by": by,
        **names,
        **(_ended(row) if by == "connection" else {}),
        "share": row.bytes / stats.total.bytes if stats.total.bytes else 0.0,
        **_counts(stats, row),
        **(dict.fromkeys(percentiles) if row.lost else percentiles),
        "series": _series(stats, row),
    }


def _ended(row: Row) -> Figures:
    """Return how a connection ended; all None for the row of all others, and if the source has no packets."""
    if row.ended is None:
        return dict.fromkeys(Ended._fields)
    record = row.ended._asdict()
    if row.frames or row.partial:
        record["protocol"] = PULSAR
    return record


def _counts(stats: Stats, row: Row) -> Figures:
    counts: Figures = {
        "frames": row.frames,
        "bytes": row.bytes,
        "sent": row.sent,
        "delivered": row.delivered,
    }
    seconds = stats.seconds
    rates = {f"{name}_per_s": count / seconds if seconds else None for name, count in counts.items()}
    return {
        **counts,
        **rates,
        "invalid_checksums": row.invalid,
        "errors": row.errors,
        "unanswered_sends": row.unanswered,
        "partial": row.partial,
    }


def _series(stats: Stats, row: Row) -> list[int]:
    if stats.first_ns is None or stats.last_ns is None:
        return []
    buckets = range(stats.first_ns >> stats.shift, (stats.last_ns >> stats.shift) + 1)
    return [row.series[bucket % BUCKETS] if row.series is not None else 0 for bucket in buckets]


def _percentiles(stats: Stats, keys: Iterable[Key | None], place: int) -> dict[Key | None, Figures]:
    """Return the latency percentiles of publishes and requests, by row key; None is the key of the total.

    `place` is the index of such a row key in a key of `stats.latencies`; 0 for the total.
    """
    row_keys = set(keys)
    parts: dict[tuple[bool, Key | None], list[Latencies]] = defaultdict(list)
    for key, latencies in stats.latencies.items():
        row_key = key[place] if place else None
        if row_key in row_keys:
            parts[key[0], row_key].append(latencies)
    return {
        key: {
            "publish_ns": Latencies.together(parts[True, key]).record(),
            "request_ns": Latencies.together(parts[False, key]).record(),
        }
        for key in row_keys
    }
