"""Sessions with real brokers, over asyncio: links that move frames, and the client built on them."""
