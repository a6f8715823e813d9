"""Cases for brokers about connections: frames, CONNECT, keep-alive, authentication and authorization."""
