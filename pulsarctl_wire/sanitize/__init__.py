"""Captures that may leave the house: names, payloads and addresses replaced by others of the same size."""
