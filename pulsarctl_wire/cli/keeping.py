"""The process that watches a proxy, and the one that starts it again if it dies.

    proxy ── fork ── keeper ── fork ── watcher (watching.py)

A process with threads and open connections cannot be forked safely. The keeper is forked before there are
any, and does nothing but wait: whenever a watcher is killed or fails, the next one starts from that clean
state. It takes from the ring (`net/tap.py`) what the one before it has not taken.

One pipe leads from both to the proxy. READY: the first watcher has all it needs. ANEW: another one begins,
and is to be told again what is open. Its end: nobody watches any more.
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
from pulsarctl_wire.net.sockets import Socket
from pulsarctl_wire.net.tap import Ring

ENDING: Final = (signal.SIGINT, signal.SIGTERM)
"""The signals that end a proxy."""

READY: Final = b"!"
ANEW: Final = b"+"

_LAST_WORDS: Final = 10.0  # seconds that the watcher has at the end
_STEADY: Final = 60.0  # seconds after which a watcher counts as one that works
_LONGEST_DELAY: Final = 60.0
_LONGEST_REASON: Final = 1_000


class Start(NamedTuple):
    """How a watcher is to begin.

    `why` tells what became of the one before it, "" for the first one; `delay` is how many seconds it is to
    wait, `since_ns` when the first one began (since the epoch). `ready` is called when it has all it needs.
    """

    why: str
    delay: float
    since_ns: int
    ready: Callable[[], None]


Watch = Callable[[Start], int]
"""Watches until the proxy ends; gives the exit code."""


class Watcher:
    """The processes that watch, as the proxy sees them. If the first one cannot begin, the command ends."""

    def __init__(self, watch: Watch, ring: Ring, sock: Socket) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self._pipe, writing = os.pipe()
        gc.freeze()  # what is there by now stays, in all of them
        self._keeper = os.fork()
        if self._keeper == 0:
            os.close(self._pipe)
            sock.close()
            ring.for_watcher()
            _end(_Keeper(watch, ring, writing).run)
        os.close(writing)
        if os.read(self._pipe, 1) != READY:
            raise SystemExit(self.wait())

    def fileno(self) -> int:
        """Readable when there is news."""
        return self._pipe

    def news(self) -> bytes:
        """ANEW, several of them perhaps; b"" if nobody watches any more. Waits if there is no news."""
        return os.read(self._pipe, 64)

    def wait(self) -> int:
        """Wait for their end, but not for ever; gives the exit code."""
        for seconds, end_it in ((_LAST_WORDS, signal.SIGUSR1), (1.0, signal.SIGKILL)):
            if self._ends_within(seconds):
                break
            os.kill(self._keeper, end_it)  # something that the watcher writes to takes nothing any more
        code = os.waitstatus_to_exitcode(os.waitpid(self._keeper, 0)[1])
        return code if code >= 0 else console.EXIT_OUTPUT  # what was to be shown is not shown

    def _ends_within(self, seconds: float) -> bool:
        over = time.monotonic() + seconds
        while (left := over - time.monotonic()) > 0 and select.select([self._pipe], [], [], left)[0]:
            if not self.news():
                return True
        return False


class _Keeper:
    """Starts watchers, one after the other."""

    def __init__(self, watch: Watch, ring: Ring, pipe: int) -> None:
        self._watch = watch
        self._ring = ring
        self._pipe = pipe
        self._is_ready = mmap(-1, 1)  # shared with the watchers
        self._watcher = 0
        self._proxy = os.getppid()

    def run(self) -> int:
        """Start a watcher, and the next one whenever it dies; gives the exit code."""
        for number in (*ENDING, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the proxy says when it is over
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        signal.signal(signal.SIGUSR1, lambda *_: self._kill())
        since_ns = time.time_ns()
        why, delay, failures = "", 0.0, 0
        while True:
            began = time.monotonic()
            code, why = self._start(Start(why, delay, since_ns, self._ready))
            if not why:
                return console.EXIT_OUTPUT if failures else code
            if self._ring.ending or os.getppid() != self._proxy or not self._is_ready[0]:
                console.complain(f"the watcher has ended ({why})")
                return console.EXIT_OUTPUT
            with suppress(BrokenPipeError):  # the next one will find that the proxy is gone
                os.write(self._pipe, ANEW)
            lived = time.monotonic() - began - delay
            delay = 0.0 if lived > _STEADY or not failures else min(2 * delay or 1.0, _LONGEST_DELAY)
            failures += 1

    def _ready(self) -> None:
        """In a watcher: it has all it needs."""
        if not self._is_ready[0]:
            self._is_ready[0] = 1
            os.write(self._pipe, READY)

    def _start(self, start: Start) -> tuple[int, str]:
        """Run one watcher to its end; gives its exit code, and why it is not the end of all ("": it is)."""
        reading, writing = os.pipe()
        self._watcher = os.fork()
        if self._watcher == 0:
            os.close(reading)
            signal.signal(signal.SIGUSR1, signal.SIG_DFL)
            _end(lambda: self._watched(start, writing))
        os.close(writing)
        with open(reading, "rb") as reasons:
            why = reasons.read().decode()
        code = os.waitstatus_to_exitcode(os.waitpid(self._watcher, 0)[1])
        self._watcher = 0
        return code, f"killed by {signal.Signals(-code).name}" if code < 0 else why

    def _watched(self, start: Start, reasons: int) -> int:
        """In a watcher: watch; why that failed is written to `reasons`."""
        try:
            return self._watch(start)
        except SystemExit as error:
            if not self._is_ready[0]:
                return error.code if isinstance(error.code, int) else 1
            why = "it could not begin"
        except Exception as error:
            if not self._is_ready[0]:
                raise
            at = traceback.extract_tb(error.__traceback__)[-1]
            why = f"{type(error).__name__}: {error} at {os.path.basename(at.filename)}:{at.lineno}"
        os.write(reasons, why[:_LONGEST_REASON].encode("utf-8", "backslashreplace"))
        return console.EXIT_OUTPUT

    def _kill(self) -> None:
        if self._watcher:
            os.kill(self._watcher, signal.SIGKILL)


def _end(run: Callable[[], int]) -> NoReturn:
    """Run what a fork is there for, and end this process with the exit code that it gives."""
    code = 1
    try:
        code = run()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with suppress(OSError):
            sys.stderr.flush()
        os._exit(code)
