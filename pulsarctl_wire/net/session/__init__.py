"""Sessions of a client: links to brokers, producers, consumers, transactions."""
