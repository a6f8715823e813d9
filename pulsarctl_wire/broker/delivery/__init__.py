"""Consumers, and dispatchers that choose the consumer of each message."""
