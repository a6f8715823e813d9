"""Runs functions on Spark's workers, one task each, as a `concurrent.futures.Executor`.

The pipeline decides what to do next from the results so far, so every piece of work is a job of
its own. Spark finds a core for it, and another one if that fails.
"""

import gc
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")


class SparkExecutor(ThreadPoolExecutor):
    """Runs functions on the workers of `spark`. Exceptions raised there are raised here."""

    def __init__(self, spark: "SparkSession") -> None:
        self.workers = spark.sparkContext.defaultParallelism
        """How many functions run at a time."""
        self._context = spark.sparkContext
        super().__init__(2 * self.workers + 4, thread_name_prefix="pwire-job")

    def submit(self, function: Callable[..., T], /, *arguments: Any, **options: Any) -> "Future[T]":
        """Run `function(*arguments, **options)` on a worker; all of these must be picklable."""
        return super().submit(self._job, function, arguments, options)

    def _job(self, function: Callable[..., T], arguments: Any, options: Any) -> T:
        job = self._context.parallelize([(function, arguments, options)], 1).map(_call)
        result, error = job.collect()[0]
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]


def _call(work: tuple[Callable[..., Any], Any, Any]) -> tuple[Any, Exception | None]:
    """Run the function, in a worker. Errors are returned, as Spark would retry if they were raised."""
    function, arguments, options = work
    gc.set_threshold(100_000, 20, 100)  # frames come and go, and hold no cycles
    try:
        return function(*arguments, **options), None
    except (OSError, ValueError) as error:
        return None, error
