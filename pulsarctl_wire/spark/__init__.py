"""Decodes captures on Apache Spark: sessions, the distributed decoder, reports."""

from typing import Final

from pulsarctl_wire.errors import QueryError

FOLLOWING: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.shuffle.partitions": "1",  # there is one state
}
"""Settings for a session that follows a directory."""


class SparkError(QueryError):
    """Spark, or the Java it needs, is missing or does not start, got invalid settings, or fails.

    `details` is Spark's whole message, of many lines.
    """

    def __init__(self, text: str, details: str = "") -> None:
        super().__init__(text)
        self.details = details
