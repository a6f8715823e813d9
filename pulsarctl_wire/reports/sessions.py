"""Reports about who is connected: clients, producers, consumers, and the lookups that brought them there."""

from typing import Final

from pulsarctl_wire.reports.latency import PUBLISHES
from pulsarctl_wire.reports.sql import CLIENT, Options, count_if, percentiles
from pulsarctl_wire.reports.views import CAPTURED, COUNTS, SUBSCRIPTION, same, text_of

_TIMES: Final = "p50_ns, p99_ns, max_ns"


def clients(options: Options) -> str:
    """Select versions of clients: their connections and hosts, what they support, what they did."""
    return f"""
        WITH connects AS (
            SELECT connection, max({text_of("client_version")}) AS version,
                max({text_of("protocol_version")}) AS protocol, max({text_of("auth_method_name")}) AS auth,
                max({text_of("feature_flags")}) AS features
            FROM all_frames WHERE command = 'CONNECT' GROUP BY connection
        ),
        used AS (
            SELECT connection, max({CLIENT}) AS host, count(*) AS frames,
                {COUNTS["published"]} AS published, {COUNTS["delivered"]} AS delivered,
                {COUNTS["errors"]} AS errors, min(time_ns) AS first_ns, max(time_ns) AS last_ns
            FROM whole GROUP BY connection
        )
        SELECT version, protocol, auth, features, count(*) AS connections, count(DISTINCT host) AS hosts,
            sum(frames) AS frames, sum(published) AS published, sum(delivered) AS delivered,
            sum(errors) AS errors, min(first_ns) AS first_ns, max(last_ns) AS last_ns
        FROM used u LEFT JOIN connects c ON u.connection = c.connection
        GROUP BY 1, 2, 3, 4 ORDER BY connections DESC, version, protocol, auth, features"""


def producers(options: Options) -> str:
    """Select producers: how well they batch and compress, the most SENDs that waited at once, resends."""
    names = ("topic", "producer", "connection", "producer_id")
    by = ", ".join(names)
    return f"""
        WITH steps AS (
            SELECT connection, producer_id, {CAPTURED},
                CASE WHEN command = 'SEND' THEN 1 WHEN answers = 'SEND' THEN -1 END AS change,
                {count_if("command = 'PRODUCER'")} OVER (
                    PARTITION BY connection, producer_id ORDER BY {CAPTURED} ROWS UNBOUNDED PRECEDING
                ) AS life
            FROM whole WHERE command IN ('PRODUCER', 'SEND') OR answers = 'SEND'
        ),
        waiting AS (
            SELECT connection, producer_id, max(pending) AS most_pending FROM (
                SELECT connection, producer_id, sum(change) OVER (
                    PARTITION BY connection, producer_id, life ORDER BY {CAPTURED} ROWS UNBOUNDED PRECEDING
                ) AS pending
                FROM steps
            ) running GROUP BY 1, 2
        ),
        sends AS (
            SELECT {by}, max({CLIENT}) AS client, count(*) AS sends, coalesce(sum(messages), 0) AS messages,
                {count_if("metadata.num_messages_in_batch > 1")} AS batches, sum(payload_size) AS bytes,
                sum(CASE WHEN metadata.uncompressed_size > 0 THEN
                        CASE WHEN metadata.chunk_id > 0 THEN 0 ELSE metadata.uncompressed_size END
                    ELSE payload_size END) AS uncompressed_bytes,
                max(metadata.compression) AS compression, {count_if("resend")} AS resends,
                min(time_ns) AS first_ns, max(time_ns) AS last_ns
            FROM whole WHERE command = 'SEND' GROUP BY 1, 2, 3, 4
        )
        SELECT s.topic, s.producer, s.connection, client, s.producer_id, sends, messages, batches,
            messages / sends AS messages_per_send, bytes, uncompressed_bytes,
            uncompressed_bytes / nullif(bytes, 0) AS ratio, compression, most_pending, resends,
            sends - coalesce(count, 0) AS without_receipt, {_TIMES}, first_ns, last_ns
        FROM sends s
            LEFT JOIN ({percentiles(PUBLISHES, names)}) p ON {same("s", "p", names)}
            LEFT JOIN waiting w ON w.connection = s.connection AND w.producer_id = s.producer_id
        ORDER BY messages DESC, s.topic, s.producer, s.connection, s.producer_id"""


def consumers(options: Options) -> str:
    """Select consumers: what they got, did not acknowledge, and got again, and how long they took."""
    names = (*SUBSCRIPTION.split(", "), "connection", "consumer_id")
    by = ", ".join(names)
    entries = {"entries": "count(*)", "unacked": count_if("acked_ns IS NULL")}
    return f"""
        WITH opened AS (
            SELECT {by}, max({text_of("consumer_name")}) AS consumer, max({text_of("subType")}) AS type,
                max(time_ns) AS since_ns
            FROM consuming WHERE command = 'SUBSCRIBE' GROUP BY 1, 2, 3, 4, 5
        ),
        traffic AS (
            SELECT {by}, max(client) AS client,
                sum(CASE WHEN command = 'MESSAGE' THEN messages ELSE 0 END) AS delivered,
                {count_if("command = 'MESSAGE' AND redelivery_count > 0")} AS redelivered,
                sum(CASE WHEN command = 'FLOW' THEN permits ELSE 0 END) AS granted,
                sum(CASE WHEN coalesce(time_ns >= since_ns, true) THEN
                    CASE command WHEN 'FLOW' THEN permits WHEN 'MESSAGE' THEN -permits ELSE 0 END
                ELSE 0 END) AS permits,
                {count_if("command = 'ACK'")} AS acks, min(time_ns) AS first_ns, max(time_ns) AS last_ns
            FROM consuming LEFT JOIN opened USING ({by}) WHERE NOT partial GROUP BY 1, 2, 3, 4, 5
        )
        SELECT t.cluster, t.topic, t.subscription, type, t.connection, client, t.consumer_id, consumer,
            delivered, coalesce(entries, 0) AS entries, coalesce(unacked, 0) AS unacked, redelivered, acks,
            granted, permits, {_TIMES}, first_ns, last_ns
        FROM traffic t
            LEFT JOIN opened o ON {same("t", "o", names)}
            LEFT JOIN ({percentiles("consumed", names, also=entries)}) p ON {same("t", "p", names)}
        ORDER BY delivered DESC, t.cluster, t.topic, t.subscription, t.connection, t.consumer_id"""


def lookups(options: Options) -> str:
    """Select lookups by topic and answer: redirects, the brokers that were named, and how long they took."""
    answers = f"""
        SELECT topic, {text_of("response")} AS answer, coalesce(
                {text_of("brokerServiceUrl")}, {text_of("brokerServiceUrlTls")}
            ) AS broker, {text_of("authoritative")} AS authoritative,
            {text_of("proxy_through_service_url")} AS through_proxy, error, latency_ns
        FROM frames WHERE answers = 'LOOKUP' AND latency_ns IS NOT NULL"""
    names = ("topic", "answer", "broker", "authoritative", "through_proxy", "error")
    return percentiles(f"({answers}) lookups", names, order="topic, count DESC, answer, broker")
