"""The report of what the doctor finds. Its rules are in `checks/`, which get all rows of the tables in order.

Rows are in one order of time. A frame or a gap has the time when it was reported, which is later than its own
if it waited for other bytes. Rows of what TCP did to a connection (see `checks/tables.py`) are among them.
What has no time comes last, by its place.
"""

from collections.abc import Mapping
from typing import Final

from pulsarctl_wire.reports.sql import Choice, Options, address, literal
from pulsarctl_wire.reports.views import in_clusters, named_servers

ORDER: Final = "cluster, at_ns, rank, reported_place, file, packet_offset, stream_offset, connection"
"""The order of the rows that `events` gives."""

_LAST: Final = 2**63 - 1  # `at_ns` of what comes at the end
_ENDED: Final = "(c.end = 'dropped' OR (c.both AND c.end IN ('closed', 'reset', 'refused')))"
"""Whether a connection ended with its last packet; others end with the capture, or by reuse of addresses."""

_GAP_COLUMNS: Final = {name: name for name in ("size", "reason", "protocol", "head")}
_TCP_COLUMNS: Final = {
    **{"how": "c.end", "both_sides": "c.both"},
    **{name: f"c.{name}" for name in ("joined", "by_broker", "end_ns", "last_ns", "protocol", "syns")},
    **{name: f"c.{name}" for name in ("bytes_to_client", "bytes_to_broker")},
}
_PLACE: Final = f"""
    cluster AS label, CASE WHEN to_broker THEN {address("src")} ELSE {address("dst")} END AS client,
    CASE WHEN to_broker THEN {address("dst")} ELSE {address("src")} END AS server,
    coalesce(reported_place, 0) AS reported_place, file, packet_offset, stream_offset, time_ns, connection,
    to_broker"""
_TCP_PLACE: Final = f"""
    c.cluster AS label, {address("client")} AS client, {address("server")} AS server, 0 AS reported_place,
    c.file, c.packet_offset, CAST(NULL AS BIGINT) AS stream_offset, c.time_ns, c.connection,
    CAST(NULL AS BOOLEAN) AS to_broker"""


def findings(options: Options) -> str:
    """Select what the doctor finds, by cluster."""
    return """
        SELECT * FROM findings ORDER BY cluster, first_ns, last_ns, rule, connection, topic, subscription,
            producer_id, consumer_id, message_id, sequence_id, uuid"""


def servers(choice: Choice) -> str:
    """Select servers and the URLs that they name, in all rows that the doctor gets."""
    return f"SELECT * FROM ({named_servers(_labelled('frames', choice))}) ORDER BY 1, 2, 3"


def events(choice: Choice, clusters: Mapping[str, int]) -> str:
    """Select all rows for the doctor, with `clusters` as for `clustered`. They must be sorted by `ORDER`.

    Of `choice` only cluster and host count: rules need all frames of these.
    """
    from pulsarctl_wire.checks.row_events import COLUMNS, METADATA

    frame_columns = {name: f"f.{name}" for name in COLUMNS} | {
        name: f"f.metadata.{name}" for name in METADATA
    }
    frame_columns["has_metadata"] = "f.metadata IS NOT NULL"
    names = _GAP_COLUMNS | _TCP_COLUMNS | frame_columns
    frames, gaps = _labelled("frames", choice), _labelled("gaps", choice)
    own_ns = f"coalesce(time_ns, {_LAST})"
    not_ended = f"known c WHERE NOT {_ENDED}"
    # The numbers are `rank`, the order of rows with one time. -1: a connection ends because another one
    # begins to use its addresses, whose rows come after it.
    rows: list[tuple[str, str, int, str, Mapping[str, str], str]] = [
        # One select for each of the two times: so a condition on `at_ns` becomes one on a column of the
        # files, and row groups that cannot meet it are skipped.
        (_PLACE, "'frame'", 2, own_ns, frame_columns, f"{frames} f WHERE reported_ns IS NULL"),
        (_PLACE, "'frame'", 2, "reported_ns", frame_columns, f"{frames} f WHERE reported_ns IS NOT NULL"),
        (_PLACE, "kind", 2, f"coalesce(reported_ns, {own_ns})", _GAP_COLUMNS, f"{gaps} g"),
        (_TCP_PLACE, "'opened'", 0, "coalesce(c.time_ns, 0)", {"last_ns": "c.last_ns"}, "known c"),
        (_TCP_PLACE, "'closed'", 1, "c.end_ns", _TCP_COLUMNS, "known c WHERE c.end_ns IS NOT NULL"),
        (_TCP_PLACE, "'ended'", 3, f"coalesce(c.last_ns, {_LAST})", _TCP_COLUMNS, f"known c WHERE {_ENDED}"),
        (_TCP_PLACE, "'ended'", -1, "c.reused_ns", _TCP_COLUMNS, f"{not_ended} AND c.reused_ns IS NOT NULL"),
        (_TCP_PLACE, "'ended'", 3, str(_LAST), _TCP_COLUMNS, f"{not_ended} AND c.reused_ns IS NULL"),
    ]
    queries = []
    for place, event, rank, at_ns, columns, source in rows:
        values = ", ".join(f"{columns.get(name, 'NULL')} AS {name}" for name in names)
        queries.append(
            f"SELECT {place}, {event} AS event, {rank} AS rank, {at_ns} AS at_ns, {values} FROM {source}"
        )
    placed = f"WITH {_known(choice)} {' UNION ALL '.join(queries)}"
    joined, cluster = in_clusters(f"({placed})", "label", clusters)
    return f"SELECT {cluster} AS cluster, at_ns = {_LAST} AS at_end, f.* FROM {joined}"


def between(since: tuple[str, int], until: tuple[str, int]) -> str:
    """Return the condition for the rows of `events` from one (cluster, `at_ns`) up to but without another."""
    (first, from_ns), (last, to_ns) = (literal(since[0]), since[1]), (literal(until[0]), until[1])
    if first == last:
        return f"cluster = {first} AND at_ns >= {from_ns} AND at_ns < {to_ns}"
    later = f"(cluster > {first} OR cluster = {first} AND at_ns >= {from_ns})"
    return f"{later} AND (cluster < {last} OR cluster = {last} AND at_ns < {to_ns})"


def _known(choice: Choice) -> str:
    """Return the view `known`: connections, with the time when another one began to use their addresses."""
    return f"""
        known AS (
            SELECT c.*, lead(c.time_ns) OVER (
                PARTITION BY cluster, client_ip, client_port, server_ip, server_port ORDER BY connection
            ) AS reused_ns
            FROM {_labelled("connections", choice)} c
        )"""


def _labelled(name: str, choice: Choice) -> str:
    return f"(SELECT * FROM all_{name} WHERE {choice.labelled()})"
