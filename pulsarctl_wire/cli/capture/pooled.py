"""Decodes large captures in several processes."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from pulsarctl_wire.capture.series import spans_of
from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.capture.progress import LARGE, JobProgress
from pulsarctl_wire.pipeline.decoding.counting import SPLIT, CountJob, cores, pool_until
from pulsarctl_wire.pipeline.decoding.progress import Totals
from pulsarctl_wire.pipeline.files.splits import Input, in_order, plan


def splittable(paths: list[str], jobs: int | None) -> list[Input]:
    """Return the inputs at `paths`, if they are large enough for several processes; otherwise an empty list.

    `jobs` is the number of processes, by default one per core.
    """
    if (jobs or cores()) < 2 or not all(map(os.path.isfile, paths)):
        return []
    status = [os.stat(path) for path in paths]
    if sum(each.st_size for each in status) <= SPLIT:
        return []
    inputs = [
        Input(path, each.st_size, each.st_mtime_ns, os.path.abspath(path))
        for path, each in zip(paths, status, strict=True)
    ]
    return inputs if sum(len(plan(file, each, SPLIT)) for file, each in enumerate(inputs)) > 1 else []


class Pool:
    """`jobs` processes (default: one per core) that share `inputs` until `stack` closes.

    `code` is the exit code so far. Large inputs show their progress. `check` runs per split.
    """

    def __init__(
        self,
        inputs: list[Input],
        jobs: int | None,
        stack: ExitStack,
        check: Callable[[], object] = lambda: None,
    ) -> None:
        self.code = 0
        self.jobs = jobs or cores()
        self.inputs = in_order(inputs, spans_of([each.name for each in inputs]), console.warn)
        self.executor = pool_until(stack, self.jobs)
        size = sum(each.size for each in inputs)
        most = self.jobs * -(-size // (self.jobs * SPLIT))  # as many for each process
        self.split_size = max(-(-size // most), SPLIT // 4)
        self._progress = JobProgress(size, stack) if size > LARGE else None
        self._check = check
        self._said = 0

    def note(self, totals: Totals) -> None:
        """Report the problems and the progress of a split that is done."""
        for file, what, damaged in totals.problems[self._said :]:
            self.code = console.worse_source(self.code, damaged=damaged)
            console.warn(f"{file}: {what}")
        self._said = len(totals.problems)
        if self._progress is not None:
            self._progress.show(totals.read, totals.seen)
        self._check()

    def count(self, counting: CountJob[Any]) -> None:
        """Count all inputs."""
        for totals in counting.run(self.executor, self.jobs):
            self.note(totals)
