"""Plays recorded connections again, and compares the answers."""
