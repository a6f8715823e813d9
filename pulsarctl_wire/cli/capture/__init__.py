"""Verbs that read or write captures: decode, capture, doctor, stats, table and others."""
