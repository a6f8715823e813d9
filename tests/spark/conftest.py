"""The session and the capture that these tests share."""

from spark_session import capture, spark

__all__ = ["capture", "spark"]
