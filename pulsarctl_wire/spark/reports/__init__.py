"""Reports over the frames table: pure functions from tables to a DataFrame, listed in `REPORTS`.

    base.py      options, time buckets, percentiles        latency.py   how long things took
    load.py      tables from files                         traffic.py   what was said
    pairing.py   requests with their answers               journeys.py  messages from producer to consumer

None of them runs anything: the caller collects, prints or writes what it gets. docs/reports.md says what the
columns are.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from pyspark.sql import DataFrame

from pulsarctl_wire.spark.reports.base import Options, Tables, about
from pulsarctl_wire.spark.reports.journeys import backlog, delivery, journey
from pulsarctl_wire.spark.reports.latency import publish_latency, request_latency, slowest
from pulsarctl_wire.spark.reports.load import find, load
from pulsarctl_wire.spark.reports.totals import summary
from pulsarctl_wire.spark.reports.traffic import (
    checksums,
    connections,
    errors,
    gaps,
    hot_keys,
    throughput,
    topics,
)

__all__ = ["REPORTS", "Options", "Report", "Tables", "about", "find", "load"]


class Report(NamedTuple):
    """A report: what it is called, what it answers in one line, and the function that makes it."""

    name: str
    about: str
    make: Callable[[Tables, Options], DataFrame]


REPORTS: Final = {
    report.name: report
    for report in (
        Report("summary", "totals, and with --html a page with plots of everything below", summary),
        Report("publish-latency", "SEND to SEND_RECEIPT by topic and producer", publish_latency),
        Report("request-latency", "request to answer by command", request_latency),
        Report("slowest", "the requests and publishes that took longest", slowest),
        Report("throughput", "frames, bytes and messages of each topic, by second", throughput),
        Report("topics", "topics by bytes", topics),
        Report("hot-keys", "the keys that most messages have, by hash", hot_keys),
        Report("connections", "who was connected, how long, how it ended", connections),
        Report("journey", "each message from SEND to ACK, by subscription", journey),
        Report("delivery", "times to delivery and ACK by topic and subscription", delivery),
        Report("backlog", "unacknowledged entries and permits of subscriptions, by second", backlog),
        Report("errors", "errors by code, topic and client", errors),
        Report("checksums", "frames whose checksum is wrong", checksums),
        Report("gaps", "bytes that were not captured or are no frames", gaps),
    )
}
"""Name -> report, in the order in which they are listed."""
