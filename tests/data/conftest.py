"""The cache that these tests share."""

from private_cache import cache

__all__ = ["cache"]
