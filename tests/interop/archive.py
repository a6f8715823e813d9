"""The archive of classes with which Java starts sooner, made once on a machine of what a broker loads."""

from __future__ import annotations

import fcntl
import tempfile
from pathlib import Path

from interop.brokers import HEALTHY_WITHIN, Standalone
from interop.releases import QUICK, archive


def make_archive() -> None:
    """Make it, unless it is there. Raises Unavailable, and Failed."""
    with open(archive().with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be at it: wait for it
        if not archive().exists():
            with tempfile.TemporaryDirectory(dir=archive().parent) as place:
                made = Path(place) / "classes.jsa"
                java = (QUICK, f"-XX:ArchiveClassesAtExit={made}")
                with Standalone(Path(place), transactions=True, java=java) as broker:
                    broker.stop(patience=HEALTHY_WITHIN)
                made.rename(archive())
