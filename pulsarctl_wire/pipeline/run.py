"""All splits of all inputs, from the first to the last: planned, decoded, stitched, finished.

A run over inputs that begin as those of the last run did goes on where that ended, also if the last one has
grown since; otherwise everything is done anew.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import Final

from pulsarctl_wire.capture.files import Layout
from pulsarctl_wire.pipeline.decode import Decoded, Settings, decode_split
from pulsarctl_wire.pipeline.finish import Finished, finish_split
from pulsarctl_wire.pipeline.progress import Options, Progress, Totals
from pulsarctl_wire.pipeline.splits import Input, Split, plan
from pulsarctl_wire.pipeline.stitch import Stitched, Stitcher
from pulsarctl_wire.pipeline.store import Store

_SAVED_EVERY: Final = 10.0  # seconds


class Run:
    """One run: `inputs` into the directory or URI `out`.

    `show` is called with the totals when they have changed. CaptureError if `out` is something else than a
    frames table, OSError if it cannot be written.
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
        self._settings = Settings(self._store.drafts, options.max_frame_size, options.payload)
        self._finishing: deque[Future[Finished]] = deque()
        self._progress = self._store.resume(inputs, options) or Progress(options, Stitcher(self._settings))
        self._progress.inputs = inputs
        self.resumed = self._progress.file
        """Inputs that were done before."""

    def run(self, executor: Executor, workers: int = 1) -> Totals:
        """Do what is left to do; `executor` runs functions in `workers` processes at a time."""
        self._executor, self._ahead = executor, workers + 2
        progress = self._progress
        saved = time.monotonic()
        for decoded in self._decoded():
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

    # -- decoding, in order

    def _splits(self) -> Iterator[Split]:
        """The splits that are left."""
        progress, first = self._progress, self._progress.part
        for file in range(progress.file, len(self._inputs)):
            yield from plan(file, self._inputs[file], progress.options.split_size)[first:]
            first = 0

    def _decoded(self) -> Iterator[Decoded]:
        """What became of the splits that are left, each decoded from where the one before ended."""
        progress, splits = self._progress, self._splits()
        ahead: deque[tuple[Split, Future[Decoded]]] = deque()
        while True:
            while len(ahead) < self._ahead and (split := next(splits, None)) is not None:
                ahead.append((split, self._submit(split)))
            if not ahead:
                return
            split, future = ahead.popleft()
            decoded = progress.settle(future.result(), lambda split: self._submit(split).result())
            if decoded is not None:
                layout = decoded.split.layout
                if split.part and layout != split.layout:
                    ahead = deque(
                        self._with_layout(layout, *each) if each[0].file == split.file else each
                        for each in ahead
                    )
                yield decoded

    def _submit(self, split: Split) -> "Future[Decoded]":
        return self._executor.submit(decode_split, split, self._settings)

    def _with_layout(
        self, layout: Layout | None, split: Split, future: "Future[Decoded]"
    ) -> tuple[Split, "Future[Decoded]"]:
        """A split that waits, decoded by the layout that its input turned out to have by now."""
        future.cancel()
        changed = split._replace(layout=layout)
        return changed, self._submit(changed)

    # -- what comes of it

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
