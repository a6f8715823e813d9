"""Reports over the frames table: pure functions from tables to a DataFrame, listed in `REPORTS`.

    base.py      options, time buckets, percentiles  latency.py   latencies of requests and publishes
    load.py      tables from files                   traffic.py   frames, topics, errors, connections
    overview.py  the contents of the summary         journeys.py  messages from producer to consumer

Listing them needs no Spark: the module of a report is imported when it is made. None of them runs a job:
the caller collects, prints or writes the result. docs/reports.md describes the columns.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pulsarctl_wire.spark.reports.base import Options, Tables


class Report(NamedTuple):
    """A report: its name, what it shows in one line, and the module that has its function."""

    name: str
    about: str
    module: str

    def make(self, tables: "Tables", options: "Options") -> "DataFrame":
        """The report as a DataFrame; imports pyspark."""
        module: Any = import_module(f"{__name__}.{self.module}")
        made: DataFrame = getattr(module, self.name.replace("-", "_"))(tables, options)
        return made


REPORTS: Final = {
    report.name: report
    for report in (
        Report("summary", "totals, and with --html a page with plots of everything below", "traffic"),
        Report("publish-latency", "SEND to SEND_RECEIPT by topic and producer", "latency"),
        Report("request-latency", "request to answer by command", "latency"),
        Report("slowest", "the requests and publishes that took longest", "latency"),
        Report("throughput", "frames, bytes and messages of each topic, by second", "traffic"),
        Report("topics", "topics by bytes", "traffic"),
        Report("hot-keys", "the keys that most messages have, by hash", "traffic"),
        Report("connections", "connections: client, server, how long, how it ended", "traffic"),
        Report("journey", "each message from SEND to ACK, by subscription", "journeys"),
        Report("delivery", "times to delivery and ACK by topic and subscription", "journeys"),
        Report("backlog", "unacknowledged entries and permits of subscriptions, by second", "journeys"),
        Report("errors", "errors by code, topic and client", "traffic"),
        Report("checksums", "frames whose checksum is wrong", "traffic"),
        Report("gaps", "bytes that were not captured or are not a frame", "traffic"),
    )
}
"""Name -> report, in the order in which they are listed."""
