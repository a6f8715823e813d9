"""Makes a frames table: plans, decodes, stitches and finishes all splits of all inputs, in order.

A run continues where the previous run ended, even if inputs are gone, or the last input has grown. If that is
not possible, it makes the table again beside the one that is there, which it then replaces in one step.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Final

from pulsarctl_wire.capture.secrets import require_keylogs
from pulsarctl_wire.pipeline.decoding.edges import Decoded, Options, Settings
from pulsarctl_wire.pipeline.decoding.opened import decode_opened
from pulsarctl_wire.pipeline.decoding.progress import Progress, Result, Totals, decoded_in_order
from pulsarctl_wire.pipeline.decoding.rows import Stitched, new_progress
from pulsarctl_wire.pipeline.files.splits import Input, Split
from pulsarctl_wire.pipeline.storage.finish import Finished
from pulsarctl_wire.pipeline.storage.store import Store
from pulsarctl_wire.pipeline.storage.tasks import (
    Round,
    Workers,
    decode_to_file,
    delete_decoded,
    delete_file,
    finish_at,
    load_edges,
)
from pulsarctl_wire.pipeline.upkeep.optimize import merge_small

_SAVED_EVERY: Final = 10.0  # seconds


class Run:
    """One run, which writes the table of `inputs` to the directory or URI `out`.

    Rows of inputs that are gone stay, unless it is to `mirror` the inputs. With `rebuild`, the table is made
    again from these inputs. `format` is that of `Store`. Raises CaptureError if `out` is not
    empty and not a frames table, or would lose rows; OSError if it cannot be written.
    """

    def __init__(
        self,
        inputs: list[Input],
        out: str,
        *,
        options: Options | None = None,
        mirror: bool = False,
        rebuild: bool = False,
        format: str | None = None,
    ) -> None:
        options = options or Options()
        self._table = Store(out, format)
        resumed = self._table.resume(inputs, options, mirror=mirror, rebuild=rebuild)
        self._store = self._table.next_generation() if resumed.rebuild else self._table
        self._settings = resumed.settings
        self._progress = resumed.progress or new_progress(self._settings, inputs)
        if options.keylog is not None and self._progress.file < len(self._progress.inputs):
            require_keylogs(options.keylog)
        self.rebuild = resumed.rebuild
        """Why the table is made again, or None."""
        self.notes = resumed.notes
        """Notes for the user about how the run goes on."""
        self.inputs = self._progress.inputs
        """All inputs of the table, in order: those of earlier runs, which may be gone, and new ones."""
        self.done_count = self._progress.file
        """How many inputs earlier runs have done."""

    @property
    def totals(self) -> Totals:
        """What earlier runs and this one have done."""
        return self._progress.totals

    def run(self, workers: Workers, show: Callable[[Totals], object] = lambda totals: None) -> Totals:
        """Do the remaining work; `show` is called with the totals when they have changed."""
        progress = self._progress
        finisher = Finisher(self._store, workers, self._settings, progress)
        saved_at = time.monotonic()

        def submit(splits: list[Split]) -> list[Result]:
            finisher.submit()  # first, or finishing would wait until these splits are decoded
            calls = [(split, self._settings) for split in splits]
            futures = workers.submit(decode_to_file, calls, sum(split.size for split in splits))
            return [partial(self._load_decoded, *call) for call in zip(splits, futures, strict=True)]

        if self._settings.options.keylog is not None:
            self._open_all(finisher, show)
        for decoded in decoded_in_order(progress, submit, workers.room):
            split = decoded.split
            if finisher.is_submitted and time.monotonic() - saved_at > _SAVED_EVERY:
                finisher.save(progress)
                saved_at = time.monotonic()
            if split.part == 0 and split.file == len(self.inputs) - 1:  # if it grows, the next run redoes it
                progress.file, progress.part = split.file, 0
                finisher.save(progress, is_before_last=True)
            finisher.add(split.name, progress.take(decoded), split.size)
            show(progress.totals)
        progress.file, progress.part, progress.end = len(self.inputs), 0, None
        finisher.save(progress)
        finisher.add("end", progress.stitcher.close())
        if text := progress.stitcher.tls.describe():
            progress.totals.notes.append(f"TLS: {text}")
        finisher.wait()
        merge_small(self._store, workers)
        self._store.finish(progress)
        if self.rebuild:
            self._table.replace(self._store)
        return progress.totals

    def _open_all(self, finisher: "Finisher", show: Callable[[Totals], object]) -> None:
        """Decode all inputs here, with TLS opened, unless an earlier run did."""
        progress = self._progress
        if progress.file == len(self.inputs):
            return
        first, last = (Split(file, 0, self.inputs[0]) for file in (0, len(self.inputs) - 1))
        opened = decode_opened(self.inputs, self._settings.options, progress.totals)
        for part, rows in enumerate(opened):
            finisher.add(f"{first._replace(part=part).name}..{last.name}", rows)
            finisher.submit()
            show(progress.totals)
        finisher.save(progress, is_before_last=True)  # in place of one that a table had before
        progress.file = len(self.inputs)

    def _load_decoded(self, split: Split, future: Future[None]) -> Decoded:
        future.result()
        return load_edges(split, self._settings)


class Finisher:
    """Finishes stitched splits in rounds, and adds what they have to the totals of the `progress`."""

    def __init__(self, store: Store, workers: Workers, settings: Settings, progress: Progress) -> None:
        self._store = store
        self._workers = workers
        self._settings = settings
        self._totals = progress.totals
        self._round = Round(settings.drafts)
        self._submitted: list[tuple[Round, list[Future[Finished]]]] = []
        self._finished: list[str] = []

    @property
    def is_submitted(self) -> bool:
        """Whether all splits have been submitted."""
        return not self._round.places

    def add(self, name: str, stitched: Stitched, size: int = 0) -> None:
        """Add the split `name` of so many bytes to the round."""
        self._round.add(name, stitched, size)

    def submit(self) -> None:
        """Submit the round, to finish its splits, and wait until those of the round before are finished."""
        round_, self._round = self._round, Round(self._settings.drafts)
        if round_.places:
            round_.close()
            calls = [(place, self._settings, self._store.out, self._store.number) for place in round_.places]
            self._submitted.append((round_, self._workers.submit(finish_at, calls, round_.size)))
            self._wait(1)

    def wait(self) -> None:
        """Finish all splits."""
        self.submit()
        self._wait(0)

    def save(self, progress: Progress, *, is_before_last: bool = False) -> None:
        """Finish all splits, save the progress, and delete what is not needed any more."""
        self.wait()
        self._store.save(progress, is_before_last=is_before_last)
        delete_decoded(self._settings.drafts, self._finished)
        self._finished = []

    def _wait(self, limit: int) -> None:
        while len(self._submitted) > limit:
            round_, futures = self._submitted.pop(0)
            for future in futures:
                frames, gaps, size = future.result()
                self._totals.frames += frames
                self._totals.gaps += gaps
                self._totals.size += size
            self._finished += [place.name for place in round_.places]
            delete_file(round_.path)
