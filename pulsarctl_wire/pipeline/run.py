"""Makes a frames table: plans, decodes, stitches and finishes all splits of all inputs, in order.

If the inputs begin with those of the last run, a run continues where that one ended, even if its last input
has grown since. Otherwise it starts over.
"""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Final

from pulsarctl_wire.pipeline.decode import Decoded, Settings
from pulsarctl_wire.pipeline.finish import Finished, finish_split
from pulsarctl_wire.pipeline.progress import Options, Totals, decoded_in_order
from pulsarctl_wire.pipeline.rows import Stitched, decode_split, new_progress
from pulsarctl_wire.pipeline.splits import Input, Split
from pulsarctl_wire.pipeline.store import Store

_SAVED_EVERY: Final = 10.0  # seconds


class Run:
    """One run, which writes the table of `inputs` to the directory or URI `out`.

    `show` is called with the totals when they have changed. Raises CaptureError if `out` is not empty and
    not a frames table, OSError if it cannot be written.
    """

    _executor: Executor
    _ahead: int

    def __init__(
        self,
        inputs: list[Input],
        out: str,
        *,
        options: Options | None = None,
        show: Callable[[Totals], object] = lambda totals: None,
    ) -> None:
        options = options or Options()
        self._inputs = inputs
        self._show = show
        self._store = Store(out)
        self._settings = Settings(
            self._store.drafts, options.max_frame_size, options.payload, cluster=options.cluster
        )
        self._finishing: deque[Future[Finished]] = deque()
        self._progress = self._store.resume(inputs, options) or new_progress(options, self._settings)
        self._progress.inputs = inputs
        self.resumed = self._progress.file
        """How many inputs earlier runs have done."""

    def run(self, executor: Executor, workers: int = 1) -> Totals:
        """Do the remaining work in `executor`, which has `workers` processes."""
        self._executor, self._ahead = executor, workers + 2
        progress = self._progress
        saved = time.monotonic()

        def submit(split: Split) -> "Future[Decoded]":
            return executor.submit(decode_split, split, self._settings)

        for decoded in decoded_in_order(progress, submit, self._ahead):
            self._take(decoded)
            if time.monotonic() - saved > _SAVED_EVERY:
                self._save()
                saved = time.monotonic()
        progress.file, progress.part, progress.end = len(self._inputs), 0, None
        self._save()
        self._finish("end", progress.stitcher.close())
        self._wait(0)
        self._store.finish(progress)
        return progress.totals

    # -- results

    def _take(self, decoded: Decoded) -> None:
        progress, split = self._progress, decoded.split
        if split.part == 0 and split.file == len(self._inputs) - 1:
            progress.file, progress.part = split.file, 0
            self._save(is_last_begun=True)
        self._finish(split.name, progress.take(decoded))
        self._show(progress.totals)

    def _finish(self, name: str, stitched: Stitched) -> None:
        self._finishing.append(
            self._executor.submit(finish_split, name, stitched, self._store.drafts, self._store.out)
        )
        self._wait(self._ahead)

    def _wait(self, left: int) -> None:
        """Wait until no more than `left` splits are being finished."""
        totals = self._progress.totals
        while len(self._finishing) > left:
            finished = self._finishing.popleft().result()
            totals.frames += finished.frames
            totals.gaps += finished.gaps
            totals.size += finished.size
            self._show(totals)

    def _save(self, *, is_last_begun: bool = False) -> None:
        self._wait(0)
        self._store.save(self._progress, is_last_begun=is_last_begun)
