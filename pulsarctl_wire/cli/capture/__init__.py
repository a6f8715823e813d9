"""Verbs that read captures: decode, capture, stats, table."""
