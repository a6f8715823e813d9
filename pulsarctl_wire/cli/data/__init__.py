"""Verbs that run on Spark: analyze, report, sql."""
