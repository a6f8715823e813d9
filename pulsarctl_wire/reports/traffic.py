"""Reports about traffic: throughput, topics, keys, connections, errors, checksums, gaps."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from pulsarctl_wire.reports.sql import HOUR, OF_FRAME, SECOND, Options, address, count_if, groups
from pulsarctl_wire.reports.views import CAPTURED, COUNTED, COUNTS, IS_ERROR, text_of
from pulsarctl_wire.wire.commands import NAMES, REQUESTS

_ACK: Final = 10  # most clients do not request an answer to it
_KEEP_ALIVE: Final = "('PING', 'PONG')"
_CLOSING: Final = "('CLOSE_PRODUCER', 'CLOSE_CONSUMER', 'UNSUBSCRIBE')"
_SUMS: Final = ", ".join(f"sum({name}) AS {name}" for name in COUNTS)


def throughput(options: Options) -> str:
    """Select frames, bytes and messages of each topic, by second or by the given bucket."""
    width = options.bucket_ns or (HOUR if "hour" in options.by else SECOND)
    by = groups(replace(options, bucket_ns=width), "topic", **OF_FRAME)
    counts = ", ".join(
        f"{COUNTS[name]} AS {name}" for name in COUNTS if name not in ("errors", "bad_checksums")
    )
    rates = ", ".join(
        f"{name} * {SECOND / width:.17e} AS {name}_per_s" for name in ("bytes", "published", "delivered")
    )
    names = [name for name in by if name != "time_ns"]
    return f"""
        SELECT *, {rates} FROM (
            SELECT {_columns(by)}, {counts} FROM whole GROUP BY {_places(by)}
        ) grouped WHERE {_are_known(by)} ORDER BY {", ".join(["time_ns", "bytes DESC", *names])}"""


def topics(options: Options) -> str:
    """Select topics by bytes, with the numbers of their producers, subscriptions and errors."""
    if options.by:
        return _totals(groups(options, **OF_FRAME))
    return f"""
        WITH by_topic AS (
            SELECT topic, {_SUMS}, count(DISTINCT producer) AS producers,
                count(DISTINCT subscription) AS subscriptions
            FROM cells WHERE NOT partial AND topic IS NOT NULL GROUP BY topic
        )
        SELECT topic, bytes / (SELECT sum(bytes) FROM cells WHERE NOT partial) AS share,
            {", ".join(COUNTS)}, producers, subscriptions
        FROM by_topic ORDER BY bytes DESC, topic"""


def tenants(options: Options) -> str:
    """Select tenants by bytes, with the numbers of their topics, connections and errors."""
    return _totals(groups(options, "tenant", **OF_FRAME))


def _totals(by: Mapping[str, str]) -> str:
    """Return the counts of whole frames, by groups of which all values are known, the most bytes first."""
    return f"""
        SELECT {", ".join(by)}, bytes / (SELECT sum(total_size + 4) FROM whole) AS share,
            {", ".join(COUNTS)}, producers, subscriptions, topics, connections
        FROM (
            SELECT {_columns(by)}, {COUNTED},
                count(DISTINCT CASE WHEN command = 'SEND' THEN metadata.producer_name END) AS producers,
                count(DISTINCT CASE WHEN subscription IS NOT NULL THEN struct(topic, subscription) END)
                    AS subscriptions,
                count(DISTINCT topic) AS topics, count(DISTINCT connection) AS connections
            FROM whole GROUP BY {_places(by)}
        ) grouped WHERE {_are_known(by)} ORDER BY bytes DESC, {", ".join(by)}"""


def _columns(by: Mapping[str, str]) -> str:
    return ", ".join(f"{value} AS {name}" for name, value in by.items())


def _places(by: Mapping[str, str]) -> str:
    return ", ".join(str(place) for place in range(1, len(by) + 1))


def _are_known(by: Iterable[str]) -> str:
    return " AND ".join(f"{name} IS NOT NULL" for name in by)


def summary(options: Options) -> str:
    """Select one row with the totals of everything."""
    names = ("frames", "bytes", "published", "delivered", "errors", "bad_checksums")
    sums = ", ".join(f"coalesce(sum(CASE WHEN NOT partial THEN {name} END), 0) AS {name}" for name in names)
    holes = ", ".join(
        count_if(f"kind = '{kind}'") + f" AS {plural}, "
        f"coalesce(sum(CASE WHEN kind = '{kind}' THEN size END), 0) AS {kind}_bytes"
        for kind, plural in {"gap": "gaps", "malformed": "malformed"}.items()
    )
    return f"""
        SELECT totals.*, gaps, malformed, gap_bytes, malformed_bytes FROM (
            SELECT min(first_ns) AS first_ns, max(last_ns) AS last_ns, {sums},
                coalesce(sum(CASE WHEN partial THEN frames END), 0) AS partial,
                count(DISTINCT connection) AS connections, count(DISTINCT topic) AS topics,
                count(DISTINCT producer) AS producers,
                count(DISTINCT CASE WHEN subscription IS NOT NULL
                    THEN struct(topic, subscription) END) AS subscriptions
            FROM cells
        ) totals CROSS JOIN (SELECT {holes} FROM gaps) holes"""


def hot_keys(options: Options) -> str:
    """Select the most frequent keys of each topic, by their hash, as Key_Shared subscriptions see them."""
    return """
        WITH by_key AS (
            SELECT topic, metadata.key_hash AS key_hash, coalesce(sum(messages), 0) AS messages,
                sum(payload_size) AS bytes, count(DISTINCT metadata.producer_name) AS producers
            FROM whole WHERE command = 'SEND' AND metadata.key_hash IS NOT NULL GROUP BY 1, 2
        )
        SELECT *, messages / sum(messages) OVER (PARTITION BY topic) AS share
        FROM by_key ORDER BY messages DESC, topic, key_hash"""


def errors(options: Options) -> str:
    """Select errors that brokers report, by code, command, topic and client."""
    by = {"error": "error"} | groups(options, "command", "topic", "client", **OF_FRAME)
    return f"""
        SELECT {_columns(by)}, count(*) AS count, count(DISTINCT connection) AS connections,
            min(time_ns) AS first_ns, max(time_ns) AS last_ns, max({text_of("message")}) AS example
        FROM whole WHERE {IS_ERROR} GROUP BY {_places(by)} ORDER BY count DESC, {", ".join(by)}"""


def checksums(options: Options) -> str:
    """Select SEND and MESSAGE frames whose checksum is wrong."""
    return f"""
        SELECT time_ns, command, topic, subscription, connection, {address("src")} AS src,
            {address("dst")} AS dst,
            producer_id, consumer_id, sequence_id, ledger_id, entry_id, total_size + 4 AS bytes, file,
            packet_offset, stream_offset
        FROM whole WHERE checksum_valid = false ORDER BY {CAPTURED}"""


def gaps(options: Options) -> str:
    """Select stretches that were never captured, or are not frames."""
    return f"""
        SELECT time_ns, kind, size, reason, connection, to_broker, {address("src")} AS src,
            {address("dst")} AS dst, file, packet_offset, stream_offset
        FROM gaps ORDER BY time_ns, file, packet_offset, stream_offset"""


def connections(options: Options) -> str:
    """Select TCP connections: client, server, duration, amounts, how they ended by frames and by packets.

    Those without frames are listed, too: TLS, or refused ones.
    """
    return f"""
        WITH alike AS (
            SELECT connection, to_broker, command, src_ip, src_port, dst_ip, dst_port,
                CASE WHEN command = 'CONNECT' THEN {text_of("client_version")}
                    WHEN command = 'CONNECTED' THEN {text_of("server_version")}
                END AS version,
                {COUNTED}, min(time_ns) AS first_ns, max(time_ns) AS last_ns,
                CASE WHEN command NOT IN {_KEEP_ALIVE} THEN
                    max(struct(coalesce(time_ns, 0), packet_offset, stream_offset))
                END AS place
            FROM whole GROUP BY 1, 2, 3, 4, 5, 6, 7, 8
        ),
        seen AS (
            SELECT connection,
                coalesce(max(CASE WHEN to_broker THEN {address("src")} END),
                    max(CASE WHEN NOT to_broker THEN {address("dst")} END)) AS client,
                coalesce(max(CASE WHEN to_broker THEN {address("dst")} END),
                    max(CASE WHEN NOT to_broker THEN {address("src")} END)) AS server,
                max(CASE WHEN command = 'CONNECT' THEN version END) AS client_version,
                max(CASE WHEN command = 'CONNECTED' THEN version END) AS server_version,
                min(first_ns) AS first_ns, max(last_ns) AS last_ns,
                {
        ", ".join(
            f"sum(CASE WHEN {way} THEN {name} ELSE 0 END) AS {name}_{side}"
            for side, way in {"to_broker": "to_broker", "from_broker": "NOT to_broker"}.items()
            for name in ("frames", "bytes")
        )
    },
                sum(published) AS published, sum(delivered) AS delivered, sum(errors) AS errors,
                max_by(command, place) AS last_command,
                max_by(command, CASE WHEN to_broker THEN place END) AS last_request,
                max(CASE WHEN command = 'CONNECTED' THEN 1 ELSE 0 END) = 1 AS connected
            FROM alike GROUP BY connection
        ),
        holes AS (SELECT connection, count(*) AS gaps, sum(size) AS gap_bytes FROM gaps GROUP BY connection)
        SELECT coalesce(seen.connection, c.connection) AS connection,
            coalesce(client, {address("client")}) AS client, coalesce(server, {address("server")}) AS server,
            seen.client_version, seen.server_version, coalesce(first_ns, time_ns) AS first_ns,
            coalesce(seen.last_ns, c.last_ns) AS last_ns,
            coalesce(seen.last_ns, c.last_ns) - coalesce(first_ns, time_ns) AS life_ns,
            coalesce(frames_to_broker, 0) AS frames_to_broker,
            coalesce(frames_from_broker, 0) AS frames_from_broker,
            coalesce(seen.bytes_to_broker, 0) AS bytes_to_broker,
            coalesce(seen.bytes_from_broker, 0) AS bytes_from_broker,
            coalesce(published, 0) AS published, coalesce(delivered, 0) AS delivered,
            coalesce(errors, 0) AS errors, coalesce(gaps, 0) AS gaps, coalesce(gap_bytes, 0) AS gap_bytes,
            last_command, {_ENDED} AS ended, protocol, c.end AS tcp_end, by_broker
        FROM seen FULL OUTER JOIN connections c ON seen.connection = c.connection
            LEFT JOIN holes ON coalesce(seen.connection, c.connection) = holes.connection
        ORDER BY first_ns, connection"""


_WAITING_COMMANDS: Final = ", ".join(
    f"'{name}'"
    for name in (
        *(NAMES[number] for number in REQUESTS if number != _ACK),
        "SEND",
        "CONNECT",
        "AUTH_RESPONSE",
    )
)
"""Commands that wait for an answer, as a list in SQL."""
_ENDED: Final = f"""
    CASE WHEN frames_to_broker IS NULL THEN NULL
        WHEN last_command = 'ERROR' AND NOT connected THEN 'refused'
        WHEN last_command IN ('ERROR', 'SEND_ERROR') THEN 'error'
        WHEN last_command = 'SUCCESS' AND last_request IN {_CLOSING} THEN 'closed'
        WHEN last_command = last_request AND last_command IN ({_WAITING_COMMANDS}) THEN 'unanswered'
        ELSE 'open' END"""
"""How a connection ended, from its last frames other than PING and PONG; see docs/reports.md."""
