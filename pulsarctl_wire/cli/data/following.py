"""`--metrics` of `analyze --follow`: how far it is, as metrics."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily as Counter
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pulsarctl_wire import __version__

if TYPE_CHECKING:
    from pulsarctl_wire.spark.follow import Status


class FollowCollector(Collector):
    """Makes metrics from a status at each scrape; it looks into the directory then."""

    def __init__(self, status: Status) -> None:
        self._status = status
        self._started = time.time()

    def describe(self) -> Iterable[Metric]:
        """Return no metrics, so that nothing is read before the first scrape."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Return the families of now."""
        status, totals, waiting = self._status, self._status.totals, self._status.waiting()
        lag = max((time.time() - each.modified_ns / 1e9 for each in waiting), default=0.0)
        info = Gauge("pwire_build_info", "Always 1; its label is pwire's version.", labels=["version"])
        info.add_metric([__version__], 1)
        yield info
        yield Gauge("pwire_start_time_seconds", "When this process began, since the epoch.", self._started)
        text = "How long ago the oldest file was written that is complete and not added."
        yield Gauge("pwire_follow_lag_seconds", text, lag)
        yield Gauge("pwire_follow_waiting_files", "Files that are complete and not added.", len(waiting))
        yield Gauge("pwire_follow_last_batch_timestamp_seconds", "When a batch last ended.", status.ended)
        yield Gauge("pwire_follow_last_batch_seconds", "How long the last batch took.", status.seconds)
        yield Counter("pwire_follow_batches", "Batches added since the start.", status.batches)
        yield Counter("pwire_follow_files", "Files of the table.", status.files)
        yield Counter("pwire_follow_read_bytes", "Bytes of captures in the table.", totals.read)
        yield Counter("pwire_follow_frames", "Frames added since the start.", status.frames)
        yield Counter("pwire_follow_gaps", "Gaps added since the start.", status.gaps)
        text = "Packets that the kernel dropped while capturing."
        yield Counter("pwire_follow_dropped_packets", text, totals.dropped)
        text = "Files that are damaged, grew or were overwritten, with what is missing of them."
        yield Counter("pwire_follow_problems", text, len(totals.problems))
