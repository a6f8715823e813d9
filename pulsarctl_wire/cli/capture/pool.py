"""Decodes large captures in several processes."""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from pulsarctl_wire.capture.secrets import may_have_secrets
from pulsarctl_wire.capture.series import spans_of
from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.capture.progress import LARGE, JobProgress
from pulsarctl_wire.pipeline.decoding.counting import SPLIT, CountJob, cores, pool_until
from pulsarctl_wire.pipeline.decoding.progress import Totals
from pulsarctl_wire.pipeline.files.inputs import is_capture
from pulsarctl_wire.pipeline.files.splits import Input, in_order, plan


def plan_inputs(paths: list[str], jobs: int | None, keylogs: Sequence[str] = ()) -> list[Input]:
    """Return the inputs at `paths`, if they are large enough for several processes; otherwise an empty list.

    `jobs` is the number of processes, by default one per core. Captures with TLS need one process:
    the key and number of a record depend on earlier records.
    """
    if (jobs or cores()) < 2 or keylogs or not all(map(os.path.isfile, paths)):
        return []
    stats = list(map(os.stat, paths))
    if sum(stat.st_size for stat in stats) <= SPLIT:
        return []
    inputs = [
        Input(path, stat.st_size, stat.st_mtime_ns, os.path.abspath(path))
        for path, stat in zip(paths, stats, strict=True)
    ]
    if not all(map(is_capture, inputs)):  # a text is not cut into splits
        return []
    is_large = sum(len(plan(file, entry, SPLIT)) for file, entry in enumerate(inputs)) > 1
    return inputs if is_large and not any(map(may_have_secrets, paths)) else []


class Pool:
    """`jobs` processes (default: one per core) that share `inputs` until `stack` closes.

    `code` is the exit code so far. Large inputs show their progress. `check` is called after each split.
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
        self.inputs = in_order(inputs, spans_of([entry.name for entry in inputs]), console.warn)
        self.executor = pool_until(stack, self.jobs)
        size = sum(entry.size for entry in inputs)
        split_count = self.jobs * -(-size // (self.jobs * SPLIT))  # the same number for each process
        self.split_size = max(-(-size // split_count), SPLIT // 4)
        self._progress = JobProgress(size, stack) if size > LARGE else None
        self._check = check
        self._reported_count = 0

    def note(self, totals: Totals) -> None:
        """Report the problems and the progress of a split that is done."""
        for file, problem, damaged in totals.problems[self._reported_count :]:
            self.code = console.worsen_code(self.code, damaged=damaged)
            console.warn(f"{file}: {problem}")
        self._reported_count = len(totals.problems)
        if self._progress is not None:
            self._progress.show(totals.read, totals.seen)
        self._check()

    def count(self, counting: CountJob[Any]) -> None:
        """Count all inputs."""
        for totals in counting.run(self.executor, self.jobs):
            self.note(totals)
