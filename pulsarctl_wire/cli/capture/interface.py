"""Reads an interface until a signal, for `capture`, `decode -i` and `doctor -i`; reports dropped packets."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from math import inf
from types import FrameType

from pulsarctl_wire.capture.live import Live
from pulsarctl_wire.cli import console
from pulsarctl_wire.render.text import count_of


@contextmanager
def open_interface(
    name: str,
    capture_filter: str | None,
    buffer: int,
    *,
    before_wait: Callable[[], object],
    seconds: float | None = None,
) -> Iterator[Live]:
    """Open an interface, to read packets until SIGINT, SIGTERM or SIGHUP comes, or for `seconds`.

    SIGINT ends the reading even if it was ignored: shells ignore it for commands that a script starts with &.
    An ignored SIGHUP stays ignored: nohup ignores it on purpose. The same signal again has its usual effect.
    The other arguments are those of `Live`. Raises CaptureError if the interface cannot be opened.
    """
    end = inf if seconds is None else time.monotonic() + seconds

    def on_signal(number: int, _: FrameType | None) -> None:
        nonlocal end
        end = -inf
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

    def say(dropped: int) -> None:
        packets = count_of(dropped, "packet")
        console.warn(f"interface {name}: {packets} dropped by the kernel: the buffer was full")

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    handlers = {number: signal.signal(number, on_signal) for number in numbers}
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
        for number, handler in handlers.items():
            signal.signal(number, handler)
