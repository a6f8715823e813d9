"""Brokers of one cluster: which topics there are, who owns them, and what is to be done from time to time."""
