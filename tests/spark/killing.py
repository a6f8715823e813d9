"""Processes that are killed when a file appears."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

Files = set[tuple[str, int]]


def files(out: Path, pattern: str) -> Files:
    """The files of a pattern as they are now."""
    found = set()
    for path in out.glob(pattern):
        with suppress(FileNotFoundError):
            found.add((path.name, path.stat().st_mtime_ns))
    return found


def kill_at(process: subprocess.Popen[bytes], out: Path, pattern: str, before: Files) -> None:
    """Kill all processes of a session as soon as there is a file of a pattern that was not there before."""
    try:
        while files(out, pattern) <= before:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.01)
                pytest.fail("it ended")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
