"""Cases for clients, and the brokers that give clients something to react to."""
