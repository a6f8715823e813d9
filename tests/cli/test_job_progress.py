"""What a long job says of its progress where there is no terminal."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from pulsarctl_wire.cli.capture.progress import JobProgress


def test_a_line_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    now = 100.0
    with ExitStack() as stack:
        job = JobProgress(8_000_000_000, stack, 2_000_000_000, lambda: now)
        job.wait("starting Spark")
        now = 160.0
        job.start()
        for seconds, read in (
            (30, 2_500_000_000),
            (59, 2_900_000_000),
            (60, 3_000_000_000),
            (90, 3_500_000_000),
        ):
            now = 160.0 + seconds
            job.show(read, read // 1_000)
        now = 160.0 + 15 * 60
        job.show(2_100_000_000, 5)
        now = 160.0 + 7_190
        job.show(5_000_000_000, 6)
        now += 60
        job.show(8_000_000_000, 8_000_000)
    assert capsys.readouterr().err.splitlines() == [
        "38%: 3.0 GB of 8.0 GB, 3,000,000 frames, about 5 min left",
        "26%: 2.1 GB of 8.0 GB, 5 frames, about 14 h 45 min left",
        "62%: 5.0 GB of 8.0 GB, 6 frames, about 2 h 0 min left",
        "100%: 8.0 GB of 8.0 GB, 8,000,000 frames",
    ]
