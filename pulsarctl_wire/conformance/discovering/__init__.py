"""Cases for brokers about discovering: lookups, partitions, lists of topics, schemas."""
