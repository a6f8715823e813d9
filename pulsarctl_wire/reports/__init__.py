"""Reports over the tables of captures, as SQL that DuckDB and Spark both run; `REPORTS` lists them.

    sql.py      options, what is chosen, time buckets, percentiles   latency.py   publishes and requests
    views.py    the views that reports read                          traffic.py   frames, topics, connections
    engine.py   what runs them; `data/duck.py`, `spark/engine.py`    journeys.py  from producer to consumer
    overview.py the contents of the summary

A report is a function from options to a query. docs/reports.md describes the columns.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from pulsarctl_wire.reports import journeys, latency, traffic
from pulsarctl_wire.reports.sql import Options


class Report(NamedTuple):
    """A report: its name, what it shows in one line, and its SQL for the options given."""

    name: str
    about: str
    sql: Callable[[Options], str]


REPORTS: Final = {
    report.name: report
    for report in (
        Report("summary", "totals, and with --html a page with plots of everything below", traffic.summary),
        Report("publish-latency", "SEND to SEND_RECEIPT by topic and producer", latency.publish_latency),
        Report("request-latency", "request to answer by command", latency.request_latency),
        Report("slowest", "the requests and publishes that took longest", latency.slowest),
        Report("throughput", "frames, bytes and messages of each topic, by second", traffic.throughput),
        Report("topics", "topics by bytes", traffic.topics),
        Report("hot-keys", "the keys that most messages have, by hash", traffic.hot_keys),
        Report("connections", "connections: client, server, how long, how it ended", traffic.connections),
        Report("journey", "each message from SEND to ACK, by subscription", journeys.journey),
        Report("delivery", "times to delivery and ACK by topic and subscription", journeys.delivery),
        Report("backlog", "unacknowledged entries and permits of subscriptions, by second", journeys.backlog),
        Report("errors", "errors by code, topic and client", traffic.errors),
        Report("checksums", "frames whose checksum is wrong", traffic.checksums),
        Report("gaps", "bytes that were not captured or are not a frame", traffic.gaps),
    )
}
"""Name -> report, in the order in which they are listed."""
