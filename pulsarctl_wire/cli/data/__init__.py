"""Verbs that make tables with Spark, or read tables: analyze, report, sql, extract."""
