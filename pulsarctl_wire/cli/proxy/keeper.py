"""Runs the watcher of a proxy, and restarts it if it dies.

    proxy ── fork ── keeper ── fork ── watcher (watcher.py)

A process with threads and open connections cannot be forked safely. The keeper is forked before there are
any, and only waits: whenever a watcher is killed or fails, the keeper forks the next one from that clean
state. The new watcher continues to read the ring (`net/proxy/tap.py`) where the old one stopped.

The keeper and its watchers write to one pipe, which the proxy reads. READY: the first watcher has started.
RESTARTED: another one starts, and the proxy must announce all open connections again. End of file: no watcher
runs any more.
"""

import gc
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from mmap import mmap
from typing import Final, NamedTuple, NoReturn

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.proxy.options import ENDING
from pulsarctl_wire.net.proxy.tap import TapRing

READY: Final = b"!"
RESTARTED: Final = b"+"

_EXIT_TIMEOUT: Final = 10.0  # seconds that the watcher has at the end
_STEADY: Final = 60.0  # a watcher that lived for this many seconds is restarted without delay
_LONGEST_DELAY: Final = 60.0  # seconds before a restart
_LONGEST_REASON: Final = 1_000  # characters


class Start(NamedTuple):
    """How a watcher starts.

    `reason` says why the previous one ended; it is "" for the first one. The watcher must wait for `delay`
    seconds, and call `ready` when it has started. `since_ns` is when the first one started (epoch).
    """

    reason: str
    delay: float
    since_ns: int
    ready: Callable[[], None]


Watch = Callable[[Start], int]
"""Watches until the proxy ends; returns the exit code."""


class Watcher:
    """The watcher processes, as seen by the proxy or broker. If the first cannot start, the command ends.

    `close` is called in these processes: it closes their copies of the sockets for clients.
    """

    def __init__(self, watch: Watch, ring: TapRing, close: Callable[[], object]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self._pipe, write_end = os.pipe()
        gc.freeze()  # the collector leaves existing objects alone, so that forks share their memory
        self._keeper = os.fork()
        if self._keeper == 0:
            os.close(self._pipe)
            close()
            ring.use_in_watcher()
            _end(_Keeper(watch, ring, write_end).run)
        os.close(write_end)
        if os.read(self._pipe, 1) != READY:
            raise SystemExit(self.wait())

    def fileno(self) -> int:
        """Return the descriptor of the pipe: readable when `read_news` does not block."""
        return self._pipe

    def read_news(self) -> bytes:
        """Read the pipe: one or more RESTARTED, or b"" if no watcher runs any more. May block."""
        return os.read(self._pipe, 64)

    def wait(self) -> int:
        """Wait for the processes to end, and kill them after a timeout; returns the exit code."""
        for seconds, number in ((_EXIT_TIMEOUT, signal.SIGUSR1), (1.0, signal.SIGKILL)):
            if self._ends_within(seconds):
                break
            os.kill(self._keeper, number)  # at SIGUSR1 it kills the watcher, which is blocked in a write
        code = os.waitstatus_to_exitcode(os.waitpid(self._keeper, 0)[1])
        return code if code >= 0 else console.EXIT_OUTPUT  # killed: some output is missing

    def _ends_within(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while (seconds := end - time.monotonic()) > 0 and select.select([self._pipe], [], [], seconds)[0]:
            if not self.read_news():
                return True
        return False


class _Keeper:
    """The keeper process: starts watchers, one after the other."""

    def __init__(self, watch: Watch, ring: TapRing, pipe: int) -> None:
        self._watch = watch
        self._ring = ring
        self._pipe = pipe
        self._is_ready = mmap(-1, 1)  # shared with the watchers
        self._watcher = 0
        self._proxy = os.getppid()

    def run(self) -> int:
        """Start a watcher, and the next one whenever it dies; returns the exit code."""
        for number in (*ENDING, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the proxy ends the watcher through the ring
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        signal.signal(signal.SIGUSR1, lambda *_: self._kill())
        since_ns = time.time_ns()
        reason, delay, failures = "", 0.0, 0
        while True:
            start = time.monotonic()
            code, reason = self._start(Start(reason, delay, since_ns, self._announce_start))
            if not reason:  # it ended as it should; after an earlier failure some output is missing
                return console.EXIT_OUTPUT if failures else code
            if self._ring.is_ending or os.getppid() != self._proxy or not self._is_ready[0]:
                console.warn(f"the watcher died ({reason})")
                return console.EXIT_OUTPUT
            with suppress(BrokenPipeError):  # the next watcher will notice that the proxy is gone
                os.write(self._pipe, RESTARTED)
            lifetime = time.monotonic() - start - delay
            delay = 0.0 if lifetime > _STEADY or not failures else min(2 * delay or 1.0, _LONGEST_DELAY)
            failures += 1

    def _announce_start(self) -> None:
        """Tell the proxy that this watcher has started."""
        if not self._is_ready[0]:
            self._is_ready[0] = 1
            os.write(self._pipe, READY)

    def _start(self, start: Start) -> tuple[int, str]:
        """Run one watcher; returns its exit code, and why it must be restarted ("": it need not)."""
        read_end, write_end = os.pipe()
        self._watcher = os.fork()
        if self._watcher == 0:
            os.close(read_end)
            signal.signal(signal.SIGUSR1, signal.SIG_DFL)
            _end(lambda: self._run_watch(start, write_end))
        os.close(write_end)
        with open(read_end, "rb") as reasons:
            reason = reasons.read().decode()
        code = os.waitstatus_to_exitcode(os.waitpid(self._watcher, 0)[1])
        self._watcher = 0
        return code, f"killed by {signal.Signals(-code).name}" if code < 0 else reason

    def _run_watch(self, start: Start, reasons: int) -> int:
        """Watch, in a watcher's process, and write the reason of a failure to `reasons`."""
        try:
            return self._watch(start)
        except SystemExit as error:
            if not self._is_ready[0]:
                return error.code if isinstance(error.code, int) else 1
            reason = "it could not start"
        except Exception as error:
            if not self._is_ready[0]:
                raise
            frame = traceback.extract_tb(error.__traceback__)[-1]
            reason = f"{type(error).__name__}: {error} at {os.path.basename(frame.filename)}:{frame.lineno}"
        os.write(reasons, reason[:_LONGEST_REASON].encode("utf-8", "backslashreplace"))
        return console.EXIT_OUTPUT

    def _kill(self) -> None:
        if self._watcher:
            os.kill(self._watcher, signal.SIGKILL)


def _end(run: Callable[[], int]) -> NoReturn:
    """Run `run` in a forked process, and exit with the code that it returns."""
    code = 1
    try:
        code = run()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with suppress(OSError):
            sys.stderr.flush()
        os._exit(code)
