"""One client's connection: who the client is, and the topics that it watches."""
