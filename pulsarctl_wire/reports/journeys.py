"""Reports that follow messages from producer to consumer.

An id is cluster, ledger and entry; a batch is one entry, and so is a chunk. An id with negative parts
(non-persistent topics, duplicate sends) is ignored. Deliveries and acknowledgements are matched per
subscription; a cumulative ACK covers everything up to its id on its subscription.
"""

import re
from typing import Final

from pulsarctl_wire.reports.sql import SECOND, Options, bucket, count_if, groups, literal, percentiles
from pulsarctl_wire.reports.views import IS_ID, SUBSCRIPTION
from pulsarctl_wire.wire.hashing import murmur3_32

_HOST: Final = r"^\[?(.*?)\]?:[0-9]+$"
_CONSUMER: Final = f"regexp_extract(consumer_client, {literal(_HOST)}, 1)"


def journey(options: Options) -> str:
    """Select the path of each entry through subscriptions: sent, received, delivered, acknowledged."""
    return f"""
        SELECT * FROM journeys {f"WHERE {_key_condition(options.key)}" if options.key is not None else ""}
        ORDER BY coalesce(sent_ns, delivered_ns), cluster, topic, ledger_id, entry_id, subscription"""


def _key_condition(key: str) -> str:
    """Return the condition for the journeys of the messages with a key, or with an id."""
    if identity := re.fullmatch(r"(\d{1,18}):(\d{1,18})", key):
        return f"ledger_id = {identity[1]} AND entry_id = {identity[2]}"
    number = murmur3_32(key)
    return f"""(ledger_id, entry_id) IN (
            SELECT ledger_id, entry_id FROM frames
            WHERE command = 'MESSAGE' AND metadata.key_hash = {number}
            UNION ALL SELECT r.ledger_id, r.entry_id FROM frames s JOIN publishes r
                ON s.connection = r.connection AND s.producer_id = r.producer_id
                AND s.sequence_id = r.sequence_id
            WHERE s.command = 'SEND' AND s.metadata.key_hash = {number}
        )"""


def delivery(options: Options) -> str:
    """Select times from SEND to first MESSAGE, and from there to first ACK, by topic and subscription.

    `missing` are entries whose SEND was not captured, or that were never acknowledged.
    """
    steps = f"""
        (SELECT *, CASE WHEN step = 'ack' THEN ack_latency_ns ELSE delivery_latency_ns END AS latency_ns
        FROM (SELECT *, coalesce(sent_ns, delivered_ns) AS time_ns, {_CONSUMER} AS client
            FROM journeys WHERE delivered_ns IS NOT NULL) delivered
            CROSS JOIN (VALUES ('delivery'), ('ack')) AS steps(step)) timed"""
    by = groups(options, *SUBSCRIPTION.split(", ")) | {"step": "step"}
    order = ", ".join([*(name for name in by if name != "step"), "step DESC"])
    return percentiles(steps, by, also={"missing": count_if("latency_ns IS NULL")}, order=order)


def end_to_end(options: Options) -> str:
    """Select times from SEND to MESSAGE, by topic, subscription, clock, and whether it is a redelivery."""
    by = groups(options, *SUBSCRIPTION.split(", "), host="host") | {"sent_by": "sent_by", "again": "again"}
    messages = {"messages": "coalesce(sum(messages), 0)"}
    return percentiles("arrivals WHERE sent_by IS NOT NULL", by, also=messages, order=", ".join(by))


def backlog(options: Options) -> str:
    """Select, over time, how many entries are not acknowledged yet, and the permits that consumers have left.

    All start at 0 where a subscription is first seen: earlier entries are unknown. A non-durable reader has
    no backlog, and after a SEEK it is unknown. Only buckets in which something changed have a row.
    """
    width = options.bucket_ns or SECOND
    so_far = f"OVER (PARTITION BY {SUBSCRIPTION} ORDER BY time_ns ROWS UNBOUNDED PRECEDING)"
    return f"""
        WITH published AS (
            SELECT cluster, topic, min(time_ns) AS time_ns FROM clustered
            WHERE NOT partial AND command = 'SEND_RECEIPT' AND {IS_ID}
            GROUP BY cluster, topic, ledger_id, entry_id
        ),
        changes AS (
            SELECT p.cluster, p.topic, s.subscription, {bucket(width)} AS time_ns, count(*) AS published,
                0 AS delivered, 0 AS acked, 0 AS permits
            FROM published p JOIN subscriptions s ON p.cluster = s.cluster AND p.topic = s.topic
            WHERE time_ns >= since_ns GROUP BY 1, 2, 3, 4
            UNION ALL SELECT {SUBSCRIPTION}, {bucket(width)} AS time_ns, 0,
                {count_if("step = 'delivered'")}, {count_if("step = 'acked'")}, 0
            FROM (
                SELECT {SUBSCRIPTION}, step,
                    CASE WHEN step = 'acked' THEN acked_ns ELSE delivered_ns END AS time_ns
                FROM deliveries CROSS JOIN (VALUES ('delivered'), ('acked')) AS steps(step)
            ) timed WHERE time_ns IS NOT NULL GROUP BY 1, 2, 3, 4
            UNION ALL SELECT {SUBSCRIPTION}, {bucket(width)} AS time_ns, 0, 0, 0, sum(change)
            FROM permit_changes WHERE subscription IS NOT NULL GROUP BY 1, 2, 3, 4
        ),
        summed AS (
            SELECT {SUBSCRIPTION}, time_ns, sum(published) AS published, sum(delivered) AS delivered,
                sum(acked) AS acked, sum(permits) AS permits
            FROM changes WHERE time_ns IS NOT NULL GROUP BY 1, 2, 3, 4
        ),
        running AS (
            SELECT *, sum(published - acked) {so_far} AS backlog, sum(delivered - acked) {so_far} AS unacked,
                sum(permits) {so_far} AS left_permits
            FROM summed
        )
        SELECT r.time_ns, r.cluster, r.topic, r.subscription, published, delivered, acked,
            CASE WHEN durable AND (seek_ns IS NULL OR r.time_ns + {width} <= seek_ns) THEN backlog END
                AS backlog, unacked, left_permits AS permits
        FROM running r JOIN subscriptions s
            ON r.cluster = s.cluster AND r.topic = s.topic AND r.subscription = s.subscription
        ORDER BY r.time_ns, r.cluster, r.topic, r.subscription"""
