"""Cases for brokers about consuming: subscriptions, delivery, acknowledgements, SEEK."""
