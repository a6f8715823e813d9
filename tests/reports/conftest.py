"""The session, the capture and the cache that these tests share."""

from private_cache import cache
from spark_session import capture, spark

__all__ = ["cache", "capture", "spark"]
