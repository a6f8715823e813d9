"""Runs functions on Spark's workers: a job for hundreds of calls, a task for each or for some small ones.

Everything is a DataFrame, so that it runs by Spark Connect as well. Spark gives the tasks to cores as they
become free, those of machines that join later too.
"""

import gc
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pulsarctl_wire.errors import CaptureError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROUNDS: Final = range(8, 1025)
"""How many splits a job may decode."""
_FIRST_ROUND: Final = 32
_SHORT, _LONG = 10.0, 60.0  # seconds of a round
_TASKS: Final = 32
"""How many tasks a job has at least, if it has so many calls."""
_TASK_SIZE: Final = 4 * 1024 * 1024
"""Bytes of captures that are worth a task, which takes Spark some 20 ms."""
_ROW: Final = pa.schema([("number", pa.int64()), ("outcome", pa.string())])
_ERRORS: Final = {kind.__name__: kind for kind in (CaptureError, OSError, ValueError)}


class SparkWorkers:
    """The workers of `spark`. OSError, ValueError and CaptureError are raised here if one is raised there."""

    def __init__(self, spark: "SparkSession") -> None:
        self._spark = spark
        self._size = _FIRST_ROUND
        self._since = 0.0

    def room(self, submitted: int) -> int:
        """Return how many splits to submit next; `submitted` are not done yet.

        Two rounds are decoded at a time, so that no core is idle between them. Rounds grow while they are
        short, and shrink if they are so long that nobody sees progress.
        """
        if submitted > self._size:
            return 0
        if submitted:
            took = time.monotonic() - self._since
            size = 4 * self._size if took < _SHORT else self._size // 2 if took > _LONG else self._size
            self._size = min(max(size, _ROUNDS.start), _ROUNDS.stop - 1)
        self._since = time.monotonic()
        return self._size

    def submit(
        self, function: Callable[..., Any], calls: list[tuple[Any, ...]], size: int
    ) -> list[Future[Any]]:
        """Call a picklable function with each of these arguments; its results must be JSON values.

        `size` is how many bytes of captures all calls together are about.
        """
        futures: list[Future[Any]] = [Future() for _ in calls]
        tasks = min(len(calls), max(_TASKS, size // _TASK_SIZE))
        # It is a daemon, so that a process that is interrupted does not wait for a job.
        threading.Thread(
            target=self._job, args=(partial(_run_task, function, calls), tasks, futures), daemon=True
        ).start()
        return futures

    def _job(self, work: Callable[..., Any], tasks: int, futures: list[Future[Any]]) -> None:
        """Run a job, and set its results."""
        try:
            table = self._spark.range(0, len(futures), 1, tasks)
            rows = table.mapInArrow(work, "number long, outcome string").collect()
        except Exception as error:
            for future in futures:
                future.set_exception(error)
            return
        for number, outcome in rows:
            _settle(futures[number], json.loads(outcome))


def _settle(future: Future[Any], outcome: Any) -> None:
    """Set the outcome of a call: its result, or the name and the arguments of an error."""
    result, error = outcome
    if error is None:
        future.set_result(result)
    else:
        kind, *arguments = error
        future.set_exception(_ERRORS[kind](*arguments))


def _run_task(
    function: Callable[..., Any], calls: list[tuple[Any, ...]], batches: Iterator[Any]
) -> Iterator[Any]:
    """Make the calls whose numbers are in `batches`, in a worker; yield their outcomes.

    Errors are outcomes, too: if they were raised, Spark would try again.
    """
    gc.set_threshold(100_000, 20, 100)  # frames come and go, and hold no cycles
    for batch in batches:
        numbers = batch.column(0).to_pylist()
        outcomes = [json.dumps(_outcome(function, calls[number])) for number in numbers]
        yield pa.record_batch([numbers, outcomes], schema=_ROW)


def _outcome(function: Callable[..., Any], call: tuple[Any, ...]) -> tuple[Any, Any]:
    try:
        return function(*call), None
    except CaptureError as error:
        return None, ("CaptureError", str(error))
    except OSError as error:
        return None, ("OSError", error.errno, error.strerror or str(error))
    except ValueError as error:
        return None, ("ValueError", str(error))
