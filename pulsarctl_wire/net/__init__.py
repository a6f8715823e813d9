"""Sessions with real brokers, over asyncio: links that move frames, a client of verbs on top of them."""
