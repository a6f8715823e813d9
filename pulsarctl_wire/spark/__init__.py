"""Captures on Apache Spark: sessions, the distributed decoder, reports."""
