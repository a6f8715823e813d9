"""Reports of latencies: publishes and other requests, and the slowest of both."""

from collections.abc import Iterable
from typing import Final

from pulsarctl_wire.reports.sql import Options, count_if, groups, percentiles

SLOWEST: Final = 20
"""Rows of `slowest` without `--top`."""
SLOW: Final = 50
"""Rows of `slow` without `--top`."""


PUBLISHES: Final = "publishes WHERE latency_ns IS NOT NULL"
"""What follows FROM for the publishes whose latency is known."""
REQUESTS: Final = "answered WHERE latency_ns IS NOT NULL AND answer <> 'SEND_RECEIPT'"
"""The same for all other requests."""


def publish_latency(options: Options, source: str = PUBLISHES) -> str:
    """Select times from SEND to SEND_RECEIPT, by topic and producer, and by the bucket of the SEND."""
    return percentiles(source, groups(options, "topic", "producer", host="host"))


def request_latency(options: Options) -> str:
    """Select times to answers, by the request's command. Of SENDs only those with SEND_ERROR."""
    failed = count_if("error IS NOT NULL OR answer IN ('ERROR', 'SEND_ERROR')")
    by = groups(options, host="host") | {"command": "command"}
    return percentiles(REQUESTS, by, also={"errors": failed})


def slowest(options: Options) -> str:
    """Select the requests and publishes that took longest, and where their answers are."""
    return f"""
        SELECT latency_ns, time_ns, command, answer, error, topic, subscription, producer, connection,
            request_id, producer_id, sequence_id, bytes, messages, ledger_id, entry_id, file, packet_offset
        FROM answered WHERE latency_ns IS NOT NULL
        ORDER BY latency_ns DESC, time_ns, connection, packet_offset, request_id, producer_id, sequence_id
        LIMIT {options.top or SLOWEST}"""


_IDS: Final = ("request_id", "producer_id", "sequence_id", "consumer_id", "ledger_id", "entry_id")
_ANSWER_IDS: Final = _IDS[:4]  # the ledger and entry of an ACK may be those of another message


def _frame_condition(frame: str, time: str, command: str, ids: Iterable[str]) -> str:
    """Return the condition that row `frame` has the time, the command and the ids in these columns of `l`.

    An id that is null in one of them does not count.
    """
    conditions = (f"coalesce({frame}.{name} = l.{name}, true)" for name in ids)
    return " AND ".join([f"{frame}.time_ns = l.{time} AND {frame}.command = l.{command}", *conditions])


def slow(options: Options) -> str:
    """Select the slowest exchanges of any kind, MESSAGE to ACK too, and where both frames of each are."""
    names = ("time_ns", "connection", "command", "topic", *_IDS)
    order = "{0}latency_ns DESC, " + ", ".join(f"{{0}}{name}" for name in names)
    return f"""
        WITH longest AS (
            SELECT kind, latency_ns, time_ns, command, answered_ns, answer, error, cluster, connection, topic,
                subscription, producer, request_id, producer_id, consumer_id, sequence_id, ledger_id, entry_id
            FROM exchanges WHERE latency_ns IS NOT NULL
            ORDER BY {order.format("")} LIMIT {options.top or SLOW}
        )
        SELECT l.*, min(f.file) AS file, min(f.packet_offset) AS packet_offset, min(a.file) AS answer_file,
            min(a.packet_offset) AS answer_packet_offset
        FROM longest l
            LEFT JOIN frames f ON f.connection = l.connection
                AND {_frame_condition("f", "time_ns", "command", _IDS)}
            LEFT JOIN frames a ON (a.connection = l.connection OR l.kind = 'delivery')
                AND {_frame_condition("a", "answered_ns", "answer", _ANSWER_IDS)}
        GROUP BY ALL ORDER BY {order.format("l.")}"""
