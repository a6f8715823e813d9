"""Functions run by Spark's workers, one task each, as a `concurrent.futures.Executor`.

The pipeline decides what is to be done next by what came back so far, so every piece of work is a job of
its own; Spark finds it a core, and another one if that fails.
"""

import gc
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")


class SparkExecutor(ThreadPoolExecutor):
    """Runs functions on the workers of `spark`. What they raise is raised here, as it was there."""

    def __init__(self, spark: "SparkSession") -> None:
        self.workers = spark.sparkContext.defaultParallelism
        """How many functions run at a time."""
        self._context = spark.sparkContext
        super().__init__(2 * self.workers + 4, thread_name_prefix="pwire-job")

    def submit(self, function: Callable[..., T], /, *arguments: Any, **options: Any) -> "Future[T]":
        """Have `function(*arguments, **options)` run by a worker; all must be picklable."""
        return super().submit(self._job, function, arguments, options)

    def _job(self, function: Callable[..., T], arguments: Any, options: Any) -> T:
        job = self._context.parallelize([(function, arguments, options)], 1).map(_call)
        result, error = job.collect()[0]
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    def running(self) -> int:
        """Tasks that Spark's workers are at now."""
        tracker = self._context.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        return sum(stage.numActiveTasks for stage in stages if stage is not None)


def _call(work: tuple[Callable[..., Any], Any, Any]) -> tuple[Any, Exception | None]:
    """In a worker: do it. Errors are values, for Spark would try again what cannot succeed."""
    function, arguments, options = work
    gc.set_threshold(100_000, 20, 100)  # frames come and go, and hold no cycles
    try:
        return function(*arguments, **options), None
    except (OSError, ValueError) as error:
        return None, error
