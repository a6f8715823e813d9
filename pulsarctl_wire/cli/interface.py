"""An interface, as `capture` and `decode -i` read it: until a signal; dropped packets are said at once."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from math import inf
from types import FrameType

from pulsarctl_wire.capture.live import Live
from pulsarctl_wire.cli import console


@contextmanager
def open_interface(
    name: str,
    capture_filter: str | None,
    buffer: int,
    *,
    before_wait: Callable[[], object],
    seconds: float | None = None,
) -> Iterator[Live]:
    """The packets of an interface until SIGINT, SIGTERM or SIGHUP comes, or for so many seconds.

    SIGINT ends it even where it was ignored, as it is in what a script starts with &. SIGHUP does not: nohup
    has it ignored on purpose. A second signal ends the process at once. The other arguments are those of
    `Live`. Raises CaptureError if the interface cannot be opened.
    """
    end = inf if seconds is None else time.monotonic() + seconds

    def hear(number: int, _: FrameType | None) -> None:
        nonlocal end
        end = -inf
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

    def say(dropped: int) -> None:
        packets = console.count_of(dropped, "packet")
        console.complain(f"interface {name}: {packets} dropped by the kernel: the buffer was full")

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, hear) for number in numbers}
    try:
        live = Live(
            name,
            capture_filter,
            buffer=buffer,
            is_over=lambda: time.monotonic() >= end,
            before_wait=before_wait,
            on_drop=say,
        )
        with closing(live):
            yield live
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
