"""Cases for clients: brokers that give them something to react to."""
