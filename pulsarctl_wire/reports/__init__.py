"""Reports over the tables of captures, as SQL that DuckDB and Spark both run; `REPORTS` lists them.

    sql.py      options, what is chosen, time buckets, percentiles   latency.py   publishes and requests
    views.py    the views that reports read                          traffic.py   frames, topics, connections
    engine.py   what runs them; `data/duck.py`, `spark/engine.py`    journeys.py  from producer to consumer
    overview.py the contents of the summary                          sessions.py  clients, producers, …
    findings.py what the doctor is given, and finds                  comparing.py two sources, two windows
    ddl.py      the views, for other tools                           packets.py   where rows' packets are

A report is a function from options to a query. docs/reports.md describes the columns.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from pulsarctl_wire.reports import comparing, findings, journeys, latency, sessions, traffic
from pulsarctl_wire.reports.sql import Options


class Report(NamedTuple):
    """A report: its name, what it shows in one line, and its SQL for the options given."""

    name: str
    about: str
    sql: Callable[[Options], str]


REPORTS: Final = {
    name: Report(name, about, sql)
    for name, about, sql in (
        ("summary", "totals, and with --html a page with plots of everything below", traffic.summary),
        ("publish-latency", "SEND to SEND_RECEIPT by topic and producer", latency.publish_latency),
        ("request-latency", "request to answer by command", latency.request_latency),
        ("slowest", "the requests and publishes that took longest", latency.slowest),
        ("slow", "the slowest exchanges, deliveries too, and where their frames are", latency.slow),
        ("throughput", "frames, bytes and messages of each topic, by second", traffic.throughput),
        ("topics", "topics by bytes", traffic.topics),
        ("tenants", "tenants by bytes: messages, topics, connections, errors", traffic.tenants),
        ("hot-keys", "the keys that most messages have, by hash", traffic.hot_keys),
        ("connections", "connections: client, server, how long, how it ended", traffic.connections),
        ("clients", "versions of clients, their hosts and features, what they did", sessions.clients),
        ("producers", "producers: batches, compression, pending SENDs, resends", sessions.producers),
        ("consumers", "consumers: permits, unacknowledged, redelivered, ACK times", sessions.consumers),
        ("lookups", "lookups by topic and answer: redirects, brokers, times", sessions.lookups),
        ("journey", "each message from SEND to ACK, by subscription", journeys.journey),
        ("delivery", "times to delivery and ACK by topic and subscription", journeys.delivery),
        ("end-to-end", "from SEND to each MESSAGE, redeliveries apart", journeys.end_to_end),
        ("backlog", "unacknowledged entries and permits of subscriptions, by second", journeys.backlog),
        ("errors", "errors by code, topic and client", traffic.errors),
        ("checksums", "frames whose checksum is wrong", traffic.checksums),
        ("findings", "what is wrong, by the rules of pwire doctor", findings.findings),
        ("gaps", "bytes that were not captured or are not a frame", traffic.gaps),
        ("compare", "two sources or windows: what is slower, new errors, topics", comparing.compare),
        ("unusual", "what of a --window is unusual, by topic and hour", comparing.unusual),
    )
}
"""Name -> report, in the order in which they are listed."""

GROUPING: Final = {
    *("publish-latency", "request-latency", "throughput", "topics", "tenants", "delivery", "end-to-end"),
    "errors",
}
"""The reports whose rows `Options.by` can group by something else."""
