"""The views that reports read, in the SQL of both engines; `pwire sql` has them too.

A view may read others. An `Engine` makes a view when a query names it.

    frames, gaps, …   the tables, or what `Choice` chooses of them
    followed          frames chosen only by time, cluster, host and topic, to follow entries
    whole             the frames that were captured completely
    answered          a row per request and its answer
    publishes         the rows of `answered` for a SEND with its SEND_RECEIPT
    exchanges         the rows of `answered`, and of deliveries: a MESSAGE with its ACK
    cells             counts of frames alike in connection, topic, subscription, producer
    clustered         frames with `cluster`: a label, or the number of a group of brokers that name each other
    named_servers     the URLs that brokers name in answers to lookups
    arrivals          each MESSAGE of an entry, with the time when it was sent
    sent, deliveries  an entry's way to the broker, and to each subscription
    touched           the entries that MESSAGEs and ACKs name, one by one
    first_acks        the first ACK of each entry
    journeys          `sent` and `deliveries` joined
    consuming         frames of consumers
    consumed          an entry's delivery to one consumer, and its acknowledgement
    subscriptions     when first seen, whether durable, the time of the first SEEK
    permit_changes    what changes the permits of a subscription's consumers
    findings          what the doctor finds in all rows, as far as `Choice` chooses it
"""

from collections.abc import Mapping, Sequence
from typing import Final

from pulsarctl_wire.reports.sql import CLIENT, PRODUCER, address, client_address, count_if, literal

IS_ERROR: Final = "(error IS NOT NULL OR command IN ('ERROR', 'SEND_ERROR'))"
"""Whether a frame reports an error."""

CAPTURED: Final = "time_ns, packet_offset, stream_offset"
"""The order in which the frames of a connection were captured."""


def text_of(field: str) -> str:
    """Return the SQL of a field in `command_json`, as text; the most frequent commands have none there."""
    return f"get_json_object(command_json, '$.{field}')"


COUNTS: Final = {
    "frames": "count(*)",
    "bytes": "sum(total_size + 4)",
    "published": "coalesce(sum(CASE WHEN command = 'SEND' THEN messages END), 0)",
    "delivered": "coalesce(sum(CASE WHEN command = 'MESSAGE' THEN messages END), 0)",
    "published_bytes": "coalesce(sum(CASE WHEN command = 'SEND' THEN payload_size END), 0)",
    "delivered_bytes": "coalesce(sum(CASE WHEN command = 'MESSAGE' THEN payload_size END), 0)",
    "errors": count_if(IS_ERROR),
    "bad_checksums": count_if("NOT checksum_valid"),
}
"""What is counted of frames: name -> aggregate. Frames' bytes include their length prefix."""

COUNTED: Final = ", ".join(f"{value} AS {name}" for name, value in COUNTS.items())
"""`COUNTS` as a list of columns."""

SUBSCRIPTION: Final = "cluster, topic, subscription"
"""The columns that identify a subscription."""
_ENTRY: Final = ("cluster", "topic", "subscription", "ledger_id", "entry_id")
_IS_READER: Final = f"command = 'SUBSCRIBE' AND {text_of('durable')} = 'false'"
IS_ID: Final = "ledger_id >= 0 AND entry_id >= 0 AND coalesce(topic NOT LIKE 'non-persistent://%', true)"
"""Whether a frame names a stored entry: brokers give all non-persistent messages the same id."""
_SAME_ENTRY: Final = (
    "s.cluster = {0}.cluster AND s.ledger_id = {0}.ledger_id AND s.entry_id = {0}.entry_id "
    "AND coalesce(s.topic = {0}.topic, true)"
)
"""Whether a row is about the entry of the row `s` of `sent`."""
_RESET_COLUMNS: Final = (*SUBSCRIPTION.split(", "), "time_ns")
_IS_RESET: Final = "command IN ('SUBSCRIBE', 'CLOSE_CONSUMER', 'UNSUBSCRIBE')"
_SERVER: Final = f"CASE WHEN to_broker THEN {address('dst')} ELSE {address('src')} END"


def same(one: str, other: str, names: Sequence[str]) -> str:
    """Return the condition that two rows agree in columns; nulls are equal."""
    return " AND ".join(f"{one}.{name} IS NOT DISTINCT FROM {other}.{name}" for name in names)


def cells(time: str | None = None) -> str:
    """Count the frames of each connection, topic, subscription and producer, so that reports read few rows.

    `time` is the SQL of a time bucket, if frames are also grouped by that.
    """
    bucket_column = f"{time} AS time_ns, " if time else ""
    return f"""
        SELECT {bucket_column}partial, connection, topic, subscription,
            CASE WHEN command = 'SEND' THEN metadata.producer_name END AS producer, {COUNTED},
            min(time_ns) AS first_ns, max(time_ns) AS last_ns
        FROM frames GROUP BY {", ".join(map(str, range(1, 6 + bool(time))))}"""


def clustered(clusters: Mapping[str, int]) -> str:
    """Select frames with `cluster`: the label of the table, or else the number of the broker's cluster.

    `clusters` has the numbers by the brokers' addresses; all other brokers are one cluster.
    """
    rows = f"(SELECT *, {_SERVER} AS server FROM followed)" if clusters else "followed"
    joined, number = in_clusters(rows, "cluster", clusters)
    return f"""
        SELECT f.time_ns, f.packet_offset, f.stream_offset, f.command, f.partial, f.connection, f.to_broker,
            f.topic, f.subscription, {PRODUCER} AS producer,
            f.metadata.publish_time AS publish_time, f.consumer_id, f.ledger_id, f.entry_id, f.error,
            f.permits, f.messages, f.redelivery_count, f.ack_type, f.ack_count, f.acked,
            f.left AS remaining, f.answers, f.latency_ns, f.sent_size, f.command_json, f.series,
            f.cluster AS label, f.host, f.total_size, {CLIENT} AS client,
            {client_address()} AS client_address, {number} AS cluster
        FROM {joined}"""


def in_clusters(rows: str, label: str, clusters: Mapping[str, int]) -> tuple[str, str]:
    """Return what follows FROM to read `rows` as `f`, and the SQL of their cluster's name.

    The name is in the column `label`, or else the number for their `server` in `clusters`, as in `clustered`.
    """
    if not clusters:
        return f"{rows} f", f"coalesce(f.{label}, '0')"
    pairs = ", ".join(f"({literal(server)}, '{number}')" for server, number in sorted(clusters.items()))
    return (
        f"""{rows} f
        LEFT JOIN (SELECT * FROM (VALUES {pairs}) AS known(server, number)) c ON f.server = c.server""",
        f"coalesce(f.{label}, c.number, '-1')",
    )


def named_servers(frames: str) -> str:
    """Select the servers that answered lookups in `frames`, and the URLs that they named."""
    return f"""
        SELECT DISTINCT {_SERVER} AS server, {text_of("brokerServiceUrl")} AS url,
            {text_of("brokerServiceUrlTls")} AS tls_url
        FROM {frames} f WHERE command = 'LOOKUP_RESPONSE'"""


VIEWS: Final = {
    "whole": "SELECT * FROM frames WHERE NOT partial",
    "answered": f"""
        SELECT 'request' AS kind, time_ns - latency_ns AS time_ns, answers AS command, time_ns AS answered_ns,
            command AS answer, latency_ns, error, series, cluster, connection, topic, subscription, producer,
            request_id, producer_id, consumer_id, sequence_id, sent_size AS bytes, messages, ledger_id,
            entry_id, file, packet_offset, {CLIENT} AS client, host
        FROM frames WHERE answers IS NOT NULL""",
    "publishes": "SELECT * FROM answered WHERE answer = 'SEND_RECEIPT'",
    "exchanges": """
        SELECT * FROM answered UNION ALL
        SELECT 'delivery', time_ns, 'MESSAGE', acked_ns, 'ACK', latency_ns, NULL, series, label, connection,
            topic, subscription, NULL, NULL, NULL, consumer_id, NULL, bytes, messages, ledger_id, entry_id,
            NULL, NULL, client, host
        FROM consumed WHERE latency_ns IS NOT NULL""",
    "cells": cells(),
    "followed": "SELECT * FROM all_frames",
    "named_servers": named_servers("followed"),
    # One row per entry that got an id: when it was first sent, and its receipt.
    "sent": f"""
        SELECT cluster, topic, ledger_id, entry_id, min(sent_ns) AS sent_ns,
            min_by(producer, sent_ns) AS producer, min_by(client_address, sent_ns) AS client,
            min_by(host, sent_ns) AS host,
            min_by(messages, sent_ns) AS messages,
            min_by(sent_size, sent_ns) AS bytes, min_by(time_ns, sent_ns) AS receipt_ns,
            min_by(latency_ns, sent_ns) AS publish_latency_ns
        FROM (SELECT *, time_ns - latency_ns AS sent_ns FROM clustered)
        WHERE command = 'SEND_RECEIPT' AND answers IS NOT NULL AND {IS_ID} GROUP BY 1, 2, 3, 4""",
    # The ids in MESSAGEs, and the ids in ACKs that are acknowledged completely. If a cumulative ACK leaves
    # messages of its own entry, it acknowledges the entries before that.
    "touched": f"""
        SELECT {SUBSCRIPTION}, time_ns, command, client_address, ack_type, redelivery_count,
            coalesce(messages, 0) AS messages, ledger_id,
            CASE WHEN remaining > 0 THEN entry_id - 1 ELSE entry_id END AS entry_id
        FROM clustered WHERE NOT partial AND acked IS NULL
            AND (command = 'MESSAGE' OR command = 'ACK' AND ack_count > 0)
            AND (coalesce(remaining, 0) = 0 OR ack_type = 'Cumulative')
        UNION ALL
        SELECT {SUBSCRIPTION}, time_ns, command, client_address, ack_type, redelivery_count, messages,
            id.ledger_id, CASE WHEN id.left > 0 THEN id.entry_id - 1 ELSE id.entry_id END
        FROM (
            SELECT {SUBSCRIPTION}, time_ns, command, client_address, ack_type, redelivery_count, messages,
                explode(acked) AS id
            FROM clustered WHERE NOT partial AND command = 'ACK' AND acked IS NOT NULL
        ) ids
        WHERE coalesce(id.left, 0) = 0 OR ack_type = 'Cumulative'""",
    # One row per entry and subscription, with its first ACK, even if that is before the first MESSAGE.
    # In the order of ids, the highest first, the cumulative ACKs that cover an entry come before it.
    "first_acks": f"""
        SELECT {SUBSCRIPTION}, ledger_id, entry_id, delivered_ns, times, redelivery_count,
            delivered_messages, client,
            coalesce(least(single_ns, covered_ns), single_ns, covered_ns) AS ack_ns
        FROM (
            SELECT *, min(up_to_ns) OVER (
                PARTITION BY {SUBSCRIPTION} ORDER BY ledger_id DESC, entry_id DESC
                RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
            ) AS covered_ns
            FROM (
                SELECT {SUBSCRIPTION}, ledger_id, entry_id,
                    min(CASE WHEN command = 'MESSAGE' THEN time_ns END) AS delivered_ns,
                    {count_if("command = 'MESSAGE'")} AS times, max(redelivery_count) AS redelivery_count,
                    max(messages) AS delivered_messages,
                    min_by(client_address, CASE WHEN command = 'MESSAGE' THEN time_ns END) AS client,
                    min(CASE WHEN command = 'ACK' THEN time_ns END) AS single_ns,
                    CAST(NULL AS BIGINT) AS up_to_ns
                FROM touched WHERE {IS_ID} AND (command = 'MESSAGE' OR ack_type = 'Individual')
                GROUP BY 1, 2, 3, 4, 5
                UNION ALL
                SELECT {SUBSCRIPTION}, ledger_id, entry_id, NULL, NULL, NULL, NULL, NULL, NULL, time_ns
                FROM touched WHERE ack_type = 'Cumulative'
            ) together
        ) covered WHERE up_to_ns IS NULL""",
    # One row per entry and subscription: when it was first delivered, how often, when first acknowledged
    # after that. `again`: of entries acknowledged before their first MESSAGE, the first ACK from then on.
    "deliveries": f"""
        WITH again AS (
            SELECT {", ".join(f"f.{name} AS {name}" for name in _ENTRY)}, min(t.time_ns) AS ack_ns
            FROM (SELECT * FROM first_acks WHERE ack_ns < delivered_ns) f
                JOIN (SELECT * FROM touched WHERE command = 'ACK') t
                ON {same("f", "t", _ENTRY[:3])} AND t.time_ns >= f.delivered_ns AND (
                    (t.ledger_id = f.ledger_id AND t.entry_id = f.entry_id)
                    OR (t.ack_type = 'Cumulative' AND (t.ledger_id > f.ledger_id
                        OR (t.ledger_id = f.ledger_id AND t.entry_id > f.entry_id)))
                )
            GROUP BY 1, 2, 3, 4, 5
        )
        SELECT {", ".join(f"f.{name} AS {name}" for name in _ENTRY)}, delivered_ns,
            times AS deliveries, redelivery_count, delivered_messages, client,
            CASE WHEN f.ack_ns < delivered_ns THEN a.ack_ns ELSE f.ack_ns END AS acked_ns
        FROM first_acks f LEFT JOIN again a ON {same("f", "a", _ENTRY)}""",
    # A topic is null if a capture begins in the middle of a connection: `_SAME_ENTRY` then compares only ids.
    "journeys": f"""
        SELECT coalesce(s.cluster, d.cluster) AS cluster, coalesce(s.topic, d.topic) AS topic,
            coalesce(s.ledger_id, d.ledger_id) AS ledger_id, coalesce(s.entry_id, d.entry_id) AS entry_id,
            d.subscription, s.producer, coalesce(s.messages, d.delivered_messages) AS messages, s.bytes,
            s.sent_ns, s.receipt_ns, d.delivered_ns, d.acked_ns, s.publish_latency_ns,
            d.delivered_ns - s.sent_ns AS delivery_latency_ns, d.acked_ns - d.delivered_ns AS ack_latency_ns,
            coalesce(d.deliveries, 0) AS deliveries, d.redelivery_count, s.client AS producer_client,
            d.client AS consumer_client
        FROM sent s FULL OUTER JOIN (SELECT * FROM deliveries WHERE delivered_ns IS NOT NULL) d
            ON {_SAME_ENTRY.format("d")}""",
    # One row per MESSAGE of a stored entry, and when the entry was sent: exact if its SEND was captured on
    # the same host (others have other clocks); if no SEND was captured, in ms, by the producer's clock.
    "arrivals": f"""
        SELECT m.cluster, coalesce(s.topic, m.topic) AS topic, m.subscription,
            coalesce(s.producer, m.producer) AS producer, m.client_address AS consumer_client, m.client,
            m.host, m.ledger_id, m.entry_id, m.messages, m.time_ns,
            coalesce(s.sent_ns, m.publish_time * 1000000) AS sent_ns,
            CASE WHEN s.sent_ns IS NOT NULL AND s.host IS DISTINCT FROM m.host THEN 'SEND elsewhere'
                WHEN s.sent_ns IS NOT NULL THEN 'SEND'
                WHEN m.publish_time IS NOT NULL THEN 'publish_time' END AS sent_by,
            m.time_ns - coalesce(s.sent_ns, m.publish_time * 1000000) AS latency_ns,
            coalesce(m.redelivery_count > 0, false) OR m.turn > 1 AS again
        FROM (
            SELECT *, row_number() OVER (
                PARTITION BY {SUBSCRIPTION}, ledger_id, entry_id ORDER BY {CAPTURED}
            ) AS turn
            FROM clustered WHERE command = 'MESSAGE' AND NOT partial AND {IS_ID}
        ) m LEFT JOIN sent s ON {_SAME_ENTRY.format("m")}""",
    "consuming": "SELECT * FROM clustered WHERE consumer_id IS NOT NULL AND subscription IS NOT NULL",
    # One row per entry and consumer that got it, and when its subscription acknowledged it.
    "consumed": f"""
        SELECT m.cluster, m.topic, m.subscription, m.connection, m.consumer_id, m.ledger_id, m.entry_id,
            m.series, m.label, m.host, m.producer, m.client, m.time_ns, m.messages, m.bytes, d.acked_ns,
            CASE WHEN d.acked_ns >= m.time_ns THEN d.acked_ns - m.time_ns END AS latency_ns
        FROM (
            SELECT {SUBSCRIPTION}, connection, consumer_id, ledger_id, entry_id, min(time_ns) AS time_ns,
                min(series) AS series, min(label) AS label, min(host) AS host, min(producer) AS producer,
                min(client) AS client, max(messages) AS messages, max(total_size + 4) AS bytes
            FROM consuming WHERE command = 'MESSAGE' AND NOT partial AND {IS_ID}
            GROUP BY 1, 2, 3, 4, 5, 6, 7
        ) m LEFT JOIN deliveries d ON m.cluster = d.cluster AND m.topic IS NOT DISTINCT FROM d.topic
            AND m.subscription = d.subscription AND m.ledger_id = d.ledger_id AND m.entry_id = d.entry_id""",
    "subscriptions": f"""
        SELECT {SUBSCRIPTION}, min(time_ns) AS since_ns, {count_if(_IS_READER)} = 0 AS durable,
            min(CASE WHEN command = 'SEEK' THEN time_ns END) AS seek_ns
        FROM clustered WHERE topic IS NOT NULL AND subscription IS NOT NULL GROUP BY 1, 2, 3""",
    # FLOW adds, MESSAGE subtracts; a consumer loses the rest when it is closed or subscribes again.
    "permit_changes": f"""
        WITH changes AS (
            SELECT *, {_IS_RESET} AS resets,
                CASE WHEN command = 'MESSAGE' THEN -1 ELSE 1 END * coalesce(permits, 0) AS change
            FROM clustered WHERE {_IS_RESET} OR command IN ('FLOW', 'MESSAGE')
        ),
        lives AS (
            SELECT connection, consumer_id, life, sum(change) AS held,
                {", ".join(f"max(CASE WHEN resets THEN {name} END) AS {name}" for name in _RESET_COLUMNS)}
            FROM (
                SELECT *, {count_if("resets")} OVER (
                    PARTITION BY connection, consumer_id ORDER BY {CAPTURED} ROWS UNBOUNDED PRECEDING
                ) AS life
                FROM changes
            ) counted GROUP BY 1, 2, 3
        )
        SELECT {SUBSCRIPTION}, time_ns, change FROM changes WHERE NOT resets
        UNION ALL SELECT {SUBSCRIPTION}, time_ns, -coalesce(before, 0)
        FROM (
            SELECT *, lag(held) OVER (PARTITION BY connection, consumer_id ORDER BY life) AS before FROM lives
        ) ended WHERE life > 0""",
}
"""Name -> SQL. `clustered` is made by the function of that name."""

KEPT: Final = {"touched", "first_acks", "subscriptions"}
"""Views whose rows are computed once, as others read them several times.

They have no WITH: in a query that also has one, Spark would not recognize them, and would compute them again.
"""
