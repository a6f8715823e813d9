"""What these tests share: a cache, and a Spark session for some."""

from private_cache import cache
from spark_session import spark

__all__ = ["cache", "spark"]
