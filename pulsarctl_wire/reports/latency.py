"""Reports of latencies: publishes and other requests, and the slowest of both."""

from typing import Final

from pulsarctl_wire.reports.sql import Options, by_bucket, count_if, percentiles

SLOWEST: Final = 20
"""Rows of `slowest` without `--top`."""


def publish_latency(options: Options, source: str = "publishes") -> str:
    """From SEND to its SEND_RECEIPT, by topic and producer, and by the bucket of the SEND if given."""
    by = by_bucket(options) | {"topic": "topic", "producer": "producer"}
    return percentiles(f"{source} WHERE latency_ns IS NOT NULL", by)


def request_latency(options: Options) -> str:
    """From a request to its answer, by the request's command. For SEND only those answered by SEND_ERROR."""
    failed = count_if("error IS NOT NULL OR answer IN ('ERROR', 'SEND_ERROR')")
    requests = "exchanges WHERE latency_ns IS NOT NULL AND answer <> 'SEND_RECEIPT'"
    return percentiles(requests, by_bucket(options) | {"command": "command"}, also={"errors": failed})


def slowest(options: Options) -> str:
    """The requests and publishes that took longest, and where their answers are."""
    return f"""
        SELECT latency_ns, time_ns, command, answer, error, topic, subscription, producer, connection,
            request_id, producer_id, sequence_id, bytes, messages, ledger_id, entry_id, file, packet_offset
        FROM exchanges WHERE latency_ns IS NOT NULL
        ORDER BY latency_ns DESC, time_ns, connection, packet_offset LIMIT {options.top or SLOWEST}"""
