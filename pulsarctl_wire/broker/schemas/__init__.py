"""The schemas of topics: their registry, and which may follow which."""
