"""Captures on Apache Spark: sessions, the distributed decoder, reports."""

from typing import Final

FOLLOWING: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.shuffle.partitions": "1",  # there is one state
}
"""Settings of a session that follows a directory."""
