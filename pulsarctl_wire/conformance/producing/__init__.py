"""Cases for brokers about producing: producers, SEND, deduplication, transactions."""
