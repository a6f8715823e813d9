"""A table's directory: its files, its progress, and what other formats keep of it."""
