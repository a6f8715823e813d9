"""The directory for files that outlive a process."""

import atexit
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path


def cache_directory() -> Path:
    """Make a private directory that outlives this process, or a temporary one if that is not possible."""
    path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pwire"
    with suppress(OSError):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
        # Files in it are executed, so nobody else may be able to write to it.
        if status.st_uid == os.getuid() and not status.st_mode & 0o022 and os.access(path, os.W_OK):
            return path
    path = Path(tempfile.mkdtemp(prefix="pwire-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path
